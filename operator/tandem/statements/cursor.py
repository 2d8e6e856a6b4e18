"""The parser's position in the text: the tokens, the counts that limit it, its errors, and what
names refer to.

Shared by all parts of the parser; no grammar here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from tandem.delta import identity
from tandem.errors import InvalidStatement
from tandem.statements import coercion, tree
from tandem.statements.coercion import MAX_NODES
from tandem.statements.lexer import ExpressionText, Token, tokenize, visible
from tandem.statements.tree import Expr, quote_name
from tandem.statements.types import (
    BOOLEAN,
    NULL,
    STRING,
    UNKNOWN,
    Schema,
    SchemaColumn,
    SqlType,
    as_target,
    close_names,
    matching,
)

# What an expression may name: the columns of the table, or in a merge of two relations.
#
# Must not parse, or know where in a text a name is.


@dataclass(frozen=True)
class Relation:
    """`about` is the name for messages: "the table". `schema` None: its columns are not known yet,
    and any name may be one, of any type."""

    name: str
    about: str
    schema: Schema | None


@dataclass(frozen=True)
class Relations:
    """The relations that an expression may name, and those that it may not, with the reason."""

    named: tuple[Relation, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Relation | None:
        return next((r for r in self.named if r.name == name.lower()), None)


_Node = TypeVar("_Node", bound=Expr)

SUB_QUERY = ("SELECT", "FROM", "EXISTS", "WITH", "VALUES", "TABLE")
"""Words that show that the user meant a sub-query."""


class Cursor:
    def __init__(self, source: ExpressionText, schema: Schema | Relations) -> None:
        self.source = source
        self.schema = schema
        self.tokens = tokenize(source)
        self.next = 0
        self.nesting = 0
        self.nodes = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def advance(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.next += 1
        return token

    def is_op(self, *ops: str) -> bool:
        return self.token.kind == "op" and self.token.text in ops

    def is_word(self, *words: str) -> bool:
        return self.token.keyword in words

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.next + ahead, len(self.tokens) - 1)]

    def expect_op(self, op: str) -> Token:
        if not self.is_op(op):
            self.fail_here(f"expected {op}")
        return self.advance()

    def expect_word(self, word: str) -> Token:
        if not self.is_word(word):
            self.fail_here(f"expected {word}")
        return self.advance()

    def fail(self, at: int, message: str, **details: str) -> NoReturn:
        raise self.source.error(at, message, **details)

    def fail_here(self, expected: str) -> NoReturn:
        token = self.token
        if token.keyword in SUB_QUERY:
            self.fail(
                token.at,
                "sub-queries are not accepted",
                found=token.shown(),
                remedy="Only the columns of the row itself can be used; a column of this name "
                "stands in `backquotes`.",
            )
        if token.keyword == "OVER":
            self.fail(token.at, "window functions are not accepted", found=token.shown())
        self.fail(
            token.at,
            "the expression cannot be parsed",
            found=token.shown(),
            expected=expected.removeprefix("expected "),
        )

    def note(self, node: _Node) -> _Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.fail(
                node.at,
                "the expression has too many parts",
                expected=f"at most {MAX_NODES}",
                remedy="Split the operation.",
            )
        return node

    def fail_types(self, parts: list[Expr], at: int, what: str) -> NoReturn:
        self.fail(
            at,
            f"{what} have incompatible types",
            found=", ".join(dict.fromkeys(str(part.type) for part in parts)),
            expected="types with a common type",
            remedy="Convert them with CAST(… AS …).",
        )

    def common(self, parts: list[Expr], at: int, what: str) -> SqlType:
        data_type = coercion.common_of_all(parts)
        if data_type is None:
            self.fail_types(parts, at, what)
        return data_type

    def need_boolean(self, operand: Expr, op: str) -> None:
        if operand.type not in (BOOLEAN, NULL, UNKNOWN):
            self.fail(
                operand.at,
                f"{op} needs conditions",
                found=str(operand.type),
                expected="BOOLEAN",
                remedy="Compare the value with something.",
            )

    def need_comparable(self, left: Expr, right: Expr, token: Token, op: str) -> None:
        if not coercion.comparable(left.type, right.type):
            self.fail(
                right.at,
                f"{op} cannot compare {left.type} with {right.type}",
                found=token.shown(),
                expected=str(left.type),
                remedy="Convert one side with CAST(… AS …).",
            )

    def constant_string(self, message: str) -> str:
        token = self.token
        if token.type != STRING or not isinstance(token.value, str):
            self.fail(token.at, message, found=token.shown(), expected="a string in quotes")
        self.advance()
        return token.value

    def digits(self) -> int:
        token = self.token
        if not token.number.isdecimal() or len(token.number) > 2:
            self.fail_here("a number of digits")
        self.advance()
        return int(token.number)


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MANY = 12
"""Up to this many columns of a source are listed if a name is not one of them."""


# A column of the table, or in a merge of the table `t` or the source `s`. With two relations a bare
# name must be a column of exactly one of them. A relation has no qualifier: a column named `t` is
# written `t.t`.


class Names(Cursor):
    """The part of the parser that resolves names."""

    def column(self) -> Expr:
        first = self.advance()
        if isinstance(self.schema, Relations):
            parts, column = self._qualified(self.schema, first)
        else:
            column = self.resolve(self.schema.columns, first, "the table has no such column")
            parts = [column.name]
        while self.is_op("."):
            self.advance()
            token = self._name("the name of a field")
            if column.type == UNKNOWN:
                parts.append(token.text)
                continue
            if column.type.name != "struct":
                self.fail(
                    token.at,
                    f"{'.'.join(parts)} has no fields",
                    found=str(column.type),
                    expected="a struct; columns stand without the table's name",
                )
            column = self.resolve(column.type.fields, token, f"{parts[-1]} has no such field")
            parts.append(column.name)
        if self.is_op("("):
            self.fail(first.at, "functions have no prefix", found=".".join(parts))
        return self.note(tree.ColumnRef(parts=tuple(parts), type=column.type, at=first.at))

    def is_column(self, name: str) -> bool:
        """Whether a bare name is that of a known column."""
        if not isinstance(self.schema, Relations):
            return bool(matching(self.schema.columns, name))
        known = [r.schema.columns for r in self.schema.named if r.schema is not None]
        return any(matching(columns, name) for columns in known)

    def resolve(
        self, columns: tuple[SchemaColumn, ...], token: Token, message: str
    ) -> SchemaColumn:
        found = matching(columns, token.text)
        if len(found) > 1:
            self.fail(
                token.at,
                "the name is ambiguous, since column names are not case-sensitive",
                found=token.shown(),
                expected="one of " + ", ".join(column.name for column in found),
                remedy="Rename one of the columns.",
            )
        if not found:
            close = [_typed(name) for name in close_names(columns, token.text)]
            self.fail(
                token.at,
                message,
                found=token.shown(),
                expected=f"perhaps {' or '.join(close)}" if close else "a column of the table",
                remedy="`tandem table show` lists the columns."
                if close
                else "Strings stand in quotes; `tandem table show` lists the columns.",
            )
        return found[0]

    def _qualified(self, relations: Relations, first: Token) -> tuple[list[str], SchemaColumn]:
        if self.is_op("."):
            relation = relations.get(first.text)
            if first.text.lower() in relations.elsewhere:
                self.fail(
                    first.at,
                    relations.elsewhere[first.text.lower()],
                    found=first.shown(),
                    expected=f"columns of {_all(relations)}",
                )
            if relation is not None:
                self.advance()
                return self._of(relation, self._name(f"a column of {relation.about}"))
        return self._bare(relations, first)

    def _bare(self, relations: Relations, token: Token) -> tuple[list[str], SchemaColumn]:
        known = [r for r in relations.named if r.schema and matching(r.schema.columns, token.text)]
        if len(known) > 1:
            names = [f"{r.name}.{token.text}" for r in known]
            self.fail(
                token.at,
                "the name means columns of " + " and ".join(r.about for r in known),
                found=token.shown(),
                expected=" or ".join(names),
                remedy="Qualify the column.",
            )
        unread = [r for r in relations.named if r.schema is None]
        if not known and not unread:
            close = [
                f"{r.name}.{_typed(name)}"
                for r in relations.named
                if r.schema
                for name in close_names(r.schema.columns, token.text)
            ]
            self.fail(
                token.at,
                f"{_all(relations)} {'have' if len(relations.named) > 1 else 'has'} no such column",
                found=token.shown(),
                expected=f"perhaps {' or '.join(close)}"
                if close
                else f"a column of {_all(relations)}",
                remedy="" if close else "Strings stand in quotes.",
            )
        return self._of((known or unread)[0], token)

    def _of(self, relation: Relation, token: Token) -> tuple[list[str], SchemaColumn]:
        if relation.schema is None:
            return [relation.name, token.text], SchemaColumn(token.text, UNKNOWN)
        columns = relation.schema.columns
        if not matching(columns, token.text):
            close = [f"{relation.name}.{_typed(name)}" for name in close_names(columns, token.text)]
            some = ", ".join(column.name for column in columns[:_MANY])
            self.fail(
                token.at,
                f"{relation.about} has no such column",
                found=token.shown(),
                expected=f"perhaps {' or '.join(close)}" if close else f"one of {some}",
            )
        column = self.resolve(columns, token, "")
        return [relation.name, column.name], column

    def _name(self, expected: str) -> Token:
        if self.token.kind not in ("word", "name"):
            self.fail_here(expected)
        return self.advance()


def _typed(name: str) -> str:
    """A column as a statement names it: in backquotes if it has other characters than a word."""
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _all(relations: Relations) -> str:
    return " and ".join(f"{r.about} ({r.name})" for r in relations.named)


# The targets of SET and of inserts: columns of the table, and fields of structs.

IDENTITY = identity.START
EXPLICIT = identity.EXPLICIT


def target_of(
    name: str,
    schema: Schema,
    resource: str,
    place: str,
    *,
    exact: bool = False,
    insert: bool = False,
) -> tuple[tuple[str, ...], SchemaColumn]:
    """The path of what a key of SET names, and the column, or the field of a struct: bare, or in
    backquotes as in SQL. With `exact` the key is the name of a column itself."""
    wanted: tuple[str, ...] = (name,)
    parts = () if exact else _names(name, ExpressionText(name, resource, place))
    if name.startswith("`"):
        wanted = parts or wanted
    elif _is_field(parts, schema):
        wanted = parts
        whole = matching(schema.columns, name)
        if whole:
            raise InvalidStatement(
                "SET names a column with a dot in its name, or a field inside a struct",
                resource=resource,
                field=place,
                found=visible(name),
                expected=f"{quote_name(whole[0].name)} for the column",
            )
    columns, path = schema.columns, list[str]()
    for part in wanted:
        column = _named(part, columns, name, resource, place)
        if not path:
            check_identity(column, resource, place, insert=insert)
        path.append(column.name)
        columns = column.type.fields
    if insert and len(path) > 1:
        raise InvalidStatement(
            "an insert gives whole columns",
            resource=resource,
            field=place,
            found=visible(name)[:80],
            expected=f"a value for {path[0]}, such as named_struct(…)",
        )
    column = as_target(column)
    if not (column.type.is_atomic or column.type.is_nested):
        raise InvalidStatement(
            "columns of this type cannot be set",
            resource=resource,
            field=place,
            found=f"{column.name}: {column.type}",
            expected="a column of another type",
        )
    return tuple(path), column


def _names(name: str, source: ExpressionText) -> tuple[str, ...]:
    """The names of a key of SET, perhaps those of a field and of the columns around it; none if it
    is a bare name, with whatever characters."""
    if "`" not in name:
        return tuple(name.split("."))
    if not (name.startswith("`") or ".`" in name):
        return ()
    tokens = tokenize(source)[:-1]
    names, dots = tokens[::2], tokens[1::2]
    if any(dot.text != "." for dot in dots) or any(n.kind not in ("word", "name") for n in names):
        return ()
    return tuple(token.text for token in names)


def _named(
    part: str, columns: Sequence[SchemaColumn], name: str, resource: str, place: str
) -> SchemaColumn:
    found = matching(columns, part)
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidStatement(
            "SET names an ambiguous column, since names are not case-sensitive",
            resource=resource,
            field=place,
            found=visible(name),
            expected="one of " + ", ".join(column.name for column in found),
        )
    close = close_names(columns, part)
    raise InvalidStatement(
        "SET names a column that the table does not have",
        resource=resource,
        field=place,
        found=visible(name)[:80],
        expected=f"perhaps {' or '.join(close)}" if close else "a column of the table",
        remedy="`tandem table show` lists the columns",
    )


def _is_field(parts: Sequence[str], schema: Schema) -> bool:
    """Whether SQL parses these names as a field of a struct."""
    return len(parts) > 1 and any(
        column.type.name == "struct" for column in matching(schema.columns, parts[0])
    )


def check_identity(column: SchemaColumn, resource: str, place: str, *, insert: bool) -> None:
    """Check that an update or an insert may give values of a column. Raises: InvalidStatement."""
    if IDENTITY not in column.metadata or (insert and column.metadata.get(EXPLICIT) is True):
        return
    raise InvalidStatement(
        "the table gives the values of an identity column",
        resource=resource,
        field=place,
        found=column.name,
        expected=f"no value, since {EXPLICIT} is not true" if insert else "another column",
    )
