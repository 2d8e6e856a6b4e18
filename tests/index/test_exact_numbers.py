"""Counts and bounds equal a scan by Spark with Delta (X20, X-d), whatever wrote the table: types at
their extremes, NaN, NULL, deletion vectors, partitions, column mapping, missing statistics, time
travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_session import interpreting
from pruning.test_predicate import PRUNABLE
from support.some import some
from support.statements.rows import nasty, runtime_errors
from tandem import index
from tandem.errors import InvalidSpec, StatementFailed, UnknownSegment, UnsupportedFeature
from tandem.index import Query, answers
from tandem.index.library import condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MORE = [
    "s LIKE 'a%'", "s NOT LIKE 'a%'", "i32 IN (7, NULL)", "i32 NOT IN (7, 1)", "b OR i32 > 3",
    "i32 NOT IN (7, NULL)", "i32 BETWEEN 0 AND 8", "i32 NOT BETWEEN 0 AND 8", "b IS NULL",
    "(i32 > 3) IS NOT TRUE", "(i32 > 3) IS UNKNOWN", "NOT b AND i32 IS NULL", "b", "NOT b",
    "s IN ('abc', '10')", "s IS NOT NULL", "length(s) > 3", "i32 + 1 > 5", "TRUE", "FALSE",
    "st.x = 1", "st.x IS NULL", "f64 > 1 OR i64 = 42", "NOT (f64 > 1 OR i64 = 42)",
]  # fmt: skip
CONDITIONS = [
    *some(PRUNABLE, 7),
    *(f"NOT ({text})" for text in some(PRUNABLE[3:], 11)),
    *some(MORE, 2),
]
_ORDERED = "b i8 i16 i32 i64 f32 f64 g64 dec wide s u bin d ts ntz"
ORDERED = _ORDERED.split()


def plain(spark: SparkSession) -> DataFrame:
    frame = nasty(spark)
    return frame.select(*(name for name in frame.columns if " " not in name))


def spark_delta(spark: SparkSession, root: Path, **options: str) -> str:
    """A table of files with two rows each, of which some are then deleted by vectors."""
    properties = {"delta.enableDeletionVectors": "true", **options}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    table = f"delta.`{root}`"
    frame = plain(spark)
    columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in frame.schema)
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta TBLPROPERTIES ({listed})")
    frame.repartition(9).write.format("delta").mode("append").save(str(root))
    spark.sql(f"DELETE FROM {table} WHERE i32 = 7 OR s = '10' OR u = ''")
    return table


@pytest.fixture(scope="module")
def quick(delta_spark: SparkSession) -> SparkSession:
    return interpreting(delta_spark)


@pytest.fixture(scope="module")
def tables(quick: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exact")
    spark_delta(quick, folder / "spark")
    mapped = spark_delta(
        quick, folder / "mapped", **{"delta.columnMapping.mode": "name",
                                     "delta.dataSkippingNumIndexedCols": "12"}
    )  # fmt: skip
    quick.sql(f"ALTER TABLE {mapped} RENAME COLUMN j32 TO renamed")
    quick.sql(f"ALTER TABLE {mapped} ADD COLUMN added INT")
    spark_delta(quick, folder / "without-stats", **{"delta.dataSkippingNumIndexedCols": "0"})
    found = plain(quick).drop("arr").toArrow()
    height = found.num_rows
    for start in range(0, height, 3):
        write_deltalake(
            folder / "deltalake",
            found.take(list(range(start, min(start + 3, height)))),
            mode="append",
            partition_by=["b2"],
        )
    DeltaTable(folder / "deltalake").delete("i32 = 7")
    return {name: folder / name for name in ("spark", "mapped", "without-stats", "deltalake")}


TABLES = ("spark", "mapped", "without-stats", "deltalake")


def by_spark(spark: SparkSession, root: Path, texts: Sequence[str], version: int | None = None
             ) -> dict[str, int]:  # fmt: skip
    """Condition → rows for which Spark finds it true; without those that raise."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    frame = reader.load(str(root))
    try:
        row = frame.selectExpr(*(f"count_if({t}) AS c{n}" for n, t in enumerate(texts))).collect()[
            0
        ]
    except runtime_errors():
        if len(texts) == 1:
            return {}
        half = len(texts) // 2
        return by_spark(spark, root, texts[:half], version) | by_spark(
            spark, root, texts[half:], version
        )
    return {text: row[n] for n, text in enumerate(texts)}


@pytest.mark.part(6)
@pytest.mark.parametrize("name", TABLES)
def test_X20_Xd_counts_equal_a_scan(
    quick: SparkSession, tables: dict[str, Path], name: str
) -> None:
    root = tables[name]
    held = index.open_index(str(root))
    expected = by_spark(quick, root, CONDITIONS)
    assert len(expected) > len(CONDITIONS) * 0.8
    view = held.view()
    decided = 0
    for text, rows in expected.items():
        found = answers.certain_count(view, condition(view.head, text))
        assert found.rows <= rows, text
        try:
            assert held.count(Query(text)) == rows, text
        except StatementFailed:
            # Only Spark evaluates it: what is left open has the other rows.
            assert rows <= found.rows + int(found.rest.rows.sum()), text
        decided += len(found.rest) < len(answers.splits(view))
    assert decided > (0 if name == "without-stats" else len(expected) // 3)


@pytest.mark.part(2)
@pytest.mark.parametrize("name", TABLES)
def test_X20_every_version_has_its_own_count(
    quick: SparkSession, tables: dict[str, Path], name: str
) -> None:
    root = tables[name]
    held = index.open_index(str(root))
    for version in some(range(DeltaTable(root).version() + 1)):
        expected = by_spark(quick, root, ["TRUE", "i32 < 5"], version)
        at = {text: held.count(Query(text, version)) for text in expected}
        assert at == expected
        assert at["TRUE"] == held.count(Query(version=version))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, bytearray | bytes):
        return bytes(one) == bytes(other)
    if isinstance(one, Decimal):
        return one == Decimal(other)
    return bool(one == other)


@pytest.mark.part(9)
@pytest.mark.parametrize("where", ["", "i32 < 5", "s > 'a'", "FALSE"])
@pytest.mark.parametrize("name", TABLES)
def test_bounds_equal_a_scan(
    quick: SparkSession, tables: dict[str, Path], name: str, where: str
) -> None:
    root = tables[name]
    frame = quick.read.format("delta").load(str(root)).where(where or "TRUE")
    chosen = [
        f"{side}({column}) AS {side}_{column}" for column in ORDERED for side in ("min", "max")
    ]
    found = frame.selectExpr(*chosen).toArrow().to_pylist()[0]

    bounds = index.bounds(str(root), ORDERED, where)

    for column, (low, high) in bounds.items():
        expected = found[f"min_{column}"], found[f"max_{column}"]
        assert same(low, expected[0]), (column, low, expected)
        assert same(high, expected[1]), (column, high, expected)


@pytest.mark.part(15)
@pytest.mark.parametrize("where", ["", "i32 < 5", "s LIKE 'a%'"])
@pytest.mark.parametrize("name", TABLES)
def test_rows_equal_a_scan(
    quick: SparkSession, tables: dict[str, Path], name: str, where: str
) -> None:
    root = tables[name]
    frame = quick.read.format("delta").load(str(root)).where(where or "TRUE")
    expected = sorted(map(str, frame.select("i64", "s", "b2").toArrow().to_pylist()))
    found = index.reader(str(root), where, ["i64", "s", "b2"]).read_all()
    assert sorted(map(str, found.to_pylist())) == expected


def test_paths_are_refused_where_a_row_is_deleted(tables: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedFeature, match="which rows are deleted"):
        index.paths(str(tables["spark"]))
    with pytest.raises(UnsupportedFeature, match="other names"):
        index.paths(str(tables["mapped"]))
    found = index.paths(str(tables["deltalake"]), "i32 = 3")
    rows = [pq.read_table(tables["deltalake"] / path)["i32"].to_pylist() for path in found]
    assert found
    assert all(rows)


def test_X22_only_the_named_segments(tables: dict[str, Path]) -> None:
    root = str(tables["deltalake"])
    held = index.open_index(root)
    names = sorted(set().union(*(entries.segments_at(part.rows) for part in held.view().chosen()
                                 for entries in [part.entries])))  # fmt: skip
    counts = [held.count(Query(segments=[name])) for name in names]
    assert len(names) > 3
    assert sum(counts) == held.count()
    assert held.count(Query(segments=names[:2])) == sum(counts[:2])
    with pytest.raises(UnknownSegment, match="no such segment") as error:
        held.count(Query(segments=[names[0], "f-000000000000"]))
    assert error.value.found == "f-000000000000"


def test_an_empty_table_has_no_rows_and_no_bounds(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    write_deltalake(root, pa.table({"a": pa.array([], pa.int64())}))
    assert index.count(root) == index.count(root, "a > 1") == 0
    assert index.bounds(root, ["a"]) == {"a": (None, None)}
    assert len(index.splits(root)) == 0
    assert index.reader(root).read_all().num_rows == 0


def test_a_type_without_an_order_has_no_bounds(tables: dict[str, Path]) -> None:
    with pytest.raises(InvalidSpec, match="no order") as error:
        index.bounds(str(tables["spark"]), ["arr"])
    assert "arr" in error.value.found
