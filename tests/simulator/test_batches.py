"""A compaction that is committed in three batches: wherever it is struck, no row is lost or doubled
(the checker compares each version with its model), no batch is committed twice, and none that is
done is done again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.crashing import (
    Beside,
    Crowd,
    crash,
    nothing_is_left,
    passages,
    restart_passages,
)
from simulator.single import BATCH_COUNT, BATCHES, Single
from support.lake.faults import Fault, StrikeOnce
from support.lock_requests import asked
from support.present import present
from tandem.errors import Reason
from tandem.locks.rules import WHOLE_TABLE, Mode
from tandem.operations import attempt_files
from tandem.operations.attempt_files import encode
from tandem.operations.kinds.batches import BatchOfBins, BinOfBatch, batch_resource, fixed
from tandem.operations.machine.events import Point, StopRequest
from tandem.spec.compaction import TableCompaction
from tandem.spec.status import Phase

DEATHS = (Fault.DIE_BEFORE, Fault.DIE_AFTER)


def batch_commits(single: Single) -> list[int]:
    """The numbers of the batches in the order of their commits."""
    log = single.table.log
    bodies = (each.info.body for each in log.commits(0, log.latest_version()) if each.info)
    found = (body.get("tandem") or {} for body in bodies)
    return [ours["batch"]["number"] for ours in found if "batch" in ours]


def jobs_of(single: Single) -> dict[str, int]:
    """How many jobs each batch took."""
    drivers = single.world.jobs.drivers
    return {
        id_: sum(len(found) for name, found in drivers.items() if id_ in name)
        for id_ in single.operation_ids
    }


def test_each_batch_is_a_commit_and_the_result_is_that_of_all() -> None:
    single = Single(BATCHES)
    before = single.version
    ending = single.succeed()
    assert batch_commits(single) == [1, 2, 3]
    versions = range(before + 1, before + BATCH_COUNT + 1)
    commits = single.table.log.commits(versions[0], versions[-1])
    result = present(ending.result)
    assert result.version == versions[-1]
    assert result.files_removed == sum(len(each.removes) for each in commits) == 6
    assert result.files_added == sum(len(each.adds) for each in commits)
    assert result.summary is not None
    assert (
        result.summary[-1] == f"in 3 batches (versions {before + 1}, {before + 2} and {before + 3})"
    )
    assert jobs_of(single) == dict.fromkeys(single.operation_ids, 1)
    nothing_is_left(single)
    assert single.run() == ending


@pytest.mark.part(2)
@pytest.mark.parametrize("turn", range(4))
def test_C4_C5_C6_a_crash_at_each_point_of_each_batch(turn: int) -> None:
    """Every second passage, one fault each; `make matrix` has all of them, and what others
    do beside them."""
    faults = tuple(Fault)
    for number, passage in list(enumerate(passages(BATCHES, Beside.NOTHING)))[2 * turn :: 8]:
        fault = faults[(number // 2 + number // 8) % len(faults)]
        single = crash(BATCHES, Beside.NOTHING, passage, fault)
        assert batch_commits(single) == [1, 2, 3], (passage, fault)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", DEATHS)
def test_batches_that_are_done_are_not_done_again(fault: Fault, number: int) -> None:
    """A process dies with its job, at the commit of each batch in turn."""
    single = Single(BATCHES)
    single.die(StrikeOnce(Point.PUT_COMMIT, fault, number))
    committed = number if fault is Fault.DIE_AFTER else number - 1
    assert batch_commits(single) == [1, 2, 3][:committed]
    single.end()
    assert list(jobs_of(single).values()) == [1, 1, 1]  # the job's result was there in each case
    assert batch_commits(single) == [1, 2, 3]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_job_that_is_lost_costs_one_batch(number: int) -> None:
    single = Single(BATCHES)
    single.die(StrikeOnce(Point.START_JOB, Fault.DIE_AFTER, number))
    single.end()
    jobs = list(jobs_of(single).values())
    assert jobs[number - 1] == 2
    assert sum(jobs) == BATCH_COUNT + 1


@pytest.mark.parametrize("point", [Point.POLL_JOB, Point.PUT_COMMIT])
@pytest.mark.parametrize(
    ("request_", "phase"),
    [
        (StopRequest.CANCEL, Phase.FAILED),
        (StopRequest.INTERRUPT, Phase.FAILED),
        (StopRequest.SUSPEND, Phase.SUSPENDED),
    ],
)
def test_a_request_to_stop_meets_the_batch_at_work_and_the_rest_can_follow(
    request_: StopRequest, phase: Phase, point: Point
) -> None:
    single = Single(BATCHES)
    session = single.session()
    single.until(session, Point.RECORD_RESULT)  # of the first batch
    session.advance()
    single.until(session, point)
    session.request_stop(request_)
    ending = single.drive(session)
    assert ending.phase is phase
    assert "batch 1 is committed" in ending.message
    assert batch_commits(single) == [1]
    nothing_is_left(single)
    single.succeed()
    assert batch_commits(single) == [1, 2, 3]


def test_an_interrupt_after_a_commit_says_what_is_committed() -> None:
    """It does not wait until the table is read again."""
    single = Single(BATCHES)
    session = single.session()
    single.until(session, Point.RECORD_RESULT)  # of the first batch
    session.request_stop(StopRequest.INTERRUPT)
    assert single.drive(session).message == "interrupted; batch 1 is committed"
    assert batch_commits(single) == [1]


def test_the_progress_of_an_adopted_last_batch_is_that_of_all() -> None:
    single = Single(BATCHES)
    strike = StrikeOnce(Point.START_JOB, Fault.DIE_AFTER, BATCH_COUNT)
    single.die(strike, jobs_live_on=True)
    assert batch_commits(single) == [1, 2]
    session = single.at(Point.POLL_JOB)
    assert str(session.part) == "batch 3 of 3"
    single.succeed(session)


def test_a_suspended_operation_stops_the_job_of_its_batch_after_a_restart() -> None:
    single = Single(BATCHES)
    strike = StrikeOnce(Point.POLL_JOB, Fault.DIE_AFTER)
    single.die(strike, jobs_live_on=True)
    assert single.world.jobs.running()
    single.limit(suspend=True)
    ending = single.end(jobs_live_on=True)
    assert ending.phase is Phase.SUSPENDED
    nothing_is_left(single)
    single.limit(suspend=False)
    single.end()
    assert batch_commits(single) == [1, 2, 3]


def test_a_deadline_loses_one_batch_and_the_next_run_compacts_the_rest() -> None:
    single = Single(BATCHES)
    single.limit(active_deadline_seconds=60)
    session = single.at(Point.RECORD_RESULT)
    session.advance()
    single.until(session, Point.POLL_JOB)
    single.world.clock.now += 60_000
    ending = single.drive(session)
    assert ending.reason is Reason.DEADLINE_EXCEEDED
    assert "batch 2 of 3 failed" in ending.message
    assert "batch 1 is committed" in ending.message
    assert batch_commits(single) == [1]
    nothing_is_left(single)
    again = single.end()
    assert (again.phase, again.reason) == (ending.phase, ending.reason)
    single.limit(active_deadline_seconds=3600)
    session = single.session(again=True)
    after = single.succeed(session)
    assert after.result is not None
    assert after.result.files_removed == 4 + 1  # the first batch's output is merged with the rest


def test_a_batch_whose_files_others_have_replaced_is_passed_over() -> None:
    single = Single(BATCHES)
    # While the job of the first one runs.
    ending = single.end(Crowd(single, Beside.UPDATE))
    assert ending.phase is Phase.SUPERSEDED
    assert "batch 1 is committed" in ending.message
    assert batch_commits(single) == [1]
    nothing_is_left(single)
    assert single.run() == ending


def test_Z6_two_processes_of_one_operation_do_each_batch_once() -> None:
    """Neither knows of the other: each takes the other to be on another host."""
    for ahead in (0, 8, 21, 30):
        single = Single(BATCHES)
        first = single.session()
        for _ in range(ahead):
            first.advance()
            for driver in single.world.jobs.running():
                single.world.jobs.advance(driver)
        second = single.session()
        single.world.living.clear()
        single.alternate(first, second)
        done = batch_commits(single)
        assert done == sorted(set(done)), ahead
        single.succeed()
        assert batch_commits(single) == [1, 2, 3], ahead


def test_without_the_record_of_its_batches_the_rest_is_one_commit() -> None:
    single = Single(BATCHES)
    single.die(StrikeOnce(Point.RECORD_RESULT, Fault.DIE_AFTER))
    single.table.store.delete([attempt_files.batches(single.operation_id)])
    single.succeed()
    assert batch_commits(single) == [1]
    nothing_is_left(single)


def test_a_batch_commits_nothing_once_its_operation_has_ended() -> None:
    """A process that was stopped between the plan and the batch, and goes on after the end."""
    single = Single(BATCHES)
    single.end()
    for _ in range(4):
        single.foreign("append")
    store, id_ = single.table.store, single.operation_id
    record = fixed(store, id_)
    late = sorted(add.logged_path for add in single.table.log.snapshot().adds())[-4:]
    more = BatchOfBins(bins=(BinOfBatch(run=0, files=tuple(late)),), bytes=1)
    record = record.model_copy(update={"batches": (*record.batches, more, more)})
    store.put(attempt_files.batches(id_), encode(record))
    assert isinstance(single.resource, TableCompaction)
    version = single.version
    single.resource = batch_resource(single.resource, id_, record, BATCH_COUNT + 1)
    ending = single.end()
    assert ending.phase is Phase.SUPERSEDED
    assert "its operation has ended" in ending.message
    assert single.version == version


def test_a_deletion_beside_a_batch_is_replayed() -> None:
    single = Single(BATCHES)
    ending = single.end(Crowd(single, Beside.DELETE))
    assert ending.reason is Reason.COMMITTED
    assert batch_commits(single) == [1, 2, 3]
    nothing_is_left(single)


def test_a_table_that_outgrows_the_limit_while_it_waits_for_locks() -> None:
    """What it is granted then was for one commit, and must not keep its own batches waiting."""
    single = Single(BATCHES)
    locks, place = single.world.locks, single.table.location
    other = replace(asked("another", Mode.EXCLUSIVE, WHOLE_TABLE, 99), table=place)
    single.limit(max_bytes_per_commit=sum(each.size for each in single.table.log.snapshot().adds()))
    locks.acquire(other)
    session = single.at(Point.AWAIT_LOCKS)
    single.foreign("append")
    single.foreign("append")
    locks.release(place, other.operation, other.owner)
    single.succeed(session)
    assert batch_commits(single) == [1, 2]
    assert locks.entries(place) == ()
    nothing_is_left(single)


# Everywhere: only in `make matrix` ------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("fault", Fault)
def test_C4_C5_C6_each_batch_that_is_struck_anywhere_happens_once(fault: Fault) -> None:
    for passage in passages(BATCHES, Beside.NOTHING):
        single = crash(BATCHES, Beside.NOTHING, passage, fault)
        assert batch_commits(single) == [1, 2, 3], passage


@pytest.mark.matrix
@pytest.mark.parametrize("beside", [each for each in Beside if each is not Beside.NOTHING])
def test_C4_C5_C6_batches_that_are_struck_while_others_commit_happen_once(beside: Beside) -> None:
    """One fault at each point, in turn."""
    faults = tuple(Fault)
    for number, passage in enumerate(passages(BATCHES, beside)):
        fault = faults[(number + number // 4) % len(faults)]
        done = batch_commits(crash(BATCHES, beside, passage, fault))
        assert done == sorted(set(done)), (passage, fault)


@pytest.mark.matrix
@pytest.mark.parametrize("lives", [False, True], ids=["jobs die", "jobs live on"])
@pytest.mark.parametrize(
    "point",
    [Point.PLAN, Point.CLAIM_ATTEMPT, Point.START_JOB, Point.PUT_COMMIT, Point.RECORD_RESULT],
)
def test_C6_a_second_crash_during_the_restart(point: Point, lives: bool) -> None:
    faults = tuple(Fault)
    for first in passages(BATCHES, Beside.NOTHING):
        if first[0] is not point:
            continue
        later = restart_passages(BATCHES, first, jobs_live_on=lives)
        for number, passage in enumerate(later):
            strike = passage, faults[number % len(faults)]
            single = crash(
                BATCHES, Beside.NOTHING, first, Fault.DIE_AFTER, again=strike, jobs_live_on=lives
            )
            assert batch_commits(single) == [1, 2, 3], (first, strike)
