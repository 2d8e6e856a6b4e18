"""Types of operands and results: Spark 4.2's ANSI rules.

Follows Spark's AnsiTypeCoercion, DecimalPrecision and Cast.canAnsiCast. The trees keep the user's
expressions, which Spark coerces itself; we compute types to refuse what Spark would refuse, with a
better message, and to determine when a SET needs a cast. Tests compare every type computed here
with Spark's.

Texts and numbers in a statement that Spark cannot convert to the type that it needs there.

Spark finds that out on the first row that it evaluates: `id = 'abc'` fails the job. It is refused
before, if it is certain; texts of which Spark alone knows are left to it. Texts in columns are not
considered.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from tandem.statements import tree
from tandem.statements.tree import Expr, Literal
from tandem.statements.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTERVAL_DAY,
    INTERVAL_DAY_SECOND,
    INTERVAL_YEAR_MONTH,
    LONG,
    MAX_PRECISION,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    UNKNOWN,
    SqlType,
    as_decimal,
    decimal,
)

# The dialect in which statements are written: Spark 4.2 SQL, ANSI mode. Here are the limits on the
# size of a text, and the words with a special meaning; the settings of the session that evaluates
# it are in `tandem.spark.runtime.session`.


MAX_TEXT: Final = 16_384
"""Maximum characters of one expression."""
MAX_NODES: Final = 2_000
"""Maximum nodes of one tree."""
MAX_NESTING: Final = 60
"""Maximum levels of parentheses, calls and CASE; also bounds the recursion of the parser."""
MAX_DEPTH: Final = 100
"""Maximum levels of the tree: chains such as a + b + c count one level for each operator."""
MAX_IN_LIST: Final = 1_000
MAX_STRING: Final = 4_096
"""Maximum characters of one string literal, and bytes of one binary literal."""
MAX_IDENTIFIER: Final = 255
MAX_PATTERN: Final = 256
"""Maximum characters of a LIKE, ILIKE or RLIKE pattern."""
MAX_PATTERN_WILDCARDS: Final = 4
"""Maximum unbounded repetitions in one pattern: matching takes at most about length ** 4 steps."""
MAX_SET: Final = 500
"""Maximum columns that one update may set."""

_RESERVED = """
    ALL AND ANTI ANY AS ASC BETWEEN CASE CAST COLLATE CROSS DESC DISTINCT DIV ELSE END ESCAPE
    EXCEPT EXISTS FALSE FOR FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT IS JOIN LATERAL LEFT
    LIKE LIMIT MINUS NATURAL NOT NULL OFFSET ON OR ORDER OUTER OVER QUALIFY REGEXP RIGHT RLIKE
    SELECT SEMI SOME TABLE THEN TRUE TRY_CAST UNION UNKNOWN UNPIVOT USING VALUES WHEN WHERE
    WINDOW WITH
"""
RESERVED: Final = frozenset(_RESERVED.split())
"""Words that are never a bare column name here; in backquotes they are."""

BARE_FUNCTIONS: Final = frozenset({"current_date", "current_timestamp", "localtimestamp"})
"""Functions that may be written without parentheses; a column of that name takes precedence."""


_NUMERIC_ORDER: Final = ("byte", "short", "integer", "long", "float", "double")
_MIN_ADJUSTED_SCALE: Final = 6


def common(types: Iterable[SqlType]) -> SqlType | None:
    """The type to which all can be converted without loss of range, or None."""
    found: SqlType | None = NULL
    # Spark considers strings last, so that ('1', 2, 3.0) does not depend on the order.
    for item in sorted(types, key=lambda t: t.name == "string"):
        found = None if found is None else common_of_two(found, item)
    return found


def common_of_two(left: SqlType, right: SqlType) -> SqlType | None:
    if UNKNOWN in (left, right):
        return UNKNOWN
    if left == right and left.is_atomic:
        return left
    if not (left.is_atomic and right.is_atomic):
        return None
    if left == NULL or right == NULL:
        return right if left == NULL else left
    if left.is_numeric and right.is_numeric:
        return _wider_number(left, right)
    if left.is_datetime and right.is_datetime:
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    if STRING in (left, right):
        return _wider_than_string(right if left == STRING else left)
    return None


def _wider_number(left: SqlType, right: SqlType) -> SqlType:
    if "decimal" in (left.name, right.name):
        if left.name in ("float", "double") or right.name in ("float", "double"):
            return DOUBLE
        a, b = as_decimal(left), as_decimal(right)
        scale = max(a.scale, b.scale)
        return bounded(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)
    wider = max(left, right, key=lambda t: _NUMERIC_ORDER.index(t.name))
    # A float does not hold every integer exactly, so the common type is double.
    return DOUBLE if wider == FLOAT else wider


def _wider_than_string(other: SqlType) -> SqlType:
    # ANSI mode casts the string, which raises on a row whose string is not such a value.
    if other.is_integral:
        return LONG
    if other.is_numeric:
        return DOUBLE
    return other


def bounded(precision: int, scale: int) -> SqlType:
    return decimal(min(precision, MAX_PRECISION), min(scale, MAX_PRECISION))


def _adjusted(precision: int, scale: int) -> SqlType:
    """Drop digits after the point, down to 6, rather than digits before it."""
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _MIN_ADJUSTED_SCALE)))


def arithmetic(op: str, left: Expr, right: Expr) -> SqlType | None:
    """The type of left `op` right for + - * / % DIV, or None if Spark refuses it."""
    a, b = left.type, right.type
    if UNKNOWN in (a, b):
        return UNKNOWN
    if a.is_datetime or b.is_datetime or a.is_interval or b.is_interval:
        return _date_arithmetic(op, a, b)
    if STRING in (a, b):
        other = b if a == STRING else a
        if not other.is_numeric:
            return None
        a = b = _wider_than_string(other)
    if NULL in (a, b):
        if a == NULL and (b == NULL or (op == "/" and b.is_numeric)):
            return LONG if op == "DIV" else DOUBLE
        a, b = (b, b) if a == NULL else (a, a)
    if not (a.is_numeric and b.is_numeric):
        return None
    if op == "DIV" and a.is_integral and b.is_integral:
        return LONG
    if op == "DIV" and not _both_exact(a, b):
        return None
    if _both_exact(a, b) and "decimal" in (a.name, b.name):
        return _decimal_arithmetic(op, as_exact_decimal(left, a), as_exact_decimal(right, b))
    if op == "/":
        return DOUBLE
    return a if a == b else _wider_number(a, b)


def _both_exact(a: SqlType, b: SqlType) -> bool:
    return all(t.is_integral or t.name == "decimal" for t in (a, b))


def as_exact_decimal(side: Expr, data_type: SqlType) -> SqlType:
    """The decimal type of an operand of + - * / % in decimal arithmetic: an integer literal counts
    its own digits, an integer column the maximum of its type."""
    if isinstance(side, Literal) and data_type.is_integral and isinstance(side.value, int):
        return decimal(len(str(abs(side.value))), 0)
    return as_decimal(data_type)


def _decimal_arithmetic(op: str, a: SqlType, b: SqlType) -> SqlType:
    whole_a, whole_b = a.precision - a.scale, b.precision - b.scale
    if op in ("+", "-"):
        scale = max(a.scale, b.scale)
        return _adjusted(max(whole_a, whole_b) + scale + 1, scale)
    if op == "*":
        return _adjusted(a.precision + b.precision + 1, a.scale + b.scale)
    if op == "/":
        scale = max(_MIN_ADJUSTED_SCALE, a.scale + b.precision + 1)
        return _adjusted(whole_a + b.scale + scale, scale)
    if op == "%":
        scale = max(a.scale, b.scale)
        return _adjusted(min(whole_a, whole_b) + scale, scale)
    return LONG


def _date_arithmetic(op: str, a: SqlType, b: SqlType) -> SqlType | None:
    if op == "+" and b.is_datetime and not a.is_datetime:
        a, b = b, a
    if op not in ("+", "-"):
        return None
    if a == DATE and b.name in ("byte", "short", "integer"):
        return DATE
    if a == DATE and b in (INTERVAL_DAY, INTERVAL_YEAR_MONTH):
        return DATE
    if a == DATE and b == INTERVAL_DAY_SECOND:
        return TIMESTAMP
    if a.is_datetime and a != DATE and b.is_interval:
        return a
    return None


def comparable(left: SqlType, right: SqlType) -> bool:
    return common_of_two(left, right) is not None


def is_text(*types: SqlType) -> bool:
    """Whether || and CONCAT return a string for these types: Spark casts all but binaries."""
    return all(item.is_atomic and item != BINARY for item in types)


def can_cast(source: SqlType, target: SqlType) -> bool:
    """Whether Cast.canAnsiCast allows a cast between types that CAST accepts here."""
    if source == UNKNOWN:
        return True
    if source in (target, NULL):
        return source.is_atomic
    if not (source.is_atomic and target.is_atomic):
        return False
    if target == STRING or source == STRING:
        return True
    if source.is_datetime and target.is_datetime:
        return True
    if source.is_numeric:
        return target.is_numeric or target in (BOOLEAN, TIMESTAMP)
    if source == BOOLEAN:
        return target.is_numeric
    return source == TIMESTAMP and target.is_numeric


def assignment_loss(source: SqlType, target: SqlType) -> str:
    """Why a value of one type is not stored in a column of another; "" if it is.

    Spark's store assignment (ANSI) with one difference: a conversion that would lose digits
    silently is refused, and must be written as a cast. An overflow raises when the job runs.
    """
    if source in (target, NULL, UNKNOWN):
        return ""
    if not (source.is_atomic and target.is_atomic):
        return "such values cannot be converted"
    if source.is_numeric and target.is_numeric:
        return _number_loss(source, target)
    if target == STRING and source != BINARY:
        return ""
    if source.is_datetime and target.is_datetime:
        return "the time of day would be lost" if target == DATE else ""
    return "it is not converted implicitly"


def _number_loss(source: SqlType, target: SqlType) -> str:
    if target.name in ("float", "double"):
        return ""
    if source.name in ("float", "double"):
        return "digits after the point would be lost"
    if as_decimal(source).scale > as_decimal(target).scale:
        return "digits after the point would be lost"
    return ""


def literal_fits(value: Decimal, target: SqlType) -> bool:
    """Whether an exact number is stored in an integral or decimal column unchanged."""
    exact = as_decimal(target)
    return value == round(value, exact.scale) and abs(value) < Decimal(10) ** (
        exact.precision - exact.scale
    )


def common_of_all(parts: Iterable[Expr]) -> SqlType | None:
    return common(part.type for part in parts)


# Dates and timestamps as typed constants and as strings, in their unambiguous forms.
#
# Spark accepts more forms; these are refused in a constant, and not used to skip files in a
# comparison with a string.


_ISO_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?(?: ?(Z|UTC|[+-]\d{2}:\d{2}))?)?)?",
    re.ASCII,
)
"""A zone follows seconds only: Spark accepts none after a day, or after hours and minutes
(`SparkDateTimeUtils.parseTimestampString`)."""


def parse_date(text: str) -> dt.date | None:
    """The date of the literal `DATE 'yyyy-mm-dd'`, None if the text is not a date."""
    match = _ISO_DATE.fullmatch(text)
    try:
        return dt.date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def parse_timestamp(text: str, zoned: bool) -> dt.datetime | None:
    """The value of a TIMESTAMP literal: in UTC if `zoned`, else without a zone.

    A text without a zone is in the session's, which is UTC. None if the text is not a timestamp of
    the accepted form, or has a zone although it must not.
    """
    match = _TIMESTAMP.fullmatch(text)
    day = parse_date(match[1]) if match else None
    if match is None or day is None or (match[6] and not zoned):
        return None
    try:
        time = dt.time(
            int(match[2] or 0), int(match[3] or 0), int(match[4] or 0),
            int((match[5] or "0").ljust(6, "0")),
        )  # fmt: skip
        local = dt.datetime.combine(day, time)
        if not zoned:
            return local
        zone = match[6] or "Z"
        offset = dt.timedelta()
        if zone[0] in "+-":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > 18 or minutes > 59 or hours * 60 + minutes > 18 * 60:
                return None
            offset = dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
        return (local - offset).replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):
        return None


_EXPECTED: Final[Mapping[str, str]] = {
    "date": "a date such as '2013-02-28'",
    "timestamp": "a time such as '2013-02-28 05:30:00'",
    "timestamp_ntz": "a time such as '2013-02-28 05:30:00'",
    "boolean": "'true' or 'false'",
}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[df]?|0x[0-9a-f.p+-]+[df]?"
    r"|inf|infinity|nan)",
    re.ASCII | re.IGNORECASE,
)
_BOOLEANS = frozenset(["t", "true", "y", "yes", "1", "f", "false", "n", "no", "0"])
_SPECIAL_TIMES = re.compile(r"(?:epoch|now|today|tomorrow|yesterday)\b.*", re.IGNORECASE)
_DATE = re.compile(r"[+-]?(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII)
_LONG = 2**63


def wrong_literals(root: Expr) -> Iterator[tuple[Literal, SqlType, str]]:
    """Literals that have no value of the type that they are converted to: with that type, and
    what is expected."""
    for node in tree.walk(root):
        target, literals = _converted(node)
        for literal in literals:
            if target is not None and not _has_value(literal.value, target):
                yield literal, target, _EXPECTED.get(target.name, f"a number that fits {target}")


def _converted(node: Expr) -> tuple[SqlType | None, Iterable[Literal]]:
    """The type to which a node converts its operands, and those of them that are literals."""
    match node:
        case tree.Binary(left=left, right=right):
            if node.op in ("+", "-", "*", "/", "%", "DIV"):
                return _of_arithmetic(left, right)
            return _met(node.children())
        case tree.Between() | tree.InList():
            return _met(node.children())
        case tree.Cast(operand=Literal() as literal, safe=False):
            return node.type, (literal,)
    return None, ()


def _met(operands: Iterable[Expr]) -> tuple[SqlType | None, Iterable[Literal]]:
    operands = tuple(operands)
    met = common_of_all(operands)
    return met, [each for each in operands if isinstance(each, Literal) and each.type == STRING]


def _of_arithmetic(left: Expr, right: Expr) -> tuple[SqlType | None, Iterable[Literal]]:
    if not (left.type.is_numeric or right.type.is_numeric):
        return None, ()  # dates and intervals
    return _met((left, right))


def _has_value(value: object, target: SqlType) -> bool:
    """Whether Spark may find a value of the type in a literal."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int | Decimal):
        return not (target.is_integral or target.name == "decimal") or _fits(value, target)
    if not isinstance(value, str):
        return True
    # Spark trims whitespace and control characters.
    text = value.strip("".join(map(chr, range(33))) + "\x7f")
    test = _OF_TEXT.get("integral" if target.is_integral else target.name)
    return test is None or test(text)


def _fits(value: int | Decimal, target: SqlType) -> bool:
    if isinstance(value, Decimal) and not value.is_finite():
        return True
    if target.is_integral:
        limit = 1 << {"byte": 7, "short": 15, "integer": 31, "long": 63}[target.name]
        return -limit <= int(value) < limit
    exact = as_decimal(target)
    # The rest is rounded half up.
    half = Fraction(1, 2 * 10**exact.scale)
    most: Fraction = Fraction(10 ** (exact.precision - exact.scale)) - half
    return abs(Fraction(value)) < most


def _is_integer(text: str) -> bool:
    if _INTEGER.fullmatch(text) is None:
        return False
    digits = text.lstrip("+-").lstrip("0") or "0"
    return len(digits) <= 19 and -_LONG <= int(text[:1].strip("+0123456789") + digits) < _LONG


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _is_boolean(text: str) -> bool:
    return text.lower() in _BOOLEANS


def _is_date(text: str) -> bool:
    if _SPECIAL_TIMES.fullmatch(text):
        return True
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = (int(part or 1) for part in found.groups())
    if not 1 <= month <= 12:
        return False
    # A leap day is one of every fourth year, at least: years beyond Python's are like those of it.
    return 1 <= day <= calendar.monthrange(2000 + year % 400, month)[1]


def _is_time(text: str) -> bool:
    """A date and what follows it, which Spark reads; or a time of day, which means today."""
    return ":" in text.partition("-")[0] or _is_date(re.split(r"[ T]", text, maxsplit=1)[0])


_OF_TEXT: Final[Mapping[str, Callable[[str], bool]]] = {
    "integral": _is_integer,
    "float": _is_number,
    "double": _is_number,
    "decimal": _is_number,
    "boolean": _is_boolean,
    "date": _is_date,
    "timestamp": _is_time,
    "timestamp_ntz": _is_time,
}
