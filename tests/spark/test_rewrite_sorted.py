"""The rewrite job with a layout, in its tasks and across them: every row kept and mapped,
and where the layout wants it."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.jobs import job_files as jobs
from support.sort_order import sort_key
from tandem.jobs.formats import JobBin, JobLayout, RewriteJob
from tandem.jobs.results import JobProgress, OutputFile
from tandem.rowmap.binary_format import from_bytes
from tandem.rowmap.rowmap import RowMap
from tandem.spark.jobs import rewrite
from tandem.spark.jobs.bins import MEMORY
from tandem.spark.runtime.control import Control, answer

DV_ON = {"delta.enableDeletionVectors": "true"}
ATTEMPTS = itertools.count(1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rows(start: int, count: int) -> pa.Table:
    """A column of each kind, in no order, some of them null."""
    chance = random.Random(start)

    def some(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    ids = range(start, start + count)
    numbers = [chance.randrange(1000) for _ in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([some(f"n{n % 7}é") for n in numbers], pa.string()),
            "price": pa.array([some(Decimal(n) - 500) for n in numbers], pa.decimal128(38, 2)),
            "day": pa.array([some(START.date() + dt.timedelta(n % 30)) for n in numbers]),
            "at": pa.array(
                [some(START + dt.timedelta(seconds=n)) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "share": pa.array([some(math.nan if n % 9 == 0 else n / 7) for n in numbers]),
            "raw": pa.array([some(bytes([n % 256, 1])) for n in numbers], pa.binary()),
            "yes": pa.array([some(n % 2 == 0) for n in numbers], pa.bool_()),
            "tags": pa.array([[{"k": n, "v": None}] if n % 3 else None for n in numbers]),
        }
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, delta_spark: SparkSession) -> Path:
    """Four files of 500 rows; every third row of the first three is deleted by Spark."""
    path = tmp_path_factory.mktemp("sorted") / "t"
    for start in range(0, 2000, 500):
        write_deltalake(str(path), rows(start, 500), mode="append", configuration=DV_ON)
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 3 = 0 AND id < 1500")
    return path


def layout(strategy: Literal["Sort", "ZOrder"], *columns: str) -> JobLayout:
    return JobLayout(strategy=strategy, columns=columns)


def a_job(path: Path, order: JobLayout, parts: int = 4) -> Control:
    """All of a table: one bin for each partition, of so many parts in all."""
    store, snapshot = jobs.snapshot_of(path)
    inputs = jobs.input_files(store, snapshot)
    partitions: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for number, input_ in enumerate(inputs):
        key = tuple(sorted(input_.partition_values.items()))
        partitions.setdefault(key, []).append(number)
    job = RewriteJob(
        inputs=inputs,
        bins=tuple(
            JobBin(inputs=tuple(members), partition_values=dict(key), run=run)
            for run, (key, members) in enumerate(partitions.items())
        ),
        target_file_size=sum(i.size for i in inputs) * 5 // 6 // parts if parts else 0,
        layout=order,
    )
    return jobs.control(store, snapshot, job, next(ATTEMPTS))


TINY = 200_000
"""Bytes that make each bin a large one, and cut its parts."""


@pytest.fixture(params=[TINY, MEMORY], ids=["across tasks", "in tasks"])
def memory(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def do(
    job: Control, spark: SparkSession, memory: int = TINY
) -> tuple[tuple[OutputFile, ...], RowMap]:
    """Run it; what comes out is whole, by the slow way: row by row."""
    assert answer(lambda c: rewrite.run(c, spark.sparkContext, memory=memory), job) == 0
    found = jobs.result(job)
    assert found.row_map is not None
    row_map = from_bytes(jobs.side_file(job, found.row_map))
    assert set(row_map.output_paths) == {o.path for o in found.outputs}
    job_ = job.spec.job
    assert isinstance(job_, RewriteJob)
    values = {i.logged_path: i.partition_values for i in job_.inputs}
    source = {p: content(job, p, dict(v)) for p, v in values.items()}
    written = {o.path: content(job, o.path, o.partition_values) for o in found.outputs}
    expected = 0
    for file in row_map.inputs:
        outputs, places = row_map.locate(file.path, np.arange(file.rows))
        for position, (output, place) in enumerate(zip(outputs, places, strict=True)):
            assert (output < 0) == (position in file.dead)
            if output >= 0:
                there = written[row_map.outputs[output].path][place]
                assert there == source[file.path][position]
                expected += 1
    assert sum(map(len, written.values())) == expected == found.rows_read == found.rows_written
    return found.outputs, row_map


def content(job: Control, path: str, values: dict[str, str | None]) -> list[str]:
    """Rows as text: NaN is equal to itself there."""
    return [str(row) for row in jobs.read_output(job, path, values).to_pylist()]


def column(job: Control, output: OutputFile, name: str) -> list[Any]:
    found: list[Any] = jobs.read_output(job, output.path, output.partition_values)[name].to_pylist()
    return found


@pytest.mark.part(9)
@pytest.mark.parametrize(
    "columns", [("name", "price"), ("share",), ("yes", "day", "at"), ("raw", "id")]
)
def test_sort_orders_rows_within_and_across_files(
    table: Path, spark: SparkSession, columns: tuple[str, ...], memory: int
) -> None:
    job = a_job(table, layout("Sort", *columns))
    outputs, _ = do(job, spark, memory)
    assert len(outputs) == 4
    sizes = [o.rows for o in outputs]
    assert max(sizes) - min(sizes) <= 1, "the sample was the whole table"
    keys = [
        tuple(map(sort_key, values))
        for output in outputs
        for values in zip(*(column(job, output, name) for name in columns), strict=True)
    ]
    assert keys == sorted(keys)


def touched(job: Control, outputs: tuple[OutputFile, ...], name: str) -> int:
    """Files that have to be read for one value, summed up over all values."""
    found = 0
    for output in outputs:
        known = [v for v in column(job, output, name) if v is not None]
        found += len({v for v in range(1000) if min(known) <= v <= max(known)})
    return found


@pytest.mark.matrix
def test_z_order_clusters_every_column_and_sort_only_the_first(
    tmp_path: Path, spark: SparkSession, memory: int
) -> None:
    chance = random.Random(7)
    path = tmp_path / "t"
    for start in range(0, 4000, 1000):
        numbers = [(chance.randrange(1000), chance.randrange(1000)) for _ in range(1000)]
        content_ = {"id": range(start, start + 1000), "x": [x for x, _ in numbers]}
        write_deltalake(
            str(path), pa.table({**content_, "y": [y for _, y in numbers]}), mode="append"
        )
    read: dict[str, tuple[int, int]] = {}
    for order in (layout("Sort", "x"), layout("ZOrder", "x", "y")):
        job = a_job(path, order, parts=13)
        outputs, _ = do(job, spark, memory)
        assert len(outputs) == 16
        read[order.strategy] = (touched(job, outputs, "x"), touched(job, outputs, "y"))
    # Of 16 files × 1,000 values: a sort touches 1 or 2 files by x and all by y; a z-order 4 of
    # each, and more where a file lies in two of its squares.
    assert read["Sort"][0] < 1200
    assert read["Sort"][1] > 15000
    assert max(read["ZOrder"]) < 8000


@pytest.mark.part(4)
@pytest.mark.parametrize(
    "columns", [("name", "price", "at"), ("share", "day"), ("raw", "yes"), ("price",)]
)
def test_z_order_takes_every_type_and_nulls(
    table: Path, spark: SparkSession, columns: tuple[str, ...]
) -> None:
    outputs, _ = do(a_job(table, layout("ZOrder", *columns)), spark)
    assert len(outputs) == 4


@pytest.mark.matrix
def test_bins_of_partitions_stay_apart_and_keep_their_values_as_logged(
    tmp_path: Path, spark: SparkSession, delta_spark: SparkSession, memory: int
) -> None:
    path = tmp_path / "t"
    for start in (0, 300):
        part = rows(start, 300).append_column(
            "p", pa.array([["a/b", None, "é 1"][i % 3] for i in range(300)])
        )
        write_deltalake(str(path), part, mode="append", partition_by=["p"], configuration=DV_ON)
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE p = 'é 1'")
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE p IS NULL AND id < 100")
    job = a_job(path, layout("Sort", "name"), parts=6)
    outputs, _ = do(job, spark, memory)
    assert {o.partition_values["p"] for o in outputs} == {"a/b", None}
    assert {(o.run, o.partition_values["p"]) for o in outputs} == {
        (bin_.run, bin_.partition_values["p"])
        for bin_ in job.spec.job.bins  # type: ignore[union-attr]
        if bin_.partition_values["p"] != "é 1"
    }
    for run in {o.run for o in outputs}:
        names = [sort_key(n) for o in outputs if o.run == run for n in column(job, o, "name")]
        assert names == sorted(names)


@pytest.mark.matrix
def test_column_mapping_and_one_file_per_bin(
    tmp_path: Path, spark: SparkSession, delta_spark: SparkSession, memory: int
) -> None:
    path = tmp_path / "t"
    delta_spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, `a name` STRING) USING delta TBLPROPERTIES"
        "('delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='true')"
    )
    delta_spark.sql(f"INSERT INTO delta.`{path}` SELECT id, cast(id % 7 AS STRING) FROM range(100)")
    delta_spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN `a name` TO `b name`")
    delta_spark.sql(f"INSERT INTO delta.`{path}` SELECT id, cast(id % 5 AS STRING) FROM range(100)")
    job = a_job(path, layout("Sort", "b name", "id"), parts=0)
    [output], _ = do(job, spark, memory)
    assert column(job, output, "b name") == sorted(column(job, output, "b name"))


@pytest.mark.parametrize(
    "order",
    [layout("Sort", "share", "name"), layout("ZOrder", "name", "price", "at")],
    ids=["Sort", "ZOrder"],
)
def test_large_bins_and_small_ones_have_the_same_files(
    table: Path, spark: SparkSession, order: JobLayout
) -> None:
    """Where the sample is the whole table, as for so few rows."""
    written = []
    for memory in (TINY, MEMORY):
        job = a_job(table, order)
        outputs, _ = do(job, spark, memory)
        written.append([content(job, o.path, o.partition_values) for o in outputs])
    assert len(written[0]) == 4
    assert written[0] == written[1]


def test_only_bins_that_do_not_fit_into_a_task_are_large(
    tmp_path: Path, spark: SparkSession
) -> None:
    path = tmp_path / "t"
    for start in (0, 300):
        for p, count in (("small", 10), ("large", 300)):
            part = rows(start, count).append_column("p", pa.array([p] * count))
            write_deltalake(str(path), part, mode="append", partition_by=["p"])
    job = a_job(path, layout("Sort", "name"), parts=0)
    job_ = job.spec.job
    assert isinstance(job_, RewriteJob)
    # That they take so much shows in the log already; how much they take in memory does not.
    sizes = [i.size if i.rows == 10 else MEMORY for i in job_.inputs]
    inputs = [i.model_copy(update={"size": n}) for i, n in zip(job_.inputs, sizes, strict=True)]
    changed = job_.model_copy(update={"inputs": tuple(inputs)})
    job = jobs.control(job.store, jobs.snapshot_of(path)[1], changed, next(ATTEMPTS))
    outputs, row_map = do(job, spark, MEMORY)
    assert {(o.run, o.partition_values["p"], o.rows) for o in outputs} == {
        (run, bin_.partition_values["p"], 20 if bin_.partition_values["p"] == "small" else 600)
        for run, bin_ in enumerate(job_.bins)
    }
    for output in outputs:
        names = [sort_key(n) for n in column(job, output, "name")]
        assert names == sorted(names)
    assert len(row_map.sorted_groups) == 2


def test_an_input_of_deleted_rows_leaves_no_output(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), rows(0, 50), configuration=DV_ON)
    job = a_job(path, layout("ZOrder", "name", "id"))
    [input_] = jobs.input_files(job.store, jobs.snapshot_of(path)[1])
    from tandem.delta.dv import to_base64

    gone = input_.model_copy(update={"dv": to_base64(BitMap64(range(50)))})
    spec = job.spec.job.model_copy(update={"inputs": (gone,)})
    job = jobs.control(job.store, jobs.snapshot_of(path)[1], spec, next(ATTEMPTS))
    outputs, row_map = do(job, spark)
    assert outputs == ()
    assert row_map.inputs[0].path == input_.logged_path


def test_a_second_driver_writes_the_same_rows_and_loses(table: Path, spark: SparkSession) -> None:
    job = a_job(table, layout("ZOrder", "name", "at"))
    do(job, spark)
    first = job.store.get(job.round_path(0, "result.json"))
    before = {m.path for m in job.store.list(job.spec.data_prefix)}
    do(job, spark)
    assert job.store.get(job.round_path(0, "result.json")) == first
    after = {m.path for m in job.store.list(job.spec.data_prefix)} - before
    assert sorted(str(jobs.read_output(job, p, {}).to_pylist()) for p in before) == sorted(
        str(jobs.read_output(job, p, {}).to_pylist()) for p in after
    )
    shown = JobProgress.model_validate_json(job.store.get(job.path("progress.json")))
    assert shown.stage == "Sorting"
    assert shown.files_done == shown.files_total == 4
    assert DeltaTable(str(table)).version() == 4
