"""Spark's literals, functions and operators over Arrow values, where the two differ or an error
must be detected, and for which values they are proven equal.

Also the rows on which a local expression is evaluated, and the error if Spark must evaluate them.
Columns are read lazily and once: an expression on the pairs of a join takes from either side only
the columns that it names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import PrimitiveType, parse, to_arrow_type
from tandem.statements import tree
from tandem.statements.coercion import parse_date, parse_timestamp
from tandem.statements.types import SqlType

BOUNDED = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of text columns whose lengths only Spark checks, and whose values it pads."""


class NeedsSpark(Exception):
    """These rows cannot be evaluated here.

    Either Spark would raise on one of them (an overflow, a division by zero, a value that does not
    fit its column) and has the better message, or it might in one order of evaluation, or the rows
    have a form that is not covered. Spark determines the result.
    """


def arrow_type(data_type: SqlType) -> Any:
    """The Arrow type of a statement's type in tables. Raises: KeyError for a type that has none, or
    whose text is padded."""
    if data_type.name == "null":
        return pa.null()
    if data_type.name == "struct":
        return pa.struct([(field.name, arrow_type(field.type)) for field in data_type.fields])
    if data_type.nested:
        [field] = parse(f'{{"type":"struct","fields":[{{"name":"x","type":{data_type.nested}}}]}}')
        return to_arrow_type(field.type)
    if data_type.name == "decimal":
        return pa.decimal128(data_type.precision, data_type.scale)
    return to_arrow_type(PrimitiveType(data_type.name))


class LocalRows:
    """Rows of one table, or of the pairs of a join.

    `sides` has the tables by the name of their relation ("" for a statement on one table), each
    with the indexes of its rows; None for all. A missing relation has no rows here, such as the
    table in a clause on source rows without a match.
    """

    def __init__(self, sides: Mapping[str, tuple[pa.Table, Any]], length: int) -> None:
        self.length = length
        self._sides = sides
        self._read: dict[tuple[str, tuple[str, ...]], Any] = {}

    @classmethod
    def of(cls, table: pa.Table, relation: str = "") -> LocalRows:
        """All rows of a table."""
        return cls({relation: (table, None)}, table.num_rows)

    def take(self, indices: Any) -> LocalRows:
        """Some of these rows, by their indexes here (an Arrow array or numpy array)."""
        chosen = pa.array(indices, pa.int64())
        sides = {
            name: (table, chosen if before is None else pc.take(before, chosen))
            for name, (table, before) in self._sides.items()
        }
        return LocalRows(sides, len(chosen))

    def column(self, relation: str, path: tuple[str, ...]) -> Any:
        """A column, or a field inside struct columns, as one Arrow array.

        Raises: NeedsSpark if it is too large to be one array.
        """
        key = (relation, path)
        if key not in self._read:
            self._read[key] = self._column(relation, path)
        return self._read[key]

    def _column(self, relation: str, path: tuple[str, ...]) -> Any:
        if len(path) > 1:
            # A field of a NULL struct is NULL.
            above = self.column(relation, path[:-1])
            index = above.type.get_field_index(path[-1])
            if index < 0:
                raise NeedsSpark(f"several fields, or none, are called {path[-1]}")
            # By position: Arrow takes a name that begins with a dot for a path.
            return pc.struct_field(above, [index])
        table, indices = self._sides[relation]
        column = table.column(path[0]).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            if column.num_chunks > 1:
                raise NeedsSpark(f"{path[0]} is too large to be one array")
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        return column if indices is None else column.take(indices)


# Literals as Arrow scalars, of their own type or of the type to which Spark casts them.


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


# Functions of one value over Arrow, and for which values they are proven equal to Spark's.
#
# They raise pa.ArrowInvalid for other values: upper and lower case of characters beyond ASCII
# (Java and Arrow follow different versions of Unicode), parts of dates in years of other than four
# digits.


Function = Callable[[Any], Any]
"""A function of an Arrow array or scalar."""


def function_of(name: str, argument: SqlType) -> Function | None:
    """The function of that name for an argument of this type; None if ours is not proven equal."""
    if argument.name == "string":
        return _OF_TEXTS.get(name)
    part = _OF_DATES.get(name)
    if part is None or argument.name not in ("date", *MOMENTS):
        return None
    if argument.name == "date":
        return lambda value: _part(part, value)
    return lambda value: _part(part, date_of_moment(value))


def _in_ascii(function: Function) -> Function:
    def step(value: Any) -> Any:
        if is_any(pc.invert(pc.string_is_ascii(value))):
            raise pa.ArrowInvalid("a character beyond ASCII")
        return function(value)

    return step


def _part(function: Function, days: Any) -> Any:
    require_four_digits(days)
    return cast(function(days), pa.int32())


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


# Spark's operators over Arrow values, where the two differ or an error must be detected.
#
# Values are Arrow arrays or, for constants, Arrow scalars. NULL is propagated as in SQL. Where
# Spark's ANSI mode raises (overflow, division by zero), these raise `pa.ArrowInvalid`.


Value = Any
"""`pa.Array` or `pa.Scalar`."""
Convert = Callable[[Value], Value]

_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_FOUR_DIGITS: Final = ("0001-01-01", "9999-12-31")
MOMENTS: Final = ("timestamp", "timestamp_ntz")
_DAY: Final = 86_400_000_000


def cast(value: Value, to: Any, *, safe: bool = True) -> Value:
    """A value as an Arrow type. Raises: pa.ArrowInvalid if it does not fit and `safe`."""
    return pc.cast(value, to, safe=safe)


def converter(source: SqlType, target: SqlType) -> Convert | None:
    """Spark's ANSI cast between two types; None if ours is not proven equal to it.

    The result raises pa.ArrowInvalid for a value that does not fit.
    """
    if source == target:
        return lambda value: value
    if not (source.is_atomic and target.is_atomic):
        return None
    if source.name == "null":
        return lambda _value: pa.scalar(None, arrow_type(target))
    if source.is_numeric and target.is_numeric:
        return _number(source, target)
    to = arrow_type(target)
    if source.name == "date" and target.name in MOMENTS:
        # Both raise for years that do not fit in microseconds.
        return lambda value: cast(value, to)
    if source.name in MOMENTS and target.name in MOMENTS:
        return lambda value: cast(value, to)
    if source.name in MOMENTS and target.name == "date":
        return date_of_moment
    if source.name == "boolean" and target.is_integral:
        return lambda value: cast(value, to)
    if source.is_integral and target.name == "boolean":
        zero = pa.scalar(0, arrow_type(source))
        return lambda value: pc.not_equal(value, zero)
    if target.name == "string" and (source.is_integral or source.name == "boolean"):
        return lambda value: cast(value, to)
    if (source.name, target.name) == ("date", "string"):
        return _text_of_date
    return None


def _number(source: SqlType, target: SqlType) -> Convert | None:
    to = arrow_type(target)
    if source.is_integral and target.is_integral:
        return lambda value: cast(value, to)
    if source.is_integral and target.name == "decimal":
        if _DIGITS[source.name] + target.scale > 38:
            return None
        wide = pa.decimal128(38, target.scale)
        return lambda value: cast(cast(value, wide), to)
    if source.name == "decimal" and target.name == "decimal":
        return (lambda value: cast(value, to)) if target.scale >= source.scale else None
    if target.name == "float" and source.name in ("integer", "long"):
        # Spark's optimizer removes this cast below one to double, and with it the rounding
        # (`SimplifyCasts`).
        return None
    if target.name in ("float", "double") and source.name != "decimal":
        # Both round to nearest, ties to even; a number too large for a float becomes infinite.
        return lambda value: cast(value, to, safe=False)
    return None


def date_of_moment(value: Value) -> Value:
    """The day of a time in UTC, also before 1970."""
    micros = cast(value, pa.int64())
    day = pa.scalar(_DAY)
    days = pc.divide(micros, day)  # towards zero
    is_before = pc.less(micros, pc.multiply(days, day))
    days = pc.subtract(days, cast(is_before, pa.int64()))
    return cast(cast(days, pa.int32()), pa.date32())


def _text_of_date(value: Value) -> Value:
    require_four_digits(value)
    return cast(value, pa.string())


def require_four_digits(value: Value) -> None:
    """Raises: pa.ArrowInvalid for a date in a year of another number of digits."""
    first, last = (cast(pa.scalar(day), pa.date32()) for day in _FOUR_DIGITS)
    if is_any(pc.or_(pc.less(value, first), pc.greater(value, last))):
        raise pa.ArrowInvalid("a year of another number of digits than four")


def is_any(value: Value) -> bool:
    """Whether a condition is true of any row."""
    if isinstance(value, pa.Scalar):
        return bool(value.as_py())
    return bool(pc.any(value).as_py())


def is_floating(data_type: SqlType) -> bool:
    return data_type.name in ("float", "double")


def equal(left: Value, right: Value, data_type: SqlType) -> Value:
    """`=`; in Spark NaN equals NaN, and -0.0 equals 0.0."""
    same = pc.equal(left, right)
    if not is_floating(data_type):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def less(left: Value, right: Value, data_type: SqlType) -> Value:
    """`<`; in Spark NaN is greater than every other number."""
    smaller = pc.less(left, right)
    if not is_floating(data_type):
        return smaller
    return pc.or_(smaller, pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def compare(op: str, left: Value, right: Value, data_type: SqlType) -> Value:
    """= != < <= > >= <=> between values of one type."""
    match op:
        case "=":
            return equal(left, right, data_type)
        case "!=":
            return pc.invert(equal(left, right, data_type))
        case "<":
            return less(left, right, data_type)
        case ">":
            return less(right, left, data_type)
        case "<=":
            return pc.invert(less(right, left, data_type))
        case ">=":
            return pc.invert(less(left, right, data_type))
        case "<=>":
            both = pc.and_(pc.is_null(left), pc.is_null(right))
            return pc.or_(is_true(equal(left, right, data_type)), both)
        case _:
            raise AssertionError(f"{op} is no comparison")


def is_true(value: Value) -> Value:
    """NULL as false."""
    return pc.coalesce(value, pa.scalar(False))


def add(left: Value, right: Value) -> Value:
    return pc.add_checked(left, right)


def subtract(left: Value, right: Value) -> Value:
    return pc.subtract_checked(left, right)


def multiply(left: Value, right: Value) -> Value:
    return pc.multiply_checked(left, right)


def divide(left: Value, right: Value) -> Value:
    """Integers round towards zero. Raises for a zero divisor of a value, also for floats."""
    return pc.divide_checked(left, right)


def remainder(left: Value, right: Value) -> Value:
    """% of integers: the result has the dividend's sign.

    The smallest number % -1 is 0 in Spark, and raises here.
    """
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))


def negate(value: Value, data_type: SqlType) -> Value:
    return pc.negate_checked(value) if data_type.is_integral else pc.negate(value)


def choose(condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition is true, `no` where it is false or NULL."""
    return pc.if_else(is_true(condition), yes, no)


def join(parts: list[Value]) -> Value:
    """Concatenated strings; NULL if one is NULL."""
    return pc.binary_join_element_wise(*parts, pa.scalar(""), null_handling="emit_null")


def characters(value: Value) -> Value:
    """Check that the characters of strings can be counted. Spark stores any bytes as a string, and
    decodes bytes that are not UTF-8 differently from Arrow.

    Raises: pa.ArrowInvalid for such bytes.
    """
    if isinstance(value, pa.Array):
        cast(value.view(pa.binary()), pa.string())
    return value


def broadcast(value: Value, length: int) -> Any:
    """A constant as an array; an array unchanged."""
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


# LIKE over Arrow strings, for patterns that `statements.functions` accepts.


def like(pattern: str, escape: str) -> Callable[[Any], Any]:
    """A test of strings with the semantics of Spark's LIKE: % matches any text, including line
    breaks, _ any single character, and both match themselves after the escape character. The test
    raises pa.ArrowInvalid for bytes that are not UTF-8 if characters matter."""
    parts = _parts(pattern, escape)
    if "_" not in [part for part, literal in parts if not literal]:
        wild = [not literal for _, literal in parts]
        text = "".join(part for part, literal in parts if literal)
        if not any(wild):
            return lambda value: pc.equal(value, pa.scalar(text))
        if wild == [False, True]:
            return lambda value: pc.starts_with(value, text)
        if wild == [True, False]:
            return lambda value: pc.ends_with(value, text)
        if wild == [True, False, True]:
            return lambda value: pc.match_substring(value, text)
    regex = "".join(_quoted(part) if literal else _WILD[part] for part, literal in parts)
    whole = rf"(?s)\A(?:{regex})\z"
    return lambda value: pc.match_substring_regex(characters(value), whole)


_WILD = {"%": ".*", "_": "."}


def _parts(pattern: str, escape: str) -> list[tuple[str, bool]]:
    """Each wildcard separately, and the literal texts between them (True)."""
    parts: list[tuple[str, bool]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        literal = char == escape or char not in _WILD
        if char == escape:
            at += 1
            char = pattern[at]
        if literal and parts and parts[-1][1]:
            parts[-1] = (parts[-1][0] + char, True)
        else:
            parts.append((char, literal))
        at += 1
    return parts


def _quoted(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):X}}}" for c in text)
