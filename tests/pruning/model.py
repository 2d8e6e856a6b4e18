"""The model of `tandem.pruning`: one file at a time, in plain Python.

Reads the JSON text of a file's statistics, and decides by Python values. Shares only the
reading of constants with the code that it checks.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from tandem.delta.actions import AddFile
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import PrimitiveType, StructType
from tandem.errors import CorruptLog
from tandem.pruning.bounds import comparable_constant
from tandem.pruning.selection import Keys
from tandem.statements import tree
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, SqlType, as_decimal

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
    datetime (with a zone for timestamp). `exact`: every value is `min` (partitions).
    """

    min: Any = None
    max: Any = None
    null_count: int | None = None
    exact: bool = False

    def only_null(self, rows: int | None) -> bool:
        if self.exact:
            return self.min is None
        return self.null_count is not None and self.null_count == rows


@dataclass(frozen=True, slots=True)
class FileRange:
    """What is known of one file. Columns by their path, spelled as in the schema: `("a", "b")`
    is field b of column a."""

    columns: Mapping[tuple[str, ...], ColumnRange] = field(default_factory=dict)
    num_records: int | None = None


def may_occur(key: Keys, file: FileRange) -> bool:
    """False only if no row of the file has one of the values."""
    if not key.values:
        return False
    known = file.columns.get((key.column,))
    if known is None:
        return True
    if known.only_null(file.num_records):
        return False
    low, high = _bounds(known, key.type)
    first = 0 if low is None else bisect_left(key.values, low)
    if first == len(key.values):
        return False
    return high is None or (key.values[first] if key.complete else key.values[0]) <= high


# What a condition can be on the rows of a file: a set of these, as bits.
_TRUE, _FALSE, _NULL = 1, 2, 4
_ANY: Final = _TRUE | _FALSE | _NULL


def may_match(where: Expr | None, file: FileRange) -> bool:
    """False only if the condition is true on no row of the file."""
    if file.num_records == 0:
        return False
    return where is None or bool(_possible(where, file) & _TRUE)


def must_match(where: Expr, file: FileRange) -> bool:
    """True only if the condition is true on every row of the file."""
    return file.num_records == 0 or _possible(where, file) == _TRUE


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
    if known is None:
        return _TRUE | _FALSE
    if known.only_null(file.num_records):
        # A file without rows has no NULL either, but is left out for that.
        return _TRUE
    return _FALSE if known.null_count == 0 else _TRUE | _FALSE


def _ordered(op: str, column: tree.ColumnRef, literal: tree.Literal, file: FileRange) -> int:
    """What a comparison can be on values that are not NULL."""
    if op == "!=":
        return _negated(_ordered("=", column, literal, file))
    known = file.columns.get(column.parts)
    value = comparable_constant(literal, column.type)
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


def _bounds(known: ColumnRange, data_type: SqlType) -> tuple[Any, Any]:
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
    if low is not None and high is not None and low > high:
        return None, None  # one of the two is wrong
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


def _usable(value: Any, data_type: SqlType) -> Any:
    """A bound if it is of the right kind, else None: odd statistics say nothing."""
    match data_type.name:
        case "byte" | "short" | "integer" | "long":
            whole = isinstance(value, int) and not isinstance(value, bool)
            return value if whole and -(2**63) <= value < 2**63 else None
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


def range_of(add: AddFile, schema: StructType, partition_columns: Collection[str]) -> FileRange:
    """What the log says of one file."""
    stats = _object(add.stats)
    rows = _count(stats.get("numRecords"))
    tight = stats.get("tightBounds") is None or stats.get("tightBounds") is True
    low, high, nulls = (
        found if isinstance(found := stats.get(name), dict) else {}
        for name in ("minValues", "maxValues", "nullCount")
    )
    columns: dict[tuple[str, ...], ColumnRange] = {}
    for column in schema:
        name = column.physical_name
        if not isinstance(column.type, PrimitiveType):
            continue
        if column.name not in partition_columns:
            columns[column.name,] = ColumnRange(
                _value(low.get(name), column.type),
                _value(high.get(name), column.type),
                _count(nulls.get(name)) if tight else None,
            )
        elif name in add.partition_values:
            try:
                value = to_scalar(add.partition_values[name], column.type).as_py()
            except (CorruptLog, ValueError, OverflowError):
                continue
            columns[column.name,] = ColumnRange(value, value, 0, exact=True)
    return FileRange(columns, rows)


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 10**18 else None


def _value(value: Any, type_: PrimitiveType) -> Any:
    """A bound as the Python value of the column's type, None where it is none."""
    name = type_.name
    try:
        if value is None or isinstance(value, bool) != (name == "boolean"):
            return None
        if name in ("double", "float") or type_.decimal is not None:
            if not isinstance(value, int | float | Decimal) or not math.isfinite(float(value)):
                return None
            return float(value) if type_.decimal is None else Decimal(value)
        if name == "date":
            return dt.date.fromisoformat(value) if isinstance(value, str) else None
        if name in ("timestamp", "timestamp_ntz"):
            if not isinstance(value, str):
                return None
            moment = dt.datetime.fromisoformat(value)
            if name == "timestamp_ntz":
                return None if moment.utcoffset() else moment.replace(tzinfo=None)
            return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError, ArithmeticError):
        return None
    return value
