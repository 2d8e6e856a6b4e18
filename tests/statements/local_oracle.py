"""Spark as the oracle of what is evaluated without it: many expressions in one query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from support.statements.rows import DDL, SCHEMA, runtime_errors
from support.statements.tables import comparable
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, to_spark_sql
from tandem.statements.local import LocalExpression, NeedsSpark, compile_expression
from tandem.statements.tree import Expr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE = 60
"""Expressions of one query. Spark compiles them, which takes more than twice as long for twice
as many."""


class SparkOracle:
    """One table, held by Spark and as Arrow in the same order."""

    def __init__(self, spark: SparkSession, table: pa.Table) -> None:
        self.frame = spark.createDataFrame(table, DDL).coalesce(1).cache()
        self.table = self.frame.toArrow()
        assert self.table.num_rows == table.num_rows
        self.compared = 0
        """Expressions that had values here, which were compared."""
        self.left_to_spark = 0

    def differences(self, compiled: Mapping[str, tuple[Expr, LocalExpression]]) -> list[str]:
        """Where a value here is not Spark's, or Spark raises instead."""
        values: dict[str, tuple[str, Any]] = {}
        for text, (root, expression) in compiled.items():
            try:
                values[text] = to_spark_sql(root), expression.evaluate(self.table)
            except NeedsSpark:
                self.left_to_spark += 1
        self.compared += len(values)
        listed = list(values.items())
        return [
            line
            for first in range(0, len(listed), _AT_ONCE)
            for line in self._differences(listed[first : first + _AT_ONCE])
        ]

    def _differences(self, some: list[tuple[str, tuple[str, Any]]]) -> list[str]:
        selected = self.frame.selectExpr(
            *(f"{sql} AS c{n}" for n, (_, (sql, _)) in enumerate(some))
        )
        try:
            found = selected.toArrow()
        except runtime_errors() as error:
            if len(some) == 1:
                return [f"{some[0][0]}: a value here, {str(error)[:200]} in Spark"]
            half = len(some) // 2
            return self._differences(some[:half]) + self._differences(some[half:])
        wrong = []
        for n, (text, (_, ours)) in enumerate(some):
            theirs = found.column(n)
            if theirs.type != ours.type:
                wrong.append(f"{text}: {ours.type} here, {theirs.type} in Spark")
            pairs = zip(comparable(ours), comparable(theirs), strict=True)
            row, differing = next(
                ((row, pair) for row, pair in enumerate(pairs) if pair[0] != pair[1]), (0, None)
            )
            if differing:
                wrong.append(f"{text}: row {row}: {differing[0]} here, {differing[1]} in Spark")
        return wrong

    def raises(self, root: Expr) -> bool:
        """Whether Spark raises on a row."""
        try:
            self.frame.selectExpr(f"{to_spark_sql(root)} AS c").collect()
        except runtime_errors():
            return True
        return False


def compiled(texts: list[str]) -> dict[str, tuple[Expr, LocalExpression]]:
    """The texts that are accepted and evaluated without Spark, with their trees."""
    found = {}
    for text in texts:
        try:
            root = parse_expression(text, SCHEMA, resource="", field="")
        except InvalidStatement:
            continue
        expression = compile_expression(root)
        if expression is not None:
            found[text] = (root, expression)
    return found
