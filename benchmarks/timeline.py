"""The timeline library: lookups and changes of its index, a decision after one more commit, and
which parts a loader of single segments shows.

Times are seconds of the processor in one process, so that other processes change them little.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, progress

CHUNKS = {"toy": 2_000, "small": 52_560, "full": 525_600}
LOOKUPS = {"toy": 500, "small": 20_000, "full": 100_000}
SHIFTED = {"toy": 2_000, "small": 10_000, "full": 50_000}
SEGMENTS = {"toy": (20, 10), "small": (100, 100), "full": (1_000, 100)}
"""Chunks, and segments of each."""
DAYS = {"toy": 5, "small": 60, "full": 365}
TIMES = {"toy": 1, "small": 3, "full": 7}

MINUTE = 60_000
DAY = 1_440 * MINUTE
LOADS, COMPACTED, NEW = 100, 50, 10
"""Parts of one day: old loads, the one group that they were compacted to, and later loads."""

BUILD, LOOK_UP = "build the index", "look up a minute"
HOLES, WITHDRAW = "find the holes", "withdraw parts of a day singly"
FROM_THE_LIST = "decide from the list of all segments"
FROM_THE_INDEX = "decide about the chunks that changed"
BULK, ANNOUNCE, WITHDRAWN = "load parts at once", "announce parts singly", "withdraw parts singly"


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of the processor, the result of `work`)."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def lookups(size: str, found: dict[str, list[float]]) -> None:
    """A year of chunks of a minute each."""
    from tandem.intervals import IntervalSet, TimeInterval
    from tandem.timeline.working_set import TimelineIndex

    count, asked = CHUNKS[size], LOOKUPS[size]
    minutes = [TimeInterval(n * MINUTE, (n + 1) * MINUTE) for n in range(count)]
    parts = {f"s{n}": IntervalSet([minute]) for n, minute in enumerate(minutes)}
    index = TimelineIndex()
    seconds, _ = cpu(lambda: index.apply(parts))
    found[BUILD].append(seconds)
    questions = random.Random(1).choices(range(count), k=asked)
    intervals = [minutes[n] for n in questions]
    seconds, answers = cpu(lambda: [index.lookup(each) for each in intervals])
    found[LOOK_UP].append(seconds / asked)
    if [[piece.part for piece in answer] for answer in answers] != [[f"s{n}"] for n in questions]:
        raise WrongResult("a lookup of a minute found other parts than that of the minute")
    seconds, holes = cpu(index.holes)
    found[HOLES].append(seconds)
    if holes:
        raise WrongResult(f"{len(holes)} holes in a year without one")


def shifted(size: str, found: dict[str, list[float]]) -> None:
    """Parts of 24 hours, each a minute later, withdrawn one after the other."""
    from tandem.intervals import IntervalSet, TimeInterval
    from tandem.timeline.working_set import TimelineIndex

    count = SHIFTED[size]
    index = TimelineIndex()
    starts = {f"s{n}": n * MINUTE for n in range(count)}
    index.apply({s: IntervalSet([TimeInterval(at, at + DAY)]) for s, at in starts.items()})
    middle = TimeInterval(count // 2 * MINUTE, (count // 2 + 1) * MINUTE)
    there = {s for s, at in starts.items() if at < middle.end_ms and at + DAY > middle.start_ms}
    if {piece.part for piece in index.lookup(middle)} != there:
        raise WrongResult("a lookup among overlapping parts differs from a search of all")

    def withdraw() -> None:
        for name in starts:
            index.apply({}, [name])

    seconds, _ = cpu(withdraw)
    found[WITHDRAW].append(seconds)
    if len(index):
        raise WrongResult(f"{len(index)} parts are left")


def decisions(size: str, found: dict[str, list[float]]) -> None:
    """Chunks with full segments and three small ones. Each commit adds a fourth to one chunk, and
    is the reason for a minor compaction there."""
    from tandem.delta.actions import AddFile
    from tandem.delta.log import files as files_
    from tandem.planning.auto.decide import decide
    from tandem.planning.auto.facts import TableId
    from tandem.planning.auto.indexed_table import IndexedTable, TableFacts
    from tandem.spec.table import AutomaticCompaction, Granularity
    from tandem.timeline.chunks import TimeColumn
    from tandem.timeline.segments import output_tags, segments

    chunks, each = SEGMENTS[size]
    day_zero = datetime(2020, 1, 1, tzinfo=UTC)
    column = TimeColumn(("at",), Granularity.DAY)

    def add(chunk: int, number: int, name: str, bytes_: int) -> AddFile:
        at = f"{day_zero + timedelta(days=chunk):%Y-%m-%d}T12:00:00.000Z"
        bounds = {"minValues": {"at": at}, "maxValues": {"at": at}, "nullCount": {"at": 0}}
        return AddFile(
            logged_path=f"part-{number:07}.parquet",
            partition_values={},
            size=bytes_,
            modified_ms=number,
            data_change=True,
            stats=json.dumps({"numRecords": 10_000, **bounds}),
            tags=output_tags(name, number),
        )

    adds = []
    for chunk in range(chunks):
        for n in range(each):
            number = chunk * each + n
            small = n >= each - 3
            adds.append(
                add(
                    chunk,
                    number,
                    f"{number}" if small else f"{number}.2",
                    1 << (20 if small else 27),
                )
            )
    files = files_.from_adds(adds)
    id_ = TableId("flights", "1f2e")
    kept = IndexedTable(id_, files, column)
    policy = AutomaticCompaction.model_validate({"minor": {}, "chunks": {"order": "OldestFirst"}})
    decide(policy, kept, (), 0)

    for turn in range(TIMES[size]):
        number = chunks * each + turn
        chosen = (turn * 37 + chunks // 2) % chunks
        new = add(chosen, number, f"{number}", 1 << 20)
        files = files_.combine([files, files_.from_adds([new])])
        now = files

        def from_the_index(new: AddFile = new, now: Any = now) -> Any:
            paths = {new.logged_path}
            kept.follow(now, paths, files_.with_paths(now, paths))
            return decide(policy, kept, (), 0)

        def from_the_list(now: Any = now) -> Any:
            table = TableFacts(id_, segments(now, column), column.granularity)
            return decide(policy, table, (), 0)

        seconds, decision = cpu(from_the_index)
        found[FROM_THE_INDEX].append(seconds)
        seconds, whole = cpu(from_the_list)
        found[FROM_THE_LIST].append(seconds)
        if decision != whole or f"{number}" not in decision.create[0].spec["minor"]["segments"]:
            raise WrongResult(f"by the index {decision.next_what}, by the list {whole.next_what}")


def serving(size: str, found: dict[str, list[float]]) -> None:
    """A year of days: loads, what they were compacted to, and later loads."""
    from serving import Part, ServingTimeline

    parts = []
    for day in range(DAYS[size]):
        chunk = f"day-{day}"
        parts += [Part(f"{chunk}/{n}", n, n + 1, chunk=chunk) for n in range(LOADS)]
        parts += [
            Part(f"{chunk}/c{n}", 0, LOADS, 1, COMPACTED, chunk=chunk) for n in range(COMPACTED)
        ]
        parts += [Part(f"{chunk}/n{n}", LOADS + n, LOADS + n + 1, chunk=chunk) for n in range(NEW)]

    def bulk() -> Any:
        timeline = ServingTimeline()
        timeline.load(parts, "here")
        return timeline.visible()

    seconds, shown = cpu(bulk)
    found[BULK].append(seconds / len(parts))
    if {part.name for part in shown} != {p.name for p in parts if p.minor or p.first >= LOADS}:
        raise WrongResult(f"{len(shown)} parts are visible after a load of all")
    singly = ServingTimeline()
    mixed = random.Random(2).sample(parts, len(parts))

    def announce() -> None:
        for part in mixed:
            singly.announce(part, "here")

    def withdraw() -> None:
        for part in mixed:
            singly.withdraw(part, "here")

    seconds, _ = cpu(announce)
    found[ANNOUNCE].append(seconds / len(parts))
    if set(singly.visible()) != set(shown):
        raise WrongResult("after single announcements other parts are visible than after a load")
    seconds, _ = cpu(withdraw)
    found[WITHDRAWN].append(seconds / len(parts))
    if len(singly) or singly.visible():
        raise WrongResult(f"{len(singly)} parts are left")


def run(size: str, work: Path) -> Report:  # noqa: ARG001 - nothing is written
    """Raises: WrongResult if an answer differs from that of a search of everything."""
    ways = (BUILD, LOOK_UP, HOLES, WITHDRAW, FROM_THE_LIST, FROM_THE_INDEX)
    found: dict[str, list[float]] = {way: [] for way in (*ways, BULK, ANNOUNCE, WITHDRAWN)}
    progress("decisions")
    decisions(size, found)
    for turn in range(TIMES[size]):
        progress(f"index and loaders, turn {turn + 1}")
        lookups(size, found)
        shifted(size, found)
        serving(size, found)
    samples = {way: Samples.of(seconds) for way, seconds in found.items()}
    rates = {
        way: samples[way].map(lambda seconds: 1 / seconds)
        for way in (LOOK_UP, BULK, ANNOUNCE, WITHDRAWN)
    }
    chunks, each = SEGMENTS[size]
    parts = DAYS[size] * (LOADS + COMPACTED + NEW)
    what = {
        BUILD: f"{CHUNKS[size]:,} chunks",
        LOOK_UP: f"{CHUNKS[size]:,} chunks",
        HOLES: f"{CHUNKS[size]:,} chunks",
        WITHDRAW: f"{SHIFTED[size]:,} parts of 24 hours, each a minute later",
        FROM_THE_LIST: f"{chunks * each:,} segments in {chunks:,} chunks, one more commit",
        FROM_THE_INDEX: f"{chunks * each:,} segments in {chunks:,} chunks, one more commit",
        BULK: f"{parts:,} parts of {DAYS[size]} days",
        ANNOUNCE: f"{parts:,} parts of {DAYS[size]} days, in any order",
        WITHDRAWN: f"{parts:,} parts of {DAYS[size]} days, in any order",
    }

    def text(way: str) -> str:
        if way in rates:
            return f"{rates[way].text(0)} per second"
        return f"{samples[way].map(lambda seconds: seconds * 1000).text(1)} ms"

    decision_ms = samples[FROM_THE_INDEX].median * 1000
    aims = [
        (LOOK_UP, "≥ 100,000 per second", rates[LOOK_UP].median >= 100_000),
        (WITHDRAW, "≤ 5,000 ms", samples[WITHDRAW].median <= 5),
        (FROM_THE_INDEX, "≤ 50 ms", decision_ms <= 50),
        (BULK, "≥ 1,000,000 per second", rates[BULK].median >= 1_000_000),
        (ANNOUNCE, "≥ 80,000 per second", rates[ANNOUNCE].median >= 80_000),
        (WITHDRAWN, "≥ 80,000 per second", rates[WITHDRAWN].median >= 80_000),
    ]
    return Report(
        name="timeline",
        title="The timeline: lookups, changes, and loaded parts",
        setting=(
            "Seconds of the processor in one process. A year of minutes, one part each, random "
            "lookups. Parts of 24 hours that begin a minute apart, so that 1,440 of them overlap "
            "everywhere. A table of days with one commit more: what automatic compaction decides "
            "from the table that it keeps, by minor.thresholds and by chunks, beside the same "
            "decision from the list of all segments; the new version is in memory. A loader's "
            "parts: per day 100 loads, the 50 parts of one compaction of them, and 10 later loads; "
            f"in bulk with the answer. {TIMES[size]} runs."
        ),
        tables=(
            Table(
                "",
                ("of", "what", "measured"),
                tuple((what[way], way, text(way)) for way in samples),
            ),
        ),
        checks=(
            "Lookups and holes are those of a search of all parts.",
            "Both decisions are the same, with the new segment in them.",
            "After single announcements the same parts are visible as after a load of all.",
        ),
        figures=tuple(Figure(f"{what[way]}: {way}", text(way), aim, met) for way, aim, met in aims),
        raw=found,
    )
