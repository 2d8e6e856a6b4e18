"""The table's time column: maps the name in the spec to the physical name in files."""

from __future__ import annotations

from dataclasses import replace

from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import PrimitiveType
from tandem.errors import InvalidSpec
from tandem.jobs.formats import TimeBorders
from tandem.operations.model import Work
from tandem.spec.table import Granularity, LakeTable
from tandem.text import counted
from tandem.timeline.chunks import TimeColumn

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
