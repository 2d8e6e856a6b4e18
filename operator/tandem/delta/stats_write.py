"""Statistics for the files that we write (protocol, "Per-file Statistics"). No I/O.

A bound that JSON cannot carry exactly, or that would be wrong for somebody's order of values, is
left out: absent statistics are always right, wrong ones lose rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import Json
from tandem.delta.schema import DataType, Field, PrimitiveType, StructType, leaves

_PREFIX = 32
_DEFAULT_COLUMNS = 32
_ASCII_MAX = "\x7f"
_UTF8_MAX = "\U0010ffff"
# Types whose order everybody agrees on. Spark keeps none for booleans and binary either.
_ORDERED = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "string"}
    | {"date", "timestamp", "timestamp_ntz"}
)


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A leaf column with statistics, by its physical path in data files."""

    path: tuple[str, ...]
    type: DataType

    @property
    def ordered(self) -> bool:
        return isinstance(self.type, PrimitiveType) and (
            self.type.name in _ORDERED or self.type.decimal is not None
        )


def indexed_columns(
    schema: StructType, configuration: Mapping[str, str], partition_columns: Sequence[str] = ()
) -> tuple[IndexedColumn, ...]:
    """The leaf columns that the table wants statistics of.

    `delta.dataSkippingStatsColumns` names them; else the first
    `delta.dataSkippingNumIndexedCols` (32; negative: all) count. Partition columns never do.
    """
    data = schema.without(tuple(partition_columns))
    all_leaves = [
        (fields, type_) for fields, type_ in leaves(data) if type_ != PrimitiveType("void")
    ]
    named = configuration.get("delta.dataSkippingStatsColumns")
    if named is not None:
        wanted = [tuple(part.lower() for part in name) for name in _split_names(named)]
        chosen = [leaf for leaf in all_leaves if any(_is_under(leaf[0], name) for name in wanted)]
    else:
        most = int(configuration.get("delta.dataSkippingNumIndexedCols", _DEFAULT_COLUMNS))
        chosen = all_leaves if most < 0 else all_leaves[:most]
    return tuple(IndexedColumn(tuple(f.physical_name for f in path), t) for path, t in chosen)


def _is_under(path: Sequence[Field], name: tuple[str, ...]) -> bool:
    return tuple(f.name.lower() for f in path[: len(name)]) == name


def _split_names(text: str) -> list[tuple[str, ...]]:
    """`a, b.c, `odd.name`` → [("a",), ("b", "c"), ("odd.name",)]."""
    names: list[tuple[str, ...]] = []
    parts: list[str] = []
    word, quoted = "", False
    for char in text + ",":
        if char == "`":
            quoted = not quoted
        elif quoted or char not in ".,":
            word += char
        else:
            parts.append(word.strip())
            word = ""
            if char == ",":
                if parts != [""]:
                    names.append(tuple(parts))
                parts = []
    return names


class StatsCollector:
    """Gathers the statistics of one data file, batch by batch.

    `update` takes what is written to the file: columns by physical name. A column that a batch
    lacks is null in all its rows.
    """

    def __init__(self, columns: Sequence[IndexedColumn]) -> None:
        self._columns = columns
        self._rows = 0
        self._nulls = [0] * len(columns)
        self._low: list[pa.Scalar | None] = [None] * len(columns)
        self._high: list[pa.Scalar | None] = [None] * len(columns)
        self._nan = [False] * len(columns)

    def update(self, data: pa.RecordBatch | pa.Table) -> None:
        rows = data.num_rows
        self._rows += rows
        for index, column in enumerate(self._columns):
            values = _column(data, column.path)
            if values is None:
                self._nulls[index] += rows
                continue
            self._nulls[index] += values.null_count
            if column.ordered and rows > values.null_count:
                self._extend(index, values)

    def _extend(self, index: int, values: Any) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_floating(values.type):
            nan = pc.is_nan(values)
            if pc.any(nan).as_py():
                self._nan[index] = True
                values = values.filter(pc.fill_null(pc.invert(nan), False))
        bounds = pc.min_max(values)
        low, high = bounds["min"], bounds["max"]
        if not low.is_valid:
            return
        old_low, old_high = self._low[index], self._high[index]
        if old_low is None or pc.less(low, old_low).as_py():
            self._low[index] = low
        if old_high is None or pc.greater(high, old_high).as_py():
            self._high[index] = high

    @property
    def rows(self) -> int:
        return self._rows

    def to_json(self, *, tight: bool = True) -> str:
        """The `stats` text. `tight=False` where a deletion vector hides rows of the file."""
        low: Json = {}
        high: Json = {}
        nulls: Json = {}
        for index, column in enumerate(self._columns):
            _put(nulls, column.path, self._nulls[index])
            smallest, largest = self._low[index], self._high[index]
            if smallest is not None:
                _put(low, column.path, _bound(smallest, upper=False))
            # To Spark NaN is greater than every number: a maximum without it would be wrong.
            if largest is not None and not self._nan[index]:
                _put(high, column.path, _bound(largest, upper=True))
        body: Json = {
            "numRecords": self._rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": nulls,
        }
        # Absent means tight.
        return dumps(body if tight else {**body, "tightBounds": False})


def loosen(stats: str | None, num_records: int) -> str:
    """The statistics of a file that gets a deletion vector: bounds kept but no longer tight,
    `num_records` (physical rows) certain. Broken or absent statistics become that alone."""
    try:
        body = json.loads(stats, parse_float=Decimal) if stats else {}
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    return dumps({**body, "numRecords": num_records, "tightBounds": False})


def dumps(value: Any) -> str:
    """JSON text in which decimals keep all their digits."""
    match value:
        case dict():
            inner = ",".join(
                f"{json.dumps(k, ensure_ascii=False)}:{dumps(v)}" for k, v in value.items()
            )
            return "{" + inner + "}"
        case list() | tuple():
            return "[" + ",".join(dumps(v) for v in value) + "]"
        case Decimal():
            return format(value, "f")
        case _:
            return json.dumps(value, ensure_ascii=False)


def _column(data: pa.RecordBatch | pa.Table, path: Sequence[str]) -> Any:
    if path[0] not in data.schema.names:
        return None
    values = data.column(path[0])
    for name in path[1:]:
        if name not in [f.name for f in values.type]:
            return None
        values = pc.struct_field(values, name)
    return values


def _put(tree: Json, path: Sequence[str], value: Any) -> None:
    if value is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bound(value: pa.Scalar, *, upper: bool) -> Any:
    type_ = value.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return shorten_max(value.as_py()) if upper else value.as_py()[:_PREFIX]
    if pa.types.is_timestamp(type_):
        return _timestamp(value, upper=upper)
    if pa.types.is_date(type_):
        text = str(pc.cast(value, pa.string()).as_py())
        return text if len(text) == 10 else None
    if pa.types.is_decimal(type_):
        return value.as_py()
    number = value.as_py()
    if isinstance(number, float) and number in (float("inf"), float("-inf")):
        return None  # JSON has no infinity
    return number


def shorten_max(text: str) -> str | None:
    """An upper bound of at most about 32 characters, None if there is none: the prefix, with a
    last character that is greater than the one cut off. Comparison is by UTF-8 bytes, which is
    comparison by code point."""
    if len(text) <= _PREFIX:
        return text
    for length in range(_PREFIX, 2 * _PREFIX + 1):
        if length >= len(text):
            return text
        if text[length] < _ASCII_MAX:
            return text[:length] + _ASCII_MAX
        if text[length] != _UTF8_MAX:
            return text[:length] + _UTF8_MAX
    return None


def _timestamp(value: pa.Scalar, *, upper: bool) -> str | None:
    """Milliseconds, rounded away from the values so that the bound holds."""
    unit = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[value.type.unit]
    ticks = value.value
    millis = ticks * 1_000 // unit
    if upper and millis * unit < ticks * 1_000:
        millis += 1
    stamp = pa.scalar(millis, pa.timestamp("ms"))
    text = str(pc.strftime(stamp, format="%Y-%m-%dT%H:%M:%S").as_py())
    if len(text) != 23 or text.startswith("-"):
        return None  # outside the years 1 to 9999
    return text + ("Z" if value.type.tz else "")
