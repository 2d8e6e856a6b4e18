"""Two drivers of one operation at once: an operator that was taken for dead, and its successor.

Each has an owner's nonce of its own, takes the lock entry over when it comes, and loses it when
the other comes back. They share the jobs, as operators in one cluster do. Whichever way they
are interleaved, both come to an end, and the operation happens once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle

import pytest

from simulator.single import KINDS, MOST_STEPS, SERIALIZABLE, Single
from tandem.errors import Reason
from tandem.operations.session import Session

ALL = (*KINDS, SERIALIZABLE)


@cache
def steps_of(kind: str) -> int:
    """How many steps an undisturbed run takes."""
    pair = Pair(kind)
    return sum(1 for _ in pair.steps(pair.first))


class Pair:
    """Two sessions, neither of which takes the other for alive. Somebody appends in between."""

    def __init__(self, kind: str) -> None:
        self.single = Single(kind)
        self.first = self.session()
        self._others = ["append"]

    def session(self) -> Session:
        """Another driver comes, and everybody else is taken for dead."""
        session = self.single.session()
        self.single.world.living.clear()
        return session

    def steps(self, session: Session) -> Iterator[None]:
        """A step of the session, and one of every job, each time that it is asked for."""
        while session.advance():
            self.single.checker.catch_up()
            if session.state.persisted and self._others:
                self.single.foreign(self._others.pop())
            for driver in self.single.world.jobs.running():
                self.single.world.jobs.advance(driver)
            yield

    def take(self, session: Session, count: int) -> None:
        for _, _ in zip(range(count), self.steps(session), strict=False):
            pass

    def run(self, session: Session) -> None:
        self.take(session, MOST_STEPS)
        assert session.ending is not None, f"it hangs at {session.next_effect}"

    def check(self, *sessions: Session) -> None:
        """What must be true when both have ended."""
        for session in sessions:
            ending = session.ending
            assert ending is not None, f"it hangs at {session.next_effect}"
            assert ending.reason is Reason.COMMITTED or ending.elsewhere, ending
        # Whoever looks once more hears how it ended, and nothing is done again.
        jobs = len(self.single.world.jobs.drivers)
        ending = self.single.run(jobs_live_on=True)
        assert ending is not None
        assert ending.reason is Reason.COMMITTED, ending
        assert len(self.single.world.jobs.drivers) == jobs
        assert self.single.commits == 1
        assert self.single.world.jobs.running() == []
        assert self.single.world.locks.entries(self.single.table.location) == ()


@pytest.mark.parametrize("first_goes", [True, False])
@pytest.mark.parametrize("kind", ALL)
def test_Z1_Z6_the_locks_go_to_and_fro_between_two_drivers(kind: str, first_goes: bool) -> None:
    """The second comes after any number of steps; from then on they take turns."""
    for begun in range(steps_of(kind)):
        pair = Pair(kind)
        pair.take(pair.first, begun)
        second = pair.session()
        turns = [pair.first, second] if first_goes else [second, pair.first]
        for _, session in zip(range(MOST_STEPS), cycle(turns), strict=False):
            pair.take(session, 1)
            if pair.first.ending and second.ending:
                break
        pair.check(pair.first, second)


@pytest.mark.parametrize("kind", ALL)
def test_Z1_a_driver_that_comes_back_when_its_successor_has_ended(kind: str) -> None:
    for begun in range(steps_of(kind)):
        pair = Pair(kind)
        pair.take(pair.first, begun)
        pair.single.world.locks.expire(pair.single.table.location, pair.single.operation_id)
        second = pair.session()
        pair.run(second)
        assert second.ending is not None
        assert second.ending.reason is Reason.COMMITTED
        pair.run(pair.first)
        pair.check(pair.first, second)


@pytest.mark.parametrize("kind", ["compaction", SERIALIZABLE])
def test_Z1_a_driver_that_comes_back_in_the_midst_of_its_successors_work(kind: str) -> None:
    """It ends before the other goes on. Every 13th pair of points."""
    for begun in range(steps_of(kind)):
        for done in range(begun % 13, steps_of(kind), 13):
            pair = Pair(kind)
            pair.take(pair.first, begun)
            second = pair.session()
            pair.take(second, done)
            pair.run(pair.first)
            pair.run(second)
            pair.check(pair.first, second)
