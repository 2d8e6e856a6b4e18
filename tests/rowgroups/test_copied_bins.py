"""Compactions that copy row groups: no row is lost, doubled or resurrected, and few are decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowgroups.writers import Write, pyarrow
from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake, just_before
from support.lake import rows as model
from support.lake.lake import batch, reconciled
from support.lake.rows import Row, Rows
from support.parquet import go_parquet
from support.values.kinds import Filter, Kind
from support.values.readers import Deltalake, DuckDB, Polars, differences, live_files
from tandem.delta.datafiles import copyable as fitness
from tandem.delta.datafiles import joined_files
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.spark.in_process import InProcessJobs
from tandem.spark.jobs import bins
from tandem.spec.status import Phase
from tandem.text import counted

SIZE = 100
LOADS = 4


@pytest.fixture(autouse=True)
def _row_groups_of_a_hundred_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "GROUP_ROWS", SIZE)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of inputs that were copied with their deleted rows, by bin that copied."""
    found: list[int] = []
    copy = bins._copied

    def spy(*args: object) -> bins.BinResult:
        result = copy(*args)  # type: ignore[arg-type]
        found.append(len(result.kept))
        return result

    monkeypatch.setattr(bins, "_copied", spy)
    return found


def make(folder: Path) -> QuickLake:
    """Files of our own, whose codec need not be changed."""
    lake = quick_lake.make(folder, 0)
    lake.load(*(batch(number, SIZE) for number in range(LOADS)))
    return lake


def without(*ids: int) -> Rows:
    rows = (row for number in range(LOADS) for row in batch(number, SIZE))
    return tuple(row for row in rows if row[0] not in ids)


def test_row_groups_are_copied_in_order(tmp_path: Path, kept: list[int]) -> None:
    lake = make(tmp_path)
    lake.do(lake.compaction("Major"))
    assert kept == [0]
    [add] = lake.log.snapshot().adds()
    metadata = pq.read_metadata(lake.path / add.path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == (
        [SIZE] * LOADS
    )
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    lake.assert_rows(without())
    lake.assert_clean()


@pytest.mark.parametrize(
    ("bound", "value", "files"),
    [
        ("MOST_GROUPS", 2, 2),
        ("MOST_FOOTER", 1, 4),
        # Three columns: a row group has so many fields, or a few more.
        ("MOST_KEPT", 3 * 20, 2),
        ("MOST_KEPT", 3 * 10, 4),
    ],
)
def test_a_footer_that_is_full_ends_its_file(
    tmp_path: Path, kept: list[int], bound: str, value: int, files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(joined_files, bound, value)
    lake = make(tmp_path)
    lake.do(lake.compaction("Major"))
    assert kept == [0]
    footers = [pq.read_metadata(lake.path / add.path) for add in lake.log.snapshot().adds()]
    assert [each.num_row_groups for each in footers] == [LOADS // files] * files
    lake.assert_rows(without())
    lake.assert_clean()


def test_deleted_rows_are_copied_and_stay_deleted(tmp_path: Path, kept: list[int]) -> None:
    lake = make(tmp_path)
    gone = [3, 250, 399]
    lake.do(lake.delete(f"id IN ({', '.join(map(str, gone))})"))
    status = lake.do(lake.compaction("Major"))
    assert kept == [3]
    assert list(lake.deleted().values()) == [3]
    assert reconciled(status).deletes_remapped == 0
    assert not reconciled(status).by_segment
    lake.assert_rows(without(*gone))
    lake.assert_clean()


def test_rows_deleted_meanwhile_join_those_deleted_before(
    tmp_path: Path, kept: list[int]
) -> None:  # fmt: skip
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))

    def meanwhile() -> None:
        lake.do(lake.delete("id IN (4, 150, 399)"))

    status = lake.do(
        lake.compaction("Major"), interceptor=just_before(Point.READ_RESULT, meanwhile)
    )
    assert kept == [2]
    assert reconciled(status).deletes_remapped == 3
    assert sum((reconciled(status).by_segment or {}).values()) == 3
    lake.assert_rows(without(3, 4, 150, 250, 399))
    lake.assert_clean()


def test_a_restore_meanwhile_brings_copied_rows_back(tmp_path: Path, kept: list[int]) -> None:
    lake = make(tmp_path)
    before = lake.version
    lake.do(lake.delete("id IN (3, 250)"))
    status = lake.do(
        lake.compaction("Major"),
        interceptor=just_before(Point.READ_RESULT, lambda: lake.foreign().restore(before)),
    )
    assert kept == [2]
    assert status.result
    lake.assert_rows(without())


def test_inputs_that_are_replaced_meanwhile_are_masked_with_what_they_kept(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))
    status = lake.do(
        lake.compaction("Major"),
        interceptor=just_before(Point.READ_RESULT, lambda: lake.foreign().delete("id < 100")),
    )
    assert kept == [2]
    assert reconciled(status).rows_masked == SIZE - 1
    lake.assert_rows(tuple(r for r in without(250) if r[0] >= SIZE))
    lake.assert_clean()


def test_a_table_that_stops_using_deletion_vectors_gets_an_output_without_the_rows_it_copied(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))

    def disable() -> None:
        lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})

    status = lake.do(
        lake.compaction("Major"), interceptor=just_before(Point.READ_RESULT, disable)
    )  # fmt: skip
    assert kept == [2]
    assert status.attempt == 1
    assert lake.deleted() == {}
    lake.assert_rows(without(3, 250))


def test_a_table_that_stopped_using_deletion_vectors_gets_files_without_deleted_rows(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))
    lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    lake.do(lake.compaction("Major"))
    assert kept == [0]
    assert lake.deleted() == {}
    lake.assert_rows(without(3, 250))
    lake.assert_clean()


def test_files_with_many_deleted_rows_are_encoded_among_copied_ones(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id >= 110 AND id < 120"))
    lake.do(lake.compaction("Major"))
    lake.assert_rows(without(*range(110, 120)))
    assert lake.deleted() == {}
    lake.assert_clean()
    assert kept in ([], [0])


def test_small_files_are_encoded_together_between_large_ones(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = quick_lake.make(tmp_path, 0)  # zstd: what our own ingests write
    sizes = [SIZE, 10, 10, SIZE, 10]
    rows = []
    for number, size in enumerate(sizes):
        lake.load(batch(number, SIZE)[:size])
        rows += list(batch(number, SIZE)[:size])
    lake.do(lake.delete("id IN (3, 201)"))
    lake.do(lake.compaction("Major"))
    assert kept == [1]
    [add] = lake.log.snapshot().adds()
    metadata = pq.read_metadata(lake.path / add.path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [
        SIZE, 19, SIZE, 10,
    ]  # fmt: skip
    lake.assert_rows(tuple(row for row in rows if row[0] not in (3, 201)))
    lake.assert_clean()


def foreign(lake: QuickLake, name: str, of: Rows, group: int, **stats: object) -> None:
    """A file of another writer, of row groups of so many rows, with the columns of the table."""
    path = lake.path / name
    pyarrow(row_group_size=group)(path, model.table(of))
    add = {"path": name, "size": path.stat().st_size, "partitionValues": {}, "modificationTime": 1}
    lake.log_raw({"add": {**add, "dataChange": True, **stats}})


def groups_of(lake: QuickLake) -> list[int]:
    """The rows of each row group of the only live file."""
    [add] = lake.log.snapshot().adds()
    metadata = pq.read_metadata(lake.path / add.path)
    return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


def ids_of(lake: QuickLake) -> list[int]:
    """The ids of the only live file, in its order."""
    [add] = lake.log.snapshot().adds()
    ids: list[int] = pq.read_table(lake.path / add.path, columns=["id"])["id"].to_pylist()
    return ids


SIZES = (SIZE, 10, 15, SIZE, 12)


@pytest.mark.parametrize(
    ("least", "groups", "encoded"),
    [
        (None, [100, 25, 100, 12], 3),
        (0, list(SIZES), 0),
        (10, list(SIZES), 0),
        (11, [100, 10, 15, 100, 12], 1),
        (13, [100, 10, 15, 100, 12], 2),
        (SIZE, [100, 25, 100, 12], 3),
        (SIZE + 1, [237], 5),
        (2**31 - 1, [237], 5),
    ],
)
def test_a_compaction_says_from_how_many_rows_row_groups_are_copied(
    tmp_path: Path, kept: list[int], least: int | None, groups: list[int], encoded: int
) -> None:
    lake = quick_lake.make(tmp_path, 0)
    parts = [batch(number, SIZE)[:size] for number, size in enumerate(SIZES)]
    lake.load(*parts)
    given = {} if least is None else {"minRowGroupRows": least}
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    status = lake.run(lake.compaction("Major", **given), ports=ports)
    assert status.phase is Phase.SUCCEEDED
    assert groups_of(lake) == groups
    copied = len(SIZES) - encoded
    assert kept == ([0] if copied else [])
    said = f"the row groups of {copied} files (0 MiB), where they fit"
    if encoded:
        said += f"; encodes {counted(encoded, 'file')} with small row groups"
    assert status.plan
    assert status.plan.copies == (said if copied else None)
    assert ids_of(lake) == [row[0] for part in parts for row in part]
    lake.assert_rows(tuple(row for part in parts for row in part))
    lake.assert_clean()


@pytest.mark.parametrize(
    ("least", "groups"),
    [(None, [100, 120, 100]), (10, [100, *[10] * 12, 100]), (11, [100, 120, 100])],
)
def test_a_large_file_of_small_row_groups_is_encoded_between_copied_ones(
    tmp_path: Path, kept: list[int], least: int | None, groups: list[int]
) -> None:
    """The log shows its rows, only its footer that they are in small row groups."""
    lake = quick_lake.make(tmp_path, 0)
    expected: list[Row] = []
    for number, (size, group) in enumerate(((SIZE, SIZE), (120, 10), (SIZE, SIZE))):
        part = batch(number, 200)[:size]
        foreign(lake, f"{number}.parquet", part, group, stats=json.dumps({"numRecords": size}))
        expected += part
    given = {} if least is None else {"minRowGroupRows": least}
    status = lake.do(lake.compaction("Major", **given))
    assert kept == [0]
    assert groups_of(lake) == groups
    assert ids_of(lake) == [row[0] for row in expected]
    assert status.plan
    assert status.plan.copies == "the row groups of 3 files (0 MiB), where they fit"
    lake.assert_rows(tuple(expected))


@pytest.mark.parametrize(("least", "copies"), [(0, True), (10, True), (11, False)])
def test_a_plan_knows_the_rows_that_the_log_does_not_record(
    tmp_path: Path, kept: list[int], least: int, copies: bool
) -> None:
    lake = quick_lake.make(tmp_path, 0)
    for number in range(3):
        foreign(lake, f"{number}.parquet", batch(number), 10)
    status = lake.do(lake.compaction("Major", minRowGroupRows=least))
    assert kept == ([0] if copies else [])
    assert groups_of(lake) == ([10] * 3 if copies else [30])
    assert status.plan
    assert bool(status.plan.copies) is copies
    lake.assert_rows(tuple(row for number in range(3) for row in batch(number)))


def test_a_file_without_rows_is_copied_as_nothing(tmp_path: Path, kept: list[int]) -> None:
    lake = quick_lake.make(tmp_path, 0)
    for number, part in enumerate((batch(0), (), batch(1))):
        stats = json.dumps({"numRecords": len(part)})
        foreign(lake, f"{number}.parquet", part, 10, stats=stats)
    lake.do(lake.compaction("Major", minRowGroupRows=0))
    assert kept == [0]
    assert groups_of(lake) == [10, 10]
    lake.assert_rows((*batch(0), *batch(1)))
    lake.assert_clean()


def test_the_number_of_rows_is_no_part_of_a_job_that_reorders_rows(tmp_path: Path) -> None:
    """Drivers of earlier versions know no such field."""
    lake = make(tmp_path)
    layout = {"strategy": "Sort", "columns": ["id"]}
    specs: list[dict[str, Any]] = [{"layout": layout}, {}]
    jobs = QuickJobs()
    for number, more in enumerate(specs):
        lake.load(batch(LOADS + number, SIZE))
        operation = lake.compaction("Major", minRowGroupRows=7, **more)
        lake.run(operation, ports=lake.ports(jobs=jobs))
    found = [json.loads(lake.store.get(each.spec_path))["job"] for each in jobs.started]
    assert [each.get("minRowGroupRows") for each in found] == [None, 7]
    assert "minRowGroupRows" not in found[0]


def by_parquet_go(path: Path, table: pa.Table) -> None:
    go_parquet.write(path, table, page_bytes=500, bloom=["f"])


@pytest.mark.parametrize(
    "write", [pyarrow(write_page_index=True, data_page_size=500), by_parquet_go], ids=["pa", "go"]
)
def test_no_page_and_no_filter_of_a_copied_row_group_hides_nan_or_a_zero(
    tmp_path: Path, kept: list[int], write: Write
) -> None:
    """deltalake skips pages by their bounds, in which writers hide NaN, and row groups by filters,
    in which each zero is a value of its own."""
    values = pa.array([1.5, float("nan"), *[1.0] * 200, -0.0, None])
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    lake = quick_lake.make(tmp_path, 0, schema=schema)
    for number in range(2):
        path = lake.path / f"{number}.parquet"
        ids = range(number * len(values), (number + 1) * len(values))
        write(path, pa.table([ids, values], schema=schema))
        size = path.stat().st_size
        add = {"path": path.name, "size": size, "partitionValues": {}, "modificationTime": 1}
        lake.log_raw({"add": {**add, "dataChange": True}})
    lake.do(lake.compaction("Major"))
    assert kept == [0]
    [copied] = live_files(lake.path)
    kind = Kind("f", pa.float64(), 1.0, ())
    asked = [Filter(kind, ">", 100.0), Filter(kind, "=", float("nan")), Filter(kind, "=", 0.0)]
    for reader in (Deltalake(), DuckDB(), Polars()):
        truth = reader.evaluated(lake.path, asked)
        assert [len(ids) for ids in truth] == [2, 2, 2]
        assert differences(reader, truth, reader.found(lake.path, asked), asked) == []
    chunk = pq.read_metadata(copied).row_group(0).column(1)
    assert not chunk.has_column_index
    assert chunk.bloom_filter_offset is None


def test_an_update_meanwhile_follows_its_rows_into_copied_ones(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))
    update = lake.update("id IN (4, 251)", v="-1")

    def meanwhile() -> None:
        lake.do(lake.compaction("Major"))

    lake.do(update, interceptor=just_before(Point.RECONCILE, meanwhile))
    assert kept == [2]
    expected = [(i, k, -1 if i in (4, 251) else v) for i, k, v in without(3, 250)]
    lake.assert_rows(tuple(expected))
    lake.assert_clean()


def test_a_plan_says_what_is_copied_and_why_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(tmp_path)
    lake.load(batch(LOADS, SIZE)[:5])
    lake.do(lake.delete("id >= 110 AND id < 120"))
    status = lake.do(lake.compaction("Major"))
    assert status.plan
    assert status.plan.copies == (
        "the row groups of 3 files (0 MiB), where they fit; "
        "encodes 1 file with many deleted rows, 1 file with small row groups"
    )
    monkeypatch.setattr(fitness, "GROUP_ROWS", 1 << 40)
    lake.load(batch(LOADS + 1, SIZE))
    status = lake.do(lake.compaction("Major"))
    assert status.plan
    assert status.plan.copies is None
