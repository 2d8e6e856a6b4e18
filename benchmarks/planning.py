"""How long planning and selection take over the log of a large table that was read already.

The table's files are in segments that leave nothing to compact, as on most days: so what is
measured is the looking, and not the making of a plan. Beside it, the least that any reader does
which looks at files one by one: decode each `add` action and parse its statistics.

The same table with files in the order of a layout, with a deletion vector each. The same with files
of other writers has as many segments as files. If these files are small, a plan takes all of them:
then most of the time goes into the plan itself, in which every segment has its name and every bin
its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa

from benchmarks import data
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    peak_bytes,
    progress,
    timed,
)

FILES = {"toy": 400, "small": 20_000, "full": 200_000}
MILLION = {"toy": 400, "small": 100_000, "full": 1_000_000}
TIMES = {"toy": 1, "small": 3, "full": 7}
PER_SEGMENT, PER_DAY = 100, 1_000
AIM_S = 0.5
AIM_MILLION_S, AIM_MILLION_BYTES = 3.0, 1 << 30

COLUMNS = {
    "id": "long",
    "amount": "double",
    "name": "string",
    "at": "timestamp",
    "region": "string",
}
REGIONS = ("north", "south", "east", "west")
ONE_BY_ONE = "file by file: decode each add, parse its statistics"
MINOR, MINOR_TIMED = "plan a minor compaction", "plan a minor compaction, by time column"
SEMI_MAJOR = "plan a semi-major compaction, by time column"
KEPT = "files in the order of a layout, rows of each deleted"
IN_ORDER = {
    f"{KEPT}: {MINOR}": ("Minor", False, False),
    f"{KEPT}: {SEMI_MAJOR}": ("SemiMajor", True, False),
    f"{KEPT}: plan a semi-major compaction with this layout, by time column": (
        "SemiMajor", True, True,
    ),
}  # fmt: skip
FOREIGN, SMALL = "other writers' files", "other writers' small files, all taken"
KINDS = {
    f"{FOREIGN}: {MINOR}": ("Minor", False),
    f"{FOREIGN}: {MINOR_TIMED}": ("Minor", True),
    f"{FOREIGN}: plan a semi-major compaction": ("SemiMajor", False),
    f"{FOREIGN}: {SEMI_MAJOR}": ("SemiMajor", True),
    f"{FOREIGN}: plan a major compaction": ("Major", False),
}
TAKING = {
    f"{SMALL}: {MINOR}": ("Minor", False),
    f"{SMALL}: plan a semi-major compaction": ("SemiMajor", False),
}
FULL_BYTES, SMALL_BYTES = 120 << 20, 1 << 20
MILLION_FILES = "from a checkpoint"
UPDATE, PARTITION = "select files for `id = …`", "select files for `region = … AND id < …`"


def snapshot_of(
    files: int, *, size: int = FULL_BYTES, foreign: bool = False, kept: bool = False
) -> Any:
    """A version of a table of so many files, partitioned, with statistics of four columns. `kept`:
    a segment for each partition and day, in the order of a layout, with deleted rows."""
    from tandem.delta.actions import AddFile, DeletionVector, Metadata, Protocol
    from tandem.delta.log import files as files_
    from tandem.delta.log.snapshot import Snapshot
    from tandem.timeline.segments import layout_label, output_tags

    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in COLUMNS.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})

    def add(number: int) -> AddFile:
        day = date(2020, 1, 1) + timedelta(days=number // PER_DAY)
        low, high = number * 10_000, number * 10_000 + 9_999
        stats = {
            "numRecords": 10_000,
            "minValues": {
                "id": low,
                "amount": 0.5,
                "name": f"{low:x}",
                "at": f"{day}T00:00:00.000Z",
            },
            "maxValues": {"id": high, "amount": 9.5, "name": "z", "at": f"{day}T23:59:59.999Z"},
            "nullCount": {"id": 0, "amount": number % 7, "name": 0, "at": 0},
        }
        name = f"part-{number:07}.parquet"
        if foreign:  # as Spark names files: not in the order in which they are written
            name = f"part-{number % 200:05}-{uuid5(NAMESPACE_URL, name)}.c000.snappy.parquet"
        segment = number // PER_SEGMENT
        if kept:
            segment = number // PER_DAY * len(REGIONS) + number % len(REGIONS)
        layout = layout_label("ZOrder", ["id", "at"]) if kept else ""
        tags = output_tags(f"{segment}.2", segment, layout=layout)
        return AddFile(
            logged_path=f"region={REGIONS[number % 4]}/{name}",
            partition_values={"region": REGIONS[number % 4]},
            size=size,
            modified_ms=number,
            data_change=False,
            stats=json.dumps(stats, separators=(",", ":")),
            tags={} if foreign else tags,
            deletion_vector=DeletionVector("u", f"{number:020}", 40, 100) if kept else None,
        )

    step = 10_000
    batches = [
        files_.from_adds([add(n) for n in range(start, min(start + step, files))])
        for start in range(0, files, step)
    ]
    return Snapshot(
        location="memory:///planning",
        version=1,
        timestamp_ms=0,
        metadata=Metadata("m", schema, ("region",), {}),
        protocol=Protocol(1, 2),
        txns={},
        domains={},
        files=pa.concat_tables(batches),
    )


def one_by_one(snapshot: Any) -> list[tuple[str, str, int, int]]:
    """Path, region, least and greatest `id` of each file."""
    found = []
    for add in snapshot.adds():
        stats = json.loads(add.stats)
        bounds = stats["minValues"]["id"], stats["maxValues"]["id"]
        found.append((add.logged_path, add.partition_values["region"], *bounds))
    return found


def plan(
    snapshot: Any, kind: str, timed_: bool, ordered: bool = False, *, taking: bool = False
) -> int:
    """How many segments a compaction that finds nothing to do has looked at; `taking`: how many
    files it takes. `ordered`: rows are wanted in the order of the layout."""
    from tandem.planning.compaction import plan_compaction
    from tandem.planning.plans import CompactionRequest
    from tandem.spec.compaction import CompactionType, LayoutStrategy
    from tandem.spec.table import Granularity
    from tandem.timeline.chunks import TimeColumn
    from tandem.timeline.segments import segments

    time = TimeColumn(("at",), Granularity.DAY) if timed_ else None
    live = segments(snapshot.files, time)
    request = CompactionRequest(CompactionType(kind))
    if ordered:
        layout = LayoutStrategy.Z_ORDER
        request = replace(request, layout=layout, layout_columns=("id", "at"))
    found = plan_compaction(live, request, granularity=time.granularity if time else None)
    if taking:
        return len(found.files)
    if found.runs:
        raise WrongResult(f"{kind}: {len(found.runs)} runs of files that are as they should be")
    return len(live)


def select(snapshot: Any, where: str) -> frozenset[str]:
    from tandem.pruning.selection import Selection
    from tandem.statements.statement import parse_where

    condition = parse_where(where, snapshot.metadata.schema_string)
    return Selection(condition, snapshot).paths(snapshot.files)


def from_checkpoint(root: str, times: int) -> dict[str, Any]:
    """In a separate process: what it takes to read a table's log and to plan a minor compaction of
    its files, all of which are small, and of other writers."""
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.storage import open_store

    found: dict[str, Any] = {"read": [], "plan": []}
    for _ in range(times):
        seconds, snapshot = timed(lambda: DeltaLog(open_store(Path(root).as_uri())).snapshot())
        found["read"].append(seconds)
        seconds, found["taken"] = timed(plan, snapshot, "Minor", False, taking=True)
        found["plan"].append(seconds)
        del snapshot
    return {**found, "peak": peak_bytes()}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if other files are selected than file by file."""
    million = _million(size, work)
    files = FILES[size]
    progress("make the log")
    snapshot = snapshot_of(files)
    foreign = snapshot_of(files, foreign=True)
    small = snapshot_of(files, size=SMALL_BYTES, foreign=True)
    kept = snapshot_of(files, kept=True)
    middle = files // 2 * 10_000
    ways: dict[str, Callable[[], Any]] = {
        ONE_BY_ONE: partial(one_by_one, snapshot),
        MINOR: partial(plan, snapshot, "Minor", False),
        MINOR_TIMED: partial(plan, snapshot, "Minor", True),
        SEMI_MAJOR: partial(plan, snapshot, "SemiMajor", True),
        UPDATE: partial(select, snapshot, f"id = {middle}"),
        PARTITION: partial(select, snapshot, f"region = 'east' AND id < {middle}"),
        **{way: partial(plan, kept, *kind) for way, kind in IN_ORDER.items()},
        **{way: partial(plan, foreign, *kind) for way, kind in KINDS.items()},
        **{way: partial(plan, small, *kind, taking=True) for way, kind in TAKING.items()},
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    answers: dict[str, Any] = {}
    progress("measure")
    for _ in range(TIMES[size]):
        # Turn by turn, so that a busy moment of the machine meets all.
        for way, ask in ways.items():
            seconds, answers[way] = timed(ask)
            found[way].append(seconds)
    _check(answers, files, middle)
    samples = {way: Samples.of(seconds) for way, seconds in found.items()}
    whole = Samples.of(map(sum, zip(million["read"], million["plan"], strict=True)))
    before = samples[ONE_BY_ONE].median
    return Report(
        name="planning",
        title=f"Planning and selection over {files:,} files",
        setting=(
            f"A log of {files:,} files that is in memory, in segments of {PER_SEGMENT} full files, "
            f"four partitions, {PER_DAY:,} files a day, statistics of four columns; {TIMES[size]} "
            "runs, turn by turn. Nothing is left to compact. Then the same with files in the order "
            "of a layout, with a deletion vector each; with files of other writers, which are a "
            "segment each; and with small ones, all of which a plan takes. Most of its time goes "
            "into bins and names of segments, so it has no aim."
        ),
        tables=(
            Table(
                "",
                ("question", "seconds", "times as fast as file by file"),
                tuple(
                    (way, each.text(3), f"{before / each.median:.1f}")
                    for way, each in samples.items()
                ),
            ),
            Table(
                f"{MILLION[size]:,} small files of other writers, from a checkpoint, minor",
                ("read the log, seconds", "plan", "both", "peak MiB of the process"),
                (
                    (
                        Samples.of(million["read"]).text(),
                        Samples.of(million["plan"]).text(),
                        whole.text(),
                        f"{million['peak'] / 2**20:,.0f}",
                    ),
                ),
            ),
        ),
        checks=("The files that conditions select are those found file by file.",),
        figures=(
            *(
                Figure(
                    f"{files:,} files: {way}",
                    f"{each.text()} s",
                    f"≤ {AIM_S} s",
                    each.median <= AIM_S,
                )
                for way, each in samples.items()
                if way != ONE_BY_ONE and way not in TAKING
            ),
            Figure(
                f"{MILLION[size]:,} files: read the log, and plan a minor compaction",
                f"{whole.text()} s",
                f"≤ {AIM_MILLION_S:g} s",
                whole.median <= AIM_MILLION_S,
            ),
            Figure(
                "… peak memory of the process",
                f"{million['peak'] / 2**20:,.0f} MiB",
                f"≤ {AIM_MILLION_BYTES >> 20:,} MiB",
                million["peak"] <= AIM_MILLION_BYTES,
            ),
        ),
        raw={**found, MILLION_FILES: million},
    )


def _million(size: str, work: Path) -> dict[str, Any]:
    progress(f"{MILLION[size]:,} files")
    root, files = work / "table", MILLION[size]
    data.write_checkpoint(root, files)
    found: dict[str, Any] = in_child(from_checkpoint, root=str(root), times=min(3, TIMES[size]))
    if not 0 < found["taken"] <= files:
        raise WrongResult(f"{found['taken']} of {files} small files are planned")
    return found


def _check(answers: dict[str, Any], files: int, middle: int) -> None:
    known = answers[ONE_BY_ONE]
    expected = {
        UPDATE: {path for path, _, low, high in known if low <= middle <= high},
        PARTITION: {path for path, region, low, _ in known if region == "east" and low < middle},
    }
    for way, paths in expected.items():
        if answers[way] != paths:
            raise WrongResult(f"{way}: {len(answers[way])} files, file by file {len(paths)}")
    for way in (MINOR, MINOR_TIMED, SEMI_MAJOR):
        if answers[way] != -(-files // PER_SEGMENT):
            raise WrongResult(f"{way}: {answers[way]} segments")
    for way in IN_ORDER:
        if answers[way] != -(-files // PER_DAY) * len(REGIONS):
            raise WrongResult(f"{way}: {answers[way]} segments")
    for way in KINDS:
        if answers[way] != files:
            raise WrongResult(f"{way}: {answers[way]} segments")
    for way, (kind, _) in TAKING.items():
        # Twelve segments make a minor run; fewer are left.
        if answers[way] != (files // 12 * 12 if kind == "Minor" else files):
            raise WrongResult(f"{way}: {answers[way]} files")
