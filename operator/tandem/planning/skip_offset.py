"""Files too close to the newest data to be compacted: `skipOffsetFromLatest`.

Measured from the newest data of the table, never from a clock, so that a plan depends only on the
table, and the rule still applies to a table that is no longer written.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.spec.table import Granularity
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segment


def too_young(
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
    if granularity is None or granularity is Granularity.ALL:
        newest = max(segment.sequence for segment in segments)
        return frozenset(
            file.path
            for segment in segments
            if newest - segment.sequence < offset_ms
            for file in segment.files
        )
    files = SegmentFiles.of(segment.files for segment in segments)
    if files is None:
        return frozenset()
    chunks = files.by_interval()
    limit = max((time.end_ms for time, _ in chunks if time is not None), default=0) - offset_ms
    return frozenset(
        file.path
        for time, members in chunks
        if time is None or time.end_ms > limit
        for file in members
    )


def has_any(segment: Segment, paths: frozenset[str]) -> bool:
    """Whether one of the segment's files has one of these logged paths."""
    files = SegmentFiles.of([segment.files])
    return files is not None and bool(files.among(paths).any())
