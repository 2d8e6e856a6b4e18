"""Minor compaction: CarbonData's loop over levels, collapsed into one rewrite.

CarbonData walks the segments in order; as soon as it has passed 4 segments of level 0 it merges
them into one of level 1, or 3 of level 1 into one of level 2, and begins again from the start,
until nothing qualifies (`identifySegmentsToBeMergedBasedOnSegCount`, 4,3 being its
`carbon.compaction.level.threshold`). So twelve loads are written twice: 0.1, 4.1, 8.1, then 0.2.
The result depends only on the list of segments, so we simulate the loop, keep its steps, and write
the data once (decision 0011).

As in CarbonData, these are skipped: the latest `preserve` segments, segments of `max_segment_size`
or more, of level 2 or higher (of the number of thresholds, if there are more), and outputs of a
major compaction. We also skip what `skipOffsetFromLatest` protects. Skipped segments do not end a
run; they are simply not counted. With a time column the loop runs in each chunk separately, on the
files that each segment has in that chunk; a file that spans chunks, or whose time is unknown, is
not touched.

With `adjacentOnly` the loop runs in each stretch of adjacent loads separately (`adjacency`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.intervals import ALWAYS
from tandem.planning.adjacency import Adjacency
from tandem.planning.layout import bins_of, may_gain, rewrite_criterion
from tandem.planning.plans import CompactionRequest, MergeStep, SegmentRun
from tandem.planning.runs import build_run, step_name
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import SegmentColumns, Segments

# CarbonData's minor loop for all chunks at once, level by level.
#
# One pass over the segments gives the same result as CarbonData's walks from the start: the
# segments passed so far have fewer segments of each level than that level's threshold (else they
# would have been merged), so after a merge only the list of the next level can have become full.
# So the segments of a level, those that merges make among them, are merged by each `threshold` of
# them in the order in which the pass meets them. What a merge makes is met when the last of its
# inputs is.


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop merges: the files of each segment in each chunk, by chunk and then in order of
    segments.

    Attributes:
        files: those of all parts, in order.
        starts: of each part the index of its first file.
        segments, chunks: of each part the index of its segment, and the number of its chunk.
    """

    columns: SegmentColumns
    files: SegmentFiles
    starts: IntArray
    segments: IntArray
    chunks: IntArray

    @classmethod
    def of(cls, columns: SegmentColumns, files: SegmentFiles, chunks: IntArray) -> Parts:
        """The parts of files that are in order of their chunks (one number per file)."""
        segments = files.segments
        new = (np.diff(segments, prepend=-1) != 0) | (np.diff(chunks, prepend=-1) != 0)
        starts = np.flatnonzero(new)
        return cls(columns, files, starts, segments[starts], chunks[starts])

    @property
    def of_files(self) -> IntArray:
        """For each file the index of its part."""
        return np.repeat(np.arange(len(self)), np.diff(np.append(self.starts, len(self.files))))

    @property
    def levels(self) -> IntArray:
        return self.columns.levels[self.segments]

    @property
    def sizes(self) -> IntArray:
        """Bytes as stored."""
        return _sums(self.files.sizes, self.starts)

    @property
    def live_bytes(self) -> IntArray:
        return _sums(self.files.live_bytes, self.starts)

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Merges:
    """What the loop makes. A node is a part, by its index, or a merge, with a greater number.

    Attributes:
        first: of each node the first of its parts.
        runs: of each part the number of its run, -1 for none. Runs are numbered in the order of
            their first parts.
        roots: of each run the node that it ends with.
        groups: for each level its first merge, and the inputs of each merge in order.
    """

    first: IntArray
    runs: IntArray
    roots: IntArray
    groups: tuple[tuple[int, IntArray], ...]

    def inputs(self, node: int) -> tuple[int, list[int]]:
        """The level that a merge makes, and its inputs; level 0 for a part."""
        for level in range(len(self.groups), 0, -1):
            start, groups = self.groups[level - 1]
            if node >= start:
                return level, groups[node - start].tolist()
        return 0, []


def merge_levels(parts: Parts, thresholds: Sequence[int], limit: int | None) -> Merges:
    """The merges of the loop.

    Args:
        thresholds: how many of level 0, 1, … are merged; 0 for none.
        limit: a part of this many bytes, or a merge of this many live bytes, is not merged.
    """
    count = len(parts)
    levels = parts.levels
    if thresholds and thresholds[0] == 1:
        levels = np.where(_before_the_end(parts, limit), levels, len(thresholds))
    first = last = np.arange(count)
    sizes, live = parts.sizes, parts.live_bytes
    made = first[:0]
    groups: list[tuple[int, IntArray]] = []
    for level, threshold in enumerate(thresholds):
        nodes = np.append(np.flatnonzero(levels == level), made)
        if limit is not None:
            nodes = nodes[sizes[nodes] < limit]
        merged = _merged(nodes, threshold, first, last, parts.chunks)
        groups.append((len(first), merged))
        made = np.arange(len(first), len(first) + len(merged))
        total = live[merged].sum(axis=1)
        first = np.append(first, first[merged].min(axis=1, initial=count))
        last = np.append(last, last[merged].max(axis=1, initial=0))
        sizes, live = np.append(sizes, total), np.append(live, total)
    return _numbered(first, groups, count)


def _before_the_end(parts: Parts, limit: int | None) -> BoolArray:
    """With a threshold of 1 the loop of a chunk ends at the first segment of level 0: one segment
    is no compaction."""
    ends: BoolArray = parts.levels == 0
    if limit is not None:
        ends &= parts.sizes < limit
    begins = np.searchsorted(parts.chunks, parts.chunks)
    passed = np.cumsum(ends)
    found: BoolArray = passed - passed[begins] + ends[begins] == 0
    return found


def _merged(
    nodes: IntArray, threshold: int, first: IntArray, last: IntArray, chunks: IntArray
) -> IntArray:
    """The inputs of the merges of one level, one merge a row."""
    if threshold < 2:
        return np.empty((0, 1), np.int64)
    nodes = nodes[np.argsort(last[nodes])]
    of_node = chunks[last[nodes]]
    start = np.searchsorted(of_node, of_node)
    stop = np.searchsorted(of_node, of_node, "right")
    full = np.arange(len(nodes)) < start + (stop - start) // threshold * threshold
    groups = nodes[full].reshape(-1, threshold)
    found: IntArray = np.take_along_axis(groups, np.argsort(first[groups], axis=1), axis=1)
    return found


def _numbered(first: IntArray, groups: Sequence[tuple[int, IntArray]], count: int) -> Merges:
    root = np.arange(len(first))
    for start, merged in reversed(groups):
        root[merged] = root[start : start + len(merged), None]
    tops = np.unique(root[:count])
    tops = tops[tops >= count]
    roots = tops[np.argsort(first[tops])]
    numbers = np.full(len(first), -1, np.int64)
    numbers[roots] = np.arange(len(roots))
    return Merges(first, numbers[root[:count]], roots, tuple(groups))


def _sums(values: IntArray, starts: IntArray) -> IntArray:
    found: IntArray = np.add.reduceat(values, starts) if len(starts) else starts
    return found


def minor_runs(
    segments: Segments,
    request: CompactionRequest,
    *,
    timed: bool,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The runs of a minor compaction, chunk by chunk in order of time. `young` are paths of files
    to leave out."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    usable = _usable(kept, request)
    parts = _chunks(usable, young) if timed else _whole(usable, young)
    adjacency = Adjacency(segments) if request.adjacent_only else None
    if adjacency is not None:
        parts = replace(parts, chunks=_stretches(parts, adjacency))
    merges = merge_levels(parts, level_thresholds(request.thresholds), request.max_segment_size)
    useful = rewrite_criterion(request)
    runs: list[SegmentRun] = []
    gaining = may_gain(parts.files, merges.runs[parts.of_files], request)
    names = _names(parts, np.isin(merges.runs, [number for number, _ in gaining]))
    for number, files in gaining:
        if adjacency is not None and not adjacency.adjacent(files):
            continue  # a merge of a higher level that leaves a segment of a lower one out
        bins = bins_of(files, request)
        if any(map(useful, bins)):
            _, steps = _steps(merges, int(merges.roots[number]), names)
            runs.append(build_run(segments, files, bins, level=steps[-1].level, steps=steps))
    return runs


def _usable(segments: Segments, request: CompactionRequest) -> Segments:
    usable = (segments.levels < len(request.thresholds)) & ~segments.major
    usable &= ~segments.named(request.excluded)
    if request.among is not None:
        usable &= segments.named(request.among)
    return segments.where(usable)


def level_thresholds(thresholds: Sequence[int]) -> tuple[int, ...]:
    """How many segments of level 0, 1, … make a compaction; 0 for never.

    CarbonData has two levels; further levels work the same way. A threshold of 1 above level 0
    would merge a segment with itself forever; CarbonData treats it as 0, and so do we.
    """
    return (*thresholds[:1], *(0 if count == 1 else count for count in thresholds[1:]))


def _whole(segments: Segments, young: frozenset[str]) -> Parts:
    files = segments.files
    if young:
        files = segments.where(~segments.having(files.where(files.among(young)))).files
    return Parts.of(segments.columns, files, np.zeros(len(files), np.int64))


def _chunks(segments: Segments, young: frozenset[str]) -> Parts:
    """The files of each segment in each time chunk, in order of time."""
    files = segments.files
    usable = (files.interval_codes >= 0) & ~files.spans
    files = files.where(usable & ~files.among(young) if young else usable)
    intervals = files.columns.intervals[:-1]
    ranks = np.empty(len(intervals), np.int64)
    by_time = sorted(range(len(intervals)), key=lambda code: intervals[code] or ALWAYS)
    ranks[by_time] = np.arange(len(intervals))
    chunks = ranks[files.interval_codes]
    order = np.argsort(chunks, kind="stable")
    ordered = SegmentFiles(files.columns, files.places[order])
    return Parts.of(segments.columns, ordered, chunks[order])


def _stretches(parts: Parts, adjacency: Adjacency) -> IntArray:
    """A number for each part that grows where it is not adjacent to the part before."""
    ends = np.append(parts.starts[1:], len(parts.files))
    new = np.ones(len(parts), np.bool_)
    for at in np.flatnonzero(np.diff(parts.chunks) == 0).tolist():
        both = parts.files[int(parts.starts[at]) : int(ends[at + 1])]
        new[at + 1] = not adjacency.adjacent(both)
    return np.cumsum(new)


def _names(parts: Parts, chosen: BoolArray) -> Mapping[int, str]:
    """The names of the chosen parts' segments."""
    at = np.flatnonzero(chosen)
    return dict(zip(at.tolist(), parts.columns.names_of(parts.segments[at]), strict=True))


def _steps(
    merges: Merges, node: int, names: Mapping[int, str]
) -> tuple[str, tuple[MergeStep, ...]]:
    """The name of a node, and the steps that make it."""
    level, inputs = merges.inputs(node)
    if not level:
        return names[node], ()
    before = [_steps(merges, each, names) for each in inputs]
    # The stand-in name of a chain that begins with a foreign file stays that of its first file.
    name = step_name(names[int(merges.first[node])], level)
    step = MergeStep(tuple(each for each, _ in before), name, level)
    return name, (*(step for _, steps in before for step in steps), step)
