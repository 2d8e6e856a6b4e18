"""Bins sorted in memory: every row kept, mapped, and where Python's own sort has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyroaring import BitMap64

from spark.sorted_tables import (
    ATTEMPTS,
    FILES,
    ROWS,
    a_job,
    content,
    inputs_of,
    rows,
    some_dead,
)
from support.jobs import job_files as jobs
from support.sort_order import sort_key
from tandem.errors import CountMismatch
from tandem.jobs.formats import RewriteJob
from tandem.jobs.results import JobProgress, OutputFile
from tandem.rowmap.binary_format import from_bytes
from tandem.rowmap.rowmap import RowMap
from tandem.spark.jobs import rewrite, sorted_bins
from tandem.spark.jobs.bins import BinResult, BinTooLarge
from tandem.spark.jobs.sorted_bins import WRITING, sort_bin
from tandem.spark.runtime.control import Control


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sorted") / "t"
    for start in range(0, FILES * ROWS, ROWS):
        write_deltalake(str(path), rows(start, ROWS), mode="append")
    return path


def do(job: Control) -> tuple[tuple[OutputFile, ...], RowMap]:
    """Run it; every live row has a place, and is there."""
    assert rewrite.run_here(job)
    found = jobs.result(job)
    assert found.row_map is not None
    row_map = from_bytes(jobs.side_file(job, found.row_map))
    written = {o.path: content(job, o.path, o.partition_values) for o in found.outputs}
    live = 0
    for input_ in inputs_of(job):
        before = content(job, input_.logged_path, input_.partition_values)
        outputs, places = row_map.locate(input_.logged_path, np.arange(input_.rows))
        for row, output, place in zip(before, outputs, places, strict=True):
            if output >= 0:
                assert written[row_map.outputs[output].path][place] == row
                live += 1
    expected = sum(map(sorted_bins.live_rows, inputs_of(job)))
    assert live == expected == found.rows_read == found.rows_written
    assert live == sum(map(len, written.values()))
    return found.outputs, row_map


def modelled(job: Control, columns: Sequence[str], dead: Sequence[BitMap64]) -> list[str]:
    """The live rows as Python sorts them: stably, so that equal ones keep their order."""
    found = [
        row
        for input_, gone in zip(inputs_of(job), dead, strict=True)
        for place, row in enumerate(
            jobs.read_output(job, input_.logged_path, input_.partition_values).to_pylist()
        )
        if place not in gone
    ]
    return [
        str(r) for r in sorted(found, key=lambda row: [sort_key(row[name]) for name in columns])
    ]


@pytest.mark.part(3)
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    "columns",
    [
        ("name",),
        ("other",),
        ("share", "price"),
        ("sum", "yes"),
        ("yes", "day", "at"),
        ("raw", "name"),
        ("void", "day"),
    ],
    ids=",".join,
)
def test_rows_are_where_pythons_sort_has_them(
    table: Path, columns: tuple[str, ...], parts: int
) -> None:
    dead = some_dead()
    job = a_job(table, "Sort", columns, parts=parts, dead=dead)
    outputs, _ = do(job)
    written = [row for o in outputs for row in content(job, o.path, o.partition_values)]
    assert written == modelled(job, columns, dead)
    sizes = [o.rows for o in outputs]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("columns", [("name", "price", "share"), ("raw", "yes"), ("day", "void")])
def test_a_z_order_keeps_every_row(table: Path, columns: tuple[str, ...]) -> None:
    outputs, _ = do(a_job(table, "ZOrder", columns, parts=4, dead=some_dead()))
    assert len(outputs) == 4


def test_a_z_order_by_one_column_is_a_sort(table: Path) -> None:
    job = a_job(table, "ZOrder", ["price"])
    [output], _ = do(job)
    written = content(job, output.path, {})
    assert written == modelled(job, ["price"], [BitMap64()] * FILES)


def test_a_second_driver_writes_the_same_rows_and_loses(table: Path) -> None:
    job = a_job(table, "ZOrder", ["name", "at"], parts=3)
    first, _ = do(job)
    before = {m.path for m in job.store.list(job.spec.data_prefix)}
    assert rewrite.run_here(job)
    assert jobs.result(job).outputs == first
    after = {m.path for m in job.store.list(job.spec.data_prefix)} - before
    assert sorted(str(content(job, p, {})) for p in before) == sorted(
        str(content(job, p, {})) for p in after
    )
    shown = JobProgress.model_validate_json(job.store.get(job.path("progress.json")))
    assert (shown.stage, shown.files_done, shown.files_total) == ("Sorting", FILES, FILES)


def test_bins_of_partitions_stay_apart(tmp_path: Path) -> None:
    for start in (0, 60):
        part = rows(start, 60).append_column(
            "p", pa.array([["a/b", None, "é 1"][i % 3] for i in range(60)])
        )
        write_deltalake(str(tmp_path), part, mode="append", partition_by=["p"])
    job = a_job(tmp_path, "Sort", ["name"])
    outputs, _ = do(job)
    assert isinstance(job.spec.job, RewriteJob)
    assert {(o.run, o.partition_values["p"]) for o in outputs} == {
        (bin_.run, bin_.partition_values["p"]) for bin_ in job.spec.job.bins
    }
    for output in outputs:
        names = jobs.read_output(job, output.path, output.partition_values)["name"].to_pylist()
        assert len(names) == 40
        assert list(map(sort_key, names)) == sorted(map(sort_key, names))


def test_files_of_which_only_some_have_dictionaries(tmp_path: Path) -> None:
    """And one that is older than a column."""
    write_deltalake(str(tmp_path), pa.table({"id": range(100)}))
    names = [f"name {(n * 7) % 10}" for n in range(100)]
    for _ in range(2):
        new = pa.table({"id": range(100), "name": names, "way": names})
        write_deltalake(str(tmp_path), new, mode="append", schema_mode="merge")
    plain = jobs.input_files(*jobs.snapshot_of(tmp_path))[-1].logged_path
    columns = pq.read_table(tmp_path / plain)
    pq.write_table(columns, tmp_path / plain, use_dictionary=False)
    job = a_job(tmp_path, "Sort", ["name", "id"])
    [output], _ = do(job)
    assert content(job, output.path, {}) == modelled(job, ["name", "id"], [BitMap64()] * 3)


def test_bounds_are_those_of_a_files_own_rows(tmp_path: Path) -> None:
    """Not those of the dictionary of all rows."""
    for start in range(2):
        names = [f"n{(n * 7 + start) % 90:02}" for n in range(900)]
        write_deltalake(str(tmp_path), pa.table({"name": names}), mode="append")
    outputs, _ = do(a_job(tmp_path, "Sort", ["name"], parts=3))
    bounds = [
        (found["minValues"]["name"], found["maxValues"]["name"])
        for found in (json.loads(output.stats) for output in outputs)
    ]
    assert bounds == [("n00", "n29"), ("n30", "n59"), ("n60", "n89")]


def test_an_input_of_deleted_rows_leaves_no_output(table: Path) -> None:
    everything = [BitMap64(range(ROWS))] * FILES
    outputs, row_map = do(a_job(table, "ZOrder", ["name", "id"], dead=everything))
    assert outputs == ()
    assert len(row_map.inputs) == FILES


def tried(job: Control, memory: int) -> BinResult | BinTooLarge:
    before = list(job.store.list(job.spec.data_prefix))
    found = sort_bin(job.store, job.spec, 0, memory)
    if isinstance(found, BinTooLarge):
        assert list(job.store.list(job.spec.data_prefix)) == before
    return found


def test_a_bin_that_takes_too_much_memory_is_left(table: Path) -> None:
    job = a_job(table, "Sort", ["name"])
    assert isinstance(tried(job, 0), BinTooLarge)
    size = sum(input_.size for input_ in inputs_of(job))
    assert isinstance(tried(job, WRITING + size - 1), BinTooLarge)
    assert isinstance(tried(job, WRITING + (4 << 20)), BinResult)
    assert not rewrite.run_here(job, memory=0)
    assert not list(job.store.list(job.path("rounds/0/result")))


def test_rows_that_turn_out_to_take_too_much_memory_are_left(tmp_path: Path) -> None:
    """Their files are small: each has a long text once."""
    for _ in range(2):
        write_deltalake(str(tmp_path), pa.table({"name": ["x" * 100_000] * 400}), mode="append")
    job = a_job(tmp_path, "Sort", ["name"])
    assert sum(input_.size for input_ in inputs_of(job)) < 1 << 20
    assert isinstance(tried(job, WRITING + (4 << 20)), BinTooLarge)


def test_a_failed_write_leaves_no_file(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(table, "Sort", ["name"])
    taken = sorted_bins._taken
    calls: list[int] = []

    def failing(columns: dict[str, Any], places: Any) -> pa.RecordBatch:
        calls.append(len(places))
        if len(calls) == 3:
            raise MemoryError
        return taken(columns, places)

    monkeypatch.setattr(sorted_bins, "_taken", failing)
    monkeypatch.setattr(sorted_bins, "_BATCH_BYTES", 1 << 10)
    with pytest.raises(MemoryError):
        rewrite.run_here(job)
    assert len(calls) == 3
    assert list(job.store.list(job.spec.data_prefix)) == []


def test_a_file_with_another_number_of_rows_than_logged_is_refused(table: Path) -> None:
    job = a_job(table, "Sort", ["name"])
    assert isinstance(job.spec.job, RewriteJob)
    wrong = tuple(i.model_copy(update={"rows": i.rows + 1}) for i in inputs_of(job))
    changed = job.spec.job.model_copy(update={"inputs": wrong})
    job = jobs.control(job.store, jobs.snapshot_of(table)[1], changed, next(ATTEMPTS))
    with pytest.raises(CountMismatch, match="differs from the log"):
        rewrite.run_here(job)
