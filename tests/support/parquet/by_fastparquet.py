"""Rows as fastparquet reads them.

It gives Parquet's values pandas' types: a null of a float is NaN, a decimal a float. Dates are
nanoseconds, which do not hold those of all years, and lists are flattened: neither is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastparquet
import pyarrow as pa
import pyarrow.compute as pc

Rows = dict[str, list[Any]]


def read(path: Path, columns: Iterable[str]) -> Rows:
    """Column → values. It reads no data pages of version 2."""
    with path.open("rb") as file:
        frame = fastparquet.ParquetFile(file).to_pandas(columns=list(columns))
    return {str(name): [_plain(value) for value in frame[name]] for name in frame.columns}


def expected(rows: pa.Table) -> Rows:
    """What `read` finds in a file of these rows, of all columns that can be compared. Timestamps
    are in microseconds."""
    found: Rows = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_struct(field.type) and field.type.num_fields == 1:
            [child] = field.type
            found[f"{field.name}.{child.name}"] = _values(pc.struct_field(column, [0]))
        elif not (pa.types.is_nested(field.type) or pa.types.is_date(field.type)):
            found[field.name] = _values(column)
    return found


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return [_plain(value) for value in column.to_pylist()]


def _plain(value: Any) -> Any:
    """A value without pandas' and numpy's types, that is equal to itself, and a zero with its
    sign."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if type(value).__name__ == "Timestamp":
        return int(value.asm8.astype("datetime64[us]").astype("int64"))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return None if math.isnan(value) else repr(value)
    return value
