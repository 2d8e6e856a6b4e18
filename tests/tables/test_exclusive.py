"""`lockMode: Exclusive` on real tables: it yields to every write in its chunks, and ends all the
same. D21, D22, D57 and A6; deltalake writes beside it, and is the second reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.lake.faults import Call
from support.lake.held import Held
from support.lake.lake import reason, result
from support.lake.timed import DAYS, SCHEMA, Hours, TimedLake, day, hours, join
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.locks.rules import WHOLE_TABLE, LockRequest, Mode, Waiting
from tandem.locks.store import InProcessLocks
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports, SystemClock
from tandem.operations.session.options import passthrough
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

MINUTE = 60_000
POLLS = 3
"""So many times a job is looked at before it is done."""
DAY_1, DAY_2 = hours(day(1), first=0), hours(day(2), first=100)
MORE = hours(range(30, 40), first=200)
"""The rest of the second day: what a compaction puts together with `DAY_2`."""
CHUNK = {"semiMajor": {"chunks": ["2013-03-02"]}}


@dataclass
class SlowJobs(QuickJobs):
    """Jobs that take `POLLS` looks. `stopped` names those that were stopped before."""

    stopped: list[str] = field(default_factory=list)
    _looks: dict[str, tuple[JobRequest, int]] = field(default_factory=dict)

    def start(self, request: JobRequest) -> None:
        self._looks.setdefault(request.name, (request, 0))

    def status(self, name: str) -> JobStatus:
        if name not in self._looks:
            return JobStatus(JobPhase.UNKNOWN)
        request, looks = self._looks[name]
        self._looks[name] = request, looks + 1
        if looks + 1 < POLLS:
            return JobStatus(JobPhase.RUNNING)
        super().start(request)
        return super().status(name)

    def stop(self, name: str) -> None:
        if self._looks[name][1] < POLLS:
            self.stopped.append(name)


@dataclass
class NotedClock(SystemClock):
    """Does not wait; notes how long it was to."""

    waits: list[int] = field(default_factory=list)

    def sleep(self, ms: int, wake: threading.Event) -> None:  # noqa: ARG002
        self.waits.append(ms)


@dataclass
class Beside:
    """An `interceptor` that lets `act` happen before a look at each attempt's job: before the first
    one, or the last one, after which no other follows."""

    act: Callable[[int], object]
    look: int = 1
    _looks: dict[int, int] = field(default_factory=dict)

    def __call__(self, effect: Effect, call: Call) -> Event:
        if effect.point is Point.POLL_JOB:
            self._looks[effect.attempt] = self._looks.get(effect.attempt, 0) + 1
            if self._looks[effect.attempt] == self.look:
                self.act(effect.attempt)
        return call()


class Stage:
    """The table, its jobs, locks and clock, which all processes share."""

    def __init__(self, folder: Path) -> None:
        self.lake = quick_lake.make(folder, loads=0, schema=SCHEMA)
        self.lake.time = DAYS
        self.table = TimedLake(self.lake)
        for rows in (DAY_1, DAY_2, MORE):
            self.table.append(rows)
        self.lake.first_version = self.lake.version
        self.jobs, self.locks, self.clock = SlowJobs(), InProcessLocks(), NotedClock()
        self.late: list[Hours] = []

    def ports(self) -> Ports:
        return self.lake.ports(jobs=self.jobs, locks=self.locks, clock=self.clock)

    def ports_of_another(self) -> Ports:
        """With jobs that are done at once."""
        return self.lake.ports(locks=self.locks)

    def compaction(self, **more: Any) -> Operation:
        body = {"lockMode": "Exclusive", **CHUNK, **more}
        return self.lake.compaction("SemiMajor", **body)

    def come_late(self, *at: int) -> None:
        """Another writer appends rows at these hours."""
        rows = hours(at, first=1_000 + 10 * len(self.late))
        self.table.append(rows)
        self.late.append(rows)

    def run(self, operation: Operation, beside: Callable[[Effect, Call], Event]) -> OperationStatus:
        return self.lake.run(operation, ports=self.ports(), interceptor=beside)

    def assert_committed(self, status: OperationStatus, *, attempt: int) -> None:
        assert (status.phase, status.attempt) == (Phase.SUCCEEDED, attempt), status
        self.table.assert_shows(DAY_1, DAY_2, MORE, *self.late)
        assert self.locks.entries(self.lake.location) == ()
        self.lake.assert_clean()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def yields(status: OperationStatus) -> int:
    return 0 if status.yields is None else status.yields.count


def test_alone_it_commits_at_once_and_locks_its_chunk(stage: Stage) -> None:
    held = Held("x", lambda i: stage.run(stage.compaction(), i)).start(Point.POLL_JOB)
    [entry] = stage.locks.entries(stage.lake.location)
    assert entry.request.mode is Mode.EXCLUSIVE
    assert str(entry.request.resources.intervals) == "2013-03-02T00:00:00Z/2013-03-03T00:00:00Z"
    status = held.finish()
    stage.assert_committed(status, attempt=1)
    assert status.plan is not None
    assert status.plan.locks == (f"Exclusive interval {entry.request.resources.intervals}",)
    assert yields(status) == 0


@pytest.mark.parametrize("look", [1, POLLS])
def test_D57_it_yields_when_rows_come_late_and_commits_once_they_cease(
    stage: Stage, look: int
) -> None:
    """At the last look the job is done already: its output would need deletes mapped onto it, or
    leave rows of its chunk out."""
    beside = Beside(lambda attempt: stage.come_late(30) if attempt < 3 else None, look)
    status = stage.run(stage.compaction(), beside)
    stage.assert_committed(status, attempt=3)
    assert status.yields is not None
    assert (yields(status), status.yields.by[:18]) == (2, "version 5, WRITE b")
    assert len(stage.jobs.stopped) == (2 if look == 1 else 0)
    assert {add.deletion_vector for add in stage.lake.log.snapshot().adds()} == {None}
    # It is the output of all that was there, late rows too.
    assert result(status).files_removed == 4


@pytest.mark.parametrize("at", [5, 60])
def test_D57_writes_in_other_chunks_do_not_disturb_it(stage: Stage, at: int) -> None:
    status = stage.run(stage.compaction(), Beside(lambda _: stage.come_late(at)))
    stage.assert_committed(status, attempt=1)


def test_D57_rows_without_a_time_may_be_in_its_chunk(stage: Stage) -> None:
    def append(attempt: int) -> None:
        if attempt == 1:
            rows: Hours = {5_000: None}
            stage.table.append(rows)
            stage.late.append(rows)

    status = stage.run(stage.compaction(), Beside(append))
    stage.assert_committed(status, attempt=2)


@pytest.mark.parametrize("first", [105, 200])
def test_D57_it_yields_to_deletes_too(stage: Stage, first: int) -> None:
    """Of deltalake, which writes a file again or removes it."""

    def delete(attempt: int) -> None:
        if attempt == 1:
            stage.lake.foreign().delete(f"id >= {first} and id < {first} + 10")

    status = stage.run(stage.compaction(), Beside(delete, POLLS))
    assert (status.phase, yields(status)) == (Phase.SUCCEEDED, 1)
    rows = join(DAY_2, MORE)
    stage.table.assert_shows(
        DAY_1, {id_: hour for id_, hour in rows.items() if not first <= id_ < first + 10}
    )


def test_D22_a_late_row_in_each_attempt_does_not_starve_it(stage: Stage) -> None:
    operation = stage.compaction(exclusive={"maxYields": 3})
    status = stage.run(operation, Beside(lambda _: stage.come_late(30)))
    stage.assert_committed(status, attempt=4)
    assert yields(status) == 3
    assert status.plan is not None
    assert all(lock.startswith("Rewrite segment ") for lock in status.plan.locks or ())
    # The row that came while it went on is not in its output, and is not lost.
    assert len(stage.late) == 4
    assert result(status).files_removed == 5


def test_A6_the_back_off_grows_and_is_shown(stage: Stage) -> None:
    shown: list[tuple[str, int, int]] = []

    def note(status: OperationStatus) -> None:
        if status.yields is not None and status.yields.next_try:
            first = status.conditions[0]
            shown.append((first.reason, status.yields.count, status.attempt))
            assert status.yields.next_try in first.message

    operation = stage.compaction(exclusive={"maxYields": 4, "backoff": "1m"})
    execution = ExecutionOptions(poll_ms=10, interceptor=Beside(lambda _: stage.come_late(30)))
    session = open_session(operation, stage.lake.table(), stage.ports(), execution, note)
    status = finish(session, operation, stage.ports())
    stage.assert_committed(status, attempt=5)
    long = [ms for ms in stage.clock.waits if ms > MINUTE // 2]
    assert [round(ms / MINUTE) for ms in long] == [1, 2, 4]
    assert list(dict.fromkeys(shown)) == [("Yielded", n, n) for n in (1, 2, 3)]


def test_A6_the_count_survives_the_process(stage: Stage) -> None:
    operation = stage.compaction(exclusive={"maxYields": 2})
    beside = Beside(lambda _: stage.come_late(30))
    for _ in range(2):
        # It dies while it backs off.
        held = Held("x", lambda i: stage.run(operation, _both(i, beside)))
        held.start(Point.RELEASE_LOCKS, after=True)
        held.kill()
    status = stage.run(operation, beside)
    stage.assert_committed(status, attempt=3)
    assert yields(status) == 2


def _both(outer: Any, inner: Any) -> Callable[[Effect, Call], Event]:
    return lambda effect, call: outer(effect, lambda: inner(effect, call))


LONG = hours(day(3), range(40, 41), first=600)
"""What a long ingest reads: a day that is locked by none, and at its end a row of the second."""


def test_D21_an_ingest_holds_nothing_until_it_knows_its_rows(stage: Stage) -> None:
    ingest = stage.table.ingest(LONG)
    held = stage.lake.hold(ingest, Point.WRITE_SIDECARS, ports=stage.ports_of_another())
    [entry] = stage.locks.entries(stage.lake.location)
    assert not entry.request.resources
    # A compaction of the chunk that gets the last row begins, and ends, meanwhile.
    status = stage.run(stage.compaction(), passthrough)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    held.go_on(Point.PUT_COMMIT)
    [entry] = stage.locks.entries(stage.lake.location)
    assert str(entry.request.resources.intervals) == "2013-03-02T00:00:00Z/2013-03-04T00:00:00Z"
    held.succeed()
    stage.late.append(LONG)
    stage.assert_committed(status, attempt=1)


@pytest.mark.parametrize("priority", [None, 25])
def test_D21_its_last_row_falls_into_a_locked_chunk(stage: Stage, priority: int | None) -> None:
    """By default it takes the chunk from the compaction; with the same priority it waits until that
    yields, a look at its job later. Either way nothing of the ingest is lost."""
    ingest = stage.table.ingest(LONG, **({"priority": priority} if priority else {}))
    loading = stage.lake.hold(ingest, Point.ENTER_COMMIT, ports=stage.ports_of_another())

    def load(attempt: int) -> None:
        if attempt == 1:
            loading.go_on(Point.AWAIT_LOCKS if priority else Point.MAINTAIN)
            loading.go_on()

    status = stage.run(stage.compaction(), Beside(load))
    done = loading.finish()  # it has gone on since
    assert (done.phase, done.attempt) == (Phase.SUCCEEDED, 1)
    stage.late.append(LONG)
    # The second attempt may have read the table before the ingest committed.
    assert status.phase is Phase.SUCCEEDED
    assert yields(status) in ((1, 2) if priority else (1,))
    stage.table.assert_shows(DAY_1, DAY_2, MORE, LONG)


def test_D22_an_ingest_of_ours_never_waits_for_it(stage: Stage) -> None:
    """With default priorities it takes the locks (I-59)."""
    done: list[OperationStatus] = []
    late = hours([30, 31], first=900)
    ingest = stage.table.ingest(late)

    def never_waits(effect: Effect, call: Call) -> Event:
        assert effect.point is not Point.AWAIT_LOCKS
        return call()

    def load(attempt: int) -> None:
        if attempt == 1:
            ports = stage.ports_of_another()
            done.append(stage.lake.run(ingest, ports=ports, interceptor=never_waits))
            stage.late.append(late)

    status = stage.run(stage.compaction(), Beside(load))
    assert done[0].phase is Phase.SUCCEEDED
    stage.assert_committed(status, attempt=2)
    assert status.yields is not None
    assert status.yields.by == f"version 4, WRITE by {ingest.id}"


def test_I59_it_yields_to_a_writer_that_waits_for_it(stage: Stage) -> None:
    """Of its own priority: a higher one need not wait at all."""

    def ask(attempt: int) -> None:
        if attempt > 1:
            stage.locks.release(stage.lake.location, "writer", "writer")
            return
        [entry] = stage.locks.entries(stage.lake.location)
        locks = entry.request.resources
        wanted = LockRequest(stage.lake.location, "writer", Mode.APPEND, locks, "writer", 25)
        assert isinstance(stage.locks.acquire(wanted), Waiting)

    beside = Beside(ask)

    def run(effect: Effect, call: Call) -> Event:
        if effect.point is Point.AWAIT_LOCKS:
            stage.locks.release(stage.lake.location, "writer", "writer")
        return beside(effect, call)

    status = stage.run(stage.compaction(), run)
    assert (status.phase, status.attempt, yields(status)) == (Phase.SUCCEEDED, 2, 1)
    assert status.yields is not None
    assert status.yields.by == "writer, which needs its locks"


def test_it_does_not_yield_to_rewrites_that_wait_nor_to_lower_priorities(stage: Stage) -> None:
    def ask(_attempt: int) -> None:
        for mode, priority in ((Mode.REWRITE, 25), (Mode.APPEND, 24)):
            where = stage.lake.location
            wanted = LockRequest(where, mode, mode, WHOLE_TABLE, mode, priority)
            assert isinstance(stage.locks.acquire(wanted), Waiting)

    status = stage.run(stage.compaction(), Beside(ask))
    assert (status.phase, status.attempt, yields(status)) == (Phase.SUCCEEDED, 1, 0)


def test_a_segment_rewrite_may_be_exclusive_too(stage: Stage) -> None:
    body = {"segments": [stage.lake.names[1]], "rewrite": {"recompress": {"codec": "zstd"}}}
    operation = stage.lake.resource("SegmentRewrite", {**body, "lockMode": "Exclusive"})
    beside = Beside(lambda attempt: stage.come_late(30) if attempt == 1 else None)
    status = stage.run(operation, beside)
    stage.assert_committed(status, attempt=2)
    assert yields(status) == 1
    assert reason(status) == "Committed"


def test_without_a_time_column_every_write_is_in_its_chunks(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.lake.time = None
    operation = stage.lake.compaction("Major", lockMode="Exclusive")
    beside = Beside(lambda attempt: stage.come_late(60) if attempt == 1 else None)
    status = stage.run(operation, beside)
    stage.assert_committed(status, attempt=2)
    assert yields(status) == 1


def test_a_process_that_takes_over_yields_if_the_log_no_longer_says_what_was_written(
    stage: Stage,
) -> None:
    operation = stage.compaction()
    stage.lake.hold(operation, Point.RECONCILE, ports=stage.ports_of_another()).kill()
    stage.come_late(60)
    stage.lake.foreign().create_checkpoint()
    for version in range(stage.lake.version):
        (stage.lake.path / f"_delta_log/{version:020d}.json").unlink()
    status = stage.lake.run(operation, ports=stage.ports_of_another())
    assert (status.phase, status.attempt, yields(status)) == (Phase.SUCCEEDED, 2, 1), status
    stage.table.assert_shows(DAY_1, DAY_2, MORE, *stage.late)
