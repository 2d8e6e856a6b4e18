"""`scan` gives what independent readers give, on tables that others wrote."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from support.jobs.job_files import snapshot_of
from tandem.delta.scan import scan
from tandem.errors import DataFileMissing, InvalidSpec

UTC = dt.UTC


def ours(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    store, snapshot = snapshot_of(path, version)
    return ordered(scan(snapshot, store).read_all().to_pylist())


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(row["id"]))


def by_deltalake(path: Path) -> list[dict[str, Any]]:
    reader = pa.RecordBatchReader.from_stream(DeltaTable(str(path)).scan())
    return ordered(reader.read_all().to_pylist())


def by_spark(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    return ordered(spark.read.format("delta").load(str(path)).toArrow().to_pylist())


@pytest.mark.matrix
def test_deletion_vectors_and_versions(tmp_path: Path, delta_spark: SparkSession) -> None:
    data = pa.table({"id": pa.array(range(1000)), "x": [i / 3 for i in range(1000)]})
    write_deltalake(str(tmp_path), data, configuration={"delta.enableDeletionVectors": "true"})
    delta_spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id % 7 = 0")
    assert ours(tmp_path) == by_deltalake(tmp_path) == by_spark(delta_spark, tmp_path)
    assert len(ours(tmp_path, 0)) == 1000


PARTITIONS = {
    "string": ("p STRING", ["'a b/c%='", "''", "NULL"]),
    "int": ("p INT", ["-5", "NULL"]),
    "bigint": ("p BIGINT", ["9223372036854775807"]),
    "decimal": ("p DECIMAL(10,3)", ["-1.250"]),
    "double": ("p DOUBLE", ["1.5e-7"]),
    "boolean": ("p BOOLEAN", ["true", "false"]),
    "date": ("p DATE", ["date'1969-12-31'"]),
    "timestamp": ("p TIMESTAMP", ["timestamp'2020-02-29 23:59:59.000123'"]),
    "timestamp_ntz": ("p TIMESTAMP_NTZ", ["timestamp_ntz'2020-02-29 23:59:59.5'"]),
    "binary": ("p BINARY", ["X'41'"]),
}


@pytest.mark.part(12)
@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_values_of_every_type(
    tmp_path: Path, delta_spark: SparkSession, name: str
) -> None:
    column, values = PARTITIONS[name]
    table = f"delta.`{tmp_path}`"
    delta_spark.sql(f"CREATE TABLE {table} (id BIGINT, {column}) USING delta PARTITIONED BY (p)")
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate(values))
    delta_spark.sql(f"INSERT INTO {table} VALUES {rows}")
    assert ours(tmp_path) == by_spark(delta_spark, tmp_path)


@pytest.mark.part(2)
@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_with_column_mapping_is_read_as_spark_reads_it(
    tmp_path: Path, delta_spark: SparkSession, mode: str
) -> None:
    table = f"delta.`{tmp_path}`"
    delta_spark.sql(
        f"CREATE TABLE {table} (id BIGINT, s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<c: INT>>, "
        f"m MAP<STRING, INT>, p STRING) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')"
    )
    insert = (
        f"INSERT INTO {table} SELECT id, named_struct('a', cast(id AS INT), 'b', 'x'), "
        "array(named_struct('c', 1), null), map('k', cast(id AS INT)), concat('p', id % 2) "
        "FROM range({}, {})"
    )
    delta_spark.sql(insert.format(0, 10))
    delta_spark.sql(f"ALTER TABLE {table} RENAME COLUMN id TO key")
    delta_spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.a TO z")
    delta_spark.sql(f"ALTER TABLE {table} ADD COLUMN id BIGINT")
    delta_spark.sql(f"ALTER TABLE {table} DROP COLUMN m")

    def sort(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: repr(row["key"]))

    assert sort(ours(tmp_path)) == sort(by_spark(delta_spark, tmp_path))


def test_types_nested_values_and_int96(tmp_path: Path, delta_spark: SparkSession) -> None:
    delta_spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        delta_spark.sql(
            "SELECT id, cast(id AS DECIMAL(38, 6)) d, cast(id AS TINYINT) t, X'00FF' b, "
            "timestamp_micros(id * 1000003) at, timestamp_ntz'1960-01-01 00:00:00.000001' n, "
            "cast('NaN' AS FLOAT) < 0 nan, array(array(id), null, array()) ll, "
            "map('a', named_struct('x', id)) m, date_add(date'1970-01-01', cast(id AS INT)) day "
            "FROM range(50)"
        ).write.format("delta").save(str(tmp_path))
    finally:
        delta_spark.conf.unset("spark.sql.parquet.outputTimestampType")
    rows = ours(tmp_path)
    assert rows == by_spark(delta_spark, tmp_path)
    first = rows[0]
    assert first["at"] == dt.datetime(1970, 1, 1, tzinfo=UTC)
    assert first["d"] == Decimal("0.000000")


def test_columns_added_later_are_null(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    write_deltalake(
        str(tmp_path), pa.table({"id": [2], "x": ["v"]}), mode="append", schema_mode="merge"
    )
    assert ours(tmp_path) == by_deltalake(tmp_path)


def test_projection_keeps_the_order_asked_for(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1], "a": [2], "b": [3]}))
    store, snapshot = snapshot_of(tmp_path)
    assert scan(snapshot, store, columns=["b", "ID"]).read_all().schema.names == ["b", "id"]
    with pytest.raises(InvalidSpec, match="nope"):
        scan(snapshot, store, columns=["nope"])


def test_a_scan_without_columns_has_as_many_rows(tmp_path: Path) -> None:
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(str(tmp_path), pa.table({"id": range(5)}), configuration=configuration)
    DeltaTable(str(tmp_path)).delete("id = 2")
    store, snapshot = snapshot_of(tmp_path)
    found = scan(snapshot, store, columns=[]).read_all()
    assert (found.num_columns, found.num_rows) == (0, 4)


def test_a_listed_file_that_is_absent_is_named(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    store, snapshot = snapshot_of(tmp_path)
    [add] = snapshot.adds()
    store.delete([add.path])
    with pytest.raises(DataFileMissing, match=add.path):
        scan(snapshot, store).read_all()
