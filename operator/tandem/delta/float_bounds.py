"""What a data file tells of its floats: nothing in Parquet's footer, true bounds in Delta's log.

Arrow's Parquet writer leaves NaN out of the bounds of a column and keeps -0.0 and 0.0 apart in
its dictionaries. Spark sorts NaN above all numbers and holds both zeros equal, but asks bounds
and dictionaries in Java's order, and so skips rows that it should find. What a column will hold
is not known when its file is begun. So float columns have neither statistics nor dictionaries in
the files that we write, and `FloatBounds` takes Delta's from the values (decision 0090). No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_FLOATS = frozenset({"FLOAT", "DOUBLE"})


def paths_without_floats(schema: pa.Schema) -> list[str]:
    """Parquet paths of the leaves, at any depth, that are no floats in a file of this schema.

    A path that a float shares is left out: a name may contain the dot that separates names.
    """
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink, store_schema=False)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(index) for index in range(len(leaves))]
    floats = {c.path for c in columns if c.physical_type in _FLOATS}
    return [c.path for c in columns if c.path not in floats]


@dataclass(slots=True)
class Seen:
    """The values of one float column so far. `low` and `high` are without NaN, None if there is
    no other value; a zero bounds both zeros."""

    nulls: int = 0
    low: float | None = None
    high: float | None = None
    nan: bool = False

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        if not self.nan and pc.any(pc.is_nan(values)).as_py():
            self.nan = True
        found = pc.min_max(values).as_py()
        low, high = found["min"], found["max"]
        if low is None or math.isnan(low) or math.isnan(high):
            return
        # Whoever takes -0.0 for less than 0.0 must find both by either.
        low, high = (low or -0.0), (high or 0.0)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


@dataclass(slots=True)
class FloatBounds:
    """What was seen of a file's float columns outside of lists and maps; the keys are the
    indexes of their Parquet columns."""

    columns: dict[int, Seen] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Look at rows that are written to the file."""
        index = 0
        for column in rows.columns:
            for offset, values in _floats(column):
                self.columns.setdefault(index + offset, Seen()).add(values)
            index += _width(column.type)


def _floats(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """(leaves before it, values) of every float in a column; null where its parent is."""
    if pa.types.is_floating(column.type):
        yield 0, column
    elif pa.types.is_struct(column.type):
        before = 0
        for position, child in enumerate(column.type):
            if pa.types.is_floating(child.type) or pa.types.is_struct(child.type):
                for offset, values in _floats(pc.struct_field(column, [position])):
                    yield before + offset, values
            before += _width(child.type)


def _width(type_: pa.DataType) -> int:
    """The Parquet columns of a type."""
    if pa.types.is_dictionary(type_) or not pa.types.is_nested(type_):
        return 1
    return sum(_width(type_.field(index).type) for index in range(type_.num_fields))
