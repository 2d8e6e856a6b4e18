"""Numbers and segments on real tables: what `deltalake` does to the log must not lose them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tandem.delta.log.delta_log import DeltaLog
from tandem.storage.local import LocalStore
from tandem.timeline.names import HIGH_WATER_APP, SegmentNumbers
from tandem.timeline.segments import read_live_tags, segments


def append(path: Path, first: int, high_water: int | None = None) -> None:
    transactions = [] if high_water is None else [Transaction(HIGH_WATER_APP, high_water)]
    write_deltalake(
        path,
        pa.table({"id": pa.array(range(first, first + 10), pa.int64())}),
        mode="append",
        configuration={"delta.logRetentionDuration": "interval 0 days"},
        commit_properties=CommitProperties(app_transactions=transactions),
    )


def numbers(path: Path) -> SegmentNumbers:
    snapshot = DeltaLog(LocalStore(str(path))).snapshot()
    return SegmentNumbers.at(snapshot.txns, read_live_tags(snapshot.files).mentioned)


def test_S25_and_Z16_high_water_mark_survives_deletes_checkpoints_clean_up_and_restore(
    tmp_path: Path,
) -> None:
    append(tmp_path, 0)
    assert numbers(tmp_path).take() == 0
    append(tmp_path, 10, high_water=4)
    append(tmp_path, 20)
    table = DeltaTable(tmp_path)

    table.delete()  # whatever carried a number is gone
    assert table.transaction_version(HIGH_WATER_APP) == 4
    assert numbers(tmp_path).take() == 5

    table.create_checkpoint()
    table.cleanup_metadata()
    assert not (tmp_path / "_delta_log" / f"{1:020}.json").exists()
    assert numbers(tmp_path).take() == 5

    append(tmp_path, 30, high_water=5)
    append(tmp_path, 40, high_water=6)
    DeltaTable(tmp_path).restore(4)  # before 6 was given out
    assert DeltaTable(tmp_path).count() == 10
    assert numbers(tmp_path).take() == 7


def test_foreign_table_is_one_segment_a_file_in_the_order_of_its_writing(tmp_path: Path) -> None:
    for first in range(0, 50, 10):
        append(tmp_path, first)

    live = segments(DeltaLog(LocalStore(str(tmp_path))).snapshot().files)

    assert len(live) == 5
    assert {segment.name[:2] for segment in live} == {"f-"}
    assert [segment.rows for segment in live] == [10] * 5
    assert sum(segment.size_bytes for segment in live) == sum(
        file.stat().st_size for file in tmp_path.glob("*.parquet")
    )
    again = segments(DeltaLog(LocalStore(str(tmp_path))).snapshot().files)
    assert again == live
