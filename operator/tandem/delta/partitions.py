"""Partition values: the log's texts as typed Arrow scalars and back (protocol, "Partition Value
Serialization"), values in statistics, and rows by partition.

Dates and times may lie outside of Python's calendar, which has the years 1 to 9999: Delta, Spark
and Arrow count days and microseconds from 1970 and go much further in both directions. Texts are
Spark's: a year beyond 9999 has a plus sign, one before 1 a minus sign or is 0000 (proleptic
Gregorian calendar). No I/O.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import DataType, PrimitiveType, to_arrow_type
from tandem.distinct import IntArray, number_rows
from tandem.errors import CorruptLog

_DATE = re.compile(r"([+-]?)(\d{4,7})-(\d{1,2})-(\d{1,2})")
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


# Converts the log's texts of partition values to typed Arrow scalars (protocol, "Partition Value
# Serialization"). The other direction is `tandem.delta.partitions.partition_texts`. No I/O.


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


# Converts Python values to the protocol's texts: partition values, and values in statistics.
#
# Source: protocol, "Partition Value Serialization" and "Per-file Statistics". No I/O.


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


# Rows by partition: the texts of their partition values, and the values that have no such text.
#
# No I/O.


_FIRST_DAY: Final = days_of("-262143-01-01")
_LAST_DAY: Final = days_of("+262142-12-31")
"""Of the days that deltalake reads: for another one in the log it refuses the whole table."""
_DAY_US: Final = 86_400_000_000
_SHOWN: Final = 60


class Unstorable(NamedTuple):
    """A value that a partition column cannot hold: its row, its text for an error, and what the
    column can hold."""

    row: int
    found: str
    expected: str


def unstorable(values: Any) -> Unstorable | None:
    """The first value of an Arrow array that a partition column does not give back as it is, None
    if it can hold all of them.

    The log has texts. An empty one is NULL, bytes are read as UTF-8, and a day has limits.
    """
    is_ = pa.types
    if is_.is_string(values.type):
        wrong = pc.equal(values, "")
        expected = "text that is not empty: Delta stores the empty one as NULL"
    elif is_.is_binary(values.type):
        encoded = values.dictionary_encode()
        known = [not _is_text(value) for value in encoded.dictionary.to_pylist()]
        wrong = pa.array(known, pa.bool_()).take(encoded.indices)
        expected = "UTF-8 that is not empty: Delta stores a text, and the empty one as NULL"
    elif is_.is_date(values.type) or is_.is_timestamp(values.type):
        unit = 1 if is_.is_date(values.type) else _DAY_US
        numbers = values.cast(pa.int32() if unit == 1 else pa.int64())
        wrong = pc.or_(
            pc.less(numbers, _FIRST_DAY * unit),
            pc.greater_equal(numbers, pa.scalar((_LAST_DAY + 1) * unit)),
        )
        expected = "years -262143 to 262142: deltalake cannot read others"
    else:
        return None
    row = pc.index(wrong, pa.scalar(True)).as_py()
    return None if row < 0 else Unstorable(row, _shown(values.slice(row, 1)), expected)


def given_back(values: Any) -> Any:
    """The values of an Arrow array as a partition column gives them back: all NaNs have one text,
    so they lose their payload."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode())
    except UnicodeDecodeError:
        return False


def _shown(value: Any) -> str:
    [found] = python_values(value)
    if isinstance(found, bytes):
        return f"X'{found[:_SHOWN].hex()}'"
    return repr(found) if found == "" else str(found)[:_SHOWN]


class EncodedTexts(NamedTuple):
    """The texts of rows, dictionary-encoded: that of row i is `dictionary[indices[i]]`. A text may
    be in the dictionary twice."""

    indices: Any
    dictionary: list[str | None]


def encoded_texts(column: Any) -> EncodedTexts:
    """The partition values of an Arrow array. Raises: UnicodeDecodeError."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        # Arrow treats 0.0 and -0.0, which have different texts, as one value.
        return EncodedTexts(np.arange(len(column)), partition_texts(column))
    encoded = column.dictionary_encode(null_encoding="encode")
    return EncodedTexts(encoded.indices.to_numpy(), partition_texts(encoded.dictionary))


def combinations(
    columns: Sequence[EncodedTexts],
) -> tuple[IntArray, list[tuple[str | None, ...]]]:
    """The number of each row's combination of texts, and the combinations, in the order of their
    first occurrence."""
    codes, first = number_rows([column.indices for column in columns])
    found: dict[tuple[str | None, ...], int] = {}
    number = np.empty(len(first), np.int64)
    for place in np.argsort(first):
        key = tuple(column.dictionary[column.indices[first[place]]] for column in columns)
        number[place] = found.setdefault(key, len(found))
    return number[codes], list(found)
