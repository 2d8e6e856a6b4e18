"""The table's time column: maps the name in the spec to the physical name in files."""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import PrimitiveType
from tandem.errors import InvalidSpec
from tandem.spec.table import Granularity, LakeTable
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
