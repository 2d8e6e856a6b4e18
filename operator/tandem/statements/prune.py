"""Which files a condition cannot concern, from their statistics and partition values.

`may_match` never says no for a file that holds a row on which the condition is true: pruning
may keep too much, never too little. It computes, bottom up, a superset of what each condition
can be on the rows of a file (true, false, NULL), and says yes where it knows nothing. A file
that is skipped is not evaluated either, so an error that only its rows raise does not occur,
as with any engine that skips files.

What statistics can be trusted for (Delta protocol, "Per-file Statistics"):

- they bound the values, and need not be values: strings are cut, deletion vectors hide rows;
- floats: NaN may be left out of them, and is the greatest value in Spark; so there is no upper
  bound, and a NaN as bound says nothing;
- decimals of more than 15 digits: delta-rs writes them as doubles, rounded to either side, and
  whole ones as 64-bit integers, cut at the largest; hence widened, or unknown where so large;
- timestamps are cut to milliseconds, hence widened by one on both sides;
- the number of NULLs counts where it is 0 or all rows.
"""

from __future__ import annotations

import datetime as dt
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from tandem.statements import tree
from tandem.statements.datetimes import parse_date, parse_timestamp
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, MAX_PRECISION, DataType, as_decimal

CUT_STRING: Final = 32
"""Delta cuts strings to this length. Writers should raise a maximum that they cut, but not all
do: one of this length or more bounds nothing."""

EXACT_DIGITS: Final = 15
"""Decimals of so many digits are the same after they were written as a double."""

_DOUBLE_ERROR: Final = Decimal("1e-14")
_LONG_MAX: Final = 2**63 - 1
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What is known of a column in one file; None is unknown.

    `min` and `max` are Python values as Arrow gives them: int, float, Decimal, str, bool, date,
    datetime (with a zone for timestamp). `exact` tells that every value is `min` (partitions).
    """

    min: Any = None
    max: Any = None
    null_count: int | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class FileRange:
    """What is known of one file. Columns by their path, spelled as in the schema: `("a", "b")`
    is field b of column a."""

    columns: Mapping[tuple[str, ...], ColumnRange] = field(default_factory=dict)
    num_records: int | None = None

    @classmethod
    def of(
        cls,
        stats: Mapping[tuple[str, ...], ColumnRange],
        partition_values: Mapping[str, Any],
        num_records: int | None,
    ) -> FileRange:
        """Statistics and typed partition values together; the latter are exact."""
        exact: dict[tuple[str, ...], ColumnRange] = {
            (name,): ColumnRange(value, value, num_records if value is None else 0, exact=True)
            for name, value in partition_values.items()
        }
        return cls({**stats, **exact}, num_records)

    def named(self, relation: str) -> FileRange:
        """The same for a condition that says `relation` before its columns, "" for one that does
        not. Of other relations nothing is known, so whatever they decide is possible."""
        if not relation:
            return self
        return FileRange({(relation, *p): r for p, r in self.columns.items()}, self.num_records)


def selects(where: Expr | None, file: FileRange) -> bool:
    """Whether a custom compaction with this `where` takes the file: whole files, never rows.

    The condition describes files, so a file is taken if its statistics and partition values
    do not rule out that it holds a matching row. On a partition column this is exact.
    """
    return may_match(where, file)


@dataclass(frozen=True, slots=True)
class Keys:
    """The values of a column for which rows can match at all: it must equal one of them.

    `values` are ascending, in the form of bounds (text as bytes of UTF-8); all that there are if
    `complete`, else the least and the greatest. `column` is a path as in `FileRange`.
    """

    column: tuple[str, ...]
    type: DataType
    values: tuple[Any, ...]
    complete: bool

    def may_occur(self, file: FileRange) -> bool:
        """False only if no row of the file has one of the values."""
        if not self.values:
            return False
        known = file.columns.get(self.column)
        if known is None:
            return True
        if known.null_count is not None and known.null_count == file.num_records:
            return False
        low, high = _bounds(known, self.type)
        first = 0 if low is None else bisect_left(self.values, low)
        if first == len(self.values):
            return False
        return high is None or (self.values[first] if self.complete else self.values[0]) <= high


# What a condition can be on the rows of a file: a set of these, as bits.
_TRUE, _FALSE, _NULL = 1, 2, 4
_ANY: Final = _TRUE | _FALSE | _NULL


def may_match(where: Expr | None, file: FileRange) -> bool:
    """False only if the condition is true on no row of the file."""
    if file.num_records == 0:
        return False
    return where is None or bool(_possible(where, file) & _TRUE)


def _possible(node: Expr, file: FileRange) -> int:
    match node:
        case tree.Literal():
            return _NULL if node.value is None else _TRUE if node.value else _FALSE
        case tree.Cast(operand=tree.Literal(value=None)):
            return _NULL
        case tree.ColumnRef():
            return _comparison("=", node, tree.Literal(value=True, type=BOOLEAN), file)
        case tree.Unary(op="NOT"):
            return _negated(_possible(node.operand, file))
        case tree.Logical():
            return _logical(node, file)
        case tree.Binary():
            return _binary(node, file)
        case tree.Between():
            low = _binary_parts(">=", node.value, node.low, file)
            high = _binary_parts("<=", node.value, node.high, file)
            return _maybe_negated(_and(low, high), node.negated)
        case tree.InList():
            found = _FALSE
            for item in node.items:
                found = _or(found, _binary_parts("=", node.value, item, file))
            return _maybe_negated(found, node.negated)
        case tree.IsTest():
            return _is_test(node, file)
        case tree.Match(op="LIKE"):
            return _maybe_negated(_like(node, file), node.negated)
        case _:
            return _ANY


def _maybe_negated(possible: int, negated: bool) -> int:
    return _negated(possible) if negated else possible


def _negated(possible: int) -> int:
    swapped = possible & _NULL
    swapped |= _FALSE if possible & _TRUE else 0
    return swapped | (_TRUE if possible & _FALSE else 0)


def _and(a: int, b: int) -> int:
    """All values of x AND y for x in a, y in b, in three-valued logic."""
    result = _TRUE if a & b & _TRUE else 0
    result |= _FALSE if (a | b) & _FALSE else 0
    if (a & _NULL and b & (_TRUE | _NULL)) or (b & _NULL and a & (_TRUE | _NULL)):
        result |= _NULL
    return result


def _or(a: int, b: int) -> int:
    return _negated(_and(_negated(a), _negated(b)))


def _logical(node: tree.Logical, file: FileRange) -> int:
    join = _and if node.op == "AND" else _or
    result = _possible(node.operands[0], file)
    for operand in node.operands[1:]:
        result = join(result, _possible(operand, file))
    return result


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!=", "<=>": "<=>"}


def _binary(node: tree.Binary, file: FileRange) -> int:
    return _binary_parts(node.op, node.left, node.right, file)


def _binary_parts(op: str, left: Expr, right: Expr, file: FileRange) -> int:
    if isinstance(left, tree.Literal) and isinstance(right, tree.ColumnRef) and op in _MIRRORED:
        left, right, op = right, left, _MIRRORED[op]
    if not (isinstance(left, tree.ColumnRef) and isinstance(right, tree.Literal)):
        return _ANY
    return _comparison(op, left, right, file)


def _comparison(op: str, column: tree.ColumnRef, literal: tree.Literal, file: FileRange) -> int:
    """Column against constant."""
    nulls = _nulls(column, file)
    if op == "<=>":
        if literal.value is None:
            return nulls
        equal = _comparison("=", column, literal, file)
        return equal & (_TRUE | _FALSE) | (_FALSE if nulls & _TRUE else 0)
    if literal.value is None:
        return _NULL
    result = _NULL if nulls & _TRUE else 0
    if nulls & _FALSE:
        result |= _ordered(op, column, literal, file)
    return result


def _nulls(column: tree.ColumnRef, file: FileRange) -> int:
    """Whether `column IS NULL` can be true and can be false."""
    known = file.columns.get(column.parts)
    if known is None or known.null_count is None or len(column.parts) > 1:
        # Of a field, the NULLs of its struct may or may not be counted.
        return _TRUE | _FALSE
    if known.null_count == 0:
        return _FALSE
    return _TRUE if known.null_count == file.num_records else _TRUE | _FALSE


def _ordered(op: str, column: tree.ColumnRef, literal: tree.Literal, file: FileRange) -> int:
    """What a comparison can be on values that are not NULL."""
    if op == "!=":
        return _negated(_ordered("=", column, literal, file))
    known = file.columns.get(column.parts)
    value = _comparable(literal, column.type)
    if known is None or value is None:
        return _TRUE | _FALSE
    low, high = _bounds(known, column.type)
    below = low is None or low < value
    above = high is None or high > value
    touches = (low is None or low <= value) and (high is None or high >= value)
    # A NaN, which is not counted in the statistics, is above everything and equal to nothing.
    above = above or column.type.name in ("float", "double")
    return {
        "=": (_TRUE if touches else 0) | (_FALSE if below or above else 0),
        "<": (_TRUE if below else 0) | (_FALSE if touches or above else 0),
        "<=": (_TRUE if below or touches else 0) | (_FALSE if above else 0),
        ">": (_TRUE if above else 0) | (_FALSE if touches or below else 0),
        ">=": (_TRUE if above or touches else 0) | (_FALSE if below else 0),
    }[op]


def _bounds(known: ColumnRange, data_type: DataType) -> tuple[Any, Any]:
    """Bounds that surely hold, in the form that `_comparable` gives constants."""
    low, high = _usable(known.min, data_type), _usable(known.max, data_type)
    match data_type.name:
        case "float":
            # 1.1 of 32 bits may have been written as 1.1, which is less than it.
            low = None if low is None else low - abs(low) * 1e-6 - 1e-44
            high = None if high is None else high + abs(high) * 1e-6 + 1e-44
        case "decimal" if not known.exact and as_decimal(data_type).precision > EXACT_DIGITS:
            low, high = _loosened(low, -1), _loosened(high, 1)
        case "string" if not known.exact:
            if high is not None and len(high.decode()) >= CUT_STRING:
                high = None
        case "timestamp" | "timestamp_ntz" if not known.exact:
            low, high = _shifted(low, -_MILLISECOND), _shifted(high, _MILLISECOND)
    return low, high


def _loosened(bound: Decimal | None, towards: int) -> Decimal | None:
    """A bound that may have gone through a double, or a long where it is whole: delta-rs rounds
    decimals so, also to the wrong side."""
    if bound is None or abs(bound) >= _LONG_MAX:
        return None
    return bound + towards * abs(bound) * _DOUBLE_ERROR


def _shifted(moment: dt.datetime | None, by: dt.timedelta) -> dt.datetime | None:
    try:
        return None if moment is None else moment + by
    except OverflowError:
        return None


def _usable(value: Any, data_type: DataType) -> Any:
    """A bound if it is of the right kind, else None: odd statistics say nothing."""
    match data_type.name:
        case "byte" | "short" | "integer" | "long":
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case "decimal":
            if isinstance(value, int | Decimal) and not isinstance(value, bool):
                return Decimal(value)
            return None
        case "float" | "double":
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value) if math.isfinite(value) else None
            return None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return _bytes(value) if isinstance(value, str) else None
        case "date":
            is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
            return value if is_date else None
        case "timestamp" | "timestamp_ntz":
            zoned = data_type.name == "timestamp"
            if isinstance(value, dt.datetime) and (value.tzinfo is not None) == zoned:
                return value
            return None
        case _:
            return None


def _bytes(text: str) -> bytes | None:
    """None for half a surrogate pair: some writer cut the text there, and JSON allows it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _comparable(literal: tree.Literal, target: DataType) -> Any:
    """The constant as a value of the column's kind, if Spark compares them as Python does.

    None where it does not, or where the order of the two is not clear.
    """
    value = literal.value
    match target.name:
        case "byte" | "short" | "integer" | "long" | "decimal":
            return _exact_number(literal, target)
        case "float" | "double":
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
                return None
            if literal.type.name == "float":
                return None
            number = float(value)
            # Decimals and long integers are rounded to a double, by rules of Spark's own.
            return number if math.isfinite(number) and number == value else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            # Bytes of UTF-8, unsigned, as Spark compares them.
            return value.encode() if isinstance(value, str) else None
        case "date":
            if isinstance(value, str):
                return parse_date(value)
            return value if literal.type == target else None
        case "timestamp" | "timestamp_ntz":
            return _moment(literal, zoned=target.name == "timestamp")
        case _:
            return None


def _exact_number(literal: tree.Literal, target: DataType) -> Any:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    if literal.type.name not in ("byte", "short", "integer", "long", "decimal"):
        return None
    if target.is_integral and literal.type.is_integral:
        return value
    a, b = as_decimal(literal.type), as_decimal(target)
    # Wider than a decimal can be, Spark gives up digits.
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


def _is_test(node: tree.IsTest, file: FileRange) -> int:
    if node.what == "NULL":
        if not isinstance(node.value, tree.ColumnRef):
            if isinstance(node.value, tree.Literal):
                return _maybe_negated(_TRUE if node.value.value is None else _FALSE, node.negated)
            return _TRUE | _FALSE
        return _maybe_negated(_nulls(node.value, file), node.negated)
    wanted = {"TRUE": _TRUE, "FALSE": _FALSE, "UNKNOWN": _NULL}[node.what]
    possible = _possible(node.value, file)
    result = (_TRUE if possible & wanted else 0) | (_FALSE if possible & ~wanted else 0)
    return _maybe_negated(result, node.negated)


def _like(node: tree.Match, file: FileRange) -> int:
    """LIKE 'abc%': the value lies between 'abc' and the first string after all that begin so."""
    if not isinstance(node.value, tree.ColumnRef):
        return _ANY
    nulls = _nulls(node.value, file)
    result = _NULL if nulls & _TRUE else 0
    if not nulls & _FALSE:
        return result
    prefix = _prefix(node.pattern, node.escape).encode()
    known = file.columns.get(node.value.parts)
    low, high = _bounds(known, node.value.type) if known else (None, None)
    # Cut to the prefix, a bound compares as the values that begin with it do.
    outside = (low is not None and low[: len(prefix)] > prefix) or (
        high is not None and high[: len(prefix)] < prefix
    )
    return result | _FALSE | (0 if outside else _TRUE)


def _prefix(pattern: str, escape: str) -> str:
    out: list[str] = []
    chars = iter(pattern)
    for char in chars:
        if char in "%_" and char != escape:
            break
        out.append(next(chars, "") if char == escape else char)
    return "".join(out)
