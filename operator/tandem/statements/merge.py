"""A merge: how rows of the source `s` match rows of the table `t`, and what happens to each.

As for updates in `statement.py`, only `parse_merge` turns a user's texts into something that may
run. It can do so before the source's columns are known, which checks everything that does not
depend on them; before the merge runs it is parsed with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

from tandem.errors import InvalidStatement
from tandem.statements import tree
from tandem.statements.cursor import IDENTITY, Relation, Relations, check_identity
from tandem.statements.lexer import ExpressionText
from tandem.statements.statement import (
    DEFAULT,
    GENERATION,
    Assignment,
    assigned,
    completed,
    parse_where,
    random_call,
    stored,
)
from tandem.statements.tree import Expr, quote_name, to_spark_sql
from tandem.statements.types import Schema, SchemaColumn, as_target, matching

When = Literal["Matched", "NotMatched", "NotMatchedBySource"]
ClauseAction = Literal["Delete", "Update", "Insert"]

TABLE, SOURCE = "t", "s"
_RANDOM = frozenset({"rand", "uuid"})
_SPOKEN: Mapping[str, str] = {
    "Matched": "MATCHED",
    "NotMatched": "NOT MATCHED",
    "NotMatchedBySource": "NOT MATCHED BY SOURCE",
}


class ClauseText(Protocol):
    """A clause as the user wrote it; `tandem.jobs.formats.MergeClause` implements it."""

    @property
    def when(self) -> When: ...
    @property
    def action(self) -> ClauseAction: ...
    @property
    def where(self) -> str | None: ...
    @property
    def set(self) -> Mapping[str, str]: ...
    @property
    def all(self) -> bool: ...
    @property
    def field(self) -> str: ...


@dataclass(frozen=True)
class Clause:
    """One clause. `assignments` of an update are the columns that it sets, of an insert those that
    do not become NULL. With `every` they are all columns, set from the source's columns of the
    same names: none are listed as long as the source's columns are unknown."""

    when: When
    action: ClauseAction
    where: Expr | None = None
    assignments: tuple[Assignment, ...] = ()
    every: bool = False

    @property
    def where_sql(self) -> str:
        return "TRUE" if self.where is None else to_spark_sql(self.where)

    @property
    def set_sql(self) -> dict[str, str]:
        """Spark SQL of each value by column name, in the order of the table's schema."""
        return {item.column: item.sql for item in self.assignments}

    @property
    def canonical(self) -> str:
        condition = "" if self.where is None else f" AND {self.where_sql}"
        return f"WHEN {_SPOKEN[self.when]}{condition} THEN {self._does()}"

    def _does(self) -> str:
        if self.action == "Delete":
            return "DELETE"
        if self.every:
            return "UPDATE SET *" if self.action == "Update" else "INSERT *"
        names = [quote_name(name) for name in self.set_sql]
        values = list(self.set_sql.values())
        if self.action == "Insert":
            return " ".join(["INSERT", f"({', '.join(names)})", "VALUES", f"({', '.join(values)})"])
        pairs = zip(names, values, strict=True)
        return "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in pairs)

    def roots(self) -> Iterator[Expr]:
        if self.where is not None:
            yield self.where
        yield from (item.value for item in self.assignments)


@dataclass(frozen=True)
class MergeStatement:
    """`clauses` are in the given order. Of those of one `when`, the first whose condition is true
    applies."""

    on: Expr
    clauses: tuple[Clause, ...]
    table: Schema = field(default_factory=lambda: Schema(()), compare=False, repr=False)

    def when(self, when: When) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.clauses if clause.when == when)

    @cached_property
    def on_sql(self) -> str:
        return to_spark_sql(self.on)

    @cached_property
    def canonical(self) -> str:
        """The whole statement on one line, as plans and commits record it."""
        return " ".join([f"MERGE ON {self.on_sql}", *(c.canonical for c in self.clauses)])

    @property
    def one_match_only(self) -> bool:
        """Whether several source rows for one row of the table are an error: it would be ambiguous
        which of them applies. That does not matter if the row is deleted in any case."""
        matched = self.when("Matched")
        return bool(matched) and not (
            len(matched) == 1 and matched[0].action == "Delete" and matched[0].where is None
        )

    @cached_property
    def deterministic(self) -> bool:
        """Whether executing it again on the same rows gives the same answer."""
        return not any(map(random_call, self.roots()))

    @property
    def records_matches(self) -> bool:
        """Whether its jobs record which source row each row matched: the merge inserts the other
        ones, and another execution would do so again."""
        return bool(self.when("NotMatched")) and self.deterministic

    def columns_of_table(self) -> frozenset[str]:
        """Names of the top-level columns of the table that `on`, conditions and values read."""
        return _named(*self.roots())

    def columns_of_conditions(self) -> frozenset[str]:
        """As `columns_of_table`, of the conditions of clauses alone."""
        return _named(*(clause.where for clause in self.clauses if clause.where is not None))

    def columns_of_source(self) -> frozenset[str]:
        """As `columns_of_table`, of the source."""
        return _named(*self.roots(), of=SOURCE)

    def keys_of_table(self) -> tuple[str, ...]:
        """Columns of the table that `on` reads, in the order of the schema: they identify a row in
        messages."""
        named = _named(self.on)
        return tuple(column.name for column in self.table.columns if column.name in named)

    def equal_columns(self) -> Iterator[tuple[tree.ColumnRef, tree.ColumnRef]]:
        """Columns of the table and of the source, of one type, that `on` requires to be equal."""
        return _equal_columns(self.on)

    def roots(self) -> Iterator[Expr]:
        """`on`, conditions and values."""
        yield self.on
        for clause in self.clauses:
            yield from clause.roots()

    def predicates(self) -> dict[str, str]:
        """The `operationParameters` that Delta writes for a MERGE."""
        lists = {
            "matchedPredicates": self.when("Matched"),
            "notMatchedPredicates": self.when("NotMatched"),
            "notMatchedBySourcePredicates": self.when("NotMatchedBySource"),
        }
        found = {"predicate": json.dumps([self.on_sql])}
        for name, clauses in lists.items():
            found[name] = json.dumps(
                [
                    {
                        **({} if clause.where is None else {"predicate": clause.where_sql}),
                        "actionType": clause.action.lower(),
                    }
                    for clause in clauses
                ]
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The form that operations and commits record: canonical texts only."""
        return {
            "kind": "Merge",
            "on": self.on_sql,
            "deterministic": self.deterministic,
            "clauses": [_recorded(clause) for clause in self.clauses],
        }


def parse_merge(
    on: str,
    clauses: Sequence[ClauseText],
    table: Schema,
    source: Schema | None,
    *,
    resource: str = "",
    field: str = "spec.merge",
) -> MergeStatement:
    """Parse a merge from the user's texts.

    Args:
        table, source: their columns; None for a source whose columns are not known yet.
        field: the field of the resource that contains `on`.

    Raises:
        InvalidStatement: with the resource, the field, the position and a remedy.
    """
    relations = {
        TABLE: Relation(TABLE, "the table", table),
        SOURCE: Relation(SOURCE, "the source", source),
    }
    both = Relations(tuple(relations.values()))
    scopes: Mapping[str, Relations] = {
        "Matched": both,
        "NotMatched": Relations(
            (relations[SOURCE],),
            {TABLE: "there is no row of the table (t) here, since none matches"},
        ),
        "NotMatchedBySource": Relations(
            (relations[TABLE],),
            {SOURCE: "there is no row of the source (s) here, since none matches"},
        ),
    }
    condition = _condition(on, both, resource, f"{field}.on")
    _check_order(clauses, resource)
    parsed = tuple(_clause(text, scopes[text.when], table, source, resource) for text in clauses)
    return MergeStatement(condition, parsed, table)


def _check_order(clauses: Sequence[ClauseText], resource: str) -> None:
    ended: dict[str, str] = {}
    for clause in clauses:
        if clause.when in ended:
            raise InvalidStatement(
                "this clause never applies, since the one before it has no condition",
                resource=resource,
                field=clause.field,
                found=f"{ended[clause.when]} without where",
                expected="a where in every clause but the last",
            )
        if clause.where is None:
            ended[clause.when] = clause.field


def _clause(
    text: ClauseText, relations: Relations, table: Schema, source: Schema | None, resource: str
) -> Clause:
    where = None
    if text.where is not None:
        where = _condition(text.where, relations, resource, f"{text.field}.where")
    if text.action == "Delete":
        return Clause(text.when, text.action, where)
    update = text.action == "Update"
    if text.all:
        place = f"{text.field}.{'updateAll' if update else 'insertAll'}"
        if source is None:
            return Clause(text.when, text.action, where, every=True)
        given = _every(table, source, resource, place, insert=not update)
    else:
        place = f"{text.field}.{'update.set' if update else 'insert.values'}"
        given = assigned(
            text.set,
            table,
            relations,
            resource=resource,
            field=place,
            insert=not update,
            row=(TABLE,),
        )
    kept = _of_table if update else None
    found = completed(given, table, kept, resource=resource, field=place)
    if not update:
        _check_insert(found, table, resource, place)
    return Clause(text.when, text.action, where, found, every=text.all)


def _of_table(column: tree.ColumnRef) -> Expr:
    return replace(column, parts=(TABLE, *column.parts))


def _condition(text: str, relations: Relations, resource: str, place: str) -> Expr:
    root = parse_where(text, relations, resource=resource, field=place)
    for call in _calls(root):
        if call.function in _RANDOM:
            raise ExpressionText(text, resource, place).error(
                call.at,
                "a condition of a merge must be deterministic",
                found=call.function,
                expected="the same answer for the same rows",
            )
    return root


def _check_insert(found: tuple[Assignment, ...], table: Schema, resource: str, place: str) -> None:
    """Check that the columns that an insert leaves out may be NULL."""
    given = {item.column for item in found}
    for column in table.columns:
        if column.name not in given and not (column.nullable or IDENTITY in column.metadata):
            raise InvalidStatement(
                f"{column.name} is NOT NULL and gets no value",
                resource=resource,
                field=place,
                found=", ".join(given),
                expected=f"a value for {column.name}",
            )


def _every(
    table: Schema, source: Schema, resource: str, place: str, *, insert: bool
) -> tuple[Assignment, ...]:
    """Each column of the table from the source's column of that name. The source may lack generated
    and identity columns, in an insert those with a default, too."""
    computed = {GENERATION, IDENTITY, *([DEFAULT] if insert else [])}
    return tuple(
        Assignment(
            column.name,
            _same_column(column, source, resource, place, insert=insert),
            column.nullable,
        )
        for column in table.columns
        if computed.isdisjoint(column.metadata) or matching(source.columns, column.name)
    )


def _same_column(
    column: SchemaColumn, source: Schema, resource: str, place: str, *, insert: bool
) -> Expr:
    check_identity(column, resource, place, insert=insert)
    candidates = matching(source.columns, column.name)
    if len(candidates) != 1:
        raise InvalidStatement(
            "the source must have every column of the table, once",
            resource=resource,
            field=place,
            found=f"{len(candidates)} columns called {column.name}"
            if candidates
            else f"no {column.name}",
            expected=f"one column {column.name}; the source has "
            + ", ".join(other.name for other in source.columns[:12]),
            remedy="Say which columns get which values instead",
        )
    value = tree.ColumnRef(parts=(SOURCE, candidates[0].name), type=candidates[0].type)
    column = as_target(column)
    if not column.type.is_atomic:
        # Only Spark can determine whether two structs, arrays or maps have the same type.
        return value
    text = f"s.{candidates[0].name}"
    return stored(value, column, ExpressionText(text, resource, f"{place}.{column.name}"))


def _calls(*roots: Expr) -> Iterator[tree.Call]:
    return (node for root in roots for node in tree.walk(root) if isinstance(node, tree.Call))


def _equal_columns(on: Expr) -> Iterator[tuple[tree.ColumnRef, tree.ColumnRef]]:
    if isinstance(on, tree.Logical) and on.op == "AND":
        for operand in on.operands:
            yield from _equal_columns(operand)
    elif isinstance(on, tree.Binary) and on.op == "=":
        sides = {
            side.parts[0]: side
            for side in (on.left, on.right)
            if isinstance(side, tree.ColumnRef) and len(side.parts) == 2
        }
        if sides.keys() == {TABLE, SOURCE} and sides[TABLE].type == sides[SOURCE].type:
            yield sides[TABLE], sides[SOURCE]


def _named(*roots: Expr, of: str = TABLE) -> frozenset[str]:
    """The columns of the table, or of the source, that are read."""
    return frozenset(
        node.parts[1]
        for root in roots
        for node in tree.walk(root)
        if isinstance(node, tree.ColumnRef) and node.parts[0] == of
    )


def _recorded(clause: Clause) -> dict[str, Any]:
    recorded: dict[str, Any] = {"when": clause.when, "action": clause.action}
    if clause.where is not None:
        recorded["where"] = clause.where_sql
    if clause.every:
        recorded["all"] = True
    elif clause.assignments:
        recorded["set"] = clause.set_sql
    return recorded
