"""The table's time column: maps the name in the spec to the physical name in files."""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import PrimitiveType
from tandem.errors import InvalidSpec
from tandem.spec.table import LakeTable
from tandem.timeline.chunks import TimeColumn

_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def time_column(table: LakeTable | None, snapshot: Snapshot) -> TimeColumn | None:
    """The time column by its physical name, None if the LakeTable has none.

    Raises: InvalidSpec if there is no such column, or its type is not a date or a timestamp.
    """
    if table is None or table.spec.time is None:
        return None
    time = table.spec.time
    field = snapshot.schema.get(time.column)
    if field is None or not (
        isinstance(field.type, PrimitiveType) and field.type.name in _TIME_TYPES
    ):
        raise InvalidSpec(
            "the table has no such time column",
            resource=table.id,
            field="spec.time.column",
            found=time.column,
            expected="a column of type date or timestamp",
            remedy=f"The table has {', '.join(snapshot.schema.names)}",
        )
    return TimeColumn(
        path=(field.physical_name,),
        granularity=time.granularity,
        partition=field.name in snapshot.partition_columns,
        type=field.type.name,
    )
