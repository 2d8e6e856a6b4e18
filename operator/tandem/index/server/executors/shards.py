"""Which shard each segment of a table belongs to.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tandem.distinct import BoolArray, IntArray

SHARD_SIZE: Final = 16 << 20
"""Bytes of facts (design, section 8)."""

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
