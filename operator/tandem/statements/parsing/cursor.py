"""The parser's position in the text: the tokens, the counts that limit it, and its errors.

Shared by all parts of the parser; no grammar here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from tandem.statements import coercion
from tandem.statements.coercion import MAX_NODES
from tandem.statements.parsing.lexer import ExpressionText, Token, tokenize
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, NULL, STRING, UNKNOWN, Schema, SqlType

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
