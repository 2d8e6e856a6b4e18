"""Whether a table gets slower with age: passes of updates with concurrent compaction, and the time
of a scan after each pass (as in LST-Bench's longevity runs).

Tandem compacts while the updates run. Spark + Delta runs its OPTIMIZE between the passes, since it
would lose conflicts during them. The same third engine scans both tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

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

PASSES = 6
UPDATES = 3
"""Updates per pass; each changes 1 % of the rows."""
SCANS = {"toy": 1, "small": 5, "full": 25}
SETTINGS = {
    "toy": Setting(50, 1, 0, ()),
    "small": Setting(2_000, 2, 0, ()),
    "full": Setting(40_000, 4, 0, ()),
}
AIM = 0.02


def kept(root: Path, pass_: int) -> Path:
    """The folder of the table's copy after a pass."""
    return root.with_name(f"{root.name}-{pass_}")


def scans(folders: list[str], times: int) -> dict[str, Any]:
    """In a separate process: scan these tables in turn, so that other load on the machine affects
    all; of each (seconds of every scan, files, (rows, sum of amounts))."""
    from deltalake import DeltaTable

    def scan(folder: str) -> pa.Table:
        return pa.table(DeltaTable(Path(folder).as_uri()).scan())

    found: dict[str, Any] = {}
    for folder in folders:
        table = scan(folder)  # not counted
        truth = (table.num_rows, float(table["amount"].to_numpy().sum()))
        found[folder] = ([], len(DeltaTable(Path(folder).as_uri()).file_uris()), truth)
    for turn in range(times):
        for folder in folders if turn % 2 else folders[::-1]:
            found[folder][0].append(timed(scan, folder)[0])
    return found


def where(pass_: int, number: int) -> str:
    return f"id % 100 = {(pass_ * UPDATES + number) * 7 % 100}"


def by_us(folder: str, groups: int) -> None:
    """In a separate process: all passes. Compaction repeats during the updates, and runs once
    more after them, like Spark's."""
    root = Path(folder)
    engine = Engine(root)

    def tend(over: threading.Event, lost: list[str]) -> None:
        while not over.is_set():
            for group in range(groups):
                outcome = engine.compact(group)
                if outcome.startswith("aborted"):
                    lost.append(outcome)

    def update(text: str) -> None:
        outcome = engine.update(text, amount="amount + 1")
        if outcome != "ok":
            raise WrongResult(outcome)

    for pass_ in range(PASSES):
        over, lost = threading.Event(), list[str]()
        tending = threading.Thread(target=tend, args=(over, lost))
        tending.start()
        try:
            for number in range(UPDATES):
                update(where(pass_, number))
        finally:
            over.set()
            tending.join()
        for group in range(groups):
            engine.compact(group)
        if lost:
            raise WrongResult(str(lost))
        data.copy_table(root, kept(root, pass_))
    engine.close()


def by_spark_delta(folder: str, groups: int) -> None:  # noqa: ARG001 - as ours
    """The same with Spark + Delta, deletion vectors on; OPTIMIZE after each pass."""
    from benchmarks.warm import start_delta

    spark = start_delta()
    table = f"delta.`{folder}`"
    for pass_ in range(PASSES):
        for number in range(UPDATES):
            spark.sql(f"UPDATE {table} SET amount = amount + 1 WHERE {where(pass_, number)}")
        spark.sql(f"OPTIMIZE {table}").collect()
        data.copy_table(Path(folder), kept(Path(folder), pass_))
    spark.stop()


WAYS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("tandem, compaction during the updates", by_us),
    ("Spark + Delta, OPTIMIZE between passes", by_spark_delta),
)


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    setting, times = SETTINGS[size], SCANS[size]
    source = work / "aged"
    write_groups(source, setting, setting.groups)
    seconds: dict[str, float] = {}
    tables: dict[str, list[str]] = {}
    for title, way in WAYS:
        progress(title)
        table = data.copy_table(source, work / way.__name__)
        arguments = {"folder": str(table), "groups": setting.groups}
        seconds[title], _ = timed(in_child, way, timeout=1800, **arguments)
        tables[title] = [str(kept(table, pass_)) for pass_ in range(PASSES)]
    progress("scans")
    found = in_child(scans, folders=[f for each in tables.values() for f in each], times=times)
    truths = [[tuple(found[folder][2]) for folder in each] for each in tables.values()]
    if truths[0] != truths[1]:
        raise WrongResult(f"the two tables differ: {truths}")
    rows, growths = [], {}
    for title, folders in tables.items():
        ms = [Samples.of(found[folder][0]).map(lambda v: v * 1000) for folder in folders]
        growths[title] = Samples.of(
            last / first - 1 for first, last in zip(ms[0].values, ms[-1].values, strict=True)
        )
        rows.append(
            (
                title,
                ms[0].text(0),
                *(f"{each.median:.0f}" for each in ms[1:-1]),
                ms[-1].text(0),
                f"{found[folders[0]][1]} / {found[folders[-1]][1]}",
                _percent(growths[title]),
                f"{seconds[title]:.0f}",
            )
        )
    mine = growths[WAYS[0][0]]
    total = setting.groups * FILES_PER_GROUP * setting.rows_per_file
    return Report(
        name="longevity",
        title="A table's age",
        setting=(
            f"{total:,} rows in {setting.groups * FILES_PER_GROUP} files; {PASSES} passes of "
            f"{UPDATES} updates of 1 % of the rows. After each pass the table is copied; at the "
            f"end `deltalake` reads each copy {times} times, in turn, after one read that does not "
            "count. Growth is the median growth of each turn's scans."
        ),
        tables=(
            Table(
                f"Milliseconds of a scan (aim: growth at most {AIM:.0%})",
                (
                    "",
                    *(f"after pass {number + 1}" for number in range(PASSES)),
                    "files after the first / last",
                    "growth",
                    "seconds of all passes, with the session's start",
                ),
                tuple(rows),
            ),
        ),
        checks=("After each pass both tables have equal numbers of rows and sums of amounts.",),
        figures=(
            Figure(
                f"Time of a scan after {PASSES} passes of updates, compared with one pass",
                _percent(mine),
                f"growth ≤ {AIM:.0%}",
                mine.median <= AIM,
            ),
        ),
        raw={title: [found[folder] for folder in folders] for title, folders in tables.items()},
    )


def _percent(growth: Samples) -> str:
    low, high = min(growth.values), max(growth.values)
    return f"{growth.median:+.1%} ({low:+.1%} to {high:+.1%})"
