"""Bins that are divided by time: every row that is taken is kept, in order, and mapped exactly.

Without Spark: `rewrite_bin` is what a task runs.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from support.jobs import job_files as jobs
from tandem.delta import dv
from tandem.jobs.formats import IngestJob, JobBin, RewriteJob, TimeBorders
from tandem.rowmap.binary_format import from_bytes, to_bytes
from tandem.spark.jobs.bins import rewrite_bin, row_map_of
from tandem.spark.runtime.row_files import RowFiles, RowsWork
from tandem.spec.fields import Granularity
from tandem.timeline.chunks import chunk_of

START = dt.datetime(1969, 12, 30, 12, tzinfo=dt.UTC)
"""Before 1970, where microseconds are negative."""
DAYS = TimeBorders(column="at", granularity=Granularity.DAY)
TYPES = {
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
Rows = dict[int, dt.datetime | None]
"""Id → time."""


def rows(seed: int, count: int = 300) -> Rows:
    chance = random.Random(seed)
    return {
        seed * count + n: None
        if chance.random() < 0.05
        else START + dt.timedelta(minutes=chance.randrange(6 * 24 * 60))
        for n in range(count)
    }


def stored(time: dt.datetime | None, type_: str) -> Any:
    if time is None:
        return None
    return {"date": time.date(), "timestamp": time, "timestamp_ntz": time.replace(tzinfo=None)}[
        type_
    ]


def in_utc(value: Any) -> dt.datetime | None:
    if value is None:
        return None
    if not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time())
    found: dt.datetime = value
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def made(path: Path, type_: str) -> Path:
    for seed in range(3):
        found = rows(seed)
        table = pa.table(
            {
                "id": pa.array(found, pa.int64()),
                "name": pa.array([f"n{n % 5}" for n in found]),
                "at": pa.array([stored(time, type_) for time in found.values()], TYPES[type_]),
            }
        )
        write_deltalake(str(path), table, mode="append")
    assert len(DeltaTable(str(path)).file_uris()) == 3
    return path


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("cuts", [True, False])
def test_I57_rows_that_are_taken_are_kept_in_order_and_mapped(
    tmp_path: Path, type_: str, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small row groups, and a target of one byte: several files for each day.
    monkeypatch.setattr("tandem.delta.datafiles.writer.GROUP_ROWS", 40)
    store, snapshot = jobs.snapshot_of(made(tmp_path / "t", type_))
    dead = BitMap64(range(0, 300, 3))
    inputs = tuple(
        file.model_copy(update={"dv": dv.to_base64(dead)}) if n else file
        for n, file in enumerate(jobs.input_files(store, snapshot))
    )
    low, high = dt.datetime(1969, 12, 31, tzinfo=dt.UTC), dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    take = ((int(low.timestamp() * 1000), int(high.timestamp() * 1000)),)
    job = RewriteJob(
        inputs=inputs,
        bins=(JobBin(inputs=(0, 1, 2)),),
        target_file_size=1,
        borders=DAYS,
        take=take if cuts else None,
    )
    control = jobs.control(store, snapshot, job)
    # As a driver reads it.
    assert type(control.spec).model_validate_json(control.spec.model_dump_json(by_alias=True)) == (
        control.spec
    )
    found = rewrite_bin(store, control.spec, 0)
    row_map = row_map_of(control.spec, job, found)
    assert from_bytes(to_bytes(row_map)) == row_map
    content = {file.logged_path: jobs.read_output(control, file.logged_path, {}) for file in inputs}
    wanted: dict[object, list[int]] = defaultdict(list)
    for file in inputs:
        table = content[file.logged_path]
        taken = BitMap64()
        for position, (id_, at) in enumerate(
            zip(table["id"].to_pylist(), map(in_utc, table["at"].to_pylist()), strict=True)
        ):
            if file.dv and position in dead:
                continue
            if cuts and (at is None or not low <= at < high):
                continue
            taken.add(position)
            wanted[at and at.date()].append(id_)
        assert row_map.input(file.logged_path).dead == BitMap64(range(file.rows)) - taken
    written: dict[object, list[int]] = defaultdict(list)
    for each in found.files:
        table = jobs.read_output(control, each.path, {})
        ids, times = table["id"].to_pylist(), [in_utc(at) for at in table["at"].to_pylist()]
        [chunk] = {None if at is None else chunk_of(at, Granularity.DAY) for at in times}
        date = times[0] and times[0].date()
        assert chunk is None or date == _date_of(chunk.start_ms)
        written[date] += ids
        for position, id_ in enumerate(ids):
            [(path, origin)] = row_map.backward(each.path, BitMap64([position])).items()
            assert [content[path]["id"][p].as_py() for p in origin] == [id_]
    assert written == wanted
    assert len(found.files) > len(written)


def _date_of(ms: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=ms // 86_400_000)


def test_a_bin_of_which_nothing_is_taken_leaves_no_file(tmp_path: Path) -> None:
    store, snapshot = jobs.snapshot_of(made(tmp_path / "t", "timestamp"))
    inputs = jobs.input_files(store, snapshot)
    job = RewriteJob(
        inputs=inputs,
        bins=(JobBin(inputs=(0, 1, 2)),),
        target_file_size=1,
        borders=DAYS,
        take=((0, 1),),
    )
    control = jobs.control(store, snapshot, job)
    found = rewrite_bin(store, control.spec, 0)
    row_map = row_map_of(control.spec, job, found)
    assert (found.files, row_map.outputs) == ((), ())
    assert [file.live for file in row_map.inputs] == [0, 0, 0]


def test_jobs_without_borders_are_written_as_before() -> None:
    """Earlier drivers know no such fields."""
    job = RewriteJob(inputs=(), bins=(), target_file_size=1)
    rewrites = job.model_dump(by_alias=True)
    assert not {"borders", "take", "reencode", "minRowGroupRows"} & rewrites.keys()
    assert "min_row_group_rows" not in job.model_dump()
    assert RewriteJob.model_validate(rewrites) == job
    copying = job.model_copy(update={"min_row_group_rows": 0})
    assert copying.model_dump(by_alias=True) == {**rewrites, "minRowGroupRows": 0}
    assert RewriteJob.model_validate_json(copying.model_dump_json(by_alias=True)) == copying
    ingest = IngestJob(source_format="Csv", source_location="s3://a/b", target_file_size=1)
    assert "borders" not in ingest.model_dump(by_alias=True)


def test_rows_of_a_load_are_divided_within_partitions(tmp_path: Path) -> None:
    found = rows(0)
    table = pa.table(
        {
            "id": pa.array(found, pa.int64()),
            "name": pa.array([f"n{n % 2}" for n in found]),
            "at": pa.array(list(found.values()), TYPES["timestamp"]),
        }
    )
    write_deltalake(str(tmp_path / "t"), table, partition_by=["name"])
    store, snapshot = jobs.snapshot_of(tmp_path / "t")
    job = IngestJob(source_format="Csv", source_location="s3://a/b", target_file_size=1 << 20)
    control = jobs.control(store, snapshot, job)
    work = RowsWork(table=control.spec.table, data_prefix="new", borders=DAYS)
    written = RowFiles(store, work, tuple(table.schema.names)).write_all(
        table.to_batches(max_chunksize=50)
    )
    wanted: dict[tuple[str, object], set[int]] = defaultdict(set)
    for id_, at in found.items():
        wanted[f"n{id_ % 2}", at and at.date()].add(id_)
    seen = {}
    for file in written.files:
        content = jobs.read_output(control, file.path, file.partition_values)
        [name] = set(content["name"].to_pylist())
        [date] = {at and at.date() for at in map(in_utc, content["at"].to_pylist())}
        seen[name, date] = set(content["id"].to_pylist())
    assert seen == wanted
    assert not written.together
