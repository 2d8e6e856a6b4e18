"""`retention.rows`: what is dropped, what waits, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.automatic import DAY, FLIGHTS, HOUR, MINUTE, at, ended
from support.documents import document
from support.lake.segments import add_file
from support.present import present
from support.some import few
from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.intervals import IntervalSet, TimeInterval
from tandem.planning.auto import retention
from tandem.planning.auto.facts import AutoCompactionDecision, ChildCompaction, ChildState
from tandem.planning.auto.indexed_table import LiveIndex
from tandem.pruning.scope import Coverage, TimeScope, parts_in_scope
from tandem.spec.resources import TableReplace
from tandem.spec.table import Granularity
from tandem.timeline.chunks import (
    TAG_MASKED,
    TimeColumn,
    chunk_of,
    format_masked,
    parse_any_interval,
)

DAYS = TimeColumn(("t",), Granularity.DAY)
NOW = at("2026-01-10T12:00")
KEPT = 3 * DAY  # the 6th is old enough, the 7th is not


def holding(name: str, times: Iterable[str], *, nulls: int = 0, statistics: bool = True) -> AddFile:
    """A file of rows at these times, and of some without one."""
    rows = sorted(times)
    stats: dict[str, object] = {"numRecords": len(rows) + nulls}
    if statistics:
        stats["nullCount"] = {"t": nulls}
        if rows:
            stats |= {"minValues": {"t": rows[0]}, "maxValues": {"t": rows[-1]}}
    return replace(add_file(name), stats=json.dumps(stats))


def on(day: int, hour: int = 12) -> str:
    return f"2026-01-{day:02}T{hour:02}:00:00.000Z"


def index(*adds: AddFile) -> LiveIndex:
    return LiveIndex(files_.from_adds(list(adds)), DAYS)


def decide(
    live: LiveIndex,
    children: Iterable[ChildState] = (),
    now_ms: int = NOW,
    *,
    in_part: bool = False,
) -> AutoCompactionDecision:
    return retention.decide(KEPT, FLIGHTS, live, list(children), now_ms, in_part=in_part)


def created(decision: AutoCompactionDecision) -> ChildCompaction:
    (child,) = decision.create
    TableReplace.model_validate(document(child.kind, child.name, child.spec))
    return child


def dropped(decision: AutoCompactionDecision) -> list[str]:
    found: list[str] = created(decision).spec["replace"]["intervals"]
    return found


def running(child: ChildCompaction) -> ChildState:
    return ChildState(
        child.name, child.line, "Running", NOW, retries=child.retries, kind=child.kind
    )


def test_whole_chunks_that_ended_long_enough_ago_are_dropped() -> None:
    live = index(holding("a", [on(5)]), holding("b", [on(6)]), holding("c", [on(7)]))
    child = created(decide(live))
    assert child.kind == "TableReplace"
    assert child.spec == {
        "tableRef": {"name": "flights"},
        "replace": {"intervals": ["2026-01-05T00:00:00Z/2026-01-07T00:00:00Z"]},
        "scope": "AtCommit",
    }
    assert child.what == "Drop of 2026-01-05T00:00:00Z/2026-01-07T00:00:00Z"
    assert len(child.name) <= 63


def test_a_chunk_is_due_once_all_of_it_is_old_enough_and_the_decision_says_when() -> None:
    live = index(holding("c", [on(7, 1)]), holding("d", [on(9)]))
    waits = decide(live)
    assert waits.create == ()
    assert waits.why == "No row is of a chunk that ended more than 72h ago."
    assert waits.next_ms == waits.wake_ms == at("2026-01-11")
    assert decide(live, now_ms=at("2026-01-11") - 1).create == ()
    assert dropped(decide(live, now_ms=at("2026-01-11"))) == ["2026-01-07"]


def test_many_chunks_cost_each_file_a_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not one look for each interval of the drop: 100,000 files took 11 s of CPU."""
    files, looks = 1_000, 0
    hours = TimeColumn(("t",), Granularity.HOUR)
    times = (datetime(2013, 1, 1) + timedelta(hours=2 * n) for n in range(files))  # noqa: DTZ001
    adds = [holding(f"f{n}", [f"{time.isoformat()}Z"]) for n, time in enumerate(times)]
    live = LiveIndex(files_.from_adds(adds), hours)
    meeting = IntervalSet.meeting

    def counted(self: IntervalSet, interval: TimeInterval) -> tuple[TimeInterval, ...]:
        nonlocal looks
        looks += 1
        return meeting(self, interval)

    monkeypatch.setattr(IntervalSet, "meeting", counted)
    assert len(dropped(decide(live))) == retention.MOST
    assert looks < 10 * files


def test_rows_without_a_time_make_nothing_due() -> None:
    nulls, unknown = holding("n", [], nulls=5), holding("u", [on(1)], statistics=False)
    for in_part in (False, True):
        assert decide(index(nulls), in_part=in_part).due == ()
        assert decide(index(unknown), in_part=in_part).due == ()
    # A file without any time has no row of an interval: nothing waits for it.
    assert dropped(decide(index(nulls, holding("a", [on(5)])))) == ["2026-01-05"]


def test_where_files_must_go_whole_chunks_with_straddling_files_wait_and_the_status_says_why() -> (
    None
):
    for other in (
        holding("s", [on(5), on(9)]),  # newer rows, too
        holding("s", [on(5)], nulls=1),  # rows without a time
    ):
        live = index(holding("a", [on(4)]), holding("b", [on(5)]), other)
        decision = decide(live)
        assert "2026-01-04" in dropped(decision)[0]
        taken = present(parse_any_interval(dropped(decision)[0]))
        assert taken.end_ms <= at("2026-01-05")
        alone = decide(index(holding("b", [on(5)]), other))
        assert alone.create == ()
        assert alone.why.startswith("1 file holds such rows and others, newer or without a time.")
        assert "enableDeletionVectors" in alone.why
        assert alone.due
        # Else the rows are masked, or edited out.
        assert created(decide(live, in_part=True))


def test_where_files_must_go_whole_chunks_that_a_file_links_wait_together() -> None:
    mixed, linked = holding("m", [on(5)], nulls=1), holding("x", [on(5), on(6)])
    waits = decide(index(holding("a", [on(3)]), mixed, linked))
    assert dropped(waits) == ["2026-01-03"]
    assert waits.due == ("2026-01-03", "2026-01-05T00:00:00Z/2026-01-07T00:00:00Z")


def test_where_files_must_go_whole_one_of_unknown_times_makes_all_wait() -> None:
    live = index(holding("a", [on(4)]), holding("u", [on(9)], statistics=False))
    waits = decide(live)
    assert waits.create == ()
    assert waits.why.startswith("Files whose statistics have no times may hold such rows")
    assert dropped(decide(live, in_part=True)) == ["2026-01-04"]


def test_what_was_masked_is_not_dropped_again() -> None:
    until = TimeInterval(at("2026-01-01"), at("2026-01-07"))
    masked = replace(
        add_file("s", deleted=40),
        stats=holding("s", [on(5), on(9)]).stats,
        tags={TAG_MASKED: format_masked(IntervalSet([until]), 40)},
    )
    assert decide(index(masked), in_part=True).due == ()


def test_A5_two_schedulers_make_one_drop() -> None:
    live = index(holding("a", [on(5)]), holding("b", [on(6)]))
    first = created(decide(live))
    # A newer file is none of its content, and a moment later is the same moment.
    more = index(holding("b", [on(6)]), holding("a", [on(5)]), holding("z", [on(10)]))
    assert created(decide(more, now_ms=NOW + HOUR)).name == first.name
    assert created(decide(index(holding("a", [on(5)])))).name != first.name


def test_one_drop_at_a_time_with_a_backoff_after_failures() -> None:
    live = index(holding("a", [on(5)]))
    child = created(decide(live))
    assert decide(live, [running(child)]).why == f"TableReplace/{child.name} is at work."
    failed = ended(running(child), NOW, "Failed", "Append-only.")
    waits = decide(live, [failed])
    assert (waits.create, waits.next_ms, waits.wake_ms) == ((), NOW + MINUTE, NOW + MINUTE)
    again = created(decide(live, [failed], NOW + MINUTE))
    assert again.retries == 1
    assert again.name != child.name


def test_one_that_found_no_more_rows_is_not_repeated_for_the_same_files() -> None:
    live = index(holding("s", [on(5), on(9)]))
    child = created(decide(live, in_part=True))
    done = ended(running(child), NOW)
    waits = decide(live, [done], NOW + HOUR, in_part=True)
    assert waits.create == ()
    assert waits.wake_ms == at("2026-01-11")  # when the 7th, which the file spans, is old enough
    more = index(holding("s", [on(5), on(9)]), holding("b", [on(6)]))
    assert created(decide(more, [done], NOW + HOUR, in_part=True))


# Against a slow and obvious model


@dataclass(frozen=True)
class File:
    """Hours since the first of January at which it has rows; `nulls` without a time."""

    hours: tuple[int, ...]
    nulls: int

    def add(self, number: int) -> AddFile:
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        times = (f"{begin + timedelta(hours=h):%Y-%m-%dT%H:%M:%S.000Z}" for h in self.hours)
        return holding(f"f{number}", times, nulls=self.nulls)


FILES = st.builds(
    File,
    st.lists(st.integers(0, 239), min_size=0, max_size=3).map(tuple),
    st.sampled_from([0, 0, 0, 1]),
)


@settings(deadline=None, max_examples=few(19, 150))
@given(
    files=st.lists(FILES, min_size=1, max_size=7),
    in_part=st.booleans(),
    hours=st.integers(0, 300),
)
def test_drops_are_those_of_a_slow_model(files: list[File], in_part: bool, hours: int) -> None:
    """Row by row: each row of a chunk that is old enough is dropped, unless it waits; and no other
    one. Unless `in_part`, no file loses some of its rows only."""
    adds = [file.add(n) for n, file in enumerate(files)]
    now_ms = at("2026-01-01") + hours * HOUR
    decision = decide(index(*adds), now_ms=now_ms, in_part=in_part)
    taken = IntervalSet(
        interval
        for child in decision.create
        for text in child.spec["replace"]["intervals"]
        if (interval := parse_any_interval(text)) is not None
    )
    waits = set() if in_part else waiting(files, hours)
    for number, file in enumerate(files):
        starts = {hour: at("2026-01-01") + hour * HOUR for hour in file.hours}
        gone = {h for h, ms in starts.items() if taken.overlaps(TimeInterval(ms, ms + 1))}
        old = {hour for hour in file.hours if is_old(hour, hours)}
        assert gone == (set() if number in waits else old)
        if gone and not in_part:
            assert gone == set(file.hours)
            assert not file.nulls
    if not in_part and taken:
        # What the drop itself will find: no file of which only some rows are in scope.
        scope = TimeScope(taken, DAYS.path, DAYS.type)
        timed = [add for add, file in zip(adds, files, strict=True) if file.hours]
        assert Coverage.SOME not in parts_in_scope(files_.from_adds(timed), scope)


def is_old(hour: int, now: int) -> bool:
    """Whether the day of a row has ended long enough ago."""
    return (hour // 24 + 1) * 24 * HOUR + KEPT <= now * HOUR


def waiting(files: list[File], now: int) -> set[int]:
    """The files that hold rows that stay, and all that are linked with them: by a day in which
    both may have old rows."""
    spans = {
        number: {
            day
            for day in range(min(file.hours) // 24, max(file.hours) // 24 + 1)
            if is_old(day * 24, now)
        }
        for number, file in enumerate(files)
        if file.hours
    }
    found = {
        number
        for number, days in spans.items()
        if days and (files[number].nulls or not all(is_old(h, now) for h in files[number].hours))
    }
    while True:
        days = {day for number in found for day in spans[number]}
        more = {number for number, span in spans.items() if span & days}
        if more == found:
            return found
        found = more


@given(st.sampled_from(list(Granularity)[:-1]), st.integers(0, 10**12), st.integers(1, 10**11))
def test_the_limit_is_a_border_of_chunks_and_the_last_one(
    granularity: Granularity, now_ms: int, rows_ms: int
) -> None:
    limit = present(retention.limit_ms(rows_ms, granularity, now_ms))
    moment = datetime.fromtimestamp(limit / 1000, UTC)
    chunk = chunk_of(moment, granularity)
    assert chunk.start_ms == limit
    assert limit <= now_ms - rows_ms < chunk.end_ms
