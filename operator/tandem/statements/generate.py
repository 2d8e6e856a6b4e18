"""Typed tree to canonical Spark SQL: the only text of a statement that reaches Spark.

The text has the same meaning in any context: every operation is in parentheses, every name in
backquotes, every constant has its type, every ambiguous character is escaped. Parsing it gives the
same tree again (`parse(generate(tree)) == tree`).
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from tandem.statements import tree
from tandem.statements.tree import Expr
from tandem.statements.types import sql_name


def to_spark_sql(node: Expr) -> str:
    """The canonical text of a tree, for a session with the settings of `session_conf`."""
    match node:
        case tree.Literal():
            return _literal(node)
        case tree.IntervalLiteral():
            return f"INTERVAL '{node.amount}' {node.unit.upper()}"
        case tree.ColumnRef():
            return ".".join(quote_name(part) for part in node.parts)
        case tree.Unary():
            return _unary(node)
        case tree.Binary():
            return f"({to_spark_sql(node.left)} {node.op} {to_spark_sql(node.right)})"
        case tree.Logical():
            return f"({f' {node.op} '.join(to_spark_sql(part) for part in node.operands)})"
        case tree.Cast():
            name = "TRY_CAST" if node.safe else "CAST"
            return f"{name}({to_spark_sql(node.operand)} AS {sql_name(node.type)})"
        case tree.Call():
            return f"{node.function}({_list(node.args)})"
        case tree.Case():
            return _case(node)
        case _:
            return _predicate(node)


def _predicate(node: Expr) -> str:
    match node:
        case tree.Between():
            low, high = to_spark_sql(node.low), to_spark_sql(node.high)
            return f"({to_spark_sql(node.value)}{_not(node.negated)} BETWEEN {low} AND {high})"
        case tree.InList():
            return f"({to_spark_sql(node.value)}{_not(node.negated)} IN ({_list(node.items)}))"
        case tree.IsTest():
            return f"({to_spark_sql(node.value)} IS{_not(node.negated)} {node.what})"
        case tree.Match():
            text = (
                f"{to_spark_sql(node.value)}{_not(node.negated)} {node.op} "
                f"{quote_string(node.pattern)}"
            )
            if node.op != "RLIKE" and node.escape != "\\":
                text += f" ESCAPE {quote_string(node.escape)}"
            return f"({text})"
        case _:
            raise AssertionError(f"no text for {type(node).__name__}")


def _unary(node: tree.Unary) -> str:
    operand = to_spark_sql(node.operand)
    if node.op == "NOT":
        return f"(NOT {operand})"
    # Without parentheses the sign would be parsed as part of a number.
    return f"({node.op} ({operand}))"


def _case(node: tree.Case) -> str:
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


def _literal(node: tree.Literal) -> str:
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
