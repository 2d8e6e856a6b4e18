"""CarbonData's minor loop for all chunks at once, level by level.

One pass over the segments gives the same result as CarbonData's walks from the start: the segments
passed so far have fewer segments of each level than that level's threshold (else they would have
been merged), so after a merge only the list of the next level can have become full. So the segments
of a level, those that merges make among them, are merged by each `threshold` of them in the order
in which the pass meets them. What a merge makes is met when the last of its inputs is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import SegmentColumns


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
