"""`make matrix`: every kind of operation at every point, with every fault; whatever others do
meanwhile, with one fault at each point, in turn (decision 0157; `TANDEM_EVERY_CASE`: with all).

`test_crash_points.py` has the part of it that `make test` can afford.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from simulator.crashing import (
    Beside,
    Passage,
    crash,
    passages,
    restart_passages,
)
from simulator.two_drivers import Pair, steps_of
from simulator.zombies import KINDS, Takeover, job_resumes, job_steps, operator_resumes
from support.lake.faults import Fault
from support.some import every_case, in_turn
from tandem.operations.machine.events import Point

DEATHS = (Fault.DIE_BEFORE, Fault.DIE_AFTER)
RESTART_ONLY = (
    Point.FIND_COMMIT,
    Point.ADOPT_ATTEMPT,
    Point.END_ATTEMPT,
    Point.CLEAN_ATTEMPT,
)


def strikes(among: Sequence[Fault]) -> Iterator[tuple[str, Beside, Passage, Fault]]:
    """Every passage of every operation with each of these faults if nothing happens beside it, and
    with one of them, in turn, whatever else does."""
    for first, kind in enumerate(KINDS):
        for second, beside in enumerate(Beside):
            for number, passage in enumerate(passages(kind, beside), first + second):
                turn = number + number // len(among)
                alone = beside is Beside.NOTHING
                for fault in among if alone else in_turn(among, turn, every=len(among)):
                    yield kind, beside, passage, fault


STRIKE = ("kind", "beside", "passage", "fault")


@pytest.mark.parametrize(STRIKE, list(strikes(tuple(Fault))))
def test_C4_C5_C6_crash_anywhere(kind: str, beside: Beside, passage: Passage, fault: Fault) -> None:
    crash(kind, beside, passage, fault)


@pytest.mark.parametrize(STRIKE, list(strikes(DEATHS)))
def test_C6_crash_anywhere_while_jobs_live_on(
    kind: str, beside: Beside, passage: Passage, fault: Fault
) -> None:
    crash(kind, beside, passage, fault, jobs_live_on=True)


def restart_strikes(kind: str, first: Passage, lives: bool) -> Iterator[tuple[Passage, Fault]]:
    """Every ninth passage of the restart, others after each first crash, and each point that only
    restarts reach; with one of the faults, in turn."""
    begun = passages(kind, Beside.NOTHING).index(first)
    faults = tuple(Fault)
    for number, passage in enumerate(restart_passages(kind, first, jobs_live_on=lives)):
        turn = number // 9 + begun // 9
        if passage[0] in RESTART_ONLY:
            turn = number + begun
        elif not every_case() and number % 9 != begun % 9:
            continue
        for fault in in_turn(faults, turn, every=len(faults)):
            yield passage, fault


@pytest.mark.parametrize("lives", [False, True], ids=["jobs die", "jobs live on"])
@pytest.mark.parametrize(
    ("kind", "first"),
    [(kind, first) for kind in KINDS for first in passages(kind, Beside.NOTHING)],
)
def test_C6_crash_during_the_restart(kind: str, first: Passage, lives: bool) -> None:
    for strike in restart_strikes(kind, first, lives):
        crash(kind, Beside.NOTHING, first, Fault.DIE_AFTER, again=strike, jobs_live_on=lives)


@pytest.mark.parametrize("lives", [False, True], ids=["jobs die", "jobs live on"])
@pytest.mark.parametrize(
    ("kind", "first"),
    [(kind, first) for kind in KINDS for first in passages(kind, Beside.NOTHING)],
)
def test_C6_crash_while_a_suspended_operation_is_stopped(
    kind: str, first: Passage, lives: bool
) -> None:
    faults, begun = tuple(Fault), passages(kind, Beside.NOTHING).index(first)
    later = restart_passages(kind, first, jobs_live_on=lives, suspended=True)
    for number, passage in enumerate(later, begun):
        if passage[0] in (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT):
            for fault in in_turn(faults, number, every=len(faults)):
                strike = passage, fault
                crash(
                    kind, Beside.NOTHING, first, Fault.DIE_AFTER, again=strike,
                    jobs_live_on=lives, suspended=True,
                )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_reaches_every_point_that_only_restarts_have(kind: str) -> None:
    """Else nothing would be tried there."""
    come_by = {
        point
        for first in passages(kind, Beside.NOTHING)
        for point, _ in restart_passages(kind, first, jobs_live_on=False)
    }
    assert come_by >= set(RESTART_ONLY)


@pytest.mark.parametrize("takeover", Takeover)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z14_an_operator_resumes_after_it_was_taken_for_dead(
    kind: str, takeover: Takeover
) -> None:
    for begun in range(steps_of(kind)):
        operator_resumes(kind, begun, takeover)


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z6_a_job_resumes_after_its_attempt_was_abandoned(kind: str, cleaned: bool) -> None:
    for begun in range(job_steps(kind)):
        job_resumes(kind, begun, cleaned=cleaned)


@pytest.mark.parametrize("kind", KINDS)
def test_Z1_a_driver_that_resumes_during_its_successors_work(kind: str) -> None:
    """It ends before the other goes on. Every third pair of points."""
    for begun in range(steps_of(kind)):
        for done in range(begun % 3, steps_of(kind), 3):
            Pair(kind).interleave(begun, done)
