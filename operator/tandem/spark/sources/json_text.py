"""JSON lines as Arrow arrays of texts, in the shape of a schema. Pure.

Strict JSON takes a fast path. The extensions that Spark's reader accepts (by default or by an
option: single quotes, comments, unquoted names and so on) are rewritten as strict JSON, token by
token. Numbers keep their text, so that no digit is lost. A duplicate name in an object is an error:
readers differ in which one they keep.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from tandem.errors import InvalidSpec, StatementFailed
from tandem.spark.sources.text_files import WHITE, place, split_lines

# The fields of JSON lines and their types, where reading them without Spark leaves no doubt.
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


# The value of a line.


JsonValue = Any
"""None, bool, str, a list, or a dict. Numbers are texts."""


class Number(str):
    """A number as written, where it must differ from a string."""

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

    def located(self, path: str, line: int) -> StatementFailed:
        """The error for a line of a file."""
        at = f" (character {self.at})" if self.at else ""
        return StatementFailed(
            f"{self.message}{at}",
            resource=place(path, line, self.path),
            found=self.found,
            expected=self.expected,
            remedy="Correct the source, or its options",
        )


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
    """A duplicate name in an object."""


class _Pairs(list[tuple[str, JsonValue]]):
    """An object with all of its fields."""


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Repeated
    return found


_COMMENT = r"/\*.*?\*/|//[^\r\n]*+"
_TOKEN = re.compile(
    rf"""(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')
    |(?P<comment>{_COMMENT})
    |(?P<number>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)
    |(?P<name>[^\W\d][\w$]*+|\$[\w$]*+)(?=(?:[ \t\r\n]++|{_COMMENT})*+:)
    |(?P<word>[+-]?[A-Za-z]++)
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r'\\(.)|"', re.DOTALL)
_ZEROS = re.compile(r"^(-?)0+(?=[0-9])")
_NON_NUMERIC = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "+Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "INF": "Infinity",
    "+INF": "Infinity",
    "-INF": "-Infinity",
}
_PROBLEMS = (
    ("Unterminated", "a string is not terminated", "a closing quote"),
    ("Invalid control", "a string contains a control character", "an escape, such as \\n"),
    ("Invalid \\", "a string has an unknown escape", 'such as \\" or \\n'),
)


class JsonParser:
    """Parses lines. `numbers` is the type of numbers."""

    def __init__(self, lenient: JsonOptions, numbers: type[str] = str) -> None:
        self._lenient = lenient
        decoder = partial(
            json.JSONDecoder,
            parse_int=numbers,
            parse_float=numbers,
            parse_constant=str if lenient.non_numeric else _refuse,
            strict=not lenient.control_characters,
        )
        self._decode = decoder(object_pairs_hook=_object).decode
        self._all_fields = decoder(object_pairs_hook=_Pairs).decode

    def parse(self, line: str) -> JsonValue:
        """The single value of a line. Raises: JsonProblem."""
        try:
            try:
                return self._decode(line)
            except (_Repeated, ValueError):
                return self._decode_strict(line, self._decode)
        except RecursionError:
            raise JsonProblem("objects are nested too deeply", found=line[:60]) from None
        except _Repeated:
            self.check_fields(line, str)
            raise

    def check_fields(self, line: str, key: Callable[[str], str] = str.lower) -> None:
        """Check that no object has a field twice, by the key of its name. Raises: JsonProblem."""
        _check_once(self._decode_strict(line, self._all_fields), "", key)

    def _decode_strict(self, line: str, decode: Callable[[str], JsonValue]) -> JsonValue:
        """Decode a line that may have extensions to strict JSON."""
        tokens = [*_TOKEN.finditer(line)]
        texts = [self._strict(token) for token in tokens]
        try:
            return decode("".join(texts))
        except json.JSONDecodeError as error:
            raise _problem(line, tokens, texts, error) from error

    def _strict(self, token: re.Match[str]) -> str:
        """A token as strict JSON, if an option allows it."""
        text, lenient = token[0], self._lenient
        match token.lastgroup:
            case "string" if text[0] == '"' or lenient.single_quotes:
                return f'"{_ESCAPE.sub(self._escape, text[1:-1])}"'
            case "comment" if lenient.comments:
                return " "
            case "number" if lenient.leading_zeros:
                return _ZEROS.sub(r"\1", text)
            case "name" if lenient.bare_names:
                return f'"{text}"'
            case "name" | "word" if text not in ("true", "false", "null"):
                # Else no JSON, since the decoder accepts some of them without the option.
                known = _NON_NUMERIC.get(text) if lenient.non_numeric else None
                return f'"{known}"' if known else "?"
            case _:
                return text

    def _escape(self, found: re.Match[str]) -> str:
        sign = found[1]
        if sign is None:
            return '\\"'
        lenient = self._lenient
        known = sign in '"\\/bfnrtu'
        allowed = lenient.any_escape or (sign == "'" and lenient.single_quotes)
        return str(sign) if allowed and not known else found[0]


def _problem(
    line: str, tokens: list[re.Match[str]], texts: list[str], error: json.JSONDecodeError
) -> JsonProblem:
    """The error in the tokens' texts, at its place in the line."""
    start, names, last = 0, [""], ""
    at, inside = len(line), ""
    for token, text in zip(tokens, texts, strict=True):
        sign = token[0]
        if start + len(text) > error.pos:
            at = min(token.start() + error.pos - start, token.end())
            inside = (token.lastgroup or "") if at > token.start() else ""
            break
        start += len(text)
        if sign in ("{", "["):
            names.append("")
        elif sign in ("}", "]"):
            del names[max(1, len(names) - 1) :]
        elif sign == ",":
            names[-1] = ""
        elif sign == ":":
            names[-1] = last
        elif token.lastgroup in ("string", "name"):
            last = text[1:-1]
    message, expected = "a line is not JSON", error.msg.removeprefix("Expecting ")
    found = line[at : at + 60]
    if inside == "number":
        message, expected = "a number begins with zero", "a valid JSON number"
    elif error.msg == "Extra data":
        another = found[:1] in ("{", "[")
        message = "a line holds more than one value" if another else "text follows the value"
        expected = "one JSON object on each line"
    for begin, better, remedy in _PROBLEMS:
        if error.msg.startswith(begin):
            message, expected = better, remedy
    if not found:
        found, expected = "the end of the line", f"{expected}: each object is on one line"
    path = ".".join(filter(None, names))
    return JsonProblem(message, at=at + 1, path=path, found=found, expected=expected)


def _check_once(value: JsonValue, path: str, key: Callable[[str], str]) -> None:
    if isinstance(value, _Pairs):
        counts = Counter(key(name) for name, _ in value)
        for name, inner in value:
            here = f"{path}.{name}" if path else name
            if counts[key(name)] > 1:
                names = [n for n, _ in value if key(n) == key(name)]
                raise _twice(names, here)
            _check_once(inner, here, key)
    elif isinstance(value, list):
        for element in value:
            _check_once(element, path, key)


def _twice(names: list[str], path: str) -> JsonProblem:
    differ = ", in different case" if len(set(names)) > 1 else ""
    return JsonProblem(
        f"an object has a field twice{differ}",
        path=path,
        found=", ".join(names),
        expected="each field once",
    )


def compact(value: JsonValue) -> str:
    """A value as JSON text without spaces, numbers (as `Number`) as written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(k)}:{compact(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    # So are numbers that JSON does not have.
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# The rows of lines.
#
# Names are case-insensitive, like all column names; a name that the schema lacks, an object with a
# name in two cases, and a value of another kind (an object for an array) are errors.


class _Unknown(JsonProblem):
    """A field that the schema lacks."""

    def located(self, path: str, line: int) -> StatementFailed:
        raise InvalidSpec(
            self.message,
            resource=place(path, line, self.path),
            found=self.found,
            expected=self.expected,
            remedy="Add the columns to the table, or leave them out of the source",
        )


class _NumbersNeeded(Exception):
    """An object or array is a text: its numbers must differ from strings."""


_NO_TEXT = (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError)


class JsonRows:
    """The rows of one file.

    Args:
        shape: that of a row: structs, arrays and maps of texts.
        path: the file, for errors.
    """

    def __init__(self, shape: pa.StructType, lenient: JsonOptions, path: str) -> None:
        self._shape = shape
        self._lenient = lenient
        self._path = path
        self._numbers: type[str] = str
        self._row = _Part(shape, "")

    def batch(self, text: str, first: int) -> tuple[list[Any], list[int]]:
        """Arrow arrays, one per field, of whole lines, and the line of each row. `first`: the
        number of the first line.

        Raises: StatementFailed; InvalidSpec for a field that the schema lacks.
        """
        try:
            return self._batch(text, first)
        except _NumbersNeeded:
            self._numbers = Number  # for the rest of the file, too
            return self._batch(text, first)

    def _batch(self, text: str, first: int) -> tuple[list[Any], list[int]]:
        rows: list[dict[str, Any]] = []
        lines: list[int] = []
        parse, renamed = JsonParser(self._lenient, self._numbers).parse, self._row.renamed
        for number, line in enumerate(split_lines(text), first):
            try:
                value = parse(line)
                if type(value) is dict:
                    rows.append(renamed(value))
                    lines.append(number)
                    continue
                found = self._elements(value, line)
            except JsonProblem as problem:
                if not line.strip(WHITE):
                    continue
                raise problem.located(self._path, number) from problem
            rows += found
            lines += [number] * len(found)
        columns = []
        for field in self._shape:
            column = [row.get(field.name) for row in rows]
            columns.append(self._array(field, column, lines))
        return columns, lines

    def _elements(self, value: JsonValue, line: str) -> list[dict[str, Any]]:
        """Spark reads the objects of an array as rows."""
        if not isinstance(value, list) or not all(isinstance(e, dict) for e in value):
            raise JsonProblem(
                "a line is not an object", found=line[:60], expected="one JSON object on each line"
            )
        return [self._row.renamed(element) for element in value]

    def _array(self, field: pa.Field, column: list[Any], lines: list[int]) -> pa.Array:
        if pa.types.is_string(field.type):
            with suppress(*_NO_TEXT):
                return pa.array(column, field.type)
            booleans = {True: "true", False: "false"}
            with suppress(*_NO_TEXT):
                texts = [booleans[v] if isinstance(v, bool) else v for v in column]
                return pa.array(texts, field.type)
        found, part = [], _Part(field.type, field.name)
        for value, number in zip(column, lines, strict=True):
            try:
                found.append(self._text(value, part))
            except JsonProblem as problem:
                raise problem.located(self._path, number) from problem
        return pa.array(found, field.type)

    def _text(self, value: JsonValue, part: _Part) -> Any:
        """A value with texts at its leaves. Raises: JsonProblem, _NumbersNeeded."""
        if value is None:
            return None
        if part.kind is _Kind.TEXT:
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, str):
                return _encodable(value, part.path)
            if self._numbers is str:
                raise _NumbersNeeded
            return _encodable(compact(value), part.path)
        if isinstance(value, dict):
            if part.kind is _Kind.OBJECT:
                fields = part.renamed(value)
                return {name: self._text(fields.get(name), inner) for name, inner in part.inner}
            if part.kind is _Kind.MAP:
                inner = part.inner[0][1]
                return [(_encodable(k, part.path), self._text(v, inner)) for k, v in value.items()]
        if isinstance(value, list) and part.kind is _Kind.ARRAY:
            inner = part.inner[0][1]
            return [self._text(each, inner) for each in value]
        kinds = {dict: "an object", list: "an array", bool: "true or false"}
        raise JsonProblem(
            "a value is of another kind than its column",
            path=part.path,
            found=kinds.get(type(value), "a single value"),
            expected="an array" if part.kind is _Kind.ARRAY else "an object",
        )


class _Kind(Enum):
    TEXT = "text"
    OBJECT = "object"
    ARRAY = "array"
    MAP = "map"


class _Part:
    """A type of the shape and where it is in a row, with its parts by name: `renamed` and `_text`
    ask for each value, which Arrow's types answer slowly."""

    __slots__ = ("_by_lower", "_names", "inner", "kind", "path")

    def __init__(self, shape: pa.DataType, path: str) -> None:
        self.path = path
        self.kind = _Kind.TEXT
        within: list[tuple[str, pa.DataType]] = []
        if pa.types.is_struct(shape):
            self.kind = _Kind.OBJECT
            within = [(field.name, field.type) for field in shape]
        elif pa.types.is_list(shape):
            self.kind, within = _Kind.ARRAY, [("element", shape.value_type)]
        elif pa.types.is_map(shape):
            self.kind, within = _Kind.MAP, [("value", shape.item_type)]
        above = f"{path}." if path else ""
        self.inner = tuple((name, _Part(type_, above + name)) for name, type_ in within)
        self._names = {name for name, _ in within}
        self._by_lower = {name.lower(): name for name in self._names}

    def renamed(self, value: dict[str, Any]) -> dict[str, Any]:
        """An object with the schema's names; the same object if it has them already. Raises:
        JsonProblem for a field that the schema lacks, or that is there twice."""
        if value.keys() <= self._names:
            return value
        above = f"{self.path}." if self.path else ""
        result: dict[str, Any] = {}
        for name, inner in value.items():
            known = self._by_lower.get(name.lower())
            if known is None:
                raise _Unknown(
                    "the source has columns that the table lacks",
                    path=above + name,
                    found=above + name,
                    expected=", ".join(above + field for field, _ in self.inner)[:300],
                )
            if known in result:
                raise _twice([n for n in value if n.lower() == name.lower()], above + known)
            result[known] = inner
        return result


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonProblem(
            "a string contains half a character (a lone surrogate)",
            path=path,
            found=ascii(text)[:60],
            expected="whole characters",
        ) from None
    return text
