"""The table's time column: maps the name in the spec to the physical name in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from tandem.delta.actions import AddFile, Commit
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import PrimitiveType
from tandem.errors import InvalidSpec, VersionNotFound
from tandem.intervals import EVERYWHERE, IntervalSet, TimeInterval
from tandem.jobs.formats import TimeBorders
from tandem.locks.rules import LockResources
from tandem.operations.model import Work
from tandem.reconcile.classify import author_of
from tandem.spec.table import Granularity, LakeTable
from tandem.text import counted
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK, file_intervals

_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def time_column(table: LakeTable | None, snapshot: Snapshot) -> TimeColumn | None:
    """The time column by its physical name, None if the LakeTable has none.

    Raises: InvalidSpec if there is no such column, or its type is not a date or a timestamp.
    """
    if table is None or table.spec.time is None:
        return None
    time = table.spec.time
    return find_time_column(
        time.column, time.granularity, snapshot, resource=table.id, field="spec.time.column"
    )


def borders_of_load(
    work: Work, granularity: Granularity | None, *, resource: str
) -> TimeBorders | None:
    """The borders between the files of a load: those of `granularity`, or else of the chunks of a
    table that is aligned. None where there are none.

    Raises: InvalidSpec for a granularity without a time column, and for a column that there is not.
    """
    lake = work.table.spec
    aligned = lake is not None and lake.spec.time is not None and lake.spec.time.align
    if granularity is None and not aligned:
        return None
    time = time_column(lake, work.snapshot)
    if time is None:
        raise InvalidSpec(
            "files can end at the borders of chunks only where rows have a time",
            resource=resource,
            field="spec.granularity",
            found=f"{granularity}, and a LakeTable without spec.time",
            expected="a LakeTable with spec.time",
            remedy="Set spec.time of the LakeTable, or remove granularity",
        )
    return time_borders(work, replace(time, granularity=granularity or time.granularity))


def time_borders(work: Work, time: TimeColumn) -> TimeBorders | None:
    """The borders between files of a job, at the chunks of `time`; None if each file is in one
    chunk in any case."""
    lake = work.table.spec
    if lake is None or lake.spec.time is None or time.partition:
        return None
    if time.granularity is Granularity.ALL:
        return None
    # As the schema spells it: a job finds columns by their exact names.
    name = work.snapshot.schema[lake.spec.time.column].name
    return TimeBorders(column=name, granularity=time.granularity)


def shared_files(chunks: int) -> tuple[str, ...]:
    """What the summary of an operation says of chunks whose rows share files."""
    if not chunks:
        return ()
    return (
        f"{counted(chunks, 'chunk')} beyond the first 1,000 share files: these are not aligned, "
        "and a SemiMajor compaction with a granularity divides them",
    )


def find_time_column(
    column: str, granularity: Granularity, snapshot: Snapshot, *, resource: str, field: str
) -> TimeColumn:
    """The column that a resource or an option names.

    Args:
        resource, field: where it is named, for the error.

    Raises: InvalidSpec if there is no such column, or its type is not a date or a timestamp.
    """
    found = snapshot.schema.get(column)
    if found is None or not (
        isinstance(found.type, PrimitiveType) and found.type.name in _TIME_TYPES
    ):
        raise InvalidSpec(
            "the table has no such time column",
            resource=resource,
            field=field,
            found=column,
            expected="a column of type date or timestamp",
            remedy=f"The table has {', '.join(snapshot.schema.names)}",
        )
    return TimeColumn(
        path=(found.physical_name,),
        granularity=granularity,
        partition=found.name in snapshot.partition_columns,
        type=found.type.name,
    )


# Where the files of a plan lie in time: the intervals of its locks.
#
# Intervals are those of chunks, as plans see them: statistics are cut to milliseconds, and chunks
# are wide enough to hold what was cut.


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


# What other writers changed in the chunks of an exclusive attempt: a file that was added, removed
# or marked there since the attempt's read version.
#
# Reads the log and decides nothing. Commits count, not their net effect: a file that came and went
# again between two looks is a write, too.


class ChunkWrites:
    """Looks at one operation's table. Remembers up to which version nothing was written in the
    chunks of an attempt, so that the next look reads only what is new."""

    def __init__(self) -> None:
        self._attempt = 0
        self._seen: Snapshot | None = None

    def since_read(self, work: Work) -> str:
        """The first commit since the plan's read version that changed its chunks, by version,
        operation and author; "" for none. To be called once the plan is persisted.

        Raises: StorageError.
        """
        plan, _ = work.frozen
        log, seen = work.table.log, self._seen if self._attempt == plan.attempt else None
        try:
            seen = seen or _read(work, plan.read_version)
            newest = log.update(seen)
            commits = log.commits(seen.version + 1, newest.version)
        except VersionNotFound:
            after = plan.read_version if seen is None else seen.version
            return f"commits after version {after}, which log clean-up has deleted"
        self._attempt, self._seen = plan.attempt, seen
        assert plan.locks is not None  # all versions that know exclusive attempts record them
        chunks, time = plan.locks.resources.intervals, time_of_locks(work)
        for commit in commits:
            if any(map(chunks.overlaps, _times(commit, seen, time))):
                return _named(commit)
        self._seen = newest
        return ""


def _read(work: Work, version: int) -> Snapshot:
    return work.snapshot if work.snapshot.version == version else work.table.log.snapshot(version)


def _times(commit: Commit, before: Snapshot, time: TimeColumn | None) -> IntervalSet:
    """Where the files lie that a commit changes. `before`: a version before it, since when no file
    came into the chunks."""
    gone = before.files_by_path(file.logged_path for file in commit.removes)
    return _where(commit.adds, time) | _where(tuple(gone.values()), time)


def _where(adds: Iterable[AddFile], time: TimeColumn | None) -> IntervalSet:
    found = tuple(adds)
    return times_of_files(files_.from_adds(found), time) if found else IntervalSet()


def _named(commit: Commit) -> str:
    author = author_of(commit)
    operation = author.operation or "an unknown operation"
    who = author.by or author.engine or "an unknown engine"
    return f"version {commit.version}, {operation} by {who}"
