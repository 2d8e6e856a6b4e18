"""Which executor of the index server holds which shard.

The rules are those of CarbonData's index server, where its papers are silent made definite:

- A shard stays where it is while its executor lives, even if it was evicted there.
- New shards are assigned one by one, the largest first. Each goes to an executor without load,
  else to the one with the fewest bytes.
- A size is an estimate of the log until an executor reports the real one.
- Shards of unknown size go round.
- Shards of a dead executor are new shards.

The same shards, executors and mapping give the same mapping, in whatever order they are listed.
Nothing here does I/O, reads a clock, or knows what a shard holds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Whole consecutive segments of a table: what is assigned, loaded and evicted as one.

    Two shards are the same if they have the same table and key, whatever their sizes.

    Args:
        table: the id of the table in its log, never its name: a table of the same name is another.
        key: the name of the shard within its table. It must not change when segments join the
            shard at its end, or all of the shard moves: the name of its first segment will do.
        size: bytes that the shard is estimated to need; None if nothing is known about it, which
            is not the same as 0.

    Raises: ValueError for a negative size.
    """

    table: str
    key: str
    size: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.size is not None:
            _checked(self, self.size)


_NAME = attrgetter("table", "key")
"""Sorts many shards faster than their own order does."""


class Executor(NamedTuple):
    """A process that holds shards. Executors are in the order of their slots.

    `id` is opaque: it is compared, never parsed. A process that restarts has another id, or it is
    removed before it joins again: it holds nothing.
    """

    slot: int
    id: str


class Load(NamedTuple):
    """What an executor has to hold. Shards of unknown size count as 0 bytes."""

    shards: int
    bytes: int


@dataclass
class ShardMapping:
    """The live executors, and which of them holds which shard.

    Attributes:
        executors: those that live, in the order of their slots.
        owners: the executor of each assigned shard; always one of `executors`.
        sizes: bytes of each shard where they are known, also while it has no executor.
        reported: the shards whose size is what an executor found them to need, also after that
            executor died; all other sizes are estimates.
        turn: the executor that got the last shard of unknown size; it may be dead.
    """

    executors: list[Executor] = field(default_factory=list)
    owners: dict[Shard, Executor] = field(default_factory=dict)
    sizes: dict[Shard, int] = field(default_factory=dict)
    reported: set[Shard] = field(default_factory=set)
    turn: Executor | None = None

    def loads(self) -> dict[Executor, Load]:
        """The load of each live executor, in the order of slots."""
        shards = dict.fromkeys(self.executors, 0)
        sizes = dict.fromkeys(self.executors, 0)
        for shard, executor in self.owners.items():
            shards[executor] += 1
            sizes[executor] += self.sizes.get(shard, 0)
        return {each: Load(shards[each], sizes[each]) for each in self.executors}

    def shards_of(self, executor: Executor) -> list[Shard]:
        """The shards of an executor, sorted."""
        mine = [shard for shard, owner in self.owners.items() if owner == executor]
        return sorted(mine, key=_NAME)

    def route(self, shards: Iterable[Shard]) -> dict[Executor, list[Shard]]:
        """Give each of `shards` an executor, if any lives (I-47, I-48). Returns which of them to
        ask of which executor, each once, both in the order of `shards`.

        Only shards that have none get one, and only those named: a request that is restricted to
        some segments names their shards. Their estimates become those given here, unless an
        executor has reported the size.
        """
        asked = tuple(shards)
        for shard in asked:
            if shard.size is not None and shard not in self.reported:
                self.sizes[shard] = int(shard.size)  # see `_checked`
        new = dict.fromkeys(shard for shard in asked if shard not in self.owners)
        if new and self.executors:
            self._place(new)
        found: dict[Executor, list[Shard]] = {}
        for shard in dict.fromkeys(asked):
            if shard in self.owners:
                found.setdefault(self.owners[shard], []).append(shard)
        return found

    def report(self, executor: Executor, sizes: Mapping[Shard, int]) -> None:
        """Replace the estimates by the bytes that an executor found its shards to need.

        No shard moves. One that is not in the report keeps its size: it was evicted, and will be
        loaded again where it was. A shard of another executor is ignored: the report was late.

        Raises: ValueError for a negative size.
        """
        for shard, size in sizes.items():
            if self.owners.get(shard) == executor:
                self.sizes[shard] = _checked(shard, size)
                self.reported.add(shard)

    def join(self, executor: Executor) -> None:
        """Add an executor. It is without load; one that is there already stays as it is."""
        if executor not in self.executors:
            insort(self.executors, executor)

    def remove(self, executor: Executor) -> list[Shard]:
        """Remove an executor. Its shards, which are returned, have none until they are routed
        again (I-49)."""
        lost = self.shards_of(executor)
        if executor in self.executors:
            self.executors.remove(executor)
        for shard in lost:
            del self.owners[shard]
        return lost

    def drop(self, table: str, keys: Collection[str] = ()) -> None:
        """Forget shards of a table, whose segments were compacted or removed; all of them by
        default: it was dropped, or its log was replaced."""
        for shard in [*self.owners, *self.sizes]:
            if shard.table == table and (not keys or shard.key in keys):
                self.owners.pop(shard, None)
                self.sizes.pop(shard, None)
                self.reported.discard(shard)

    def _place(self, new: Collection[Shard]) -> None:
        """Give each of `new`, which have no executor, one of the executors, of which there is one.

        Those of unknown size come last. Each goes to an executor without load, else to the next one
        after that which got the last of them.
        """
        sizes = [(shard, self.sizes.get(shard)) for shard in new]
        known = [(-size, each.table, each.key, each) for each, size in sizes if size is not None]
        known.sort()
        heap = [(load.shards > 0, load.bytes, executor) for executor, load in self.loads().items()]
        heapq.heapify(heap)
        for negative, _, _, shard in known:
            _, load, executor = heap[0]
            self.owners[shard] = executor
            heapq.heapreplace(heap, (True, load - negative, executor))
        idle = iter(sorted(executor for loaded, _, executor in heap if not loaded))
        unknown = [shard for shard, size in sizes if size is None]
        for shard in sorted(unknown, key=_NAME):
            self.turn = next(idle, None) or self._next()
            self.owners[shard] = self.turn

    def _next(self) -> Executor:
        """The one whose turn is next in the order of slots, which begins again after the last."""
        at = 0 if self.turn is None else bisect_right(self.executors, self.turn)
        return self.executors[at % len(self.executors)]


def _checked(shard: Shard, size: int) -> int:
    # Sizes may come as integers of NumPy: their sums would overflow.
    if size < 0:
        raise ValueError(f"shard {shard.key} of table {shard.table}: {size} bytes, expected >= 0")
    return int(size)
