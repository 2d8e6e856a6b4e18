"""Limits how many automatic jobs run at once, over all tables. The table that has waited longest
goes first. For one event loop.

A child takes its slot when it is created, not when its job starts: one that waited for a slot would
hold its locks meanwhile. It gives it back by ending, so that nothing is lost at a restart. Few
drops start a job, and none takes a slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem.kube.client.resource_cache import CachedResource, ResourceCache
from tandem.spec.common import ResourceKey
from tandem.spec.labels import AUTOMATIC_LABEL
from tandem.spec.replace import TableReplace
from tandem.spec.status import Phase

RENEW_S: Final = 15.0
"""How often a waiting table requests its slot again."""
_FORGOTTEN_S: Final = 4 * RENEW_S
"""A table without a request for so long has left the queue: it is gone."""
_UNSEEN_S: Final = 10.0
"""How long a child that was created may take to appear in the cache."""


@dataclass(slots=True)
class _Waiter:
    wake: Callable[[], None]
    requested_s: float


class AutomaticSlots:
    """`limit` slots; 0 for no limit."""

    def __init__(self, limit: int, cache: ResourceCache) -> None:
        self.limit = limit
        self._cache = cache
        self._waiting: dict[object, _Waiter] = {}  # in the order in which they began to wait
        self._granted: dict[ResourceKey, float] = {}  # not in the cache yet

    def take(self, waiter: object, child: ResourceKey, wake: Callable[[], None]) -> int:
        """Take a slot for a child that is to be created.

        Args:
            waiter: keeps its place until it takes a slot, leaves, or sends no more requests.
            wake: called when a slot may be free.

        Returns: 0 if the slot is taken; otherwise its place in the queue, from 1.
        """
        if not self.limit or child[0] == TableReplace.kind_name:
            return 0
        now_s = asyncio.get_running_loop().time()
        for each, other in list(self._waiting.items()):
            if now_s - other.requested_s > _FORGOTTEN_S:
                del self._waiting[each]
        self._waiting.setdefault(waiter, _Waiter(wake, now_s)).requested_s = now_s
        place = list(self._waiting).index(waiter) + 1
        if place > self.limit - self._taken(now_s):
            return place
        del self._waiting[waiter]
        self._granted[child] = now_s
        return 0

    def leave(self, waiter: object) -> None:
        """Leave the queue."""
        self._waiting.pop(waiter, None)

    def wake_first(self) -> None:
        """Wake those for which there is a slot now. To be called when a child may have ended."""
        if self._waiting:
            free = self.limit - self._taken(asyncio.get_running_loop().time())
            for waiter in list(self._waiting.values())[: max(0, free)]:
                waiter.wake()

    def _taken(self, now_s: float) -> int:
        at_work = {each.key for each in self._cache.all() if _takes_slot(each)}
        for child, granted_s in list(self._granted.items()):
            if now_s - granted_s > _UNSEEN_S or self._cache.get(child) is not None:
                del self._granted[child]
        return len(at_work | self._granted.keys())


def _takes_slot(each: CachedResource) -> bool:
    return (
        each.active
        and each.kind != TableReplace.kind_name
        and each.phase != Phase.SUSPENDED
        and any(name == AUTOMATIC_LABEL for name, _ in each.labels)
    )
