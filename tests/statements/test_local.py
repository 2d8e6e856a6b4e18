"""The evaluator over Arrow gives what Spark gives, or nothing.

Spark is the oracle: what is evaluated without it is evaluated by it too, on tables with the ends
of every type and on tables where arithmetic comes to a result. Where Spark raises, there must be
no value here.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from statements.local_oracle import SparkOracle, compiled
from statements.test_same_meaning import CORPUS
from support.foreign.tables import column
from support.present import present
from support.statements.rows import SCHEMA
from support.statements.tables import combinations, comparable, expressions, extreme, tame
from tandem.statements import parse_expression, parse_statement
from tandem.statements.local import NeedsSpark, compile_expression, compile_statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Oracles = tuple[SparkOracle, SparkOracle]


@pytest.fixture(scope="module")
def oracles(oracle_spark: SparkSession) -> Oracles:
    return SparkOracle(oracle_spark, extreme()), SparkOracle(oracle_spark, tame())


def test_most_of_the_corpus_is_evaluated_here() -> None:
    found = compiled(CORPUS)
    groups = {
        "literals": [t for t in CORPUS if parse_expression(t, SCHEMA, resource="", field="").children() == ()],
        "logic": [t for t in CORPUS if " AND " in t or " OR " in t or t.startswith(("NOT ", "!"))],
        "lists and NULL": [t for t in CORPUS if " IN (" in t or " IS " in t],
    }  # fmt: skip
    left = {kind: [t for t in texts if t not in found] for kind, texts in groups.items()}
    # Negative zero, and what is today; LIKE of a converted string.
    assert {kind: len(texts) for kind, texts in left.items()} == {
        "literals": 2, "logic": 0, "lists and NULL": 0,
    }, left  # fmt: skip
    assert len(found) >= 170


@pytest.mark.parametrize("text", [
    "reverse(s)", "s RLIKE 'a'", "s ILIKE 'a'", "TRY_CAST(s AS INT)", "CAST(s AS INT)", "s = 1", "dec / 3", "round(f64)",
    "current_date > d", "rand() < 0.5", "d + INTERVAL 1 MONTH", "ts - INTERVAL 1 DAY", "wide * wide", "wide + i64 * wide",
    "f64 = dec", "-0.0D = f64", "-(0.0D) = f64", "0.0D * -1 = f64", "if(b, 0.0D, f64) * -1 = f64", "i32 > 99999999999999999999", "f64 IN (" + ", ".join(f"{n}.5D" for n in range(11)) + ")",
    "f64 = CAST(i32 AS FLOAT)", "CAST(i64 AS FLOAT) IS NULL", "CAST(f64 AS INT)", "CAST(f64 AS STRING)", "CAST(ts AS STRING)", "hour(ts)",
])  # fmt: skip
def test_unproven_expressions_are_left_to_spark(text: str) -> None:
    assert compiled([text]) == {}
    assert compiled([f"b AND CASE WHEN b2 THEN ({text}) IS NULL END"]) == {}


@pytest.mark.parametrize(("text", "known"), [
    ("length(s) = 1", False), ("length(s || 'x') = 1", False), ("s LIKE '_'", False), ("s LIKE 'a%b%c'", False),
    ("s LIKE 'a%'", True), ("s = 'a'", True), ("s < 'b'", True), ("contains(s, 'a')", True), ("s || 'x' IS NULL", True),
])  # fmt: skip
def test_characters_of_bytes_that_are_no_text_are_left_to_spark(text: str, known: bool) -> None:
    """Spark writes any bytes as a string (CAST(X'80' AS STRING)), and counts them its own way."""
    expression = present(compile_expression(parse_expression(text, SCHEMA, resource="", field="")))
    for bad in (b"\x80", b"\xc3\x28", b"\xed\xa0\x80"):
        texts = pa.array([b"fine", None, "\u00e9\U0001f600".encode(), bad], pa.binary()).view(
            pa.string()
        )
        assert len(expression.evaluate(pa.table({"s": texts.slice(0, 3)}))) == 3
        if known:
            assert len(expression.evaluate(pa.table({"s": texts}))) == 4
        else:
            with pytest.raises(NeedsSpark):
                expression.evaluate(pa.table({"s": texts}))


def test_corpus_has_the_values_of_spark(oracles: Oracles) -> None:
    found = compiled(CORPUS)
    assert [line for oracle in oracles for line in oracle.differences(found)] == []


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(8))
def test_combinations_have_the_values_of_spark(oracles: Oracles, part: int) -> None:
    found = compiled(combinations()[part::8])
    assert len(found) > 150
    assert [line for oracle in oracles for line in oracle.differences(found)] == []


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_random_expressions_have_the_values_of_spark(oracles: Oracles, seed: int) -> None:
    found = compiled(list(itertools.islice(expressions(seed), 2_000)))
    assert len(found) > 600
    assert [line for oracle in oracles for line in oracle.differences(found)] == []


def test_random_expressions_have_the_values_of_spark(oracles: Oracles) -> None:
    found = compiled(list(itertools.islice(expressions(seed=7), 500)))
    assert len(found) > 200
    before = [oracle.compared for oracle in oracles]
    assert [line for oracle in oracles for line in oracle.differences(found)] == []
    # Most of them came to a value, and were compared.
    assert all(oracle.compared - known > 180 for oracle, known in zip(oracles, before, strict=True))


RAISING = [
    "i8 + 1Y", "i32 + 1", "i64 - 1L", "i64 * 2", "i32 * j32", "-i8", "-i64", "abs(i16)", "i32 / 0", "f64 / 0", "f64 / g64",
    "i32 % 0", "i64 DIV 0", "i64 DIV -1", "CAST(i64 AS INT)", "CAST(i16 AS TINYINT)", "CAST(i64 AS DECIMAL(5, 0))",
    "CAST(dec AS DECIMAL(9, 2))", "CAST(wide AS DECIMAL(38, 19))", "CAST(d AS TIMESTAMP)", "i32 + 1 > 0",
    "CASE WHEN i32 * 2 > 0 THEN 1 END", "i32 IN (1, i32 - 1)",
]  # fmt: skip


@pytest.mark.parametrize("text", RAISING)
def test_where_spark_raises_there_is_no_value(oracles: Oracles, text: str) -> None:
    oracle = oracles[0]
    ((root, expression),) = compiled([text]).values()
    assert oracle.raises(root)
    with pytest.raises(NeedsSpark):
        expression.evaluate(oracle.table)


@pytest.mark.parametrize(
    "text", ["b2 IS NULL AND i32 / 0 > 1", "CASE WHEN b IS NULL AND b THEN i32 / 0 END"]
)
def test_expressions_that_spark_may_skip_are_left_to_spark(text: str) -> None:
    ((_, expression),) = compiled([text]).values()
    with pytest.raises(NeedsSpark):
        expression.evaluate(extreme())


def test_columns_in_other_arrow_forms() -> None:
    """Files hold strings as dictionaries, and as large strings."""
    table = extreme()
    ((_, expression),) = compiled(["s = 'abc' OR s LIKE '%b'"]).values()
    plain = expression.evaluate(table)
    index = table.schema.get_field_index("s")
    for form in (table["s"].dictionary_encode(), table["s"].cast(pa.large_string())):
        other = table.set_column(index, "s", form)
        assert expression.evaluate(other).equals(plain)
    pieces = pa.concat_tables([table.slice(0, 30), table.slice(30)])
    assert expression.evaluate(pieces).equals(plain)
    assert len(expression.evaluate(table.slice(0, 0))) == 0


def test_a_field_whose_name_begins_with_a_dot_is_no_path() -> None:
    struct = {"type": "struct", "fields": [column("b"), column(".b")]}
    schema = json.dumps({"type": "struct", "fields": [column("st", struct)]})
    tree = parse_expression("st.`.b` = 2", schema, resource="", field="where")
    expression = present(compile_expression(tree))
    rows = pa.table({"st": pa.array([{"b": 1, ".b": 2}, {"b": 2, ".b": 1}, None])})
    assert expression.evaluate(rows).to_pylist() == [True, False, None]


STATEMENTS: list[tuple[str | None, dict[str, str] | None]] = [
    ("i32 > 0", None),
    (None, None),
    ("s LIKE 'a%' OR b", None),
    ("b AND i32 IN (1, 7, NULL)", {"i32": "i32 + 1", "j32": "i32", "s": "s || '!'"}),
    ("i8 < 100Y", {"i64": "i8 * 2", "f64": "i8", "dec": "i8", "i16": "i8 + 1"}),
    ("d >= DATE '2013-01-01'", {"ts": "d", "ntz": "d", "s": "i64", "b": "NULL", "wide": "1.5"}),
    (None, {"b": "b2 AND NOT b", "bin": "X'00'", "u": "CASE WHEN i32 > 1 THEN u ELSE 'x' END"}),
    ("f64 > g64", {"f64": "f64 + g64", "f32": "f64", "i8": "7"}),
]


@pytest.mark.parametrize(("where", "values"), STATEMENTS)
def test_statements_write_what_spark_writes(
    oracles: Oracles, where: str | None, values: dict[str, str] | None
) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    oracle = oracles[1]
    statement = parse_statement(where, values, SCHEMA)
    local = present(compile_statement(statement))
    found = local.evaluate(oracle.table)
    # As the statement job does (spark/jobs/statement.py).
    rows = oracle.frame.filter(F.expr(statement.where_sql))
    assert rows.count() == len(found.matched)
    if not values:
        assert found.written is None
        assert _same(rows.toArrow(), oracle.table.take(found.matched))
        return
    chosen = statement.set_sql
    columns = [
        F.expr(chosen[f.name]).cast(f.dataType).alias(f.name)
        if f.name in chosen
        else F.col("`" + f.name.replace("`", "``") + "`")
        for f in oracle.frame.schema.fields
    ]
    assert found.written is not None
    assert _same(rows.select(*columns).toArrow(), found.written)


def _same(one: pa.Table, other: pa.Table) -> bool:
    assert one.column_names == other.column_names
    return all(
        comparable(one[name]) == comparable(other[name])
        for name in one.column_names
        if not pa.types.is_nested(one[name].type)
    )
