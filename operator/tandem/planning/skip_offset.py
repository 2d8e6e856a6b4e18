"""Files too close to the newest data to be compacted: `skipOffsetFromLatest`.

Measured from the newest data of the table, never from a clock, so that a plan depends only on the
table, and the rule still applies to a table that is no longer written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.spec.table import Granularity
from tandem.timeline.segments import Segment, Segments


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
