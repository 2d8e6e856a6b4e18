"""Row ids while others write: two inserters that race all operations (N21), and writers that err:
that keep the version of rows which they change (N24)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS, Lake, Lakes
from support.lake.rows import rows
from support.lake.tracking import NAMES, in_files, track
from support.lake.vectors import encode_inline
from support.matrix.ours import REFUSED_WITH_TRACKING
from support.present import present
from tables.test_row_tracking import Ids, alter, check_log, ids, insert
from tandem.delta.log.codec import encode_action, encode_deletion_vector
from tandem.delta.log.snapshot import remove_of
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation

INSERTS, EACH = 4, 2
IDS, VERSIONS = NAMES.values()


def _racing(lake: Lake, first: int) -> Iterator[Operation]:
    """What races: rows are loaded, one of them deleted, others changed; all files are rewritten."""
    yield lake.ingest(rows(range(first, first + 4)))
    yield lake.delete(f"id = {first}")
    yield lake.compaction("Major", minRowGroupRows=0)
    if ("update", True) not in REFUSED_WITH_TRACKING:
        yield lake.update(f"id = {first + 1}", v="v + 1")
    if ("merge", True) not in REFUSED_WITH_TRACKING:
        yield lake.merge(rows(range(first + 2, first + 6)))
    yield lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v", "id"]})


def test_N21_two_inserters_race_every_operation(
    spark: SparkSession, tmp_path: Path, templates: Path
) -> None:
    """Spark assigns its ids again, too, where a commit of ours was first: it reads our mark."""
    lake = Lakes(spark, tmp_path, templates, spark_works=False).empty(properties=DELETION_VECTORS)
    lake.append(rows(range(10)))
    alter(lake, tracking="true")
    since = lake.version

    def inserts(first: int) -> None:
        for number in range(first, first + INSERTS * EACH, EACH):
            insert(lake, *range(number, number + EACH))

    ours = 0
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(inserts, first) for first in (1000, 2000)]
        while any(not each.done() for each in running):
            for operation in _racing(lake, 3000 + 10 * ours):
                lake.do(operation)
            ours += 1
        for each in running:
            each.result()
    writers = "".join("t" if "tandem" in present(lake.commit(n).info).engine else "s"
                      for n in range(since + 1, lake.version + 1))  # fmt: skip
    assert "tst" in writers
    check_log(lake, since)
    found = ids(lake)
    assert found == in_files(lake)
    merged = ("merge", True) not in REFUSED_WITH_TRACKING
    assert len(found) == 10 + 2 * INSERTS * EACH + ours * (5 if merged else 3)
    inserted = {key: found[key] for key in found if 1000 <= key < 3000}
    for version in range(since + 1, lake.version):
        at = in_files(lake, version)
        # Whatever moved them, they have what they had at first.
        assert {key: own for key, own in at.items() if key in inserted}.items() <= inserted.items()
    assert all(row_id > 9 for row_id, _ in inserted.values())


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("kind", ["copied", "sorted"])
def test_N24_an_update_that_keeps_the_version_is_not_lost(
    tmp_path: Path, kind: str, vectors: bool
) -> None:
    """A writer changes the value of a row, and gives it the id and the version that it had: by
    these, nothing has changed."""
    lake = quick_lake.make(tmp_path, 3, properties=DELETION_VECTORS if vectors else {})
    track(lake)
    sort = {"layout": {"strategy": "Sort", "columns": ["v", "id"]}}
    more = sort if kind == "sorted" else {"minRowGroupRows": 0}
    held = lake.hold(lake.compaction("Major", **more), Point.PUT_COMMIT)
    before = in_files(lake)
    expected = _change(lake, before, vectors=vectors)
    assert lake.by_tandem() == expected
    assert in_files(lake) == before
    held.succeed()
    assert lake.by_tandem() == expected
    assert in_files(lake) == before


def _change(lake: QuickLake, before: Ids, *, vectors: bool) -> tuple[tuple[int, ...], ...]:
    """Of one file: its third row is changed, the file made again, or the row deleted and added."""
    add = lake.first_add
    table = pq.read_table(lake.path / add.path)
    key = table["id"][2].as_py()
    columns = [[before[k][at] for k in table["id"].to_pylist()] for at in (0, 1)]
    for name, values in zip((IDS, VERSIONS), columns, strict=True):
        table = table.append_column(name, pa.array(values, pa.int64()))
    changed = pc.if_else(pc.equal(table["id"], key), -5, table["v"])
    table = table.set_column(table.column_names.index("v"), "v", changed)
    if vectors:
        table = table.slice(2, 1)
    pq.write_table(table, lake.path / "again.parquet")
    fields = encode_action(add)["add"]
    new = {
        **{name: fields[name] for name in ("partitionValues", "modificationTime")},
        "path": "again.parquet",
        "size": (lake.path / "again.parquet").stat().st_size,
        "stats": json.dumps({"numRecords": table.num_rows}),
        "dataChange": True,
        "baseRowId": 1000,
        "defaultRowCommitVersion": lake.version + 1,
    }
    mark = json.dumps({"rowIdHighWaterMark": 1000 + table.num_rows - 1})
    domain = {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
    actions = [encode_action(remove_of(add, deletion_ms=1, data_change=True)), {"add": new}]
    if vectors:
        vector = encode_deletion_vector(encode_inline(BitMap64([2])))
        actions.append({"add": {**fields, "deletionVector": vector, "dataChange": True}})
    rows_before = lake.by_tandem()
    lake.log_raw(*actions, {"domainMetadata": domain}, operation="UPDATE")
    return tuple((n, k, -5 if n == key else v) for n, k, v in rows_before)
