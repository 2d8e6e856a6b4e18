"""The rewrite job on tables that `deltalake` writes: rows kept, in order, and mapped exactly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.jobs import job_files as jobs
from tandem.errors import CountMismatch, DataFileMissing
from tandem.jobs.formats import JobBin, RewriteJob
from tandem.rowmap.binary_format import from_bytes
from tandem.spark.jobs import rewrite
from tandem.spark.jobs.bins import after_live, bin_row_map, rewrite_bin
from tandem.spark.runtime.control import Control, answer

DV_ON = {"delta.enableDeletionVectors": "true"}


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"n{i % 7}" if i % 5 else None for i in ids], pa.string()),
            "tags": pa.array([[f"t{i}", None] if i % 3 else None for i in ids]),
        }
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, delta_spark: SparkSession) -> Path:
    """Four files of 500 rows; every third row of all but the last is deleted by Spark."""
    path = tmp_path_factory.mktemp("rewrite") / "t"
    for start in range(0, 2000, 500):
        write_deltalake(str(path), rows(start, 500), mode="append", configuration=DV_ON)
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 3 = 0 AND id < 1500")
    return path


@pytest.fixture
def table(template: Path, tmp_path: Path) -> Path:
    """A copy of the template."""
    return shutil.copytree(template, tmp_path / "t")


def compaction(table: Path, target: int = 1 << 30, bins: int = 1, attempt: int = 1) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    inputs = jobs.input_files(store, snapshot)
    share = len(inputs) // bins
    chosen = tuple(
        JobBin(inputs=tuple(range(i * share, (i + 1) * share)), run=i) for i in range(bins)
    )
    job = RewriteJob(inputs=inputs, bins=chosen, target_file_size=target)
    return jobs.control(store, snapshot, job, attempt)


def output_ids(job: Control) -> dict[str, list[int]]:
    return {
        o.path: jobs.read_output(job, o.path, o.partition_values)["id"].to_pylist()
        for o in jobs.result(job).outputs
    }


def live_ids(table: Path) -> list[int]:
    found = pa.RecordBatchReader.from_stream(DeltaTable(str(table)).scan()).read_all()
    return sorted(found["id"].to_pylist())


@pytest.mark.parametrize("bins", [1, 2])
def test_live_rows_are_kept_and_every_row_is_mapped(
    table: Path, spark: SparkSession, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row groups of 100 rows and a target of one byte: several outputs, cut inside of inputs.
    monkeypatch.setattr("tandem.delta.datafiles.writer.GROUP_ROWS", 100)
    job = compaction(table, target=1, bins=bins)
    inputs = jobs.input_files(job.store, jobs.snapshot_of(table)[1])
    source = {
        i.logged_path: jobs.read_output(job, i.logged_path, {})["id"].to_pylist() for i in inputs
    }
    for index in range(bins):
        # In this process, so that the small row groups above count.
        found = rewrite_bin(job.store, job.spec, index)
        assert isinstance(job.spec.job, RewriteJob)
        assert len(found.files) > 1
        built = bin_row_map(job.spec, job.spec.job, job.spec.job.bins[index], found.files)
        for file in found.files:
            ids = jobs.read_output(job, file.path, {})["id"].to_pylist()
            for position, id_ in enumerate(ids):
                [(path, origin)] = built.backward(file.path, BitMap64([position])).items()
                assert [source[path][p] for p in origin] == [id_]


def test_a_job_publishes_outputs_and_a_whole_row_map(table: Path, spark: SparkSession) -> None:
    job = compaction(table, bins=2)
    assert answer(lambda c: rewrite.run(c, spark.sparkContext), job) == 0
    result = jobs.result(job)
    assert sorted(id_ for ids in output_ids(job).values() for id_ in ids) == live_ids(table)
    assert [o.run for o in result.outputs] == [0, 1]
    assert result.rows_read == result.rows_written == len(live_ids(table))
    assert result.row_map is not None
    mapped = from_bytes(jobs.side_file(job, result.row_map))
    assert set(mapped.output_paths) == {o.path for o in result.outputs}


@pytest.mark.parametrize(
    ("least", "groups"), [(None, [1000]), (0, [500, 500]), (500, [500, 500]), (501, [1000])]
)
def test_tasks_copy_row_groups_of_as_many_rows_as_the_job_says(
    tmp_path: Path, spark: SparkSession, least: int | None, groups: list[int]
) -> None:
    path = tmp_path / "t"
    for start in (0, 500):
        write_deltalake(
            str(path),
            rows(start, 500).select(["id", "name"]),
            mode="append",
            writer_properties=WriterProperties(compression="ZSTD"),
        )
    store, snapshot = jobs.snapshot_of(path)
    job = RewriteJob(
        inputs=jobs.input_files(store, snapshot),
        bins=(JobBin(inputs=(0, 1)),),
        target_file_size=1 << 30,
        min_row_group_rows=least,
    )
    opened = jobs.control(store, snapshot, job)
    assert answer(lambda c: rewrite.run(c, spark.sparkContext), opened) == 0
    [output] = jobs.result(opened).outputs
    metadata = pq.read_metadata(path / output.path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == groups
    assert sorted(output_ids(opened)[output.path]) == list(range(1000))


def test_a_second_driver_changes_nothing(table: Path, spark: SparkSession) -> None:
    job = compaction(table)
    for _ in range(2):
        assert answer(lambda c: rewrite.run(c, spark.sparkContext), job) == 0
        first = job.store.get(job.round_path(0, "result.json"))
    assert job.store.get(job.round_path(0, "result.json")) == first
    listed = {o.path for o in jobs.result(job).outputs}
    written = {m.path for m in job.store.list(job.spec.data_prefix)}
    assert listed < written, "the second driver wrote under other names"
    assert sorted(id_ for ids in output_ids(job).values() for id_ in ids) == live_ids(table)


def test_a_listed_file_that_is_absent_is_named(table: Path, spark: SparkSession) -> None:
    job = compaction(table)
    gone = jobs.input_files(job.store, jobs.snapshot_of(table)[1])[1].logged_path
    job.store.delete([gone])
    assert answer(lambda c: rewrite.run(c, spark.sparkContext), job) == 1
    failure = jobs.failure(job)
    assert failure.reason == DataFileMissing.reason
    assert gone in failure.message
    assert not list(job.store.list(job.spec.data_prefix)), "what was begun was discarded"


def test_a_row_count_that_differs_from_the_plan_publishes_nothing(
    table: Path, spark: SparkSession
) -> None:
    store, snapshot = jobs.snapshot_of(table)
    inputs = jobs.input_files(store, snapshot)
    wrong = inputs[0].model_copy(update={"rows": inputs[0].rows + 1})
    job = jobs.control(
        store,
        snapshot,
        RewriteJob(inputs=(wrong,), bins=(JobBin(inputs=(0,)),), target_file_size=1 << 30),
    )
    assert answer(lambda c: rewrite.run(c, spark.sparkContext), job) == 1
    assert jobs.failure(job).reason == CountMismatch.reason


@pytest.mark.parametrize("seed", range(20))
def test_after_live_counts_live_rows(seed: int) -> None:
    dead = BitMap64(p for p in range(200) if (p * (seed + 3)) % 7 < seed % 7)
    live = [p for p in range(30, 200) if p not in dead]
    for count in range(1, len(live) + 1):
        assert after_live(dead, 30, count) == live[count - 1] + 1
