"""The cost of a compaction for writers: latency of updates during a compaction of their own table,
and during the same compaction of another table, which takes as much of the machine.

The two take turns, so that other load on the machine affects both.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.engine import Engine
from benchmarks.goodput import FILES_PER_GROUP, Setting, write_groups
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    progress,
    timed,
)

AIM = 1.1
SETTINGS = {
    "toy": Setting(50, 4, 1, ()),
    "small": Setting(2_000, 8, 2, ()),
    "full": Setting(20_000, 24, 7, ()),
}
"""`seconds` is the number of turns of each of the two."""
UPDATES = {"toy": 1, "small": 3, "full": 6}


def measure(folder: str, rows: int, groups: int, turns: int, updates: int) -> dict[str, Any]:
    """In a separate process: seconds of each update of each turn, by the table that was compacted
    during the whole update."""
    source = Path(folder) / "source"
    write_groups(source, Setting(rows, groups, 0, ()), groups)
    engine = Engine(source)
    warm = data.copy_table(source, Path(folder) / "warm")
    engine.compact(0, warm)
    engine.update("grp = 1 AND id < 0", warm, amount="amount + 1")
    found: dict[str, list[list[float]]] = {"own": [], "other": []}
    compactions = {"own": 0, "other": 0}
    for turn in range(-2, 2 * turns):  # the first two are not counted
        which = ("own", "other")[turn % 2]
        mine = data.copy_table(source, Path(folder) / f"mine-{turn}")
        other = data.copy_table(source, Path(folder) / f"other-{turn}")
        compacted = mine if which == "own" else other
        over, idle = threading.Event(), threading.Event()
        done: list[str] = []
        took: list[float] = []

        def compact(
            table: Path = compacted, over: Any = over, idle: Any = idle, done: Any = done
        ) -> None:
            for group in range(groups):
                if over.is_set():
                    return
                done.append(engine.compact(group, table))
            idle.set()  # there is nothing left to compact

        compactor = threading.Thread(target=compact)
        compactor.start()
        for number in range(updates):
            # One row of every file of a group that is compacted now, or soon.
            where = f"grp = {number % groups} AND id % {rows} = {number}"
            seconds, outcome = timed(engine.update, where, mine, amount="amount + 1")
            if outcome != "ok":
                raise WrongResult(outcome)
            if idle.is_set():
                break
            took.append(seconds)
        over.set()
        compactor.join()
        lost = [outcome for outcome in done if outcome != "ok"]
        if lost:
            raise WrongResult(str(lost))
        if turn >= 0 and took:
            found[which].append(took)
            compactions[which] += len(done)
        shutil.rmtree(mine)
        shutil.rmtree(other)
    engine.close()
    return {**found, "compactions": compactions}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    setting = SETTINGS[size]
    turns, updates = int(setting.seconds), UPDATES[size]
    folder = work / "busy"
    folder.mkdir()
    progress(f"{2 * turns} turns of {updates} updates")
    found = in_child(
        measure,
        folder=str(folder),
        rows=setting.rows_per_file,
        groups=setting.groups,
        turns=turns,
        updates=updates,
        timeout=1800,
    )
    shutil.rmtree(folder)
    own, other = (Samples.of(s for turn in found[w] for s in turn) for w in ("own", "other"))
    ratio = own.median / other.median
    by_turn = Samples.of(
        Samples.of(mine).median / Samples.of(others).median
        for mine, others in zip(found["own"], found["other"], strict=False)
    )
    return Report(
        name="busy",
        title="Updates during a compaction",
        setting=(
            f"Groups of {FILES_PER_GROUP} files of {setting.rows_per_file:,} rows are compacted "
            f"one after the other, on a warm session, while {updates} updates run one after "
            f"the other on the same session; {turns} turns of each kind, alternating. In each "
            "turn, those updates count that ended while files were left to compact."
        ),
        tables=(
            Table(
                f"Seconds of an update (aim: at most {AIM} times)",
                ("compacted table", "updates", "seconds", "compactions", "times", "by turns"),
                (
                    (
                        "another table",
                        f"{len(other.values)}",
                        other.text(),
                        f"{found['compactions']['other']}",
                        "1.00",
                        "",
                    ),
                    (
                        "the table that is updated",
                        f"{len(own.values)}",
                        own.text(),
                        f"{found['compactions']['own']}",
                        f"{ratio:.2f}",
                        by_turn.text(),
                    ),
                ),
            ),
        ),
        checks=("Every update and every compaction succeeded.",),
        figures=(
            Figure(
                "An update while a compaction of its table runs, times one while another table's "
                "runs",
                f"{ratio:.2f} (by turns {by_turn.text()})",
                f"≤ {AIM}",
                ratio <= AIM,
            ),
        ),
        raw=found,
    )
