"""`make matrix`: a compaction in three batches, every fault at every point of each of them,
whatever others do meanwhile, and again during the restart."""

from __future__ import annotations

import pytest

from simulator.crashing import Beside, crash, passages, restart_passages
from simulator.single import BATCHES
from simulator.test_batches import batch_commits
from support.lake.faults import Fault
from tandem.operations.machine.events import Point


@pytest.mark.parametrize("fault", Fault)
def test_C4_C5_C6_crash_anywhere_in_batches(fault: Fault) -> None:
    for passage in passages(BATCHES, Beside.NOTHING):
        single = crash(BATCHES, Beside.NOTHING, passage, fault)
        assert batch_commits(single) == [1, 2, 3], passage


@pytest.mark.parametrize("beside", [each for each in Beside if each is not Beside.NOTHING])
def test_C4_C5_C6_crash_anywhere_in_batches_while_others_commit(beside: Beside) -> None:
    """One fault at each point, in turn."""
    faults = tuple(Fault)
    for number, passage in enumerate(passages(BATCHES, beside)):
        fault = faults[(number + number // 4) % len(faults)]
        done = batch_commits(crash(BATCHES, beside, passage, fault))
        assert done == sorted(set(done)), (passage, fault)


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
