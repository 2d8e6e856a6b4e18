"""Converts Python values to the protocol's texts: partition values, and values in statistics.

Source: protocol, "Partition Value Serialization" and "Per-file Statistics". No I/O.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.delta.calendar import date_text

UTC = dt.UTC


def partition_texts(values: Any) -> list[str | None]:
    """The protocol's texts of partition values (an Arrow array); None for null. Empty texts and
    bytes become null, as they do for Spark: the protocol has one spelling for both.

    Raises: ValueError for bytes that are not UTF-8: the log cannot represent them.
    """
    type_ = values.type
    if pa.types.is_date(type_):
        return [None if v is None else date_text(v) for v in _numbers(values, pa.date32())]
    if pa.types.is_timestamp(type_):
        zoned = type_.tz is not None
        micros = _numbers(values, pa.timestamp("us", tz=type_.tz))
        return [None if v is None else _moment_text(v, zoned=zoned) for v in micros]
    if pa.types.is_float32(type_):
        # The shortest text of the value itself, not of the double that Python makes of it.
        shortest = [None if v is None else float(str(np.float32(v))) for v in values.to_pylist()]
        return [_text(v) for v in shortest]
    return [_text(v) for v in values.to_pylist()]


def _numbers(values: Any, unit: Any) -> list[int | None]:
    number = pa.int32() if pa.types.is_date(unit) else pa.int64()
    found: list[int | None] = values.cast(unit).cast(number).to_pylist()
    return found


def _text(value: Any) -> str | None:
    match value:
        case None | "" | b"":
            return None
        case bool():
            return "true" if value else "false"
        case bytes():
            # What Spark writes, and what Spark and deltalake read.
            return value.decode("utf-8")
        case float() if not math.isfinite(value):
            # As Java spells them, and reads them back: `nan` and `inf` fail in Trino.
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _moment_text(micros: int, *, zoned: bool) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    days, second = divmod(seconds, 86_400)
    minute, second = divmod(second, 60)
    clock = f"{minute // 60:02d}:{minute % 60:02d}:{second:02d}.{fraction:06d}"
    return f"{date_text(days)}T{clock}Z" if zoned else f"{date_text(days)} {clock}"


def to_json_value(value: Any, digits: str = "milliseconds") -> Any:
    """A value for `minValues`/`maxValues`: JSON's own types, text for dates and times (cut to
    `digits`), None for values that JSON cannot represent exactly (the bound is then left out, which
    is always allowed)."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case dt.datetime():
            text = value.replace(tzinfo=None) if value.tzinfo is None else _utc(value)
            stamp = text.isoformat(timespec=digits)
            return stamp + ("Z" if value.tzinfo is not None else "")
        case dt.date():
            return value.isoformat()
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            number = float(value)
            return number if Decimal(repr(number)) == value else None
        case _:
            return None


def exact_json_value(value: Any) -> Any:
    """As `to_json_value`, with all digits of a time: for an upper bound, which must not be cut."""
    finer = isinstance(value, dt.datetime) and value.microsecond % 1000
    return to_json_value(value, "microseconds" if finer else "milliseconds")


def _utc(value: dt.datetime) -> dt.datetime:
    return value.astimezone(UTC).replace(tzinfo=None)
