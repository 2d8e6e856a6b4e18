"""The typed tree of a statement: Spark SQL is generated from nothing else.

Only the parser builds a tree, from nodes that the grammar allows; there is no node for free text.
Nodes are frozen, compare by value, and have their position in the text (`at`, not compared), so
that later checks can report it.

Typed tree to canonical Spark SQL: the only text of a statement that reaches Spark.

The text has the same meaning in any context: every operation is in parentheses, every name in
backquotes, every constant has its type, every ambiguous character is escaped. Parsing it gives the
same tree again (`parse(to_spark_sql(tree)) == tree`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any

from tandem.statements.types import SqlType, sql_name

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


def mapped(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The tree with each node changed, after those below it."""

    def of(part: Any) -> Any:
        if isinstance(part, Expr):
            return mapped(part, change)
        return tuple(map(of, part)) if isinstance(part, tuple) else part

    inner = {f.name: of(getattr(root, f.name)) for f in fields(root) if f.name != "type"}
    return change(replace(root, **inner))


def depth(root: Expr) -> int:
    """Levels of a tree; 1 for a leaf."""
    deepest = 0
    pending = [(root, 1)]
    while pending:
        node, level = pending.pop()
        deepest = max(deepest, level)
        pending.extend((child, level + 1) for child in node.children())
    return deepest


def to_spark_sql(node: Expr) -> str:
    """The canonical text of a tree, for a session with the settings of `session_conf`."""
    match node:
        case Literal():
            return _literal(node)
        case IntervalLiteral():
            return f"INTERVAL '{node.amount}' {node.unit.upper()}"
        case ColumnRef():
            return ".".join(quote_name(part) for part in node.parts)
        case Unary():
            return _unary(node)
        case Binary():
            return f"({to_spark_sql(node.left)} {node.op} {to_spark_sql(node.right)})"
        case Logical():
            return f"({f' {node.op} '.join(to_spark_sql(part) for part in node.operands)})"
        case Cast():
            name = "TRY_CAST" if node.safe else "CAST"
            return f"{name}({to_spark_sql(node.operand)} AS {sql_name(node.type)})"
        case Call():
            return f"{node.function}({_list(node.args)})"
        case Case():
            return _case(node)
        case _:
            return _predicate(node)


def _predicate(node: Expr) -> str:
    match node:
        case Between():
            low, high = to_spark_sql(node.low), to_spark_sql(node.high)
            return f"({to_spark_sql(node.value)}{_not(node.negated)} BETWEEN {low} AND {high})"
        case InList():
            return f"({to_spark_sql(node.value)}{_not(node.negated)} IN ({_list(node.items)}))"
        case IsTest():
            return f"({to_spark_sql(node.value)} IS{_not(node.negated)} {node.what})"
        case Match():
            text = (
                f"{to_spark_sql(node.value)}{_not(node.negated)} {node.op} "
                f"{quote_string(node.pattern)}"
            )
            if node.op != "RLIKE" and node.escape != "\\":
                text += f" ESCAPE {quote_string(node.escape)}"
            return f"({text})"
        case _:
            raise AssertionError(f"no text for {type(node).__name__}")


def _unary(node: Unary) -> str:
    operand = to_spark_sql(node.operand)
    if node.op == "NOT":
        return f"(NOT {operand})"
    # Without parentheses the sign would be parsed as part of a number.
    return f"({node.op} ({operand}))"


def _case(node: Case) -> str:
    parts = ["CASE"]
    if node.operand:
        parts.append(to_spark_sql(node.operand))
    for condition, result in node.branches:
        parts.append(f"WHEN {to_spark_sql(condition)} THEN {to_spark_sql(result)}")
    if node.otherwise:
        parts.append(f"ELSE {to_spark_sql(node.otherwise)}")
    return f"({' '.join(parts)} END)"


def _list(parts: tuple[Expr, ...]) -> str:
    return ", ".join(to_spark_sql(part) for part in parts)


def _not(negated: bool) -> str:
    return " NOT" if negated else ""


_SUFFIX = {"byte": "Y", "short": "S", "integer": "", "long": "L", "float": "F", "double": "D"}


def _literal(node: Literal) -> str:
    value, name = node.value, node.type.name
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return quote_string(value)
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, dt.datetime):
        return _timestamp(value)
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, Decimal) and name == "decimal":
        return f"{value:f}BD"
    if isinstance(value, int) and name == "decimal":
        return f"{value}BD"
    return f"{value!r}{_SUFFIX[name]}" if not isinstance(value, Decimal) else f"{value}F"


def _timestamp(value: dt.datetime) -> str:
    local = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return f"TIMESTAMP '{local}+00:00'" if value.tzinfo else f"TIMESTAMP_NTZ '{local}'"


def quote_name(name: str) -> str:
    """A column's name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def quote_string(value: str) -> str:
    """A string literal that Spark parses as exactly this value.

    Quotes, backslashes, `$` (variables), and invisible characters are written as escapes.
    """
    return "'" + "".join(_escaped(char) for char in value) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if char.isprintable() and char not in '$"`':
        return char
    code = ord(char)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
