"""Partition values of all types at their extremes: read as Spark and deltalake read them, and
logged as before by whatever rewrites their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from support.lake.lake import Lake
from tandem.delta.scan import scan
from tandem.errors import Reason
from tandem.spec.status import Phase
from tandem.storage import open_store

COLUMNS = {
    "bin": "BINARY",
    "str": "STRING",
    "dbl": "DOUBLE",
    "flt": "FLOAT",
    "dec": "DECIMAL(10,2)",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "ntz": "TIMESTAMP_NTZ",
    "yes": "BOOLEAN",
}
SPARK_VALUES = [
    "X'C3A9', 'a/b=c%d ü', 1e10D, 0.1F, -0.10, DATE'+10000-01-01', "
    "TIMESTAMP'+10000-01-01 01:02:03.5', TIMESTAMP_NTZ'2020-01-01', true",
    "X'616263', ' a ', double('NaN'), float('-inf'), 1, DATE'0001-01-01', "
    "TIMESTAMP'0001-01-01 00:00:00.000001', TIMESTAMP_NTZ'2020-01-01 00:00:00.123', false",
    "NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL",
    "X'612F3D', 'x', -0.0D, 1e-7F, 0, DATE'-0001-02-03', "
    "TIMESTAMP'2020-01-01', TIMESTAMP_NTZ'9999-12-31', true",
]
LOGGED = {
    # Texts of other writers: deltalake's numbers, moments and bytes; Spark's older moments.
    "bin": "\\u0061\\u00FF",
    "str": "",
    "dbl": "10000000000",
    "flt": "0.10000000149011612",
    "dec": "1.00",
    "day": "2020-01-01",
    "ts": "2020-01-01 00:00:00",
    "ntz": "2020-01-01 00:00:00.000000",
    "yes": "True",
}


@pytest.fixture
def lake(spark: SparkSession, delta_spark: SparkSession, tmp_path: Path) -> Lake:
    """Five files: four by Spark, and one whose texts are replaced by those of others."""
    path = tmp_path / "table"
    table = f"delta.`{path}`"
    columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
    delta_spark.sql(
        f"CREATE TABLE {table} (id INT, n INT, {columns}) USING delta PARTITIONED BY "
        f"({', '.join(COLUMNS)}) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    values = [f"({i}, 0, {each})" for i, each in enumerate([*SPARK_VALUES, SPARK_VALUES[3]])]
    for some in (values[:4], values[4:]):
        delta_spark.sql(f"INSERT INTO {table} VALUES {', '.join(some)}")
    log = path / "_delta_log"
    last = log / "00000000000000000002.json"
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["partitionValues"] = LOGGED
    last.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for checksum in (*log.glob(".*.crc"), *log.glob("*2.crc")):
        checksum.unlink()
    lake = Lake(path.as_uri(), spark, tmp_path / "sources", open_store(path.as_uri()))
    lake.first_version = lake.version
    return lake


@pytest.mark.matrix
def test_partition_values_are_read_alike_and_kept_as_logged(
    lake: Lake, delta_spark: SparkSession
) -> None:
    before, logged = _shown(lake, delta_spark), _logged(lake)
    assert logged[4] == LOGGED
    lake.do(lake.update("id >= 0", n="n + 1"))
    assert _shown(lake, delta_spark) == before
    assert _logged(lake) == logged
    source = pa.table({"id": pa.array(range(5), pa.int32()), "n": pa.array([7] * 5, pa.int32())})
    lake.do(lake.merge(source, whenMatched=[{"update": {"set": {"n": "s.n"}}}]))
    assert _shown(lake, delta_spark) == before
    assert _logged(lake) == logged
    lake.do(lake.compaction("Major"))
    assert _shown(lake, delta_spark) == before
    assert _logged(lake) == logged
    lake.do(lake.update("bin = X'C3A9'", bin="X'E282AC'"))
    lake.do(lake.delete("bin = X'616263' OR `str` = ''"))
    left = delta_spark.sql(f"SELECT id, hex(bin) FROM {lake.sql_name} ORDER BY id").collect()
    assert [tuple(row) for row in left] == [(0, "E282AC"), (2, None), (3, "612F3D")]
    after = _shown(lake, delta_spark)
    done = lake.run(lake.update("id = 0", bin="X'FF'"))
    assert done.phase is Phase.FAILED
    text = json.dumps(done.model_dump(mode="json"))
    assert Reason.STATEMENT_FAILED.value in text
    assert "X'ff'" in text
    assert _shown(lake, delta_spark) == after


def _logged(lake: Lake) -> dict[int, dict[str, str | None]]:
    """Row → the partition values of its file, as texts."""
    found: dict[int, dict[str, str | None]] = {}
    names = {Path(a.path).name: a for a in lake.log.snapshot().adds()}
    rows = lake.delta_spark.sql(f"SELECT id, _metadata.file_path FROM {lake.sql_name}").collect()
    for row in rows:
        found[row.id] = dict(names[Path(unquote(row.file_path)).name].partition_values)
    return found


def _shown(lake: Lake, spark: SparkSession) -> list[Any]:
    """The rows, by Spark; those of deltalake and ours are the same."""
    listed = ", ".join(
        f"CAST({name} AS {'BINARY' if name in ('bin', 'str') else 'STRING'})" for name in COLUMNS
    )
    rows = spark.sql(f"SELECT id, {listed} FROM {lake.sql_name} ORDER BY id").collect()
    ours = pa.table(scan(lake.log.snapshot(), lake.store)).sort_by("id")
    scanned = pa.table(DeltaTable(lake.location).scan())
    # Views of bytes and texts cannot be sorted.
    theirs = pa.table({n: scanned[n].cast(ours[n].type) for n in ours.column_names}).sort_by("id")
    for name in COLUMNS:
        assert _texts(ours[name]) == _texts(theirs[name]), name
    for name, kind in (("bin", bytes), ("str", str)):
        stored = [
            None if v is None else v if kind is bytes else v.encode()
            for v in ours[name].to_pylist()
        ]
        column = list(COLUMNS).index(name) + 1
        assert stored == [None if r[column] is None else bytes(r[column]) for r in rows]
    return [
        tuple(None if v is None else bytes(v) if isinstance(v, bytearray) else v for v in r)
        for r in rows
    ]


def _texts(values: Any) -> list[Any]:
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return list(values.to_pylist())
    if pa.types.is_binary_view(values.type):
        return list(values.cast(pa.binary()).to_pylist())
    return list(pc.cast(values, pa.string()).to_pylist())
