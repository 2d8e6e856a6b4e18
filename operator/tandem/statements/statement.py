"""A parsed update or delete: its trees, canonical texts and properties.

Only `parse_where` and `parse_statement` turn a user's text into something that may run. The
operation and the commit record `Statement.canonical`, and parsing its parts again gives the same
statement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

from tandem.errors import InvalidStatement
from tandem.statements import coercion, tree
from tandem.statements.coercion import MAX_SET, wrong_literals
from tandem.statements.cursor import IDENTITY, Relations, target_of
from tandem.statements.functions import FUNCTIONS
from tandem.statements.lexer import ExpressionText, visible
from tandem.statements.parser import parse
from tandem.statements.tree import Expr, quote_name, to_spark_sql
from tandem.statements.types import (
    BOOLEAN,
    COLLATED,
    NULL,
    STRING,
    UNKNOWN,
    Schema,
    SchemaColumn,
    SqlType,
    as_target,
    sql_name,
    struct_of,
)


@dataclass(frozen=True)
class Assignment:
    """One column of SET and its new value, already cast to the column's type."""

    column: str
    value: Expr
    nullable: bool = True

    @property
    def sql(self) -> str:
        return to_spark_sql(self.value)


@dataclass(frozen=True)
class Statement:
    """An update (with assignments) or a delete (without).

    `where` None means every row. A row is affected if `where` is true for it; if it is false or
    NULL, the row stays unchanged.
    """

    where: Expr | None
    assignments: tuple[Assignment, ...] = ()
    schema: Schema = field(default_factory=lambda: Schema(()), compare=False, repr=False)

    @property
    def kind(self) -> str:
        return "Update" if self.assignments else "Delete"

    @cached_property
    def where_sql(self) -> str:
        """Spark SQL of the condition; TRUE if there is none."""
        return "TRUE" if self.where is None else to_spark_sql(self.where)

    @cached_property
    def set_sql(self) -> dict[str, str]:
        """Spark SQL of each new value by column name, in the order of the table's schema."""
        return {item.column: item.sql for item in self.assignments}

    @cached_property
    def canonical(self) -> str:
        """The whole statement on one line, as commits record it."""
        if not self.assignments:
            return f"DELETE WHERE {self.where_sql}"
        values = ", ".join(f"{quote_name(name)} = {sql}" for name, sql in self.set_sql.items())
        return f"UPDATE SET {values} WHERE {self.where_sql}"

    @cached_property
    def deterministic(self) -> bool:
        """Whether evaluating it again on the same row gives the same answer."""
        return not any(map(random_call, self._roots))

    @cached_property
    def columns(self) -> frozenset[str]:
        """Names of the top-level columns that the condition and the values read."""
        return frozenset().union(*(referenced(root) for root in self._roots))

    @property
    def _roots(self) -> tuple[Expr, ...]:
        values = tuple(item.value for item in self.assignments)
        return values if self.where is None else (self.where, *values)

    def to_json(self) -> dict[str, Any]:
        """The form that operations and commits record: canonical texts only."""
        recorded: dict[str, Any] = {
            "kind": self.kind,
            "where": self.where_sql,
            "deterministic": self.deterministic,
        }
        if self.assignments:
            recorded["set"] = self.set_sql
        return recorded


def random_call(root: Expr) -> tree.Call | None:
    """A call below a node that has another answer each time, if there is one."""
    calls = (node for node in tree.walk(root) if isinstance(node, tree.Call))
    return next((call for call in calls if not FUNCTIONS[call.function].deterministic), None)


def referenced(root: Expr) -> frozenset[str]:
    """Names of the top-level columns below a node."""
    return frozenset(node.parts[0] for node in tree.walk(root) if isinstance(node, tree.ColumnRef))


def as_schema(schema: Schema | str) -> Schema:
    return schema if isinstance(schema, Schema) else Schema.from_json(schema)


def parse_expression(
    text: str, schema: Schema | Relations | str, *, resource: str, field: str
) -> Expr:
    """The typed tree of any accepted expression.

    Raises:
        InvalidStatement: with the position in the text.
    """
    if not isinstance(text, str):
        raise InvalidStatement(
            "an expression is a text",
            resource=resource,
            field=field,
            found=f"{text!r}"[:80],
            expected="a Spark SQL expression in quotes",
        )
    names = schema if isinstance(schema, Relations) else as_schema(schema)
    source = ExpressionText(text, resource, field)
    root = parse(source, names)
    check_literals(root, source)
    return root


def parse_where(
    text: str, schema: Schema | Relations | str, *, resource: str = "", field: str = "where"
) -> Expr:
    """The typed tree of a condition on the rows of a table.

    Args:
        text: a Spark SQL expression.
        schema: the table's schema, or the `schemaString` of its metadata.

    Raises:
        InvalidStatement: also if the expression is not a condition.
    """
    root = parse_expression(text, schema, resource=resource, field=field)
    if root.type not in (BOOLEAN, NULL, UNKNOWN):
        raise ExpressionText(text, resource, field).error(
            root.at,
            "the condition is not BOOLEAN",
            found=str(root.type),
            expected="BOOLEAN",
            remedy="Compare the value with something.",
        )
    if root.type == NULL:
        # Spark only accepts a BOOLEAN as a filter.
        return tree.Cast(operand=root, type=BOOLEAN, at=root.at)
    return root


def parse_statement(
    where: str | None,
    set: Mapping[str, str] | None,  # noqa: A002
    schema: Schema | str,
    *,
    resource: str = "",
    field: str = "spec",
    exact_names: bool = False,
) -> Statement:
    """A delete (`set` None) or an update.

    Args:
        where: a condition; None affects every row.
        set: expressions by column. All of them read the old values of the row.
        schema: the table's schema, or the `schemaString` of its metadata.
        resource: the resource to name in errors, such as `TableUpdate/late`.
        field: the field of the resource that contains `where` and `set`, such as `spec.update`.
        exact_names: keys of `set` are names of columns, as in `Statement.set_sql`, not SQL: a
            backquote or a dot is part of the name.

    Raises:
        InvalidStatement: with the resource, the field, the position and a remedy.
    """
    table = as_schema(schema)
    condition = None
    if where is not None:
        condition = parse_where(where, table, resource=resource, field=f"{field}.where")
    if set is None:
        return Statement(condition, schema=table)
    place = f"{field}.set"
    given = assigned(set, table, table, resource=resource, field=place, exact_names=exact_names)
    return Statement(condition, completed(given, table, resource=resource, field=place), table)


def assigned(
    set: Mapping[str, str],  # noqa: A002
    table: Schema,
    names: Schema | Relations,
    *,
    resource: str,
    field: str,
    exact_names: bool = False,
    insert: bool = False,
    row: tuple[str, ...] = (),
) -> tuple[Assignment, ...]:
    """The assignments of a SET, or of an `insert`, in the order of the table's columns; `names` are
    the names that its expressions may use, with those of the table below `row`, and `exact_names`
    is as in `parse_statement`. Raises: InvalidStatement."""
    if not set or len(set) > MAX_SET:
        raise InvalidStatement(
            "SET has no column, or too many",
            resource=resource,
            field=field,
            found=f"{len(set)} columns",
            expected=f"1 to {MAX_SET}",
        )
    found: dict[tuple[str, ...], Expr] = {}
    for name, text in set.items():
        place = f"{field}.{visible(name)[:80]}"
        path, column = target_of(name, table, resource, place, exact=exact_names, insert=insert)
        if any(path[: len(p)] == p or p[: len(path)] == path for p in found):
            raise InvalidStatement(
                "SET names the same column twice", resource=resource, field=place, found=name
            )
        value = parse_expression(text, names, resource=resource, field=place)
        found[path] = stored(value, column, ExpressionText(text, resource, place))
    return tuple(
        Assignment(column.name, with_fields(column, found, (column.name,), row), column.nullable)
        for column in table.columns
        if any(path[0] == column.name for path in found)
    )


# Values that a statement or a source does not give. Those of identity columns are given where rows
# are written (`JobTable.identity`). A generated column is computed wherever it is
# not given, and compared where it is (`tandem.statements.rules`). A default is for columns that an
# insert or a source lacks: rows of older files that lack the column are NULL.

GENERATION = "delta.generationExpression"
DEFAULT = "CURRENT_DEFAULT"


def generation_of(column: SchemaColumn, table: Schema, *, resource: str = "") -> Expr | None:
    """The expression of a generated column on the columns of its row, as it is stored. Raises:
    InvalidStatement if it is not in the language of statements."""
    return _of_schema(GENERATION, column, table, resource)


def default_of(column: SchemaColumn, *, resource: str = "") -> Expr | None:
    """The default of a column, as it is stored. Raises: as `generation_of`."""
    return _of_schema(DEFAULT, column, Schema(()), resource)


def _of_schema(key: str, column: SchemaColumn, names: Schema, resource: str) -> Expr | None:
    text = column.metadata.get(key)
    if text is None:
        return None
    place = f"{key} of {visible(column.name)[:80]}"
    try:
        value = parse_expression(text, names, resource=resource, field=place)
        return stored(value, as_target(column), ExpressionText(text, resource, place))
    except InvalidStatement as error:
        error.remedy = (
            "Write it in the language of statements (docs/statements.md), or let the table's own "
            "engine write new values; deletes and compactions are possible"
        )
        raise


def absent_values(
    schema_string: str, columns: Collection[str], given: Iterable[str], *, sparse: bool = False
) -> dict[str, Expr]:
    """What rows of a source hold in columns that it does not give, other than NULL, in the order in
    which it is computed.

    Args:
        columns: those of the table that the rows get; others are not read.
        given: those of the source, in any case.
        sparse: whether a NULL of the source may be a value that is not given, as in JSON: a column
            that Spark reads with a schema has no default then, and is generated where it is NULL.
    Raises: InvalidStatement.
    """
    if GENERATION not in schema_string and DEFAULT not in schema_string:
        return {}
    table, known = Schema.from_json(schema_string), {name.lower() for name in given}
    absent = [
        column.name
        for column in table.columns
        if column.name in columns
        and (column.name.lower() not in known or (sparse and GENERATION in column.metadata))
    ]
    found = _values(table, absent)
    return {name: value for name, value in found.items() if referenced(value) <= set(columns)}


def _values(table: Schema, absent: Collection[str], resource: str = "") -> dict[str, Expr]:
    """Defaults, then what generates columns, which reads others."""
    lacking = [column for column in table.columns if column.name in absent]
    found = {column.name: default_of(column, resource=resource) for column in lacking}
    found |= {
        column.name: generation_of(column, table, resource=resource)
        for column in lacking
        if GENERATION in column.metadata
    }
    given_by_table = {column.name for column in lacking if IDENTITY in column.metadata}
    for name, value in found.items():
        if value is not None and referenced(value) & given_by_table:
            raise InvalidStatement(
                "a generated column reads an identity column, whose value is given later",
                resource=resource,
                field=f"{GENERATION} of {visible(name)[:80]}",
                found=", ".join(sorted(referenced(value) & given_by_table)),
                expected="other columns",
                remedy="Let the table's own engine insert; deletes and compactions are possible",
            )
    return {name: value for name, value in found.items() if value is not None}


def completed(
    given: Sequence[Assignment],
    table: Schema,
    kept: Callable[[tree.ColumnRef], Expr] | None = lambda column: column,
    *,
    resource: str,
    field: str,
) -> tuple[Assignment, ...]:
    """The assignments of an update or an insert, with those of columns that it does not give, in
    the order of the table's columns.

    Args:
        kept: how the statement names a column of the row that keeps its value; None for an insert.
    Raises: InvalidStatement.
    """
    found = {item.column: item for item in given}

    def now(node: Expr) -> Expr:
        if not isinstance(node, tree.ColumnRef):
            return node
        name, *below = node.parts
        if name not in found:
            if kept is not None:
                return kept(node)
            return tree.Cast(operand=tree.Literal(value=None, type=NULL), type=node.type)
        value = found[name].value
        for part in below:
            value = field_of(value, part)
        return value

    absent = {
        column.name: column
        for column in table.columns
        if column.name not in found and (kept is None or GENERATION in column.metadata)
    }
    for name, value in _values(table, absent, resource).items():
        reads = referenced(value) & found.keys()
        if kept is not None and not reads:
            continue
        for each in reads:
            call = random_call(found[each].value)
            if call is not None:
                raise InvalidStatement(
                    f"the generated column {visible(name)[:80]} reads a value that is another one "
                    "each time",
                    resource=resource,
                    field=f"{field}.{visible(each)[:80]}",
                    found=call.function,
                    expected="the same value for the same row",
                )
        found[name] = Assignment(name, tree.mapped(value, now), absent[name].nullable)
    return tuple(found[column.name] for column in table.columns if column.name in found)


# How values are stored: in whole columns only. To set a field is to set its struct, whose other
# fields stay, as Delta's UPDATE does.


def with_fields(
    column: SchemaColumn,
    found: Mapping[tuple[str, ...], Expr],
    path: tuple[str, ...],
    row: tuple[str, ...],
) -> Expr:
    """The new value of a column, or of a field of it, of which some fields may be set."""
    if path in found:
        return found[path]
    if not any(each[: len(path)] == path for each in found):
        return tree.ColumnRef(parts=(*row, *path), type=column.type)
    fields = [
        (field.name, with_fields(field, found, (*path, field.name), row))
        for field in column.type.fields
    ]
    return _named_struct(fields)


def _named_struct(fields: Iterable[tuple[str, Expr]], at: int = 0) -> Expr:
    parts = list(fields)
    args = [
        each
        for name, value in parts
        for each in (tree.Literal(value=name, type=STRING, at=at), value)
    ]
    type_ = struct_of((name, value.type) for name, value in parts)
    return tree.Call(function="named_struct", args=tuple(args), type=type_, at=at)


def field_of(value: Expr, name: str) -> Expr:
    """A field of the new value of a struct."""
    if isinstance(value, tree.ColumnRef):
        of = next(field.type for field in value.type.fields if field.name == name)
        return replace(value, parts=(*value.parts, name), type=of)
    if isinstance(value, tree.Call):
        for key, part in zip(value.args[::2], value.args[1::2], strict=True):
            if isinstance(key, tree.Literal) and key.value == name:
                return part
    return tree.Literal(value=None, type=NULL)


def stored(value: Expr, column: SchemaColumn, source: ExpressionText) -> Expr:
    """The value with the cast that storing it in the column requires, if any.

    Raises: InvalidStatement, which points into `source`.
    """
    if value.type == NULL and not column.nullable and _is_null(value):
        raise source.error(
            value.at, f"{column.name} is NOT NULL", found="NULL", expected=str(column.type)
        )
    if column.type.is_nested:
        return _stored_nested(value, column, source)
    if value.type == column.type or (value.type, column.type) == (COLLATED, STRING):
        return value
    loss = coercion.assignment_loss(value.type, column.type)
    if loss and not _exact_literal(value, column.type):
        raise source.error(
            value.at,
            f"{value.type} cannot be stored in {column.name}: {loss}",
            found=str(value.type),
            expected=str(column.type),
            remedy=f"Write CAST(… AS {sql_name(column.type)}) if that is meant."
            if coercion.can_cast(value.type, column.type)
            else "",
        )
    cast = tree.Cast(operand=value, type=column.type, at=value.at)
    check_literals(cast, source)
    return cast


def _stored_nested(value: Expr, column: SchemaColumn, source: ExpressionText) -> Expr:
    """A struct is stored field by field, by name, if it is made by named_struct; other values are
    as they are. Raises: InvalidStatement."""
    if _is_null(value):
        return replace(value, type=column.type)
    if value.type in (NULL, UNKNOWN) or value.type.same_as(column.type):
        return value
    if isinstance(value, tree.Call) and value.function == "named_struct":
        given = {field.name.lower(): field.name for field in value.type.fields}
        wanted = [field.name.lower() for field in column.type.fields]
        if column.type.name == "struct" and sorted(given) == sorted(wanted):
            return _named_struct(
                (
                    (f.name, stored(field_of(value, given[f.name.lower()]), as_target(f), source))
                    for f in column.type.fields
                ),
                value.at,
            )
    raise source.error(
        value.at,
        f"{value.type} cannot be stored in {column.name}: it is of another type",
        found=_shown(value.type),
        expected=_shown(column.type),
        remedy="Give a value of the same type, of a struct also named_struct('field', value, …).",
    )


def _shown(type_: SqlType) -> str:
    names = ", ".join(visible(field.name) for field in type_.fields)
    return f"{type_} of {names}"[:200] if names else str(type_)


def _is_null(value: Expr) -> bool:
    return isinstance(value, tree.Literal) and value.value is None


def _exact_literal(value: Expr, target: SqlType) -> bool:
    return (
        isinstance(value, tree.Literal)
        and isinstance(value.value, Decimal)
        and value.type.name == "decimal"
        and (target.is_integral or target.name == "decimal")
        and coercion.literal_fits(value.value, target)
    )


def check_literals(root: Expr, source: ExpressionText) -> None:
    """Raises: InvalidStatement for a constant on which Spark would fail at the first row."""
    for literal, target, expected in wrong_literals(root):
        raise source.error(
            literal.at,
            f"this is not a valid {target}",
            found=str(literal.value),
            expected=expected,
            remedy="Correct the constant.",
        )
