"""Evaluates canonical statements on tiny rows: enough of Spark SQL for `simulator.statements`."""

from __future__ import annotations

import random
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
    "*": lambda a, b: a * b,
}


class Evaluator:
    """`set_` is empty for a delete. `rng` is where `rand()` draws from."""

    def __init__(self, where: str, set_: Mapping[str, str], rng: random.Random) -> None:
        self._rng = rng
        self.is_random = any("rand()" in text for text in set_.values())
        self._where = _parsed(where)
        # The time of a row follows from its `k`.
        self._set = {name: _parsed(text) for name, text in set_.items() if name != "t"}

    @property
    def deletes(self) -> bool:
        return not self._set

    def matches(self, row: Row) -> bool:
        return bool(self._value(self._where, row))

    def changed(self, row: Row) -> Row | None:
        """What becomes of a row that matches; None if it is deleted."""
        if self.deletes:
            return None
        return row._replace(**{name: int(self._value(e, row)) for name, e in self._set.items()})

    def _value(self, node: Expr, row: Row) -> float:
        match node:
            case tree.Literal():
                assert isinstance(node.value, int)
                return node.value
            case tree.ColumnRef():
                return int(getattr(row, node.parts[0]))
            case tree.Binary():
                left, right = self._value(node.left, row), self._value(node.right, row)
                return float(_COMPARISONS[node.op](left, right))
            case tree.Cast():
                return int(self._value(node.operand, row))
            case tree.Call(function="rand"):
                return self._rng.random()
            case _:
                raise ValueError(f"no statement of the histories has {node}")


def _parsed(text: str) -> Expr:
    return parse_expression(text, SCHEMA_STRING, resource="simulator", field="statement")
