"""Text to typed tree: a parser for the accepted part of Spark's expression grammar.

Precedence is that of SqlBaseParser.g4, from loose to tight: OR, AND, NOT, predicates (BETWEEN,
IN, LIKE, IS; at most one for an operand), comparisons, + - ||, * / % DIV, signs. Everything without
a branch here is refused; no text passes that was not parsed. The parser resolves names and types as
it proceeds, so that every error has its position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from tandem.statements import coercion, tree
from tandem.statements.coercion import (
    BARE_FUNCTIONS,
    MAX_DEPTH,
    MAX_IN_LIST,
    MAX_NESTING,
    parse_date,
    parse_timestamp,
)
from tandem.statements.cursor import SUB_QUERY, Names, Relations
from tandem.statements.functions import (
    ALIASES,
    FUNCTIONS,
    KINDS,
    Function,
    like_problem,
    regex_problem,
)
from tandem.statements.lexer import ExpressionText, Token, number_value, visible
from tandem.statements.tree import Expr
from tandem.statements.types import (
    BOOLEAN,
    CAST_NAMES,
    DATE,
    DECIMAL_NAMES,
    INTERVAL_DAY,
    INTERVAL_DAY_SECOND,
    INTERVAL_YEAR_MONTH,
    MAX_PRECISION,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    UNKNOWN,
    Schema,
    SchemaColumn,
    SqlType,
    close_names,
    decimal,
)

# Operands: constants, CASE, casts and calls of functions.
#
# The lower half of the parser; parser.py has the operators, names.py the columns. Types are
# resolved here, against the list of functions.


LOOSEST: Final = 1
"""The precedence at which a whole expression is parsed, as inside parentheses."""

_UNITS: Final = {
    "year": INTERVAL_YEAR_MONTH,
    "month": INTERVAL_YEAR_MONTH,
    "week": INTERVAL_DAY,
    "day": INTERVAL_DAY,
    "hour": INTERVAL_DAY_SECOND,
    "minute": INTERVAL_DAY_SECOND,
    "second": INTERVAL_DAY_SECOND,
}
_MAX_INTERVAL: Final = 1_000_000_000


class Operands(Names, ABC):
    @abstractmethod
    def expression(self, tightest: int) -> Expr:
        """An expression whose operators bind at least as tightly as `tightest`."""

    def primary(self) -> Expr:
        token = self.token
        if token.number:
            return self.number(negative=False)
        if token.kind == "literal":
            self.advance()
            assert token.type is not None
            return self.note(tree.Literal(value=token.value, type=token.type, at=token.at))
        if self.is_op("("):
            return self.parenthesised()
        if token.kind == "name":
            if self.peek().kind == "op" and self.peek().text == "(":
                self.fail(token.at, "a function has no backquotes", found=token.shown())
            return self.column()
        if token.kind != "word":
            self.fail_here("a column, a constant, a function or an opening bracket")
        return self.word()

    def parenthesised(self) -> Expr:
        self.advance()
        inner = self.expression(LOOSEST)
        if self.is_op(","):
            self.fail(self.token.at, "rows of values are not accepted", found=",")
        self.expect_op(")")
        if self.is_op("."):
            self.fail(self.token.at, "fields are read from columns only", found=".")
        return inner

    def word(self) -> Expr:
        token = self.token
        word, after = token.keyword, self.peek()
        if word in ("TRUE", "FALSE", "NULL"):
            self.advance()
            value = None if word == "NULL" else word == "TRUE"
            data_type = NULL if value is None else BOOLEAN
            return self.note(tree.Literal(value=value, type=data_type, at=token.at))
        if word == "CASE":
            return self.case()
        if word == "INTERVAL" and (after.kind == "literal" or after.text in ("-", "+")):
            return self.interval()
        if after.type == STRING:
            if word in SUB_QUERY:
                self.fail_here("a column, a constant, a function or an opening bracket")
            return self.typed_literal()
        if after.kind == "op" and after.text == "(":
            if word in ("CAST", "TRY_CAST"):
                return self.cast()
            return self.call()
        if token.is_reserved:
            self.fail_here("a column, a constant, a function or an opening bracket")
        if token.text.lower() in BARE_FUNCTIONS and not self.is_column(token.text):
            self.advance()
            return self.build_call(FUNCTIONS[token.text.lower()], [], token)
        return self.column()

    def number(self, *, negative: bool) -> Expr:
        token = self.advance()
        value, data_type = number_value(self.source, token, negative)
        return self.note(tree.Literal(value=value, type=data_type, at=token.at))

    def typed_literal(self) -> Expr:
        token = self.advance()
        text = self.constant_string("a typed constant needs a string")
        kind = token.keyword
        value: tree.LiteralValue = None
        data_type, form = DATE, "yyyy-mm-dd"
        if kind == "DATE":
            value = parse_date(text)
        elif kind in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            value, data_type = parse_timestamp(text, zoned=True), TIMESTAMP
            form = "yyyy-mm-dd, yyyy-mm-dd hh:mm:ss.ffffff, or that with a zone as +hh:mm"
        elif kind == "TIMESTAMP_NTZ":
            value, data_type = parse_timestamp(text, zoned=False), TIMESTAMP_NTZ
            form = "yyyy-mm-dd hh:mm:ss.ffffff without a zone"
        else:
            self.fail(
                token.at,
                "constants of this type are not accepted",
                found=token.shown(),
                expected="DATE, TIMESTAMP, TIMESTAMP_NTZ, INTERVAL or X",
            )
        if value is None:
            self.fail(
                token.at,
                f"this is not a valid {kind} constant",
                found=visible(text[:40]),
                expected=form,
            )
        return self.note(tree.Literal(value=value, type=data_type, at=token.at))

    def interval(self) -> Expr:
        at = self.advance().at
        negative = False
        if self.is_op("-", "+"):
            negative = self.advance().text == "-"
        token = self.advance()
        text = token.value if token.type == STRING else token.number
        unit = self.token.keyword.lower().removesuffix("s")
        if (
            not isinstance(text, str)
            or not text.removeprefix("-").isdecimal()
            or (not text.isascii() or unit not in _UNITS)
        ):
            self.fail(
                token.at,
                "this interval is not accepted",
                found=f"{token.shown()} {self.token.shown()}",
                expected=f"a whole number and one unit: {', '.join(_UNITS)}",
            )
        self.advance()
        if self.token.number or (self.token.type == STRING and unit):
            self.fail(self.token.at, "an interval has one unit", found=self.token.shown())
        if self.is_word("TO"):
            self.fail(self.token.at, "an interval has one unit", found=self.token.shown())
        amount = int(text) * (-1 if negative else 1)
        if abs(amount) > _MAX_INTERVAL:
            self.fail(token.at, "the interval is too long", expected=f"at most {_MAX_INTERVAL}")
        return self.note(tree.IntervalLiteral(amount=amount, unit=unit, type=_UNITS[unit], at=at))

    def case(self) -> Expr:
        at = self.advance().at
        operand = None if self.is_word("WHEN") else self.expression(LOOSEST)
        branches: list[tuple[Expr, Expr]] = []
        while self.is_word("WHEN"):
            token = self.advance()
            condition = self.expression(LOOSEST)
            if operand is None and condition.type == NULL:
                self.fail(
                    condition.at,
                    "WHEN needs a condition",
                    found="an untyped NULL",
                    expected="BOOLEAN",
                    remedy="Write CAST(NULL AS BOOLEAN) if that is meant.",
                )
            if operand is None:
                self.need_boolean(condition, "WHEN")
            else:
                self.need_comparable(operand, condition, token, "CASE")
            self.expect_word("THEN")
            branches.append((condition, self.expression(LOOSEST)))
        if not branches:
            self.fail_here("WHEN")
        otherwise = None
        if self.is_word("ELSE"):
            self.advance()
            otherwise = self.expression(LOOSEST)
        self.expect_word("END")
        results = [result for _, result in branches] + ([otherwise] if otherwise else [])
        data_type = self.common(results, at, "the results of CASE")
        return self.note(
            tree.Case(
                operand=operand,
                branches=tuple(branches),
                otherwise=otherwise,
                type=data_type,
                at=at,
            )
        )

    def cast(self) -> Expr:
        token = self.advance()
        self.expect_op("(")
        operand = self.expression(LOOSEST)
        self.expect_word("AS")
        at = self.token.at
        target = self.type_name()
        self.expect_op(")")
        if not coercion.can_cast(operand.type, target):
            self.fail(
                at,
                f"{operand.type} cannot be cast to {target}",
                found=str(operand.type),
                expected="a type that Spark casts in ANSI mode",
            )
        safe = token.keyword == "TRY_CAST"
        return self.note(tree.Cast(operand=operand, safe=safe, type=target, at=token.at))

    def type_name(self) -> SqlType:
        token = self.advance()
        name = token.text.lower() if token.kind == "word" else ""
        if name in CAST_NAMES:
            return CAST_NAMES[name]
        if name not in DECIMAL_NAMES:
            self.fail(
                token.at,
                "values are not cast to this type",
                found=token.shown(),
                expected=", ".join((*CAST_NAMES, "decimal(p, s)")),
            )
        if not self.is_op("("):
            return decimal(10, 0)
        self.advance()
        digits = [self.digits()]
        if self.is_op(","):
            self.advance()
            digits.append(self.digits())
        self.expect_op(")")
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if not (1 <= precision <= MAX_PRECISION and scale <= precision):
            self.fail(
                token.at,
                "there is no such decimal",
                found=f"({precision}, {scale})",
                expected=f"precision 1 to {MAX_PRECISION}, scale 0 to the precision",
            )
        return decimal(precision, scale)

    def call(self) -> Expr:
        token = self.advance()
        written = token.text.lower()
        function = FUNCTIONS.get(ALIASES.get(written, written))
        if function is None:
            close = close_names(
                [SchemaColumn(name, STRING) for name in (*FUNCTIONS, *ALIASES)], written
            )
            self.fail(
                token.at,
                "this function is not accepted",
                found=token.shown(),
                expected=f"perhaps {' or '.join(close)}" if close else "a function of the list",
                remedy="docs/statements.md lists the functions.",
            )
        self.expect_op("(")
        args: list[Expr] = []
        if not self.is_op(")"):
            args.append(self.expression(LOOSEST))
            while self.is_op(","):
                self.advance()
                args.append(self.expression(LOOSEST))
        self.expect_op(")")
        return self.build_call(function, args, token)

    def build_call(self, function: Function, args: list[Expr], token: Token) -> Expr:
        if not function.least <= len(args) <= function.most:
            span = (
                str(function.least)
                if function.least == function.most
                else f"{function.least} to {function.most}"
            )
            self.fail(
                token.at,
                f"{function.name} takes a different number of arguments",
                found=str(len(args)),
                expected=span,
            )
        for position, arg in enumerate(args):
            kind = KINDS[function.takes[min(position, len(function.takes) - 1)]]
            if not kind.accepts(arg):
                self.fail(
                    arg.at,
                    f"argument {position + 1} of {function.name} has the wrong type",
                    found=str(arg.type),
                    expected=kind.about,
                )
        data_type = function.gives(args)
        if data_type is None and function.name == "named_struct":
            self.fail(
                token.at,
                "the arguments of named_struct are names in quotes, each followed by a value",
                found=f"{len(args)} arguments",
                expected="different names",
            )
        if data_type is None:
            self.fail_types(args, token.at, f"the arguments of {function.name}")
        return self.note(
            tree.Call(function=function.name, args=tuple(args), type=data_type, at=token.at)
        )


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
