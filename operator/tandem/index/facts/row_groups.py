"""The facts of data files, as columns: one entry per file, and one per row group, with the types
of columns as they are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import Field, PrimitiveType
from tandem.delta.stats import MOST_ROWS
from tandem.distinct import IntArray
from tandem.pruning.bounds import INTEGRAL, HeldBounds, held, statistics_bounds
from tandem.statements.types import SqlType, as_decimal

# Types of columns as they are stored.
#
# Source: `parquet.thrift` of apache/parquet-format. Statistics and filters of columns of other
# types are not used. Pure.


PHYSICAL: Final = (
    "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY",
)  # fmt: skip
_UNITS: Final = {1: "ms", 2: "us", 3: "ns"}


class ValueKind(StrEnum):
    """What the values of a column are, and so the form of their bounds."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"


_FLOATING: Final = frozenset({ValueKind.FLOAT, ValueKind.DOUBLE, ValueKind.DECIMAL})
_FIXED: Final = frozenset({"FIXED_LEN_BYTE_ARRAY"})
_LONG: Final = frozenset({"INT64"})
_WHOLE: Final = frozenset({"INT32", "INT64"})
_PHYSICAL: Final = {
    ValueKind.INTEGER: _WHOLE,
    ValueKind.BOOLEAN: frozenset({"BOOLEAN"}),
    ValueKind.FLOAT: frozenset({"FLOAT"}),
    ValueKind.DOUBLE: frozenset({"DOUBLE"}),
    ValueKind.DECIMAL: _WHOLE | _FIXED | {"BYTE_ARRAY"},
    ValueKind.TEXT: frozenset({"BYTE_ARRAY"}),
    ValueKind.DATE: frozenset({"INT32"}),
    ValueKind.TIMESTAMP: _LONG,
    ValueKind.TIMESTAMP_NTZ: _LONG,
}

MOST_DIGITS: Final = 38
LONGEST_DECIMAL: Final = 16
"""Bytes of a decimal."""


@dataclass(frozen=True, slots=True)
class StoredType:
    """The type of a column as it is stored.

    Attributes:
        physical: Parquet's name: INT32, INT64, …
        length: of FIXED_LEN_BYTE_ARRAY, in bytes.
        precision, scale: of decimals.
        unit: of timestamps: ms, us or ns.
    """

    physical: str
    kind: ValueKind
    length: int = 0
    precision: int = 0
    scale: int = 0
    unit: str = ""

    @property
    def known(self) -> bool:
        """Whether columns are stored so."""
        known = self.physical in _PHYSICAL[self.kind]
        if self.kind is ValueKind.DECIMAL:
            known &= 0 < self.precision <= MOST_DIGITS and 0 <= self.scale <= self.precision
            known &= (0 < self.length <= LONGEST_DECIMAL) == (self.physical in _FIXED)
        if self.kind in (ValueKind.TIMESTAMP, ValueKind.TIMESTAMP_NTZ):
            known &= self.unit in ("ms", "us", "ns")
        return known

    @property
    def bounds(self) -> pa.DataType:
        """The type of bounds: numbers and texts as they are, decimals as the nearest double, dates
        and timestamps as microseconds since 1970."""
        if self.kind is ValueKind.TEXT:
            return pa.binary()
        return pa.float64() if self.kind in _FLOATING else pa.int64()


class LogicalType(IntEnum):
    """Fields of the union LogicalType."""

    STRING = 1
    DECIMAL = 5
    DATE = 6
    TIMESTAMP = 8
    INTEGER = 10


class ConvertedType(IntEnum):
    """ConvertedType, which LogicalType replaces."""

    UTF8 = 0
    DECIMAL = 5
    DATE = 6
    TIMESTAMP_MILLIS = 9
    TIMESTAMP_MICROS = 10
    INT_8 = 15
    INT_16 = 16
    INT_32 = 17
    INT_64 = 18


_SIGNED: Final = frozenset(ConvertedType[f"INT_{bits}"] for bits in (8, 16, 32, 64))

# Fields of SchemaElement
TYPE, TYPE_LENGTH, CONVERTED, SCALE, PRECISION, LOGICAL = 1, 2, 6, 7, 8, 10


def stored_type(element: Mapping[int, Any]) -> StoredType | None:
    """The type of a leaf by its SchemaElement; None if its statistics are not used."""
    number = element[TYPE]
    physical = PHYSICAL[number] if 0 <= number < len(PHYSICAL) else ""
    logical = element.get(LOGICAL)
    if logical is None:
        found = _converted(physical, element)
    elif len(logical) == 1:
        [(name, body)] = logical.items()
        found = _logical(physical, element, name, body)
    else:
        found = None
    return found if found is not None and found.known else None


def _logical(
    physical: str, element: Mapping[int, Any], name: int, body: Mapping[int, Any]
) -> StoredType | None:
    match name:
        case LogicalType.STRING:
            return StoredType(physical, ValueKind.TEXT)
        case LogicalType.DECIMAL:
            return _decimal(physical, element, body.get(2, 0), body.get(1, 0))
        case LogicalType.DATE:
            return StoredType(physical, ValueKind.DATE)
        case LogicalType.TIMESTAMP:
            kind = ValueKind.TIMESTAMP if body.get(1) else ValueKind.TIMESTAMP_NTZ
            return StoredType(physical, kind, unit=_UNITS.get(next(iter(body.get(2, ())), 0), ""))
        case LogicalType.INTEGER if body.get(2):
            return StoredType(physical, ValueKind.INTEGER)
        case _:
            return None


def _converted(physical: str, element: Mapping[int, Any]) -> StoredType | None:
    match element.get(CONVERTED):
        case None:
            return _plain(physical)
        case ConvertedType.UTF8:
            return StoredType(physical, ValueKind.TEXT)
        case ConvertedType.DECIMAL:
            return _decimal(physical, element, element.get(PRECISION, 0), element.get(SCALE, 0))
        case ConvertedType.DATE:
            return StoredType(physical, ValueKind.DATE)
        case ConvertedType.TIMESTAMP_MILLIS:
            return StoredType(physical, ValueKind.TIMESTAMP, unit="ms")
        case ConvertedType.TIMESTAMP_MICROS:
            return StoredType(physical, ValueKind.TIMESTAMP, unit="us")
        case number if number in _SIGNED:
            return StoredType(physical, ValueKind.INTEGER)
        case _:
            return None


def _plain(physical: str) -> StoredType:
    kinds = {"BOOLEAN": ValueKind.BOOLEAN, "FLOAT": ValueKind.FLOAT, "DOUBLE": ValueKind.DOUBLE}
    return StoredType(physical, kinds.get(physical, ValueKind.INTEGER))


def _decimal(
    physical: str, element: Mapping[int, Any], precision: int, scale: int
) -> StoredType | None:
    length = element.get(TYPE_LENGTH, 0) if physical == "FIXED_LEN_BYTE_ARRAY" else 0
    return StoredType(physical, ValueKind.DECIMAL, length, precision, scale)


# The facts of data files, as columns: one entry per file, and one per row group.
#
# Pure. What is unknown is null, or `UNKNOWN`. A file has no entry for a column in which it has no
# usable statistics.


UNKNOWN: Final = -1
_COMPUTED: Final = ("first_group", "file_of_group")


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """A top-level column of some files: its name and type in them, and its field id if it has
    one. A column whose type was widened has two."""

    name: str
    type: StoredType
    field_id: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What is known of a column in each row group.

    Attributes:
        low, high: null if unknown.
        nulls: number of NULLs, `UNKNOWN` if unknown.
        filter_start, filter_bytes: where its bloom filter lies in the file, with its header;
            `UNKNOWN` if there is none, or nothing says how long it is.
    """

    low: pa.Array
    high: pa.Array
    nulls: IntArray
    filter_start: IntArray
    filter_bytes: IntArray

    @classmethod
    def unknown(cls, type_: StoredType, groups: int) -> Self:
        none = pa.nulls(groups, type_.bounds)
        nothing = np.full(groups, UNKNOWN)
        return cls(none, none, nothing, nothing, nothing)

    def take(self, groups: IntArray) -> ColumnFacts:
        rows = pa.array(groups)
        return ColumnFacts(
            self.low.take(rows), self.high.take(rows), self.nulls[groups],
            self.filter_start[groups], self.filter_bytes[groups],
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True)
class FileFacts:
    """The facts of files.

    Attributes:
        paths: as logged.
        sizes: in bytes.
        rows: physical rows.
        groups: row groups of each file, which follow each other below.
        group_rows: physical rows of each row group.
    """

    paths: pa.Array
    sizes: IntArray
    rows: IntArray
    groups: IntArray
    group_rows: IntArray
    columns: Mapping[ColumnKey, ColumnFacts]

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def first_group(self) -> IntArray:
        """The index of each file's first row group."""
        return np.cumsum(self.groups) - self.groups

    @cached_property
    def file_of_group(self) -> IntArray:
        """The file of each row group."""
        return np.repeat(np.arange(len(self)), self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers, and of what was computed of them."""
        own = (self.paths, self.sizes, self.rows, self.groups, self.group_rows)
        computed = [self.__dict__[name] for name in _COMPUTED if name in self.__dict__]
        by_hash = self.__dict__.get("_by_hash", ())
        return sum(each.nbytes for each in (*own, *self.columns.values(), *computed, *by_hash))

    def only(self, columns: Collection[str]) -> FileFacts:
        """The same facts, of columns with these names."""
        kept = {key: column for key, column in self.columns.items() if key.name in columns}
        return replace(self, columns=kept)

    def take(self, files: IntArray) -> FileFacts:
        """The facts of some of the files, in this order."""
        groups = self.groups_of(files)
        return FileFacts(
            self.paths.take(pa.array(files)), self.sizes[files], self.rows[files],
            self.groups[files], self.group_rows[groups],
            {key: column.take(groups) for key, column in self.columns.items()},
        )  # fmt: skip

    def groups_of(self, files: IntArray) -> IntArray:
        """The indexes of the row groups of some files, file by file."""
        counts = self.groups[files]
        before = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum())) - np.repeat(before, counts)
        return np.repeat(self.first_group[files], counts) + places

    def believed(self, paths: pa.Array, sizes: IntArray, rows: IntArray) -> IntArray:
        """For each file that a version names, the index of its facts; `UNKNOWN` if there are none,
        or they are of a file of another size or number of rows.

        Args:
            paths: as logged.
            rows: physical rows, `UNKNOWN` where the log does not say.
        """
        at = self.index_of(paths)
        # An entry more, which index -1 finds.
        own_sizes, own_rows = np.append(self.sizes, UNKNOWN), np.append(self.rows, UNKNOWN)
        same = (own_sizes[at] == sizes) & ((rows == UNKNOWN) | (own_rows[at] == rows))
        return np.where((at != UNKNOWN) & same, at, UNKNOWN)

    def index_of(self, paths: pa.Array) -> IntArray:
        """For each path the index of its facts, right or not; `UNKNOWN` if there are none."""
        if not len(self):
            return np.full(len(paths), UNKNOWN)
        hashes, files = self._by_hash
        # Not by Arrow's `index_in`, which makes a hash table of all files for each question.
        place = np.searchsorted(hashes, _hashes(paths))
        at: IntArray = files[np.minimum(place, len(files) - 1)]
        same = np.asarray(pc.equal(self.paths.take(pa.array(at)), paths))
        return np.where(same, at, UNKNOWN)

    @cached_property
    def _by_hash(self) -> tuple[IntArray, IntArray]:
        """The hashes of the paths in order, and the file of each. Of two files with one hash, one
        is not found."""
        hashes = _hashes(self.paths)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def check(self) -> None:
        """Raises: ValueError if numbers are none, or contradict each other, or a file is there
        twice."""
        if self.paths.null_count or len(pc.unique(self.paths)) != len(self):
            raise ValueError("a file is there twice, or has no path")
        for numbers in (self.sizes, self.rows, self.groups, self.group_rows):
            if (numbers < 0).any() or (numbers > MOST_ROWS).any():
                raise ValueError("a number that is none")
        too_many = (self.groups > len(self.group_rows)).any()  # their sum might overflow
        if too_many or int(self.groups.sum()) != len(self.group_rows):
            raise ValueError(f"{len(self.group_rows)} row groups, not as the files say")
        before = np.append(0, np.cumsum(self.group_rows))
        if (before[self.first_group + self.groups] - before[self.first_group] != self.rows).any():
            raise ValueError("row groups that do not have the rows of their file")
        for column in self.columns.values():
            if (column.nulls < UNKNOWN).any() or (column.nulls > self.group_rows).any():
                raise ValueError("a number of NULLs that is none")


def _hashes(paths: pa.Array) -> IntArray:
    return np.fromiter(map(hash, paths.to_pylist()), np.int64, len(paths))


def concat(parts: Sequence[FileFacts]) -> FileFacts:
    """The facts of the files of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    keys = dict.fromkeys(key for part in parts for key in part.columns)

    def together(name: str) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])

    return FileFacts(
        pa.concat_arrays([pa.array([], pa.string()), *(part.paths for part in parts)]),
        together("sizes"), together("rows"), together("groups"), together("group_rows"),
        {key: _joined(key, parts) for key in keys},
    )  # fmt: skip


def _joined(key: ColumnKey, parts: Sequence[FileFacts]) -> ColumnFacts:
    found = [
        part.columns.get(key) or ColumnFacts.unknown(key.type, len(part.group_rows))
        for part in parts
    ]
    return ColumnFacts(
        pa.concat_arrays([column.low for column in found]),
        pa.concat_arrays([column.high for column in found]),
        np.concatenate([column.nulls for column in found]),
        np.concatenate([column.filter_start for column in found]),
        np.concatenate([column.filter_bytes for column in found]),
    )


# One column's bounds in many row groups, as values of the column's type.
#
# Pure. A column of a table may be stored in several types: it was widened, or writers differ.
# Bounds are used where every reader converts the values alike; elsewhere they are unknown.


_SAME = {
    "boolean": ValueKind.BOOLEAN,
    "string": ValueKind.TEXT,
    "date": ValueKind.DATE,
    "timestamp": ValueKind.TIMESTAMP,
    "float": ValueKind.FLOAT,
}


def column_keys(facts: FileFacts, field: Field, *, by_id: bool) -> list[ColumnKey]:
    """The columns of files that readers take for a column of the table.

    Args:
        by_id: the table maps columns by field id. Columns without one are mapped by name.
    """
    return [
        key
        for key in facts.columns
        if key.name == field.physical_name
        and (not by_id or key.field_id is None or key.field_id == field.field_id)
    ]


def group_column(
    facts: FileFacts, field: Field, type_: SqlType, *, by_id: bool
) -> HeldBounds | None:
    """The bounds of a column in all row groups, None if nothing is known of it.

    Args:
        type_: the column's type in the condition.
    """
    if not isinstance(field.type, PrimitiveType):
        return None
    count = len(facts.group_rows)
    low: pa.Array | None = None
    nulls = np.full(count, UNKNOWN)
    for key in column_keys(facts, field, by_id=by_id):
        column = facts.columns[key]
        nulls = np.where(column.nulls == UNKNOWN, nulls, column.nulls)
        found = values(column, key.type, type_)
        if found is None:
            continue
        if low is None:
            low, high = found
        else:
            low, high = pc.coalesce(low, found[0]), pc.coalesce(high, found[1])
    if low is None:
        return None
    return statistics_bounds(
        type_,
        low,
        high,
        some_null=nulls != 0,
        some_value=nulls != facts.group_rows,
    )


def values(
    column: ColumnFacts, stored: StoredType, type_: SqlType
) -> tuple[pa.Array, pa.Array] | None:
    """Bounds as `statistics_bounds` takes them of a type; None if values of the stored type are not
    read as such."""
    if not reads_as(stored, type_):
        return None
    low, high = column.low, column.high
    if type_.name in ("float", "double", "decimal"):
        # As for statistics in the log: no NaN as a bound, and decimals of many digits are wider.
        return held(low.cast(pa.float64(), safe=False), high.cast(pa.float64(), safe=False), type_)
    return low, high


def reads_as(stored: StoredType, type_: SqlType) -> bool:
    """Whether values of a stored type are read as values of a column's type, in the same order
    (protocol, "Type Widening")."""
    kind = stored.kind
    if type_.name in INTEGRAL:
        return kind is ValueKind.INTEGER
    match type_.name:
        case "double":
            return kind in (ValueKind.FLOAT, ValueKind.DOUBLE) or (
                stored.physical == "INT32" and (kind is ValueKind.INTEGER)
            )
        case "decimal":
            wanted = as_decimal(type_)
            return kind is ValueKind.INTEGER or (
                kind is ValueKind.DECIMAL
                and stored.scale <= wanted.scale
                and stored.precision - stored.scale <= wanted.precision - wanted.scale
            )
        case "timestamp_ntz":
            return kind in (ValueKind.TIMESTAMP_NTZ, ValueKind.DATE)
        case _:
            return type_.name in _SAME and kind is _SAME[type_.name]
