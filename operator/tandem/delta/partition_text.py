"""Converts the log's texts of partition values to typed Arrow scalars (protocol, "Partition Value
Serialization"). The other direction is `tandem.delta.values.partition_texts`. No I/O.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from tandem.delta.calendar import days_of
from tandem.delta.schema import DataType, PrimitiveType, to_arrow_type
from tandem.errors import CorruptLog

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive and Spark name the partition of NULL, in folders and in statements."""
_MOMENT = re.compile(
    r"([+-]?\d{4,6}-\d\d-\d\d)"
    r"(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d:?\d\d)?)?"
)
_INTEGERS = {"byte", "short", "integer", "long"}
_FLOATS = {"float", "double"}


def to_scalar(text: str | None, type_: DataType, *, resource: str = "", column: str = "") -> Any:
    """The typed `pa.Scalar` of a logged partition value; null for None, and for "" if that is not
    a value of the type. (By the protocol "" is null for texts and bytes, too; Spark and deltalake
    read it as the empty value.)

    Raises: CorruptLog if the text is not a value of that type.
    """
    arrow = to_arrow_type(type_)
    if text is None or (
        text == "" and not (pa.types.is_string(arrow) or pa.types.is_binary(arrow))
    ):
        return pa.scalar(None, arrow)
    try:
        value = _value(text, type_)
        return value.cast(arrow) if isinstance(value, pa.Scalar) else pa.scalar(value, arrow)
    except (ValueError, InvalidOperation, OverflowError, pa.ArrowInvalid) as error:
        raise CorruptLog(
            "a partition value cannot be read",
            resource=resource,
            field=f"add.partitionValues.{column}",
            found=text[:100],
            expected=f"a value of type {getattr(type_, 'name', type_)}",
            remedy="Restore the table to a version before this file was added",
        ) from error


def _value(text: str, type_: DataType) -> Any:
    if not isinstance(type_, PrimitiveType):
        raise ValueError("a table cannot be partitioned by a nested column")
    name = type_.name
    is_number = name in _INTEGERS or name in _FLOATS or type_.decimal is not None
    if is_number and ("_" in text or not text.isascii()):
        # `1_000` and digits of other scripts are numbers to no other reader.
        raise ValueError("digits as only Python reads them")
    if name in _INTEGERS:
        return int(text)
    if type_.decimal is not None:
        return Decimal(text)
    match name:
        case "string":
            return text
        case "float" | "double":
            return float(text)
        case "boolean":
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise ValueError("neither true nor false")
            return lowered == "true"
        case "date":
            # Some writers log a date with a time of midnight.
            return pa.scalar(days_of(text.split(" ")[0].split("T")[0]), pa.int32())
        case "binary":
            # Spark and deltalake take the bytes of the text as the value, although the protocol
            # speaks of "escaped" ones.
            return text.encode("utf-8")
        case "timestamp" | "timestamp_ntz":
            return _instant(text, aware=name == "timestamp")
        case _:
            raise ValueError(f"no partition values of type {name}")


def _instant(text: str, *, aware: bool) -> int:
    """Microseconds since 1970, from both forms of the protocol: `2020-01-01 00:00:00[.ffffff]`
    (UTC), and ISO 8601 with a zone. Digits of the fraction beyond the sixth are cut off."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("no moment")
    date, hour, minute, second, fraction, zone = found.groups()
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0))
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    if aware and zone and zone != "Z":
        digits = zone[1:].replace(":", "")
        offset = (int(digits[:2]) * 60 + int(digits[2:4])) * 60
        seconds += offset if zone[0] == "-" else -offset
    micros = int(((fraction or "") + "000000")[:6])
    return (days_of(date) * 86_400 + seconds) * 1_000_000 + micros
