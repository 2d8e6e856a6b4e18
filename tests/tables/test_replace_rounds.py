"""Replaces whose files take more reading than the operator does: the job reads their times.

The limit is lowered to nothing, or to one file. A late file comes between the job and the commit,
so that a further round reads it. deltalake is the second reader, and Spark in `whole` tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from support.lake.held import Held
from support.lake.lake import DELETION_VECTORS, Lake, Lakes, result
from support.lake.timed import TimedLake, day, hours, join, without
from support.present import present
from tables.replaced import DAY_2, REST, S1, SR, made
from tandem.delta.scan import scan
from tandem.locks.store import InProcessLocks
from tandem.operations.execute import ExecutionOptions, open_session
from tandem.operations.kinds.row_scope import ScopedRows
from tandem.operations.machine.events import Point
from tandem.operations.rounds import NoSmallRounds, SmallRounds
from tandem.operations.small_rounds import ArrowRounds
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus

SCOPES = pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
LATE = hours(range(30, 60), first=3_000)
"""Of the second day and the third."""
LATE_REST = without(LATE, day(2))
MORE = hours(range(40, 50), first=4_000)


class OneFile(ArrowRounds):
    """Reads the times of one small file, and not those of two."""

    time_bytes = 300 << 10


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files the engine reads, each time."""
    found: list[int] = []
    read = ScopedRows.read

    def counted(self: ScopedRows, snapshot: Any, adds: Any) -> None:
        adds = list(adds)
        found.append(len(adds))
        read(self, snapshot, adds)

    monkeypatch.setattr(ScopedRows, "read", counted)
    return found


def hold(
    lake: Lake, operation: Operation, rounds: Callable[[], SmallRounds] = NoSmallRounds
) -> Held:
    """Until the first decision is next, without any locks."""
    ports = lake.ports(locks=InProcessLocks(), small_rounds=rounds)
    return lake.hold(operation, Point.RECONCILE, ports=ports)


def run(
    lake: Lake, operation: Operation, rounds: Callable[[], SmallRounds] = NoSmallRounds
) -> OperationStatus:
    return lake.do(operation, ports=lake.ports(small_rounds=rounds))


def steps(lake: Lake, operation: Operation, rounds: Callable[[], SmallRounds]) -> tuple[str, ...]:
    """What `tandem plan` says."""
    options = ExecutionOptions(plan_only=True)
    session = open_session(operation, lake.table(), lake.ports(small_rounds=rounds), options)
    while session.advance():
        pass
    assert session.ending is not None
    assert session.ending.plan is not None
    return session.ending.plan.steps or ()


@SCOPES
@pytest.mark.parametrize("source", [SR, None], ids=["replace", "drop"])
def test_a_late_file_is_read_in_a_further_round(
    lakes: Lakes, reads: list[int], source: Mapping[int, int | None] | None, scope: str
) -> None:
    table = made(lakes)
    running = hold(table.lake, table.replace(DAY_2, rows=source, scope=scope))
    table.append(LATE)
    done = running.succeed()
    assert running.points.count(Point.REQUEST_ROUND) == 1
    assert len(table.lake.jobs.started) == 1
    assert reads == []
    table.assert_shows(REST, source or {}, LATE if scope == "AtStart" else LATE_REST)
    did = present(result(done).replaced)
    late = len(LATE) - len(LATE_REST)
    assert (did.rows, did.late) == ((24, late) if scope == "AtStart" else (24 + late, None))
    assert did.empty_chunks is None, "the operator would have to read the files"


def test_a_rewritten_file_is_read_again(lakes: Lakes, reads: list[int]) -> None:
    """A compaction beside it put the rows into another file, and deleted rows stay deleted."""
    table = TimedLake.of(lakes, S1, hours(day(2), day(3), first=500))
    running = hold(table.lake, table.replace(DAY_2, rows=SR))
    table.lake.do(table.lake.compaction("Major"))
    table.lake.foreign().delete("id = 30 or id = 50")
    running.succeed()
    assert reads == []
    table.assert_shows(
        {id_: hour for id_, hour in REST.items() if id_ != 50},
        hours(day(3), first=524), SR,
    )  # fmt: skip


def test_rows_that_come_back_after_the_job_has_read_are_in_scope(
    lakes: Lakes, reads: list[int]
) -> None:
    """The job answers for deleted rows, too."""
    table = made(lakes)
    before = table.lake.version
    table.lake.do(table.lake.delete("id = 30 OR id = 50"))
    running = hold(table.lake, table.replace(DAY_2, scope="AtCommit"))
    table.lake.foreign().restore(before)
    running.succeed()
    assert running.points.count(Point.REQUEST_ROUND) == 0
    assert reads == []
    table.assert_shows(REST)


def test_under_the_limit_a_drop_starts_no_job(lakes: Lakes, reads: list[int]) -> None:
    table = made(lakes)
    table.lake.do(table.replace(DAY_2))
    assert table.lake.jobs.started == []
    assert reads == [1]
    table.assert_shows(REST)


def test_the_plan_says_who_reads(lakes: Lakes) -> None:
    table = made(lakes)
    drop = table.replace(DAY_2)
    whole = "0 files in which all rows are in scope"
    assert steps(table.lake, drop, ArrowRounds) == (
        whole, "1 file of which the operator reads the times",
    )  # fmt: skip
    assert steps(table.lake, drop, NoSmallRounds) == (
        whole, "1 file of which a job reads the times",
    )  # fmt: skip
    assert table.lake.jobs.started == []


@SCOPES
def test_a_drop_without_a_job_plans_again_with_one(
    lakes: Lakes, reads: list[int], scope: str
) -> None:
    """More came than the operator reads. It is no failure, and the start stays (I-54)."""
    table = made(lakes)
    running = hold(table.lake, table.replace(DAY_2, scope=scope), OneFile)
    assert table.lake.jobs.started == []
    start = table.lake.version
    table.append(LATE)
    table.append(MORE)
    done = running.succeed()
    assert [job.attempt for job in table.lake.jobs.started] == [2]
    assert reads == [1], "before the commit that met the others"
    did = present(result(done).replaced)
    assert did.start_version == (start if scope == "AtStart" else None)
    late = (LATE, MORE) if scope == "AtStart" else (LATE_REST, without(MORE, day(2)))
    table.assert_shows(REST, *late)


def test_a_replace_with_a_job_asks_it_for_what_came_since(lakes: Lakes, reads: list[int]) -> None:
    """At the plan the operator would have read the one file; it does not plan again."""
    table = made(lakes)
    running = hold(table.lake, table.replace(DAY_2, rows=SR), OneFile)
    table.append(LATE)
    table.append(MORE)
    running.succeed()
    assert [job.attempt for job in table.lake.jobs.started] == [1]
    assert running.points.count(Point.REQUEST_ROUND) == 1
    assert reads == [1], "before the commit that met the others"
    table.assert_shows(REST, SR, LATE, MORE)


# Types of times, by Spark

TYPES = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
DAY_US = 86_400_000_000
MARCH_2 = 15_766 * DAY_US
"""2013-03-02, in microseconds since 1970."""
OLD: Mapping[int, int | None] = {
    1: MARCH_2 - DAY_US, 2: MARCH_2 - 1, 3: MARCH_2, 4: MARCH_2 + 999, 5: MARCH_2 + DAY_US - 1,
    6: MARCH_2 + DAY_US, 7: None,
}  # fmt: skip
NEW: Mapping[int, int | None] = {11: MARCH_2 + 1}
CAME: Mapping[int, int | None] = {
    21: MARCH_2 - 1_001, 22: MARCH_2 + 1_001, 23: None, 24: MARCH_2 + DAY_US + 1,
}  # fmt: skip
IN_SCOPE = {3, 4, 5, 22}


def moments(type_: str, rows: Mapping[int, int | None]) -> pa.Table:
    times = [t if t is None or type_ != "date" else t // DAY_US for t in rows.values()]
    ids = pa.array(rows, pa.int64())
    kind = pa.int32() if type_ == "date" else pa.int64()
    return pa.table({"id": ids, "ts": pa.array(times, kind).cast(TYPES[type_])})


@pytest.mark.part(2)
@pytest.mark.whole
@pytest.mark.parametrize(
    ("type_", "scope", "source"),
    [("timestamp", "AtStart", NEW), ("date", "AtCommit", None), ("timestamp_ntz", "AtCommit", NEW),
     ("timestamp", "AtStart", None)],
)  # fmt: skip
def test_spark_reads_times_of_any_type(
    lakes: Lakes,
    reads: list[int],
    type_: str,
    scope: str,
    source: Mapping[int, int | None] | None,
) -> None:
    """NULL, and microseconds at the borders, of which statistics have milliseconds."""
    lake = lakes.empty(
        schema=moments(type_, OLD).schema,
        properties=DELETION_VECTORS,
        time={"column": "ts", "granularity": "Day"},
    )
    lake.append(moments(type_, OLD))
    spec: dict[str, Any] = {"replace": {"intervals": [DAY_2]}, "scope": scope}
    if source is not None:
        where = lake.source(moments(type_, source)).as_uri()
        spec["source"] = {"format": "Parquet", "location": where}
    running = hold(lake, lake.resource("TableReplace", spec))
    lake.append(moments(type_, CAME))
    running.succeed()
    assert running.points.count(Point.REQUEST_ROUND) == 1
    assert reads == []
    gone = IN_SCOPE - (CAME.keys() if scope == "AtStart" else set())
    expected = join(OLD, source or {}, CAME)
    wanted = moments(type_, {id_: t for id_, t in expected.items() if id_ not in gone})
    for found in (scan(lake.log.snapshot(), lake.store), lake.foreign().scan()):
        assert pa.table(found).sort_by("id").cast(wanted.schema).equals(wanted)


def test_a_drop_with_a_job_that_spark_does(lakes: Lakes) -> None:
    """Of several files, all in the first round."""
    loads = [hours(range(20, 30), first=1_000 * n) for n in range(1, 6)]
    table = TimedLake.of(lakes, S1, *loads)
    done = run(table.lake, table.replace(DAY_2))
    assert len(table.lake.jobs.started) == 1
    table.assert_shows(*(without(load, day(2)) for load in (S1, *loads)))
    did = present(result(done).replaced)
    assert did.rows == 24 + 5 * 6
