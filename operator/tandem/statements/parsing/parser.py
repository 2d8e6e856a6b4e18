"""Text to typed tree: a parser for the accepted part of Spark's expression grammar.

Precedence is that of SqlBaseParser.g4, from loose to tight: OR, AND, NOT, predicates (BETWEEN,
IN, LIKE, IS; at most one for an operand), comparisons, + - ||, * / % DIV, signs. Everything without
a branch here is refused; no text passes that was not parsed. The parser resolves names and types as
it proceeds, so that every error has its position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.statements import coercion, tree
from tandem.statements.dialect import MAX_DEPTH, MAX_IN_LIST, MAX_NESTING
from tandem.statements.parsing.lexer import Token
from tandem.statements.parsing.operands import LOOSEST, Operands
from tandem.statements.parsing.patterns import like_problem, regex_problem
from tandem.statements.parsing.relations import Relations
from tandem.statements.parsing.source import ExpressionText, visible
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, NULL, STRING, UNKNOWN, Schema, SqlType

_OR, _AND, _NOT, _PREDICATE, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(LOOSEST, LOOSEST + 8)
_COMPARISONS: Final = {
    "=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
    "<=>": "<=>",
}  # fmt: skip
_SUMS: Final = frozenset({"+", "-", "||"})
_PRODUCTS: Final = frozenset({"*", "/", "%", "DIV"})
_PREDICATES: Final = frozenset({"BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "IS"})


def parse(source: ExpressionText, schema: Schema | Relations) -> Expr:
    """The typed tree of one expression.

    Raises:
        InvalidStatement: for any text that is not accepted, with the position.
    """
    return _Parser(source, schema).whole()


class _Parser(Operands):
    def whole(self) -> Expr:
        if self.token.kind == "end":
            self.fail(0, "the expression is empty", expected="an expression")
        root = self.expression(_OR)
        if self.token.kind != "end":
            self.fail_here("an operator or the end of the text")
        if tree.depth(root) > MAX_DEPTH:
            self.fail(
                root.at,
                "the expression is too deep",
                expected=f"at most {MAX_DEPTH} levels",
                remedy="Use IN, AND or OR lists in place of long chains of + or ||.",
            )
        return root

    def expression(self, tightest: int) -> Expr:
        """An expression whose operators bind at least as tightly as `tightest`."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(
                self.token.at, "the nesting is too deep", expected=f"at most {MAX_NESTING} levels"
            )
        if (self.is_word("NOT") or self.is_op("!")) and tightest <= _NOT:
            left = self.negation()
            ceiling = _NOT
        else:
            left = self.signed()
            ceiling = _SIGN
        while True:
            level = self.infix_level()
            if level < tightest or level > ceiling:
                break
            if level == _PREDICATE:
                left = self.predicate(left)
            elif level in (_AND, _OR):
                left = self.logical(left, level)
            else:
                left = self.binary(left, level)
            # Only AND and OR may follow a predicate, as in Spark's grammar.
            ceiling = _NOT if level <= _PREDICATE else level
        self.nesting -= 1
        return left

    def infix_level(self) -> int:
        """The precedence of the current operator; 0 if there is none."""
        token = self.token
        word = token.keyword
        if word == "NOT":
            return _PREDICATE if self.peek().keyword in _PREDICATES - {"IS"} else 0
        if word in _PREDICATES:
            return _PREDICATE
        if word in ("AND", "OR"):
            return _AND if word == "AND" else _OR
        if word == "DIV":
            return _PRODUCT
        if token.kind != "op":
            return 0
        if token.text in _COMPARISONS:
            return _COMPARISON
        if token.text in _SUMS:
            return _SUM
        return _PRODUCT if token.text in _PRODUCTS else 0

    def negation(self) -> Expr:
        at = self.advance().at
        operand = self.expression(_NOT)
        self.need_boolean(operand, "NOT")
        return self.note(tree.Unary(op="NOT", operand=operand, type=BOOLEAN, at=at))

    def signed(self) -> Expr:
        if not self.is_op("-", "+"):
            return self.primary()
        sign = self.advance()
        if sign.text == "-" and self.token.number:
            return self.number(negative=True)
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(sign.at, "too many signs follow each other")
        operand = self.signed()
        self.nesting -= 1
        if not (operand.type.is_numeric or operand.type.is_interval or operand.type == UNKNOWN):
            self.fail(
                operand.at, f"the sign {sign.text} stands before {operand.type}, no number",
                expected="a number",
            )  # fmt: skip
        return self.note(tree.Unary(op=sign.text, operand=operand, type=operand.type, at=sign.at))

    def logical(self, left: Expr, level: int) -> Expr:
        op = "AND" if level == _AND else "OR"
        operands = [left]
        while self.is_word(op):
            self.advance()
            operands.append(self.expression(level + 1))
        for operand in operands:
            self.need_boolean(operand, op)
        return self.note(tree.Logical(op=op, operands=tuple(operands), type=BOOLEAN, at=left.at))

    def binary(self, left: Expr, level: int) -> Expr:
        token = self.advance()
        op = _COMPARISONS.get(token.text, token.text) if level == _COMPARISON else token.text
        right = self.expression(level + 1)
        op = op.upper()
        data_type: SqlType | None
        if level == _COMPARISON:
            data_type = BOOLEAN if coercion.comparable(left.type, right.type) else None
        elif op == "||":
            data_type = STRING if coercion.is_text(left.type, right.type) else None
        else:
            data_type = coercion.arithmetic(op, left, right)
        if data_type is None:
            self.fail(
                token.at,
                f"{op} cannot join {left.type} and {right.type}",
                found=token.shown(),
                expected="compatible types",
                remedy="Convert one side with CAST(… AS …).",
            )
        return self.note(tree.Binary(op=op, left=left, right=right, type=data_type, at=left.at))

    def predicate(self, value: Expr) -> Expr:
        negated = self.is_word("NOT")
        if negated:
            self.advance()
        token = self.advance()
        parts: dict[str, Callable[[Expr, bool, Token], Expr]] = {
            "BETWEEN": self.between,
            "IN": self.in_list,
            "IS": self.is_test,
        }
        return parts.get(token.keyword, self.match)(value, negated, token)

    def between(self, value: Expr, negated: bool, token: Token) -> Expr:
        low = self.expression(_COMPARISON)
        self.expect_word("AND")
        high = self.expression(_COMPARISON)
        for end in (low, high):
            self.need_comparable(value, end, token, "BETWEEN")
        return self.note(
            tree.Between(
                value=value, low=low, high=high, negated=negated, type=BOOLEAN, at=value.at
            )
        )

    def in_list(self, value: Expr, negated: bool, token: Token) -> Expr:
        self.expect_op("(")
        items = [self.expression(_OR)]
        while self.is_op(","):
            at = self.advance().at
            if len(items) == MAX_IN_LIST:
                self.fail(at, "the IN list is too long", expected=f"at most {MAX_IN_LIST} values")
            items.append(self.expression(_OR))
        self.expect_op(")")
        if coercion.common_of_all([value, *items]) is None:
            for item in items:
                self.need_comparable(value, item, token, "IN")
            self.fail(token.at, "the values of the IN list have incompatible types")
        return self.note(
            tree.InList(value=value, items=tuple(items), negated=negated, type=BOOLEAN, at=value.at)
        )

    def match(self, value: Expr, negated: bool, token: Token) -> Expr:
        op = "RLIKE" if token.keyword == "REGEXP" else token.keyword
        if value.type not in (STRING, NULL, UNKNOWN):
            self.fail(
                value.at,
                f"{op} needs a string",
                found=str(value.type),
                remedy="Convert it with CAST(… AS STRING).",
            )
        at = self.token.at
        pattern = self.constant_string(f"{op} needs a constant pattern")
        if self.infix_level() > _PREDICATE:
            self.fail(at, f"{op} needs a constant pattern", found=self.token.shown())
        escape = "\\"
        if op != "RLIKE" and self.is_word("ESCAPE"):
            escape_at = self.advance().at
            escape = self.constant_string("ESCAPE needs a constant")
            if len(escape) != 1 or escape in "%_":
                self.fail(escape_at, "ESCAPE needs one character, not % or _", found=escape)
        problem = regex_problem(pattern) if op == "RLIKE" else like_problem(pattern, escape)
        if problem:
            self.fail(at, f"this pattern is not accepted: {problem}", found=visible(pattern[:60]))
        return self.note(
            tree.Match(
                op=op,
                value=value,
                pattern=pattern,
                escape=escape,
                negated=negated,
                type=BOOLEAN,
                at=value.at,
            )
        )

    def is_test(self, value: Expr, _negated: bool, _token: Token) -> Expr:
        negated = self.is_word("NOT")
        if negated:
            self.advance()
        token = self.advance()
        if token.keyword == "DISTINCT":
            self.expect_word("FROM")
            return self.distinct(value, self.expression(_COMPARISON), negated, token)
        if token.keyword not in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
            self.next -= token.kind != "end"
            self.fail_here("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        if token.keyword != "NULL":
            self.need_boolean(value, f"IS {token.keyword}")
        return self.note(
            tree.IsTest(value=value, what=token.keyword, negated=negated, type=BOOLEAN, at=value.at)
        )

    def distinct(self, left: Expr, right: Expr, negated: bool, token: Token) -> Expr:
        # Spark parses IS NOT DISTINCT FROM as <=>, and IS DISTINCT FROM as its negation.
        self.need_comparable(left, right, token, "IS DISTINCT FROM")
        same = self.note(tree.Binary(op="<=>", left=left, right=right, type=BOOLEAN, at=left.at))
        if negated:
            return same
        return self.note(tree.Unary(op="NOT", operand=same, type=BOOLEAN, at=left.at))
