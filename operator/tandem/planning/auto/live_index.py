"""The live files of a table by time chunk, kept from version to version.

What a plan asks of a table, found without reading all of its files again: which chunks changed,
which files a chunk has, and the segments of these files, whole. Files are in the chunks of their
times; what deletion vectors hide does not move them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from heapq import nlargest

import pyarrow as pa

from tandem.delta.log import files as files_
from tandem.intervals import ALWAYS, NEVER, IntervalSet, TimeInterval
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import Segments, segments
from tandem.timeline.working_set.index import TimelineIndex
from tandem.timeline.working_set.masks import TAG_MASKED, parse_masked


class LiveIndex:
    """Not safe for several threads.

    Args:
        files: the working set of a version, as `Snapshot.files`.
        time: the table's time column.
    """

    def __init__(self, files: pa.Table, time: TimeColumn) -> None:
        self.time = time
        self.files = files
        self._index = TimelineIndex()
        self._segment: dict[str, str] = {}  # of each file
        self._files: dict[str, set[str]] = {}  # of each segment
        self._orders: dict[str, tuple[int, str]] = {}  # of each segment: sequence, first path
        self._masked: dict[str, IntervalSet] = {}  # of files with a hint
        self._order(self._add(files))

    def follow(
        self, files: pa.Table, changed: Collection[str], added: pa.Table
    ) -> frozenset[TimeInterval]:
        """Go on to a later version.

        Args:
            files: its working set.
            changed: logged paths of files that were added, removed or changed since.
            added: those of them that are live.

        Returns: the chunks in which a plan may differ now: those that gained, lost or changed a
            file, and all others of its segment.
        """
        self.files = files
        names = {name for path in changed if (name := self._remove(path)) is not None}
        spans = set(self._index.apply({}, changed))
        names |= self._add(added)
        self._order(names & self._files.keys())
        for name in names:
            spans |= self.chunks_of(name)
        return frozenset(spans)

    def _remove(self, path: str) -> str | None:
        name = self._segment.pop(path, None)
        self._masked.pop(path, None)
        if name is not None:
            left = self._files[name]
            left.discard(path)
            if not left:
                del self._files[name], self._orders[name]
        return name

    def _add(self, added: pa.Table) -> set[str]:
        found = segments(added, self.time).files
        columns = found.columns
        intervals = [ALWAYS if each is None else each for each in columns.intervals]
        sets = [IntervalSet([each]) for each in intervals]
        names = columns.names.take(columns.segments).to_pylist()
        hints = columns.tags(TAG_MASKED)
        for path, name in zip(columns.paths, names, strict=True):
            self._segment[path] = name
            self._files.setdefault(name, set()).add(path)
        for at in hints.is_valid().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
            masked = parse_masked(hints[at].as_py(), columns.deletions[at])
            self._masked[columns.paths[at]] = masked
        self._index.apply(
            {path: sets[code] for path, code in zip(columns.paths, columns.codes, strict=True)}
        )
        return set(names)

    def _order(self, names: Collection[str]) -> None:
        """Find out where some segments are in the table's order."""
        found = self._whole(names)
        columns = found.columns
        first = columns.files.paths_at(columns.starts[found.codes])
        orders = zip(found.sequences.tolist(), first, strict=True)
        self._orders.update(zip(columns.names_of(found.codes), orders, strict=True))

    @property
    def chunks(self) -> Iterator[TimeInterval]:
        """The intervals that files have, in no particular order; `ALWAYS` for unknown times."""
        return iter(self._index.chunks)

    @property
    def timed_chunks(self) -> Iterator[TimeInterval]:
        """As `chunks`, without that of unknown times."""
        return (each for each in self._index.chunks if each != ALWAYS)

    @property
    def names(self) -> Set[str]:
        """Those of the live segments."""
        return self._files.keys()

    def newest(self, count: int) -> frozenset[str]:
        """The last segments in the table's order."""
        return frozenset(nlargest(count, self._orders, key=self._orders.__getitem__))

    def chunks_of(self, name: str) -> frozenset[TimeInterval]:
        """The intervals that the files of a segment have."""
        pieces = map(self._index.pieces_of, self._files.get(name, ()))
        return frozenset(piece.interval for each in pieces for piece in each)

    def count_from(self, moment_ms: int) -> int:
        """How many files end after a moment, or at an unknown time."""
        return len(self._index.lookup(TimeInterval(moment_ms, ALWAYS.end_ms)))

    def files_before(self, moment_ms: int) -> Mapping[str, IntervalSet]:
        """The files that may have visible rows of known times before a moment, with the intervals
        before it that masks leave."""
        before = IntervalSet([TimeInterval(ALWAYS.start_ms, moment_ms)])
        found: dict[str, IntervalSet] = {}
        for piece in self._index.lookup(before.pieces[0]):
            if piece.interval != ALWAYS:
                left = IntervalSet([piece.interval]) - self._masked.get(piece.part, NEVER)
                found[piece.part] = left & before
        return {path: left for path, left in found.items() if left}

    @property
    def timeless(self) -> Collection[str]:
        """Files whose times are unknown."""
        return self._index.parts_of(ALWAYS)

    def segments_in(self, chunks: Iterable[TimeInterval]) -> Segments:
        """The segments that have files in some of these chunks, with all of their files, in the
        table's order."""
        paths = (path for chunk in chunks for path in self._index.parts_of(chunk))
        return self._whole({self._segment[path] for path in paths})

    def _whole(self, names: Collection[str]) -> Segments:
        files = self.files
        if len(names) < len(self._files):
            paths = (path for name in names for path in self._files[name])
            files = files_.with_paths(files, paths)
        return segments(files, self.time)
