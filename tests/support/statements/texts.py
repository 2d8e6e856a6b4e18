"""Random expressions, as people might type them: the source of the differential tests.

A text of a wanted type is built from texts of the types that it takes, with parentheses left
out at random. So some texts come out with another structure or type than they were built
with, which is what the tests want: our reading of a text must be Spark's, whatever it is.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import re

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Texts = SearchStrategy[str]

LEAVES: dict[str, list[str]] = {
    "bool": ["b", "b2", "TRUE", "false", "NULL"],
    "int": ["i8", "i16", "i32", "j32", "I64", "st.x", "0", "1", "-1", "7", "2147483647",
            "-2147483648", "3L", "5S", "-128Y", "9223372036854775807L"],
    "number": ["f32", "f64", "g64", "dec", "wide", "1.5", "-0.5", ".25", "2.", "1e3", "1.5D",
               "-0.0D", "2.5F", "1.50BD", "i32", "3000000000", "99999999999999999999"],
    "string": ["s", "u", "`we ird``.x`", "st.y.Z", "''", "'it''s'", "'it\\'s'", "\"a\"\"b\"",
               "'back\\\\slash'", "r'raw\\n'", "'Z\\u00fcrich'", "'\\101\\t'", "'10'", "'1.5'",
               "'a%b\\_c'", "'\\U0001F600'", "'2013-01-01'", "'abc'", "'x\\qy'", "'\\0'",
               "'\\Z'", "R\"a'b\"", "'\n'"],
    "date": ["d", "e", "DATE '2013-03-31'", "date'0001-01-01'", "DATE \"2016-02-29\""],
    "time": ["ts", "ntz", "TIMESTAMP '2013-03-31 01:00:00'", "timestamp'2013-10-27T02:30:00+02:00'",
             "TIMESTAMP_NTZ '2013-03-31 02:30:00.5'", "TIMESTAMP '1960-01-01'"],
}  # fmt: skip

CHOICES: dict[str, list[str]] = {
    "cmp": ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"],
    "and": ["AND", "or", "OR", "and"],
    "not": ["NOT", "not", "!"],
    "no": ["", "NOT ", "not "],
    "sum": ["+", "-", "*"],
    "op": ["+", "-", "*", "%", "/", "div", "-  "],
    "truth": ["TRUE", "FALSE", "UNKNOWN"],
    "some": ["{int}", "{number}", "{string}", "{date}", "{time}", "{bool}"],
    "like": ["LIKE", "ilike"],
    "pattern": ["'a%'", "'%b\\\\_c'", "'%''%'", "'i_''s'", "'x$%%y' ESCAPE '$'", "''", "'%'", "'10'"],
    "rlike": ["RLIKE", "regexp"],
    "regex": ["'^a'", "'[a-z]+$'", "'(a|b)c?'", "r'\\d{1,3}'", "'it.s'", "'^$'", "r'\\\\'"],
    "cast": ["CAST", "try_cast"],
    "numeric": ["INT", "bigint", "decimal(12, 3)", "smallint", "double", "float"],
    "unit": ["HOUR", "days", "month", "MINUTES", "week"],
    "days": ["1", "i8", "INTERVAL 3 DAYS"],
}  # fmt: skip

ANY_KIND = [
    "CASE WHEN {bool} THEN {same} ELSE {same} END",
    "case {int} when {int} then {same} end",
    "if({bool}, {same}, {same})",
    "COALESCE({same}, {same})",
    "nullif({same}, {same})",
    "nvl( {same} ,{same})",
]

NUMBERS = [
    "{same} {op} {same}",
    "{same} {sum} {same} {op} {same}",
    "- {same}",
    "+{same}",
    "abs({same})",
    "round({number}, 1)",
    "floor({number})",
    "ceil({number})",
    "length({string})",
    "year({date})",
    "dayofweek({date})",
    "hour({time})",
    "unix_timestamp({time})",
    "datediff({date}, {time})",
    "{cast}({string} AS {numeric})",
    "{cast}({number} AS {numeric})",
    "greatest({same}, {same})",
    "least({same}, {same}, NULL)",
]

TEMPLATES: dict[str, list[str]] = {
    "bool": [
        "{some} {cmp} {some}",
        "{int} {cmp} {number}",
        "{string}\n{cmp}\t{string}",
        "{time} {cmp} {date}",
        "{bool} {and} {bool}",
        "{bool} AND {bool} OR {bool}",
        "{bool} or {bool} or {bool} and {bool}",
        "{not} {bool}",
        "{int} {no}BETWEEN {int} AND {number}",
        "{date} {no}between {time} and {date} AND {bool}",
        "{int} {no}in ({number},{int}, NULL)",
        "{string} {no}IN ({string})",
        "{some} IS {no}NULL",
        "{bool} is {no}{truth}",
        "{some} IS {no}DISTINCT FROM {some}",
        "{string} {no}{like} {pattern}",
        "{string} {no}{rlike} {regex}",
        "startswith({string}, {string})",
        "isnan({number})",
    ],
    "int": NUMBERS,
    "number": NUMBERS,
    "string": [
        "{string} || {some}",
        "upper({string})",
        "trim({string})",
        "reverse({string})",
        "substring({string}, {int}, 2)",
        "concat({string}, {number})",
        "replace({string}, {string}, 'x')",
        "cast({some} as string)",
        "date_format({time}, 'yyyy-MM-dd HH:mm')",
    ],
    "date": [
        "{date} {sum} {days}",
        "date_add({date}, i16)",
        "trunc({date}, 'month')",
        "to_date({time})",
        "last_day({date})",
        "CAST({string} AS DATE)",
    ],
    "time": [
        "{time} - INTERVAL '-2' {unit}",
        "{time} + INTERVAL 1 {unit}",
        "date_trunc('month', {time})",
        "to_timestamp({date})",
        "cast({some} as TIMESTAMP_NTZ)",
        "{cast}({string} as timestamp)",
    ],
}
_PLACE = re.compile(r"\{(\w+)\}")


@st.composite
def texts(draw: st.DrawFn, kind: str, depth: int = 3) -> str:
    """An expression, usually of the kind asked for."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(LEAVES[kind]))
    template = draw(st.sampled_from(TEMPLATES[kind] * 2 + ANY_KIND))

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in CHOICES:
            return _PLACE.sub(fill, draw(st.sampled_from(CHOICES[name])))
        text = draw(texts(kind if name == "same" else name, depth - 1))
        return f"({text})" if draw(st.booleans()) else text

    return _PLACE.sub(fill, template)
