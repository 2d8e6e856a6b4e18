"""A chain of operators, each killed at a given point, each taking over what the one before
has left.

    chain = Chain(world, operators, ledger, jobs)
    chain.strike(Link("update", Blow(Point.PUT_COMMIT)))
    chain.strike(Link("ingest", Blow(Point.START_JOB, after=True)))
    chain.finish()          # a last one finishes all of it; then rows, locks and files are compared

One process a death, so that a hundred deaths take minutes. The operator of a link is struck at
the first moment at which it reaches its point: on the fresh operation of that link, or on what
was left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kube.gates import GatedQuickJobs
from kube.kube_scenarios import ENDED, Applied, Table, World
from kube.ledger import Ledger
from support.cluster.operator_process import Blow, Child, ProcessStarter
from support.waiting import await_that
from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
from tandem.locks.rules import WHOLE_TABLE, Granted, LockRequest, Mode
from tandem.operations.machine.events import Point

OTHER = "another-owner"
_TRIES = 3


@dataclass(frozen=True)
class Link:
    """One death. `kind` is the fresh operation, "" for none. Of what happens beside it
    (`crowd`): `blocked`, another owner holds the table at first; `append`, a foreign writer commits
    while its job runs; `lost put`, the answer of its commit is lost before."""

    kind: str
    blow: Blow
    crowd: str = ""

    def __str__(self) -> str:
        return " ".join(
            part for part in (self.kind or "recovery", str(self.blow), self.crowd) if part
        )


CROWDED = {
    Point.AWAIT_LOCKS: "blocked",
    Point.LOOK_UP_COMMIT: "lost put",
    Point.REQUEST_ROUND: "append",
}
"""These points need another writer, or a store that loses an answer."""

RECOVERY = {
    Point.FIND_COMMIT: Blow(Point.PUT_COMMIT, after=True),
    Point.ADOPT_ATTEMPT: Blow(Point.READ_RESULT, after=True),
    Point.END_ATTEMPT: Blow(Point.PERSIST_PLAN, after=True),
    Point.CLEAN_ATTEMPT: Blow(Point.PERSIST_PLAN, after=True),
}
"""Only a restart reaches these, so that its predecessor is killed first, there."""

REACHED = tuple(point for point in Point if point is not Point.ABANDON_ATTEMPT)
"""Of all points, those that operations reach which succeed at last, without having been stopped.
At the others, `tests/crash` kills processes."""


def links_for(point: Point, kind: str, **blow: Any) -> Iterator[Link]:
    """What it takes to die at a point."""
    first = RECOVERY.get(point)
    if first is not None:
        yield Link(kind, first)
        yield Link("", Blow(point, **blow))
    else:
        yield Link(kind, Blow(point, **blow), CROWDED.get(point, ""))


@dataclass
class Chain:
    """On one table of a world in which a `dev` with `jobs` runs."""

    world: World
    operators: ProcessStarter
    ledger: Ledger
    jobs: GatedQuickJobs
    applied: list[Applied] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table: Table = self.world.adopt(self.ledger.lake, wait=False)

    def strike(self, link: Link) -> bool:
        """Start an operator that dies so. Fails if it does not come to that, but for a mere
        recovery, which may have had another way: then it is False."""
        try:
            return self._strike(link)
        except AssertionError as error:
            raise AssertionError(f"{link}: {error}\n{self.world.story()}") from error

    def _strike(self, link: Link) -> bool:
        lost = not link.blow.signal
        blows: tuple[Blow, ...] = (link.blow,)
        if link.crowd == "lost put":
            blows = (Blow(Point.PUT_COMMIT, after=True, signal=0), *blows)
        child = self._start(blows)
        with self._another_owner_holds_the_table(link.crowd == "blocked") as release:
            gate = self.jobs.hold("statement") if link.crowd == "append" else None
            fresh = self._apply(link)
            if gate is not None:
                # Unless it is struck by then, on what was left to it.
                await_that(lambda: gate.is_reached or not child.alive, child.text)
                self.ledger.append()
                gate.go()
            if link.crowd == "blocked" and fresh is not None:
                await_that(
                    lambda: "WaitingForLock" in str(fresh.status) or not child.alive,
                    lambda: f"{link}: {fresh.status}",
                )
            release()
        if fresh is None:
            await_that(lambda: not child.alive or self._all_ended(), child.text)
            if child.alive:
                child.stop()
                return False
        if lost:
            assert fresh is not None
            fresh.reaches("Succeeded", "Superseded")
            child.stop()
        else:
            assert child.ended() == -link.blow.signal, f"{link}\n{child.text()}"
        self.struck.append(str(link))
        return True

    def strike_all(self, links: Sequence[Link]) -> None:
        """What it takes for one death, again if the last step was missed: an operator killed
        right after its put may have lost the race for it."""
        for _ in range(_TRIES):
            if all(self.strike(link) for link in links):
                return
        raise AssertionError(f"missed {_TRIES} times: {links[-1]}")

    def _all_ended(self) -> bool:
        return all(applied.phase in ENDED for applied in self.applied)

    def finish(self, limit_s: float = 60.0) -> None:
        """Let a last operator live. Everything must have happened, once, and left nothing."""
        child = self._start(())
        for applied in self.applied:
            applied.reaches("Succeeded", "Superseded", limit_s=limit_s)
        self.ledger.assert_serial()
        self.world.assert_nothing_left_behind(self.table)
        child.stop()
        assert not self.world.etcd.locks()

    def _start(self, blows: tuple[Blow, ...]) -> Child:
        # Of the same pod as the one before, which it therefore takes for dead at once.
        child = self.operators.start(self.world.order(blows=blows))
        with suppress(AssertionError):
            # It may die before it can say that it is ready.
            child.ready()
        return child

    def _apply(self, link: Link) -> Applied | None:
        if not link.kind:
            return None
        if link.kind == "compaction":
            self.ledger.append()  # so that there is something to compact
        spec = {"isolation": "Serializable"} if link.crowd == "append" else {}
        made = self.table.apply(self.ledger.make(link.kind, backoffLimit=50, **spec))
        self.applied.append(made)
        return made

    @contextmanager
    def _another_owner_holds_the_table(self, really: bool) -> Iterator[Any]:
        if not really:
            yield lambda: None
            return
        locks = EtcdLocks(EtcdSettings(endpoints=self.world.endpoints, prefix=self.world.prefix))
        location = self.ledger.lake.store.location
        request = LockRequest(location, OTHER, Mode.EXCLUSIVE, WHOLE_TABLE, OTHER, 100)
        # What was killed inside its commit keeps its locks until it is taken over.
        await_that(lambda: isinstance(locks.acquire(request), Granted), "the table stays locked")
        try:
            yield lambda: locks.release(location, OTHER, OTHER)
        finally:
            locks.close()
