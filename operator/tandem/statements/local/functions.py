"""Functions of one value over Arrow, and for which values they are proven equal to Spark's.

They raise pa.ArrowInvalid for other values: upper and lower case of characters beyond ASCII (Java
and Arrow follow different versions of Unicode), parts of dates in years of other than four digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.statements.local import kernels
from tandem.statements.types import SqlType

Function = Callable[[Any], Any]
"""A function of an Arrow array or scalar."""


def function_of(name: str, argument: SqlType) -> Function | None:
    """The function of that name for an argument of this type; None if ours is not proven equal."""
    if argument.name == "string":
        return _OF_TEXTS.get(name)
    part = _OF_DATES.get(name)
    if part is None or argument.name not in ("date", *kernels.MOMENTS):
        return None
    if argument.name == "date":
        return lambda value: _part(part, value)
    return lambda value: _part(part, kernels.date_of_moment(value))


def _in_ascii(function: Function) -> Function:
    def step(value: Any) -> Any:
        if kernels.is_any(pc.invert(pc.string_is_ascii(value))):
            raise pa.ArrowInvalid("a character beyond ASCII")
        return function(value)

    return step


def _part(function: Function, days: Any) -> Any:
    kernels.require_four_digits(days)
    return kernels.cast(function(days), pa.int32())


_OF_TEXTS: Final[Mapping[str, Function]] = {
    "upper": _in_ascii(pc.ascii_upper),
    "lower": _in_ascii(pc.ascii_lower),
    "trim": lambda value: pc.ascii_trim(value, characters=" "),
    "ltrim": lambda value: pc.ascii_ltrim(value, characters=" "),
    "rtrim": lambda value: pc.ascii_rtrim(value, characters=" "),
}
_OF_DATES: Final[Mapping[str, Function]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda days: pc.day_of_week(days, count_from_zero=False, week_start=7),
    "weekday": pc.day_of_week,
}
