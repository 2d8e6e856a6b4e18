"""Does a table get slower with age? Passes of updates with compaction beside them, and what a
scan takes after each pass (as LST-Bench's longevity runs do).

Ours compacts while the updates run; Spark + Delta between the passes, with its own OPTIMIZE,
since beside them it would lose. Both tables are scanned by the same third engine.
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
from benchmarks.harness import Report, Samples, Table, WrongResult, in_child, progress, timed

PASSES = 6
UPDATES = 4
"""Of each pass; each changes 1 % of the rows."""
SCANS = {"toy": 1, "small": 5, "full": 15}
SETTINGS = {
    "toy": Setting(50, 1, 0, ()),
    "small": Setting(2_000, 2, 0, ()),
    "full": Setting(50_000, 4, 0, ()),
}
AIM = 0.02


def scan(root: Path, times: int) -> tuple[list[float], tuple[int, float]]:
    """Seconds of each scan, and (rows, sum of amounts)."""
    from deltalake import DeltaTable

    def once() -> tuple[int, float]:
        table = pa.table(DeltaTable(root.as_uri()).scan())
        return table.num_rows, float(sum(table["amount"].to_numpy()))

    once()
    found = [timed(once) for _ in range(times)]
    return [seconds for seconds, _ in found], found[-1][1]


def where(pass_: int, number: int) -> str:
    return f"id % 100 = {(pass_ * UPDATES + number) * 7 % 100}"


def by_us(folder: str, groups: int, times: int) -> list[Any]:
    """In a process of its own: after each pass (scan seconds, files, truth)."""
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

    found = []
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
        found.append(_after(root, times))
    engine.close()
    return found


def by_spark_delta(folder: str, groups: int, times: int) -> list[Any]:  # noqa: ARG001 - as ours
    """The same with Spark + Delta, deletion vectors on; OPTIMIZE after each pass."""
    from benchmarks.warm import start_delta

    spark = start_delta()
    table = f"delta.`{folder}`"
    found = []
    for pass_ in range(PASSES):
        for number in range(UPDATES):
            spark.sql(f"UPDATE {table} SET amount = amount + 1 WHERE {where(pass_, number)}")
        spark.sql(f"OPTIMIZE {table}").collect()
        found.append(_after(Path(folder), times))
    spark.stop()
    return found


def _after(root: Path, times: int) -> list[Any]:
    from deltalake import DeltaTable

    seconds, truth = scan(root, times)
    return [seconds, len(DeltaTable(root.as_uri()).file_uris()), truth]


WAYS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("tandem, compaction beside the updates", by_us),
    ("Spark + Delta, OPTIMIZE between passes", by_spark_delta),
)


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    setting, times = SETTINGS[size], SCANS[size]
    source = work / "aged"
    write_groups(source, setting, setting.groups)
    rows, truths, raw = [], [], {}
    for title, way in WAYS:
        progress(title)
        table = data.copy_table(source, work / way.__name__)
        found = in_child(way, folder=str(table), groups=setting.groups, times=times, timeout=3600)
        seconds = [Samples.of(each[0]) for each in found]
        truths.append([tuple(each[2]) for each in found])
        growth = seconds[-1].median / seconds[0].median - 1
        rows.append(
            (
                title,
                *(s.map(lambda v: v * 1000).text(0) for s in (seconds[0], seconds[-1])),
                f"{found[0][1]} / {found[-1][1]}",
                f"{growth:+.1%}",
            )
        )
        raw[way.__name__] = found
    if truths[0] != truths[1]:
        raise WrongResult(f"the two tables differ: {truths}")
    total = setting.groups * FILES_PER_GROUP * setting.rows_per_file
    return Report(
        name="longevity",
        title="A table's age",
        setting=(
            f"{total:,} rows in {setting.groups * FILES_PER_GROUP} files; {PASSES} passes of "
            f"{UPDATES} updates of 1 % of the rows. After each pass `deltalake` reads the whole "
            f"table {times} times, after once that is not counted."
        ),
        tables=(
            Table(
                f"Milliseconds of a scan (aim: growth at most {AIM:.0%})",
                ("", "after pass 1", f"after pass {PASSES}", "files then", "growth"),
                tuple(rows),
            ),
        ),
        checks=("After each pass both tables have as many rows, and the same sum of amounts.",),
        raw=raw,
    )
