"""Z2, Z11, Z13 and Z16 on real tables, and the main scenarios on a real S3 server."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.lake import rows as model
from support.lake.lake import INSERT_ALL, Lake, Lakes, Process, batch, loads, reconciled, result
from support.lake.rewritten import PURGE, RECOMPRESS, rewrite
from support.lake.rows import Rows, id_in, join, k_is, plus, without
from support.lake.s3 import S3Server
from support.some import some
from tandem.delta import dv
from tandem.operations import attempt_files
from tandem.operations.clean import clean
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.machine.events import Point
from tandem.planning.cleaning import DAY_MS, CleaningRules, RemovalReason
from tandem.spec.status import Phase
from tandem.timeline.names import HIGH_WATER_APP

FOUR = loads(range(4))
NOT_HERE = {
    *(RemovalReason.RECORD, RemovalReason.ROLLED_BACK, RemovalReason.ARCHIVED),
    *(RemovalReason.FACTS, RemovalReason.HOLD),
}
"""Why no file of the table below is removed: it has no log of blocks, only small files, and no
reader."""
AFTER_READING = (
    Point.ACQUIRE_LOCKS,
    Point.PERSIST_PLAN,
    Point.START_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.PUT_COMMIT,
)


@pytest.mark.parametrize("at", some(AFTER_READING))
def test_Z2_a_delete_between_plan_and_commit_is_not_missed(lakes: Lakes, at: Point) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), at)
    lake.foreign().delete("k = 2 AND id < 20")
    compaction.succeed()
    lake.assert_states(FOUR, without(FOUR, lambda row: row[1] == 2 and row[0] < 20))


@pytest.mark.parametrize("at", some(AFTER_READING))
def test_Z2_a_delete_between_plan_and_commit_of_an_update(lakes: Lakes, at: Point) -> None:
    """Rows deleted meanwhile are neither deleted again nor brought back changed."""
    lake = lakes.loaded(4)
    update = lake.hold(lake.update("k IN (1, 2)", v="v + 15"), at)
    lake.foreign().delete("k = 2")
    update.succeed()
    left = without(FOUR, k_is(2))
    lake.assert_states(FOUR, left, plus(left, k_is(1), 15))


def test_Z11_the_winning_delete_removes_an_input_completely(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().delete("id >= 10 AND id < 20")
    done = compaction.finish()
    assert reconciled(done).rows_masked == 10
    assert result(done).files_removed == 3
    assert lake.names == ["0.1"]
    assert lake.deleted() == {"0.1": 10}
    lake.assert_states(FOUR, loads([0, 2, 3]))


def test_Z11_the_winning_update_of_ours_removes_an_input_completely(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.do(lake.update("id >= 10 AND id < 20", v="v + 15"))
    done = compaction.finish()
    assert reconciled(done).rows_masked + reconciled(done).deletes_remapped == 10
    assert lake.names == ["0.1", "4"]
    lake.assert_states(FOUR, plus(FOUR, id_in(range(10, 20)), 15))
    lake.assert_clean()


def test_Z11_deletes_remove_all_inputs_completely(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.do(lake.delete("true"))
    assert compaction.finish().phase is Phase.SUPERSEDED
    assert lake.names == []
    lake.assert_states(FOUR, ())


def test_Z11_compaction_removes_the_update_s_inputs(lakes: Lakes) -> None:
    """The other way round: what the delete would remove whole is now part of another file."""
    lake = lakes.loaded(4)
    delete = lake.hold(lake.delete("id >= 10 AND id < 20"), Point.RECONCILE)
    lake.do(lake.compaction())
    assert reconciled(delete.finish()).deletes_remapped == 10
    assert lake.deleted() == {"0.1": 10}
    lake.assert_states(FOUR, loads([0, 2, 3]))


def test_Z13_all_bins_are_committed_where_vectors_are_off(lakes: Lakes) -> None:
    """The file that deltalake has made again goes in the place of the input."""
    lake = lakes.foreign(8, properties={})
    eight, protocol = loads(range(8)), lake.log.snapshot().protocol
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().delete("id = 55")
    done = compaction.succeed()
    assert (reconciled(done).bins_dropped, reconciled(done).deletes_remapped) == (0, 1)
    assert (reconciled(done).edit_rounds, reconciled(done).inputs_gone) == (1, None)
    assert (result(done).files_removed, result(done).files_added) == (8, 2)
    assert len(lake.live) == 2
    assert lake.deleted() == {}
    assert lake.log.snapshot().protocol == protocol
    lake.assert_states(eight, without(eight, id_in([55])))


def test_Z13_a_bin_that_cannot_be_written_leaves_all_as_it_was(lakes: Lakes) -> None:
    lake = lakes.loaded(8)
    compaction = lake.hold(lake.compaction(), Point.START_JOB)
    [victim] = [s.files[0].path for s in lake.live if s.name == "6"]
    data = lake.store.get(victim)
    lake.store.delete([victim])
    assert compaction.finish().phase is Phase.FAILED
    lake.store.put(victim, data)
    lake.assert_states(loads(range(8)))


def test_Z16_number_whose_segments_are_all_deleted_is_not_used_again(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.delete("true"))
    assert lake.names == []
    lake.load(batch(7))
    assert lake.names == ["4"]
    # Neither after a checkpoint and the end of the log before it …
    lake.foreign().create_checkpoint()
    for version in range(lake.version):
        lake.store.delete([f"_delta_log/{version:020d}.json"])
    lake.do(lake.delete("true"))
    lake.load(batch(8))
    assert lake.names == ["5"]
    # … nor after a restore, which takes the rows back but not the numbers.
    lake.foreign().restore(lake.version - 1)
    lake.load(batch(9))
    assert lake.names == ["6"]
    assert lake.log.snapshot().txns[HIGH_WATER_APP].version == 6
    lake.assert_rows(batch(9))


# On a real S3 server ------------------------------------------------------------------------


@pytest.fixture
def s3_lake(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path, templates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:  # fmt: skip
    """Four loads on S3. Spark's workers take credentials from their environment."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
        environment[name] = value
    lake = Lakes(spark, tmp_path, templates).on_s3(s3_server)
    lake.load(*(batch(number) for number in range(4)))
    lake.first_version = lake.version
    yield lake
    environment.clear()
    environment.update(before)


@pytest.mark.matrix
@pytest.mark.parametrize("first", some(["update", "compaction"], every=2))
def test_C2_C3_an_update_and_a_compaction_meet_on_s3(s3_lake: Lake, first: str) -> None:
    if first == "compaction":
        update = s3_lake.hold(s3_lake.update("k = 1", v="v + 15"), Point.PUT_COMMIT)
        s3_lake.do(s3_lake.compaction())
        assert reconciled(update.finish()).by_segment == {"0.1": 8}
        s3_lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))
        s3_lake.assert_clean()
        return
    compaction = s3_lake.hold(s3_lake.compaction(), Point.PUT_COMMIT)
    s3_lake.do(s3_lake.update("k = 1", v="v + 15"))
    assert reconciled(compaction.finish()).deletes_remapped == 8
    assert s3_lake.deleted() == {"0.1": 8}
    s3_lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))


@pytest.mark.matrix
def test_z_order_merge_segment_rewrite_and_cleaning_on_s3(
    s3_lake: Lake, s3_server: S3Server
) -> None:
    lake = s3_lake
    # A z-order commits during an update, which goes on by its row map.
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.PUT_COMMIT)
    z_order = {"strategy": "ZOrder", "columns": ["k", "v"]}
    lake.do(lake.compaction("SemiMajor", layout=z_order, targetFileSize=1200))
    assert reconciled(update.finish()).deletes_remapped == 8
    updated = plus(FOUR, k_is(1), 15)
    # A segment rewrite commits during a merge from S3, and another one drops what both deleted.
    source = ((3, 3, -3), (11, 1, -11), (70, 0, -70))
    merge = lake.hold(merge_from_s3(lake, s3_server, source), Point.PUT_COMMIT)
    lake.do(rewrite(lake, "0.1", **RECOMPRESS))
    merge.succeed()
    merged = join(without(updated, id_in(row[0] for row in source)), source)
    assert lake.deleted()
    lake.do(rewrite(lake, *lake.deleted(), **PURGE))
    assert not lake.deleted()
    lake.assert_states(FOUR, updated, merged)
    # Of a process that died, a twin of a job, and of all that versions before named.
    engine = lake.ports(processes=Process(1, {1}))
    lake.hold(lake.delete("k = 2"), Point.PUT_COMMIT, ports=engine).kill()
    [died] = lake.unreachable()
    operation = died.split("/")[2].removesuffix("-1")
    lake.jobs.stop(attempt_files.job_name(operation, 1))
    folder = s3_server.folder / lake.location.rpartition("/")[2]
    for file in (folder / died, *(folder / attempt_files.attempt(operation, 1)).rglob("*")):
        os.utime(file, (0, 0))
    duplicate = f"{live(lake)[0].rpartition('/')[0]}/part-00099-of-a-twin.parquet"
    lake.store.put(duplicate, b"")
    old = CleaningRules(0, row_maps_ms=0, staging_ms=0, dead_ms=DAY_MS)
    cleaned = clean(lake.table(), old, CleaningDependencies(processes=Process(2, {2})))
    assert cleaned.abandoned == ((operation, 1),)
    whys = {each.file.path: each.why for each in cleaned.garbage}
    assert (whys[died], whys[duplicate]) == (RemovalReason.ABANDONED, RemovalReason.UNNAMED)
    # This store tells its time in seconds: what was removed in the last one is not old to it.
    deadline = time.monotonic() + 20
    while lake.data_files() != {*live(lake)}:
        assert time.monotonic() < deadline
        more = clean(lake.table(), old, CleaningDependencies(processes=Process(2, {2})))
        whys |= {each.file.path: each.why for each in more.garbage}
    assert {*whys.values()} == {*RemovalReason} - NOT_HERE
    lake.assert_rows(merged)
    found = lake.delta_spark.read.format("delta").load(str(folder)).collect()
    assert tuple(sorted((row.id, row.k, row.v) for row in found)) == merged


def live(lake: Lake) -> list[str]:
    """Data files and vectors that the latest version names."""
    adds = [*lake.log.snapshot().adds()]
    vectors = [dv.file_path(add.deletion_vector) for add in adds if add.deletion_vector]
    return [*(add.path for add in adds), *vectors]


def merge_from_s3(lake: Lake, server: S3Server, rows: Rows) -> Any:
    """An upsert of a folder of Parquet beside the table."""
    file = io.BytesIO()
    pq.write_table(model.table(rows), file)
    source = server.open()
    source.put("part-0.parquet", file.getvalue())
    merge = {
        "source": {"format": "Parquet", "location": source.location},
        "on": "t.id = s.id",
        "whenMatched": [{"updateAll": {}}],
        **INSERT_ALL,
    }
    return lake.resource("TableUpdate", {"merge": merge})
