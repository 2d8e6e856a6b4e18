"""Rewrites of parts of tables with row tracking: cuts, segment rewrites, and files of others that
took the places of inputs. The log and the files say which ids rows have."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.lake.lake import Lakes
from support.lake.rows import rows
from support.lake.timed import day, hours
from support.lake.tracking import in_files, track
from tables.replaced import DAY_2, S1, made
from tables.test_cuts import cut
from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
)
from tandem.delta.log.snapshot import remove_of
from tandem.delta.row_tracking import DOMAIN
from tandem.operations.machine.events import Point


@pytest.mark.parametrize("layout", ["straddling", "straddling, no vectors"])
def test_a_cut_and_its_rest_keep_ids(lakes: Lakes, layout: str) -> None:
    table = made(lakes, layout)
    table.append(hours(day(1), first=500))
    track(table.lake)
    before = in_files(table.lake)
    for chunk in (DAY_2, "2013-03-01", "2013-03-03"):
        table.lake.do(cut(table, chunk))
        assert in_files(table.lake) == before
    assert len(before) == len(S1) + 24


def test_a_segment_rewrite_keeps_ids(lakes: Lakes) -> None:
    lake = lakes.loaded(2)
    lake.do(lake.compaction("Major"))
    track(lake)
    lake.do(lake.delete("k = 1"))
    before = in_files(lake)
    for how in ({"purgeDeleted": True}, {"sortBy": ["v"]}, {"recompress": {"codec": "gzip"}}):
        lake.do(lake.resource("SegmentRewrite", {"segments": lake.names, "rewrite": how}))
        assert in_files(lake) == before


def test_a_file_of_others_with_the_rows_of_an_input_and_other_ids_stays(lakes: Lakes) -> None:
    """Its rows are not those of the input, though they are equal."""
    lake = lakes.empty(properties={})
    for _ in range(3):
        lake.append(rows(range(10)))
    track(lake)
    first = min(lake.log.snapshot().adds(), key=lambda add: add.logged_path)
    held = lake.hold(lake.compaction("Major"), Point.RECONCILE)
    kept = pq.read_table(lake.path / first.path).slice(0, 9)
    ids = [pa.array(range(30, 39), pa.int64()), pa.array([4] * 9, pa.int64())]
    pq.write_table(kept.append_column("_Id", ids[0]).append_column("_CommitVersion", ids[1]),
                   lake.path / "new.parquet")  # fmt: skip
    size = (lake.path / "new.parquet").stat().st_size
    stats = json.dumps({"numRecords": 9})
    new = AddFile(
        "new.parquet", {}, size, 1, True, stats, extra={BASE_ROW_ID: 30, ROW_COMMIT_VERSION: 5}
    )
    mark = DomainMetadata(DOMAIN, '{"rowIdHighWaterMark":38}', removed=False)
    gone = remove_of(first, deletion_ms=1, data_change=True)
    actions: list[Action] = [CommitInfo({"operation": "DELETE"}), gone, new, mark]
    lake.log.put_commit(lake.version + 1, actions, token="x")
    held.succeed()
    assert lake.log.snapshot().file("new.parquet") is not None
    assert lake.log.snapshot().num_files == 2
