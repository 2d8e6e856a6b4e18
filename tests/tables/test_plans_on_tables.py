"""CarbonData's scenarios C11 to C14: what is planned and made on real tables, with exact names."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from support.lake import rows as model
from support.lake.lake import Lake, Lakes, batch, loads, reason, result
from support.lake.rows import Rows, join, k_is, plus, rows
from tandem.errors import InvalidSpec
from tandem.locks.rules import LockRequest, Mode, segment
from tandem.operations.machine.events import Point
from tandem.spec.status import Phase

JANUARY, FEBRUARY = dt.datetime(2013, 1, 15), dt.datetime(2013, 2, 15)  # noqa: DTZ001
TIME = {"column": "t", "granularity": "Month"}
TIMED = model.SCHEMA.append(pa.field("t", pa.timestamp("us", "UTC")))


def test_C11_twelve_loads_become_0_2(lakes: Lakes) -> None:
    lake = lakes.loaded(12)
    status = lake.do(lake.compaction())
    assert status.plan is not None
    assert status.plan.steps == (
        "0, 1, 2, 3 → 0.1",
        "4, 5, 6, 7 → 4.1",
        "8, 9, 10, 11 → 8.1",
        "0.1, 4.1, 8.1 → 0.2",
    )
    assert result(status).segments == ("0.2",)
    assert lake.names == ["0.2"]
    assert [s for s, status in lake.statuses().items() if status == "Compacted"] == [
        str(number) for number in range(12)
    ]
    lake.assert_states(loads(range(12)))
    assert reason(lake.do(lake.compaction())) == "NothingToDo"


def test_C11_step_by_step_the_names_are_the_same(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    names = []
    for last in (4, 8, 12):
        status = lake.do(lake.compaction())
        names.append(result(status).segments)
        if last < 12:
            lake.append(loads(range(last, last + 4), 1))  # one file: a foreign load
            lake.load(*(batch(number, 1) for number in range(last * 100, last * 100 + 3)))
    # Foreign loads have no number to derive a name from: a fresh one is given out.
    assert names[0] == ("0.1",)
    assert [name[0].split(".")[1] for name in names if name] == ["1", "1", "2"]
    assert lake.names == ["0.2"]


def test_C11_preserve_2_leaves_the_latest_two(lakes: Lakes) -> None:
    lake = lakes.loaded(6)
    status = lake.do(lake.compaction(minor={"preserve": 2}))
    assert result(status).segments == ("0.1",)
    assert lake.names == ["0.1", "4", "5"]
    lake.assert_states(loads(range(6)))


def test_C11_segments_over_the_size_limit_are_passed_by(lakes: Lakes) -> None:
    lake = lakes.empty()
    big = rows(range(1000, 21000))
    lake.load(batch(0), batch(1), big, batch(3), batch(4))
    status = lake.do(lake.compaction(minor={"maxSegmentSize": "50Ki"}))
    assert status.plan is not None
    assert status.plan.segments == ("0", "1", "3", "4")
    assert lake.names == ["0.1", "2"]
    lake.assert_rows(join(loads([0, 1, 3, 4]), big))


def test_C11_marked_for_update_is_compacted_without_its_deleted_rows(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.update("k = 1", v="v + 15"))
    assert lake.statuses()["0"] == "MarkedForUpdate"
    status = lake.do(lake.compaction())
    assert status.plan is not None
    assert status.plan.segments == ("0", "1", "2", "3")
    assert [s.rows for s in lake.live] == [32, 8]
    lake.assert_rows(plus(loads(range(4)), k_is(1), 15))


def test_C11_already_major_is_left_alone_by_minor(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    assert result(lake.do(lake.compaction("Major"))).segments == ("0.1",)
    lake.load(batch(4), batch(5), batch(6), batch(7))
    status = lake.do(lake.compaction(minor={"thresholds": [4, 2]}))
    assert status.plan is not None
    assert status.plan.segments == ("4", "5", "6", "7")
    assert lake.names == ["0.1", "4.1"]
    lake.assert_rows(loads(range(8)))


def _timed(of: Rows, *times: dt.datetime) -> pa.Table:
    """The rows with times in turn."""
    column = [times[n % len(times)] for n in range(len(of))]
    return model.table(of).append_column("t", pa.array(column, pa.timestamp("us", "UTC")))


def _timed_lake(lakes: Lakes, *times: tuple[dt.datetime, ...]) -> Lake:
    lake = lakes.empty(schema=TIMED, time=TIME)
    for number, each in enumerate(times):
        lake.append(_timed(batch(number), *each))
    return lake


def test_C11b_minor_plans_never_cross_a_chunk(lakes: Lakes) -> None:
    lake = _timed_lake(lakes, (JANUARY,), (JANUARY,), (FEBRUARY,), (FEBRUARY,))
    before = lake.names
    assert reason(lake.do(lake.compaction())) == "NothingToDo"
    for number in (4, 5):
        lake.append(_timed(batch(number), FEBRUARY))
    status = lake.do(lake.compaction())
    assert status.plan is not None
    assert set(status.plan.segments).isdisjoint(before[:2])
    assert result(status).segments == ("0.1",)
    assert lake.names == [*before[:2], "0.1"]
    [made] = [s for s in lake.live if s.level == 1]
    assert str(made.interval) == "2013-02-01T00:00:00Z/2013-03-01T00:00:00Z"
    assert made.rows == 40
    lake.assert_rows(loads(range(6)))


def test_C11b_a_file_that_spans_chunks_waits_for_semi_major(lakes: Lakes) -> None:
    lake = _timed_lake(lakes, (JANUARY,), (JANUARY,), (JANUARY, FEBRUARY), (FEBRUARY,), (FEBRUARY,))
    assert reason(lake.do(lake.compaction(minor={"thresholds": [4, 3]}))) == "NothingToDo"
    status = lake.do(lake.compaction("SemiMajor"))
    assert status.plan is not None
    assert status.plan.inputs == 5
    lake.assert_rows(loads(range(5)))
    lake.assert_clean()


def test_C12_major_with_an_oversize_segment_and_loads_arriving(lakes: Lakes) -> None:
    lake = lakes.empty()
    big = rows(range(1000, 21000))
    lake.load(batch(0), batch(1), big, batch(3), batch(4))
    held = lake.hold(
        lake.compaction("Major", major={"targetSegmentSize": "50Ki"}), Point.READ_RESULT
    )
    lake.load(batch(5))
    done = held.finish()
    assert result(done).segments == ("0.1",)
    # One contiguous run, one pass: what follows the big one waits for the next.
    assert lake.names == ["0.1", "2", "3", "4", "5"]
    lake.assert_rows(join(loads([0, 1, 3, 4, 5]), big))
    lake.assert_clean()


def test_C12b_semi_major_of_a_chunk_while_appends_go_on(lakes: Lakes) -> None:
    lake = _timed_lake(lakes, (JANUARY,), (JANUARY,), (FEBRUARY,), (JANUARY,))
    february = lake.names[2]
    states = [loads(range(n)) for n in range(5)]
    held = lake.hold(lake.compaction("SemiMajor", semiMajor={"chunks": ["2013-01"]}),
                     Point.PERSIST_PLAN)  # fmt: skip
    for at in (Point.READ_RESULT, Point.PUT_COMMIT):
        held.go_on(at)
        number = len(states) - 1
        lake.append(_timed(batch(number), JANUARY))
        states.append(join(states[-1], batch(number)))
    appended = lake.names[-2:]
    done = held.finish()
    assert done.plan is not None
    assert done.plan.inputs == 3
    assert result(done).segments == ("0.1",)
    assert lake.names == ["0.1", february, *appended]
    lake.assert_states(*states)


def test_C13_an_unknown_segment_is_refused(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    status = lake.run(lake.compaction("Custom", custom={"segments": ["0", "9"]}))
    assert (status.phase, reason(status)) == (Phase.FAILED, "UnknownSegment")
    assert "Segment 9 does not exist or is not valid" in _message(status)
    lake.assert_states(loads(range(4)))


def test_C13_segment_that_was_compacted(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.compaction())
    status = lake.run(lake.compaction("Custom", custom={"segments": ["0", "0.1"]}))
    assert (status.phase, reason(status)) == (Phase.FAILED, "UnknownSegment")
    assert "Segment 0 does not exist or is not valid" in _message(status)
    assert "Compacted" in _message(status)


def test_C13_one_segment_alone(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    status = lake.do(lake.compaction("Custom", custom={"segments": ["2"]}))
    assert reason(status) == "NothingToDo"
    assert lake.names == ["0", "1", "2", "3"]


def test_C13_segments_with_another_type(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    with pytest.raises(InvalidSpec, match="custom only goes with type Custom"):
        lake.compaction("Minor", custom={"segments": ["0", "1"]})


def test_C14_an_input_is_locked_by_a_load(lakes: Lakes) -> None:
    """The compaction waits, and then plans on what the load has left (I-28)."""
    lake = lakes.loaded(4)
    load = LockRequest(
        table=lake.store.location,
        operation="load",
        mode=Mode.EXCLUSIVE,
        resources=segment("2"),
        priority=75,
        display="TableIngest/load",
    )
    lake.locks.acquire(load)
    compaction = lake.hold(lake.compaction(), Point.AWAIT_LOCKS)
    lake.foreign().delete("id >= 20 AND id < 30")  # segment 2 is gone
    lake.append(batch(4))
    [appended] = [name for name in lake.names if name.startswith("f-")]
    lake.locks.release(lake.store.location, "load", "")
    done = compaction.finish()
    assert done.plan is not None
    assert done.plan.segments == ("0", "1", "3", appended)
    assert lake.names == ["0.1"]
    assert len(lake.jobs.started) == 1  # nothing was done by the stale plan
    lake.assert_rows(loads([0, 1, 3, 4]))
    lake.assert_clean()


def test_C14_an_input_is_locked_by_another_compaction(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    first = lake.hold(lake.compaction(), Point.RECONCILE)
    second = lake.hold(lake.compaction("Custom", custom={"segments": ["2", "3"]}),
                       Point.AWAIT_LOCKS)  # fmt: skip
    first.succeed()
    late = second.finish()
    assert (late.phase, reason(late)) == (Phase.FAILED, "UnknownSegment")
    assert lake.names == ["0.1"]
    lake.assert_states(loads(range(4)))


def _message(status: object) -> str:
    return " ".join(c.message for c in status.conditions)  # type: ignore[attr-defined]
