"""The bounds of a working set: the columns of a condition, read from all files at once.

Columns are top-level ones, by their name in the schema; statistics and partition values use their
physical name (column mapping). Fields of structs have no bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.errors import CorruptLog
from tandem.pruning.bounds import (
    ColumnBounds,
    HeldBounds,
    PartitionBounds,
    held,
    statistics_bounds,
    statistics_type,
    usable,
)
from tandem.pruning.times import MISSING, partition_codes
from tandem.statements.types import DOUBLE, FLOAT, SqlType

_NO_ROWS = 0


@dataclass(frozen=True)
class FileBounds:
    """The bounds of `count` files; a column that is not in `columns` is unknown.

    `empty` are the files that hold no rows.
    """

    count: int
    columns: Mapping[str, ColumnBounds]
    empty: BoolArray


@dataclass(frozen=True)
class StatedBounds:
    """What the statistics of files say.

    Attributes:
        columns: the bounds of columns that have usable statistics.
        rows: physical rows of each file, -1 if unknown.
        tight: whether the statistics are those of its rows, and not merely bound them.
    """

    columns: Mapping[str, HeldBounds]
    rows: IntArray
    tight: BoolArray


def bounds_of(
    files: pa.Table,
    schema: StructType,
    partition_columns: Iterable[str],
    wanted: Mapping[str, SqlType],
) -> FileBounds:
    """The bounds of the wanted columns.

    Args:
        files: `path`, `stats` and `partition_values` as in `Snapshot.files`.
        wanted: names as in the schema, with their types.
    """
    partitions = set(partition_columns)
    found = partition_bounds(files["partition_values"], schema, partitions, wanted)
    others = {name: type_ for name, type_ in wanted.items() if name not in partitions}
    stated = stated_bounds(files["stats"], schema, others)
    empty = stated.rows == _NO_ROWS
    return FileBounds(files.num_rows, {**found, **stated.columns}, empty)


def partition_bounds(
    values: pa.ChunkedArray,
    schema: StructType,
    partition_columns: Iterable[str],
    wanted: Mapping[str, SqlType],
) -> dict[str, PartitionBounds]:
    """The bounds of those wanted columns that are partition columns.

    Args:
        values: `partition_values` of `Snapshot.files`.
    """
    partitions = set(partition_columns)
    columns = {}
    for name, type_ in wanted.items():
        field = schema.get(name)
        if name in partitions and field is not None and isinstance(field.type, PrimitiveType):
            codes = partition_codes(values, field.physical_name)
            columns[name] = _partition(*codes, field.type, type_)
    return columns


def stated_bounds(
    stats: pa.ChunkedArray, schema: StructType, wanted: Mapping[str, SqlType]
) -> StatedBounds:
    """The bounds of the wanted columns by statistics.

    Args:
        stats: as in `Snapshot.files`.
        wanted: names as in the schema, with their types; no partition columns.
    """
    used = {
        name: type_
        for name, type_ in wanted.items()
        if (field := schema.get(name)) is not None
        and isinstance(field.type, PrimitiveType)
        and statistics_type(type_) is not None
    }
    physical = {name: schema[name].physical_name for name in used}
    table = stats_.read(stats, _fields(used, physical)).combine_chunks()
    rows = _numbers(table["numRecords"])
    tight = np.asarray(pc.fill_null(table["tightBounds"], True)).astype(bool)
    columns = {}
    for at, (name, type_) in enumerate(used.items()):
        low, high, nulls = (
            # By index: Arrow parses a name that begins with a dot as a path.
            _one(pc.struct_field(table[field], [at]))
            for field in ("minValues", "maxValues", "nullCount")
        )
        known = np.where(tight, _numbers(nulls), MISSING)
        columns[name] = statistics_bounds(
            type_,
            *held(low, high, _written_as(schema[name], type_)),
            some_null=known != _NO_ROWS,
            some_value=(known != rows) | (known == MISSING),
        )
    return StatedBounds(columns, rows, tight)


def _written_as(field: Field, type_: SqlType) -> SqlType:
    """The type whose limits the statistics of a column have. A double may have been a float, whose
    0.7 was written as 0.7 (type widening)."""
    return FLOAT if type_ == DOUBLE and "delta.typeChanges" in field.metadata else type_


def _partition(
    codes: npt.NDArray[np.int64], texts: Sequence[str | None], type_: PrimitiveType, as_: SqlType
) -> PartitionBounds:
    values: list[Any] = []
    unknown: list[int] = []
    nulls: list[int] = []
    for code, text in enumerate(texts):
        known, value = _value(text, type_)
        values.append(usable(value, as_))
        if not known:
            unknown.append(code)
        elif value is None:
            nulls.append(code)
    codes = np.where(np.isin(codes, unknown), MISSING, codes)
    codes = np.where(np.isin(codes, nulls[1:]), nulls[0] if nulls else MISSING, codes)
    return PartitionBounds(as_, codes, values, nulls[0] if nulls else None)


def _value(text: str | None, type_: PrimitiveType) -> tuple[bool, Any]:
    try:
        return True, to_scalar(text, type_).as_py()
    except (CorruptLog, ValueError, OverflowError):  # also values outside Python's calendar
        return False, None


def _fields(types: Mapping[str, SqlType], physical: Mapping[str, str]) -> pa.Schema:
    fields = [("numRecords", pa.int64()), ("tightBounds", pa.bool_())]
    if types:
        bounds = pa.struct([(physical[name], statistics_type(t)) for name, t in types.items()])
        nulls = pa.struct([(physical[name], pa.int64()) for name in types])
        fields += [("minValues", bounds), ("maxValues", bounds), ("nullCount", nulls)]
    return pa.schema(fields)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """Numbers of rows or NULLs; -1 if unknown."""
    return np.asarray(pc.fill_null(stats_.valid_counts(column), MISSING)).astype(np.int64)
