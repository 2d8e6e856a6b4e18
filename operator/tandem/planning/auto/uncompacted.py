"""How much of each time chunk is not laid out yet: what `compaction.chunks` decides from.

A *group* is a chunk, or several that a file links because it spans them: a semi-major compaction
rewrites them as one. In each of its bins that rewriting would change, the *compacted* part is the
largest segment that a compaction wrote: of level 1 or higher, or, if rows are to be in an order,
in that order. Everything else in these bins is uncompacted. Full files are in no bin.

So a group that was just laid out has nothing uncompacted, even if its files came out smaller than
estimated, and a few late rows need not rewrite a whole chunk at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tandem.intervals import TimeInterval
from tandem.planning.major import useful_bins_of
from tandem.planning.plans import Bin, CompactionRequest
from tandem.planning.runs import DELETED_SHARE, by_chunk
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segments


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
