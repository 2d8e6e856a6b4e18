"""Updates and deletes over Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tandem.statements.local.expression import LocalExpression, compile_expression
from tandem.statements.local.rows import LocalRows
from tandem.statements.statement import Statement


@dataclass(frozen=True)
class LocalStatement:
    """A statement that can be evaluated over Arrow.

    Attributes:
        where: None affects every row.
        assignments: by column; the value has the column's type. Empty for a delete.
        kept: the other columns that new rows hold, with the values that they had; None for all.
    """

    where: LocalExpression | None
    assignments: Mapping[str, LocalExpression]
    kept: frozenset[str] | None = None

    def matching(self, table: pa.Table) -> Any:
        """The indexes of the rows that are affected, ascending, as an int64 array.

        Args:
            table: live rows, columns by the names of the schema, at least those of the condition.
        Raises: NeedsSpark if Spark raises on one of the rows, or may do so.
        """
        if self.where is None:
            return pa.array(np.arange(table.num_rows, dtype=np.int64))
        return self.where.where(LocalRows.of(table))

    def written(self, affected: pa.Table) -> pa.Table:
        """The new contents of affected rows, on which alone values are evaluated: all columns of
        the given table, or those that are set and kept. Raises: NeedsSpark; KeyError for a missing
        column."""
        rows = LocalRows.of(affected)
        if self.kept is None:
            return rewritten(affected, self.assignments, rows)
        found = {name: affected[name] for name in affected.column_names if name in self.kept}
        return pa.table(found | {n: value.evaluate(rows) for n, value in self.assignments.items()})


def rewritten(
    before: pa.Table, assignments: Mapping[str, LocalExpression], rows: LocalRows
) -> pa.Table:
    """The rows with new values of the set columns. Raises: NeedsSpark; KeyError for a missing
    column."""
    after = before
    for name, value in assignments.items():
        index = before.schema.get_field_index(name)
        if index < 0:
            raise KeyError(name)
        after = after.set_column(index, before.schema.field(index).name, value.evaluate(rows))
    return after


def compile_statement(statement: Statement) -> LocalStatement | None:
    """The statement over Arrow; None if only Spark can evaluate a part of it.

    Values are cast to their columns in the tree (`tandem.statements.statement.stored`), as
    Spark's ANSI store assignment does. A value that does not fit raises NeedsSpark.
    """
    where = None
    if statement.where is not None:
        where = compile_expression(statement.where)
        if where is None:
            return None
    values = {item.column: compile_expression(item.value) for item in statement.assignments}
    known = {name: value for name, value in values.items() if value is not None}
    return LocalStatement(where, known) if len(known) == len(values) else None
