"""Values to compare bounds with: constants of a condition, and partition values.

Numbers are int, float or Decimal; texts are bytes of UTF-8 (unsigned, as Spark compares them);
times are date or datetime (with a zone for timestamp). None stands for a value whose order is
not certain.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from tandem.statements import tree
from tandem.statements.datetimes import parse_date, parse_timestamp
from tandem.statements.types import MAX_PRECISION, SqlType, as_decimal

INTEGRAL = frozenset({"byte", "short", "integer", "long"})
FLOATING = frozenset({"float", "double"})
MOMENTS = frozenset({"timestamp", "timestamp_ntz"})


def usable(value: Any, data_type: SqlType) -> Any:
    """A value of a column if it has the right type, else None."""
    name = data_type.name
    if name in INTEGRAL:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if name in FLOATING:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number and math.isfinite(value) else None
    if name in MOMENTS:
        moment = isinstance(value, dt.datetime)
        return value if moment and (value.tzinfo is not None) == (name == "timestamp") else None
    match name:
        case "decimal":
            return value if isinstance(value, Decimal) and value.is_finite() else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return value.encode() if isinstance(value, str) else None
        case "date":
            is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
            return value if is_date else None
        case _:
            return None


def comparable_constant(literal: tree.Literal, target: SqlType) -> Any:
    """The constant as a value of the column's type, if Spark compares the two as Python does.

    None if it does not, or if their order is not clear.
    """
    value = literal.value
    if target.name in INTEGRAL or target.name == "decimal":
        return _exact_number(literal, target)
    if target.name in FLOATING:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return None
        if literal.type.name == "float":
            return None
        number = float(value)
        # Decimals and long integers are rounded to a double by Spark's own rules.
        return number if math.isfinite(number) and number == value else None
    if target.name in MOMENTS:
        return _moment(literal, zoned=target.name == "timestamp")
    match target.name:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return value.encode() if isinstance(value, str) else None
        case "date":
            if isinstance(value, str):
                return parse_date(value)
            return value if literal.type == target else None
        case _:
            return None


def _exact_number(literal: tree.Literal, target: SqlType) -> Any:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    if literal.type.name not in INTEGRAL and literal.type.name != "decimal":
        return None
    if target.is_integral and literal.type.is_integral:
        return value
    a, b = as_decimal(literal.type), as_decimal(target)
    # Beyond the widest decimal, Spark drops digits.
    scale = max(a.scale, b.scale)
    if max(a.precision - a.scale, b.precision - b.scale) + scale > MAX_PRECISION:
        return None
    return Decimal(value)


def _moment(literal: tree.Literal, *, zoned: bool) -> dt.datetime | None:
    value = literal.value
    if isinstance(value, dt.datetime):
        return value if (value.tzinfo is not None) == zoned else None
    if isinstance(value, dt.date):
        zone = dt.UTC if zoned else None
        return dt.datetime.combine(value, dt.time(), tzinfo=zone)
    return parse_timestamp(value, zoned=zoned) if isinstance(value, str) else None
