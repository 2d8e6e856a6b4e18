"""A queue whose turns go round: namespace after namespace, and within one table after table. Pure.

A namespace that adds much does not push others back: one with a single item waits for at most one
item of each other namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Lane(NamedTuple):
    """Whose work it is. Work of no table has an empty name."""

    namespace: str = ""
    table: str = ""


NO_TABLE: Final = Lane()


def _any(_: object) -> bool:
    return True


class FairQueue(Generic[_T]):
    """Items by lane. Those of one lane stay in their order."""

    def __init__(self) -> None:
        # Dictionaries in the order of turns: the one that was served last is last.
        self._turns: dict[str, dict[str, deque[_T]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Lane, _T]]:
        """In the order of turns; of a lane from its first item on."""
        for namespace, tables in self._turns.items():
            for table, items in tables.items():
                for item in items:
                    yield Lane(namespace, table), item

    def push(self, lane: Lane, item: _T) -> None:
        """Add an item behind those of its lane. A new lane has its turn after those that wait."""
        self._turns.setdefault(lane.namespace, {}).setdefault(lane.table, deque()).append(item)
        self._count += 1

    def pop(
        self,
        namespace_may: Callable[[str], bool] = _any,
        lane_may: Callable[[Lane], bool] = _any,
    ) -> _T | None:
        """Remove the first item of the first lane that may have one now; None if none may. Its
        namespace and its lane go to the end."""
        for namespace, tables in self._turns.items():
            if not namespace_may(namespace):
                continue
            for table, items in tables.items():
                lane = Lane(namespace, table)
                if not lane_may(lane):
                    continue
                item = items.popleft()
                self._count -= 1
                del tables[table]
                if items:
                    tables[table] = items
                del self._turns[namespace]
                if tables:
                    self._turns[namespace] = tables
                return item
        return None

    def remove(self, lane: Lane, item: _T) -> bool:
        """Remove one item; False if it does not wait."""
        items = self._turns.get(lane.namespace, {}).get(lane.table)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._count -= 1
        self._tidy(lane)
        return True

    def take(self, lane: Lane) -> list[_T]:
        """Remove all items of a lane."""
        items = self._turns.get(lane.namespace, {}).get(lane.table, deque())
        taken = list(items)
        items.clear()
        self._count -= len(taken)
        self._tidy(lane)
        return taken

    def _tidy(self, lane: Lane) -> None:
        tables = self._turns.get(lane.namespace, {})
        if lane.table in tables and not tables[lane.table]:
            del tables[lane.table]
            if not tables:
                del self._turns[lane.namespace]
