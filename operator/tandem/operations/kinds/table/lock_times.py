"""Where the files of a plan lie in time: the intervals of its locks.

Intervals are those of chunks, as plans see them: statistics are cut to milliseconds, and chunks are
wide enough to hold what was cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tandem.errors import InvalidSpec
from tandem.intervals import EVERYWHERE, IntervalSet, TimeInterval
from tandem.locks.model import LockResources
from tandem.operations.kinds.table.time_column import time_column
from tandem.operations.model import Work
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK
from tandem.timeline.file_intervals import file_intervals


def time_of_locks(work: Work) -> TimeColumn | None:
    """The time column for an operation that needs it for its locks only: a LakeTable that names a
    wrong one is none of its concern. None: times are unknown."""
    try:
        return time_column(work.table.spec, work.snapshot)
    except InvalidSpec:
        return None


def times_of(intervals: Iterable[TimeInterval | None]) -> IntervalSet:
    """The times of files from those of each; all of time if one of them is unknown (None)."""
    found = set(intervals)
    if not found or None in found:
        return EVERYWHERE
    return IntervalSet(each for each in found if each is not None)


def times_of_files(files: pa.Table, time: TimeColumn | None) -> IntervalSet:
    """The times of files in the form of `Snapshot.files`."""
    if time is None or not files.num_rows:
        return EVERYWHERE
    found = file_intervals(files, time, TAG_CHUNK)
    return EVERYWHERE if (found.codes < 0).any() else IntervalSet(found.distinct)


def adopted(work: Work, otherwise: LockResources) -> LockResources:
    """The locks that an adopted attempt recorded in its plan; `otherwise` if an earlier version of
    Tandem wrote it."""
    recorded = work.frozen[0].locks
    return otherwise if recorded is None else recorded.resources
