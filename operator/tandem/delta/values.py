"""Python values → the texts of the protocol: partition values and values in statistics JSON.

Source: protocol, "Partition Value Serialization" and "Per-file Statistics". No I/O.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

UTC = dt.UTC


def to_partition_text(value: Any) -> str | None:
    """The protocol's text of a partition value; None for null. The empty string also reads as
    null, so that is what it becomes."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            if value.tzinfo is not None:
                text = value.astimezone(UTC).replace(tzinfo=None).isoformat(sep="T")
                return _with_micros(text) + "Z"
            return _with_micros(value.isoformat(sep=" "))
        case dt.date():
            return value.isoformat()
        case bytes():
            # "Encoded as a string of escaped binary values".
            return value.decode("latin-1")
        case Decimal():
            return format(value, "f")
        case float() if not math.isfinite(value):
            # As Java spells them, and reads them back: `nan` and `inf` fail in Trino.
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return str(value)


def to_json_value(value: Any) -> Any:
    """A value for `minValues`/`maxValues`: JSON's own types, text for dates and times, None for
    what JSON cannot carry exactly (the bound is then left out, which is always allowed)."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case dt.datetime():
            text = value.replace(tzinfo=None) if value.tzinfo is None else _utc(value)
            stamp = text.isoformat(timespec="milliseconds")
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


def _utc(value: dt.datetime) -> dt.datetime:
    return value.astimezone(UTC).replace(tzinfo=None)


def _with_micros(text: str) -> str:
    return text if "." in text else text + ".000000"
