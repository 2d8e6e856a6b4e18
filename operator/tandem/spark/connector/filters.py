"""Filters that Spark pushes, as conditions by which files are left out.

Spark evaluates every filter itself, on the rows that a read gives. So a filter that is not
understood here, or only partly, only costs time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tandem.pruning.predicate import columns_of
from tandem.statements.tree import (
    Binary,
    ColumnRef,
    Expr,
    InList,
    IsTest,
    Literal,
    Logical,
    Match,
    Unary,
)
from tandem.statements.types import BOOLEAN, STRING, Schema, SqlType

_COMPARISONS: Mapping[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_ESCAPE = "\\"
_KNOWN = None | bool | int | float | Decimal | str | bytes | dt.date
"""Types of values that conditions have."""


def conditions(filters: Iterable[Filter], schema_string: str) -> tuple[Expr, ...]:
    """The filters that bounds of files can decide, in terms of the table's columns."""
    types = {column.name: column.type for column in Schema.from_json(schema_string).columns}
    found = (_condition(each, types) for each in filters)
    return tuple(each for each in found if each is not None)


def all_of(wanted: Iterable[Expr]) -> Expr | None:
    """Their conjunction, None for none."""
    operands = tuple(wanted)
    if len(operands) < 2:
        return operands[0] if operands else None
    return Logical(op="AND", operands=operands, type=BOOLEAN)


def on_columns(found: Iterable[Expr], names: Iterable[str]) -> tuple[Expr, ...]:
    """The conditions that name no other columns."""
    known = set(names)
    return tuple(each for each in found if {name for name, _ in columns_of(each)} <= known)


def _condition(filter_: Filter, types: Mapping[str, SqlType]) -> Expr | None:
    if isinstance(filter_, Not):
        child = _condition(filter_.child, types)
        return None if child is None else Unary(op="NOT", operand=child, type=BOOLEAN)
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    type_ = types.get(path[0]) if len(path) == 1 else None
    if type_ is None or not type_.is_atomic:
        return None
    column = ColumnRef(parts=path, type=type_)
    if isinstance(filter_, IsNull | IsNotNull):
        negated = isinstance(filter_, IsNotNull)
        return IsTest(value=column, what="NULL", negated=negated, type=BOOLEAN)
    value: Any = getattr(filter_, "value", None)
    if isinstance(filter_, StringStartsWith) and type_ == STRING:
        pattern = "".join(_ESCAPE + c if c in "%_\\" else c for c in value) + "%"
        return Match(op="LIKE", value=column, pattern=pattern, type=BOOLEAN)
    # Spark has cast the values to the type of the column before.
    items = [
        Literal(value=each, type=type_)
        for each in (value if isinstance(filter_, In) else (value,))
        if isinstance(each, _KNOWN)
    ]
    if isinstance(filter_, In):
        if len(items) < len(value):
            return None
        return InList(value=column, items=tuple(items), type=BOOLEAN)
    op = _COMPARISONS.get(type(filter_))
    if op is None or not items:
        return None
    return Binary(op=op, left=column, right=items[0], type=BOOLEAN)
