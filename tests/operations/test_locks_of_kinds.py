"""What operations lock on real tables: segments by name and where they lie, or time chunks; and an
adopted attempt locks what its plan recorded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.jobs.quick_lake import QuickLake, make
from support.lake import rows as model
from support.lake.lake import Process, batch
from support.lake.rewritten import RECOMPRESS, rewrite
from tandem.intervals import EVERYWHERE, IntervalSet, TimeInterval
from tandem.locks.rules import (
    WHOLE_TABLE,
    Granted,
    LockRequest,
    LockResources,
    Mode,
    Waiting,
    named,
    within,
)
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Effect, Event, LocksWaiting, Point
from tandem.spec.common import Operation
from tandem.spec.status import Phase

MONTHS = {"column": "at", "granularity": "Month"}
DAYS = {"column": "at", "granularity": "Day"}
TIMED = model.SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))


def moment(month: int, day: int = 1) -> dt.datetime:
    return dt.datetime(2013, month, day, tzinfo=dt.UTC)


def month(number: int) -> TimeInterval:
    start, end = (int(moment(n).timestamp()) * 1000 for n in (number, number + 1))
    return TimeInterval(start, end)


FEBRUARY = IntervalSet([month(2)])
TO_MARCH = IntervalSet([month(1), month(2), month(3)])


@dataclass
class Recorded(InProcessLocks):
    """Locks that keep what was asked for."""

    requests: list[LockRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        self.requests.append(request)
        return super().acquire(request)


def timed(number: int, *months: int) -> pa.Table:
    """Ten rows, in the middle of these months in turn."""
    rows = batch(number)
    times = [moment(months[n % len(months)], 15) for n in range(len(rows))]
    return model.table(rows).append_column("at", pa.array(times, TIMED.field("at").type))


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    """Five loads: two of January, two of February, one of February and March."""
    made = make(tmp_path, 0, schema=TIMED)
    for number, months in enumerate([(1,), (1,), (2,), (2,), (2, 3)]):
        made.append(timed(number, *months))
    made.time = MONTHS
    made.first_version = made.version
    return made


def locks_of(lake: QuickLake, operation: Operation) -> LockRequest:
    """The request of an operation that succeeds."""
    locks = Recorded()
    lake.do(operation, ports=lake.ports(locks=locks))
    (request,) = locks.requests
    return request


def compaction(lake: QuickLake, *at: int, **more: Any) -> Operation:
    names = [lake.names[place] for place in at]
    return lake.compaction("Custom", custom={"segments": names}, **more)


def names(lake: QuickLake, *at: int) -> list[str]:
    return [lake.names[place] for place in at]


def test_a_compaction_locks_its_segments_where_they_lie(lake: QuickLake) -> None:
    expected = named(names(lake, 2, 3), FEBRUARY)
    assert locks_of(lake, compaction(lake, 2, 3)).resources == expected


def test_Z17_a_compaction_may_lock_its_time_chunks(lake: QuickLake) -> None:
    status = lake.run(compaction(lake, 2, 3, lockGranularity="TimeChunk", dryRun=True))
    assert status.plan is not None
    assert status.plan.locks == ("Rewrite interval 2013-02-01T00:00:00Z/2013-03-01T00:00:00Z",)
    by_chunk = compaction(lake, 2, 3, lockGranularity="TimeChunk")
    assert locks_of(lake, by_chunk).resources == within(FEBRUARY)
    # Days are cut out of months, whatever holds a month still meets them.
    lake.time = DAYS
    by_day = compaction(lake, 0, 1, lockGranularity="TimeChunk")
    (day,) = locks_of(lake, by_day).resources
    start = int(moment(1, 15).timestamp()) * 1000
    assert day.interval == TimeInterval(start, start + 86_400_000)
    assert within(IntervalSet([month(1)])).common(within(IntervalSet([day.interval])))


def test_without_a_time_column_chunks_are_the_whole_table(lake: QuickLake) -> None:
    lake.time = None
    assert locks_of(lake, compaction(lake, 0, 1)).resources.intervals == EVERYWHERE
    by_chunk = compaction(lake, 0, 1, lockGranularity="TimeChunk")
    assert locks_of(lake, by_chunk).resources == WHOLE_TABLE


def test_a_segment_rewrite_locks_its_segments_where_they_lie(lake: QuickLake) -> None:
    rewritten = names(lake, 2, 4)
    request = locks_of(lake, rewrite(lake, *rewritten, **RECOMPRESS))
    assert request.resources == named(rewritten, IntervalSet([month(2), month(3)]))
    # A LakeTable that names a wrong column is no reason to refuse it.
    lake.time = {**MONTHS, "column": "v"}
    request = locks_of(lake, rewrite(lake, *rewritten, recompress={"codec": "gzip"}))
    assert request.resources == named(rewritten)


@pytest.mark.parametrize(
    ("made", "times"),
    [
        (lambda lake: lake.update("id < 20", v="v + 15"), IntervalSet([month(1)])),
        (lambda lake: lake.delete("id >= 40"), IntervalSet([month(2), month(3)])),
        (lambda lake: lake.update("id < 20", at="at + INTERVAL 1 DAY"), EVERYWHERE),
        (
            lambda lake: lake.merge(
                timed(0, 1), whenMatched=[{"update": {"set": {"v": "s.v"}}}], on="t.id = s.id"
            ),
            TO_MARCH,
        ),
        (
            lambda lake: lake.merge(timed(0, 1), whenMatched=[{"updateAll": {}}], on="t.id = s.id"),
            EVERYWHERE,
        ),
        (lambda lake: lake.merge(timed(9, 7)), EVERYWHERE),
    ],
    ids=["update", "delete", "update of times", "merge", "merge of times", "merge that inserts"],
)
def test_a_statement_locks_its_segments_where_it_writes(
    lake: QuickLake, made: Callable[[QuickLake], Operation], times: IntervalSet
) -> None:
    before = lake.names
    request = locks_of(lake, made(lake))
    assert set(request.resources.names) <= set(before)
    assert request.resources.names
    assert request.resources.intervals == times


def drop(lake: QuickLake, **more: Any) -> Operation:
    return lake.resource("TableReplace", {"replace": more})


def test_a_replace_locks_its_intervals_or_the_segments_that_it_removes_from(
    lake: QuickLake,
) -> None:
    wanted = ["2013-02", "2013-03-01/2013-03-02T06:00:00Z"]
    status = lake.run(lake.resource(
        "TableReplace", {"replace": {"intervals": wanted}, "dryRun": True}
    ))  # fmt: skip
    assert status.plan is not None
    assert status.plan.locks == ("Replace in interval 2013-02-01T00:00:00Z/2013-03-02T06:00:00Z",)
    some = names(lake, 0, 1)
    assert locks_of(lake, drop(lake, segments=some)).resources == named(
        some, IntervalSet([month(1)])
    )
    assert locks_of(lake, drop(lake, intervals=["2013-02"])).resources == within(FEBRUARY)
    assert locks_of(lake, drop(lake, intervals=["all"])).resources == WHOLE_TABLE


@pytest.mark.parametrize(
    ("beside", "waits"),
    [
        (lambda lake: drop(lake, intervals=["2013-02"]), True),
        (lambda lake: drop(lake, intervals=["2013-01"]), False),
        (lambda lake: lake.update("id >= 20 AND id < 40", v="v + 1"), True),
        (lambda lake: lake.update("id < 20", v="v + 1"), False),
        (lambda lake: lake.update("id < 20", at="at + INTERVAL 1 DAY"), True),
        (lambda lake: compaction(lake, 2, 3), True),
        (lambda lake: compaction(lake, 0, 1), False),
        (lambda lake: compaction(lake, 0, 1, lockGranularity="TimeChunk"), False),
    ],
    ids=["itself", "another month", "update there", "update elsewhere", "update of times",
         "compaction there", "compaction elsewhere", "chunks elsewhere"],
)  # fmt: skip
def test_S29_who_works_elsewhere_waits_for_no_replace(
    lake: QuickLake, beside: Callable[[QuickLake], Operation], waits: bool
) -> None:
    operation, locks = beside(lake), Recorded()
    day = TimeInterval(month(2).start_ms + 3_600_000, month(2).end_ms)
    replaces = LockRequest(
        lake.table().location, "replace", Mode.REPLACE, within(IntervalSet([day])), "w", 100
    )
    assert isinstance(locks.acquire(replaces), Granted)
    end: list[Event] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.AWAIT_LOCKS:
            locks.release(replaces.table, "replace", "w")
        event = call()
        end.append(event)
        return event

    lake.do(operation, interceptor=interceptor, ports=lake.ports(locks=locks))
    assert any(isinstance(event, LocksWaiting) for event in end) == waits


def test_a_statement_on_very_many_segments_locks_intervals(
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.locks.rules.MOST_NAMED", 1)
    assert locks_of(lake, lake.update("id < 20", v="v + 1")).resources == within(
        IntervalSet([month(1)])
    )
    # A compaction keeps its names: another one may work on other segments of these chunks.
    assert locks_of(lake, compaction(lake, 2, 3)).resources.names


def test_the_priority_of_locks_is_that_of_the_kind_unless_one_is_given(lake: QuickLake) -> None:
    rewritten = rewrite(lake, lake.names[0], **RECOMPRESS)
    for operation, priority in (
        (compaction(lake, 2, 3), 25),
        (rewritten, 25),
        (lake.update("id < 20", v="v + 1"), 50),
        (lake.resource("TableUpdate", {"delete": {"where": "id = 1"}, "priority": 0}), 0),
    ):
        assert operation.lock_priority == priority
        assert locks_of(lake, operation).priority == priority
    source = {"format": "Parquet", "location": lake.source(timed(9, 7)).as_uri()}
    request = locks_of(lake, lake.resource("TableIngest", {"source": source}))
    assert (request.priority, request.mode) == (75, Mode.APPEND)


class _Killed(BaseException):
    """Not caught anywhere in the engine."""


def _dies_before_commit(effect: Effect, call: Callable[[], Event]) -> Event:
    if effect.point is Point.ENTER_COMMIT:
        raise _Killed
    return call()


@pytest.mark.parametrize(
    "made",
    [
        lambda lake: compaction(lake, 2, 3),
        lambda lake: compaction(lake, 2, 3, lockGranularity="TimeChunk"),
        lambda lake: rewrite(lake, lake.names[4], **RECOMPRESS),
        lambda lake: lake.update("id < 20", v="v + 15"),
        lambda lake: lake.delete("id >= 40"),
        lambda lake: drop(lake, intervals=["2013-02"]),
        lambda lake: drop(lake, segments=names(lake, 0, 2)),
    ],
    ids=["compaction", "by chunk", "rewrite", "update", "delete", "drop", "drop of segments"],
)
def test_an_adopted_attempt_locks_what_its_plan_recorded(
    lake: QuickLake, made: Callable[[QuickLake], Operation]
) -> None:
    operation, first, second = made(lake), Recorded(), Recorded()
    with pytest.raises(_Killed):
        lake.run(operation, interceptor=_dies_before_commit, ports=lake.ports(locks=first))
    # Meanwhile another granularity applies to plans; a plan that is frozen keeps its locks.
    lake.time = DAYS
    status = lake.run(operation, ports=lake.ports(locks=second, processes=Process(2, {2})))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    kept: list[LockResources] = [each.resources for each in (*first.requests, *second.requests)]
    assert len(kept) == 2
    assert kept[0] == kept[1]
