"""Texts and numbers in a statement that Spark cannot convert to the type that it needs there.

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

from tandem.statements import coercion, tree
from tandem.statements.tree import Expr, Literal
from tandem.statements.types import STRING, SqlType, as_decimal

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
    met = coercion.common_of_all(operands)
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
