"""Evaluates canonical statements on tiny rows: enough of Spark SQL for `simulator.statements`."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.rows import SCHEMA_STRING, Row
from tandem.statements import tree
from tandem.statements.statement import parse_expression
from tandem.statements.tree import Expr

_COMPARISONS = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}


class Evaluator:
    """`set_` is empty for a delete."""

    def __init__(self, where: str, set_: Mapping[str, str]) -> None:
        self._where = _parsed(where)
        self._set = {name: _parsed(text) for name, text in set_.items()}

    @property
    def deletes(self) -> bool:
        return not self._set

    def matches(self, row: Row) -> bool:
        return bool(_value(self._where, row))

    def changed(self, row: Row) -> Row | None:
        """What becomes of a row that matches; None if it is deleted."""
        if self.deletes:
            return None
        return row._replace(**{name: int(_value(e, row)) for name, e in self._set.items()})


def _parsed(text: str) -> Expr:
    return parse_expression(text, SCHEMA_STRING, resource="simulator", field="statement")


def _value(node: Expr, row: Row) -> int | bool:
    match node:
        case tree.Literal():
            assert isinstance(node.value, int)
            return node.value
        case tree.ColumnRef():
            return int(getattr(row, node.parts[0]))
        case tree.Binary():
            return int(_COMPARISONS[node.op](_value(node.left, row), _value(node.right, row)))
        case tree.Cast():
            return _value(node.operand, row)
        case _:
            raise NotImplementedError(f"{node} is not used in simulations")
