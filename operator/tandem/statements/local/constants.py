"""Literals as Arrow scalars, of their own type or of the type to which Spark casts them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.statements import tree
from tandem.statements.datetimes import parse_date, parse_timestamp
from tandem.statements.local.rows import arrow_type
from tandem.statements.types import SqlType

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def constant(node: tree.Literal) -> Any:
    """A literal as a scalar of its type; None if it has no exact one."""
    value: Any = node.value
    if value is None:
        return pa.scalar(None, arrow_type(node.type))
    if node.type.name in ("float", "double") and _is_negative_zero(value):
        # Spark treats -0.0 and 0.0 as one constant when it shares equal expressions.
        return None
    if node.type.name == "float":
        value = _nearest_float(value)
    elif node.type.name == "decimal":
        value = Decimal(value)
    return None if value is None else pa.scalar(value, arrow_type(node.type))


def constant_as(node: tree.Literal, target: SqlType) -> Any:
    """A literal as a scalar of another type: a string that is certainly such a value, or a number
    as a DOUBLE. None for every other cast."""
    value: Any = node.value
    if target.name == "double" and isinstance(value, Decimal) and node.type.name == "decimal":
        return pa.scalar(float(value), pa.float64())
    if not isinstance(value, str):
        return None
    found: Any = None
    if target.name == "long" and _WHOLE.fullmatch(value):
        found = int(value)
    elif target.name == "date":
        found = parse_date(value)
    elif target.name in ("timestamp", "timestamp_ntz"):
        found = parse_timestamp(value, zoned=target.name == "timestamp")
    return None if found is None else pa.scalar(found, arrow_type(target))


def _is_negative_zero(value: float | Decimal) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def _nearest_float(value: Decimal) -> np.float32 | None:
    """The 32-bit number nearest to a decimal; rounding it to 64 bits first may give another."""
    about = np.float32(float(value))
    around = [np.nextafter(about, np.float32(end)) for end in (-np.inf, np.inf)]
    near = sorted([about, *around], key=lambda f: abs(Decimal(float(f)) - value))
    gaps = [abs(Decimal(float(f)) - value) for f in near[:2]]
    return near[0] if gaps[0] < gaps[1] else None
