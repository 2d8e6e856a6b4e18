"""Two drivers of one operation on one table, neither of which considers the other alive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from simulator.single import BATCHES, EDITING, MOST_STEPS, Single
from tandem.errors import Reason
from tandem.operations.machine.events import Point
from tandem.operations.session.session import Session


@cache
def steps_of(kind: str) -> int:
    """How many steps an undisturbed run takes."""
    pair = Pair(kind)
    return sum(1 for _ in pair.steps(pair.first))


class Pair:
    """Two sessions, neither of which considers the other alive; rows are appended in between."""

    def __init__(self, kind: str) -> None:
        self.single = Single(kind)
        self.first = self.session()
        # Where there are no deletion vectors, a delete makes rewrites edit their files; but of
        # batches that are not planned yet it would take the files.
        deletes = kind in EDITING and not kind.startswith(BATCHES)
        self._others = ["delete_some_by_rewrite" if deletes else "append"]

    def session(self) -> Session:
        """Another driver starts, and every other process is considered dead."""
        session = self.single.session()
        self.single.world.living.clear()
        return session

    def steps(self, session: Session) -> Iterator[None]:
        """A step of the session, and one of every job, on each iteration."""
        while session.advance():
            self.single.checker.catch_up()
            if session.state.attempt.persisted and self._others:
                self.single.beside(self._others.pop())
            for driver in self.single.world.jobs.running():
                self.single.world.jobs.advance(driver)
            yield

    def take(self, session: Session, count: int) -> None:
        for _, _ in zip(range(count), self.steps(session), strict=False):
            pass

    def until(self, session: Session, point: Point) -> None:
        """It stands still before this point."""
        while session.next_effect is None or session.next_effect.point is not point:
            self.take(session, 1)
            assert session.ending is None, f"it ended before {point}: {session.ending}"

    def run(self, session: Session) -> None:
        self.take(session, MOST_STEPS)
        assert session.ending is not None, f"it hangs at {session.next_effect}"

    def interleave(self, begun: int, done: int) -> None:
        """The first session stands still after `begun` steps, a second one after `done`; the first
        ends before the second goes on."""
        self.take(self.first, begun)
        second = self.session()
        self.take(second, done)
        self.run(self.first)
        self.run(second)
        self.check(self.first, second)

    def check(self, *sessions: Session) -> None:
        """What must be true when both have ended."""
        for session in sessions:
            ending = session.ending
            assert ending is not None, f"it hangs at {session.next_effect}"
            assert ending.reason is Reason.COMMITTED or ending.elsewhere, ending
        # Another run reports the same ending, and does nothing again.
        jobs = len(self.single.world.jobs.drivers)
        ending = self.single.end(jobs_live_on=True)
        assert ending.reason is Reason.COMMITTED, ending
        assert len(self.single.world.jobs.drivers) == jobs
        assert self.single.commits == 1
        assert self.single.world.jobs.running() == []
        assert self.single.world.locks.entries(self.single.table.location) == ()
