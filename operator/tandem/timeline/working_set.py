"""What is visible when: versions as change sets, and the working sets that follow.

Must not read a log or a file: changes are made from actions that were read elsewhere.

"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tandem.delta.actions import Commit
from tandem.delta.log import files as files_
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.timeline.chunks import TAG_MASKED, TimeColumn, parse_masked
from tandem.timeline.segments import segments

# Versions as change sets, and the working set that follows from them.
#
# The model at the end of the Druid analysis: a version adds files, removes files, and masks parts
# of files; all of it becomes visible at once. The working set of a version is the replay of all
# change sets up to it. No insert conflicts with another insert, masks of one file combine, and two
# change sets without a common file give the same working set in either order.
#
# Delta's log is such a log of versions: `change_of` reads one of its commits.


_NOTHING = IntervalSet()
_ALWAYS = IntervalSet([ALWAYS])


@dataclass(frozen=True, slots=True)
class Mask:
    """What a version hides of a file: `intervals` whole, and `rows` rows in all (0 if the number is
    not known). Rows may be hidden outside of the intervals, too."""

    intervals: IntervalSet = _NOTHING
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a working set. `covers`: the moments that its rows may have; `ALWAYS` if unknown.
    `masked`: what is hidden of it by now. `rows`: physical rows, None if unknown."""

    covers: IntervalSet = _ALWAYS
    masked: Mask = Mask()
    rows: int | None = None
    segment: str = ""

    @property
    def visible(self) -> IntervalSet:
        """The intervals in which it may have live rows."""
        return _NOTHING if self.hidden else self.covers - self.masked.intervals

    @property
    def hidden(self) -> bool:
        """Whether masks hide all of it."""
        by_rows = self.rows is not None and 0 < self.rows <= self.masked.rows
        return by_rows or (bool(self.masked.intervals) and not self.covers - self.masked.intervals)

    def with_mask(self, mask: Mask) -> LiveFile:
        both = Mask(self.masked.intervals | mask.intervals, self.masked.rows + mask.rows)
        return replace(self, masked=both)


WorkingSet = Mapping[str, LiveFile]
"""Files by their name (of a Delta table: the logged path)."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """One version: files that it adds, removes and masks. A file is in one of the three only.

    A file in `adds` that is live already is replaced: a restore that shows rows again adds the
    file with the mask that it had.

    Raises: ValueError for a file in two of them.
    """

    version: int
    adds: Mapping[str, LiveFile] = field(default_factory=dict)
    removes: frozenset[str] = frozenset()
    masks: Mapping[str, Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.files) < len(self.adds) + len(self.removes) + len(self.masks):
            raise ValueError(f"version {self.version} changes a file in two ways")

    @property
    def files(self) -> frozenset[str]:
        """All files that it concerns."""
        return self.removes.union(self.adds, self.masks)


def apply(before: WorkingSet, change: ChangeSet) -> dict[str, LiveFile]:
    """The working set after a version. A file of which masks hide everything leaves it (D53); the
    removal or mask of a file that is not in it changes nothing."""
    after = dict(before)
    _apply(after, change)
    return after


def replay(
    changes: Iterable[ChangeSet], start: WorkingSet | None = None
) -> Iterator[tuple[ChangeSet, dict[str, LiveFile]]]:
    """Each version with its working set.

    Args:
        changes: consecutive versions, ascending.
        start: the working set before the first of them; by default empty.
    """
    after: Mapping[str, LiveFile] = start or {}
    for change in changes:
        after = apply(after, change)
        yield change, after


def commutes(a: ChangeSet, b: ChangeSet) -> bool:
    """Whether two versions have no file in common: in either order, the working set is the same."""
    return a.files.isdisjoint(b.files)


def depends(b: ChangeSet, a: ChangeSet) -> bool:
    """Whether `b` takes, masks or replaces a file that `a` added."""
    return not b.files.isdisjoint(a.adds)


def garbage(changes: Iterable[ChangeSet], retained: Collection[int]) -> frozenset[str]:
    """The files that these versions added, and that no retained version shows.

    Args:
        changes: consecutive versions, ascending.
        retained: versions that must stay readable. Those before the first of `changes` show none
            of its files; those after the last show what the last does.
    """
    kept = sorted(retained)
    live: dict[str, LiveFile] = {}
    born: dict[str, int] = {}
    added: set[str] = set()
    needed: set[str] = set()

    def end(name: str, version: int) -> None:
        first = born.pop(name, version)
        at = bisect_left(kept, first)
        if at < len(kept) and kept[at] < version:
            needed.add(name)

    for change in changes:
        added.update(change.adds)
        _apply(live, change)
        for name in change.files:
            if name in live:
                born.setdefault(name, change.version)
            else:
                end(name, change.version)
    for name in list(born):
        end(name, 1 << 63)
    return frozenset(added - needed)


def live_files(files: pa.Table, time: TimeColumn | None = None) -> dict[str, LiveFile]:
    """The working set of a version, without files of which nothing is visible.

    Args:
        files: as `Snapshot.files`.
        time: the table's time column; without one, each file may have rows of any time.
    """
    return {path: file for path, file in read_files(files, time).items() if not file.hidden}


def read_files(files: pa.Table, time: TimeColumn | None = None) -> dict[str, LiveFile]:
    """As `live_files`, with files of which nothing is visible; in the order of segments. Hints
    about times count only where the times of the file are known."""
    found = segments(files, time).files
    columns = found.columns
    sets = [_ALWAYS if each is None else IntervalSet([each]) for each in columns.intervals]
    hints = columns.tags(TAG_MASKED).to_pylist()
    names = columns.names.take(columns.segments).to_pylist()
    return {
        path: LiveFile(
            covers=sets[code],
            masked=Mask(
                parse_masked(hint, deleted) if hint and sets[code] != _ALWAYS else _NOTHING, deleted
            ),
            rows=rows,
            segment=name,
        )
        for path, code, hint, deleted, rows, name in zip(
            columns.paths,
            columns.codes,
            hints,
            columns.deletions,
            columns.rows,
            names,
            strict=True,
        )
    }


def change_of(commit: Commit, time: TimeColumn | None = None) -> ChangeSet:
    """A commit of a Delta table as a change set of its files, by logged path.

    A file that is removed and added again with more deleted rows is masked; with other ones (a
    restore), it is added.
    """
    adds = read_files(files_.from_adds(commit.adds), time)
    removes = {gone.logged_path: gone.deletion_vector for gone in commit.removes}
    masks: dict[str, Mask] = {}
    for path in adds.keys() & removes.keys():
        vector = removes.pop(path)
        now = adds[path].masked
        grown = now.rows - (vector.cardinality if vector is not None else 0)
        if grown > 0:
            masks[path] = Mask(now.intervals, grown)
            del adds[path]
    return ChangeSet(commit.version, adds, frozenset(removes), masks)


def _apply(live: dict[str, LiveFile], change: ChangeSet) -> None:
    for name in change.removes:
        live.pop(name, None)
    live.update(change.adds)
    for name, mask in change.masks.items():
        if name in live:
            live[name] = live[name].with_mask(mask)
    for name in change.adds.keys() | change.masks.keys():
        if name in live and live[name].hidden:
            del live[name]


# What is visible when: an index of live parts over time, kept from commit to commit.
#
# To list and sort all segments again after each commit costs seconds in a large table. This index
# changes with the commit: `apply` takes the parts that it added and removed, and returns the
# chunks that changed. Only for these does a plan have to decide again.
#
# A part is whatever the caller names: a segment or a file. Where masks hide some of its moments,
# it has several pieces, one for each interval that is left. A *chunk* is an interval that pieces
# have: in a table without masks a time chunk, or several of them that one file spans.
#
# Chunks are in buckets of time, and a bucket that holds too many of them splits into sixteen (the
# "tree approach" of the Druid analysis). A chunk that is longer than one of the sixteen stays in
# the wide bucket, so that it is not copied into all of the narrow ones, and any other is in two at
# most. No answer depends on where buckets have split.


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
        spans = np.array([span for span in self._chunks if span != _ALL_TIME], np.int64)
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
        spans = [span for span in self._chunks if span != _ALL_TIME]
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


_ALL_TIME: _Span = (ALWAYS.start_ms, ALWAYS.end_ms)


def _meeting(buckets: Mapping[int, _Bucket], first: int, last: int, shift: int) -> list[_Bucket]:
    """The buckets that have one of the moments from `first` to `last`."""
    low, high = first >> shift, last >> shift
    if low == high:
        return [buckets[low]] if low in buckets else []
    if high - low < len(buckets):
        return [buckets[number] for number in range(low, high + 1) if number in buckets]
    return [bucket for number, bucket in buckets.items() if low <= number <= high]
