"""Texts that must never reach Spark: code execution, file access, tricks of reading.

Every string here and in `attacks.toml` is refused with an InvalidStatement; none is accepted, none
crashes the parser.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import string
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.some import few
from support.statements.rows import SCHEMA
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, parse_statement, parse_where, to_spark_sql
from tandem.statements.functions import ALIASES, FUNCTIONS
from tandem.statements.tree import Literal

_CORPUS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8")
)
CODE, FILES, PLACEHOLDERS = (_CORPUS[name] for name in ("code", "files", "placeholders"))
HALF_A_CHARACTER = "'\ud800' = s"
"""A file cannot hold it."""

DEEP = [
    "(" * 10_000 + "b" + ")" * 10_000, "(" * 61 + "b" + ")" * 61, "NOT " * 500 + "b", "!" * 5000 + "b",
    "- " * 3000 + "1 = 1", "upper(" * 300 + "s" + ")" * 300 + " = s", "CASE WHEN b THEN " * 200 + "1" + " END" * 200,
    "i32" + " + 1" * 150 + " = 1", "s" + " || 'x'" * 200 + " = s", "i32 IN (" + "1," * 1000 + "1)", "b" + " OR b" * 3000,
    "s = '" + "x" * 5000 + "'", "s" * 300 + " = 1", "`" + "s" * 300 + "` = 1", "b AND " * 4000 + "b", "[" * 9999, "st" + ".x" * 5000,
    "i32 IN (" * 100 + "1" + ")" * 100, "concat(" + "s," * 200 + "s) = s", "b = " * 2000 + "b", "CAST(" * 400 + "1",
    "b " * 9000,
]  # fmt: skip

PATTERNS = [
    "s RLIKE '" + "a?" * 30 + "a" * 30 + "'", "s RLIKE '" + "(a|a|a|a)" * 9 + "b'", "s RLIKE '" + "a{0,99}" * 9 + "b'",
    "to_date(s, '" + "M" * 39 + "!') = d", "to_date(s, '" + "S" * 39 + "x') = d", "to_date(s, 'yyyy-yyyy') = d",
    "s RLIKE '(a+)+$'", "s RLIKE '(a*)*b'", "s RLIKE '(a|aa)+$'", "s RLIKE '(.*a){20}'", "s RLIKE '(a|a)*'", "s RLIKE 'a**'",
    "s RLIKE '([a-z]+)*$'", "s RLIKE '(?=a)b'", "s RLIKE '(?!a)b'", "s RLIKE '(?<=a)b'", "s RLIKE '(?i)a'", "s RLIKE r'(a)\\1'",
    "s RLIKE 'a{1,100000}'", "s RLIKE 'a{2,1}'", "s RLIKE '.*.*.*.*.*x'", "s RLIKE '(a'", "s RLIKE 'a)'", "s RLIKE '[a'", "s RLIKE '*a'",
    "s RLIKE '[z-a]'", "s RLIKE r'\\p{L}'", "s RLIKE '(?<n>a)'", "s RLIKE 'a++'", "s RLIKE '[a&&b]'", "s RLIKE r'\\Qa'", "s RLIKE '\\\\'",
    "s LIKE '%a%a%a%a%a%a%'", "s LIKE 'a\\\\b'", "s LIKE 'a\\\\'", "s LIKE '" + "x" * 300 + "'", "s RLIKE '" + "(a)" * 11 + "'",
    "s RLIKE ''''(", "s LIKE '%%%%%%%%%%%%x'", "s ILIKE '%%%%%%%'", "s LIKE 'x' ESCAPE ''", "s LIKE 'x' ESCAPE '%'",
]  # fmt: skip

ATTACKS = [*chain(*_CORPUS.values()), HALF_A_CHARACTER, *DEEP, *PATTERNS]


def test_the_corpus_is_large() -> None:
    assert len(set(ATTACKS)) >= 200


@pytest.mark.part(3)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: ascii(text)[:50])
def test_attack_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatement) as caught:
        parse_where(text, SCHEMA, resource="TableUpdate/t", field="spec.update.where")
    error = caught.value
    assert error.resource == "TableUpdate/t"
    assert error.field == "spec.update.where"
    assert error.position is not None
    line, column = error.position
    assert f"line {line}, column {column}" in str(error)
    assert error.snippet.splitlines()[-1].strip() == "^"


def test_attacks_are_refused_in_set_too() -> None:
    # A condition is no string, so even those that only lack a type stay out.
    for text in (*CODE, *FILES, *PLACEHOLDERS, *DEEP):
        with pytest.raises(InvalidStatement):
            parse_statement("b", {"st": text}, SCHEMA)
        with pytest.raises(InvalidStatement):
            parse_expression(text, SCHEMA, resource="", field="set")


def test_no_function_of_the_table_runs_code_or_reads_the_session() -> None:
    forbidden = {"reflect", "java_method", "try_reflect", "input_file_name", "current_user", "user",
                 "version", "read_files", "raise_error", "assert_true", "repeat", "regexp_replace",
                 "hash", "monotonically_increasing_id", "spark_partition_id"}  # fmt: skip
    assert not forbidden & {*FUNCTIONS, *ALIASES}
    assert all(target in FUNCTIONS for target in ALIASES.values())


WORDS = st.sampled_from(
    [
        "b", "i32", "s", "d", "ts", "st.x", "1", "1.5", "-", "+", "*", "/", "(", ")", ",", ".", "=", "<", "<=>",
        "!=", "!", "NOT", "AND", "OR", "IN", "IS", "NULL", "LIKE", "RLIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE",
        "END", "CAST", "AS", "INT", "INTERVAL", "DAY", "DATE", "'2013-01-01'", "'a%'", "upper", "coalesce", "reflect",
        "SELECT", "FROM", "`s`", "'it''s'", "''", '"x"', "r'\\'", "X'00'", "||", "DIV", "%", "TRUE", "DISTINCT", ";", "--",
        "/*", "${", ":p", "?", "\\", "\n", "'", "`", "\u2019", "ESCAPE", "1L", "1e3", "OVER", "EXISTS", "*", "[", "->",
    ]
)  # fmt: skip


@settings(max_examples=few(188, 1_500), deadline=None, derandomize=True)
@given(st.lists(WORDS, max_size=14).map(" ".join) | st.lists(WORDS, max_size=10).map("".join))
def test_any_sequence_of_tokens_is_refused_or_canonicalized(text: str) -> None:
    _refused_or_clean(text)


@settings(max_examples=few(188, 1_500), deadline=None, derandomize=True)
@given(st.text(max_size=40) | st.text(string.printable, max_size=40))
def test_any_text_is_refused_or_canonicalized(text: str) -> None:
    _refused_or_clean(text)


@settings(max_examples=few(63, 500), deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_string_survives_as_a_literal(value: str) -> None:
    if "${" in value:
        return
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        with pytest.raises(InvalidStatement, match="half a character"):
            parse_expression(quoted, SCHEMA, resource="", field="")
        return
    tree = parse_expression(quoted, SCHEMA, resource="", field="")
    assert isinstance(tree, Literal)
    assert tree.value == value
    canonical = to_spark_sql(tree)
    assert all(char.isprintable() for char in canonical)
    assert "${" not in canonical
    assert parse_expression(canonical, SCHEMA, resource="", field="") == tree


def _refused_or_clean(text: str) -> None:
    try:
        tree = parse_expression(text, SCHEMA, resource="", field="")
    except InvalidStatement:
        return
    canonical = to_spark_sql(tree)
    assert parse_expression(canonical, SCHEMA, resource="", field="") == tree
    for word in ("select", "reflect", "--", "/*", ";", "${"):
        assert word not in canonical.lower()
