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
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    removed (`without`) before it joins again: it holds nothing.
    """

    slot: int
    id: str


class Load(NamedTuple):
    """What an executor has to hold. Shards of unknown size count as 0 bytes."""

    shards: int
    bytes: int


class Routes(NamedTuple):
    """Where to send a request. `unassigned` are shards for which there is no executor."""

    by_executor: Mapping[Executor, tuple[Shard, ...]]
    unassigned: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class ShardMapping:
    """The live executors, and which of them holds which shard.

    Args:
        executors: those that live, in the order of their slots.
        owners: the executor of each assigned shard; always one of `executors`.
        sizes: bytes of each shard where they are known, also while it has no executor.
        reported: the shards whose size is what an executor found them to need, also after that
            executor died; all other sizes are estimates.
        turn: the executor that got the last shard of unknown size; it may be dead.
    """

    executors: tuple[Executor, ...] = ()
    owners: Mapping[Shard, Executor] = field(default_factory=dict)
    sizes: Mapping[Shard, int] = field(default_factory=dict)
    reported: frozenset[Shard] = frozenset()
    turn: Executor | None = None

    def loads(self) -> dict[Executor, Load]:
        """The load of each live executor, in the order of slots."""
        shards = dict.fromkeys(self.executors, 0)
        sizes = dict.fromkeys(self.executors, 0)
        for shard, executor in self.owners.items():
            shards[executor] += 1
            sizes[executor] += self.sizes.get(shard, 0)
        return {each: Load(shards[each], sizes[each]) for each in self.executors}

    def shards_of(self, executor: Executor) -> tuple[Shard, ...]:
        """The shards of an executor, sorted."""
        mine = [shard for shard, owner in self.owners.items() if owner == executor]
        return tuple(sorted(mine, key=_NAME))


def assign(
    shards: Iterable[Shard], executors: Iterable[Executor], mapping: ShardMapping
) -> ShardMapping:
    """Give each of `shards` an executor, if any lives (I-47, I-48).

    Only shards that have none get one, and only those named: a request that is restricted to some
    segments names their shards. Whatever an executor holds that is not among `executors` loses it
    (I-49), named or not. The estimates of the named shards become those given here, unless an
    executor has reported the size.
    """
    asked = tuple(shards)
    now = _among(tuple(sorted(set(executors))), mapping)
    estimates = {
        shard: int(shard.size)  # see `_checked`
        for shard in asked
        if shard.size is not None
        and now.sizes.get(shard) != shard.size
        and shard not in now.reported
    }
    if estimates:
        now = replace(now, sizes={**now.sizes, **estimates})
    new = dict.fromkeys(shard for shard in asked if shard not in now.owners)
    return _placed(new, now) if new and now.executors else now


def report(mapping: ShardMapping, executor: Executor, sizes: Mapping[Shard, int]) -> ShardMapping:
    """Replace the estimates by the bytes that an executor found its shards to need.

    No shard moves. One that is not in the report keeps its size: it was evicted, and will be
    loaded again where it was. A shard of another executor is ignored: the report was late.

    Raises: ValueError for a negative size.
    """
    found = {
        shard: _checked(shard, size)
        for shard, size in sizes.items()
        if mapping.owners.get(shard) == executor
    }
    reported = mapping.reported.union(found)
    return replace(mapping, sizes={**mapping.sizes, **found}, reported=reported)


def joined(mapping: ShardMapping, executor: Executor) -> ShardMapping:
    """Add an executor. It is without load; one that is there already stays as it is."""
    return _among(tuple(sorted({*mapping.executors, executor})), mapping)


def without(mapping: ShardMapping, executor: Executor) -> ShardMapping:
    """Remove an executor. Its shards have none until they are assigned again."""
    return _among(tuple(e for e in mapping.executors if e != executor), mapping)


def without_table(mapping: ShardMapping, table: str) -> ShardMapping:
    """Forget all shards of a table: it was dropped, or its log was replaced."""
    known = (*mapping.owners, *mapping.sizes)
    return without_shards(mapping, {shard for shard in known if shard.table == table})


def without_shards(mapping: ShardMapping, shards: Collection[Shard]) -> ShardMapping:
    """Forget shards that are no longer there: their segments were compacted or removed."""
    gone = frozenset(shards)
    return replace(
        mapping,
        owners={shard: owner for shard, owner in mapping.owners.items() if shard not in gone},
        sizes={shard: size for shard, size in mapping.sizes.items() if shard not in gone},
        reported=mapping.reported - gone,
    )


def routes(shards: Iterable[Shard], mapping: ShardMapping) -> Routes:
    """Which of `shards` to ask of which executor, each once, both in the order of `shards`."""
    found: dict[Executor, list[Shard]] = defaultdict(list)
    unassigned: list[Shard] = []
    for shard in dict.fromkeys(shards):
        executor = mapping.owners.get(shard)
        (unassigned if executor is None else found[executor]).append(shard)
    return Routes({executor: tuple(each) for executor, each in found.items()}, tuple(unassigned))


def _among(executors: tuple[Executor, ...], mapping: ShardMapping) -> ShardMapping:
    """The mapping with these executors, which are sorted. What others held has no executor."""
    if executors == mapping.executors:
        return mapping
    live = frozenset(executors)
    owners = {shard: owner for shard, owner in mapping.owners.items() if owner in live}
    return replace(mapping, executors=executors, owners=owners)


def _placed(new: Collection[Shard], now: ShardMapping) -> ShardMapping:
    """Give each of `new`, which have no executor, one of the executors, of which there is one.

    Those of unknown size come last. Each goes to an executor without load, else to the next one
    after that which got the last of them.
    """
    owners = dict(now.owners)
    sizes = [(shard, now.sizes.get(shard)) for shard in new]
    known = [(-size, each.table, each.key, each) for each, size in sizes if size is not None]
    known.sort()
    heap = [(load.shards > 0, load.bytes, executor) for executor, load in now.loads().items()]
    heapq.heapify(heap)
    for negative, _, _, shard in known:
        _, load, executor = heap[0]
        owners[shard] = executor
        heapq.heapreplace(heap, (True, load - negative, executor))
    idle = iter(sorted(executor for loaded, _, executor in heap if not loaded))
    turn = now.turn
    unknown = [shard for shard, size in sizes if size is None]
    for shard in sorted(unknown, key=_NAME):
        turn = next(idle, None) or _after(turn, now.executors)
        owners[shard] = turn
    return replace(now, owners=owners, turn=turn)


def _after(executor: Executor | None, executors: tuple[Executor, ...]) -> Executor:
    """The next one in the order of slots, which begins again after the last."""
    at = 0 if executor is None else bisect_right(executors, executor)
    return executors[at % len(executors)]


def _checked(shard: Shard, size: int) -> int:
    # Sizes may come as integers of NumPy: their sums would overflow.
    if size < 0:
        raise ValueError(f"shard {shard.key} of table {shard.table}: {size} bytes, expected >= 0")
    return int(size)


class Assignments:
    """The current mapping of a coordinator. Thread-safe: of two askers one decides (X14)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ShardMapping()

    @property
    def now(self) -> ShardMapping:
        return self._now

    def route(self, shards: Collection[Shard]) -> Routes:
        """Assign what has no executor, and say where all of `shards` are. No executor that was
        removed before the call is in the answer."""
        return routes(shards, self._change(lambda now: assign(shards, now.executors, now)))

    def report(self, executor: Executor, sizes: Mapping[Shard, int]) -> None:
        """See `report`."""
        self._change(lambda now: report(now, executor, sizes))

    def join(self, executor: Executor) -> None:
        """See `joined`."""
        self._change(lambda now: joined(now, executor))

    def remove(self, executor: Executor) -> tuple[Shard, ...]:
        """See `without`. Returns: the shards it had, so that others can load them before the next
        request."""
        lost: list[Shard] = []

        def change(now: ShardMapping) -> ShardMapping:
            lost.extend(now.shards_of(executor))
            return without(now, executor)

        self._change(change)
        return tuple(lost)

    def drop_table(self, table: str) -> None:
        """See `without_table`."""
        self._change(lambda now: without_table(now, table))

    def drop_shards(self, shards: Collection[Shard]) -> None:
        """See `without_shards`."""
        self._change(lambda now: without_shards(now, shards))

    def _change(self, change: Callable[[ShardMapping], ShardMapping]) -> ShardMapping:
        with self._lock:
            self._now = change(self._now)
            return self._now
