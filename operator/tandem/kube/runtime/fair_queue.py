"""A queue whose turns go round: namespace after namespace, within one store after store, and within
one of these table after table. Pure.

Adding much does not push others back: a namespace with a single item waits for at most one
item of each other namespace, and a store with a single item for at most one of each other store of
its namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

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
