"""Resolves names: a column of the table, or in a merge of the table `t` or the source `s`.

With two relations a bare name must be a column of exactly one of them. A relation has no
qualifier: a column named `t` is written `t.t`.
"""

from __future__ import annotations

import re

from tandem.statements import tree
from tandem.statements.parsing.cursor import Cursor, Relation, Relations
from tandem.statements.parsing.lexer import Token
from tandem.statements.tree import Expr
from tandem.statements.types import UNKNOWN, SchemaColumn, close_names, matching

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MANY = 12
"""Up to this many columns of a source are listed if a name is not one of them."""


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
