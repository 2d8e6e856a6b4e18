"""Each named point, for each kind of operation: the process dies before it or after it, its
answer is lost, it happens twice. Then the operation is run again. What must hold every time:
it committed exactly once, readers saw nothing in between, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from simulator.crashing import (
    Beside,
    Crowd,
    Passage,
    crash,
    nothing_is_left,
    passages,
    restart_passages,
    sample,
)
from simulator.single import (
    CUT,
    EDITING,
    EXCLUSIVE,
    REPLACE_DAY,
    SERIALIZABLE,
    STRADDLING,
    Single,
)
from simulator.zombies import KINDS
from support.cases import APPENDS, JOBLESS, OTHERS, PLAIN
from support.lake.faults import Call, Fault, StrikeOnce
from support.some import in_turn
from tandem.errors import Reason
from tandem.operations.machine.events import Effect, Event, Point

COMMITS = (Beside.NOTHING, Beside.APPEND, Beside.DELETE, Beside.UPDATE)
"""What another writer commits while the operation runs: one of these in each test here, all in
`make matrix` and for planted bugs."""
FAULTS = list(Fault)


def points(kind: str) -> list[Point]:
    """The points that an undisturbed operation passes."""
    return [point for point, nth in passages(kind, Beside.NOTHING) if nth == 1]


CASES = [
    (kind, point, fault) for kind in (*PLAIN, *JOBLESS) for point in points(kind) for fault in Fault
]


@pytest.mark.part(3)
@pytest.mark.parametrize(("kind", "point", "fault"), CASES)
def test_C4_C5_C6_an_operation_that_is_struck_at_a_point_happens_once(
    kind: str, point: Point, fault: Fault
) -> None:
    turn = points(kind).index(point) + FAULTS.index(fault)
    for beside in in_turn(COMMITS, turn, every=4):
        crash(kind, beside, (point, 1), fault)


OTHER_KINDS = (*OTHERS, CUT, *STRADDLING, *APPENDS, SERIALIZABLE, EXCLUSIVE, *EDITING)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_C4_C5_C6_every_kind_that_is_struck_at_a_point_happens_once(kind: str) -> None:
    """Every kind, and every point for half of the kinds, one fault each."""
    struck = [crash(kind, *each) for each in sample(kind, OTHER_KINDS.index(kind))]
    assert len(struck) > len(FAULTS)


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
def jobs_needed(kind: str, beside: Beside) -> int:
    """How many jobs it takes when no process dies."""
    single = Single(kind)
    single.end(Crowd(single, beside))
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
    for beside in in_turn(COMMITS, turn, every=4):
        for nth in (1, 2):
            single = Single(kind)
            crowd = Crowd(single, beside, StrikeOnce(point, fault, nth))
            ending = single.run(crowd, jobs_live_on=True) or single.end(jobs_live_on=True)
            assert ending.reason is Reason.COMMITTED, ending
            assert len(single.world.jobs.drivers) <= jobs_needed(kind, beside)
            assert single.commits == 1
            nothing_is_left(single)


@pytest.mark.part(4)
@pytest.mark.parametrize("fault", [Fault.DIE_BEFORE, Fault.DIE_AFTER])
@pytest.mark.parametrize("point", LIVING_JOB)
@pytest.mark.parametrize("kind", [*PLAIN, SERIALIZABLE, REPLACE_DAY])
def test_jobs_in_the_process_die_with_it_and_happen_once(
    kind: str, point: Point, fault: Fault
) -> None:
    """What they have said is lost, unless it was stored, since it had taken long."""
    turn = LIVING_JOB.index(point) + FAULTS.index(fault)
    for beside in in_turn(COMMITS, turn, every=4):
        single = Single(kind)
        single.world.holds_jobs = True
        crowd = Crowd(single, beside, StrikeOnce(point, fault))
        ending = single.run(crowd) or single.end()
        assert ending.reason is Reason.COMMITTED, ending
        assert single.commits == 1
        nothing_is_left(single)


@pytest.mark.parametrize("kind", [SERIALIZABLE, *STRADDLING])
def test_a_round_that_was_asked_for_is_waited_for_after_a_restart(kind: str) -> None:
    """The job is at work on its second round when the operator dies."""
    single = Single(kind)
    strike = StrikeOnce(Point.REQUEST_ROUND, Fault.DIE_AFTER)
    single.die(Crowd(single, Beside.APPEND, strike), jobs_live_on=True)
    assert strike.struck
    seen: list[Effect] = []

    def note(effect: Effect, call: Call) -> Event:
        seen.append(effect)
        return call()

    ending = single.end(note, jobs_live_on=True)
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
    single.end()
    session = single.session(again=True)
    assert session.identity.run == 2
    single.checker.batches[session.identity.operation_id] = single.world.new_rows(6)
    single.world.jobs.batches["file:///batches/0.csv"] = single.checker.batches[
        session.identity.operation_id
    ]
    ending = single.succeed(session)
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
    ending = single.end(strike)
    assert ending.reason is Reason.COMMITTED
    assert Point.LOOK_UP_COMMIT in {effect.point for effect in strike.seen}


# Everywhere: only in `make matrix` ------------------------------------------------------------

DEATHS = (Fault.DIE_BEFORE, Fault.DIE_AFTER)
RESTART_ONLY = (
    Point.FIND_COMMIT,
    Point.ADOPT_ATTEMPT,
    Point.END_ATTEMPT,
    Point.CLEAN_ATTEMPT,
)
LIVES = pytest.mark.parametrize("lives", [False, True], ids=["jobs die", "jobs live on"])


@pytest.mark.matrix
@LIVES
@pytest.mark.parametrize("beside", Beside)
@pytest.mark.parametrize("kind", KINDS)
def test_C4_C5_C6_every_kind_that_is_struck_anywhere_happens_once(
    kind: str, beside: Beside, lives: bool
) -> None:
    """Every passage with each fault if nothing happens beside it, and with one of them, in turn,
    whatever else does (decision 0199). Jobs that live on: only deaths."""
    faults = DEATHS if lives else tuple(Fault)
    begin = KINDS.index(kind) + list(Beside).index(beside)
    for number, passage in enumerate(passages(kind, beside), begin):
        turn = faults[(number + number // len(faults)) % len(faults)]
        for fault in faults if beside is Beside.NOTHING else (turn,):
            crash(kind, beside, passage, fault, jobs_live_on=lives)


def restart_strikes(kind: str, first: Passage, lives: bool) -> Iterator[tuple[Passage, Fault]]:
    """Each point that only restarts reach, and every ninth passage of the restart, others after
    each first crash; with one of the faults, in turn."""
    begun = passages(kind, Beside.NOTHING).index(first)
    for number, passage in enumerate(restart_passages(kind, first, jobs_live_on=lives)):
        if passage[0] in RESTART_ONLY:
            yield passage, FAULTS[(number + begun) % len(FAULTS)]
        elif number % 9 == begun % 9:
            yield passage, FAULTS[(number // 9 + begun // 9) % len(FAULTS)]


@pytest.mark.matrix
@LIVES
@pytest.mark.parametrize("kind", KINDS)
def test_C6_crash_during_the_restart(kind: str, lives: bool) -> None:
    for first in passages(kind, Beside.NOTHING):
        for strike in restart_strikes(kind, first, lives):
            crash(kind, Beside.NOTHING, first, Fault.DIE_AFTER, again=strike, jobs_live_on=lives)


@pytest.mark.matrix
@LIVES
@pytest.mark.parametrize("kind", KINDS)
def test_C6_crash_while_a_suspended_operation_is_stopped(kind: str, lives: bool) -> None:
    more = {"jobs_live_on": lives, "suspended": True}
    for begun, first in enumerate(passages(kind, Beside.NOTHING)):
        for number, passage in enumerate(restart_passages(kind, first, **more), begun):
            if passage[0] in (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT):
                again = passage, FAULTS[number % len(FAULTS)]
                crash(kind, Beside.NOTHING, first, Fault.DIE_AFTER, again=again, **more)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_reaches_every_point_that_only_restarts_have(kind: str) -> None:
    """Else nothing would be tried there."""
    come_by = {
        point
        for first in passages(kind, Beside.NOTHING)
        for point, _ in restart_passages(kind, first, jobs_live_on=False)
    }
    assert come_by >= set(RESTART_ONLY)
