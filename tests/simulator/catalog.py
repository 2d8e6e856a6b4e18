"""A simulated table that a catalog manages: other writers of it, what strikes its calls, and what
must always be true of its folder.

A request that its sender has given up may arrive later, or never: `late` has those.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from simulator.invariants import Violation
from support.lake.faults import ProcessDied
from support.lake.memory_catalog import TABLE_ID, CatalogCall, MemoryCatalog
from tandem.delta.actions import CommitInfo, DomainMetadata
from tandem.delta.log import codec
from tandem.delta.log.catalog_log import CatalogLog, staged_name
from tandem.delta.log.commit_log import RatifiedCommit
from tandem.delta.log.listing import LOG, STAGED, commit_path
from tandem.errors import BacklogFull, CommitRefused, OutcomeUnknown
from tandem.operations.machine.events import Event

if TYPE_CHECKING:
    from simulator.world import World

FEATURES = frozenset({"catalogManaged", "vacuumProtocolCheck"})
"""Of readers and writers; writers know in-commit timestamps, too."""
LIMIT = 3
"""So many versions may be unpublished: few, so that it is reached."""


class Struck(StrEnum):
    """What may happen to a call of the catalog."""

    DIE_BEFORE = "dies before"
    DIE_AFTER = "dies after"
    LOSE_REQUEST = "loses the request of"
    LOSE_ANSWER = "loses the answer of"
    LATE = "gives up, before it arrives,"


@dataclass
class SimulatedCatalog:
    """The catalog of the world's table. `publish` is how often other writers publish."""

    world: World
    rng: random.Random
    publish: float = 0.4
    table: MemoryCatalog = field(init=False)
    late: list[Callable[[], None]] = field(default_factory=list)
    _checked: tuple[list[int], int, int] | None = None

    def __post_init__(self) -> None:
        accepts_again = self.rng.random() < 0.5
        self.table = MemoryCatalog(self.world.store, limit=LIMIT, accepts_again=accepts_again)

    def log(self) -> CatalogLog:
        return CatalogLog(self.world.store, self.table, TABLE_ID)

    # Other writers

    def commit(self, version: int, actions: list[Any]) -> None:
        """By a writer that knows how, but for publishing, before which it may die."""
        world = self.world
        before = world.log.snapshot().timestamp_ms
        time = max(world.clock.now_ms(), before + 1)
        body = {"inCommitTimestamp": time, **actions[0].body, "txnId": f"foreign-{version}"}
        content = codec.encode_commit([CommitInfo(body), *actions[1:]])
        name = staged_name(version, f"foreign-{version}")
        world.store.put(f"{STAGED}/{name}", content)
        staged = RatifiedCommit(version, name, len(content), time, time)
        domains = {a.domain: a.configuration for a in actions if isinstance(a, DomainMetadata)}
        try:
            self.table.add_commit(staged, table_id=TABLE_ID, domains=domains)
        except BacklogFull:
            self.log().publish(version - 1)
            self.table.add_commit(staged, table_id=TABLE_ID, domains=domains)
        if self.rng.random() < self.publish:
            self.log().publish(version)

    # What strikes

    def perform(self, strike: Callable[[CatalogCall], None], call: Callable[[], Event]) -> Event:
        """An effect of an operation, of which each call of the catalog is shown to `strike`."""
        self.table.fault = strike
        try:
            return call()
        finally:
            self.table.fault = None

    def strike(self, struck: Struck, call: CatalogCall) -> bool:
        """Whether this can happen now: if so, it raises."""
        after = struck in (Struck.DIE_AFTER, Struck.LOSE_ANSWER)
        if (call.when == "after") is not after:
            return False
        if struck in (Struck.DIE_BEFORE, Struck.DIE_AFTER):
            raise ProcessDied(f"{call.when} {call.name}")
        if struck is Struck.LATE:
            if call.name != "add_commit":
                return False
            self.late.append(call.send)
        raise OutcomeUnknown(f"{call.name} was not answered")

    def arrive(self) -> None:
        """A request of a sender that has given up arrives."""
        send = self.late.pop(self.rng.randrange(len(self.late)))
        before = self.table.latest
        with suppress(CommitRefused, BacklogFull):
            send()
        came = "becomes a version" if self.table.latest > before else "is refused"
        self.world.say(f"  a late request {came}")

    # What must be true

    def content(self, version: int) -> bytes | None:
        """The commit of a version, None if there is none."""
        if version > self.table.latest:
            return None
        found = self.table.versions.get(version)
        path = commit_path(version) if found is None else f"{STAGED}/{found.file_name}"
        return self.world.store.get(path)

    def check(self) -> None:
        """Published are ratified versions only, as they were ratified, and in order."""
        names = (p.removeprefix(f"{LOG}/") for p in self.world.store.paths() if p.startswith(LOG))
        published = [int(name[:20]) for name in names if name[20:] == ".json"]
        now = (published, self.table.latest, self.table.published)
        if now == self._checked:
            return
        self._checked = now
        for version in published:
            if self.world.store.get(commit_path(version)) != self.content(version):
                raise Violation(f"F28: version {version} is published and was not ratified")
        if published and published != list(range(published[0], published[-1] + 1)):
            raise Violation(f"F30: published out of order: {published}")
        if published and published[-1] < self.table.published:
            raise Violation(f"F31: reported and not published: {self.table.published}")
        snapshot = self.world.log.snapshot()
        for domain, configuration in self.table.domains.items():
            if snapshot.domains[domain].configuration != configuration:
                raise Violation(f"the catalog has another {domain}: {configuration}")
