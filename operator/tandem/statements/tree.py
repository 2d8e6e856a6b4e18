"""The typed tree of a statement: Spark SQL is generated from nothing else.

Only the parser builds a tree, from nodes that the grammar allows; there is no node for free text.
Nodes are frozen, compare by value, and have their position in the text (`at`, not compared), so
that later checks can report it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from tandem.statements.types import SqlType

LiteralValue = None | bool | int | float | Decimal | str | bytes | dt.date | dt.datetime


@dataclass(frozen=True, kw_only=True)
class Expr:
    """Any node; `type` is its type in Spark."""

    type: SqlType
    at: int = field(default=0, compare=False, repr=False)

    def children(self) -> tuple[Expr, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Literal(Expr):
    """A constant. FLOAT values are Decimals, since Python has no 32-bit float."""

    value: LiteralValue


@dataclass(frozen=True, kw_only=True)
class IntervalLiteral(Expr):
    """INTERVAL '15' MINUTE. `unit` is in lower case and singular."""

    amount: int
    unit: str


@dataclass(frozen=True, kw_only=True)
class ColumnRef(Expr):
    """A column, or a field inside struct columns, spelled as in the schema."""

    parts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Unary(Expr):
    """`op` is NOT, - or +."""

    op: str
    operand: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, kw_only=True)
class Binary(Expr):
    """`op` is one of = != < <= > >= <=> + - * / % DIV ||."""

    op: str
    left: Expr
    right: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, kw_only=True)
class Logical(Expr):
    """AND or OR over two or more operands, in the order written."""

    op: str
    operands: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.operands


@dataclass(frozen=True, kw_only=True)
class Between(Expr):
    value: Expr
    low: Expr
    high: Expr
    negated: bool = False

    def children(self) -> tuple[Expr, ...]:
        return (self.value, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class InList(Expr):
    value: Expr
    items: tuple[Expr, ...]
    negated: bool = False

    def children(self) -> tuple[Expr, ...]:
        return (self.value, *self.items)


@dataclass(frozen=True, kw_only=True)
class Match(Expr):
    """`op` is LIKE, ILIKE or RLIKE; the pattern is a constant that patterns.py accepted."""

    op: str
    value: Expr
    pattern: str
    escape: str = "\\"
    negated: bool = False

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, kw_only=True)
class IsTest(Expr):
    """IS [NOT] NULL, TRUE, FALSE or UNKNOWN."""

    value: Expr
    what: str
    negated: bool = False

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, kw_only=True)
class Case(Expr):
    """CASE [operand] WHEN … THEN … [ELSE …] END."""

    operand: Expr | None
    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None

    def children(self) -> tuple[Expr, ...]:
        ends = (self.operand,) if self.operand else ()
        last = (self.otherwise,) if self.otherwise else ()
        return (*ends, *(part for branch in self.branches for part in branch), *last)


@dataclass(frozen=True, kw_only=True)
class Cast(Expr):
    """CAST or TRY_CAST to `type`."""

    operand: Expr
    safe: bool = False

    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, kw_only=True)
class Call(Expr):
    """A function of the table in functions.py, under its name there."""

    function: str
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.args


def walk(root: Expr) -> Iterator[Expr]:
    """Every node, parents first; without recursion, so that the depth is not limited."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children()))


def depth(root: Expr) -> int:
    """Levels of a tree; 1 for a leaf."""
    deepest = 0
    pending = [(root, 1)]
    while pending:
        node, level = pending.pop()
        deepest = max(deepest, level)
        pending.extend((child, level + 1) for child in node.children())
    return deepest
