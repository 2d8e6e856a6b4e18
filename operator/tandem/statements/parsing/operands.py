"""Operands: constants, CASE, casts and calls of functions.

The lower half of the parser; parser.py has the operators, names.py the columns. Types are
resolved here, against the list of functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from tandem.statements import coercion, tree
from tandem.statements.datetimes import parse_date, parse_timestamp
from tandem.statements.dialect import BARE_FUNCTIONS
from tandem.statements.parsing.cursor import SUB_QUERY
from tandem.statements.parsing.functions import ALIASES, FUNCTIONS, KINDS, Function
from tandem.statements.parsing.lexer import Token, number_value
from tandem.statements.parsing.names import Names
from tandem.statements.parsing.source import visible
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
    SchemaColumn,
    SqlType,
    close_names,
    decimal,
)

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
        if data_type is None:
            self.fail_types(args, token.at, f"the arguments of {function.name}")
        return self.note(
            tree.Call(function=function.name, args=tuple(args), type=data_type, at=token.at)
        )
