"""What automatic compaction asks of a table, kept from version to version.

To list, sort and plan all segments again after each commit costs seconds in a large table. Here a
commit costs the chunks that it changed: the runs of all other chunks are those of the version
before. The answers are those of `TableFacts`, from the list of all segments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Protocol

import numpy as np
import pyarrow as pa

from tandem.delta.log import files as files_
from tandem.intervals import ALWAYS, NEVER, IntervalSet, TimeInterval
from tandem.planning.auto.facts import TableId
from tandem.planning.compaction import minor_runs, plan_compaction, skipped_files, why_no_minor
from tandem.planning.major import useful_bins_of
from tandem.planning.plans import DELETED_SHARE, Bin, CompactionRequest, by_chunk
from tandem.spec.compaction import DEFAULT_TARGET_FILE_SIZE
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TAG_MASKED, TimeColumn, is_one_chunk, parse_masked
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segment, Segments, segments
from tandem.timeline.working_set import TimelineIndex

# How much of each time chunk is not laid out yet: what `compaction.chunks` decides from.
#
# A *group* is a chunk, or several that a file links because it spans them: a semi-major compaction
# rewrites them as one. In each of its bins that rewriting would change, the *compacted* part is
# the largest segment that a compaction wrote: of level 1 or higher, or, if rows are to be in an
# order, in that order. Everything else in these bins is uncompacted. Full files are in no bin.
#
# So a group that was just laid out has nothing uncompacted, even if its files came out smaller
# than estimated, and a few late rows need not rewrite a whole chunk at once.


@dataclass(frozen=True, slots=True)
class UncompactedChunk:
    """A group in which a semi-major compaction would change something.

    Attributes:
        interval: of all its files.
        segments, size: the uncompacted segments, and the bytes of their files in the group.
        total: bytes of all files of the group.
        inputs: bytes of the files that the compaction would read.
        first: the first segment of which it would read a file. Later loads do not change it, and
            the compaction does.
    """

    interval: TimeInterval
    segments: int
    size: int
    total: int
    inputs: int
    first: str

    @property
    def percent(self) -> int:
        return 100 * self.size // self.total if self.total else 0


def uncompacted_chunks(
    segments: Segments, files: SegmentFiles, request: CompactionRequest
) -> list[UncompactedChunk]:
    """The groups of `files` in order of time; files of unknown time are in none.

    Args:
        segments: the segments that the files belong to, whole.
        files: all files of the chunks in question.
    """
    levels = segments.columns.levels
    found: list[UncompactedChunk] = []
    for group in by_chunk(files.where(files.interval_codes >= 0)):
        useful = useful_bins_of(group, request)
        taken = SegmentFiles.of(each.files for each in useful)
        if taken is None:
            continue
        new = [file for each in useful for file in _uncompacted(each, levels.tolist(), request)]
        interval = group.hull
        assert interval is not None
        found.append(
            UncompactedChunk(
                interval,
                segments=len({file.segment_code for file in new}),
                size=sum(file.size for file in new),
                total=group.size_bytes,
                inputs=taken.size_bytes,
                first=segments.columns.files.names[int(np.min(taken.segments))],
            )
        )
    return found


def _uncompacted(each: Bin, levels: list[int], request: CompactionRequest) -> list[SegmentFile]:
    label = request.layout_label
    by_segment: dict[int, int] = defaultdict(int)
    for file in each.files:
        compacted = file.layout == label if label else levels[file.segment_code] > 0
        if compacted and file.deleted_share <= DELETED_SHARE:
            by_segment[file.segment_code] += file.size
    # Of equal ones the first.
    largest = max(by_segment, default=None, key=lambda code: (by_segment[code], -code))
    return [
        file
        for file in each.files
        if file.segment_code != largest or file.deleted_share > DELETED_SHARE
    ]


@dataclass(frozen=True, slots=True)
class MinorRuns:
    """The runs of a minor compaction, as the segments of each, in order. Without runs, `nothing`
    says why."""

    runs: Sequence[tuple[str, ...]]
    nothing: str = ""


class AutomaticTable(Protocol):
    """A table at the version last seen."""

    @property
    def id(self) -> TableId: ...

    @property
    def target_file_size(self) -> int:
        """Bytes of output files where the policy does not say."""
        ...

    @property
    def granularity(self) -> Granularity | None:
        """That of its time chunks; None without a time column."""
        ...

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        """What a minor compaction would rewrite."""
        ...

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        """What a semi-major compaction would rewrite, in order of time."""
        ...

    def times_of(self, names: Collection[str]) -> IntervalSet:
        """The chunks of some segments; all of time if one of them has an unknown time. Names
        without a live segment are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table by its live segments in order, built with the time column that `granularity` belongs
    to."""

    id: TableId
    segments: Sequence[Segment]
    granularity: Granularity | None = None
    target_file_size: int = DEFAULT_TARGET_FILE_SIZE

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        plan = plan_compaction(self.segments, request, granularity=self.granularity)
        return MinorRuns([run.segments for run in plan.runs], plan.nothing)

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        live = Segments.of(self.segments)
        young = skipped_files(live, request.skip_offset_ms, self.granularity)
        files = live.files
        return uncompacted_chunks(live, files.where(~files.among(young)), request)

    def times_of(self, names: Collection[str]) -> IntervalSet:
        live = Segments.of(self.segments)
        files = live.where(live.named(names)).files
        intervals = (files.columns.intervals[code] for code in set(files.interval_codes.tolist()))
        return IntervalSet(ALWAYS if each is None else each for each in intervals)


# The live files of a table by time chunk, kept from version to version.
#
# What a plan asks of a table, found without reading all of its files again: which chunks changed,
# which files a chunk has, and the segments of these files, whole. Files are in the chunks of their
# times; what deletion vectors hide does not move them.


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


_Group = tuple[TimeInterval, ...]
"""The intervals of files that files link, in order of time."""


class IndexedTable:
    """An `AutomaticTable` with a time column and several chunks. Not safe for several threads.

    Args:
        files: the working set of a version, as `Snapshot.files`.
    """

    def __init__(self, id_: TableId, files: pa.Table, time: TimeColumn) -> None:
        assert time.granularity is not Granularity.ALL
        self._id = id_
        self.target_file_size = DEFAULT_TARGET_FILE_SIZE
        self.live = LiveIndex(files, time)
        self._minor = _MinorCache()
        self._groups = _GroupCache()

    @property
    def id(self) -> TableId:
        return self._id

    @property
    def granularity(self) -> Granularity:
        return self.live.time.granularity

    def follow(self, files: pa.Table, changed: Collection[str], added: pa.Table) -> None:
        """Go on to a later version: as `LiveIndex.follow`."""
        chunks = self.live.follow(files, changed, added)
        self._minor.stale |= chunks
        self._groups.stale |= chunks

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        if request.adjacent_only:
            # Whether loads are adjacent depends on files of other chunks, too.
            live = segments(self.live.files, self.live.time)
            return TableFacts(self.id, live, self.granularity).minor_runs(request)
        out = request.excluded & self.live.names
        if request.preserve:
            out |= self.live.newest(request.preserve)
        limit_ms = self._limit_ms(request)
        found = self._minor.runs(self.live, request, out)
        runs = [run for chunk in sorted(found) if chunk.end_ms <= limit_ms for run in found[chunk]]
        if runs:
            return MinorRuns(runs)
        held = sorted(request.excluded & self.live.names)
        young = self.live.count_from(limit_ms) if request.skip_offset_ms > 0 else 0
        return MinorRuns((), why_no_minor(len(self.live.names), held, young, request))

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        limit_ms = self._limit_ms(request)
        old = (each for each in self.live.timed_chunks if each.end_ms <= limit_ms)
        return self._groups.uncompacted(self.live, request, _linked(old))

    def times_of(self, names: Collection[str]) -> IntervalSet:
        return IntervalSet(chunk for name in names for chunk in self.live.chunks_of(name))

    def _limit_ms(self, request: CompactionRequest) -> int:
        """Chunks that end later are left out."""
        if request.skip_offset_ms <= 0:
            return ALWAYS.end_ms
        ends = (each.end_ms for each in self.live.timed_chunks)
        return max(ends, default=0) - request.skip_offset_ms


class _MinorCache:
    """The runs of each chunk: which have nothing in common with those of another one."""

    def __init__(self) -> None:
        self.stale: set[TimeInterval] = set()
        self._request: CompactionRequest | None = None
        self._out: frozenset[str] = frozenset()
        self._runs: dict[TimeInterval, list[tuple[str, ...]]] = {}

    def runs(
        self, live: LiveIndex, request: CompactionRequest, out: frozenset[str]
    ) -> dict[TimeInterval, list[tuple[str, ...]]]:
        """The runs of each chunk that has some, whatever its age, without the segments `out`."""
        request = replace(request, excluded=frozenset(), preserve=0, skip_offset_ms=0)
        if request != self._request:
            self._request, self._runs, self.stale = request, {}, set(live.chunks)
        for name in out ^ self._out:
            self.stale |= live.chunks_of(name)
        self._out = out
        granularity = live.time.granularity
        stale = {each for each in self.stale if is_one_chunk(each, granularity)}
        self.stale = set()
        for chunk in stale:
            self._runs.pop(chunk, None)
        for run in minor_runs(live.segments_in(stale), replace(request, excluded=out), timed=True):
            # Of other chunks only the files of the same segments were planned.
            if run.interval in stale:
                self._runs.setdefault(run.interval, []).append(run.segments)
        return self._runs


class _GroupCache:
    """What is uncompacted in each group of linked chunks."""

    def __init__(self) -> None:
        self.stale: set[TimeInterval] = set()
        self._request: CompactionRequest | None = None
        self._known: dict[_Group, UncompactedChunk | None] = {}

    def uncompacted(
        self, live: LiveIndex, request: CompactionRequest, groups: Sequence[_Group]
    ) -> list[UncompactedChunk]:
        request = replace(request, skip_offset_ms=0)
        if request != self._request:
            self._request, self._known = request, {}
        known = {
            group: self._known[group]
            for group in groups
            if group in self._known and self.stale.isdisjoint(group)
        }
        self.stale = set()
        missing = [group for group in groups if group not in known]
        wanted = {chunk for group in missing for chunk in group}
        whole = live.segments_in(wanted)
        files = whole.files
        chosen = np.array([each in wanted for each in files.columns.intervals], np.bool_)
        found = uncompacted_chunks(whole, files.where(chosen[files.interval_codes]), request)
        by_hull = {each.interval: each for each in found}
        for group in missing:
            known[group] = by_hull.get(_hull(group))
        self._known = known
        return [each for group in groups if (each := known[group]) is not None]


def _linked(chunks: Iterable[TimeInterval]) -> list[_Group]:
    """The groups of chunks, in order of time."""
    groups: list[list[TimeInterval]] = []
    end_ms = 0
    for each in sorted(chunks, key=lambda each: (each.start_ms, each.end_ms)):
        if groups and each.start_ms < end_ms:
            groups[-1].append(each)
            end_ms = max(end_ms, each.end_ms)
        else:
            groups.append([each])
            end_ms = each.end_ms
    return list(map(tuple, groups))


def _hull(group: _Group) -> TimeInterval:
    return TimeInterval(group[0].start_ms, max(each.end_ms for each in group))
