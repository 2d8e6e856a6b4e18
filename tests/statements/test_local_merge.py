"""Merges over Arrow: which rows match, against an obvious nested loop and against Spark's join."""

# ruff: noqa: E501  -- the conditions are easier to read in wide rows.

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statements.test_merge_statement import Text
from support.some import few
from support.statements.rows import DDL, SCHEMA
from support.statements.tables import extreme, tame
from tandem.statements.local import LocalMerge, NeedsSpark, compile_merge
from tandem.statements.local.merge import NO_CLAUSE, KeyValues, SoughtValues, equal_pairs
from tandem.statements.merge import parse_merge
from tandem.statements.types import DOUBLE, INTEGER, LONG, STRING, Schema, SchemaColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
