"""Dates and times outside of Python's calendar, which has the years 1 to 9999.

Delta, Spark and Arrow count days and microseconds from 1970 and go much further in both
directions. Texts are Spark's: a year beyond 9999 has a plus sign, one before 1 a minus sign or is
0000 (proleptic Gregorian calendar). No I/O.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

_DATE = re.compile(r"([+-]?)(\d{4,7})-(\d{1,2})-(\d{1,2})")
_DAY_US = 86_400_000_000
_ERA_DAYS = 146_097
"""The number of days in 400 years, after which the calendar repeats."""
_EPOCH = 719_468
"""The number of days from 1 March of the year 0 to 1 January 1970."""


def days_of(text: str) -> int:
    """Days since 1970 of a date such as `2020-01-31`, `+10000-01-01` or `-0044-03-15`.
    Raises: ValueError if it is not a date."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    year = -int(match[2]) if match[1] == "-" else int(match[2])
    month, day = int(match[3]), int(match[4])
    if not 1 <= month <= 12:
        raise ValueError(f"{text!r} has no such month")
    days = _days(year, month, day)
    if day < 1 or _civil(days) != (year, month, day):
        raise ValueError(f"{text!r} has no such day")
    return days


def date_text(days: int) -> str:
    """The date that is so many days after 1 January 1970."""
    year, month, day = _civil(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def moment_text(micros: int, *, aware: bool) -> str:
    """The moment that is so many microseconds after 1970, as Python's `isoformat` writes one;
    `aware` adds the zone, UTC."""
    days, rest = divmod(micros, _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    parts = f".{fraction:06d}" if fraction else ""
    return f"{date_text(days)}T{clock}{parts}{'+00:00' if aware else ''}"


def python_values(array: Any) -> list[Any]:
    """`to_pylist` of an Arrow array or record batch of the table's types. Dates and times outside
    of Python's range become texts; bytes of a text that are not UTF-8 are escaped (`\\xff`)."""
    try:
        found: list[Any] = array.to_pylist()
    except (OverflowError, UnicodeDecodeError):
        if isinstance(array, pa.RecordBatch):
            columns = [python_values(column) for column in array.columns]
            return [
                dict(zip(array.schema.names, row, strict=True))
                for row in zip(*columns, strict=True)
            ]
        return [_python(scalar) for scalar in array]
    return found


def _python(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    type_ = scalar.type
    if pa.types.is_struct(type_):
        return {name: _python(value) for name, value in scalar.items()}
    if pa.types.is_map(type_):
        return [(_python(e["key"]), _python(e["value"])) for e in scalar.values]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_python(value) for value in scalar.values]
    if pa.types.is_dictionary(type_):
        return _python(scalar.value)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode(errors="backslashreplace")
    except OverflowError:
        if pa.types.is_date32(type_):
            return date_text(scalar.value)
        micros = scalar.cast(pa.timestamp("us", tz=type_.tz)).value
        return moment_text(micros, aware=type_.tz is not None)


def _days(year: int, month: int, day: int) -> int:
    # Years begin with March here, so that the leap day is the last one.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day."""
    era, of_era = divmod(days + _EPOCH, _ERA_DAYS)
    of_cycle = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * of_cycle + of_cycle // 4 - of_cycle // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + of_cycle + (month <= 2), month, day
