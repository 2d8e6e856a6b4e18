"""Compactions that copy row groups: no row is lost, doubled or resurrected, and few are decoded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowgroups.writers import Write, pyarrow
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before
from support.lake.lake import batch, reconciled
from support.lake.rows import Rows
from support.parquet import go_parquet
from support.values.kinds import Filter, Kind
from support.values.readers import Deltalake, DuckDB, Polars, differences, live_files
from tandem.delta.datafiles.rowgroups import fitness, joined
from tandem.operations.machine.effects import Point
from tandem.spark.jobs.rewrite import bins

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
    monkeypatch.setattr(joined, bound, value)
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


def test_a_table_that_stops_using_deletion_vectors_is_compacted_again_without_them(
    tmp_path: Path, kept: list[int]
) -> None:
    lake = make(tmp_path)
    lake.do(lake.delete("id IN (3, 250)"))

    def disable() -> None:
        lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})

    status = lake.do(
        lake.compaction("Major"), interceptor=just_before(Point.READ_RESULT, disable)
    )  # fmt: skip
    assert kept == [2, 0]
    assert status.attempt == 2
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
