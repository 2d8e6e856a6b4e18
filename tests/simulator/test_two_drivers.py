"""Two drivers of one operation at once: an operator that was taken for dead, and its successor.

Each has an owner's nonce of its own, takes the lock entry over when it comes, and loses it when
the other comes back. They share the jobs, as operators in one cluster do. Whichever way they
are interleaved, both come to an end, and the operation happens once.
"""

from __future__ import annotations

from itertools import cycle

import pytest

from simulator.single import CUT, EDITING, EXCLUSIVE, MOST_STEPS, SERIALIZABLE, STRADDLING
from simulator.two_drivers import Pair, steps_of
from simulator.zombies import KINDS
from support.cases import APPENDS, ON_LOG, PLAIN
from support.some import few, in_turn
from tandem.errors import Reason

ALL = (*PLAIN, CUT, *ON_LOG, *APPENDS, SERIALIZABLE, EXCLUSIVE, *STRADDLING, *EDITING)


@pytest.mark.part(4)
@pytest.mark.parametrize("first_goes", [True, False])
@pytest.mark.parametrize("kind", ALL)
def test_Z1_Z6_the_locks_alternate_between_two_drivers(kind: str, first_goes: bool) -> None:
    """The second comes after any number of steps; from then on they take turns. Each kind has every
    ninth number here, and a ninth of all numbers with each other kind; all in `make matrix`."""
    for begun in in_turn(range(steps_of(kind)), ALL.index(kind) + first_goes, every=9):
        pair = Pair(kind)
        pair.take(pair.first, begun)
        second = pair.session()
        turns = [pair.first, second] if first_goes else [second, pair.first]
        for _, session in zip(range(MOST_STEPS), cycle(turns), strict=False):
            pair.take(session, 1)
            if pair.first.ending and second.ending:
                break
        pair.check(pair.first, second)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", ALL)
def test_Z1_a_driver_that_resumes_after_its_successors_end(kind: str) -> None:
    for begun in in_turn(range(steps_of(kind)), ALL.index(kind), every=7):
        pair = Pair(kind)
        pair.take(pair.first, begun)
        pair.single.world.locks.expire(pair.single.table.location, pair.single.operation_id)
        second = pair.session()
        pair.run(second)
        assert second.ending is not None
        assert second.ending.reason is Reason.COMMITTED
        pair.run(pair.first)
        pair.check(pair.first, second)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", ["compaction", SERIALIZABLE, EXCLUSIVE])
def test_Z1_a_driver_that_resumes_during_its_successors_work(kind: str) -> None:
    """It ends before the other goes on. Every 37th pair of points, and every 13th in
    `make matrix`."""
    stride = few(37, 13)
    for begun in range(steps_of(kind)):
        for done in range(begun % stride, steps_of(kind), stride):
            Pair(kind).interleave(begun, done)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_a_driver_of_any_kind_that_resumes_during_its_successors_work(kind: str) -> None:
    """Every third pair of points."""
    for begun in range(steps_of(kind)):
        for done in range(begun % 3, steps_of(kind), 3):
            Pair(kind).interleave(begun, done)
