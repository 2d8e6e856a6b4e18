"""What is visible when: an index of live parts over time, kept from commit to commit.

To list and sort all segments again after each commit costs seconds in a large table. This index
changes with the commit: `apply` takes the parts that it added and removed, and returns the chunks
that changed. Only for these does a plan have to decide again.

A part is whatever the caller names: a segment or a file. Where masks hide some of its moments, it
has several pieces, one for each interval that is left. A *chunk* is an interval that pieces have:
in a table without masks a time chunk, or several of them that one file spans.

Chunks are in buckets of time, and a bucket that holds too many of them splits into sixteen (the
"tree approach" of the Druid analysis). A chunk that is longer than one of the sixteen stays in
the wide bucket, so that it is not copied into all of the narrow ones, and any other is in two at
most. No answer depends on where buckets have split.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tandem.intervals import ALWAYS, IntervalSet, TimeInterval

_WIDEST = 36
"""The widest bucket covers 2^36 ms, or 2.2 years. Longer chunks are few; each lookup sees them."""
_STEP = 4
"""A bucket splits into 2^4."""
_MOST = 24
"""Chunks of a bucket before it splits."""


class Piece(NamedTuple):
    """An interval in which nothing hides a part. Ordered by time, then by name."""

    start_ms: int
    end_ms: int
    part: str

    @property
    def interval(self) -> TimeInterval:
        return TimeInterval(self.start_ms, self.end_ms)


_Span = tuple[int, int]
_Pieces = dict[str, Piece]


class TimelineIndex:
    """Parts and the intervals in which they are visible. Not safe for several threads.

    A part whose times are unknown is visible `ALWAYS`: lookups of any interval return it, but it
    closes no hole.
    """

    __slots__ = ("_buckets", "_chunks", "_long", "_parts")

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Piece, ...]] = {}
        self._chunks: dict[_Span, _Pieces] = {}
        self._buckets: dict[int, _Bucket] = {}
        self._long: dict[_Span, _Pieces] = {}

    def apply(
        self, adds: Mapping[str, IntervalSet], removes: Iterable[str] = ()
    ) -> tuple[TimeInterval, ...]:
        """Follow one commit, or several.

        Args:
            adds: new parts, and parts of which a commit masked some moments or changed the
                content, with the intervals in which they are visible now; none if a mask hides
                all of it.
            removes: parts that are gone. Those that the index does not have are ignored, and those
                that are in `adds`, too, are replaced.

        Returns: the chunks that gained, lost or replaced a piece, ascending.
        """
        changed: set[_Span] = set()
        for name in removes:
            self._take(name, changed)
        for name, visible in adds.items():
            self._take(name, changed)
            self._put(name, visible, changed)
        return tuple(TimeInterval(*span) for span in sorted(changed))

    def lookup(self, interval: TimeInterval) -> tuple[Piece, ...]:
        """The pieces that have a moment in common with an interval, whole, in order: a part has
        several if a mask lies between them."""
        start, end = interval.start_ms, interval.end_ms
        if start >= end:
            return ()
        found: list[Piece] = []
        for span, pieces in self._long.items():
            if span[0] < end and span[1] > start:
                found.extend(pieces.values())
        todo = _meeting(self._buckets, start, end - 1, _WIDEST)
        while todo:
            bucket = todo.pop()
            low = bucket.start
            for (first, last), pieces in bucket.chunks.items():
                # A chunk in two buckets is found in the first of them that the interval meets.
                if first < end and last > start and (first >= low or start >= low):
                    found.extend(pieces.values())
            if bucket.children:
                first = start if start > low else low
                last = end if end < bucket.end else bucket.end
                todo += _meeting(bucket.children, first, last - 1, bucket.shift - _STEP)
        if len(found) > 1:
            found.sort()
        return tuple(found)

    def holes(self) -> tuple[TimeInterval, ...]:
        """The intervals between the first and the last moment of the table in which nothing is
        visible, ascending. Takes time in proportion to the number of chunks."""
        spans = np.array([span for span in self._chunks if span != _ALWAYS], np.int64)
        if not len(spans):
            return ()
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        ends = np.maximum.accumulate(spans[:, 1])[:-1]
        starts = spans[1:, 0]
        holes = starts > ends
        return tuple(map(TimeInterval, ends[holes].tolist(), starts[holes].tolist()))

    def pieces_of(self, name: str) -> tuple[Piece, ...]:
        """The pieces of a part, in order. Raises: KeyError."""
        return self._parts[name]

    def parts_of(self, chunk: TimeInterval) -> Collection[str]:
        """The parts that have this very chunk; none if there is no such chunk."""
        return self._chunks.get((chunk.start_ms, chunk.end_ms), {}).keys()

    @property
    def chunks(self) -> Collection[TimeInterval]:
        """All chunks, in no particular order."""
        return [TimeInterval(*span) for span in self._chunks]

    @property
    def hull(self) -> TimeInterval | None:
        """From the first moment of the table to the last; None if no part has a known time."""
        spans = [span for span in self._chunks if span != _ALWAYS]
        if not spans:
            return None
        return TimeInterval(min(start for start, _ in spans), max(end for _, end in spans))

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        """The number of parts, with those that are hidden."""
        return len(self._parts)

    def _put(self, name: str, visible: IntervalSet, changed: set[_Span]) -> None:
        pieces = tuple(Piece(each.start_ms, each.end_ms, name) for each in visible.pieces)
        self._parts[name] = pieces
        for piece in pieces:
            span = piece[:2]
            changed.add(span)
            chunk = self._chunks.get(span)
            if chunk is None:
                chunk = self._chunks[span] = {}
                self._insert(span, chunk)
            chunk[name] = piece

    def _take(self, name: str, changed: set[_Span]) -> None:
        for piece in self._parts.pop(name, ()):
            span = piece[:2]
            changed.add(span)
            chunk = self._chunks[span]
            del chunk[name]
            if not chunk:
                del self._chunks[span]
                self._delete(span)

    def _insert(self, span: _Span, chunk: _Pieces) -> None:
        start, end = span
        if end - start > 1 << _WIDEST:
            self._long[span] = chunk
            return
        for number in range(start >> _WIDEST, (end - 1 >> _WIDEST) + 1):
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = _Bucket(number, _WIDEST)
            bucket.insert(span, chunk)

    def _delete(self, span: _Span) -> None:
        start, end = span
        if end - start > 1 << _WIDEST:
            del self._long[span]
            return
        for number in range(start >> _WIDEST, (end - 1 >> _WIDEST) + 1):
            if self._buckets[number].delete(span):
                del self._buckets[number]


class _Bucket:
    """Chunks that meet an interval of 2^`shift` ms. Until it splits, all of them are in `chunks`;
    afterwards those that are longer than a child, and the others are in `children`."""

    __slots__ = ("children", "chunks", "end", "shift", "start")

    def __init__(self, number: int, shift: int) -> None:
        self.shift = shift
        self.start, self.end = number << shift, number + 1 << shift
        self.chunks: dict[_Span, _Pieces] = {}
        self.children: dict[int, _Bucket] | None = None

    def insert(self, span: _Span, chunk: _Pieces) -> None:
        if self.children is not None and span[1] - span[0] <= 1 << self.shift - _STEP:
            self._insert_below(self.children, span, chunk)
            return
        self.chunks[span] = chunk
        if self.children is None and len(self.chunks) > _MOST and self.shift >= _STEP:
            self._split()

    def delete(self, span: _Span) -> bool:
        """Returns: whether the bucket is empty now."""
        if self.children is None or span[1] - span[0] > 1 << self.shift - _STEP:
            del self.chunks[span]
        else:
            for number in self._numbers(span):
                if self.children[number].delete(span):
                    del self.children[number]
        return not self.chunks and not self.children

    def _split(self) -> None:
        self.children = {}
        whole, self.chunks = self.chunks, {}
        for span, chunk in whole.items():
            self.insert(span, chunk)

    def _insert_below(self, children: dict[int, _Bucket], span: _Span, chunk: _Pieces) -> None:
        for number in self._numbers(span):
            child = children.get(number)
            if child is None:
                child = children[number] = _Bucket(number, self.shift - _STEP)
            child.insert(span, chunk)

    def _numbers(self, span: _Span) -> range:
        """The children that meet a chunk."""
        shift = self.shift - _STEP
        first, last = max(span[0], self.start), min(span[1], self.end) - 1
        return range(first >> shift, (last >> shift) + 1)


_ALWAYS: _Span = (ALWAYS.start_ms, ALWAYS.end_ms)


def _meeting(buckets: Mapping[int, _Bucket], first: int, last: int, shift: int) -> list[_Bucket]:
    """The buckets that have one of the moments from `first` to `last`."""
    low, high = first >> shift, last >> shift
    if low == high:
        return [buckets[low]] if low in buckets else []
    if high - low < len(buckets):
        return [buckets[number] for number in range(low, high + 1) if number in buckets]
    return [bucket for number, bucket in buckets.items() if low <= number <= high]
