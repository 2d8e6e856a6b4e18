"""Clustered tables: Delta's `OPTIMIZE` of Spark is the judge of which files are clustered, and of
how many files a filter reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake
from support.lake.lake import reason
from support.present import present
from tandem.delta.clustering import CUBE_ID, PROVIDER

ROWS = (
    "SELECT /*+ REPARTITION(7) */ CAST(id * 7919 % 20011 AS INT) n, "
    "IF(id % 11 = 0, NULL, CONCAT('s', id * 104729 % 997)) s, "
    "DATE_ADD(DATE'1500-01-01', CAST(id * 31337 % 5003 AS INT)) d, "
    "named_struct('a', id * 15485863 % 4001, 'é-b', id % 3) x, id "
    "FROM range({}, {})"
)
CLUSTERED_BY = {
    # by which columns, and filters on them
    "one": ("n", ("n BETWEEN 3000 AND 3900", "n = 77", "n > 19000")),
    "two": ("n, s",
            ("n BETWEEN 3000 AND 3900", "s = 's500'", "s IS NULL", "n < 5000 AND s < 's3'")),
    "three": (
        "n, s, d",
        ("n < 900", "s = 's500'", "s IS NULL", "d > DATE'1513-01-01'", "n < 5000 AND s < 's3'",
         "d < DATE'1501-01-01' AND n > 15000", "d BETWEEN DATE'1502-01-01' AND DATE'1502-06-01'"),
    ),
    "nested": ("x.a, d",
               ("x.a < 200", "d > DATE'1513-01-01'", "x.a > 3000 AND d < DATE'1504-01-01'")),
    "one nested": ("x.`é-b`", ("x.`é-b` = 2",)),
}  # fmt: skip
TARGET = 24_000
"""Bytes of a file: some dozen of them."""


def made(
    spark: SparkSession, path: Path, by: str, rows: int = 20_000, **properties: str
) -> ArrowLake:
    given = {"delta.enableDeletionVectors": "true", **properties}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    columns = "n INT, s STRING, d DATE, x STRUCT<a: LONG, `é-b`: LONG>, id LONG"
    cluster = f"CLUSTER BY ({by})" if by else ""
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {cluster} "
              f"TBLPROPERTIES ({listed})")  # fmt: skip
    append(spark, path, 0, rows)
    return quick_lake.of_kind(ArrowLake, path.as_uri())


def append(spark: SparkSession, path: Path, start: int, stop: int) -> None:
    spark.sql(f"INSERT INTO delta.`{path}` {ROWS.format(start, stop)}")


def clustering(lake: ArrowLake, **more: Any) -> Any:
    spec = {"type_": "SemiMajor", "layout": {"strategy": "Clustering"}, "targetFileSize": TARGET}
    return lake.compaction(**{**spec, **more})


def optimized(spark: SparkSession, path: Path) -> tuple[int, int]:
    """Delta's OPTIMIZE: files removed and added."""
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET))
    try:
        metrics = spark.sql(f"OPTIMIZE delta.`{path}`").collect()[0]["metrics"]
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")
    return metrics["numFilesRemoved"], metrics["numFilesAdded"]


def files_read(spark: SparkSession, path: Path, filters: Sequence[str]) -> dict[str, int]:
    table = spark.read.format("delta").load(str(path))
    return {each: len(table.where(each).inputFiles()) for each in filters}


def checksum(spark: SparkSession, path: Path) -> Any:
    return spark.sql(
        f"SELECT COUNT(*), SUM(xxhash64(n, s, d, x, id) % 1000003) FROM delta.`{path}`"
    ).first()


@pytest.mark.parametrize(
    ("by", "filters"),
    [
        pytest.param(*each, id=name, marks=() if name == "two" else pytest.mark.matrix)
        for name, each in CLUSTERED_BY.items()
    ],
)
def test_files_are_clustered_as_OPTIMIZE_does_it_which_then_rewrites_none(
    delta_spark: SparkSession, tmp_path: Path, by: str, filters: Sequence[str]
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    lake = made(delta_spark, ours, by)
    made(delta_spark, theirs, by)
    before = checksum(delta_spark, ours)
    assert reason(lake.do(clustering(lake))) == "Committed"
    snapshot = lake.log.snapshot()
    adds = list(snapshot.adds())
    assert len(adds) > 5
    assert {add.extra["clusteringProvider"] for add in adds} == {PROVIDER}
    assert len({add.tags[CUBE_ID] for add in adds}) == 1
    info = present(present(lake.log.commit(snapshot.version)).info).body["operationParameters"]
    assert info["zOrderBy"] == "[]"
    assert json.loads(info["clusterBy"]) == by.split(", ")
    assert checksum(delta_spark, ours) == before
    removed, added = optimized(delta_spark, theirs)
    assert removed == 7
    assert added > 5
    read = files_read(delta_spark, ours, filters)
    of_delta = files_read(delta_spark, theirs, filters)
    # Where ours are a file more, a filter may read that one, too.
    most = sum(of_delta.values()) + max(0, len(adds) - added)
    assert sum(read.values()) <= most, (read, len(adds), of_delta, added)
    domains = snapshot.domains
    assert reason(lake.do(clustering(lake))) == "NothingToDo"
    assert optimized(delta_spark, ours) == (0, 0)
    assert lake.log.snapshot().domains == domains
    # And those of Delta are left alone by ours.
    other = quick_lake.of_kind(ArrowLake, theirs.as_uri())
    assert reason(other.do(clustering(other))) == "NothingToDo"


KINDS: dict[str, dict[str, str]] = {
    "mapped": {"delta.columnMapping.mode": "name"},
    "tracked, with a feed": {
        "delta.enableRowTracking": "true",
        "delta.enableChangeDataFeed": "true",
    },
    "without vectors": {"delta.enableDeletionVectors": "false"},
    "without statistics": {},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind == "tracked, with a feed" else pytest.mark.matrix)
        for kind in KINDS
    ],
)
def test_clusterings_of_tables_of_all_kinds(
    delta_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "t"
    lake = made(delta_spark, path, "n, s", rows=6_000, **KINDS[kind])
    table = f"delta.`{path}`"
    if kind == "mapped":
        delta_spark.sql(f"ALTER TABLE {table} RENAME COLUMN s TO `S, ß`")
        delta_spark.sql(f"ALTER TABLE {table} ADD COLUMN s STRING")
    if kind == "without statistics":
        lake.log_again(stats=None)
    delta_spark.sql(f"DELETE FROM {table} WHERE id % 50 = 0")
    ids = ", _metadata.row_id i, _metadata.row_commit_version v" if "tracked" in kind else ""
    rows = f"SELECT *{ids}"
    before = sorted(map(repr, delta_spark.sql(f"{rows} FROM {table}").collect()))
    assert reason(lake.do(clustering(lake))) == "Committed"
    assert sorted(map(repr, delta_spark.sql(f"{rows} FROM {table}").collect())) == before
    assert reason(lake.do(clustering(lake))) == "NothingToDo"
    assert optimized(delta_spark, path) == (0, 0)
    if "feed" in kind:
        append(delta_spark, path, 10_000, 10_500)
        changes = delta_spark.sql(f"SELECT * FROM table_changes('{table}', {lake.version - 1})")
        assert [row["_change_type"] for row in changes.collect()] == ["insert"] * 500
