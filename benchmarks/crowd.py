"""All writers at once: eight writers of Tandem, two foreign ones and four compactors.

Groups (partitions) of files, one compactor for each. Tandem's writers update single rows anywhere,
the foreign ones (`deltalake`, a process each) delete single rows anywhere, all at full speed. No
writer repeats a transaction that its library gives up. A model decides whether rows are correct:
the rows written, with the reported updates, without the reported deletes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.engine import Engine
from benchmarks.goodput import FILES_PER_GROUP, Arena, Setting, write_groups
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    await_child,
    progress,
    start_child,
    timed,
)

WRITERS, FOREIGN, COMPACTORS = 8, 2, 4
SETTINGS = {
    "toy": Setting(20, COMPACTORS, 6, ()),
    "small": Setting(500, COMPACTORS, 20, ()),
    "full": Setting(5_000, COMPACTORS, 120, ()),
}
BOUNDS_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, float("inf"))
"""Foreign transactions are counted by their duration, in seconds."""


@dataclass(frozen=True)
class Share:
    """The ids that one writer, ours or foreign, uses exclusively."""

    writer: int
    rows: int

    def groups_and_ids(self) -> list[tuple[int, int]]:
        size = FILES_PER_GROUP * self.rows
        found = [
            (group, id_)
            for group in range(COMPACTORS)
            for id_ in range(group * size, (group + 1) * size)
            if id_ % (WRITERS + FOREIGN) == self.writer
        ]
        random.Random(self.writer).shuffle(found)
        return found


def delete_with_deltalake(folder: str, rows: int, writer: int) -> dict[str, Any]:
    """In a separate process: one row after the other, until the deadline."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), rows)
    victims = Share(WRITERS + writer, rows).groups_and_ids()
    DeltaTable(arena.spare.as_uri()).delete("grp = 0 and id = -1")
    arena.ready(f"foreign-{writer}")
    deadline = arena.await_go()
    deleted: list[int] = []
    ran: list[tuple[float, bool]] = []
    for group, victim in victims:
        if time.time() >= deadline:
            break
        began = time.perf_counter()
        try:
            DeltaTable(arena.table.as_uri()).delete(f"grp = {group} and id = {victim}")
        except DeltaError:
            ran.append((time.perf_counter() - began, False))
        else:
            ran.append((time.perf_counter() - began, True))
            deleted.append(victim)
    return {"deleted": deleted, "ran": ran}


def ours(folder: str, rows: int) -> dict[str, Any]:
    """In a separate process: all writers and compactors of ours, on one session."""
    arena = Arena(Path(folder), rows)
    engine = Engine(arena.table)
    engine.update("grp = 0 AND id = 0", arena.spare, amount="amount + 1")
    engine.compact(0, arena.spare)
    arena.ready("ours")
    deadline = arena.await_go()
    updated: Counter[int] = Counter()
    outcomes: dict[str, list[tuple[str, float]]] = {"update": [], "compaction": []}
    counting = threading.Lock()

    def note(kind: str, work: Callable[[], str]) -> bool:
        seconds, outcome = timed(work)
        with counting:
            outcomes[kind].append((outcome[:300], seconds))
        return str(outcome) == "ok"

    def write(writer: int) -> None:
        for group, id_ in Share(writer, rows).groups_and_ids():
            if time.time() >= deadline:
                return
            where = f"grp = {group} AND id = {id_}"
            if note("update", partial(engine.update, where, amount="amount + 1")):
                with counting:
                    updated[id_] += 1

    def compact(group: int) -> None:
        while time.time() < deadline:
            note("compaction", partial(engine.compact, group))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
    threads += [threading.Thread(target=compact, args=(n,)) for n in range(COMPACTORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    return {"updated": sorted(updated.items()), "outcomes": outcomes}


def verdict(root: Path, written: int, updated: dict[int, int], deleted: set[int]) -> dict[str, int]:
    """Wrong rows, by kind; by our reader, and by deltalake."""
    from deltalake import DeltaTable

    from tandem.delta import scan
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.storage import open_store

    log = DeltaLog(open_store(root.as_uri()))
    found = scan.scan(log.snapshot(), log.store, ["id", "amount"]).read_all()
    theirs = pa.table(DeltaTable(root.as_uri()).scan())
    ids, amounts = found["id"].to_numpy(), found["amount"].to_numpy()
    seen = np.bincount(ids, minlength=written)
    wanted = np.ones(written, dtype=np.int64)
    wanted[list(deleted)] = 0
    plus = np.zeros(written)
    for id_, times in updated.items():
        plus[id_] = times
    return {
        "lost": int(((seen == 0) & (wanted == 1)).sum()),
        "resurrected": int(((seen > 0) & (wanted == 0)).sum()),
        "doubled": int((seen > 1).sum()),
        "other values": int((amounts != ids * 0.5 + plus[ids]).sum()),
        "readers differ": int(sorted(ids.tolist()) != sorted(theirs["id"].to_pylist())),
    }


def contest(setting: Setting, folder: Path) -> dict[str, Any]:
    """Raises: ChildFailed."""
    rows = setting.rows_per_file
    arena = Arena(folder, rows)
    folder.mkdir()
    write_groups(arena.table, setting, setting.groups)
    write_groups(arena.spare, setting, 1)
    asked: list[tuple[Callable[..., Any], str, dict[str, int]]] = [(ours, "ours", {})]
    asked += [
        (delete_with_deltalake, f"foreign-{writer}", {"writer": writer})
        for writer in range(FOREIGN)
    ]
    started = []
    try:
        for function, who, more in asked:
            answer = folder / f"answer-{who}.json"
            process = start_child(function, answer, folder=str(folder), rows=rows, **more)
            started.append((process, answer))
            while not arena.is_ready(who):
                if process.poll() is not None:
                    await_child(process, answer, 1)
                time.sleep(0.02)
        arena.go(time.time() + setting.seconds)
        ended = [await_child(process, answer, 600 + setting.seconds) for process, answer in started]
    finally:
        for process, _ in started:
            if process.poll() is None:
                process.kill()
    mine, *others = ended
    deleted = {victim for other in others for victim in other["deleted"]}
    wrong = verdict(
        arena.table, setting.ids(setting.groups - 1).stop, dict(mine["updated"]), deleted
    )
    ran = [tuple(each) for other in others for each in other["ran"]]
    return {"outcomes": mine["outcomes"], "foreign": ran, "wrong": wrong}


def run(size: str, work: Path) -> Report:
    """Raises: ChildFailed."""
    setting = SETTINGS[size]
    progress(f"{WRITERS} + {FOREIGN} writers, {COMPACTORS} compactors, {setting.seconds:.0f} s")
    found = contest(setting, work / "crowd")
    rows, figures = [], []
    for kind, outcomes in found["outcomes"].items():
        kinds = Counter(outcome.partition(":")[0] for outcome, _ in outcomes)
        figures.append(
            Figure(
                f"{WRITERS} + {FOREIGN} writers, {COMPACTORS} compactors, "
                f"{setting.seconds:.0f} s: our {kind}s that were aborted",
                f"{kinds['aborted']} of {len(outcomes)}",
                "0",
                not kinds["aborted"],
            )
        )
        took = Samples.of(seconds for _, seconds in outcomes)
        rows.append(
            (
                f"our {kind}s",
                *(f"{kinds[k]}" for k in ("ok", "superseded", "nothing", "aborted")),
                took.text(1),
            )
        )
    foreign = tuple(_foreign(found["foreign"], low, high) for low, high in pairwise(BOUNDS_S))
    correct = "yes" if not any(found["wrong"].values()) else f"NO: {found['wrong']}"
    return Report(
        name="crowd",
        title="All writers at once",
        setting=(
            f"{setting.groups} groups of {FILES_PER_GROUP} files of {setting.rows_per_file:,} "
            f"rows; {WRITERS} writers of ours that update and {FOREIGN} `deltalake` processes "
            "that delete single rows, all at full speed; "
            f"{COMPACTORS} compactors without a pause; {setting.seconds:.0f} s. "
            f"Rows correct: {correct}."
        ),
        tables=(
            Table(
                "Ours (aims: no compaction and no update aborted)",
                ("", "ok", "superseded", "nothing to do", "aborted", "seconds each"),
                tuple(rows),
            ),
            Table(
                "Foreign deletes, by duration (seconds)",
                ("duration", "ok", "aborted by their own rules", "share aborted"),
                foreign,
            ),
        ),
        checks=(
            "Every row that was not deleted exists once, with one increment for each update "
            "that succeeded; our reader and deltalake's `scan()` agree.",
        ),
        figures=tuple(figures),
        raw=found,
    )


def _foreign(ran: list[tuple[float, bool]], low: float, high: float) -> tuple[str, ...]:
    """A row of the table of foreign transactions: those with such a duration."""
    outcomes = [ok for seconds, ok in ran if low <= seconds < high]
    aborted = outcomes.count(False)
    span = f"{low:g} to {high:g}" if high < float("inf") else f"{low:g} and more"
    share = f"{aborted / len(outcomes):.0%}" if outcomes else "–"
    return (span, f"{len(outcomes) - aborted}", f"{aborted}", share)
