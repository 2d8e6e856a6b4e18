"""Types of operands and results: Spark 4.2's ANSI rules.

Follows Spark's AnsiTypeCoercion, DecimalPrecision and Cast.canAnsiCast. The trees keep the user's
expressions, which Spark coerces itself; we compute types to refuse what Spark would refuse, with a
better message, and to determine when a SET needs a cast. Tests compare every type computed here
with Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

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
