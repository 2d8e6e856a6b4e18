"""Types of columns as they are stored.

Source: `parquet.thrift` of apache/parquet-format. Statistics and filters of columns of other types
are not used. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

import pyarrow as pa

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
