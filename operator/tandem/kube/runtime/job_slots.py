"""How many jobs may run at once: in all, of a namespace, and of a table. For one event loop.

Those that wait are served in turns (`fair_queue`): many operations of one namespace or table do not
push back those of others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from tandem.kube.runtime.fair_queue import FairQueue, Lane


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The most jobs at once; 0 for no limit."""

    total: int = 0
    per_namespace: int = 0
    per_table: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    lane: Lane
    granted: asyncio.Future[None]


class JobSlots:
    """Slots for jobs, by the table that they work on."""

    def __init__(self, limits: JobLimits) -> None:
        self.limits = limits
        self._taken = 0
        self._by_namespace: Counter[str] = Counter()
        self._by_table: Counter[Lane] = Counter()
        self._waiting: FairQueue[_Turn] = FairQueue()

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        """How many operations wait for a slot."""
        return sum(not turn.granted.done() for _, turn in self._waiting)

    def what_is_full(self, lane: Lane) -> str:
        """Which limit is reached, as the end of `waits until fewer than …`; empty if none is."""
        limits = self.limits
        if not self._has_room():
            return f"{limits.total} jobs run"
        if not self._namespace_has_room(lane.namespace):
            return f"{limits.per_namespace} jobs of the namespace run"
        if not self._table_has_room(lane):
            return f"{limits.per_table} jobs of the table run"
        return ""

    def try_take(self, lane: Lane) -> bool:
        """Take a slot if one is free. Then those that wait, wait for their own share."""
        if self.what_is_full(lane):
            return False
        self.force(lane)
        return True

    def force(self, lane: Lane) -> None:
        """Take a slot for a job that runs already, even if none is free."""
        self._taken += 1
        self._by_namespace[lane.namespace] += 1
        self._by_table[lane] += 1

    async def take(self, lane: Lane) -> None:
        """Wait for a slot, and take it."""
        if self.try_take(lane):
            return
        turn = _Turn(lane, asyncio.get_running_loop().create_future())
        self._waiting.push(lane, turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn.granted.done() and not turn.granted.cancelled():
                self.give_back(lane)
            else:
                self._waiting.remove(lane, turn)  # unless `give_back` has passed it over
            raise

    def give_back(self, lane: Lane) -> None:
        """Give a slot back; those that it is enough for take theirs."""
        self._taken -= 1
        self._by_namespace -= Counter((lane.namespace,))
        self._by_table -= Counter((lane,))
        while self._has_room():
            turn = self._waiting.pop(self._namespace_has_room, self._table_has_room)
            if turn is None:
                return
            if not turn.granted.done():
                self.force(turn.lane)
                turn.granted.set_result(None)

    def _has_room(self) -> bool:
        return not self.limits.total or self._taken < self.limits.total

    def _namespace_has_room(self, namespace: str) -> bool:
        most = self.limits.per_namespace
        return not most or self._by_namespace[namespace] < most

    def _table_has_room(self, lane: Lane) -> bool:
        most = self.limits.per_table
        return not most or self._by_table[lane] < most
