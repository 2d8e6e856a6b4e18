"""The functions that a statement may call: only those in this table.

A row lists the arguments and the result of a function. Functions that are not listed are refused:
aggregates, window and generator functions, anything that runs code (`reflect`, `java_method`),
reads files or the session (`input_file_name`, `current_user`, `version`), or takes a pattern from a
column. `docs/statements.md` lists the same table; a test keeps them the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.statements.coercion import (
    MAX_PATTERN,
    MAX_PATTERN_WILDCARDS,
    bounded,
    common_of_all,
    is_text,
)
from tandem.statements.tree import Expr, Literal
from tandem.statements.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    UNKNOWN,
    SqlType,
    struct_of,
)

# Limits on patterns: LIKE, RLIKE and date formats are constants with a bounded run time.
#
# Spark matches all of them with Java's backtracking regular expressions, which a malicious pattern
# can keep busy for years on one row. Only patterns whose worst case is polynomial of a small
# degree are accepted. Each check returns the problem, or "".


def like_problem(pattern: str, escape: str) -> str:
    """The problem of a LIKE or ILIKE pattern (rules of StringUtils.escapeLikeRegex)."""
    if len(pattern) > MAX_PATTERN:
        return f"the pattern is longer than {MAX_PATTERN} characters"
    wildcards = 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == escape:
            follower = pattern[at + 1 : at + 2]
            if not follower:
                return f"the pattern ends with the escape character {escape}"
            if follower not in ("_", "%", escape):
                return f"in a pattern only _, % and {escape} may follow {escape}"
            at += 2
            continue
        wildcards += char == "%"
        at += 1
    if wildcards > MAX_PATTERN_WILDCARDS + 1:
        return f"the pattern has more than {MAX_PATTERN_WILDCARDS + 1} wildcards %"
    return ""


_CLASS = re.compile(r"\[\^?(?:[^\[\]\\&]|\\[dwsDWS\\\]\[.\-^/+*?$|(){}])+\]")
_ESCAPED = re.compile(r"\\[dwsDWSbtnr.\\+*?\[\](){}|^$/\-]")
_REPEAT = re.compile(r"\{([0-9]{1,3})(?:,([0-9]{1,3})?)?\}|[*+?]")
_DOT = re.compile(r"\.")
_PLAIN = re.compile(r"[^\\\[\](){}|*+?^$.]")
_MAX_REPEAT = 100
_MAX_GROUPS = 10
_MAX_CHOICES = 1_024


def regex_problem(pattern: str) -> str:
    """The problem of an RLIKE pattern.

    Accepted: characters, classes, `.`, anchors, alternatives, groups that are not repeated (a `?`
    is not a repetition), and few unbounded repetitions. So matching backtracks at most
    polynomially; nested repetitions, back-references and look-around are refused.
    """
    if len(pattern) > MAX_PATTERN:
        return f"the pattern is longer than {MAX_PATTERN} characters"
    unbounded = 0
    choices = 1
    # Alternatives of the open groups, the whole pattern first.
    open_groups = [1]
    groups = 0
    repeatable, after_group = False, False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if repeat := _REPEAT.match(pattern, at):
            if not repeatable:
                return f"the repetition {repeat[0]} has nothing that it may repeat"
            if after_group and repeat[0] != "?":
                return "a group may not be repeated"
            lowest, highest = int(repeat[1] or 0), int(repeat[2] or repeat[1] or 0)
            if highest > _MAX_REPEAT or (repeat[1] and lowest > highest):
                return f"a repetition counts to {_MAX_REPEAT} at most"
            choices *= 2 if repeat[0] == "?" else 1
            unbounded += repeat[0] != "?" and (repeat[1] is None or "," in repeat[0])
            repeatable = False
            at = repeat.end()
            # Possessive and lazy forms would need separate rules.
            if pattern[at : at + 1] in ("+", "?", "*", "{"):
                return "a repetition may not be repeated"
            continue
        after_group = False
        if char == "(":
            if pattern[at + 1 : at + 2] == "?" and pattern[at + 1 : at + 3] != "?:":
                return "of groups, only (…) and (?:…) are accepted"
            open_groups.append(1)
            groups += 1
            at += 3 if pattern[at + 1 : at + 2] == "?" else 1
            repeatable = False
            continue
        if char == ")":
            if len(open_groups) == 1:
                return "a ) closes nothing"
            choices *= open_groups.pop()
            repeatable, after_group = True, True
            at += 1
            continue
        if char in "|^$":
            open_groups[-1] += char == "|"
            repeatable = False
            at += 1
            continue
        matched = (
            _CLASS.match(pattern, at)
            or _ESCAPED.match(pattern, at)
            or _PLAIN.match(pattern, at)
            or _DOT.match(pattern, at)
        )
        if not matched:
            return f"{pattern[at : at + 2]!r} is not accepted in a pattern"
        repeatable = matched[0] != "\\b"
        at = matched.end()
    if len(open_groups) > 1:
        return "a ( is not closed"
    if choices > _MAX_CHOICES:
        return f"? and alternatives in groups can be combined in more than {_MAX_CHOICES} ways"
    if groups > _MAX_GROUPS:
        return f"the pattern has more than {_MAX_GROUPS} groups"
    if unbounded > MAX_PATTERN_WILDCARDS:
        return f"the pattern has more than {MAX_PATTERN_WILDCARDS} open repetitions"
    return _class_problem(pattern)


def _class_problem(pattern: str) -> str:
    for found in _CLASS.finditer(pattern):
        for low, high in re.findall(r"([A-Za-z0-9])-([A-Za-z0-9])", found[0]):
            if low > high:
                return f"the range {low}-{high} is empty"
    return ""


_FORMAT_PART = re.compile(r"y+|M+|d+|H+|m+|s+|S+|[-/:. ,_]|'T'")
_FORMAT_LENGTHS = {
    "y": (4,), "M": (1, 2), "d": (1, 2), "H": (1, 2), "m": (1, 2), "s": (1, 2),
    "S": (1, 2, 3, 4, 5, 6),
}  # fmt: skip
_MAX_FORMAT = 40


def format_problem(pattern: str) -> str:
    """The problem of a date format: only numbers of fixed meaning, no names or zones."""
    wrong = "a format is made of yyyy MM dd HH mm ss SSSSSS 'T' and - / : . , _ or spaces"
    if not 0 < len(pattern) <= _MAX_FORMAT:
        return wrong
    seen: set[str] = set()
    at = 0
    while at < len(pattern):
        part = _FORMAT_PART.match(pattern, at)
        if part is None:
            return wrong
        letter = part[0][0]
        if letter in _FORMAT_LENGTHS:
            if len(part[0]) not in _FORMAT_LENGTHS[letter]:
                return wrong
            if letter in seen:
                return "each part of a date may stand in a format once"
            seen.add(letter)
        at = part.end()
    return ""


ResultType = Callable[[Sequence[Expr]], SqlType | None]


@dataclass(frozen=True)
class Function:
    """A row of the table.

    `takes` has one kind of argument for each position; the last one repeats up to `most`
    arguments. `least` arguments are required. `gives` computes the type; None means that the
    arguments are incompatible.
    """

    name: str
    takes: tuple[str, ...]
    gives: ResultType
    least: int
    most: int
    deterministic: bool = True
    about: str = ""


@dataclass(frozen=True)
class ArgumentKind:
    """A kind of argument: its types, or its constants."""

    about: str
    accepts: Callable[[Expr], bool]


def _text(arg: Expr) -> str | None:
    return arg.value if isinstance(arg, Literal) and isinstance(arg.value, str) else None


def _number(arg: Expr) -> int | None:
    if isinstance(arg, Literal) and arg.type == INTEGER and isinstance(arg.value, int):
        return arg.value
    return None


def _of(*names: str) -> Callable[[Expr], bool]:
    return lambda arg: arg.type.name in (*names, "null", "unknown")


_INT: Final = ("byte", "short", "integer")
_MOMENT: Final = ("date", "timestamp", "timestamp_ntz", "string")
TRUNC_DATE: Final = frozenset(("year", "quarter", "month", "week"))
TRUNC_TIMESTAMP: Final = TRUNC_DATE | frozenset(
    ("day", "hour", "minute", "second", "millisecond", "microsecond")
)

KINDS: Final[Mapping[str, ArgumentKind]] = {
    "string": ArgumentKind("a string", _of("string")),
    "text": ArgumentKind("a value, not a binary", lambda a: is_text(a.type)),
    "binary": ArgumentKind("a string or binary", _of("string", "binary")),
    "int": ArgumentKind("an INT", _of(*_INT)),
    "number": ArgumentKind("a number", lambda a: a.type.is_numeric or a.type in (NULL, UNKNOWN)),
    "whole": ArgumentKind("a whole number",
                          lambda a: a.type.is_integral or a.type in (NULL, UNKNOWN)),
    "digits": ArgumentKind("a whole number from 0 to 30", lambda a: (_number(a) or 0) in range(31)
                   and _number(a) is not None),
    "boolean": ArgumentKind("a condition", _of("boolean")),
    "moment": ArgumentKind("a date or timestamp", _of(*_MOMENT)),
    "any": ArgumentKind("a value", lambda a: a.type.is_atomic),
    "part": ArgumentKind("a name in quotes or a value", lambda a: not a.type.is_interval),
    "format": ArgumentKind(
        "a constant format such as 'yyyy-MM-dd HH:mm:ss'",
        lambda a: _text(a) is not None and not format_problem(_text(a) or ""),
    ),
    "unit": ArgumentKind(
        f"one of the constants {', '.join(sorted(TRUNC_TIMESTAMP))}",
        lambda a: (_text(a) or "").lower() in TRUNC_TIMESTAMP,
    ),
    "dateunit": ArgumentKind(
        f"one of the constants {', '.join(sorted(TRUNC_DATE))}",
        lambda a: (_text(a) or "").lower() in TRUNC_DATE,
    ),
}  # fmt: skip


def _always(data_type: SqlType) -> ResultType:
    return lambda _args: data_type


def _same(args: Sequence[Expr]) -> SqlType:
    of = args[0].type
    return of if of.is_numeric or of == UNKNOWN else DOUBLE


def _struct(args: Sequence[Expr]) -> SqlType | None:
    """None unless names and values alternate, and names differ."""
    names = [_text(arg) for arg in args[::2]]
    known = {name.lower() for name in names if name}
    if len(args) % 2 or len(known) < len(names):
        return None
    parts = zip(names, args[1::2], strict=True)
    return struct_of((str(name), value.type) for name, value in parts)


def _common(args: Sequence[Expr]) -> SqlType | None:
    return common_of_all(args)


def _if(args: Sequence[Expr]) -> SqlType | None:
    return common_of_all(args[1:])


def _nullif(args: Sequence[Expr]) -> SqlType | None:
    return args[0].type if common_of_all(args) else None


def _whole(args: Sequence[Expr]) -> SqlType:
    of = args[0].type
    if of == UNKNOWN:
        return of
    if of.name == "decimal":
        return bounded(of.precision - of.scale + 1, 0) if of.scale else of
    return LONG


def _rounded(args: Sequence[Expr]) -> SqlType:
    of = args[0].type
    if of.name != "decimal":
        return _same(args)
    scale = min(of.scale, (_number(args[1]) or 0) if len(args) > 1 else 0)
    return bounded(of.precision - of.scale + 1 + scale, scale)


def _substring(args: Sequence[Expr]) -> SqlType:
    return args[0].type if args[0].type in (BINARY, UNKNOWN) else STRING


def _extreme(args: Sequence[Expr]) -> SqlType | None:
    # Unlike in COALESCE, Spark does not cast strings to the common type here.
    kinds = {arg.type.name == "string" for arg in args if arg.type not in (NULL, UNKNOWN)}
    return common_of_all(args) if len(kinds) < 2 else None


def _row(
    name: str,
    takes: str,
    gives: SqlType | ResultType,
    least: int | None = None,
    most: int | None = None,
    *,
    deterministic: bool = True,
    about: str = "",
) -> Function:
    kinds = tuple(takes.split())
    return Function(
        name,
        kinds,
        _always(gives) if isinstance(gives, SqlType) else gives,
        len(kinds) if least is None else least,
        len(kinds) if most is None else most,
        deterministic,
        about,
    )


_MANY: Final = 100

_TABLE: Final = (
    # Strings.
    _row("upper", "string", STRING, about="in upper case"),
    _row("lower", "string", STRING, about="in lower case"),
    _row("trim", "string", STRING, about="without spaces at both ends"),
    _row("ltrim", "string", STRING, about="without spaces at the start"),
    _row("rtrim", "string", STRING, about="without spaces at the end"),
    _row("length", "binary", INTEGER, about="characters of a string, bytes of a binary"),
    _row("octet_length", "binary", INTEGER, about="bytes"),
    _row(
        "substring",
        "binary int int",
        _substring,
        2,
        about="from a position (the first is 1), with a length",
    ),
    _row("left", "string int", STRING, about="the first characters"),
    _row("right", "string int", STRING, about="the last characters"),
    _row("concat", "text", STRING, 1, _MANY, about="concatenation"),
    _row("replace", "string string string", STRING, 2, about="replace all occurrences"),
    _row("instr", "string string", INTEGER, about="position of a substring, 0 if absent"),
    _row("startswith", "string string", BOOLEAN, about="begins with"),
    _row("endswith", "string string", BOOLEAN, about="ends with"),
    _row("contains", "string string", BOOLEAN, about="contains"),
    _row("reverse", "string", STRING, about="backwards"),
    # Numbers.
    _row("abs", "number", _same, about="without its sign"),
    _row("sign", "number", DOUBLE, about="-1.0, 0.0 or 1.0"),
    _row("round", "number digits", _rounded, 1, about="half up, to a number of digits"),
    _row("bround", "number digits", _rounded, 1, about="half even, to a number of digits"),
    _row("floor", "number", _whole, about="the next whole number below"),
    _row("ceil", "number", _whole, about="the next whole number above"),
    _row("sqrt", "number", DOUBLE, about="square root"),
    _row("power", "number number", DOUBLE, about="to the power of"),
    _row("exp", "number", DOUBLE, about="e to the power of"),
    _row("ln", "number", DOUBLE, about="natural logarithm"),
    _row("isnan", "number", BOOLEAN, about="is NaN; false for NULL"),
    # Choices.
    _row("if", "boolean any any", _if, about="the second if the first is true, else the third"),
    _row("coalesce", "any", _common, 1, _MANY, about="the first that is not NULL"),
    _row("nvl", "any any", _common, about="the second if the first is NULL"),
    _row("nullif", "any any", _nullif, about="NULL if both are equal, else the first"),
    _row("greatest", "any", _extreme, 2, _MANY, about="the greatest; NULLs are skipped"),
    _row("least", "any", _extreme, 2, _MANY, about="the least; NULLs are skipped"),
    _row(
        "named_struct", "part", _struct, 2, 2 * _MANY, about="a struct, of names and values in turn"
    ),
    # Dates and times.
    _row("year", "moment", INTEGER, about="year"),
    _row("quarter", "moment", INTEGER, about="quarter, 1 to 4"),
    _row("month", "moment", INTEGER, about="month, 1 to 12"),
    _row("day", "moment", INTEGER, about="day of the month"),
    _row("dayofweek", "moment", INTEGER, about="1 is Sunday"),
    _row("weekday", "moment", INTEGER, about="0 is Monday"),
    _row("dayofyear", "moment", INTEGER, about="day of the year"),
    _row("weekofyear", "moment", INTEGER, about="week of the year (ISO 8601)"),
    _row("hour", "moment", INTEGER, about="hour"),
    _row("minute", "moment", INTEGER, about="minute"),
    _row("second", "moment", INTEGER, about="second"),
    _row("last_day", "moment", DATE, about="last day of the month"),
    _row("date_add", "moment int", DATE, about="days later"),
    _row("date_sub", "moment int", DATE, about="days earlier"),
    _row("add_months", "moment int", DATE, about="months later"),
    _row("datediff", "moment moment", INTEGER, about="days from the second to the first"),
    _row("date_trunc", "unit moment", TIMESTAMP, about="start of the unit, as a timestamp"),
    _row("trunc", "moment dateunit", DATE, about="start of the unit, as a date"),
    _row("to_date", "moment format", DATE, 1, about="as a date"),
    _row("to_timestamp", "moment format", TIMESTAMP, 1, about="as a timestamp"),
    _row("date_format", "moment format", STRING, about="as a string"),
    _row("make_date", "int int int", DATE, about="from year, month, day"),
    _row("unix_timestamp", "moment", LONG, about="seconds since 1970"),
    _row("timestamp_seconds", "number", TIMESTAMP, about="from seconds since 1970"),
    _row("timestamp_millis", "whole", TIMESTAMP, about="from milliseconds since 1970"),
    # Another answer each time: such a statement is never evaluated on part of the rows.
    _row("current_date", "", DATE, deterministic=False, about="today"),
    _row("current_timestamp", "", TIMESTAMP, deterministic=False, about="now"),
    _row("localtimestamp", "", TIMESTAMP_NTZ, deterministic=False, about="now, without a zone"),
    _row("rand", "", DOUBLE, deterministic=False, about="random, 0 to 1"),
    _row("uuid", "", STRING, deterministic=False, about="a random UUID"),
)

FUNCTIONS: Final[Mapping[str, Function]] = {row.name: row for row in _TABLE}

ALIASES: Final[Mapping[str, str]] = {
    "ucase": "upper",
    "lcase": "lower",
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "substr": "substring",
    "ceiling": "ceil",
    "signum": "sign",
    "pow": "power",
    "ifnull": "nvl",
    "dayofmonth": "day",
    "date_diff": "datediff",
    "dateadd": "date_add",
    "to_unix_timestamp": "unix_timestamp",
    "now": "current_timestamp",
    "curdate": "current_date",
    "random": "rand",
}
"""Other names of Spark for the same function; trees contain the name in the table."""
