"""Each named point, for each kind of operation: the process dies before it or after it, its
answer is lost, it happens twice. Then the operation is run again. What must hold every time:
it committed exactly once, readers saw nothing in between, and nothing is left behind.
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator.crashing import crash, sample
from simulator.single import (
    CUT,
    EDITING,
    EXCLUSIVE,
    REPLACE_DAY,
    SERIALIZABLE,
    STRADDLING,
    Single,
)
from support.cases import APPENDS, JOBLESS, OTHERS, PLAIN
from support.lake.faults import Call, Fault, StrikeOnce
from support.some import in_turn
from tandem.errors import Reason
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.status import Phase

INTERFERENCE = ("", "append", "delete_with_vectors", "update_by_rewrite")
"""What another writer commits while the operation runs: one of these in each test here, all in
`make matrix` and for planted bugs."""
FAULTS = list(Fault)


@cache
def points(kind: str) -> tuple[Point, ...]:
    """The points that an undisturbed operation passes."""
    single = Single(kind)
    seen: dict[Point, None] = {}

    def note(effect: Effect, call):  # type: ignore[no-untyped-def]
        seen[effect.point] = None
        return call()

    assert single.run(note) is not None
    return tuple(seen)


CASES = [
    (kind, point, fault) for kind in (*PLAIN, *JOBLESS) for point in points(kind) for fault in Fault
]


def interfering(single: Single, what: str, interceptor: Interceptor) -> Interceptor:
    """Commit something foreign once, when the job has been started, or could have been."""
    left = [what] if what else []
    begun = Point.START_JOB if single.job_count else Point.PERSIST_PLAN

    def act(effect: Effect, call):  # type: ignore[no-untyped-def]
        event = interceptor(effect, call)
        if effect.point is begun and left:
            single.beside(left.pop())
        return event

    return act


@pytest.mark.part(3)
@pytest.mark.parametrize(("kind", "point", "fault"), CASES)
def test_C4_C5_C6_crash(kind: str, point: Point, fault: Fault) -> None:
    turn = points(kind).index(point) + FAULTS.index(fault)
    for foreign in in_turn(INTERFERENCE, turn, every=4):
        single = Single(kind)
        strike = StrikeOnce(point, fault)
        ending = single.run(interfering(single, foreign, strike))
        assert strike.struck, f"{point} was not reached"
        if ending is None:
            ending = single.run()
        assert ending is not None
        assert ending.phase is Phase.SUCCEEDED, ending
        assert ending.reason is Reason.COMMITTED
        assert single.commits == 1
        assert ending.result is not None
        assert ending.result.version == single.checker.succeeded[single.operation_id]
        assert single.files_left() == []
        assert single.world.locks.entries(single.table.location) == ()


OTHER_KINDS = (*OTHERS, CUT, *STRADDLING, *APPENDS, SERIALIZABLE, EXCLUSIVE, *EDITING)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_C4_C5_C6_crash_of_the_other_kinds(kind: str) -> None:
    """Every kind, and every point for half of the kinds, one fault each:
    `matrix_crash_points.py` has all of them."""
    struck = 0
    for beside, passage, fault in sample(kind, OTHER_KINDS.index(kind)):
        try:
            crash(kind, beside, passage, fault)
        except BaseException as error:
            error.add_note(f"{kind}, beside {beside.name}: {fault} at {passage}")
            raise
        struck += 1
    assert struck > len(FAULTS)


LIVING_JOB = (
    Point.START_JOB,
    Point.POLL_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.REQUEST_ROUND,
    Point.WRITE_SIDECARS,
    Point.ENTER_COMMIT,
    Point.PUT_COMMIT,
)


@cache
def jobs_needed(kind: str, foreign: str) -> int:
    """How many jobs it takes when no process dies."""
    single = Single(kind)
    assert single.run(interfering(single, foreign, passthrough)) is not None
    return len(single.world.jobs.drivers)


@pytest.mark.part(4)
@pytest.mark.parametrize("fault", [Fault.DIE_BEFORE, Fault.DIE_AFTER])
@pytest.mark.parametrize("point", LIVING_JOB)
@pytest.mark.parametrize("kind", [*PLAIN, SERIALIZABLE, REPLACE_DAY])
def test_jobs_live_on_and_their_work_is_not_done_twice(
    kind: str, point: Point, fault: Fault
) -> None:
    """The operator dies, its Spark applications do not; the next one takes them over."""
    turn = LIVING_JOB.index(point) + FAULTS.index(fault)
    for foreign in in_turn(INTERFERENCE, turn, every=4):
        for nth in (1, 2):
            single = Single(kind)
            strike = StrikeOnce(point, fault, nth)
            ending = single.run(interfering(single, foreign, strike), jobs_live_on=True)
            if ending is None:
                ending = single.run(jobs_live_on=True)
            assert ending is not None
            assert ending.reason is Reason.COMMITTED, ending
            assert len(single.world.jobs.drivers) <= jobs_needed(kind, foreign)
            assert single.commits == 1
            assert single.files_left() == []
            assert single.world.jobs.running() == []
            assert single.world.locks.entries(single.table.location) == ()


@pytest.mark.parametrize("kind", [SERIALIZABLE, *STRADDLING])
def test_a_round_that_was_asked_for_is_waited_for_after_a_restart(kind: str) -> None:
    """The job is at work on its second round when the operator dies."""
    single = Single(kind)
    strike = StrikeOnce(Point.REQUEST_ROUND, Fault.DIE_AFTER)
    assert single.run(interfering(single, "append", strike), jobs_live_on=True) is None
    assert strike.struck
    seen: list[Effect] = []

    def note(effect: Effect, call: Call) -> Event:
        seen.append(effect)
        return call()

    ending = single.run(note, jobs_live_on=True)
    assert ending is not None
    assert ending.attempt == 1
    points_seen = [effect.point for effect in seen]
    begin = points_seen.index(Point.ADOPT_ATTEMPT)
    assert points_seen[begin + 1 : begin + 3] == [Point.ACQUIRE_LOCKS, Point.POLL_JOB]
    assert seen[begin + 2].round == 1
    assert Point.START_JOB not in points_seen
    assert single.commits == 1


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS, CUT, *STRADDLING, *APPENDS])
def test_a_second_run_reports_the_first_result_and_changes_nothing(kind: str) -> None:
    single = Single(kind)
    first = single.run()
    version = single.version
    second = single.run()
    assert first == second
    assert single.version == version


@pytest.mark.parametrize("kind", ["update", "ingest"])
def test_again_is_another_operation(kind: str) -> None:
    single = Single(kind)
    assert single.run() is not None
    session = single.session(again=True)
    assert session.identity.run == 2
    single.checker.batches[session.identity.operation_id] = single.world.new_rows(6)
    single.world.jobs.batches["file:///batches/0.csv"] = single.checker.batches[
        session.identity.operation_id
    ]
    ending = single.drive(session)
    assert ending.reason is Reason.COMMITTED
    # Taken up without being asked for again, and reported.
    assert single.run() == ending


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS, CUT, *STRADDLING, *APPENDS])
def test_Z6_two_processes_of_one_operation_commit_once(kind: str) -> None:
    """Neither knows of the other: each takes the other to be on another host."""
    single = Single(kind)
    first, second = single.session(), single.session()
    single.world.living.clear()
    single.alternate(first, second)
    assert single.commits == 1


def test_Z20_the_outcome_of_a_put_is_looked_up_and_its_files_are_kept() -> None:
    single = Single("compaction")
    strike = StrikeOnce(Point.PUT_COMMIT, Fault.LOSE_ANSWER)
    ending = single.run(strike)
    assert ending is not None
    assert ending.reason is Reason.COMMITTED
    assert Point.LOOK_UP_COMMIT in {effect.point for effect in strike.seen}
