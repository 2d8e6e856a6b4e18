"""What Spark with Delta does to a base table, and what the merged view is then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mergelog.lake import table
from mergelog.statements import Effect, Restores, Stage
from support.some import some
from tandem.errors import InvalidSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Statement = Callable[["SparkSession", Stage], object]
PROPERTIES = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
ROW = "SELECT CAST(1 AS BIGINT) AS k, 'n' AS v, 'x' AS p"


def sql(text: str) -> Statement:
    """`{t}` is the table."""
    return lambda spark, stage: spark.sql(text.format(t=f"delta.`{stage.path}`"))


def overwrite(**options: str) -> Statement:
    def run(spark: SparkSession, stage: Stage) -> None:
        writer = spark.sql(ROW).write.format("delta").mode("overwrite")
        writer.options(**options).save(str(stage.path))

    return run


def save_as_table(spark: SparkSession, stage: Stage) -> None:
    spark.sql(ROW).write.format("delta").mode("overwrite").saveAsTable(f"delta.`{stage.path}`")


def restore_by_time(spark: SparkSession, stage: Stage) -> None:
    moment = datetime.fromtimestamp(stage.time_of(0) / 1000 + 0.005, UTC)
    sql(f"RESTORE {{t}} TO TIMESTAMP AS OF '{moment:%Y-%m-%d %H:%M:%S.%f}'")(spark, stage)


def complete_stream(spark: SparkSession, stage: Stage) -> None:
    source = stage.path.parent / "source"
    spark.sql(ROW).write.parquet(str(source))
    rows: DataFrame = spark.readStream.schema("k bigint, v string, p string").parquet(str(source))
    counted = rows.groupBy("k").agg({"v": "max", "p": "max"}).toDF("k", "v", "p")
    writer = counted.writeStream.format("delta").outputMode("complete")
    writer = writer.option("checkpointLocation", str(stage.path.parent / "checkpoint"))
    writer.trigger(availableNow=True).start(str(stage.path)).awaitTermination()


UNDER: dict[str, Statement] = {
    "insert": sql("INSERT INTO {t} VALUES (7, 'n', 'x')"),
    "update": sql("UPDATE {t} SET v = 'u' WHERE k >= 3"),
    "delete with a condition": sql("DELETE FROM {t} WHERE k = 4"),
    "delete of every row by a condition": sql("DELETE FROM {t} WHERE k > 0"),
    "merge": sql(
        f"MERGE INTO {{t}} AS t USING ({ROW}) AS s ON t.k = s.k + 3 "
        "WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT *"
    ),
    "replaceWhere": overwrite(replaceWhere="k = 1"),
    "optimize": sql("OPTIMIZE {t}"),
}
UNDER_PARTITIONED: dict[str, Statement] = {
    "dynamic overwrite": overwrite(partitionOverwriteMode="dynamic"),
    "insert overwrite of a partition": sql(
        "INSERT OVERWRITE {t} PARTITION (p = 'x') SELECT CAST(1 AS BIGINT), 'n'"
    ),
}
VOID: dict[str, Statement] = {
    "overwrite": overwrite(),
    "overwriteSchema": overwrite(overwriteSchema="true"),
    "dynamic overwrite without partitions": overwrite(partitionOverwriteMode="dynamic"),
    "insert overwrite": sql(f"INSERT OVERWRITE {{t}} {ROW}"),
    "truncate": sql("TRUNCATE TABLE {t}"),
    "delete": sql("DELETE FROM {t}"),
    "delete where true": sql("DELETE FROM {t} WHERE true"),
    "replace table as select": sql(f"REPLACE TABLE {{t}} USING delta {PROPERTIES} AS {ROW}"),
    "replace with partitions": sql(
        f"REPLACE TABLE {{t}} USING delta PARTITIONED BY (k) {PROPERTIES} AS {ROW}"
    ),
    "saveAsTable": save_as_table,
    "complete stream": complete_stream,
}


@pytest.mark.part(3)
@pytest.mark.parametrize("name", some([*UNDER]))
def test_statements_take_effect_under_the_log(
    delta_spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stage = Stage.at(tmp_path / "t")
    stage.check(lambda stage: UNDER[name](delta_spark, stage), Effect.UNDER)


@pytest.mark.matrix
@pytest.mark.parametrize("name", some([*UNDER_PARTITIONED], every=2))
def test_overwritten_partitions_take_effect_under_the_log(
    delta_spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stage = Stage.at(tmp_path / "t", partitioned=True)
    stage.check(lambda stage: UNDER_PARTITIONED[name](delta_spark, stage), Effect.UNDER)


@pytest.mark.matrix
@pytest.mark.parametrize("name", some([*VOID], every=4))
def test_replacing_everything_voids_the_records_before(
    delta_spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stage = Stage.at(tmp_path / "t")
    stage.check(lambda stage: VOID[name](delta_spark, stage), Effect.VOID)


@pytest.mark.matrix
def test_a_restore_by_time_gives_the_view_of_its_version(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage.at(tmp_path / "t")
    stage.check(lambda stage: restore_by_time(delta_spark, stage), Restores(0))


@pytest.mark.matrix
def test_a_restore_after_a_replacement_gives_the_view_of_its_version(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """The log had other partitions between: blocks are read as they were written."""

    def statements(stage: Stage) -> None:
        VOID["replace with partitions"](delta_spark, stage)
        stage.merged.append(table((8, "H", "y")))
        sql("RESTORE {t} TO VERSION AS OF 1")(delta_spark, stage)

    Stage.at(tmp_path / "t").check(statements, Restores(1))


@pytest.mark.matrix
def test_a_vacuum_without_retention_spares_the_log(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage.at(tmp_path / "t")
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    delta_spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    stage.check(lambda stage: sql("VACUUM {t} RETAIN 0 HOURS")(delta_spark, stage), Effect.UNDER)


@pytest.mark.matrix
def test_records_follow_the_columns_of_a_mapped_table(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Column mapping is enabled under the log; then columns are renamed and dropped."""
    stage = Stage.at(tmp_path / "t")
    merged = stage.merged
    for statement in (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} RENAME COLUMN v TO `v w`",
        "ALTER TABLE {t} DROP COLUMN p",
    ):
        sql(statement)(delta_spark, stage)
    expected = [row[:2] for row in stage.before[1]]
    assert merged.rows() == expected
    merged.append(pa.table({"k": [6], "v w": ["F"]}))
    assert merged.rows() == [*expected, (6, "F")]
    assert merged.view().column_names == ["k", "v w"]
    assert merged.rows(1) == stage.before[1]
    assert "columnMapping" in merged.log.snapshot().protocol.reader_features
    version = merged.log.base.latest_version()
    sql("ALTER TABLE {t} RENAME COLUMN k TO key")(delta_spark, stage)
    with pytest.raises(InvalidSpec, match=r"k: .*found: no such column; k is key;"):
        merged.rows()
    with pytest.raises(InvalidSpec, match=r"mergeOnRead\.keys: .*found: k;"):
        merged.append(pa.table({"key": [7]}))
    sql("ALTER TABLE {t} RENAME COLUMN key TO k")(delta_spark, stage)
    assert merged.rows() == [*expected, (6, "F")]
    # Another column under the same name, whose physical name Spark chooses.
    sql("ALTER TABLE {t} DROP COLUMN k")(delta_spark, stage)
    sql("ALTER TABLE {t} ADD COLUMN k BIGINT FIRST")(delta_spark, stage)
    for refused in (merged.rows, lambda: merged.append(pa.table({"k": [7]}))):
        with pytest.raises(InvalidSpec, match=r"found: physical name col-.*; k was dropped;"):
            refused()
    sql(f"RESTORE {{t}} TO VERSION AS OF {version}")(delta_spark, stage)
    assert merged.rows() == [*expected, (6, "F")]
