"""Text to tokens, by the lexical rules of Spark 4.2 (SqlBaseLexer.g4), with restrictions.

Refused are: comments, `;`, placeholders, hints, adjacent literals, names that begin with a digit,
and every character outside the grammar, including characters that only look like quotes.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tandem.errors import InvalidStatement
from tandem.statements.coercion import MAX_IDENTIFIER, MAX_STRING, MAX_TEXT, RESERVED
from tandem.statements.tree import LiteralValue
from tandem.statements.types import (
    BINARY,
    BYTE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    MAX_PRECISION,
    SHORT,
    STRING,
    SqlType,
    decimal,
)

# The text of one expression, and errors with a position in it.
#
# Every refusal of a statement uses `ExpressionText.error`, so that all of them name the resource,
# the field, the line and the column, and show the line with a caret below the position.


_WIDTH = 60


@dataclass(frozen=True)
class ExpressionText:
    """An expression as the user typed it.

    `resource` and `field` are its location, for example `TableUpdate/late` and
    `spec.update.where`.
    """

    text: str
    resource: str = ""
    field: str = ""

    def position(self, at: int) -> tuple[int, int]:
        """Line and column, from 1, of the character at an offset (the end counts as one)."""
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def snippet(self, at: int) -> str:
        """The line around an offset, at most about 60 characters, and a caret below it."""
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        column = at - start
        first = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        shown = line[first : first + _WIDTH]
        head = "..." if first else ""
        tail = "..." if first + _WIDTH < len(line) else ""
        return f"{head}{visible(shown)}{tail}\n{' ' * (len(head) + column - first)}^"

    def error(
        self, at: int, message: str, *, found: object = "", expected: str = "", remedy: str = ""
    ) -> InvalidStatement:
        """An InvalidStatement that points at an offset of the text."""
        line, column = self.position(at)
        return InvalidStatement(
            f"{message} at line {line}, column {column}",
            resource=self.resource,
            field=self.field,
            found=found,
            expected=expected,
            remedy=remedy,
            position=(line, column),
            snippet=self.snippet(at),
        )


def visible(text: str) -> str:
    """The text on one line: characters that are invisible or reorder a terminal become `?`.

    One character stays one character, so that carets still have the right position.
    """
    return "".join(
        char
        if char.isprintable() and unicodedata.category(char) not in {"Mn", "Me", "Cf"}
        else " "
        if char == "\t"
        else "?"
        for char in text
    )


@dataclass(frozen=True)
class Token:
    """`kind` is `word`, `name` (in backquotes), `literal`, `op` or `end`.

    `text` is the word as typed, the name without quotes, or the operator. A literal has its value
    and type; numbers are unsigned here.
    """

    kind: str
    text: str
    at: int
    value: LiteralValue = None
    type: SqlType | None = None
    number: str = ""

    @property
    def keyword(self) -> str:
        """The word in upper case; "" for anything but a bare word."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def is_reserved(self) -> bool:
        return self.keyword in RESERVED

    def shown(self) -> str:
        return "the end of the text" if self.kind == "end" else visible(self.text[:60])


_SPACE = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(
    r"(?P<digits>\d+\.\d*|\.\d+|\d+)(?P<exponent>[eE][+-]?\d+)?(?P<suffix>[bB][dD]|[lLsSyYfFdD])?",
    re.ASCII,
)
_OPERATORS: Final = (
    "<=>", "<=", ">=", "<>", "!=", "==", "||", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")",
    ",", ".", "!",
)  # fmt: skip
_REFUSED: Final = (
    ("--", "comments are not accepted", "Remove it; between two minus signs put a space."),
    ("/*", "comments and hints are not accepted", "Remove it."),
    ("${", "placeholders are not accepted", "Write the value itself."),
    ("{{", "placeholders are not accepted", "Write the value itself."),
    ("::", "the cast operator :: is not accepted", "Write CAST(… AS …)."),
    ("->", "lambdas are not accepted", ""),
    ("=>", "named arguments are not accepted", "Give arguments by position."),
    ("!>", "!> is not accepted", "Write <=."),
    ("!<", "!< is not accepted", "Write >=."),
    ("<<", "bit operators are not accepted", ""),
    (">>", "bit operators are not accepted", ""),
    ("|>", "pipe operators are not accepted", ""),
    (";", "an expression has no semicolon", "Remove it; there is one expression in a field."),
    (":", "placeholders are not accepted", "Write the value itself."),
    ("?", "placeholders are not accepted", "Write the value itself."),
    ("@", "variables are not accepted", "Write the value itself."),
    ("[", "access to elements of arrays and maps is not accepted", ""),
)  # fmt: skip
_LOOKALIKES: Final = {
    **dict.fromkeys("‘’‚‛′ʼ＇´", "'"),
    **dict.fromkeys("“”„‟″＂", '"'),
    **dict.fromkeys("−–—﹣－", "-"),
    **dict.fromkeys("＝﹦", "="),
    "；": ";",
    "（": "(",
    "）": ")",
    "｀": "`",
    "\u00a0": "a plain space",
    "\u2028": "a plain space",
    "\u3000": "a plain space",
}


def tokenize(source: ExpressionText) -> list[Token]:
    """All tokens of a text, the last one of kind `end`.

    Raises:
        InvalidStatement: at the first position without a valid token.
    """
    text = source.text
    if len(text) > MAX_TEXT:
        raise source.error(
            MAX_TEXT,
            "the expression is too long",
            found=f"{len(text)} characters",
            expected=f"at most {MAX_TEXT}",
            remedy="Split the operation.",
        )
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        token, end = _token(source, at)
        if token.type == STRING and tokens and tokens[-1].type == STRING:
            raise source.error(
                at,
                "two string literals follow each other",
                found=visible(text[at:end][:40]),
                expected="an operator",
                remedy="Join them with ||, or write one literal.",
            )
        tokens.append(token)
        at = end
    tokens.append(Token("end", "", len(text)))
    return tokens


def _token(source: ExpressionText, at: int) -> tuple[Token, int]:
    text = source.text
    char = text[at]
    if char in "'\"":
        return _string(source, at)
    if char in "rR" and text[at + 1 : at + 2] in ("'", '"'):
        return _raw_string(source, at)
    if char in "xX" and text[at + 1 : at + 2] == "'":
        return _binary(source, at)
    if char == "`":
        return _quoted_name(source, at)
    if match := _WORD.match(text, at):
        if len(match[0]) > MAX_IDENTIFIER:
            raise source.error(at, "a name is too long", expected=f"at most {MAX_IDENTIFIER}")
        return Token("word", match[0], at), match.end()
    if (number := _NUMBER.match(text, at)) and char.isascii():
        return _number(source, number)
    for start, message, remedy in _REFUSED:
        if text.startswith(start, at):
            raise source.error(at, message, found=start, remedy=remedy)
    for operator in _OPERATORS:
        if text.startswith(operator, at):
            return Token("op", operator, at), at + len(operator)
    meant = _LOOKALIKES.get(char)
    raise source.error(
        at,
        "this character has no meaning here",
        found=f"{visible(char)} (U+{ord(char):04X})",
        expected=meant or "a name, a literal or an operator",
        remedy="Names with other characters than a-z, 0-9 and _ need `backquotes`."
        if char.isalpha()
        else "",
    )


def _number(source: ExpressionText, match: re.Match[str]) -> tuple[Token, int]:
    text, at, end = source.text, match.start(), match.end()
    # Spark parses 1abc as a name and 1.5x as an error; both are more likely a mistake.
    if end < len(text) and (text[end].isalnum() or text[end] in "_."):
        raise source.error(
            at,
            "this is not a number",
            found=visible(text[at : end + 8]),
            expected="digits, and at most one of the suffixes L S Y F D BD",
            remedy="A name that begins with a digit needs `backquotes`.",
        )
    return Token("literal", match[0], at, number=match[0]), end


def number_value(
    source: ExpressionText, token: Token, negative: bool
) -> tuple[LiteralValue, SqlType]:
    """Value and type of a number with its sign, which Spark makes part of the literal.

    Raises:
        InvalidStatement: if it does not fit the type of its suffix or form.
    """
    match = _NUMBER.fullmatch(token.number)
    assert match is not None
    suffix = (match["suffix"] or "").upper()
    digits, exponent = match["digits"], match["exponent"] or ""
    text = ("-" if negative else "") + digits + exponent
    is_whole = not exponent and "." not in digits
    if suffix in ("L", "S", "Y") or (is_whole and not suffix):
        if not is_whole:
            raise source.error(
                token.at,
                f"a number with the suffix {suffix} has neither point nor exponent",
                found=token.text,
            )
        return _whole(source, token, text, suffix)
    if suffix in ("F", "D") or (exponent and not suffix):
        return _floating(source, token, text, suffix)
    if exponent:
        raise source.error(
            token.at,
            "a decimal has no exponent",
            found=token.text,
            expected="plain digits before BD",
        )
    return _decimal(source, token, Decimal(text))


_BITS: Final = {"Y": (8, BYTE), "S": (16, SHORT), "": (32, INTEGER), "L": (64, LONG)}


def _whole(
    source: ExpressionText, token: Token, text: str, suffix: str
) -> tuple[LiteralValue, SqlType]:
    if len(text) > MAX_PRECISION + 1:
        raise _out_of_range(source, token, f"a decimal of {MAX_PRECISION} digits")
    value = int(text)
    bits, data_type = _BITS[suffix]
    if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        return value, data_type
    if suffix:
        raise _out_of_range(source, token, str(data_type))
    if -(2**63) <= value < 2**63:
        return value, LONG
    return _decimal(source, token, Decimal(text))


def _floating(
    source: ExpressionText, token: Token, text: str, suffix: str
) -> tuple[LiteralValue, SqlType]:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _out_of_range(source, token, "DOUBLE")
    if suffix != "F":
        return value, DOUBLE
    if abs(value) > _FLOAT_MAX:
        raise _out_of_range(source, token, "FLOAT")
    return Decimal(text), FLOAT


_FLOAT_MAX: Final = 3.4028234663852886e38


def _decimal(source: ExpressionText, token: Token, value: Decimal) -> tuple[LiteralValue, SqlType]:
    # As java.math.BigDecimal and Spark's Decimal count: 0.05 has precision and scale 2.
    parts = value.as_tuple()
    assert isinstance(parts.exponent, int)
    digits = "".join(map(str, parts.digits)).lstrip("0")
    scale = -parts.exponent
    precision = max(len(digits), scale, 1)
    if precision > MAX_PRECISION:
        raise _out_of_range(source, token, f"a decimal of {MAX_PRECISION} digits")
    return abs(value) if not digits else value, decimal(precision, scale)


def _out_of_range(source: ExpressionText, token: Token, what: str) -> Exception:
    return source.error(token.at, f"the number does not fit {what}", found=visible(token.text[:60]))


_ESCAPES: Final = {
    "0": "\0", "'": "'", '"': '"', "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a",
    "\\": "\\", "%": "\\%", "_": "\\_",
}  # fmt: skip
_OCTAL = re.compile(r"[0-1][0-7]{2}")
_HEX = re.compile(r"u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}")


def _string(source: ExpressionText, at: int) -> tuple[Token, int]:
    """A string in single or double quotes; doubled quotes and backslashes escape."""
    text, quote = source.text, source.text[at]
    out: list[str] = []
    position = at + 1
    while position < len(text):
        char = text[position]
        if char == quote:
            if text[position + 1 : position + 2] != quote:
                return _string_token(source, at, position + 1, "".join(out))
            out.append(quote)
            position += 2
        elif char == "\\" and position + 1 < len(text):
            rest = text[position + 1 : position + 10]
            if octal := _OCTAL.match(rest):
                out.append(chr(int(octal[0], 8)))
                position += 4
            elif code := _HEX.match(rest):
                out.append(_code_point(source, position, code[0]))
                position += 1 + len(code[0])
            else:
                # Any other escaped character stands for itself.
                out.append(_ESCAPES.get(rest[0], rest[0]))
                position += 2
        else:
            out.append(char)
            position += 1
    raise _unclosed(source, at, quote)


def _code_point(source: ExpressionText, at: int, code: str) -> str:
    number = int(code[1:], 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise source.error(
            at,
            "the escape names no character",
            found=f"\\{code}",
            remedy="Write characters beyond U+FFFF as \\UXXXXXXXX.",
        )
    return chr(number)


def _raw_string(source: ExpressionText, at: int) -> tuple[Token, int]:
    quote = source.text[at + 1]
    end = source.text.find(quote, at + 2)
    if end < 0:
        raise _unclosed(source, at, quote)
    return _string_token(source, at, end + 1, source.text[at + 2 : end])


def _string_token(source: ExpressionText, at: int, end: int, value: str) -> tuple[Token, int]:
    if len(value) > MAX_STRING:
        raise source.error(
            at,
            "the string is too long",
            found=f"{len(value)} characters",
            expected=f"at most {MAX_STRING}",
        )
    if "${" in source.text[at:end]:
        raise source.error(
            source.text.index("${", at),
            "placeholders are not accepted, not even in a string",
            found="${",
            remedy="If the two characters are meant, write \\u0024{.",
        )
    if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise source.error(at, "the string holds half a character (a lone surrogate)")
    return Token("literal", source.text[at:end], at, value, STRING), end


def _binary(source: ExpressionText, at: int) -> tuple[Token, int]:
    end = source.text.find("'", at + 2)
    if end < 0:
        raise _unclosed(source, at, "'")
    digits = source.text[at + 2 : end]
    if len(digits) % 2 or not re.fullmatch(r"[0-9A-Fa-f]*", digits):
        raise source.error(
            at,
            "this is not a binary literal",
            found=visible(source.text[at : end + 1][:40]),
            expected="an even number of hexadecimal digits, as in X'1F00'",
        )
    if len(digits) > 2 * MAX_STRING:
        raise source.error(at, "the literal is too long", expected=f"at most {MAX_STRING} bytes")
    return Token("literal", source.text[at : end + 1], at, bytes.fromhex(digits), BINARY), end + 1


def _quoted_name(source: ExpressionText, at: int) -> tuple[Token, int]:
    text = source.text
    out: list[str] = []
    position = at + 1
    while position < len(text):
        if text[position] != "`":
            out.append(text[position])
            position += 1
        elif text[position + 1 : position + 2] == "`":
            out.append("`")
            position += 2
        else:
            name = "".join(out)
            if not name or len(name) > MAX_IDENTIFIER:
                raise source.error(
                    at,
                    "the name is empty or too long",
                    expected=f"1 to {MAX_IDENTIFIER} characters",
                )
            return Token("name", name, at), position + 1
    raise _unclosed(source, at, "`")


def _unclosed(source: ExpressionText, at: int, quote: str) -> Exception:
    return source.error(at, f"the closing {quote} is missing", found=visible(source.text[at:][:40]))
