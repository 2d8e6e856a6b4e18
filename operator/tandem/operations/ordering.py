"""The columns that rows are ordered by: from the names that people typed to a job's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tandem.delta.schema import DataType, PrimitiveType
from tandem.delta.snapshot import Snapshot
from tandem.errors import InvalidSpec
from tandem.spark.job import JobLayout

_ORDERED = frozenset(
    {
        *("byte", "short", "integer", "long", "float", "double", "boolean"),
        *("string", "binary", "date", "timestamp", "timestamp_ntz"),
    }
)


def job_layout(
    strategy: Literal["Sort", "ZOrder"],
    columns: Sequence[str],
    snapshot: Snapshot,
    *,
    resource: str,
    field: str,
) -> JobLayout:
    """The layout with columns as the schema spells them; `field` is where they were typed.

    Raises: InvalidSpec for a column that the table does not have or that holds no single
        values, a partition's, or one that is named twice (names have no case in Spark).
    """

    def refused(message: str, found: str, expected: str, remedy: str = "") -> InvalidSpec:
        return InvalidSpec(
            message,
            resource=resource,
            field=field,
            found=found,
            expected=expected,
            remedy=remedy,
        )

    names: list[str] = []
    for name in columns:
        column = snapshot.schema.get(name)
        if column is None or not _has_order(column.type):
            raise refused(
                "rows cannot be ordered by this",
                name,
                "a column with single values: not nested, no array, no map",
                f"The table has {', '.join(snapshot.schema.names)}",
            )
        if column.name in snapshot.partition_columns:
            raise refused(
                "all rows of a file have the same value of a partition's column",
                name,
                "a column that the table is not partitioned by",
                "Leave it out",
            )
        if column.name in names:
            raise refused("a column is named twice", name, "each column once", "Leave it out")
        names.append(column.name)
    return JobLayout(strategy=strategy, columns=tuple(names))


def _has_order(type_: DataType) -> bool:
    """Whether its values are single ones that have an order (variants have none)."""
    return isinstance(type_, PrimitiveType) and (
        type_.decimal is not None or type_.name in _ORDERED
    )
