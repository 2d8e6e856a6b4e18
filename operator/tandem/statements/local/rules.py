"""Over Arrow: fills the columns of rows that their table computes, checks them against its rules,
and says which row breaks which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.partitions import python_values
from tandem.errors import ConstraintViolated, StatementFailed
from tandem.statements.local import kernels
from tandem.statements.local.expression import LocalExpression, compile_expression
from tandem.statements.local.kernels import NeedsSpark
from tandem.statements.rules import RowRule, rules_of
from tandem.statements.statement import absent_values
from tandem.text import clean

_SHOWN: Final = 12
"""Columns of a row in a message."""
_LONGEST: Final = 80
"""Characters of a value in a message."""
_TEXT: Final = 500
"""Characters of a constraint in a message."""


@dataclass(frozen=True)
class LocalRules:
    """The rules of a table, each with its condition over Arrow; None if only Spark evaluates it."""

    rules: tuple[RowRule, ...]
    conditions: tuple[LocalExpression | None, ...]

    @classmethod
    def of(
        cls, schema_string: str, configuration: Mapping[str, str], partitions: Sequence[str]
    ) -> LocalRules:
        """Raises: InvalidStatement."""
        rules = rules_of(schema_string, configuration, partitions)
        return cls(rules, tuple(compile_expression(rule.condition) for rule in rules))

    @property
    def left_to_spark(self) -> tuple[RowRule, ...]:
        """The rules that only Spark evaluates."""
        pairs = zip(self.rules, self.conditions, strict=True)
        return tuple(rule for rule, condition in pairs if condition is None)

    def require_here(self, rows: pa.RecordBatch | pa.Table) -> None:
        """As `require`, where Spark is no way out. Raises: ConstraintViolated; StatementFailed."""
        try:
            self.require(rows)
        except NeedsSpark as error:
            raise StatementFailed(
                "a rule of the table cannot be evaluated on a row",
                field=", ".join(rule.name for rule in self.rules),
                found=str(error),
                expected="true or false: an overflow, for one, has neither",
                remedy="Correct the source, or leave such rows out",
            ) from error

    def require(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Check rows that have at least the columns of the rules.

        Raises: ConstraintViolated for the first row that breaks the first rule that is broken;
            NeedsSpark if only Spark evaluates a rule, or one of these rows.
        """
        if not self.rules or not rows.num_rows:
            return
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        for rule, condition in zip(self.rules, self.conditions, strict=True):
            if condition is None:
                raise NeedsSpark(f"{rule.name}: an expression that only Spark evaluates")
            # NULL fails, as in Spark.
            kept = kernels.is_true(condition.evaluate(table))
            at = pc.index(kept, False).as_py()
            if at >= 0:
                raise violation(rule.name, rule.text, table, at, rule.columns)


def violation(
    name: str, text: str, rows: pa.RecordBatch | pa.Table, at: int, first: frozenset[str]
) -> ConstraintViolated:
    """The error of a row of some that breaks a rule; `first` are the columns shown first."""
    return ConstraintViolated(
        "a row with new values breaks a rule of the table",
        field=clean(name, _TEXT),
        found=row_text(rows, at, first),
        expected=clean(text, _TEXT),
        remedy="Change the statement or the source, or leave such rows out",
    )


def row_text(rows: pa.RecordBatch | pa.Table, at: int, first: frozenset[str] = frozenset()) -> str:
    """A row for a message, on one line: the values of its first columns, each of bounded length."""
    names = [name for name in rows.schema.names if not name.startswith("__tandem_")]
    shown = sorted(names, key=lambda name: name not in first)[:_SHOWN]
    values = {name: python_values(_one(rows.column(name), at))[0] for name in shown}
    return ", ".join(
        f"{clean(n, _LONGEST)} = {'NULL' if v is None else _value(v)}" for n, v in values.items()
    )


def _one(column: Any, at: int) -> pa.Array:
    found = column.slice(at, 1)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _value(value: Any) -> str:
    return clean(repr(value) if isinstance(value, str | bytes) else str(value), _LONGEST)


def filled(
    rows: pa.Table, schema_string: str, given: Iterable[str], *, sparse: bool = False
) -> pa.Table:
    """Rows with the columns of a table, of which a source gave some and the others are NULL, with
    the values of these; `sparse` is as in `absent_values`.

    Raises: InvalidStatement; NeedsSpark if only Spark evaluates a value.
    """
    values = absent_values(schema_string, rows.column_names, given, sparse=sparse)
    for name, value in values.items():
        compiled = compile_expression(value)
        if compiled is None:
            raise NeedsSpark(f"{name}: an expression that only Spark evaluates")
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(at)
        found = compiled.evaluate(rows).cast(field.type)
        rows = rows.set_column(at, field, pc.coalesce(rows.column(at), found))
    return rows
