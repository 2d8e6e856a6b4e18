"""The statistics of a data file's floats: bounds that are safe for every reader, or none.

Arrow's Parquet writer ignores NaN in the bounds of a column, and Spark, which orders NaN above
all numbers, then wrongly skips rows with NaN. Whether a column holds NaN is not known when its
file is started. So Arrow writes no statistics of floats; `FloatBounds` computes them from the
values, for Delta's statistics and for those of each row group, which `footer` adds when the file
is finished (decision 0090). No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_FLOATS = frozenset({"FLOAT", "DOUBLE"})


def has_float(type_: pa.DataType) -> bool:
    """Whether it is a float, or holds one at any depth."""
    if pa.types.is_nested(type_):
        return any(has_float(type_.field(index).type) for index in range(type_.num_fields))
    return bool(pa.types.is_floating(type_))


def paths_without_floats(schema: pa.Schema) -> list[str]:
    """Parquet paths of the leaves, at any depth, that are not floats in a file of this schema.

    A path that is also that of a float is left out: names may contain the separating dot.
    """
    columns = parquet_leaves(schema)
    floats = {c.path for c in columns if c.physical_type in _FLOATS}
    return [c.path for c in columns if c.path not in floats]


def parquet_leaves(schema: pa.Schema) -> list[Any]:
    """The Parquet columns (`pq.ColumnSchema`) of a file of this schema."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink, store_schema=False)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [leaves.column(index) for index in range(len(leaves))]


@dataclass(frozen=True, slots=True)
class FloatStatistics:
    """A summary of a float column's values. `low` and `high` are None if there are no bounds: the
    column has NaN, for which Parquet and JSON have no bound, or no value. A zero as a bound covers
    both zeros."""

    nulls: int = 0
    low: float | None = None
    high: float | None = None
    nan: bool = False

    @staticmethod
    def of(values: pa.ChunkedArray) -> FloatStatistics:
        nulls = values.null_count
        if pc.any(pc.is_nan(values)).as_py():
            return FloatStatistics(nulls, nan=True)
        found = pc.min_max(values).as_py()
        if found["min"] is None:
            return FloatStatistics(nulls)
        # Some readers order -0.0 before 0.0: a bound must include both.
        return FloatStatistics(nulls, found["min"] or -0.0, found["max"] or 0.0)

    def joined(self, other: FloatStatistics) -> FloatStatistics:
        """The summary of the values of both."""
        nulls = self.nulls + other.nulls
        if self.nan or other.nan:
            return FloatStatistics(nulls, nan=True)
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return FloatStatistics(nulls, min(lows, default=None), max(highs, default=None))


@dataclass(slots=True)
class FloatBounds:
    """Summaries of a file's float columns outside of lists and maps, by row group; the keys are
    the indexes of their Parquet columns."""

    groups: list[dict[int, FloatStatistics]] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Take the rows of the next row group into account."""
        starts = accumulate((leaves_of(column.type) for column in rows.columns), initial=0)
        self.groups.append(summaries(zip(starts, rows.columns, strict=False)))

    def column(self, index: int) -> FloatStatistics:
        """The summary of a column over all row groups."""
        return reduce(
            FloatStatistics.joined, (g[index] for g in self.groups if index in g), FloatStatistics()
        )


def summaries(
    columns: Iterable[tuple[int, pa.ChunkedArray]],
) -> dict[int, FloatStatistics]:
    """Of the floats in columns, each with the index of the first Parquet column that it has."""
    return {
        first + offset: FloatStatistics.of(values)
        for first, column in columns
        for offset, values in _floats(column)
    }


def _floats(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """(leaves before it, values) of every float in a column; null if its parent is null."""
    if pa.types.is_floating(column.type):
        yield 0, column
    elif pa.types.is_struct(column.type):
        before = 0
        for position, child in enumerate(column.type):
            if pa.types.is_floating(child.type) or pa.types.is_struct(child.type):
                for offset, values in _floats(pc.struct_field(column, [position])):
                    yield before + offset, values
            before += leaves_of(child.type)


def leaves_of(type_: pa.DataType) -> int:
    """How many Parquet columns a type has."""
    if pa.types.is_dictionary(type_) or not pa.types.is_nested(type_):
        return 1
    return sum(leaves_of(type_.field(index).type) for index in range(type_.num_fields))
