"""What attempts that end without a commit leave in the log: a commit without data (`ABANDON`) for
an operation that ends without success, and none otherwise, however often it was tried.

Until then an earlier attempt may yet be committed, by a session that was taken for dead.
"""

from __future__ import annotations

import pytest

from simulator.crashing import (
    Beside,
    Crowd,
    crash,
    did_not_happen,
    happened_once,
    nothing_is_left,
)
from simulator.jobs import Driver
from simulator.refusals import each_kind, emptied
from simulator.single import SERIALIZABLE, Single
from simulator.zombies import MOST_JOB_STEPS
from support.cases import PLAIN
from support.lake.faults import Fault, StrikeOnce
from tandem.errors import Reason
from tandem.operations.machine.events import Ending, Point, StopRequest
from tandem.operations.session.commit_actions import TxnMarkers
from tandem.operations.session.session import Session
from tandem.spec.status import Phase

KILLS = 12
CLOSING = (
    Point.END_ATTEMPT,
    Point.ABANDON_ATTEMPT,
    Point.CLEAN_ATTEMPT,
    Point.RELEASE_LOCKS,
    Point.RECORD_RESULT,
)
"""The effects of an attempt that another one follows, and of the last one."""


def markers(single: Single) -> int:
    """How many versions declare attempts dead."""
    versions = single.table.log.commits(0, single.table.log.latest_version())
    return sum(1 for each in versions if each.info and each.info.operation == "ABANDON")


def killed(single: Single, times: int) -> None:
    """Processes that die with their jobs, one after the other, each in an attempt of its own."""
    for _ in range(times):
        single.die(StrikeOnce(Point.START_JOB, Fault.DIE_AFTER))


@pytest.mark.parametrize("kind", [*PLAIN, SERIALIZABLE])
def test_C6_an_operation_that_succeeds_at_last_leaves_none(kind: str) -> None:
    single = Single(kind)
    single.limit(backoff_limit=KILLS)
    killed(single, KILLS)
    ending = single.end()
    assert ending.attempt == KILLS + 1
    assert markers(single) == 0
    happened_once(single, ending)  # and the files of all attempts are gone


@pytest.mark.parametrize("kind", PLAIN)
def test_an_operation_that_fails_for_good_leaves_one(kind: str) -> None:
    single = Single(kind)
    single.limit(backoff_limit=KILLS - 1)
    killed(single, KILLS)
    ending = single.end()
    assert ending.phase is Phase.FAILED
    assert markers(single) == 1
    did_not_happen(single, ending)


@each_kind
def test_an_operation_that_finds_nothing_to_do_after_kills_leaves_one(kind: str) -> None:
    """The attempts before may still be committed, by sessions that were taken for dead."""
    single = Single(kind)
    single.limit(backoff_limit=KILLS)
    killed(single, KILLS)
    emptied(single)
    ending = single.end()
    assert ending.reason is Reason.NOTHING_TO_DO
    assert markers(single) == 1
    nothing_is_left(single)
    assert single.run() == ending


@pytest.mark.part(4)
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("point", CLOSING)
def test_C6_a_crash_on_the_way_to_a_failure(point: Point, fault: Fault) -> None:
    """Whatever dies while attempts end: there is one marker, and nothing is left."""
    for kind in PLAIN:
        single = Single(kind)
        single.limit(backoff_limit=1)
        strike = StrikeOnce(point, fault)
        ending = fails(single, strike)
        assert strike.struck
        for _ in range(3):
            ending = ending or fails(single)
        assert ending is not None
        assert ending.phase is Phase.FAILED
        assert markers(single) == 1
        did_not_happen(single, ending)


def fails(single: Single, strike: StrikeOnce | None = None) -> Ending | None:
    """Run a process all of whose jobs fail; None if it dies itself."""

    def job_dies(effect, call):  # type: ignore[no-untyped-def]
        event = call() if strike is None else strike(effect, call)
        if effect.point is Point.START_JOB:
            for driver in single.world.jobs.running():
                single.world.jobs.die(driver)
        return event

    return single.run(job_dies)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("point", [Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT])
def test_C6_a_crash_while_a_suspended_operation_is_stopped(point: Point, fault: Fault) -> None:
    for kind in PLAIN:
        passage = (Point.START_JOB, 1)
        again = (point, 1), fault
        single = crash(kind, Beside.NOTHING, passage, Fault.DIE_AFTER, again=again, suspended=True)
        died_before = (point, fault) == (Point.ABANDON_ATTEMPT, Fault.DIE_BEFORE)
        assert markers(single) == (0 if died_before else 1)


@pytest.mark.parametrize("stop", [StopRequest.DEADLINE, StopRequest.TABLE_MOVED])
def test_what_is_refused_before_a_job_starts_writes_nothing(stop: StopRequest) -> None:
    for kind in ("compaction", "update", "delete"):  # an ingest has no locks before its commit
        single = Single(kind)
        crowd = Crowd(single, Beside.BLOCKED)
        session = single.at(Point.AWAIT_LOCKS, crowd)
        version = single.table.log.latest_version()
        session.request_stop(stop)
        ending = single.drive(session)
        crowd.leave()
        assert ending.phase is Phase.FAILED
        assert single.table.log.latest_version() == version
        did_not_happen(single, ending)


def taken_for_dead(single: Single) -> tuple[Session, Driver]:
    """A session whose job runs, and its driver: both look dead to the next session."""
    session = single.at(Point.POLL_JOB)
    [driver] = single.world.jobs.running()
    single.world.jobs.die(driver)
    single.world.living.clear()
    return session, driver


@pytest.mark.parametrize("kind", [*PLAIN, SERIALIZABLE])
def test_Z1_an_attempt_that_was_taken_for_dead_commits_and_its_successor_reports_it(
    kind: str,
) -> None:
    single = Single(kind)
    first, driver = taken_for_dead(single)
    second = single.at(Point.START_JOB)
    single.until(second, Point.POLL_JOB)
    assert second.state.attempt.number == 2
    driver.alive = True
    for _ in range(4):  # the second one's job has written files by then
        for each in single.world.jobs.running():
            single.world.jobs.advance(each)
    single.succeed(first)
    ending = single.drive(second)
    assert (ending.reason, ending.attempt) == (Reason.COMMITTED, 1)
    assert markers(single) == 0
    happened_once(single, ending)


@pytest.mark.parametrize("kind", PLAIN)
def test_Z1_an_attempt_that_was_taken_for_dead_is_too_late_after_the_successors_success(
    kind: str,
) -> None:
    single = Single(kind)
    first, driver = taken_for_dead(single)
    second = single.session()
    assert single.drive(second).attempt == 2
    driver.alive = True
    ending = single.drive(first)
    assert ending.reason is Reason.COMMITTED or ending.elsewhere, ending
    for each in single.world.jobs.running():
        single.world.jobs.die(each)
    assert single.commits == 1
    assert markers(single) == 0
    # All that the log names is there, whatever the late one tidied up.
    present = set(single.world.store.paths())
    assert {path for path in single.checker.files if path not in present} == set()


@pytest.mark.parametrize("kind", ["compaction", "update", "ingest"])
def test_files_of_an_attempt_that_may_yet_be_committed_stay_until_another_one_succeeds(
    kind: str,
) -> None:
    single = Single(kind)
    first = single.at(Point.POLL_JOB)
    [driver] = single.world.jobs.running()
    for _ in range(MOST_JOB_STEPS):
        if not single.files_left():
            single.world.jobs.advance(driver)
    single.world.jobs.die(driver)
    single.world.living.clear()
    first.close()
    written = single.files_left()
    assert written
    second = single.at(Point.START_JOB)
    assert set(written) <= set(single.files_left())
    happened_once(single, single.drive(second))


@pytest.mark.parametrize(
    ("stops", "dead"),
    [
        (TxnMarkers(), ()),
        (TxnMarkers(abandoned=2), (1, 2)),
        (TxnMarkers(succeeded=2), (1, 3)),
        (TxnMarkers(succeeded=3, abandoned=2), (1, 2)),
        (TxnMarkers(succeeded=1, abandoned=1), (2, 3)),  # a log that contradicts itself
        (TxnMarkers(abandoned=1, closed=True), (1, 2, 3)),
    ],
)
def test_only_attempts_that_the_log_keeps_from_committing_are_dead(
    stops: TxnMarkers, dead: tuple[int, ...]
) -> None:
    assert stops.dead(3) == dead


@pytest.mark.parametrize("kind", ["compaction", "update"])
def test_Z20_a_stop_that_meets_the_commit_of_a_late_attempt_reports_it(kind: str) -> None:
    single = Single(kind)
    first = single.at(Point.PUT_COMMIT)
    single.world.living.clear()
    second = single.at(Point.CHECK_EARLIER_OUTCOME)
    second.request_stop(StopRequest.DEADLINE)
    single.until(second, Point.ABANDON_ATTEMPT)
    single.succeed(first)
    ending = single.succeed(second)
    assert markers(single) == 0
    happened_once(single, ending)
