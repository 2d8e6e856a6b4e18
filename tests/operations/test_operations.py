"""Single operations in-process: interruption, deadlines, bad leftovers, races for segments.

Jobs and data files are the simulator's; store, log, locks and engine are the real ones.
"""

from __future__ import annotations

import gc
import json

import pytest

from simulator import foreign_table
from simulator.single import Single
from support.lake.faults import Fault, StrikeOnce
from tandem.errors import LocksUnavailable, Reason
from tandem.locks.rules import CommitLease, Granted, LockRequest, Mode, Waiting, named
from tandem.locks.store import InProcessLocks
from tandem.operations import attempt_files, garbage
from tandem.operations.execute import ExecutionOptions, open_session
from tandem.operations.machine.events import Point, StopRequest
from tandem.operations.session.session import Session
from tandem.spec.status import Phase
from tandem.timeline.segments import segments


@pytest.mark.parametrize("point", [Point.POLL_JOB, Point.RECONCILE, Point.PUT_COMMIT])
def test_an_interrupted_operation_stops_and_the_next_run_completes_it(point: Point) -> None:
    single = Single("update")
    session = single.at(point)
    session.request_stop(StopRequest.INTERRUPT)
    ending = single.drive(session)
    assert ending.reason is Reason.INTERRUPTED
    assert single.files_left() == []
    assert single.world.jobs.running() == []
    assert single.world.locks.entries(single.table.location) == ()
    single.succeed(attempt=2)


def test_interrupted_after_the_commit_reports_the_commit() -> None:
    single = Single("update")
    session = single.at(Point.FINISH_JOB)
    session.request_stop(StopRequest.INTERRUPT)
    single.succeed(session)


def test_a_deadline_ends_the_operation_for_good() -> None:
    single = Single("compaction")
    single.limit(active_deadline_seconds=60)
    session = single.at(Point.POLL_JOB)
    single.world.clock.now += 60_000
    ending = single.drive(session)
    assert ending.reason is Reason.DEADLINE_EXCEEDED
    assert single.files_left() == []
    assert single.run() == ending


def test_a_deadline_counts_from_the_first_start_and_not_from_a_restart() -> None:
    single = Single("compaction")
    single.limit(active_deadline_seconds=60)
    began = single.world.clock.now
    single.die(StrikeOnce(Point.RECONCILE, Fault.DIE_BEFORE))
    single.world.clock.now += 60_000
    ending = single.drive(single.session(started_ms=began))
    assert ending.reason is Reason.DEADLINE_EXCEEDED
    assert single.files_left() == []
    assert single.commits == 0


def test_a_deadline_that_passed_during_downtime_does_not_hide_the_commit() -> None:
    single = Single("compaction")
    single.limit(active_deadline_seconds=60)
    began = single.world.clock.now
    single.die(StrikeOnce(Point.FINISH_JOB, Fault.DIE_BEFORE))
    single.world.clock.now += 60_000
    ending = single.drive(single.session(started_ms=began))
    assert ending.reason is Reason.COMMITTED


@pytest.mark.parametrize("point", [Point.ACQUIRE_LOCKS, Point.POLL_JOB, Point.PUT_COMMIT])
def test_cancelled_by_deletion_leaves_nothing_even_after_a_restart(point: Point) -> None:
    single = Single("update")
    _first = single.at(point)
    single.world.living.clear()
    single.world.locks.expire(single.table.location, single.operation_id)
    session = single.session()
    woken: list[bool] = []
    session.on_stop_request = lambda: woken.append(True)
    session.request_stop(StopRequest.CANCEL)
    assert woken == [True]
    assert session.wait_ms() == 0
    assert single.drive(session).reason is Reason.CANCELLED
    assert single.files_left() == []
    assert single.world.jobs.running() == []
    assert single.world.locks.entries(single.table.location) == ()
    single.succeed()


def test_an_external_loop_drives_an_operation_without_sleeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single = Single("compaction")
    session = single.at(Point.POLL_JOB)
    assert session.wait_ms() == 1
    slept: list[int] = []
    monkeypatch.setattr(single.world.clock, "sleep", lambda ms, _wake: slept.append(ms))
    session.advance(sleep=False)
    assert slept == []
    session.advance()
    assert slept == [1]


class AbsentLocks(InProcessLocks):
    """Does not answer the next `absent` calls, whatever they are."""

    absent = 0

    def _answer(self) -> None:
        if self.absent:
            self.absent -= 1
            raise LocksUnavailable("etcd cannot be reached")

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        self._answer()
        return super().acquire(request)

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        self._answer()
        return super().enter_commit(table, operation, owner)

    def release(self, table: str, operation: str, owner: str) -> None:
        self._answer()
        super().release(table, operation, owner)


@pytest.mark.parametrize("point", [Point.ACQUIRE_LOCKS, Point.ENTER_COMMIT, Point.RELEASE_LOCKS])
@pytest.mark.parametrize("kind", ["compaction", "update"])
def test_an_outage_of_the_lock_store_costs_no_attempt(kind: str, point: Point) -> None:
    single = Single(kind)
    locks = single.world.locks = AbsentLocks()
    session = single.at(point)
    locks.absent = 40
    single.succeed(session, attempt=1)
    # Where it is only left to let go, it leaves that to the lease.
    assert (locks.absent > 0) == (point is Point.RELEASE_LOCKS)


def test_suspended_and_resumed() -> None:
    single = Single("compaction")
    session = single.at(Point.POLL_JOB)
    session.request_stop(StopRequest.SUSPEND)
    assert single.drive(session).phase is Phase.SUSPENDED
    assert single.world.locks.entries(single.table.location) == ()
    single.succeed()


def _rewrite(single: Single, suffix: str, data: bytes | None) -> None:
    """Damage (or with None remove) the one file of the first attempt with this ending."""
    prefix = attempt_files.attempt(single.operation_id, 1)
    [path] = [p for p in single.world.store.paths() if p.startswith(prefix) and p.endswith(suffix)]
    if data is None:
        single.world.store.delete([path])
    else:
        single.world.store.put(path, data)


@pytest.mark.parametrize("suffix", ["result.json", ".arrow"])
@pytest.mark.parametrize("data", [b"", b"{"])
def test_a_damaged_result_means_another_attempt(suffix: str, data: bytes) -> None:
    single = Single("update")
    session = single.at(Point.READ_RESULT)
    _rewrite(single, suffix, data)
    single.succeed(session, attempt=2)


def test_a_result_of_another_attempt_is_refused() -> None:
    single = Single("ingest")
    session = single.at(Point.READ_RESULT)
    path = attempt_files.round_file(single.operation_id, 1, 0, "result.json")
    body = json.loads(single.world.store.get(path)) | {"attempt": 9}
    single.world.store.put(path, json.dumps(body).encode())
    single.succeed(session, attempt=2)


@pytest.mark.parametrize("name", ["plan.json", "job.json"])
def test_a_damaged_plan_is_not_adopted(name: str) -> None:
    single = Single("compaction")
    single.die(StrikeOnce(Point.RECONCILE, Fault.DIE_BEFORE))
    _rewrite(single, name, b"{")
    single.succeed(attempt=2)


def test_a_vacuum_between_the_job_and_the_commit_means_the_job_again() -> None:
    single = Single("compaction")
    session = single.at(Point.PUT_COMMIT)
    named = {add.path for add in single.world.log.snapshot().adds()}
    paths = single.world.store.paths()
    single.world.store.delete([p for p in paths if not p.startswith("_") and p not in named])
    single.succeed(session, attempt=2)


@pytest.mark.parametrize(("kind", "attempts"), [("compaction", 1), ("update", 2)])
def test_Z5_a_vacuum_of_older_deletion_vectors_means_the_job_again(
    kind: str, attempts: int
) -> None:
    """A process that takes over an update cannot distinguish rows deleted before its read from
    rows deleted since; for a compaction, the row map records it."""
    single = Single(kind)
    while not _vectors(single):
        single.foreign("delete_with_vectors")
    read = _vectors(single)
    single.die(StrikeOnce(Point.RECONCILE, Fault.DIE_BEFORE))
    while read & _named(single):
        single.foreign("update_with_vectors")
        single.foreign("delete_with_vectors")
    single.world.store.delete(sorted(_vectors(single) - _named(single)))
    ending = single.succeed()
    assert ending.attempt == attempts


@pytest.mark.parametrize("kind", ["compaction", "update"])
def test_Z5_a_vacuum_between_the_read_and_the_plan_means_another_read(kind: str) -> None:
    single = Single(kind)
    while not _vectors(single):
        single.foreign("delete_with_vectors")
    session = single.at(Point.PLAN)
    single.foreign("purge")
    single.world.store.delete(sorted(_vectors(single) - _named(single)))
    single.succeed(session, attempt=1)


def _named(single: Single) -> set[str]:
    return {path for add in single.world.log.snapshot().adds() for path in single.world.needed(add)}


def _vectors(single: Single) -> set[str]:
    """Others' files of deletion vectors, which lie where a vacuum looks."""
    return {p for p in single.world.store.paths() if p.startswith("deletion_vector_")}


def test_C10_the_second_compaction_waits_and_plans_again() -> None:
    single = Single("compaction")
    live = [f"f-{n}" for n in range(2)]
    first = LockRequest(
        single.table.location,
        "another",
        Mode.REWRITE,
        named((*live, *_segments(single))),
        owner="99-x",
        priority=single.resource.lock_priority,
        display="TableCompaction/nightly",
    )
    single.world.locks.acquire(first)
    session = single.at(Point.AWAIT_LOCKS)
    assert session.state.locks.blockers[0][0] == "TableCompaction/nightly"
    # The holder compacts everything before it lets go: a foreign one stands for it here.
    single.foreign("delete_by_rewrite")
    before = single.checker.version
    single.world.locks.release(single.table.location, "another", "99-x")
    ending = single.drive(session)
    assert ending.plan is not None
    assert ending.plan.read_version == before
    assert ending.reason is Reason.COMMITTED


def _segments(single: Single) -> list[str]:
    return [s.name for s in segments(single.world.log.snapshot().files)]


def test_pins_name_what_an_unfinished_attempt_reads() -> None:
    single = Single("compaction")
    session = single.at(Point.POLL_JOB)
    [pin] = garbage.unfinished(single.world.store)
    assert (pin.operation_id, pin.attempt) == (single.operation_id, 1)
    live = {add.logged_path for add in single.world.log.snapshot().adds()}
    assert garbage.inputs(single.world.store, pin) == live
    single.drive(session)
    assert garbage.unfinished(single.world.store) == ()


def test_a_failed_attempt_is_tried_again_until_the_backoff_limit() -> None:
    single = Single("compaction")
    single.limit(backoff_limit=2)
    session = single.session()
    started = 0
    while session.advance():
        for driver in single.world.jobs.running():
            single.world.jobs.die(driver)
            started += 1
    assert started == 3
    assert session.ending is not None
    assert session.ending.reason is Reason.JOB_FAILED
    assert single.files_left() == []
    assert single.run() == session.ending
    single.checker.catch_up()
    assert single.operation_id in single.checker.closed


def test_a_failure_that_was_closed_but_not_recorded_is_recorded_by_the_next_run() -> None:
    single = Single("update")
    single.limit(active_deadline_seconds=5)
    session = single.session(StrikeOnce(Point.RECORD_RESULT, Fault.DIE_BEFORE))
    single.until(session, Point.POLL_JOB)
    single.world.clock.now += 5_000
    with pytest.raises(BaseException, match="before RecordResult"):
        single.drive(session)
    ending = single.end()
    assert ending.reason is Reason.DEADLINE_EXCEEDED
    assert single.run() == ending


def test_a_commit_that_falls_into_a_hole_of_the_log_is_made_again() -> None:
    """A process that was stopped for long puts a version that log clean-up has taken."""
    single = Single("ingest")
    session = single.session()
    hole = single.until(session, Point.PUT_COMMIT).version
    for _ in range(3):
        single.foreign("append")
    foreign_table.clean_log(single.world)
    ending = single.drive(session)
    single.checker.catch_up()
    assert ending.reason is Reason.COMMITTED
    assert ending.result is not None
    assert ending.result.version == hole + 3
    assert single.commits == 1


def test_log_clean_up_during_a_statement_counts_as_a_change() -> None:
    single = Single("update")
    session = single.at(Point.RECONCILE)
    single.foreign("update_by_rewrite")
    single.foreign("append")
    foreign_table.clean_log(single.world)
    ending = single.drive(session)
    single.checker.catch_up()
    assert ending.reason is Reason.COMMITTED
    assert ending.result is not None
    assert ending.result.reconciled is not None
    assert ending.result.reconciled.rows_evaluated > 0


def two_sessions(single: Single) -> tuple[Session, Session]:
    """Two sessions of one process, the first of which waits for its job."""
    ports = single.world.ports()
    first, second = (
        open_session(
            single.resource, single.table, ports, ExecutionOptions(poll_ms=1, lock_wait_s=0)
        )
        for _ in range(2)
    )
    single.until(first, Point.POLL_JOB)
    return first, second


def test_Z6_a_session_leaves_the_attempt_of_a_live_session_alone() -> None:
    single = Single("compaction")
    first, second = two_sessions(single)
    ending = single.drive(second)
    assert ending.reason is Reason.ALREADY_RUNNING
    assert ending.elsewhere
    assert "another session" in ending.message
    assert single.drive(first).attempt == 1
    assert single.commits == 1
    assert len(single.world.jobs.drivers) == 1


def test_a_session_takes_over_what_an_ended_session_left() -> None:
    single = Single("compaction")
    first, second = two_sessions(single)
    first.close()
    single.succeed(second, attempt=1)
    assert len(single.world.jobs.drivers) == 1


def test_a_session_that_was_forgotten_holds_nothing() -> None:
    single = Single("compaction")
    first, second = two_sessions(single)
    del first
    gc.collect()
    single.succeed(second)


def test_Z6_of_two_sessions_that_find_the_same_attempt_one_takes_it_over() -> None:
    single = Single("compaction")
    single.die(StrikeOnce(Point.RECONCILE, Fault.DIE_BEFORE), jobs_live_on=True)
    ports = single.world.ports()
    first, second = (
        open_session(
            single.resource, single.table, ports, ExecutionOptions(poll_ms=1, lock_wait_s=0)
        )
        for _ in range(2)
    )
    single.until(first, Point.ADOPT_ATTEMPT)
    single.until(second, Point.ADOPT_ATTEMPT)
    first.advance()
    assert single.drive(second).reason is Reason.ALREADY_RUNNING
    single.succeed(first)
    assert single.commits == 1
