"""What automatic compaction asks of a table, answered from the list of all of its segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.planning.auto.child_compactions import TableId
from tandem.planning.compaction import plan_compaction, skipped_files
from tandem.planning.major import useful_bins_of
from tandem.planning.plans import Bin, CompactionRequest
from tandem.planning.runs import DELETED_SHARE, by_chunk
from tandem.spec.table import Granularity
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segment, Segments

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
