"""The plan of a compaction: the entry point of this package.

A minor compaction is CarbonData's loop over levels, collapsed into one rewrite.

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
from tandem.planning.major import (
    check_selection,
    chosen_files,
    custom_runs,
    major_runs,
    semi_major_runs,
)
from tandem.planning.plans import (
    CompactionPlan,
    CompactionRequest,
    MergeStep,
    SegmentRun,
    build_run,
    proposed_names,
    step_name,
)
from tandem.spec.compaction import CompactionType
from tandem.spec.fields import format_duration
from tandem.spec.table import Granularity
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segment, SegmentColumns, Segments

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


# Files too close to the newest data to be compacted: `skipOffsetFromLatest`.
#
# Measured from the newest data of the table, never from a clock, so that a plan depends only on
# the table, and the rule still applies to a table that is no longer written.


def skipped_files(
    segments: Sequence[Segment], offset_ms: int, granularity: Granularity | None
) -> frozenset[str]:
    """Logged paths of the files that a compaction leaves out.

    With a time column: those that reach into the last `offset_ms` before the end of the newest
    chunk (Druid's rule of the same name), and those of unknown time, since they might. Without
    one, or with the one chunk of granularity `All`: those of the segments whose sequence, which is
    the time of their first load, is less than `offset_ms` before that of the newest segment. A
    compacted segment is as old as its first input, so compaction does not make data young.
    """
    if offset_ms <= 0 or not segments:
        return frozenset()
    live = Segments.of(segments)
    if granularity is None or granularity is Granularity.ALL:
        sequences = live.sequences
        return live.where(sequences.max() - sequences < offset_ms).files.paths
    files = live.files
    intervals = files.columns.intervals
    found = [time for code in np.unique(files.interval_codes) if (time := intervals[code])]
    limit = max((time.end_ms for time in found), default=0) - offset_ms
    young = np.array([time is None or time.end_ms > limit for time in intervals])
    return files.where(young[files.interval_codes]).paths


_NOT_ADJACENT = (
    "Segments qualify for a minor compaction, but they are not adjacent (minor.adjacentOnly): live "
    "segments that stay lie between them, or some have no root. It needs SemiMajor or Major."
)


def plan_compaction(
    segments: Sequence[Segment],
    request: CompactionRequest,
    *,
    granularity: Granularity | None = None,
    past: Sequence[Segment] = (),
    divided: Segments | None = None,
) -> CompactionPlan:
    """What a compaction would rewrite, deterministically.

    Args:
        segments: the live segments at the read version, in order (`timeline.segments`), built
            with the time column that `granularity` belongs to.
        request: the compaction to plan.
        granularity: that of the LakeTable's `time`; None if it has none.
        past: segments that are no longer live (`timeline.segments`), for messages.
        divided: the same segments, built with the granularity at whose borders outputs of a
            `SemiMajor` end; None if these do not matter.

    Raises:
        InvalidSpec: contradictory or impossible requests, unknown chunks.
        UnknownSegment: `Custom` names a segment that is not live.
    """
    check_selection(request)
    live = Segments.of(segments)
    young = skipped_files(live, request.skip_offset_ms, granularity)
    if request.type is CompactionType.MINOR:
        runs = minor_runs(live, request, timed=granularity is not None, young=young)
    elif request.type is CompactionType.SEMI_MAJOR:
        runs = semi_major_runs(live, request, granularity, young=young, divided=divided)
    elif request.type is CompactionType.MAJOR:
        runs = major_runs(live, request, young=young)
    else:
        runs = custom_runs(live, request, past, young=young)
    if not runs:
        held = sorted(live.among(request.excluded))
        if request.type is CompactionType.MINOR:
            why = why_no_minor(len(live), held, len(young), request)
        else:
            why = _why_nothing(live, request, granularity, _held(held))
            why += _left_young(len(young), request)
        if request.adjacent_only and request.type is CompactionType.MINOR:
            freely = replace(request, adjacent_only=False)
            if minor_runs(live, freely, timed=granularity is not None, young=young):
                why = _NOT_ADJACENT + _left_young(len(young), request)
        return CompactionPlan((), why)
    return CompactionPlan(tuple(proposed_names(runs, live)))


def why_no_minor(count: int, held: Sequence[str], young: int, request: CompactionRequest) -> str:
    """Why a table of `count` segments has nothing for a minor compaction.

    Args:
        held: those of them that other operations hold, in order.
        young: how many files `skipOffsetFromLatest` leaves out.
    """
    if not count:
        return "The table has no segments." + _left_young(young, request)
    wanted = " or ".join(
        f"{number} of level {level}"
        for level, number in enumerate(level_thresholds(request.thresholds))
        if number
    )
    gain = "another order" if request.layout_label else "fewer files"
    return (
        f"None of {_segments(count)} qualify for a minor compaction. It needs {wanted} that are "
        f"not preserved, too large or compacted by Major, and must result in {gain}."
        f"{_held(held)}{_left_young(young, request)}"
    )


def _segments(count: int) -> str:
    return f"{count} segment{'s' if count > 1 else ''}"


def _held(names: Sequence[str]) -> str:
    return f" Held by other operations: {', '.join(names)}." if names else ""


def _left_young(young: int, request: CompactionRequest) -> str:
    if not young:
        return ""
    offset = format_duration(request.skip_offset_ms)
    files = f"{young} file{'s' if young > 1 else ''}"
    return f" Skipped: {files} within {offset} of the newest data (skipOffsetFromLatest)."


def _why_nothing(
    segments: Segments, request: CompactionRequest, granularity: Granularity | None, tail: str
) -> str:
    if not segments:
        return "The table has no segments."
    count = _segments(len(segments))
    label = request.layout_label
    if request.type is CompactionType.MAJOR:
        if label:
            return f"Of {count}, none is to be put in order {label}.{tail}"
        return (
            f"Of {count}, no two adjacent ones stay below {request.target_segment_size:,} bytes "
            f"together and would result in fewer files.{tail}"
        )
    if request.type is CompactionType.SEMI_MAJOR:
        if not chosen_files(segments, request, granularity):
            # Not an error: a chunk may be named before its data arrives. But a typo must show.
            return f"No file lies in {', '.join(request.chunks)}.{tail}"
        chosen = " of the chosen chunks" if request.chunks else ""
        return f"The files{chosen} already match the request.{tail}"
    if label:
        return f"The selected files are already in order {label}.{tail}"
    if request.selected is not None:
        return f"Compacting the selected files would not leave fewer files.{tail}"
    return f"A single segment cannot be merged: choose two or more.{tail}"
