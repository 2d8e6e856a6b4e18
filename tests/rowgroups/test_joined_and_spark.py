"""Copied row groups and parquet-java: Spark reads those of every writer, and its own are copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from rowgroups.joining import joined
from rowgroups.writers import WRITERS, demands, footer_of, rows
from tandem.delta.datafiles import copyable
from tandem.delta.datafiles.copyable import unfit

VECTORISED = "spark.sql.parquet.enableVectorizedReader"
TIMES = "spark.sql.parquet.outputTimestampType"


@pytest.fixture(autouse=True)
def _small_row_groups_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copyable, "GROUP_ROWS", 1)


@pytest.fixture(name="session")
def _session(delta_spark: SparkSession) -> Iterator[SparkSession]:
    """The session that tests share, whose settings are as before afterwards."""
    yield delta_spark
    for name in (VECTORISED, TIMES):
        delta_spark.conf.unset(name)


def by_spark(session: SparkSession, paths: Sequence[Path], *, vectorised: bool) -> DataFrame:
    session.conf.set(VECTORISED, str(vectorised).lower())
    return session.read.parquet(*map(str, paths))


def assert_same(session: SparkSession, paths: Sequence[Path], copied: Path) -> None:
    for vectorised in (True, False):
        expected = by_spark(session, paths, vectorised=vectorised)
        found = by_spark(session, [copied], vectorised=vectorised)
        assert found.count() == expected.count()
        assert found.exceptAll(expected).isEmpty()
        wanted = expected.where("s = 'a' AND small = 127")
        assert found.where("s = 'a' AND small = 127").exceptAll(wanted).isEmpty()
        assert found.where("isnan(f) OR f > 1").count() == (
            expected.where("isnan(f) OR f > 1").count()
        )


@pytest.mark.part(6)
@pytest.mark.parametrize(
    "name",
    [
        "pyarrow version 2 pages",
        "pyarrow page indexes",
        "polars",
        "delta-rs",
        "duckdb",
        "parquet-go",
    ],
)
def test_spark_reads_copied_row_groups(name: str, tmp_path: Path, session: SparkSession) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for number, path in enumerate(paths):
        WRITERS[name](path, rows(number))
    assert_same(session, paths, tmp_path / joined(tmp_path, paths).path)


@pytest.mark.matrix
def test_row_groups_of_spark_are_copied(tmp_path: Path, session: SparkSession) -> None:
    session.conf.set(TIMES, "TIMESTAMP_MICROS")
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for number, path in enumerate(paths):
        source = tmp_path / f"source-{number}.parquet"
        pq.write_table(rows(number), source)
        frame = by_spark(session, [source], vectorised=True).coalesce(1)
        folder = tmp_path / f"spark-{number}"
        frame.write.option("compression", "zstd").parquet(str(folder))
        [written] = folder.glob("*.parquet")
        written.rename(path)
        assert unfit(footer_of(path), demands()) is None
    assert_same(session, paths, tmp_path / joined(tmp_path, paths).path)
