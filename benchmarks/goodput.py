"""Goodput under concurrent writes: compactions of 20 files alongside two deleters.

The table has groups (partitions) of 20 small files. A compactor compacts one group after the other,
and continues only after a group's compaction has committed. At the same time two writers, each in a
separate process, delete rows by their id in the current group, at full speed. Predicates name
the group, so that writers conflict only about files that they use. Each library retries by its own
rules; the benchmark repeats nothing.

A model decides whether rows are correct: the ids written, without those of the deletes that
succeeded.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import data
from benchmarks.engine import Engine
from benchmarks.harness import (
    ChildFailed,
    Report,
    Samples,
    Table,
    await_child,
    progress,
    start_child,
    timed,
    without_folder,
)

FILES_PER_GROUP = 20
WRITERS = 2
PATIENCE_S = 180
"""Seconds that a child may take to be ready."""

COMPACTIONS = ("OPTIMIZE",)


@dataclass(frozen=True)
class Setting:
    """A size of table. `contests` names the runs on it."""

    rows_per_file: int
    groups: int
    seconds: float
    contests: tuple[str, ...]
    vectors: bool = True
    files: int = FILES_PER_GROUP

    @property
    def name(self) -> str:
        files = "" if self.files == FILES_PER_GROUP else f"{self.files}x"
        return f"{files}{self.rows_per_file}{'' if self.vectors else '-without-vectors'}"

    @property
    def title(self) -> str:
        vectors = "" if self.vectors else ", without deletion vectors"
        return (
            f"{self.files} files of {self.rows_per_file:,} rows{vectors}, {self.seconds:.0f} s or "
            f"until all {self.groups} groups are compacted"
        )

    def ids(self, group: int) -> range:
        """The ids of a group, file after file."""
        size = self.files * self.rows_per_file
        return range(group * size, (group + 1) * size)


ALL = ("alone", "tandem", "deltalake", "spark_delta", "through_us")
SETTINGS = {
    "toy": (
        Setting(50, 3, 3, ("alone", "tandem", "deltalake", "through_us")),
        Setting(50, 3, 3, ("tandem", "deltalake"), vectors=False),
    ),
    "small": (Setting(1_000, 8, 5, ALL), Setting(1_000, 8, 5, ("tandem",), vectors=False)),
    "full": (
        Setting(20_000, 24, 15, ALL),
        Setting(1_000, 60, 6, ("alone", "tandem", "deltalake")),
        Setting(20_000, 24, 60, ALL, vectors=False),
        Setting(800_000, 3, 90, ("tandem", "deltalake"), files=40),
        Setting(800_000, 3, 90, ("tandem", "deltalake"), vectors=False, files=40),
    ),
}


@dataclass(frozen=True)
class Arena:
    """The folder through which the processes of one run communicate. They get its path as an
    argument, and the setting from the table's own numbers."""

    folder: Path
    rows_per_file: int
    files: int = FILES_PER_GROUP

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def spare(self) -> Path:
        """A table to warm up on."""
        return self.folder / "spare"

    def ready(self, who: str) -> None:
        (self.folder / f"ready-{who}").touch()

    def is_ready(self, who: str) -> bool:
        return (self.folder / f"ready-{who}").exists()

    def go(self, deadline: float) -> None:
        """Start all processes; `deadline` is Unix seconds."""
        part = self.folder / "go.part"
        part.write_text(str(deadline))
        part.replace(self.folder / "go")

    def await_go(self) -> float:
        path = self.folder / "go"
        until = time.time() + 2 * PATIENCE_S
        while not path.exists():
            if time.time() > until:
                raise ChildFailed("no start signal")
            time.sleep(0.01)
        return float(path.read_text())

    def stop(self) -> None:
        (self.folder / "stop").touch()

    @property
    def stopped(self) -> bool:
        return (self.folder / "stop").exists()

    def ids(self, group: int) -> range:
        return Setting(self.rows_per_file, 0, 0, (), files=self.files).ids(group)

    def set_group(self, group: int) -> None:
        part = self.folder / "group.part"
        part.write_text(str(group))
        part.replace(self.folder / "group")

    def group(self) -> int:
        return int((self.folder / "group").read_text())


_VECTORS = {"delta.enableDeletionVectors": "true"}


def write_groups(root: Path, setting: Setting, groups: int) -> None:
    """20 appends by deltalake, each with one file for every group."""
    from deltalake import write_deltalake

    rows = setting.rows_per_file
    for index in range(setting.files):
        batch = data.query(
            f"""SELECT g::INTEGER AS grp, (g * {setting.files} + {index}) * {rows} + i AS id,
                       id * 0.5 AS amount, 'row ' || id AS note
                FROM range({groups}) t(g), range({rows}) u(i) ORDER BY g, i"""
        ).to_arrow_table()
        write_deltalake(
            root.as_uri(),
            batch,
            mode="append",
            partition_by=["grp"],
            configuration=_VECTORS if index == 0 and setting.vectors else None,
        )


# The deleters.


def victims(writer: int, arena: Arena) -> Iterator[tuple[int, int]]:
    """Endless (group, id): a row of the current group that no other writer picks, each once."""
    chance = random.Random(writer)
    taken: dict[int, set[int]] = {}
    while True:
        group = arena.group()
        ids, of_group = arena.ids(group), taken.setdefault(group, set())
        mine = ids[(writer - ids.start) % WRITERS :: WRITERS]
        if len(of_group) == len(mine):
            time.sleep(0.01)
            continue
        victim = chance.choice(mine)
        if victim not in of_group:
            of_group.add(victim)
            yield group, victim


def delete_with_deltalake(folder: str, rows: int, files: int, writer: int) -> dict[str, Any]:
    """In a separate process: deletes until the deadline, one row each."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), rows, files)
    DeltaTable(arena.spare.as_uri()).delete("grp = 0 and id = -1")
    arena.ready(f"deleter-{writer}")
    deadline = arena.await_go()
    deleted: list[int] = []
    lost: list[dict[str, Any]] = []
    for group, victim in victims(writer, arena):
        if time.time() >= deadline or arena.stopped:
            break
        table = DeltaTable(arena.table.as_uri())
        read = table.version()
        try:
            table.delete(f"grp = {group} and id = {victim}")
        except DeltaError as error:
            table.update_incremental()
            why = without_folder(str(error), arena.folder)[:200]
            lost.append({"read": read, "until": table.version(), "why": why})
        else:
            deleted.append(victim)
    return {"deleted": deleted, "lost": lost}


# The compactors: each is a child that passes its compaction of a group to `_compact_until`.


def _compact_until(arena: Arena, groups: int, compact: Callable[[int], str]) -> dict[str, Any]:
    """Compact group after group until the deadline. `compact` returns the outcome."""
    outcomes: list[tuple[str, float]] = []
    failures: list[str] = []
    deadline = arena.await_go()
    group = 0
    while time.time() < deadline and group < groups:
        arena.set_group(group)
        seconds, outcome = timed(compact, group)
        kind, _, why = outcome.partition(": ")
        outcomes.append((kind, seconds))
        if kind == "aborted":
            failures.append(why)
        else:
            group += 1
    arena.stop()
    return {"outcomes": outcomes, "failures": failures, "groups": group, "ended": time.time()}


def no_compactor(folder: str, rows: int, files: int, groups: int) -> dict[str, Any]:
    """The deleters alone, one group a second: their conflicts with each other."""
    arena = Arena(Path(folder), rows, files)
    arena.ready("compactor")
    until = arena.await_go()

    def wait(_group: int) -> str:
        time.sleep(min(1.0, max(until - time.time(), 0)))
        return "none"

    return _compact_until(arena, groups, wait)


def compact_with_deltalake(folder: str, rows: int, files: int, groups: int) -> dict[str, Any]:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), rows, files)

    def compact(group: int, root: Path = arena.table) -> str:
        try:
            DeltaTable(root.as_uri()).optimize.compact([("grp", "=", str(group))])
        except DeltaError as error:
            return f"aborted: {error}"
        return "ok"

    compact(0, arena.spare)
    arena.ready("compactor")
    return _compact_until(arena, groups, compact)


def compact_with_spark(folder: str, rows: int, files: int, groups: int) -> dict[str, Any]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from benchmarks.warm import start_delta

    arena = Arena(Path(folder), rows, files)
    spark = start_delta()

    def compact(group: int, root: Path = arena.table) -> str:
        try:
            spark.sql(f"OPTIMIZE delta.`{root}` WHERE grp = {group}").collect()
        except (PySparkException, Py4JError) as error:
            return f"aborted: {error}"
        return "ok"

    for group in range(3):
        compact(group, arena.spare)
    arena.ready("compactor")
    found = _compact_until(arena, groups, compact)
    spark.stop()
    return found


def compact_with_tandem(folder: str, rows: int, files: int, groups: int) -> dict[str, Any]:
    """The engine with its jobs on a warm session, like its peer."""
    arena = Arena(Path(folder), rows, files)
    engine = Engine(arena.table)
    for group in range(3):
        engine.compact(group, arena.spare)
    arena.ready("compactor")
    found = _compact_until(arena, groups, engine.compact)
    engine.close()
    return {**found, "gone": engine.inputs_gone}


def all_with_tandem(folder: str, rows: int, files: int, groups: int) -> dict[str, Any]:
    """Deletes by Tandem, too: both writers and the compactor are operations of one engine."""
    arena = Arena(Path(folder), rows, files)
    engine = Engine(arena.table)
    for group in range(3):
        engine.compact(group, arena.spare)
        engine.delete(group, arena.ids(group).start, arena.spare)
    arena.ready("compactor")
    deadline = arena.await_go()
    arena.set_group(0)
    deleted: list[list[int]] = [[] for _ in range(WRITERS)]
    lost: list[dict[str, Any]] = []

    def write(writer: int) -> None:
        for group, victim in victims(writer, arena):
            if time.time() >= deadline or arena.stopped:
                return
            outcome = engine.delete(group, victim)
            if outcome == "ok":
                deleted[writer].append(victim)
            else:
                lost.append({"read": 0, "until": 0, "why": outcome})

    writers = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
    for thread in writers:
        thread.start()
    found = _compact_until(arena, groups, engine.compact)
    for thread in writers:
        thread.join()
    engine.close()
    return {
        **found,
        "gone": engine.inputs_gone,
        "deleted": [i for d in deleted for i in d],
        "lost": lost,
    }


# One run.


@dataclass(frozen=True)
class Contest:
    """One line of the report."""

    name: str
    title: str
    compactor: Callable[..., Any]
    foreign_writers: bool = True


CONTESTS = (
    Contest("alone", "no compactor", no_compactor),
    Contest("tandem", "tandem", compact_with_tandem),
    Contest("deltalake", "deltalake optimize.compact", compact_with_deltalake),
    Contest("spark_delta", "Spark + Delta OPTIMIZE", compact_with_spark),
    Contest("through_us", "tandem, and deletes through tandem", all_with_tandem, False),
)


def contest(one: Contest, setting: Setting, source: Path, folder: Path) -> dict[str, Any]:
    """All processes at once for some seconds, on a copy of `source`; then count.

    Raises: ChildFailed.
    """
    arena = Arena(folder, setting.rows_per_file, setting.files)
    folder.mkdir()
    data.copy_table(source, arena.table)
    write_groups(arena.spare, setting, 3)
    seconds = setting.seconds
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(function: Callable[..., Any], who: str, **arguments: Any) -> None:
        answer = folder / f"answer-{who}.json"
        process = start_child(
            function,
            answer,
            folder=str(folder),
            rows=setting.rows_per_file,
            files=setting.files,
            **arguments,
        )
        started.append((process, answer))
        until = time.time() + PATIENCE_S
        while not arena.is_ready(who):
            if process.poll() is not None:
                await_child(process, answer, 1)
            if time.time() > until:
                process.kill()
                raise ChildFailed(f"{who} was not ready after {PATIENCE_S} s")
            time.sleep(0.02)

    try:
        start(one.compactor, "compactor", groups=setting.groups)
        if one.foreign_writers:
            for writer in range(WRITERS):
                start(delete_with_deltalake, f"deleter-{writer}", writer=writer)
        arena.set_group(0)
        began = time.time()
        arena.go(began + seconds)
        compacted, *writers = [
            await_child(process, answer, PATIENCE_S + seconds) for process, answer in started
        ]
    finally:
        for process, _ in started:
            if process.poll() is None:
                process.kill()
    if not one.foreign_writers:
        writers = [{"deleted": compacted["deleted"], "lost": compacted["lost"]}]
    deleted = [victim for writer in writers for victim in writer["deleted"]]
    lost = [attempt for writer in writers for attempt in writer["lost"]]
    kinds = Counter(kind for kind, _ in compacted["outcomes"])
    written = np.arange(setting.ids(setting.groups - 1).stop)
    expected = np.delete(written, deleted)
    return {
        "seconds": compacted["ended"] - began,
        "compactions": {k: kinds[k] for k in ("ok", "superseded", "aborted")},
        "compaction_seconds": [s for _, s in compacted["outcomes"]],
        "failures": [without_folder(why, folder)[:300] for why in compacted["failures"][:5]],
        "deletes_ok": len(deleted),
        "deletes_aborted": len(lost),
        "aborted_by_compaction": _met_compaction(arena.table, lost),
        "losses": [attempt["why"] for attempt in lost[:5]],
        "rows_masked": compacted.get("gone"),
        "files_left": _files_left(arena.table, compacted["groups"]),
        **_verdict(arena.table, expected),
    }


def _met_compaction(root: Path, lost: list[dict[str, Any]]) -> int:
    """Of the aborted deletes, those with a compaction's commit between the version that they read
    and their end. (Some of them may have met another delete, too.)"""
    from deltalake import DeltaTable

    history = DeltaTable(root.as_uri()).history()
    compactions = {h["version"] for h in history if h.get("operation") in COMPACTIONS}
    return sum(
        any(version in compactions for version in range(a["read"] + 1, a["until"] + 1))
        for a in lost
    )


def _files_left(root: Path, groups: int) -> float | None:
    """Live files of a compacted group, on average."""
    from deltalake import DeltaTable

    if not groups:
        return None
    actions = pa.table(DeltaTable(root.as_uri()).get_add_actions(flatten=True))
    found = [int(g) for g in actions["partition.grp"].to_pylist()]
    return sum(g < groups for g in found) / groups


def _verdict(root: Path, expected: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Whether every reader sees exactly the model's rows."""
    from deltalake import DeltaTable

    from tandem.delta import scan
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.storage import open_store

    log = DeltaLog(open_store(root.as_uri()))
    ours = np.sort(scan.scan(log.snapshot(), log.store, ["id"]).read_all()["id"].to_numpy())
    theirs = np.sort(pa.table(DeltaTable(root.as_uri()).scan())["id"].to_numpy())
    # Ids are small numbers, so counting is faster than comparing sets.
    seen = np.bincount(ours, minlength=int(expected[-1]) + 1)
    wanted = np.bincount(expected, minlength=len(seen))
    wrong = {
        "lost": int(((seen == 0) & (wanted == 1)).sum()),
        "resurrected": int(((seen > 0) & (wanted == 0)).sum()),
        "doubled": int((seen > 1).sum()),
        "readers_differ": not np.array_equal(ours, theirs),
    }
    return {"correct": not any(wrong.values()), "wrong": wrong}


def _row(one: Contest, found: dict[str, Any]) -> tuple[str, ...]:
    compactions, none = found["compactions"], one.name == "alone"
    took = Samples.of(found["compaction_seconds"])
    return (
        one.title,
        f"{found['seconds']:.0f}",
        "–" if none else f"{compactions['ok']} / {compactions['aborted']}",
        "–" if none else f"{compactions['superseded']}",
        "–" if none else f"{took.median:.2f}",
        "–" if none or found["files_left"] is None else f"{found['files_left']:.1f}",
        f"{found['deletes_ok']} / {found['deletes_aborted']}",
        "–" if none else f"{found['aborted_by_compaction']}",
        "yes" if found["correct"] else f"NO: {json.dumps(found['wrong'])}",
    )


def run(size: str, work: Path) -> Report:
    """A wrong table does not stop the run: it is a result, and is shown as one."""
    raw: dict[str, Any] = {}
    tables = []
    for setting in SETTINGS[size]:
        source = work / f"source-{setting.name}"
        write_groups(source, setting, setting.groups)
        found = {}
        for one in CONTESTS:
            if one.name in setting.contests:
                progress(f"{one.title}, {setting.name} rows a file")
                folder = work / f"{one.name}-{setting.name}"
                found[one.name] = contest(one, setting, source, folder)
                shutil.rmtree(folder)
        shutil.rmtree(source)
        raw[setting.name] = found
        tables.append(
            Table(
                setting.title,
                (
                    "compactor",
                    "seconds",
                    "compactions ok / aborted",
                    "superseded",
                    "seconds each",
                    f"files left of {setting.files}",
                    "deletes ok / aborted",
                    "of the aborted deletes, met a compaction",
                    "rows correct",
                ),
                tuple(_row(one, found[one.name]) for one in CONTESTS if one.name in found),
            )
        )
    return Report(
        name="goodput",
        title="Goodput: compactions of 20 files alongside two deleting writers",
        setting=(
            "Groups (partitions) of files. The compactor compacts group after "
            "group; two `deltalake` processes delete single rows of the current group at full "
            "speed. An aborted compaction is retried on the same group. Spark is warm for tandem "
            "and for its peer. *Superseded* compactions have nothing left to commit, since every "
            "input was replaced by then (deltalake replaces a whole file for each deleted row). "
            "*Met a compaction*: a compaction committed between the delete's read and its end; "
            "the delete's own library aborts such transactions, whichever engine compacts."
        ),
        tables=tuple(tables),
        checks=(
            "The remaining rows are the rows written minus those of successful deletes: none "
            "lost, none resurrected, none duplicated; our reader and deltalake's `scan()` agree.",
        ),
        raw=raw,
    )
