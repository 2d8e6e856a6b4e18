"""Partition values: the log's texts → typed Arrow scalars (protocol, "Partition Value
Serialization"). The other direction is `tandem.delta.values.to_partition_text`. No I/O.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from tandem.delta.calendar import days_of
from tandem.delta.schema import DataType, PrimitiveType, to_arrow_type
from tandem.errors import CorruptLog

_OFFSET = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")
_INTEGERS = {"byte", "short", "integer", "long"}


def to_scalar(text: str | None, type_: DataType, *, resource: str = "", column: str = "") -> Any:
    """The typed `pa.Scalar` of a logged partition value; null for None and for "".

    Raises: CorruptLog if the text is no value of that type.
    """
    arrow = to_arrow_type(type_)
    if text is None or text == "":
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
            try:
                return text.encode("latin-1")
            except UnicodeEncodeError:
                return text.encode("utf-8")
        case "timestamp" | "timestamp_ntz":
            return _instant(text, aware=name == "timestamp")
        case _:
            raise ValueError(f"no partition values of type {name}")


def _instant(text: str, *, aware: bool) -> dt.datetime:
    """Both forms of the protocol: `2020-01-01 00:00:00[.ffffff]` (UTC) and ISO 8601 with a
    zone."""
    zone = _OFFSET.search(text)
    # Python reads three or six digits of a fraction in 3.11, writers log any number.
    plain = text[: zone.start()] if zone and len(text) > 10 else text
    whole, _, fraction = plain.partition(".")
    value = dt.datetime.fromisoformat(whole).replace(microsecond=int((fraction + "000000")[:6]))
    if not aware:
        return value
    if zone and len(text) > 10 and zone[1] != "Z":
        offset = dt.datetime.strptime(zone[1].replace(":", ""), "%z").tzinfo
        return value.replace(tzinfo=offset).astimezone(dt.UTC)
    return value.replace(tzinfo=dt.UTC)
