"""The rules of a table: CHECK constraints, column invariants and the values of generated columns,
as conditions on each row.

Spark + Delta evaluates them on every row with new values, and refuses a row for which one is false
*or NULL* (`CheckDeltaInvariant`), whatever the protocol lists (`Constraints.getAll`). NOT NULL and
the lengths of CHAR and VARCHAR are rules of one column, and checked where columns are written
(`tandem.delta.datafiles.conform`, `tandem.delta.char_types`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tandem.delta.actions import Metadata
from tandem.delta.protocol import constraints
from tandem.delta.schema import fields_of, parse
from tandem.errors import InvalidStatement
from tandem.statements import tree
from tandem.statements.statement import (
    GENERATION,
    generation_of,
    parse_where,
    random_call,
    referenced,
)
from tandem.statements.tree import Expr, to_spark_sql
from tandem.statements.types import BINARY, BOOLEAN, STRING, Schema
from tandem.text import clean

INVARIANT = "delta.invariants"
_NAME = 500
"""Characters of a name in a message."""

_OURS = (
    "Drop it, or write it in the language of statements (docs/statements.md). Until then the "
    "table's own engine writes new values; deletes and compactions are possible"
)


@dataclass(frozen=True)
class RowRule:
    """A condition that must be true for each row.

    Attributes:
        name: the property, or the column, that has it, for messages.
        text: as the table has it.
    """

    name: str
    text: str
    condition: Expr

    @cached_property
    def columns(self) -> frozenset[str]:
        """Names of the top-level columns that it reads."""
        return referenced(self.condition)

    @cached_property
    def sql(self) -> str:
        """Spark SQL of the condition."""
        return to_spark_sql(self.condition)


def texts_of(schema_string: str, configuration: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, text) of each rule. Raises: InvalidStatement for an invariant that is none."""
    yield from ((clean(name, _NAME), text) for name, text in constraints(configuration).items())
    if INVARIANT not in schema_string:
        return
    for field in fields_of(parse(schema_string)):
        found = field.metadata.get(INVARIANT)
        if found is None:
            continue
        name = clean(f"{INVARIANT} of {field.name}", _NAME)
        try:
            text = json.loads(found)["expression"]["expression"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _unreadable(name, found) from error
        if not isinstance(text, str):
            raise _unreadable(name, found)
        yield name, text


def _unreadable(name: str, found: object) -> InvalidStatement:
    return InvalidStatement(
        "the invariant of a column cannot be read",
        field=name,
        found=clean(str(found), 200),
        expected='{"expression": {"expression": "a condition"}}',
        remedy=_OURS,
    )


@lru_cache(maxsize=64)
def _parsed(
    schema_string: str,
    configuration: tuple[tuple[str, str], ...],
    partition_columns: tuple[str, ...],
) -> tuple[RowRule, ...]:
    texts = list(texts_of(schema_string, dict(configuration)))
    if not texts and GENERATION not in schema_string:
        return ()
    schema = Schema.from_json(schema_string)
    found = [RowRule(name, text, _condition(name, text, schema)) for name, text in texts]
    found += _generated(schema)
    return tuple(
        replace(rule, condition=_as_stored(rule.condition, partition_columns)) for rule in found
    )


def _generated(schema: Schema) -> Iterator[RowRule]:
    """That generated columns have the value that their expression has: as Delta's `GeneratedColumn`
    does, NULL is equal to NULL."""
    for column in schema.columns:
        value = generation_of(column, schema)
        if value is None:
            continue
        name, text = (clean(each, _NAME) for each in (column.name, column.metadata[GENERATION]))
        of_row = tree.ColumnRef(parts=(column.name,), type=value.type)
        same = tree.Binary(op="<=>", left=of_row, right=value, type=BOOLEAN)
        _require_deterministic(name, same)
        yield RowRule(f"generated column {name}", text, same)


def rules_of(
    schema_string: str, configuration: Mapping[str, str], partition_columns: Sequence[str]
) -> tuple[RowRule, ...]:
    """The rules of a table by its metadata.

    Raises: InvalidStatement for a text that is not in the language of statements, with the place,
        or that has another answer each time.
    """
    own = tuple(constraints(configuration).items())
    return _parsed(schema_string, own, tuple(partition_columns))


def rules_of_metadata(metadata: Metadata, *, resource: str = "") -> tuple[RowRule, ...]:
    """As `rules_of`; an error names the resource."""
    try:
        return rules_of(metadata.schema_string, metadata.configuration, metadata.partition_columns)
    except InvalidStatement as error:
        error.resource = resource
        raise


def _condition(name: str, text: str, schema: Schema) -> Expr:
    try:
        root = parse_where(text, schema, field=name)
    except InvalidStatement as error:
        error.remedy = _OURS
        raise
    _require_deterministic(name, root)
    return root


def _require_deterministic(name: str, root: Expr) -> None:
    call = random_call(root)
    if call is not None:
        raise InvalidStatement(
            "a constraint has another answer each time",
            field=name,
            found=call.function,
            expected="the same answer for the same row",
            remedy=_OURS,
        )


def _as_stored(root: Expr, partition_columns: Sequence[str]) -> Expr:
    """The condition on the values as they are stored: in a partition column, an empty text is NULL.
    Delta evaluates its rules on these (`convertEmptyToNullIfNeeded`)."""

    def stored(node: Expr) -> Expr:
        if not (isinstance(node, tree.ColumnRef) and node.parts[0] in partition_columns):
            return node
        if node.type not in (STRING, BINARY):
            return node
        empty = tree.Literal(value="" if node.type == STRING else b"", type=node.type)
        return tree.Call(function="nullif", args=(node, empty), type=node.type, at=node.at)

    return tree.mapped(root, stored) if partition_columns else root
