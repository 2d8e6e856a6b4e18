"""Timestamps at the ends of their range, as Spark writes them by default (INT96), through every
operation: Spark reads the same microseconds before and after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.lake.lake import Lake
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import Reason
from tandem.spec.resources import Operation
from tandem.spec.status import Phase
from tandem.storage import open_store

MICROS = (
    0,
    2**63 - 1,  # "infinity"
    -(2**63),
    -210_866_803_200_000_001,  # before Julian day 0, in its last and in an earlier day
    -210_866_889_600_000_001,
    9_012_505_233_654_775_808,  # the first whose Julian day Spark wraps
    -62_135_596_800_000_001,
    253_402_300_800_000_000,
)
SELECT = """SELECT id, timestamp_micros(v) t, named_struct('x', timestamp_micros(v)) s,
    array(timestamp_micros(v), NULL) l, map('a', timestamp_micros(v)) m, 0 n FROM VALUES {} w(id, v)
"""
READ = "SELECT id, unix_micros(t), unix_micros(s.x), unix_micros(l[0]), unix_micros(m['a']) FROM {}"


def _rows(first: int) -> str:
    shown = [str(v) if v > -(2**63) else "-9223372036854775807 - 1" for v in MICROS]
    return SELECT.format(", ".join(f"({first + i}, {v})" for i, v in enumerate(shown)))


def _lake(spark: SparkSession, path: Path) -> Lake:
    location = path.as_uri()
    lake = Lake(location, spark, path.with_name("sources"), open_store(location))
    lake.first_version = lake.version
    return lake


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two files, and a Parquet source beside it."""
    folder = tmp_path_factory.mktemp("times")
    table = f"delta.`{folder / 'table'}`"
    delta_spark.sql(
        f"CREATE TABLE {table} USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') AS " + _rows(0)
    ).collect()
    delta_spark.sql(f"INSERT INTO {table} {_rows(10)}")
    for name, first in (("new", 20), ("changes", 10)):
        delta_spark.sql(_rows(first)).coalesce(1).write.parquet(str(folder / name))
    return folder


OPERATIONS: dict[str, Callable[[Lake, Path], Operation]] = {
    "bin-pack": lambda lake, _: lake.compaction("Major"),
    "sort": lambda lake, _: lake.compaction(
        "Major", layout={"strategy": "Sort", "columns": ["t", "id"]}
    ),
    "z-order": lambda lake, _: lake.compaction(
        "Major", layout={"strategy": "ZOrder", "columns": ["t", "id"]}
    ),
    "update of another column": lambda lake, _: lake.update("id >= 0", n="n + 1"),
    "merge": lambda lake, made: lake.merge(made / "changes"),
    "ingest": lambda lake, made: lake.resource(
        "TableIngest", {"source": {"format": "Parquet", "location": (made / "new").as_uri()}}
    ),
}


@pytest.mark.matrix
def test_every_operation_keeps_extreme_times(
    made: Path, spark: SparkSession, delta_spark: SparkSession
) -> None:
    lake = _lake(spark, made / "table")
    ids = [first + i for first in (0, 10) for i in range(len(MICROS))]
    for name, make in OPERATIONS.items():
        lake.do(make(lake, made))
        if name == "ingest":
            ids += range(20, 20 + len(MICROS))
        found = sorted(delta_spark.sql(READ.format(lake.sql_name)).collect())
        assert [tuple(row) for row in found] == [(i, *[MICROS[i % 10]] * 4) for i in sorted(ids)], (
            name
        )
    assert lake.do(lake.delete("t < timestamp'0001-01-01' AND id % 10 = 6")).phase
    assert delta_spark.sql(f"SELECT count(*) FROM {lake.sql_name}").first() == (len(ids) - 3,)


def test_files_of_the_hybrid_calendar_are_refused_by_name(
    spark: SparkSession, delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Spark rebases what it wrote so; nothing of ours takes it for something else."""
    table = f"delta.`{tmp_path / 'table'}`"
    modes = [f"spark.sql.parquet.{kind}RebaseModeInWrite" for kind in ("int96", "datetime")]
    try:
        for mode in modes:
            delta_spark.conf.set(mode, "LEGACY")
        delta_spark.sql(
            f"CREATE TABLE {table} USING delta TBLPROPERTIES "
            "('delta.enableDeletionVectors' = 'true') AS SELECT 1 id, 1 n, "
            "date'1500-01-01' d, timestamp'1500-01-01' t"
        ).collect()
    finally:
        for mode in modes:
            delta_spark.conf.unset(mode)
    lake = _lake(spark, tmp_path / "table")
    files = list(lake.log.snapshot().adds())
    done = lake.run(lake.update("id = 1", n="n + 1"))
    assert done.phase is Phase.FAILED
    text = json.dumps(done.model_dump(mode="json"))
    assert Reason.UNSUPPORTED_FEATURE.value in text
    assert ".parquet.d: a data file holds a date or time of the Julian calendar" in text
    assert list(lake.log.snapshot().adds()) == files


def test_statistics_in_columns_of_a_checkpoint_keep_or_leave_them(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Bounds that only `stats_parsed` has are INT96, too: moments, which have a zone."""
    table = f"delta.`{tmp_path / 'table'}`"
    delta_spark.sql(
        f"CREATE TABLE {table} (id INT, t TIMESTAMP) USING delta TBLPROPERTIES ("
        "'delta.checkpoint.writeStatsAsJson' = 'false', "
        "'delta.checkpoint.writeStatsAsStruct' = 'true', 'delta.checkpointInterval' = '2')"
    )
    for moment in ("timestamp'1500-01-01 00:00:00.5'", f"timestamp_micros({2**63 - 1})"):
        delta_spark.sql(f"INSERT INTO {table} SELECT 1, {moment}")
    assert list((tmp_path / "table" / "_delta_log").glob("*2.checkpoint*parquet"))
    snapshot = DeltaLog(open_store((tmp_path / "table").as_uri())).snapshot()
    found = [json.loads(add.stats or "{}")["minValues"].get("t") for add in snapshot.adds()]
    assert sorted(found) == ["+294247-01-10T04:00:54.775000Z", "1500-01-01T00:00:00.500Z"]
