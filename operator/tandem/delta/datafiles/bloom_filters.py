"""Which columns of new data files get bloom filters, and how large these are.

A filter says of a value that no row of a row group has it, or that some may. Its writer is Arrow's.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import Field, PrimitiveType

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
