"""The columns of which new data files get bloom filters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandem.delta.datafiles.bloom_filters import can_be_filtered
from tandem.delta.schema import Field, StructType
from tandem.errors import InvalidSpec


def required_filters(
    columns: Sequence[str],
    false_positives: float,
    schema: StructType,
    partition_columns: Collection[str],
    *,
    resource: str,
    field: str,
) -> dict[str, float]:
    """Column, as the schema spells it, → the share of absent values that a filter takes for
    present.

    Args:
        resource, field: where the filters are named, for the error.
    Raises: InvalidSpec if a column does not exist, is a partition column, or has a type without
        filters.
    """
    found = {}
    for number, name in enumerate(columns):
        column = schema.get(name)
        wrong = _what_is_wrong(column, schema, partition_columns)
        if column is None or wrong is not None:
            message, expected, remedy = wrong or ("", "", "")
            raise InvalidSpec(
                message,
                resource=resource,
                field=f"{field}.columns[{number}]",
                found=name,
                expected=expected,
                remedy=remedy,
            )
        found[column.name] = false_positives
    return found


def usable_filters(
    columns: Sequence[str],
    false_positives: float,
    schema: StructType,
    partition_columns: Collection[str],
) -> dict[str, float]:
    """As `required_filters`, without the columns for which that is not possible: since the table
    was adopted, they may have been dropped."""
    found = {}
    for name in columns:
        column = schema.get(name)
        if column is not None and not _what_is_wrong(column, schema, partition_columns):
            found[column.name] = false_positives
    return found


def _what_is_wrong(
    column: Field | None, schema: StructType, partition_columns: Collection[str]
) -> tuple[str, str, str] | None:
    """Message, expected and remedy; None if nothing is wrong."""
    if column is None:
        return (
            "the table has no such column for a bloom filter",
            "a top-level column",
            f"The table has {', '.join(schema.names[:32])}",
        )
    if column.name in partition_columns:
        return (
            "a partition column has no bloom filter",
            "another column: each file holds one value of this one",
            "Leave it out",
        )
    if not can_be_filtered(column):
        return (
            "columns of this type have no bloom filters",
            "a column of whole numbers, decimals, texts, dates or timestamps",
            "Leave it out",
        )
    return None
