"""Which shard each segment of a table belongs to, and which executor holds which shard.

A shard is whole consecutive segments, in the order of their first entries, up to `shard_size` bytes
of facts. Its key is the name of the segment that it was made for, and stays.

- A segment keeps its shard while it lives, however large it grows.
- A new segment joins the last shard if there is room, else a shard is made for it: so one that is
  larger than `shard_size` is a shard of its own.
- A new segment that a living shard is named after joins that shard.
- A shard without segments is dropped.

Pure: the same segments, seen in the same order, give the same shards. Segments are numbers of 64
bits that stand for names: two names of one number share a shard, which is harmless.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.index.entries import UNKNOWN_ROWS, Entries
from tandem.index.window import Chosen, View

# Which executor holds which shard.
#
# The rules are those of CarbonData's index server, where its papers are silent made definite:
#
# - A shard stays where it is while its executor lives, even if it was evicted there.
# - New shards are assigned one by one, the largest first. Each goes to an executor without load,
#   else to the one with the fewest bytes.
# - A size is an estimate of the log until an executor reports the real one.
# - Shards of unknown size go round.
# - Shards of a dead executor are new shards.
#
# The same shards, executors and mapping give the same mapping, in whatever order they are listed.
# Nothing here does I/O, reads a clock, or knows what a shard holds.


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


SHARD_SIZE: Final = 16 << 20
"""Bytes of facts."""

NO_SHARD: Final = -1

_ROW_GROUP: Final = 64 << 20
_COLUMN_BYTES: Final = 40
_FILE_BYTES: Final = 160

_NONE = np.zeros(0, np.int64)


def estimated_bytes(sizes: IntArray, columns: int) -> IntArray:
    """Bytes that the facts of files need, before anything has been read of them.

    Args:
        sizes: of the files, in bytes.
        columns: number of top-level columns.
    """
    groups = 1 + np.maximum(sizes, 0) // _ROW_GROUP
    found: IntArray = _FILE_BYTES + groups * max(columns, 1) * _COLUMN_BYTES
    return found


@dataclass(frozen=True)
class ShardMap:
    """The shards of a table.

    Attributes:
        segments: known ones, ascending.
        numbers: the shard of each.
        keys: the key of each shard by its number, in the order in which they were made. A number
            is never used again.
        named: the shard that is named after a segment.
        made: so many shards have been made.
    """

    segments: IntArray = field(default_factory=lambda: _NONE)
    numbers: IntArray = field(default_factory=lambda: _NONE)
    keys: Mapping[int, str] = field(default_factory=dict)
    named: Mapping[int, int] = field(default_factory=dict)
    made: int = 0

    def of(self, segments: IntArray) -> IntArray:
        """The shard of each segment, `NO_SHARD` where it is not known."""
        at = np.searchsorted(self.segments, segments)
        # An entry more for those beyond the last one.
        known = np.append(self.segments, 0)[at] == segments
        known &= at < len(self.segments)
        return np.where(known, np.append(self.numbers, NO_SHARD)[at], NO_SHARD)

    def only(self, live: IntArray) -> ShardMap:
        """Without segments that do not live, and shards that have none left."""
        keep = np.isin(self.segments, live)
        if keep.all():
            return self
        kept = self._kept(keep)
        return kept.without(set(self.keys) - set(np.unique(kept.numbers).tolist()))

    def without(self, gone: set[int]) -> ShardMap:
        """Without some shards and their segments."""
        if not gone:
            return self
        kept = self._kept(~np.isin(self.numbers, list(gone)))
        return replace(
            kept,
            keys={number: key for number, key in self.keys.items() if number not in gone},
            named={name: number for name, number in self.named.items() if number not in gone},
        )

    def joined(
        self,
        new: IntArray,
        sizes: IntArray,
        held: Mapping[int, int],
        name: Callable[[int], str],
        shard_size: int = SHARD_SIZE,
    ) -> ShardMap:
        """With new segments.

        Args:
            new: segments that have no shard, each once, in the order of their first entries.
            sizes: bytes of each, by estimate.
            held: bytes of each shard that has any.
            name: of `new[at]`.
        """
        numbers, held = np.full(len(new), NO_SHARD), dict(held)
        for at in np.flatnonzero(np.isin(new, list(self.named))).tolist():
            number = self.named[int(new[at])]
            numbers[at], held[number] = number, held.get(number, 0) + int(sizes[at])
        keys, named, made = dict(self.keys), dict(self.named), self.made
        fresh = np.flatnonzero(numbers == NO_SHARD)
        ends = np.cumsum(sizes[fresh])
        last = next(reversed(keys), NO_SHARD)
        room = shard_size - held.get(last, 0) if keys else -1
        at = 0
        while at < len(fresh):
            before = int(ends[at - 1]) if at else 0
            stop = int(np.searchsorted(ends, before + room, "right")) if room >= 0 else at
            if stop > at:
                numbers[fresh[at:stop]] = last
            if stop < len(fresh):
                last, made, place = made, made + 1, int(fresh[stop])
                keys[last], named[int(new[place])] = name(place), last
                numbers[place], room = last, shard_size - int(sizes[place])
            at = stop + 1
        places = np.searchsorted(self.segments, new)
        order = np.argsort(new, kind="stable")
        return ShardMap(
            np.insert(self.segments, places[order], new[order]),
            np.insert(self.numbers, places[order], numbers[order]),
            keys,
            named,
            made,
        )

    def _kept(self, keep: BoolArray) -> ShardMap:
        return replace(self, segments=self.segments[keep], numbers=self.numbers[keep])


# The shards of one table, followed from version to version.
#
# Only names that are new are looked at: of a table of a million files, a commit of twenty costs
# twenty names, and numbers of arrays. A file that is not known yet has no shard: it is answered by
# the log alone.


class Changed(NamedTuple):
    """What a version changed: shards that are gone, and the entries that it added."""

    gone: tuple[Shard, ...]
    added: tuple[Chosen, ...]


@dataclass
class _Part:
    """Of each entry its shard, the bytes of its facts by estimate, and whether the log says enough
    for one; of each segment, by its code, the number that stands for its name."""

    numbers: IntArray
    bytes: IntArray
    known: BoolArray
    segments: IntArray


class _NewSegments(NamedTuple):
    """Segments of a part that have no shard, in the order of their first entries.

    Attributes:
        sizes: bytes of facts.
        codes: of their names, as in `Entries.segments`.
        rows: their live entries; `of_row` is the place of the segment of each.
    """

    segments: IntArray
    sizes: IntArray
    codes: IntArray
    rows: IntArray
    of_row: IntArray

    @classmethod
    def of(cls, entries: Entries, part: _Part, live: BoolArray) -> Self:
        rows = np.flatnonzero(live & (part.numbers == NO_SHARD))
        if not len(rows):
            return cls(rows, rows, rows, rows, rows)
        codes = entries.segments[0][rows]
        found, first, of = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty(len(found), np.int64)
        place[order] = np.arange(len(found))
        of_row = place[of]
        sizes = np.zeros(len(found), np.int64)
        np.add.at(sizes, of_row, part.bytes[rows])
        return cls(part.segments[found[order]], sizes, found[order], rows, of_row)


class TableShards:
    """The shards of a table. Thread-safe.

    Args:
        table_id: of the table in its log.
    """

    def __init__(self, table_id: str, *, shard_size: int = SHARD_SIZE) -> None:
        self.table_id = table_id
        self._shard_size = shard_size
        self._lock = threading.Lock()
        self._map = ShardMap()
        self._parts: WeakKeyDictionary[Entries, _Part] = WeakKeyDictionary()
        self._version = -1
        self._sizes: dict[int, int | None] = {}

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of the newest version, in the order in which they were made."""
        with self._lock:
            return tuple(self._shard(number) for number in self._map.keys)

    def has(self, view: View) -> bool:
        """Whether a version, or a newer one, has been followed."""
        with self._lock:
            return self._has(view)

    def follow(self, view: View) -> Changed:
        """Take the shards of a version; an older one than the newest changes nothing."""
        with self._lock:
            if self._has(view):
                return Changed((), ())
            before, first = self._version, self._version < 0
            columns = len(view.head.schema.fields)
            visible = [part.visible(view.version) for part in view.parts]
            for part in view.parts:
                if part not in self._parts:
                    self._parts[part] = self._looked_up(part, columns)
            held = self._held(view.parts, visible)
            gone = self._drop(set(self._map.keys) - set(held), view.parts)
            if self._join(view.parts, visible, held):
                held = self._held(view.parts, visible)
            self._forget(view.parts, visible)
            self._sizes = self._estimates(view.parts, visible, held)
            self._version = view.version
        if first:
            return Changed(gone, ())
        added = [
            np.flatnonzero(live & (part.born > before))
            for part, live in zip(view.parts, visible, strict=True)
        ]
        return Changed(
            gone,
            tuple(
                Chosen(part, rows, np.zeros(len(rows), bool))
                for part, rows in zip(view.parts, added, strict=True)
                if len(rows)
            ),
        )

    def of(self, chosen: Chosen) -> tuple[IntArray, dict[int, Shard]]:
        """For each of some entries the number of its shard, `NO_SHARD` if it has none; and the
        shards of these numbers."""
        with self._lock:
            part = self._parts.get(chosen.entries)
            if part is None:  # of a version that is not the newest
                return np.full(len(chosen.rows), NO_SHARD), {}
            numbers = part.numbers[chosen.rows]
            there = [number for number in np.unique(numbers).tolist() if number in self._map.keys]
            numbers = np.where(np.isin(numbers, there), numbers, NO_SHARD)
            return numbers, {number: self._shard(number) for number in there}

    def _has(self, view: View) -> bool:
        # A table that was dropped from memory and loaded again has other entries.
        known = all(part in self._parts for part in view.parts)
        return view.version < self._version or (view.version == self._version and known)

    def _shard(self, number: int) -> Shard:
        return Shard(self.table_id, self._map.keys[number], self._sizes.get(number))

    def _looked_up(self, part: Entries, columns: int) -> _Part:
        """By the segments that are known already."""
        codes, names = part.segments
        used = np.unique(codes)
        segments, numbers = np.zeros(len(names), np.int64), np.full(len(names), NO_SHARD)
        texts = names.take(used).to_pylist()
        segments[used] = np.fromiter(map(hash, texts), np.int64, len(texts))
        numbers[used] = self._map.of(segments[used])
        bytes_ = estimated_bytes(part.files["size"].to_numpy(), columns)
        return _Part(numbers[codes], bytes_, part.rows != UNKNOWN_ROWS, segments)

    def _join(
        self, parts: Sequence[Entries], visible: Sequence[BoolArray], held: Mapping[int, int]
    ) -> bool:
        """Give segments that are new a shard. Whether there are any."""
        new = [
            _NewSegments.of(entries, self._parts[entries], live)
            for entries, live in zip(parts, visible, strict=True)
        ]
        # A segment may be in several parts.
        every = np.concatenate([each.segments for each in new])
        if not len(every):
            return False
        found, first, of = np.unique(every, return_index=True, return_inverse=True)
        sizes = np.zeros(len(found), np.int64)
        np.add.at(sizes, of, np.concatenate([each.sizes for each in new]))
        order = np.argsort(first)
        starts = np.cumsum([0, *(len(each.segments) for each in new)])

        def name(at: int) -> str:
            place = int(first[order[at]])
            part = int(np.searchsorted(starts, place, "right")) - 1
            codes = new[part].codes
            return parts[part].segments[1][int(codes[place - starts[part]])]

        self._map = self._map.joined(found[order], sizes[order], held, name, self._shard_size)
        for entries, each in zip(parts, new, strict=True):
            numbers = self._parts[entries].numbers
            numbers[each.rows] = self._map.of(each.segments)[each.of_row]
        return True

    def _drop(self, gone: set[int], parts: Sequence[Entries]) -> tuple[Shard, ...]:
        """Drop shards of which no entry lives."""
        if not gone:
            return ()
        shards = tuple(self._shard(number) for number in sorted(gone))
        self._map = self._map.without(gone)
        for part in (self._parts[entries] for entries in parts):
            part.numbers[np.isin(part.numbers, list(gone))] = NO_SHARD
        return shards

    def _held(self, parts: Sequence[Entries], visible: Sequence[BoolArray]) -> dict[int, int]:
        """The bytes of each shard that has a live entry."""
        count, bytes_ = np.zeros(self._map.made + 1), np.zeros(self._map.made + 1)
        for entries, live in zip(parts, visible, strict=True):
            part = self._parts[entries]
            places = part.numbers - NO_SHARD  # the first place is of those without one
            count += np.bincount(places, live, len(count))
            bytes_ += np.bincount(places, part.bytes * live, len(count))
        return {at + NO_SHARD: int(bytes_[at]) for at in np.flatnonzero(count).tolist() if at}

    def _estimates(
        self, parts: Sequence[Entries], visible: Sequence[BoolArray], held: Mapping[int, int]
    ) -> dict[int, int | None]:
        """The size of each shard; None where the log says too little of one of its files."""
        sizes: dict[int, int | None] = dict(held)
        for entries, live in zip(parts, visible, strict=True):
            part = self._parts[entries]
            for number in np.unique(part.numbers[live & ~part.known]).tolist():
                sizes[number] = None
        return sizes

    def _forget(self, parts: Sequence[Entries], visible: Sequence[BoolArray]) -> None:
        """Forget segments that do not live, once these are most."""
        count = sum(int(live.sum()) for live in visible)
        if len(self._map.segments) <= 2 * count + 1_024:
            return
        live_segments = [
            self._parts[entries].segments[np.unique(entries.segments[0][live])]
            for entries, live in zip(parts, visible, strict=True)
        ]
        self._map = self._map.only(np.concatenate(live_segments))
