"""JSON text as values, line by line, and the fields of JSON lines. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# The fields of JSON lines and their types, where reading them without Spark leaves no doubt. Pure.
#
# It must not guess: what it says decides whether a job is started.


Inferred = Literal["boolean", "long", "double", "string", ""]
"""The type that Spark infers for a field; "": in doubt."""
_MOST_CHARACTERS = 8 << 20


def fields_of(texts: Iterable[str]) -> dict[str, Inferred] | None:
    """The fields of all objects, one a line; none if there is no object.

    Args:
        texts: whole lines.
    Returns:
        None if this cannot be said: the text is large, a line is no object or is malformed (which
        is for the job to report, with its place), or an object has a field twice.
    """
    found: dict[str, set[str]] = {}
    length = 0
    for text in texts:
        length += len(text)
        if length > _MOST_CHARACTERS:
            return None
        for line in text.split("\n"):
            if not line.strip():
                continue
            try:
                value = json.loads(line, object_pairs_hook=_once, parse_constant=_refuse)
            except (ValueError, RecursionError):
                return None
            if not isinstance(value, dict):
                return None
            for name, of in value.items():
                found.setdefault(name, set()).add(_kind(of))
    return {name: _type(kinds) for name, kinds in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len({name.lower() for name in value}) < len(pairs):
        raise ValueError("a field twice")
    return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "long" if -(1 << 63) <= value < 1 << 63 else "other"
        case float():
            return "double"
        case str():
            return "string"
        case _:
            return "other"


def _type(kinds: set[str]) -> Inferred:
    match sorted(kinds - {"null"}):
        case ["boolean"]:
            return "boolean"
        case ["long"]:
            return "long"
        case ["double"] | ["double", "long"]:
            return "double"
        case ["string"]:
            return "string"
        case _:
            return ""


# JSON text as values, line by line. Pure; depends on no store and no Spark.
#
# Strict JSON takes a fast path. The extensions that Spark's reader accepts (by default or by an
# option) are parsed here: single quotes, comments, unquoted names and so on. Numbers keep their
# text, so that no digit is lost. A duplicate name in an object is an error: readers differ in which
# one they keep.


JsonValue = Any
"""None, bool, str, a list, or a dict. Numbers are `Number` from the thorough parser, which is used
where the fast one cannot decide, and plain text from the fast one."""


class Number(str):
    """A number as written."""

    __slots__ = ()


class JsonProblem(Exception):
    """Text that is not a value. `at` counts characters from 1 in the line; `path` names the field,
    if any."""

    def __init__(
        self, message: str, *, at: int = 0, path: str = "", found: str = "", expected: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.at, self.path = message, at, path
        self.found, self.expected = found, expected


@dataclass(frozen=True)
class JsonOptions:
    """The extensions to strict JSON; names and defaults are those of Spark's options."""

    single_quotes: bool = True
    non_numeric: bool = True
    comments: bool = False
    bare_names: bool = False
    leading_zeros: bool = False
    control_characters: bool = False
    any_escape: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> JsonOptions:
        """From options under their canonical names."""

        def yes(name: str, default: str = "false") -> bool:
            return options.get(name, default).lower() == "true"

        return cls(
            single_quotes=yes("allowSingleQuotes", "true"),
            non_numeric=yes("allowNonNumericNumbers", "true"),
            comments=yes("allowComments"),
            bare_names=yes("allowUnquotedFieldNames"),
            leading_zeros=yes("allowNumericLeadingZeros"),
            control_characters=yes("allowUnquotedControlChars"),
            any_escape=yes("allowBackslashEscapingAnyCharacter"),
        )


class _Repeated(Exception):
    """A duplicate name in an object: the thorough parser reports its position."""


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Repeated
    return found


def _no_constant(text: str) -> str:
    raise ValueError(text)


_FAST = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str
)
_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=_no_constant
)


def parse(line: str, lenient: JsonOptions) -> JsonValue:
    """The single value of a line. Raises: JsonProblem."""
    try:
        return (_FAST if lenient.non_numeric else _STRICT).decode(line)
    except (_Repeated, ValueError):
        return parse_thoroughly(line, lenient)
    except RecursionError:
        raise JsonProblem("objects are nested too deeply", found=line[:60]) from None


def parse_thoroughly(line: str, lenient: JsonOptions) -> JsonValue:
    """Like `parse`, with numbers as `Number`. Raises: JsonProblem."""
    try:
        return _JsonParser(line, lenient).line()
    except RecursionError:
        raise JsonProblem("objects are nested too deeply", found=line[:60]) from None


def compact(value: JsonValue) -> str:
    """A value as JSON text without spaces, numbers as written; for `parse_thoroughly`."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(k)}:{compact(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_NUMBER = re.compile(r"-?(\d+)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NAME = re.compile(r"[^\W\d][\w$]*|[$][\w$]*")
_WORD = re.compile(r"[+-]?[A-Za-z]+")
_BLANK = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"/\*(?s:.*?)\*/|//[^\r\n]*")
_CONSTANTS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}
_NON_NUMERIC = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "+Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "INF": "Infinity",
    "+INF": "Infinity",
    "-INF": "-Infinity",
}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _JsonParser:
    def __init__(self, text: str, lenient: JsonOptions) -> None:
        self._text = text
        self._lenient = lenient
        self._at = 0

    def line(self) -> JsonValue:
        value = self._value("")
        self._blank()
        if self._at < len(self._text):
            another = self._peek() in "{["
            raise self._problem(
                "a line holds more than one value" if another else "text follows the value",
                expected="one JSON object on each line",
            )
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _problem(self, message: str, path: str = "", expected: str = "") -> JsonProblem:
        found = self._text[self._at : self._at + 60]
        if not found:
            found, expected = "the end of the line", f"{expected}: each object is on one line"
        return JsonProblem(message, at=self._at + 1, path=path, found=found, expected=expected)

    def _blank(self) -> None:
        while True:
            found = _BLANK.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            comment = _COMMENT.match(self._text, self._at) if self._lenient.comments else None
            if comment is None:
                return
            self._at = comment.end()

    def _value(self, path: str) -> JsonValue:
        self._blank()
        sign = self._peek()
        if sign == "{":
            return self._members(path)
        if sign == "[":
            return self._elements(path)
        if sign == '"' or (sign == "'" and self._lenient.single_quotes):
            return self._string(path)
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            return self._number(number, path)
        word = _WORD.match(self._text, self._at)
        if word is not None:
            text = word[0]
            if text in _CONSTANTS:
                self._at = word.end()
                return _CONSTANTS[text]
            if text in _NON_NUMERIC and self._lenient.non_numeric:
                self._at = word.end()
                # Quoted in `compact`: JSON has no such number.
                return _NON_NUMERIC[text]
        raise self._problem("a line is not JSON", path, "a value")

    def _number(self, found: re.Match[str], path: str) -> Number:
        whole = found[1]
        if len(whole) > 1 and whole.startswith("0"):
            if not self._lenient.leading_zeros:
                raise self._problem("a number begins with zero", path, "a valid JSON number")
            sign = "-" if found[0].startswith("-") else ""
            rest = found[0][len(sign) :].lstrip("0")
            text = sign + (rest if rest[:1].isdigit() else f"0{rest}")
        else:
            text = found[0]
        self._at = found.end()
        return Number(text)

    def _members(self, path: str) -> dict[str, JsonValue]:
        self._at += 1
        members: dict[str, JsonValue] = {}
        self._blank()
        if self._peek() == "}":
            self._at += 1
            return members
        while True:
            self._blank()
            begun = self._at
            name = self._name(path)
            inner = f"{path}.{name}" if path else name
            if name in members:
                self._at = begun
                raise self._problem("an object has a field twice", inner, "each field once")
            self._blank()
            if self._peek() != ":":
                raise self._problem("a line is not JSON", inner, "a colon")
            self._at += 1
            members[name] = self._value(inner)
            if not self._more("}", path):
                return members

    def _elements(self, path: str) -> list[JsonValue]:
        self._at += 1
        elements: list[JsonValue] = []
        self._blank()
        if self._peek() == "]":
            self._at += 1
            return elements
        while True:
            elements.append(self._value(path))
            if not self._more("]", path):
                return elements

    def _more(self, end: str, path: str) -> bool:
        self._blank()
        sign = self._peek()
        if sign not in (",", end):
            raise self._problem("a line is not JSON", path, f"a comma or {end}")
        self._at += 1
        return sign == ","

    def _name(self, path: str) -> str:
        sign = self._peek()
        if sign == '"' or (sign == "'" and self._lenient.single_quotes):
            return self._string(path)
        bare = _NAME.match(self._text, self._at) if self._lenient.bare_names else None
        if bare is None:
            raise self._problem("a line is not JSON", path, "a name in quotes")
        self._at = bare.end()
        return bare[0]

    def _string(self, path: str) -> str:
        mark = self._peek()
        self._at += 1
        out: list[str] = []
        while True:
            sign = self._peek()
            if not sign:
                raise self._problem("a string is not terminated", path, mark)
            if sign == mark:
                self._at += 1
                return "".join(out)
            if sign == "\\":
                out.append(self._escape(path))
                continue
            if sign < " " and not self._lenient.control_characters:
                raise self._problem(
                    "a string contains a control character", path, "an escape, such as \\n"
                )
            out.append(sign)
            self._at += 1

    def _escape(self, path: str) -> str:
        sign = self._text[self._at + 1 : self._at + 2]
        if sign == "u":
            return self._unicode(path)
        known = _ESCAPES.get(sign)
        if known is None:
            if not sign or not (
                self._lenient.any_escape or (sign == "'" and self._lenient.single_quotes)
            ):
                raise self._problem("a string has an unknown escape", path, 'such as \\" or \\n')
            known = sign
        self._at += 2
        return known

    def _unicode(self, path: str) -> str:
        found = re.compile(r"\\u([0-9A-Fa-f]{4})").match(self._text, self._at)
        if found is None:
            raise self._problem("a string has an unknown escape", path, "\\u and four hex digits")
        self._at = found.end()
        code = int(found[1], 16)
        low = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self._text, self._at)
        if 0xD800 <= code < 0xDC00 and low is not None:
            self._at = low.end()
            return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
        return chr(code)
