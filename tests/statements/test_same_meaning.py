"""What a statement means is what Spark says it means: original text against canonical text.

Every accepted text is given to Spark as it was typed, and as we generate it. Spark's analyser
must see the same expression, of the type that we computed; and on rows that are hard on
expressions the values, or the error raised, must be the same.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.some import few, some
from support.statements.rows import SCHEMA, analyse, nasty, outcome, runtime_errors
from support.statements.texts import texts
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, to_spark_sql
from tandem.statements.parsing.functions import FUNCTIONS
from tandem.statements.tree import Call, Expr
from tandem.statements.types import CAST_NAMES, sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORPUS = [
    # Quotes, escapes, raw strings.
    "'it''s'", "'it\\'s' = s", '"it\'s"', '"a""b"', "'\\\\'", "'a\\nb'", "'\\x'", "'\\%\\_'",
    "r'\\n'", 'R"\\"', "'\\u0041\\U0001F600'", "'\\101\\377\\08'", "'${'" .replace("$", "\\u0024"),
    "''", '""', "'\u2019'", "'\t'", "'--'", "'/*'", "';'", "':p'", "'{{x}}'", "X'00ff'", "x''",
    # Numbers.
    "1", "-1", "- 1", "-(1)", "- -1", "+1", "2147483647", "2147483648", "-2147483648",
    "-9223372036854775808", "9223372036854775808", "1L", "-128Y", "1S", "1.5", "1.", ".5", "0.0",
    "-0.0", "0.05", "00.50", "1.5BD", "1BD", "1e3", "1E-3D", "1.5D", "2F", "1.1F", "-0.0D", "-0.0F",
    "1.7976931348623157E308", "4.9E-324", "99999999999999999999999999999999999999",
    "i32 -1", "i32-1", "i32 - -1", "-i32", "- - i32", "-1 * -1", "-i32 * j32", "1--1".replace("--", "- -"),
    # Division and friends.
    "7/2", "7 div 2", "-7 div 2", "-7 % 3", "7 % -3", "i32 / 0", "i32 div 0", "i32 % 0", "f64 / 0",
    "1 / g64", "i32 / j32", "i32 * j32", "i64 + 1", "i32 + 1", "i8 + 1Y", "i64 div -1", "dec / 3",
    "dec * 1.1", "wide * wide", "dec + 1", "dec % 7", "i32 % 5L", "f32 + 1", "f32 * f64",
    "2 + 3 * 4 - 5 % 3", "2 * 3 / 4 * 5", "1 - 2 - 3", "8 div 3 div 2", "'a' || 'b' || 1",
    "1 + 2 || 3", "'1' + 1", "s + 1", "'3' * '4'" .replace("'4'", "4"),
    # NULL, NaN, zero.
    "b AND NULL", "b OR NULL", "NOT NULL", "NULL = NULL", "NULL <=> NULL", "f64 = g64", "f64 <=> g64",
    "f64 > g64", "f64 IN (0.0D)", "f64 = 0", "f64 > 1e308", "isnan(f64)", "nullif(f64, 0.0)",
    "i32 IN (7, NULL)", "i32 NOT IN (7, NULL)", "NULL IN (1)", "i32 BETWEEN 0 AND NULL",
    "i32 NOT BETWEEN 0 AND 7", "f64 BETWEEN 0 AND 2", "b IS NULL", "b IS NOT TRUE", "b IS UNKNOWN",
    "(b AND b2) IS FALSE", "i32 IS DISTINCT FROM j32", "i32 IS NOT DISTINCT FROM NULL",
    "least(f64, g64)", "greatest(i32, NULL, 3L)", "coalesce(NULL, i32, 1.5)", "nvl(s, 'none')",
    # Precedence.
    "NOT b AND b2", "NOT b = b2", "NOT i32 = 7 OR b", "! b", "!b AND b2", "b OR b2 AND NOT b",
    "i32 = 7 = b", "i32 < j32 = b", "i32 + 1 BETWEEN j32 - 1 AND j32 + 1 AND b", "b IN (TRUE) OR b2",
    "NOT i32 IN (1, 2)", "NOT s LIKE 'a%'", "s LIKE 'a%' AND b", "i32 = 1 IS NULL", "- i32 BETWEEN 1 AND 2",
    "CASE WHEN i32 > 0 THEN 'a' WHEN i32 < 0 THEN 'b' ELSE s END", "CASE i32 WHEN 7 THEN 1 WHEN 8 THEN 2L END",
    "CASE WHEN b THEN 1 ELSE 2.5 END", "if(b, 1, NULL)", "CASE WHEN b2 THEN i32 / 0 ELSE 1 END",
    "(((i32)))", "((b))", "(i32 = 7) AND (b OR (b2))", "b AND b2 AND b AND NOT b2 AND b", "b OR b2 OR NOT b",
    # Strings against others.
    "s = 1", "s = '10'", "'10' = i32", "s > 1.5", "s = d", "s = ts", "d = '2013-03-31'", "ts > '2013-01-01'",
    "b = 'true'", "i32 IN ('7', 3)", "s IN ('10', 'abc')", "s LIKE '%\\\\%%' AND b", "u LIKE 'a_'",
    "s ILIKE 'ABC'", "s LIKE 'a!%b!_c' ESCAPE '!'", "s RLIKE '^[a-z]+$'", "s REGEXP r'^\\d+$'",
    "s NOT RLIKE 'x'", "upper(s)", "lower(s)", "length(s)", "reverse(s)", "substring(s, 2)", "substr(s, -2, 1)",
    "left(s, 2)", "right(s, 2)", "concat(s, u, 1)", "replace(s, 'a')", "instr(s, 'b')", "trim(s)",
    # Casts.
    "CAST(s AS INT)", "TRY_CAST(s AS INT)", "CAST(s AS DATE)", "TRY_CAST(s AS TIMESTAMP)", "CAST(i64 AS INT)",
    "CAST(f64 AS INT)", "CAST(f64 AS BIGINT)", "CAST(dec AS INT)", "CAST(f64 AS DECIMAL(5,2))",
    "TRY_CAST(f64 AS DECIMAL(5,2))", "CAST(b AS INT)", "CAST(i32 AS BOOLEAN)", "CAST(ts AS BIGINT)",
    "CAST(i32 AS TIMESTAMP)", "CAST(d AS TIMESTAMP)", "CAST(ts AS DATE)", "CAST(ts AS STRING)",
    "CAST(f64 AS STRING)", "CAST(bin AS STRING)", "CAST(s AS BINARY)", "CAST(1 AS DEC)", "CAST(NULL AS INT)",
    "CAST(dec AS DECIMAL(3,1))", "try_cast('x' as double)", "cast('NaN' as float)", "cast(ntz as timestamp)",
    # Dates and zones.
    "DATE '2013-03-31' + 1", "d - 1", "1 + d", "d + INTERVAL 1 MONTH", "d + INTERVAL '2' HOURS",
    "ts + INTERVAL -1 DAY", "ts - INTERVAL 90 MINUTES", "ntz + INTERVAL 1 WEEK", "INTERVAL 1 DAY + d",
    "ts > TIMESTAMP '2013-03-31 02:00:00+01:00'", "ts = TIMESTAMP '2013-03-31T01:00:00Z'",
    "ntz = TIMESTAMP_NTZ '2013-03-31 02:30:00'", "ts = ntz", "d = ts", "TIMESTAMP_LTZ '2013-01-01 00:00'",
    "year(d)", "month(ts)", "hour(ts)", "hour(ntz)", "minute(ts)", "second(ntz)", "dayofweek(d)", "weekday(d)",
    "quarter(d)", "weekofyear(d)", "last_day(d)", "date_add(d, 1)", "date_sub(d, i8)", "add_months(d, 1)",
    "datediff(d, e)", "date_trunc('MONTH', ts)", "date_trunc('week', d)", "trunc(d, 'year')", "to_date(ts)",
    "to_date(s, 'yyyy-MM-dd')", "to_timestamp('2013-01-01 10:00', 'yyyy-MM-dd HH:mm')", "unix_timestamp(ts)",
    "date_format(ts, 'yyyy/MM/dd HH:mm:ss.SSS')", "make_date(2013, i8, 1)", "timestamp_seconds(i32)",
    "timestamp_millis(i64)", "current_date > d",
    # Numbers' functions.
    "round(dec)", "round(dec, 1)", "round(f64, 2)", "bround(2.5)", "round(99999999999999999999)", "round(CAST(i32 AS DECIMAL(9, 0)), 2)",
    "ceil(99999999999999999999)", "floor(CAST(i64 AS DECIMAL(38, 0)))", "round(wide, 20)", "bround(wide)", "floor(dec)", "ceil(f64)", "ceiling(1.5)",
    "abs(i32)", "sign(dec)", "sqrt(f64)", "power(i32, 2)", "exp(g64)", "ln(f64)", "abs(i8)",
    # Names.
    "I32 = `i32`", "`we ird``.x` = 'x'", "st.x", "ST.y.z", "`st`.`Y`.`Z`", "arr IS NULL", "st IS NOT NULL",
]  # fmt: skip
"""Texts that must be accepted."""


@pytest.fixture(scope="module")
def frame(oracle_spark: SparkSession) -> DataFrame:
    return nasty(oracle_spark)


def tree_of(text: str) -> Expr:
    return parse_expression(text, SCHEMA, resource="TableUpdate/t", field="where")


def differences(frame: DataFrame, accepted: dict[str, Expr]) -> list[str]:
    """Where Spark sees another expression in the canonical text, or another type than we."""
    originals, canonical = list(accepted), [to_spark_sql(tree) for tree in accepted.values()]
    if not originals:
        return []
    seen = analyse(frame, originals + canonical)
    count = len(originals)
    wrong = []
    for text, ours, first, second in zip(
        originals, canonical, seen[:count], seen[count:], strict=True
    ):
        spark_type = first.dataType().sql().replace(",", ", ")
        computed = sql_name(accepted[text].type)
        known = accepted[text].type.is_atomic
        if known and spark_type != computed:
            wrong.append(f"{text}: {computed} here, {spark_type} in Spark")
        if not first.canonicalized().equals(second.canonicalized()):
            wrong.append(f"{text}: {first} here, {second} in {ours}")
    return wrong


def disagreements(frame: DataFrame, accepted: dict[str, Expr]) -> list[str]:
    """Where values or errors differ on the rows; many expressions in one job."""
    originals, canonical = list(accepted), [to_spark_sql(tree) for tree in accepted.values()]
    selected = frame.selectExpr(
        *(f"CAST(({text}) AS STRING) AS c{n}" for n, text in enumerate(originals + canonical))
    )
    count = len(originals)
    try:
        return [
            f"{originals[n]}: {row[n]!r} and {row[count + n]!r}"
            for row in selected.collect()
            for n in range(count)
            if repr(row[n]) != repr(row[count + n])
        ]
    except runtime_errors():
        if count > 1:
            half = dict(list(accepted.items())[: count // 2])
            rest = {text: tree for text, tree in accepted.items() if text not in half}
            return disagreements(frame, half) + disagreements(frame, rest)
    one, other = outcome(frame, originals[0]), outcome(frame, canonical[0])
    return [] if one == other and one[0] else [f"{originals[0]}: {one} and {other}"]


def test_corpus_is_read_as_spark_reads_it(frame: DataFrame) -> None:
    accepted = {text: tree_of(text) for text in CORPUS}
    assert differences(frame, accepted) == []


def test_corpus_gives_the_same_values_and_errors(frame: DataFrame) -> None:
    """Of a third of them: each that raises costs a dozen jobs."""
    accepted = {text: tree_of(text) for text in some(CORPUS)}
    assert disagreements(frame, accepted) == []


def test_canonical_text_parses_to_the_same_tree() -> None:
    for text in CORPUS:
        tree = tree_of(text)
        again = tree_of(to_spark_sql(tree))
        assert again == tree
        assert to_spark_sql(again) == to_spark_sql(tree)


OPERANDS = ["b", "i8", "i32", "i64", "f32", "f64", "dec", "wide", "s", "bin", "d", "ts", "ntz",
            "NULL", "1", "1.5", "'x'", "INTERVAL '1' DAY", "INTERVAL '1' HOUR",
            "INTERVAL '1' MONTH"]  # fmt: skip
CONSTANTS = {
    "digits": ["2"],
    "format": ["'yyyy-MM-dd'"],
    "unit": ["'hour'"],
    "dateunit": ["'week'"],
}


def combinations() -> list[str]:
    """Every operator, cast and function with operands of every type."""
    pairs = list(itertools.product(OPERANDS, OPERANDS))
    made = [f"{a} {op} {b}" for op in ["=", "+", "-", "*", "/", "%", "DIV", "||"] for a, b in pairs]
    made += [f"CASE WHEN b THEN {a} ELSE {b} END" for a, b in pairs]
    made += [f"{a} IN ({b}, NULL)" for a, b in pairs]
    made += [f"CAST({a} AS {t})" for a in OPERANDS for t in (*CAST_NAMES, "decimal(7, 3)")]
    for row in FUNCTIONS.values():
        for count in {row.least, min(row.most, 3)}:
            kinds = [row.takes[min(n, len(row.takes) - 1)] for n in range(count)]
            choices = [CONSTANTS.get(kind, OPERANDS) for kind in kinds]
            if count < 3:
                tuples = set(itertools.product(*choices))
            else:
                tuples = {tuple(c[n % len(c)] for c in choices) for n in range(len(OPERANDS))}
                tuples |= {(c, "1", "2") for c in OPERANDS} | {("b", c, "NULL") for c in OPERANDS}
            made += [f"{row.name}({', '.join(args)})" for args in sorted(tuples)]
    return list(dict.fromkeys(made))


def test_every_operator_and_function_has_the_type_that_spark_gives_it(frame: DataFrame) -> None:
    accepted = {}
    for text in combinations():
        try:
            accepted[text] = tree_of(text)
        except InvalidStatement:
            continue
    assert len(accepted) > 2_000
    names = {tree.function for tree in accepted.values() if isinstance(tree, Call)}
    assert names == set(FUNCTIONS)
    listed = some([item for item in accepted.items() if not _is_fickle(item[1])], every=6)
    for first in range(0, len(listed), 100):
        assert differences(frame, dict(listed[first : first + 100])) == []


def _is_fickle(tree: Expr) -> bool:
    # Spark gives each rand() and uuid() a seed of its own.
    return isinstance(tree, Call) and tree.function in ("rand", "uuid")


def accepted_of(drawn: list[str]) -> dict[str, Expr]:
    """The trees of the texts that are valid."""
    accepted = {}
    for text in drawn:
        with suppress(InvalidStatement):
            accepted[text] = tree_of(text)
    return accepted


KINDS = st.sampled_from(["bool", "bool", "int", "number", "string", "date", "time"])


UNSHRUNK = settings(
    deadline=None,
    derandomize=True,
    # Shrinking asks Spark thousands of times; the differing text says enough.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip


@settings(UNSHRUNK, max_examples=few(8, 25))
@given(st.lists(KINDS.flatmap(texts), min_size=20, max_size=60, unique=True))
def test_random_texts_are_read_as_spark_reads_them(frame: DataFrame, drawn: list[str]) -> None:
    accepted = accepted_of(drawn)
    for tree in accepted.values():
        assert tree_of(to_spark_sql(tree)) == tree
    assert differences(frame, accepted) == []


@settings(UNSHRUNK, max_examples=few(2, 4))
@given(st.lists(KINDS.flatmap(texts), min_size=8, max_size=20, unique=True))
def test_random_texts_give_the_same_values_and_errors(frame: DataFrame, drawn: list[str]) -> None:
    accepted = accepted_of(drawn)
    if accepted:
        assert disagreements(frame, accepted) == []
