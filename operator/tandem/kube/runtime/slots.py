"""Who goes next: queues in which namespaces and tables take turns, slots of jobs, and slots of
automatic operations.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tandem.errors import Reason
from tandem.kube.client.resources import TABLE_KIND, CachedResource, ResourceCache
from tandem.spec.common import AUTOMATIC_LABEL, ResourceKey
from tandem.spec.replace import TableReplace
from tandem.spec.status import Phase

# A queue whose turns go round: namespace after namespace, within one store after store, and within
# one of these table after table. Pure.
#
# Adding much does not push others back: a namespace with a single item waits for at most one item
# of each other namespace, and a store with a single item for at most one of each other store of
# its namespace.


_T = TypeVar("_T")


class Lane(NamedTuple):
    """Whose work it is. Work of no table has an empty name. `store`: any text that is the same for
    tables of one store."""

    namespace: str = ""
    table: str = ""
    store: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Its store, as seen by its namespace."""
        return self.namespace, self.store


NO_TABLE: Final = Lane()


def _any(*_: object) -> bool:
    return True


class FairQueue(Generic[_T]):
    """Items by lane. Those of one lane stay in their order."""

    def __init__(self) -> None:
        # Dictionaries in the order of turns: the one that was served last is last.
        self._turns: dict[str, dict[str, dict[str, deque[_T]]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Lane, _T]]:
        """In the order of turns; of a lane from its first item on."""
        for namespace, stores in self._turns.items():
            for store, tables in stores.items():
                for table, items in tables.items():
                    for item in items:
                        yield Lane(namespace, table, store), item

    def push(self, lane: Lane, item: _T) -> None:
        """Add an item behind those of its lane. A new lane has its turn after those that wait."""
        tables = self._turns.setdefault(lane.namespace, {}).setdefault(lane.store, {})
        tables.setdefault(lane.table, deque()).append(item)
        self._count += 1

    def pop(
        self,
        namespace_may: Callable[[str], bool] = _any,
        lane_may: Callable[[Lane], bool] = _any,
        store_may: Callable[[str, str], bool] = _any,
    ) -> _T | None:
        """Remove the first item of the first lane that may have one now; None if none may. Its
        namespace, its store (called with the namespace's name and its own) and its lane go to the
        end."""
        for namespace, stores in self._turns.items():
            if not namespace_may(namespace):
                continue
            for store, tables in stores.items():
                if not store_may(namespace, store):
                    continue
                for table, items in tables.items():
                    if lane_may(lane := Lane(namespace, table, store)):
                        return self._serve(lane, items)
        return None

    def _serve(self, lane: Lane, items: deque[_T]) -> _T:
        item = items.popleft()
        self._count -= 1
        stores = self._turns.pop(lane.namespace)
        tables = stores.pop(lane.store)
        del tables[lane.table]
        if items:
            tables[lane.table] = items
        if tables:
            stores[lane.store] = tables
        if stores:
            self._turns[lane.namespace] = stores
        return item

    def remove(self, lane: Lane, item: _T) -> bool:
        """Remove one item; False if it does not wait."""
        items = self._items(lane)
        if item not in items:
            return False
        items.remove(item)
        self._count -= 1
        self._tidy(lane)
        return True

    def take(self, lane: Lane) -> list[_T]:
        """Remove all items of a lane."""
        items = self._items(lane)
        taken = list(items)
        items.clear()
        self._count -= len(taken)
        self._tidy(lane)
        return taken

    def _items(self, lane: Lane) -> deque[_T]:
        return self._turns.get(lane.namespace, {}).get(lane.store, {}).get(lane.table, deque())

    def _tidy(self, lane: Lane) -> None:
        """Keep no lane without items, and nothing without lanes."""
        stores = self._turns.get(lane.namespace, {})
        tables = stores.get(lane.store, {})
        if lane.table in tables and not tables[lane.table]:
            del tables[lane.table]
            if not tables:
                del stores[lane.store]
            if not stores:
                del self._turns[lane.namespace]


# How many jobs may run at once: in all, of a namespace, and of a table. For one event loop.
#
# Those that wait are served in turns (`FairQueue`): many operations of one namespace or table do
# not push back those of others.


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


class Slots(Protocol):
    """Slots for jobs, by the table that they work on: those of this process, or a child's part of
    its operator's."""

    async def take(self, lane: Lane, on_queued: Callable[[str], None] = ...) -> None: ...

    def force(self, lane: Lane) -> None: ...

    def give_back(self, lane: Lane) -> None: ...


class JobSlots:
    """The `Slots` of one operator."""

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

    async def take(self, lane: Lane, on_queued: Callable[[str], None] = lambda _: None) -> None:
        """Wait for a slot, and take it. `on_queued` is called if there is none yet, with the limit
        that is reached, as the end of `waits until fewer than …`."""
        if self.try_take(lane):
            return
        on_queued(self.what_is_full(lane))
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


# Limits how many automatic jobs run at once, over all tables. The table that has waited longest
# goes first. For one event loop.
#
# A child takes its slot when it is created, not when its job starts: one that waited for a slot
# would hold its locks meanwhile. It gives it back by ending, so that nothing is lost at a restart.
# Few drops start a job, and none takes a slot.


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


class OperationSlots(Protocol):
    """Slots for automatic operations: `AutomaticSlots`, or a child's part of them."""

    limit: int

    async def take(self, waiter: object, child: ResourceKey, wake: Callable[[], None]) -> int: ...

    def leave(self, waiter: object) -> None: ...

    def wake_first(self) -> None: ...


_WAITS: Final = frozenset({Reason.WAITING_FOR_DEPENDENCY, Reason.TOO_LARGE})


class AutomaticSlots:
    """`limit` slots; 0 for no limit."""

    def __init__(self, limit: int, cache: ResourceCache) -> None:
        self.limit = limit
        self._cache = cache
        self._waiting: dict[object, _Waiter] = {}  # in the order in which they began to wait
        self._granted: dict[ResourceKey, float] = {}  # not in the cache yet

    async def take(self, waiter: object, child: ResourceKey, wake: Callable[[], None]) -> int:
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
        at_work = {each.key for each in self._cache.all() if self._takes_slot(each)}
        for child, granted_s in list(self._granted.items()):
            if now_s - granted_s > _UNSEEN_S or self._cache.get(child) is not None:
                del self._granted[child]
        return len(at_work | self._granted.keys())

    def _takes_slot(self, each: CachedResource) -> bool:
        """Not with the label alone, which users may set, nor while it waits for its table, perhaps
        for ever: the slots are those of all namespaces."""
        if not (
            each.active
            and each.kind != TableReplace.kind_name
            and each.phase != Phase.SUSPENDED
            and each.reason not in _WAITS
            and any(name == AUTOMATIC_LABEL for name, _ in each.labels)
        ):
            return False
        table = self._cache.get((TABLE_KIND, each.namespace, each.table))
        return table is not None and table.uid == each.owner
