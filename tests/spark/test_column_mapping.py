"""Tables under column mapping, made and altered by Spark + Delta: compacted, updated, deleted
from and appended to, then read by Spark, deltalake and us.

What Spark reads is the oracle; the footers of our files are looked at besides, since a reader
may find a column by luck.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from support.lake.lake import Lake
from support.some import some
from tandem.delta.actions import AddFile
from tandem.delta.scan import scan
from tandem.storage import open_store

COLUMNS = ["id", "k", "v", "s", "l", "part", "late"]


@pytest.fixture(scope="module", params=some(["name", "id"]))
def template(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    delta_spark: SparkSession,
) -> Path:
    """Two loads, then columns renamed (a nested one and the partition's too), dropped and added;
    another load, and a delete with vectors."""
    location = tmp_path_factory.mktemp("mapped") / "t"
    table = f"delta.`{location}`"
    delta_spark.sql(
        f"CREATE TABLE {table} (old BIGINT, k INT, v BIGINT, gone STRING, "
        "s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<c: INT>>, p STRING) USING delta "
        "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        f"'delta.columnMapping.mode' = '{request.param}')"
    )

    def load(start: int, *, more: str = "", last: str = "") -> None:
        delta_spark.sql(
            f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, cast(id % 5 AS INT), id * 10, "
            f"{more}named_struct('a', cast(id AS INT), 'b', concat('b', id)), "
            "array(named_struct('c', cast(id AS INT)), null), "
            f"concat('p', id % 2){last} FROM range({start}, {start + 20})"
        )

    load(0, more="'gone', ")
    load(20, more="'gone', ")
    for change in (
        "RENAME COLUMN old TO id",
        "RENAME COLUMN s.a TO z",
        "RENAME COLUMN p TO part",
        "DROP COLUMN gone",
        "ADD COLUMN late STRING",
    ):
        delta_spark.sql(f"ALTER TABLE {table} {change}")
    load(40, last=", 'x'")
    delta_spark.sql(f"DELETE FROM {table} WHERE id % 7 = 0")
    return location


@pytest.fixture
def lake(template: Path, tmp_path: Path, spark: SparkSession) -> Lake:
    location = tmp_path / "t"
    shutil.copytree(template, location)
    return Lake(location.as_uri(), spark, tmp_path / "sources", open_store(str(location)))


def by_spark(lake: Lake) -> list[dict[str, Any]]:
    return ordered(lake.delta_spark.read.format("delta").load(str(lake.path)).toArrow())


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.select(COLUMNS).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


def assert_read_alike(
    lake: Lake, expected: list[dict[str, Any]], *, spark_reads: bool = True
) -> None:
    if spark_reads:
        assert by_spark(lake) == expected
    assert ordered(scan(lake.log.snapshot(), lake.store).read_all()) == expected
    foreign = pa.RecordBatchReader.from_stream(DeltaTable(str(lake.path)).scan())
    assert ordered(foreign.read_all()) == expected


def physical(lake: Lake) -> dict[str, tuple[str, int]]:
    """Logical path → (physical name, field id), from the log as text."""
    found: dict[str, tuple[str, int]] = {}

    def walk(type_: Any, above: str) -> None:
        if not isinstance(type_, dict):
            return
        for field in type_.get("fields", ()):
            path = f"{above}{field['name']}"
            meta = field["metadata"]
            found[path] = (
                meta["delta.columnMapping.physicalName"],
                meta["delta.columnMapping.id"],
            )
            walk(field["type"], f"{path}.")
        walk(type_.get("elementType"), above)

    walk(json.loads(lake.log.snapshot().metadata.schema_string), "")
    return found


def our_files(lake: Lake) -> list[AddFile]:
    return [add for add in lake.log.snapshot().adds() if "tandem.segment" in add.tags]


def assert_physical(lake: Lake) -> None:
    """Names, field ids, partition values and statistics of our files are the mapped ones."""
    names = physical(lake)
    part, _ = names["part"]
    adds = our_files(lake)
    assert adds
    for add in adds:
        assert list(add.partition_values) == [part]
        schema = pq.read_schema(lake.path / add.path)
        ids = {field.name: int((field.metadata or {})[b"PARQUET:field_id"]) for field in schema}
        assert ids == dict(names[n] for n in COLUMNS if n != "part")
        nested = schema.field(names["s"][0]).type
        assert {f.name: int((f.metadata or {})[b"PARQUET:field_id"]) for f in nested} == dict(
            (names["s.z"], names["s.b"])
        )
        stats = json.loads(str(add.stats))
        rows = pq.read_table(lake.path / add.path)[names["id"][0]].to_pylist()
        assert stats["numRecords"] == len(rows)
        assert stats["minValues"][names["id"][0]] == min(rows)
        assert stats["maxValues"][names["id"][0]] == max(rows)
        assert set(stats["nullCount"][names["s"][0]]) == {names["s.z"][0], names["s.b"][0]}


@pytest.mark.matrix
def test_compaction_keeps_rows_names_and_ids_and_spark_continues_to_write(lake: Lake) -> None:
    before = by_spark(lake)
    status = lake.do(lake.compaction("Major"))
    assert status.result is not None
    assert len(our_files(lake)) == 2, "one file for each partition"
    assert len(list(lake.log.snapshot().adds())) == 2
    assert_physical(lake)
    assert_read_alike(lake, before)
    lake.sql("UPDATE TABLE SET v = v + 1 WHERE k = 2")
    lake.delta_spark.sql(f"ALTER TABLE {lake.sql_name} RENAME COLUMN late TO later")
    lake.delta_spark.sql(f"ALTER TABLE {lake.sql_name} RENAME COLUMN later TO late")
    for row in before:
        row["v"] += row["k"] == 2
    lake.do(lake.compaction("Major"))
    assert_read_alike(lake, before)


@pytest.mark.matrix
def test_update_sets_renamed_nested_neighbours_and_moves_rows_between_partitions(
    lake: Lake,
) -> None:
    expected = by_spark(lake)
    for row in expected:
        if row["k"] == 3 and row["part"] == "p1":
            row.update(v=row["v"] + 15, part="p9", late="set")
    lake.do(lake.update("k = 3 AND part = 'p1'", v="v + 15", part="'p9'", late="'set'"))
    assert any(row["part"] == "p9" for row in expected)
    assert_physical(lake)
    assert_read_alike(lake, expected)


@pytest.mark.matrix
def test_delete_by_a_nested_renamed_column_then_compact_and_update_again(lake: Lake) -> None:
    expected = [row for row in by_spark(lake) if not 10 <= row["s"]["z"] < 30]
    lake.do(lake.delete("s.z >= 10 AND s.z < 30"))
    assert_read_alike(lake, expected)
    lake.do(lake.compaction("Major"))
    assert_physical(lake)
    assert_read_alike(lake, expected, spark_reads=False)
    for row in expected:
        if row["id"] >= 35:
            row["late"] = "again"
    lake.do(lake.update("id >= 35", late="'again'"))
    assert_physical(lake)
    assert_read_alike(lake, expected)


@pytest.mark.matrix
def test_ingest_fits_a_source_to_mapped_columns(lake: Lake, tmp_path: Path) -> None:
    expected = by_spark(lake)
    source = tmp_path / "new.parquet"
    pq.write_table(
        pa.table({"part": ["p0", None], "id": pa.array([901, 902]), "v": pa.array([1, 2])}), source
    )
    body = {"source": {"format": "Parquet", "location": source.as_uri()}}
    lake.do(lake.resource("TableIngest", body))
    empty = dict.fromkeys(COLUMNS)
    expected += [
        {**empty, "id": 901, "v": 1, "part": "p0"},
        {**empty, "id": 902, "v": 2},
    ]
    assert list(our_files(lake)[0].partition_values) == [physical(lake)["part"][0]]
    assert_read_alike(lake, expected)
