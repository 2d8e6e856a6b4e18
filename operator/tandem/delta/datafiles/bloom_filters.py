"""Bloom filters of new data files: of which columns, by what a LakeTable or a job asks for, and
how large they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import InvalidSpec

# The columns of which new data files get bloom filters. Pure.


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


# Which columns of new data files get bloom filters, and how large these are.
#
# A filter says of a value that no row of a row group has it, or that some may. Its writer is
# Arrow's. Pure.


FilterOptions = dict[str, dict[str, Any]]
"""pyarrow's `bloom_filter_options`."""

_UNSUPPORTED: Final = frozenset({"boolean", "binary", "variant", "void", "float", "double"})
"""Simple types without filters: two values need none, and the index does not look for binary
ones. Of floats a filter holds bytes: Spark, asked for 0.0 or NaN, misses rows with -0.0 or a NaN of
other bits (decision 0090)."""
_LEAST: Final = 4_096
"""Distinct values that a filter has room for at least: a later row group may have more than the
first. 8 KiB at one in a hundred."""


def can_be_filtered(column: Field) -> bool:
    """Whether filters of a column are written, and used."""
    return isinstance(column.type, PrimitiveType) and column.type.name not in _UNSUPPORTED


def filter_options(
    filters: Mapping[str, float], columns: Sequence[Field], rows: pa.Table
) -> FilterOptions | None:
    """The options of a file for Arrow's writer, by Parquet paths; None without filters.

    Args:
        filters: column, by its logical name, → the share of absent values that a filter takes for
            present.
        columns: of the file.
        rows: its first row group, under physical names: it says how many distinct values a row
            group has. Where a later one has more, its filter excludes less.
    """
    found: FilterOptions = {}
    for column in columns:
        if column.name in filters and can_be_filtered(column):
            values = rows[column.physical_name]
            most = max(_distinct(values), min(len(values), _LEAST), 1)
            found[column.physical_name] = {"ndv": most, "fpp": filters[column.name]}
    return found or None


def _distinct(values: pa.ChunkedArray) -> int:
    if pa.types.is_dictionary(values.type):
        # The chunks of a row group have one dictionary.
        return max((len(chunk.dictionary) for chunk in values.chunks), default=0)
    return int(pc.count_distinct(values).as_py())
