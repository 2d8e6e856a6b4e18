"""The ingest job: sources of every format end as rows of the table's schema, or as an error."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from support import jobfiles as jobs
from tandem.errors import Reason
from tandem.spark import ingest
from tandem.spark.control import Control, answer
from tandem.spark.job import IngestJob

SOURCE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["it's", None, "c,d"]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("late", pa.int32())])
    write_deltalake(str(tmp_path / "t"), schema.empty_table())
    return tmp_path / "t"


def job_for(table: Path, form: str, source: Path, options: dict[str, str] | None = None) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    job = IngestJob(
        source_format=form,
        source_location=f"file://{source}",
        source_options=options or {},
        target_file_size=1 << 30,
    )
    return jobs.control(store, snapshot, job)


def written(job: Control) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for output in jobs.result(job).outputs:
        found += jobs.read_output(job, output.path, output.partition_values).to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


EXPECTED = [{**row, "late": None} for row in SOURCE.to_pylist()]


def test_parquet(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    pq.write_table(SOURCE, tmp_path / "s.parquet")
    job = job_for(table, "Parquet", tmp_path / "s.parquet")
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED
    assert jobs.result(job).rows_written == 3


def test_csv_with_a_header(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "s 1.csv"
    source.write_text('name,id\nit\'s,1\n,2\n"c,d",3\n')
    job = job_for(table, "Csv", source, {"header": "true"})
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


def test_json(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "s.json"
    source.write_text('{"id":1,"name":"it\'s"}\n{"id":2}\n{"id":3,"name":"c,d"}\n')
    job = job_for(table, "Json", source)
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


def test_delta_with_deletion_vectors(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "d"
    more = pa.table({"id": pa.array([9], pa.int64()), "name": ["gone"]})
    write_deltalake(
        str(source),
        pa.concat_tables([SOURCE, more]),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    spark.sql(f"DELETE FROM delta.`{source}` WHERE id = 9")
    assert DeltaTable(str(source)).version() == 1
    job = job_for(table, "Delta", source)
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


def test_a_column_that_the_table_lacks_is_named(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    pq.write_table(SOURCE.append_column("surplus", pa.array([1, 2, 3])), tmp_path / "s.parquet")
    job = job_for(table, "Parquet", tmp_path / "s.parquet")
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    assert jobs.failure(job).reason == Reason.INVALID_SPEC
    assert "surplus" in jobs.failure(job).message


def test_a_value_that_does_not_fit_is_an_error(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "s.csv"
    source.write_text("id,name\none,x\n")
    job = job_for(table, "Csv", source, {"header": "true"})
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    assert jobs.failure(job).reason == Reason.STATEMENT_FAILED
    assert "CAST_INVALID_INPUT" in jobs.failure(job).message
