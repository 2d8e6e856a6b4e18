"""The values in the statistics of a column chunk.

Source: `parquet.thrift` of apache/parquet-format for their form and order, `RebaseBoundaries` for
the calendar. Pure.
"""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from typing import Any, Final

from tandem.delta.datafiles.int96 import DAY_US
from tandem.delta.datafiles.times import RebaseBoundaries
from tandem.index.facts.stored import LONGEST_DECIMAL, StoredType, ValueKind

TEXT_BYTES: Final = 64
"""Bytes of a text that are kept of a bound."""
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_LAST_DAY: Final = (1 << 63) // DAY_US - 1
_EXACT: Final = Context(prec=60)


def bounds(
    low: bytes | None, high: bytes | None, type_: StoredType, calendar: RebaseBoundaries
) -> tuple[Any, Any]:
    """The least and the greatest value of a row group in the form of `StoredType.bounds`, from what
    its statistics hold; None if unknown.

    Both are unknown if they contradict each other, or if Spark may rebase a date or a time between
    them.
    """
    if type_.kind is ValueKind.TEXT:
        if low is not None and high is not None and low > high:
            return None, None
        return None if low is None else low[:TEXT_BYTES], _raised(high)
    least = None if low is None else _number(low, type_)
    most = None if high is None else _number(high, type_)
    if least is not None and most is not None and least > most:
        return None, None
    first = _first(type_, calendar)
    if first is not None and (least is None or least < first):
        return None, None
    return _held(least, type_, 0), _held(most, type_, 1)


def may_be_rebased(type_: StoredType, calendar: RebaseBoundaries) -> bool:
    """Whether some stored values mean others to Spark."""
    return _first(type_, calendar) is not None


def _raised(text: bytes | None) -> bytes | None:
    """A text that is no less, and not long. Bounds compare as bytes, and need not be UTF-8."""
    if text is None or len(text) <= TEXT_BYTES:
        return text
    kept = text[:TEXT_BYTES].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _number(data: bytes, type_: StoredType) -> Any:
    """A value as it is stored: a number, of decimals the unscaled one."""
    if type_.physical == "BYTE_ARRAY":
        return (
            int.from_bytes(data, "big", signed=True) if 0 < len(data) <= LONGEST_DECIMAL else None
        )
    if len(data) != (_WIDTHS.get(type_.physical) or type_.length):
        return None
    match type_.physical:
        case "FLOAT":
            return struct.unpack("<f", data)[0]
        case "DOUBLE":
            return struct.unpack("<d", data)[0]
        case "FIXED_LEN_BYTE_ARRAY":
            return int.from_bytes(data, "big", signed=True)
        case _:
            return int.from_bytes(data, "little", signed=type_.kind is not ValueKind.BOOLEAN)


def _first(type_: StoredType, calendar: RebaseBoundaries) -> int | None:
    """The least stored value that means the same to every reader; None for all."""
    if type_.kind is ValueKind.DATE:
        return calendar.date_from
    if (
        type_.kind in (ValueKind.TIMESTAMP, ValueKind.TIMESTAMP_NTZ)
        and calendar.timestamp_from is not None
    ):
        return _of_micros(calendar.timestamp_from, type_.unit)
    return None


def _of_micros(micros: int, unit: str) -> int:
    return -(-micros // 1_000) if unit == "ms" else micros * (1_000 if unit == "ns" else 1)


def _held(number: Any, type_: StoredType, high: int) -> Any:
    if number is None:
        return None
    match type_.kind:
        case ValueKind.DECIMAL:
            return float(Decimal(number).scaleb(-type_.scale, _EXACT))
        case ValueKind.DATE:
            return number * DAY_US if abs(number) <= _LAST_DAY else None
        case ValueKind.TIMESTAMP | ValueKind.TIMESTAMP_NTZ:
            # Readers round nanoseconds down, some perhaps otherwise.
            micros = {"ms": number * 1_000, "us": number, "ns": number // 1_000 + high}[type_.unit]
            return micros if -(1 << 63) <= micros < 1 << 63 else None
        case _:
            return number
