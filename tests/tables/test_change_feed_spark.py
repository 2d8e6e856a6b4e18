"""The change data feed of tables that Tandem changes, as Spark + Delta reads it (R-14): the
difference of the versions, and what Spark itself logs of the same statement. Spark makes the
tables; the jobs run without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.jobs.quick_lake import ArrowLake, of_kind
from support.lake.feed import FEED, Changes, assert_is_difference, changes_in
from support.lake.lake import DELETION_VECTORS, INSERT_ALL, Lake
from tandem.spec.resources import Operation

pytestmark = pytest.mark.matrix

NO_VECTORS = {"delta.enableDeletionVectors": "false"}
IDS = {"delta.columnMapping.mode": "id", "delta.enableRowTracking": "true"}
TABLES: dict[str, tuple[dict[str, str], str]] = {
    "vectors": (DELETION_VECTORS, ""),
    "edits": (NO_VECTORS, ""),
    "names": ({**DELETION_VECTORS, "delta.columnMapping.mode": "name"}, "PARTITIONED BY (k)"),
    "ids": ({**NO_VECTORS, **IDS}, "PARTITIONED BY (k)"),
}
NAMES = ("id", "k", "v")


@dataclass(frozen=True)
class Statement:
    of: Callable[[Lake], Operation]
    sql: str


SOURCE = "(SELECT * FROM VALUES (3L, 3L, -3L), (6L, 1L, -6L), (60L, 0L, 6L) AS s(id, k, v))"
ROWS = ((3, 3, -3), (6, 1, -6), (60, 0, 6))
STATEMENTS = (
    Statement(
        lambda lake: lake.update("k = 1", v="v + 15"), "UPDATE {} SET v = v + 15 WHERE k = 1"
    ),
    Statement(lambda lake: lake.update("id = 7", k="4"), "UPDATE {} SET k = 4 WHERE id = 7"),
    Statement(lambda lake: lake.delete("id IN (1, 2)"), "DELETE FROM {} WHERE id IN (1, 2)"),
    Statement(
        lambda lake: lake.merge(ROWS),
        f"MERGE INTO {{}} t USING {SOURCE} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *",
    ),
    Statement(
        lambda lake: lake.merge(((3, 3, 9), (80, 0, 8)), **INSERT_ALL),
        "MERGE INTO {} t USING (SELECT 3L AS id, 3L AS k, 9L AS v UNION ALL SELECT 80L, 0L, 8L) s "
        "ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
    ),
    Statement(
        lambda lake: lake.merge(
            ROWS,
            whenMatched=[{"where": "t.k = 1", "delete": {}}, {"update": {"set": {"v": "t.v - 1"}}}],
            whenNotMatchedBySource=[{"where": "t.id > 17", "update": {"set": {"v": "0"}}}],
        ),
        f"MERGE INTO {{}} t USING {SOURCE} s ON t.id = s.id "
        "WHEN MATCHED AND t.k = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = t.v - 1 "
        "WHEN NOT MATCHED BY SOURCE AND t.id > 17 THEN UPDATE SET v = 0",
    ),
    # Whole files, some of which have rows that were deleted before.
    Statement(lambda lake: lake.delete("id < 10"), "DELETE FROM {} WHERE id < 10"),
)


def by_spark(spark: SparkSession, path: Path, version: int) -> Changes:
    options: dict[str, str | int] = {
        "readChangeFeed": "true",
        "startingVersion": version,
        "endingVersion": version,
    }
    found = spark.read.format("delta").options(**options).load(str(path))
    return changes_in(found.select(*NAMES, "_change_type").toArrow(), NAMES)


@pytest.mark.parametrize("table", TABLES)
def test_spark_reads_the_same_changes_of_our_statements_as_of_its_own(
    delta_spark: SparkSession, tmp_path: Path, table: str
) -> None:
    properties, partitions = TABLES[table]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    texts = ", ".join(f"'{k}' = '{v}'" for k, v in {**FEED, **properties}.items())
    delta_spark.sql(
        f"CREATE TABLE delta.`{ours}` (id LONG, k LONG, v LONG) USING delta {partitions} "
        f"TBLPROPERTIES ({texts})"
    )
    for first in (0, 10):
        delta_spark.range(first, first + 10, 1, 1).selectExpr(
            "id", "id % 5 AS k", "id * 100 AS v"
        ).coalesce(1).write.format("delta").mode("append").save(str(ours))
    shutil.copytree(ours, theirs)
    lake = of_kind(ArrowLake, ours.as_uri(), tmp_path / "sources")
    for each in STATEMENTS:
        lake.do(each.of(lake))
        found = by_spark(delta_spark, ours, lake.version)
        assert_is_difference(lake, lake.version, found)
        delta_spark.sql(each.sql.format(f"delta.`{theirs}`"))
        other = of_kind(ArrowLake, theirs.as_uri(), tmp_path / "sources")
        assert found == by_spark(delta_spark, theirs, other.version), each.sql
    lake.do(lake.compaction("Major"))
    lake.do(lake.update("k = 2", v="v + 1"))
    assert_is_difference(lake, lake.version, by_spark(delta_spark, ours, lake.version))
    lake.assert_clean()
