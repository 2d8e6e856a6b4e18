"""Types and their extreme values, each spelt for the engines that read our tables.

Values are as Arrow stores them: days for dates, microseconds for instants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

Value = Any
FAR = 253_402_300_800_000_000 + 10**15
"""Microseconds: an instant beyond the year 9999, which no calendar of Python's has."""


@dataclass(frozen=True)
class Kind:
    """A type with values to try: each alone in a file, and all together with `ordinary`."""

    name: str
    arrow: pa.DataType
    ordinary: Value
    extremes: tuple[Value, ...]

    def array(self, values: Sequence[Value]) -> Any:
        if pa.types.is_date(self.arrow):
            return pa.array(values, pa.int32()).cast(self.arrow)
        if pa.types.is_timestamp(self.arrow):
            return pa.array(values, pa.int64()).cast(self.arrow)
        if pa.types.is_struct(self.arrow):
            [child] = self.arrow
            return pa.array([None if v is None else {child.name: v} for v in values], self.arrow)
        return pa.array(values, self.arrow)

    @property
    def leaf(self) -> pa.DataType:
        """The type of the values that are compared."""
        return self.arrow.field(0).type if pa.types.is_struct(self.arrow) else self.arrow


_FLOATS = (math.nan, -0.0, 0.0, math.inf, -math.inf)
_LONG = 40
_MICROS = (-62_135_596_800_000_000, -1, -999, 1, 1_600_000_000_123_457, 253_402_300_799_999_999)

KINDS = (
    Kind("f64", pa.float64(), 1.0, (*_FLOATS, 5e-324, 1.7976931348623157e308)),
    Kind("f32", pa.float32(), 1.5, (*_FLOATS, 1.401298464324817e-45, 3.4028234663852886e38)),
    Kind("nested", pa.struct([("f", pa.float64())]), 1.0, _FLOATS),
    Kind("i8", pa.int8(), 7, (-128, 127, 0)),
    Kind("i16", pa.int16(), 7, (-(2**15), 2**15 - 1)),
    Kind("i32", pa.int32(), 7, (-(2**31), 2**31 - 1, 0)),
    Kind("i64", pa.int64(), 7, (-(2**63), 2**63 - 1, 2**53 + 1)),
    Kind("flag", pa.bool_(), True, (False, True)),
    Kind(
        "text",
        pa.string(),
        "m",
        (
            "",
            "\U0010ffff" * _LONG,
            "a" * _LONG,
            "\uffff" * _LONG,
            "m\0",
            "é" * 31 + "\U0001f600\U0001f600",
            "z" * 5000,
        ),
    ),
    Kind("bytes", pa.binary(), b"m", (b"", b"\xff" * _LONG, b"\0", b"m\0", b"\x7f", b"\x80")),
    Kind("dec9", pa.decimal128(9, 2), Decimal("1.50"), (Decimal("-9999999.99"), Decimal("0.01"))),
    Kind(
        "dec18",
        pa.decimal128(18, 4),
        Decimal("1.5000"),
        (Decimal("-99999999999999.9999"), Decimal("99999999999999.9999"), Decimal("0.0000")),
    ),
    Kind(
        "dec38",
        pa.decimal128(38, 10),
        Decimal("1.5"),
        (
            Decimal("-9999999999999999999999999999.9999999999"),
            Decimal("9999999999999999999999999999.9999999999"),
            Decimal("0.0000000001"),
            Decimal("-1"),
        ),
    ),
    Kind(
        "whole38", pa.decimal128(38, 0), Decimal(7), (Decimal(-(10**38) + 1), Decimal(10**38 - 1))
    ),
    # Not 1582-10-05 to 14: Spark itself asks footers for such a day by another one.
    Kind("day", pa.date32(), 16_000, (-719_162, 2_932_896, -141_438, -1, 0)),
    Kind("moment", pa.timestamp("us", "UTC"), 10**15, (*_MICROS, FAR)),
    Kind("local", pa.timestamp("us"), 10**15, (*_MICROS, FAR)),
)


@dataclass(frozen=True)
class Filter:
    """`value` of an operator that needs none is None."""

    kind: Kind
    operator: str
    value: Value = None


OPERATORS = ("=", "<", "<=", ">", ">=", "<>")


def filters(kind: Kind, operators: Sequence[str] = OPERATORS) -> Iterator[Filter]:
    """All comparisons with each value, and the questions for NULL."""
    for value in dict.fromkeys((*map(_Same, kind.extremes), _Same(kind.ordinary))):
        for operator in operators:
            yield Filter(kind, operator, value.value)
    yield Filter(kind, "IS NULL")
    yield Filter(kind, "IS NOT NULL")


@dataclass(frozen=True)
class _Same:
    """Distinguishes both zeros."""

    value: Value

    def __hash__(self) -> int:
        return hash(repr(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and repr(self.value) == repr(other.value)


def groups(kinds: Sequence[Kind] = KINDS) -> list[dict[str, list[Value]]]:
    """The rows of each file, column by column: one value, that value with an ordinary one, all
    values with NULL, and nothing but NULL. Kinds with fewer values begin again."""
    most = max(len(kind.extremes) for kind in kinds)
    made = []
    for number in range(most):
        chosen = {k.name: k.extremes[number % len(k.extremes)] for k in kinds}
        made.append({k.name: [chosen[k.name]] * 2 for k in kinds})
    for number in range(2):
        made.append({k.name: [k.ordinary, k.extremes[number % len(k.extremes)]] for k in kinds})
    rows = most + 2
    made.append(
        {k.name: [*k.extremes, k.ordinary, *[None] * (rows - len(k.extremes) - 1)] for k in kinds}
    )
    made.append({k.name: [None, None] for k in kinds})
    return made


def tables(kinds: Sequence[Kind] = KINDS) -> list[pa.Table]:
    """The same as Arrow tables, with a unique `id`, `g` (the group) and `v`, which is 0."""
    found = []
    first = 0
    for number, group in enumerate(groups(kinds)):
        rows = len(next(iter(group.values())))
        found.append(
            pa.table(
                {
                    "id": pa.array(range(first, first + rows), pa.int64()),
                    "g": pa.array([number] * rows, pa.int32()),
                    "v": pa.array([0] * rows, pa.int64()),
                    **{kind.name: kind.array(group[kind.name]) for kind in kinds},
                }
            )
        )
        first += rows
    return found


# How engines spell a value


def for_spark(type_: pa.DataType, value: Value) -> str:
    if pa.types.is_string(type_):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if pa.types.is_date(type_):
        return f"date_from_unix_date({value})"
    if pa.types.is_timestamp(type_):
        micros = f"timestamp_micros({value}L)"
        return micros if type_.tz else f"CAST({micros} AS TIMESTAMP_NTZ)"
    return _plain(type_, value, "X'{}'")


def for_duckdb(type_: pa.DataType, value: Value) -> str:
    if pa.types.is_string(type_):
        return f"decode({_blob(value.encode())})"
    if pa.types.is_binary(type_):
        return _blob(value)
    if pa.types.is_date(type_):
        return f"CAST(DATE '1970-01-01' + CAST({value} AS INTEGER) AS DATE)"
    if pa.types.is_timestamp(type_):
        plain = f"make_timestamp(CAST({value} AS BIGINT))"
        return f"CAST({plain} AS TIMESTAMPTZ)" if type_.tz else plain
    return _plain(type_, value, "")


def for_datafusion(type_: pa.DataType, value: Value) -> str:
    if pa.types.is_string(type_):
        return "'" + str(value).replace("'", "''") + "'"
    if pa.types.is_date(type_):
        return f"arrow_cast(CAST({value} AS INT), 'Date32')"
    if pa.types.is_timestamp(type_):
        zone = 'Some("UTC")' if type_.tz else "None"
        return f"arrow_cast(CAST({value} AS BIGINT), 'Timestamp(Microsecond, {zone})')"
    return _plain(type_, value, "X'{}'")


def _blob(data: bytes) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"


def _plain(type_: pa.DataType, value: Value, binary: str) -> str:
    if pa.types.is_binary(type_):
        return binary.format(value.hex())
    if pa.types.is_boolean(type_):
        return str(value).upper()
    if pa.types.is_decimal(type_):
        return f"CAST('{value:f}' AS DECIMAL({type_.precision},{type_.scale}))"
    names = {
        pa.float64(): "DOUBLE",
        pa.float32(): "FLOAT",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
    }
    return f"CAST('{value!r}' AS {names[type_]})"
