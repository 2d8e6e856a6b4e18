"""Compactions of tables with row tracking: all rows have the ids and the versions that they had
before, whatever other writers do meanwhile. Spark + Delta makes the tables, and is the judge at
each end; in between, ids are read from the log and the files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS, Lake, Lakes, reconciled
from support.lake.rows import rows
from support.lake.tracking import NAMES, in_files
from tables.test_row_tracking import alter, check_log, ids, insert
from tandem.delta.actions import DomainMetadata
from tandem.delta.log.codec import encode_action
from tandem.delta.log.snapshot import remove_of
from tandem.delta.protocol import writer_features
from tandem.operations.machine.events import Point

KINDS: Mapping[str, Mapping[str, object]] = {
    "copied": {"minRowGroupRows": 0},
    "some copied": {"minRowGroupRows": 5},
    "encoded": {},
    "sorted": {"layout": {"strategy": "Sort", "columns": ["v", "id"]}},
    "z-order": {"layout": {"strategy": "ZOrder", "columns": ["k", "v"]}},
}


@pytest.fixture
def zstd(spark: SparkSession, delta_spark: SparkSession) -> Iterator[SparkSession]:
    """Spark, as a writer of files whose row groups are copied."""
    conf = delta_spark.conf
    conf.set("spark.sql.parquet.compression.codec", "zstd")
    yield spark
    conf.unset("spark.sql.parquet.compression.codec")


@pytest.fixture(params=[True, False], ids=["vectors", "no vectors"])
def lake(
    request: pytest.FixtureRequest, zstd: SparkSession, tmp_path: Path, templates: Path
) -> Lake:
    return with_all_kinds_of_ids(zstd, tmp_path, templates, vectors=request.param)


def with_all_kinds_of_ids(
    spark: SparkSession, folder: Path, templates: Path, *, vectors: bool, spark_works: bool = False
) -> Lake:
    """Files with and without columns of row ids, some of whose values are NULL, and with deleted
    rows."""
    lakes = Lakes(spark, folder, templates, spark_works=spark_works)
    lake = lakes.empty(properties=DELETION_VECTORS if vectors else {})
    template = templates / f"row-ids-{vectors}"
    if not template.exists():
        lake.append(rows(range(10)))
        alter(lake, tracking="true")
        insert(lake, *range(10, 20))
        lake.do(lake.ingest(rows(range(20, 30))))
        merge(lake, range(8, 12), range(30, 36))
        lake.sql("DELETE FROM TABLE WHERE id IN (1, 2, 12, 22, 30)")
        shutil.copytree(lake.path, template)
    shutil.rmtree(lake.path)
    shutil.copytree(template, lake.path)
    return lake


def merge(lake: Lake, updated: range, inserted: range) -> None:
    values = ", ".join(f"({n}, 7, 7)" for n in (*updated, *inserted))
    lake.sql(f"MERGE INTO TABLE t USING (VALUES {values} AS s(id, k, v)) s ON t.id = s.id "
             "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")  # fmt: skip


def row_groups(lake: Lake) -> int:
    """Of one of the files: more than one where they were copied."""
    add = next(iter(lake.log.snapshot().adds()))
    return int(pq.read_metadata(lake.path / add.path).num_row_groups)


def test_N23_a_compaction_keeps_ids_and_versions(lake: Lake) -> None:
    since = lake.version
    for number, kind in enumerate((*KINDS, "copied")):
        lake.do(lake.ingest(rows(range(100 + 5 * number, 105 + 5 * number))))
        before = in_files(lake)
        lake.do(lake.compaction("Major", **KINDS[kind]))
        assert in_files(lake) == before, kind
        assert (row_groups(lake) > 1) == ("copied" in kind)
    assert ids(lake) == before
    check_log(lake, since)


MEANWHILE: tuple[Callable[[Lake], None], ...] = (
    lambda lake: lake.sql("DELETE FROM TABLE WHERE id IN (9, 18, 102)"),
    lambda lake: lake.sql("UPDATE TABLE SET v = -1 WHERE id IN (8, 19, 101)"),
    lambda lake: merge(lake, range(15, 20), range(40, 42)),
    lambda lake: insert(lake, 50, 51),
)


@pytest.mark.part(4)
@pytest.mark.parametrize("kind", ["copied", "sorted"])
def test_other_writers_meanwhile(lake: Lake, kind: str) -> None:
    since = lake.version
    for number, act in enumerate(MEANWHILE):
        for n in range(2):
            lake.do(lake.ingest(rows(range(first := 100 + 10 * number + 5 * n, first + 5))))
        held = lake.hold(lake.compaction("Major", **KINDS[kind]), Point.PUT_COMMIT)
        act(lake)
        before = in_files(lake)
        held.succeed()
        assert in_files(lake) == before, number
    assert ids(lake) == before
    check_log(lake, since)


@pytest.mark.part(2)
def test_row_tracking_is_enabled_or_disabled_meanwhile(lake: Lake) -> None:
    for tracking in ("false", "true"):
        lake.do(lake.ingest(rows(range(200, 205) if tracking == "true" else range(205, 210))))
        held = lake.hold(lake.compaction("Major"), Point.PUT_COMMIT)
        alter(lake, tracking=tracking)
        before = in_files(lake)
        held.succeed()
        assert tracking == "false" or in_files(lake) == before
    assert ids(lake) == before


@pytest.mark.part(2)
@pytest.mark.parametrize("mode", ["name", "id"])
def test_partitions_and_mapped_columns(
    zstd: SparkSession, tmp_path: Path, templates: Path, mode: str
) -> None:
    lake = Lakes(zstd, tmp_path, templates, spark_works=False).empty()
    shutil.rmtree(lake.path)
    lake.delta_spark.sql(
        f"CREATE TABLE {lake.sql_name} "
        "(id BIGINT, k BIGINT, v BIGINT, w STRUCT<x: DOUBLE, y: STRING>) "
        f"USING delta {'PARTITIONED BY (k)' if mode == 'name' else ''} TBLPROPERTIES "
        f"('delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = '{mode}')"
    )
    for number in range(3):
        keys = range(10 * number, 10 * number + 10)
        values = ", ".join(f"({n}, {n % 2}, 0, struct({n}.5, 's'))" for n in keys)
        lake.sql(f"INSERT INTO TABLE VALUES {values}")
    lake.delta_spark.sql(f"ALTER TABLE {lake.sql_name} RENAME COLUMN v TO u")
    lake.sql("UPDATE TABLE SET u = 1 WHERE id IN (4, 5)")
    before = ids(lake)
    for kind in ("copied", "encoded"):
        lake.do(lake.compaction("Major", **KINDS[kind]))
        assert ids(lake) == before
        # Spark's files have the column of the partitions, too, if columns are mapped.
        assert (row_groups(lake) > 1) == (kind == "copied" and mode == "id")
        lake.sql("DELETE FROM TABLE WHERE id IN (3, 24)")
        before = {key: before[key] for key in before if key not in (3, 24)}
        lake.sql("UPDATE TABLE SET u = 2 WHERE id IN (4, 5)")
        before = {**before, **{key: ids(lake)[key] for key in (4, 5)}}


def quick(folder: Path, *, vectors: bool) -> QuickLake:
    """A table that tracks rows, with three files; nothing of it is Spark's."""
    lake = quick_lake.make(folder, 0, properties=DELETION_VECTORS if vectors else {})
    snapshot = lake.log.snapshot()
    features = frozenset({"rowTracking", "domainMetadata"})
    protocol = dataclasses.replace(
        snapshot.protocol, min_writer=7,
        writer_features=writer_features(snapshot.protocol) | features,
    )  # fmt: skip
    metadata = dataclasses.replace(
        snapshot.metadata,
        configuration={**snapshot.configuration, "delta.enableRowTracking": "true", **NAMES},
    )
    lake.log_raw(encode_action(protocol), encode_action(metadata))
    for number in range(3):
        lake.do(lake.ingest(rows(range(10 * number, 10 * number + 10))))
    lake.first_version = lake.version
    return lake


def again(lake: QuickLake, **ids: int) -> None:
    """All live files once more, as after ids were suspended, and a backfill."""
    for add in lake.log.snapshot().adds():
        other = {name: add.extra[name] + by for name, by in ids.items()}
        changed = dataclasses.replace(add, extra={**add.extra, **other})
        lake.log_raw(encode_action(changed))


OTHERS: Mapping[str, Callable[[QuickLake], object]] = {
    "nothing": lambda lake: lake.version,
    "base ids": lambda lake: again(lake, baseRowId=100),
    "versions": lambda lake: again(lake, defaultRowCommitVersion=-1),
    "an ingest": lambda lake: lake.do(lake.ingest(rows(range(50, 60)))),
    "a delete": lambda lake: lake.do(lake.delete("id IN (3, 12, 13)")),
}


@pytest.mark.parametrize("what", OTHERS)
def test_ids_that_change_meanwhile_are_planned_again(tmp_path: Path, what: str) -> None:
    lake = quick(tmp_path, vectors=True)
    held = lake.hold(lake.compaction("Major"), Point.PUT_COMMIT)
    OTHERS[what](lake)
    before = in_files(lake)
    held.succeed()
    assert in_files(lake) == before
    assert len(before) == len(lake.by_tandem())


def test_deleted_rows_are_edited_out_of_an_output(tmp_path: Path) -> None:
    """Another writer, without deletion vectors, makes a file again, and keeps the ids of its rows
    in columns."""
    lake = quick(tmp_path, vectors=False)
    held = lake.hold(lake.compaction("Major"), Point.PUT_COMMIT)
    before = in_files(lake)
    add = lake.first_add
    table = pq.read_table(lake.path / add.path).slice(1)
    keys = table["id"].to_pylist()
    for at, name in enumerate(NAMES.values()):
        table = table.append_column(name, pa.array([before[key][at] for key in keys]))
    pq.write_table(table, lake.path / "again.parquet")
    new = dataclasses.replace(
        add, logged_path="again.parquet", size=(lake.path / "again.parquet").stat().st_size,
        stats=json.dumps({"numRecords": len(table)}), tags={},
        extra={"baseRowId": 1_000, "defaultRowCommitVersion": lake.version + 1},
    )  # fmt: skip
    mark = DomainMetadata("delta.rowTracking", json.dumps({"rowIdHighWaterMark": 2_000}), False)
    gone = remove_of(add, deletion_ms=1, data_change=True)
    lake.log_raw(encode_action(gone), encode_action(new), encode_action(mark))
    assert in_files(lake) == {key: before[key] for key in before if key != min(before)}
    before = in_files(lake)
    status = held.succeed()
    assert in_files(lake) == before
    assert reconciled(status).edit_rounds
