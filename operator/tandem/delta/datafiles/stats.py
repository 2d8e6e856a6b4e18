"""Delta's statistics of a file that we wrote, from the Parquet footer that we just made.

The footer has all statistics except those of floats, which are computed and explained below;
so no value is read twice.
Source: protocol, "Per-file Statistics". No I/O.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandem.delta.partitions import exact_json_value, to_json_value
from tandem.delta.schema import ArrayType, DataType, Field, MapType, PrimitiveType, StructType

# The statistics of a data file's floats: bounds that are safe for every reader, or none.
#
# Arrow's Parquet writer ignores NaN in the bounds of a column, and Spark, which orders NaN above
# all numbers, then wrongly skips rows with NaN. Whether a column holds NaN is not known when its
# file is started. So Arrow writes no statistics of floats; `FloatBounds` computes them from the
# values, for Delta's statistics and for those of each row group, which `footer_edit` adds when the
# file is finished (decision 0090). No I/O.


_PHYSICAL_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_FLOATS = frozenset({"float", "double"})
"""Delta's types."""


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
    floats = {c.path for c in columns if c.physical_type in _PHYSICAL_FLOATS}
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


# Delta's statistics.


PREFIX = 32
"""Characters of a string bound; the same that Spark writes."""
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
STATS_COLUMNS = "delta.dataSkippingStatsColumns"
DEFAULT_INDEXED = 32

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_PIECE = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`.,\s](?:[^`.,]*[^`.,\s])?))\s*([.,]|$)")
"""A part of a name, in backquotes or not, and what follows it."""

_BOUNDED = {"byte", "short", "integer", "long", "string", "date", "boolean"}
_ONLY_DELTALAKE = {"boolean"}
"""Spark has no bounds of these. deltalake has, and its dataset finds no row of a file without."""
_INSTANTS = {"timestamp", "timestamp_ntz"}
_HIGHEST = "\U0010ffff"


def from_footer(
    metadata: Any,
    schema: StructType,
    configuration: Mapping[str, str],
    floats: FloatBounds,
) -> str:
    """The JSON text of `add.stats`; bounds are tight except for cut strings and times.

    Args:
        metadata: the footer of a file that holds the columns of `schema` in their order.
        schema: the columns in the file. The keys of the result are their physical names.
        floats: what the file's float columns hold.
    """
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    null_count: dict[str, Any] = {}
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    for index, path, type_ in _listed(schema, configuration):
        names = [f.physical_name for f in path]
        found = (
            _of_floats(floats.column(index))
            if type_.name in _FLOATS
            else _of_columns([group.column(index) for group in groups], type_)
        )
        if found is None:
            continue
        nulls, low, high = found
        _set(null_count, names, nulls)
        if low is not None and high is not None:
            _set(minimum, names, low)
            _set(maximum, names, high)
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": minimum,
            "maxValues": maximum,
            "nullCount": null_count,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


@dataclass(frozen=True, slots=True)
class CountedLeaf:
    """A simple column outside of arrays and maps: the logical name of the top-level column that it
    is in, and whether Spark has bounds for its type."""

    column: str
    bounded: bool


def counted_leaves(schema: StructType) -> dict[int, CountedLeaf]:
    """The leaves of which `from_footer` takes statistics from the footer, by the index of their
    Parquet column, whatever the table's properties: all but floats."""
    return {
        index: CountedLeaf(path[0].name, _has_bounds(type_) and type_.name not in _ONLY_DELTALAKE)
        for index, (path, type_) in _columns(schema)
        if isinstance(type_, PrimitiveType) and type_.name not in _FLOATS
    }


def listed_leaves(schema: StructType, configuration: Mapping[str, str]) -> dict[int, CountedLeaf]:
    """Those that the statistics of a table with these properties have."""
    listed = {index for index, _, _ in _listed(schema, configuration)}
    return {index: leaf for index, leaf in counted_leaves(schema).items() if index in listed}


def _listed(
    schema: StructType, configuration: Mapping[str, str]
) -> Iterator[tuple[int, tuple[Field, ...], PrimitiveType]]:
    """(index of the Parquet column, path, type) of the leaves that have statistics."""
    limit = _limit(configuration)
    chosen = _chosen(configuration)
    counted = 0
    for index, (path, type_) in _columns(schema):
        if isinstance(type_, PrimitiveType):
            counted += 1
        if chosen is not None:
            if not any(_is_below(path, wanted) for wanted in chosen):
                continue
        elif 0 <= limit < counted:
            return
        if isinstance(type_, PrimitiveType):
            yield index, path, type_


def _limit(configuration: Mapping[str, str]) -> int:
    """How many leaf columns have statistics, -1 for all. An invalid number counts as the default,
    as in delta-rs; Spark refuses to write then."""
    text = configuration.get(INDEXED_COLUMNS, "").strip()
    number = int(text) if _NUMBER.fullmatch(text) else DEFAULT_INDEXED
    return number if number >= -1 else DEFAULT_INDEXED


def _of_floats(seen: FloatStatistics) -> tuple[int, Any, Any]:
    """(nulls, lower bound, upper bound)."""
    return seen.nulls, to_json_value(seen.low), to_json_value(seen.high)


def _of_columns(columns: list[Any], type_: PrimitiveType) -> tuple[int, Any, Any] | None:
    """(nulls, lower bound, upper bound) from the chunks of a column that has statistics; None if
    they have no counts."""
    footers = [c.statistics for c in columns]
    if any(f is None or not f.has_null_count for f in footers):
        return None
    nulls = sum(f.null_count for f in footers)
    bounded = [f for f in footers if f.has_min_max]
    # A row group without bounds has only nulls, or something Parquet could not bound.
    whole = all(
        f.has_min_max or f.null_count == c.num_values for f, c in zip(footers, columns, strict=True)
    )
    if not bounded or not whole:
        return nulls, None, None
    try:
        low = _lower(min(f.min for f in bounded), type_)
        high = _upper(max(f.max for f in bounded), type_)
    except (OverflowError, ValueError):
        return nulls, None, None  # a time beyond Python's calendar, which ends in year 9999
    return nulls, low, high


def _chosen(configuration: Mapping[str, str]) -> list[tuple[str, ...]] | None:
    """The columns that the property lists, as paths; None if it is absent, or not a list of names
    (`a, b.c, `x.y`.z`)."""
    text = configuration.get(STATS_COLUMNS)
    if text is None:
        return None
    found: list[tuple[str, ...]] = []
    path: list[str] = []
    at = 0
    while text[at:].strip():
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        path.append(piece[2] if piece[1] is None else piece[1].replace("``", "`"))
        if piece[3] != ".":
            found.append(tuple(path))
            path = []
        at = piece.end()
    return None if path else found


def _is_below(path: tuple[Field, ...], wanted: tuple[str, ...]) -> bool:
    names = tuple(f.name.lower() for f in path)
    return names[: len(wanted)] == tuple(w.lower() for w in wanted)


def _columns(schema: StructType) -> Iterator[tuple[int, tuple[tuple[Field, ...], DataType]]]:
    """(index of the Parquet column, (path, type)) of every leaf outside of arrays and maps;
    the leaves inside of those are skipped, and each array or map is yielded once, with an index
    that no caller uses."""
    index = 0

    def walk(fields: StructType, above: tuple[Field, ...]) -> Iterator[Any]:
        nonlocal index
        for child in fields:
            path = (*above, child)
            if isinstance(child.type, StructType):
                yield from walk(child.type, path)
            else:
                yield index, (path, child.type)
                index += _width(child.type)

    yield from walk(schema, ())


def _width(type_: DataType) -> int:
    match type_:
        case StructType():
            return sum(_width(f.type) for f in type_)
        case ArrayType():
            return _width(type_.element)
        case MapType():
            return _width(type_.key) + _width(type_.value)
        case _:
            return 1


def _set(target: dict[str, Any], names: list[str], value: Any) -> None:
    for name in names[:-1]:
        target = target.setdefault(name, {})
    target[names[-1]] = value


def _has_bounds(type_: PrimitiveType) -> bool:
    return type_.name in _BOUNDED or type_.name in _INSTANTS or type_.decimal is not None


def _lower(value: Any, type_: PrimitiveType) -> Any:
    if not _has_bounds(type_):
        return None
    if isinstance(value, str):
        return value[:PREFIX]
    if isinstance(value, dt.datetime):
        value = value.replace(microsecond=value.microsecond // 1000 * 1000)
    return to_json_value(value)


def _upper(value: Any, type_: PrimitiveType) -> Any:
    """The upper bound: a bound may be wide, never narrow. That of a time has all of its digits, as
    delta-rs writes them: rounded up to a millisecond it may lie in the next time chunk."""
    if not _has_bounds(type_):
        return None
    if isinstance(value, str):
        if len(value) <= PREFIX:
            return value
        return None if value[PREFIX] == _HIGHEST else value[:PREFIX] + _HIGHEST
    return exact_json_value(value)
