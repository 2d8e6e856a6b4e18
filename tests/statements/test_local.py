"""Expressions and merges over Arrow: what Spark gives, or nothing."""

# ruff: noqa: E501  -- the corpus and the conditions are easier to read in wide rows.

from __future__ import annotations

import itertools
import json
import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statements.local_oracle import SparkOracle, compiled
from statements.test_merge_statement import Text
from statements.test_same_meaning import CORPUS
from support.foreign.tables import column
from support.present import present
from support.some import few
from support.statements.rows import DDL, SCHEMA
from support.statements.tables import combinations, comparable, expressions, extreme, tame
from tandem.statements import parse_expression, parse_statement
from tandem.statements.local import (
    LocalMerge,
    NeedsSpark,
    compile_expression,
    compile_merge,
    compile_statement,
)
from tandem.statements.local.merge import NO_CLAUSE, KeyValues, SoughtValues, equal_pairs
from tandem.statements.merge import parse_merge
from tandem.statements.types import DOUBLE, INTEGER, LONG, STRING, Schema, SchemaColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The evaluator over Arrow gives what Spark gives, or nothing. Spark is the oracle: what is
# evaluated without it is evaluated by it too, on tables with the ends of every type and on tables
# where arithmetic comes to a result. Where Spark raises, there must be no value here.


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
    matched = local.matching(oracle.table)
    # As the statement job does (spark/jobs/statement.py).
    rows = oracle.frame.filter(F.expr(statement.where_sql))
    assert rows.count() == len(matched)
    affected = oracle.table.take(matched)
    if not values:
        assert _same(rows.toArrow(), affected)
        return
    chosen = statement.set_sql
    columns = [
        F.expr(chosen[f.name]).cast(f.dataType).alias(f.name)
        if f.name in chosen
        else F.col("`" + f.name.replace("`", "``") + "`")
        for f in oracle.frame.schema.fields
    ]
    assert _same(rows.select(*columns).toArrow(), local.written(affected))


def _same(one: pa.Table, other: pa.Table) -> bool:
    assert one.column_names == other.column_names
    return all(
        comparable(one[name]) == comparable(other[name])
        for name in one.column_names
        if not pa.types.is_nested(one[name].type)
    )


# Merges over Arrow: which rows match, against an obvious nested loop and against Spark's join.


INTEGERS = st.one_of(st.none(), st.integers(-2, 2))
FLOATS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, math.inf]))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "😀"]))
COLUMNS = [(INTEGERS, pa.int64()), (FLOATS, pa.float64()), (TEXTS, pa.string())]


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[KeyValues], list[list[tuple[Any, Any]]]]:
    """Keys, and for each the values of both sides as Python has them."""
    heights = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    keys = []
    for values, kind in draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3)):
        ours, theirs = (
            pa.array(draw(st.lists(values, min_size=n, max_size=n)), kind) for n in heights
        )
        keys.append(KeyValues(ours, theirs, draw(st.booleans())))
    return keys, [[(key.target.to_pylist(), key.source.to_pylist())] for key in keys]


def same(one: Any, other: Any, null_safe: bool) -> bool:
    if one is None or other is None:
        return null_safe and one is other
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


@settings(max_examples=few(50, 150), deadline=None, derandomize=True)
@given(sides())
def test_pairs_are_those_of_a_nested_loop(
    given_: tuple[list[KeyValues], list[list[tuple[Any, Any]]]],
) -> None:
    keys, values = given_
    expected = [
        (i, j)
        for i in range(len(keys[0].target))
        for j in range(len(keys[0].source))
        if all(
            same(ours[i], theirs[j], key.null_safe)
            for key, [(ours, theirs)] in zip(keys, values, strict=True)
        )
    ]
    found = equal_pairs(keys)
    assert list(zip(found.target.tolist(), found.source.tolist(), strict=True)) == expected
    often = [i for i in range(len(keys[0].target)) if sum(pair[0] == i for pair in expected) > 1]
    assert found.doubled().tolist() == often


WIDE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), INTEGERS)
BYTES = st.one_of(st.none(), st.integers(-128, 127))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([(WIDE, pa.int64()), (BYTES, pa.int8()), (TEXTS, pa.string())]))
def test_sought_values_are_those_that_are_found(data: st.DataObject, of: Any) -> None:
    values, kind = of
    column = data.draw(st.lists(values, max_size=40))
    wanted = data.draw(st.lists(st.one_of(values, st.sampled_from(column or [None])), max_size=20))
    sought = SoughtValues(pc.unique(pa.array(wanted, kind)))
    expected = [n for n, value in enumerate(column) if value in wanted]
    assert sought.rows(pa.array(column, kind)).tolist() == expected


def test_too_many_pairs_are_left_to_spark() -> None:
    ones = pa.array([1] * 20)
    assert len(equal_pairs([KeyValues(ones, ones)], most=400)) == 400
    with pytest.raises(NeedsSpark, match="400 pairs"):
        equal_pairs([KeyValues(ones, ones)], most=399)


ON = [
    "t.b = s.b2", "t.i8 = s.i16", "t.i32 = s.i64", "t.i64 = s.i64", "t.i32 = s.f64", "t.f32 = s.f32", "t.f64 = s.g64",
    "t.f32 = s.f64", "t.f64 <=> s.g64", "t.dec = s.dec", "t.dec = s.i32", "t.dec = s.wide", "t.wide <=> s.wide",
    "t.s = s.u", "s.u <=> t.s", "t.bin = s.bin", "t.d = s.e", "t.d <=> s.d", "t.ts = s.ts", "t.ntz = s.ntz",
    "t.ts = s.ntz", "t.st.x = s.i32", "t.st.y.z = s.s", "t.i8 = s.i8 AND t.b <=> s.b", "t.i8 + 0 = s.i16 - 0",
    "t.i32 = s.i32 AND t.f64 > s.f64", "t.s = s.s AND t.i8 > 0 AND s.b", "t.s = s.s AND (t.b OR s.b2) AND TRUE",
    "t.i32 = s.i32 AND t.i32 / s.j32 > 1", "t.b = s.b AND s.i32 IN (7, NULL)", "t.s || 'x' = s.u || 'x'",
    "t.i8 % 3 = s.i8 % 3 AND t.s <> s.s", "t.b2 = s.b2 AND t.b2 = s.b AND t.d < s.e", "t.i32 = s.i32 AND NULL",
]  # fmt: skip


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> list[tuple[pa.Table, pa.Table, DataFrame, DataFrame]]:
    """Pairs of tables, and the same for Spark with the number of each row."""
    made = []
    both = [pa.concat_tables([extreme(40, seed), tame(35, seed)]) for seed in (3, 4)]
    for target, source in (both,):
        numbered = [
            spark.createDataFrame(
                side.append_column("row", pa.array(range(side.num_rows), pa.int64())),
                f"{DDL}, row BIGINT",
            )
            .coalesce(1)
            .cache()
            .alias(name)
            for name, side in (("t", target), ("s", source))
        ]
        made.append((target, source, numbered[0], numbered[1]))
    return made


def merge_of(on: str, *clauses: Text, table: Schema = SCHEMA) -> LocalMerge | None:
    return compile_merge(parse_merge(on, clauses or (Text(),), table, table))


@pytest.mark.matrix
def test_spark_joins_the_same_rows(
    frames: list[tuple[pa.Table, pa.Table, DataFrame, DataFrame]],
) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    compared: set[str] = set()
    for target, source, ours, theirs in frames:
        found: dict[str, list[tuple[int, int]]] = {}
        joins = []
        for number, on in enumerate(ON):
            merge = merge_of(on)
            assert merge is not None, on
            try:
                matches = merge.match(target, source)
                places = merge.may_match(target, merge.sought(source))
            except NeedsSpark:
                continue
            assert set(matches.target.tolist()) <= set(places.tolist()), on
            found[on] = list(zip(matches.target.tolist(), matches.source.tolist(), strict=True))
            sql = parse_merge(on, (Text(),), SCHEMA, SCHEMA).on_sql
            joined = ours.join(theirs, F.expr(sql), "inner")
            joins.append(joined.select(F.lit(number).alias("n"), "t.row", "s.row"))
        expected: dict[str, list[tuple[int, int]]] = {on: [] for on in found}
        for number, one, other in reduce(lambda a, b: a.unionAll(b), joins).collect():
            expected[ON[number]].append((one, other))
        for on, pairs in found.items():
            assert pairs == sorted(expected[on]), on
        compared |= {on for on, pairs in found.items() if pairs}
    # NULL is never true, and one divides by zero; the others have matches.
    assert set(ON) - compared == {"t.i32 = s.i32 AND NULL", "t.i32 = s.i32 AND t.i32 / s.j32 > 1"}


@pytest.mark.parametrize(
    "on",
    ["t.i32 > s.i32", "t.i32 = 7 AND s.i32 = 7", "t.i32 = t.j32", "t.i32 = s.i32 OR t.b",
     "reverse(t.s) = s.s", "t.i32 = s.i32 AND reverse(t.s) = reverse(s.s)", "t.wide = s.i32 * s.wide",
     "t.s = s.i32"],
)  # fmt: skip
def test_other_joins_are_left_to_spark(on: str) -> None:
    assert merge_of(on) is None


TABLE = Schema(
    (
        SchemaColumn("id", LONG),
        SchemaColumn("n", INTEGER),
        SchemaColumn("x", DOUBLE),
        SchemaColumn("s", STRING),
    )
)
ARROW = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("x", pa.float64()), ("s", pa.string())])


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.table([list(c) for c in zip(*rows, strict=True)], schema=ARROW)


def test_clauses_apply_in_order_and_write_whole_rows() -> None:
    merge = merge_of(
        "t.id = s.id",
        Text(where="s.s = 'D'"),
        Text(action="Update", where="s.n > t.n", set={"n": "s.n + t.n", "x": "s.n"}),
        Text("NotMatched", "Insert", "s.n > 0", {"id": "id", "s": "s || '!'"}),
        Text("NotMatched", "Insert", all=True),
        Text("NotMatchedBySource", "Update", set={"x": "NULL"}),
        table=TABLE,
    )
    assert merge is not None
    target = table((1, 1, 1.0, "a"), (2, 2, 2.0, "b"), (3, 3, 3.0, "c"), (4, 4, 4.0, "d"))
    source = table((3, 5, 0.0, "x"), (1, 9, 0.0, "D"), (2, 1, 0.0, None), (None, 7, 0.5, "y"),
                   (6, -1, 0.5, "z"))  # fmt: skip
    matches = merge.match(target, source)
    assert matches.target.tolist() == [0, 1, 2]
    pairs = merge.matched_rows(target, source, matches)
    assert merge.clause_numbers("Matched", pairs).tolist() == [0, NO_CLAUSE, 1]
    (update,) = [clause for clause in merge.clauses if clause.number == 1]
    place = np.array([2])
    written = update.written(pairs.take(place), target, matches.target[place])
    assert written.to_pylist() == [{"id": 3, "n": 8, "x": 5.0, "s": "c"}]

    alone = np.setdiff1d(np.arange(source.num_rows), matches.source)
    rows = merge.unmatched_rows(source, alone, "NotMatched")
    assert merge.clause_numbers("NotMatched", rows).tolist() == [2, 3]
    first, second = merge.when("NotMatched")
    assert first.written(rows.take([0]), target, None).to_pylist() == [
        {"id": None, "n": None, "x": None, "s": "y!"}
    ]
    assert second.written(rows.take([1]), target, None).to_pylist() == [
        {"id": 6, "n": -1, "x": 0.5, "s": "z"}
    ]

    left = np.setdiff1d(np.arange(target.num_rows), matches.target)
    stale = merge.unmatched_rows(target, left, "NotMatchedBySource")
    assert merge.clause_numbers("NotMatchedBySource", stale).tolist() == [4]
    assert merge.clauses[4].written(stale, target, left).to_pylist() == [
        {"id": 4, "n": 4, "x": None, "s": "d"}
    ]


def test_a_clause_outside_of_the_proven_part_leaves_the_merge_to_spark() -> None:
    assert merge_of("t.id = s.id", Text(where="reverse(s.s) = 'D'"), table=TABLE) is None
    set_ = {"s": "reverse(s.s)"}
    assert merge_of("t.id = s.id", Text(action="Update", set=set_), table=TABLE) is None


def test_values_that_do_not_fit_are_left_to_spark() -> None:
    merge = merge_of("t.id = s.id", Text(action="Update", set={"n": "s.id * 2"}), table=TABLE)
    assert merge is not None
    one = table((2**40, 1, 1.0, "a"))
    pairs = merge.matched_rows(one, one, merge.match(one, one))
    with pytest.raises(NeedsSpark):
        merge.clauses[0].written(pairs, one, [0])
