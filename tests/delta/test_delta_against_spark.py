"""Logs, rows and deletion vectors against Spark with Delta."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.lake.vectors import encode_inline
from support.present import present
from support.some import every_case, some
from tandem.delta import dv
from tandem.delta.actions import DeletionVector, Txn
from tandem.delta.datafiles import writer
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.delta.protocol import OperationKind, features_in_use, refusals
from tandem.json_types import Json
from tandem.locks.store import InProcessLocks
from tandem.operations.adopt import adopt, open_table
from tandem.operations.ports import Ports, SystemClock, SystemNonces
from tandem.pruning.selection import Selection
from tandem.spark.in_process import InProcessJobs
from tandem.spec import LakeTable, load_text
from tandem.spec.status import Phase
from tandem.statements import parse_where
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Tables that Spark + Delta made, and Spark + Delta reading what we write.


ODD_VALUES = (
    "ü 日本😀", "n\u00a0b", "l\u2028s", "\x01\x7f\x85", "50%25", "a/b=c:d",
    "{[^?#*'\"\\]}", "`|<>~!$&'()*,;@+",
)  # fmt: skip


def _log(root: Path) -> DeltaLog:
    return DeltaLog(open_store(root.as_uri()))


def _create(spark: SparkSession, root: Path, columns: str, **properties: str) -> str:
    """An empty table; its name in SQL."""
    listed = ", ".join(f"'{k.replace('__', '.')}' = '{v}'" for k, v in properties.items())
    tail = f" TBLPROPERTIES ({listed})" if listed else ""
    spark.sql(f"CREATE TABLE delta.`{root}` ({columns}) USING delta{tail}")
    return f"delta.`{root}`"


def _insert(spark: SparkSession, table: str, first: int, count: int = 20) -> None:
    spark.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, concat('n ', id % 3) "
        f"FROM range({first}, {first + count})"
    )


def _spark_rows(spark: SparkSession, root: Path, version: int | None = None) -> dict[str, int]:
    """File → live rows in it."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    # `_metadata.file_path` is a URI; Delta's own list of files has no rows without data.
    found = reader.load(str(root)).groupBy("_metadata.file_path").count().collect()
    return {unquote(r[0]).rsplit(f"/{root.name}/", 1)[1]: r[1] for r in found}


def _spark_files(spark: SparkSession, root: Path, version: int | None = None) -> list[str]:
    return sorted(_spark_rows(spark, root, version))


def _our_files(snapshot: Snapshot) -> list[str]:
    return sorted(a.path for a in snapshot.adds())


def _checkpoints(root: Path) -> list[str]:
    # Hadoop leaves a hidden checksum beside every file.
    return sorted(p.name for p in (root / "_delta_log").glob("0*checkpoint.*"))


@pytest.mark.matrix
@pytest.mark.parametrize("vectors", some(["true", "false"]))
def test_every_version_of_a_spark_table(
    delta_spark: SparkSession, tmp_path: Path, vectors: str
) -> None:
    root = tmp_path / "t"
    table = _create(
        delta_spark,
        root,
        "id LONG, name STRING",
        delta__enableDeletionVectors=vectors,
        delta__checkpointInterval="4",
    )
    for number in range(4):
        _insert(delta_spark, table, number * 20)
    delta_spark.sql(f"DELETE FROM {table} WHERE id % 20 = 3")
    delta_spark.sql(f"UPDATE {table} SET name = 'x' WHERE id % 20 = 4")
    delta_spark.sql(f"OPTIMIZE {table}")
    delta_spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 3")
    log = _log(root)
    assert any(name.endswith("checkpoint.parquet") for name in _checkpoints(root))
    incremental = log.snapshot(0)
    latest = log.latest_version()
    # Spark is slow to look: at the first, at a checkpoint, at the first change and the last.
    later = (5,) if vectors == "true" else ()
    for version in range(latest + 1) if every_case() else (0, 4, *later, latest):
        snapshot = log.snapshot(version)
        rows = _spark_rows(delta_spark, root, version)
        assert _our_files(snapshot) == sorted(rows)
        live = sum(snapshot.num_records.to_pylist()) - sum(snapshot.num_deleted.to_pylist())
        assert live == sum(rows.values())
    assert _our_files(log.update(incremental)) == _our_files(log.snapshot())
    # Spark's checksum beside a commit says the same.
    checksum = json.loads((root / "_delta_log" / f"{4:020d}.crc").read_text())
    assert checksum["numFiles"] == log.snapshot(4).num_files
    assert checksum["tableSizeBytes"] == log.snapshot(4).size_bytes


@pytest.mark.matrix
def test_v2_checkpoints_with_sidecars(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _create(
        delta_spark,
        root,
        "id LONG, name STRING",
        delta__enableDeletionVectors="true",
        delta__checkpointPolicy="v2",
        delta__checkpointInterval="3",
    )
    for number in range(3):
        _insert(delta_spark, table, number * 20)
    delta_spark.sql(f"DELETE FROM {table} WHERE id % 20 = 3")
    writer = _checkpoints(root)
    assert writer
    assert not any(name.endswith("checkpoint.parquet") for name in writer)
    assert list((root / "_delta_log" / "_sidecars").iterdir())
    # Only what the newest checkpoint and its followers say is left.
    at = max(int(name[:20]) for name in writer)
    log = _log(root)
    assert at >= 3
    log.store.delete(f"_delta_log/{v:020d}.json" for v in range(at))
    snapshot = log.snapshot()
    assert snapshot.checkpoint_version == at
    assert _our_files(snapshot) == _spark_files(delta_spark, root)
    live = sum(snapshot.num_records.to_pylist()) - sum(snapshot.num_deleted.to_pylist())
    assert live == delta_spark.read.format("delta").load(str(root)).count() == 57
    assert "v2Checkpoint" in features_in_use(snapshot.protocol, snapshot.metadata)


@pytest.mark.matrix
def test_spark_reads_and_extends_our_checkpoint(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _create(delta_spark, root, "id LONG, name STRING", delta__enableDeletionVectors="true")
    for number in range(2):
        _insert(delta_spark, table, number * 20)
    delta_spark.sql(f"DELETE FROM {table} WHERE id % 20 = 3")
    log = _log(root)
    snapshot = log.snapshot()
    info = commit_info("WRITE", {}, now_ms=1, previous=snapshot, blind_append=False)
    log.put_commit(snapshot.version + 1, [info, Txn("tandem.segments", 3)], token="t")
    snapshot = log.snapshot()
    write_checkpoint(log, snapshot, now_ms=0)
    log.store.delete(f"_delta_log/{v:020d}.json" for v in range(snapshot.version))
    _forget(delta_spark)
    frame = delta_spark.read.format("delta").load(str(root))
    assert sorted(r.id for r in frame.collect()) == [i for i in range(40) if i % 20 != 3]
    delta_spark.sql(f"UPDATE {table} SET name = 'x' WHERE id % 20 = 4")
    assert _our_files(log.snapshot()) == _spark_files(delta_spark, root)
    assert log.snapshot().txns["tandem.segments"].version == 3


def test_in_commit_timestamps(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _create(delta_spark, root, "id LONG, name STRING")
    _insert(delta_spark, table, 0)
    delta_spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
    )
    _insert(delta_spark, table, 20)
    log = _log(root)
    snapshot = log.snapshot()
    assert "inCommitTimestamp" in features_in_use(snapshot.protocol, snapshot.metadata)
    # In the past: ours must still come after Spark's.
    info = commit_info("WRITE", {}, now_ms=1, previous=snapshot, blind_append=True)
    log.put_commit(snapshot.version + 1, [info, Txn("a", 1)], token="t")
    _forget(delta_spark)
    history = delta_spark.sql(f"DESCRIBE HISTORY {table}").collect()
    times = {r.version: int(r.timestamp.timestamp() * 1000) for r in history}
    assert times.keys() == set(range(snapshot.version + 2))
    assert {v: log.snapshot(v).timestamp_ms for v in times} == times
    for version, time in times.items():
        assert log.snapshot(timestamp_ms=time).version == version


def test_column_mapping_and_statistics(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _create(
        delta_spark,
        root,
        "id LONG, name STRING, t TIMESTAMP, d DECIMAL(20,4), f DOUBLE, s STRUCT<a: INT>",
        delta__columnMapping__mode="name",
    )
    long_text = "z" * 50
    delta_spark.sql(
        f"INSERT INTO {table} VALUES (1, '{long_text}', TIMESTAMP'2013-01-01 10:00:00.123456Z', "
        "1234567890123456.7891, 0.5, named_struct('a', 7))"
    )
    delta_spark.sql(f"ALTER TABLE {table} RENAME COLUMN id TO number")
    snapshot = _log(root).snapshot()
    assert snapshot.schema.names == ("number", "name", "t", "d", "f", "s")
    field = snapshot.schema["number"]
    assert field.physical_name.startswith("col-")
    assert field.field_id == 1

    def kept(text: str) -> bool:
        where = parse_where(text, snapshot.metadata.schema_string)
        return bool(Selection(where, snapshot).mask(snapshot.files).all())

    assert kept("number = 1")
    assert not kept("number = 2")
    assert kept("s.a = 7")
    assert kept("d = 1234567890123456.7891")
    assert not kept("d = 1234567890124456.7891")
    assert kept("t = TIMESTAMP '2013-01-01 10:00:00.123456'")
    assert not kept("t = TIMESTAMP '2013-01-01 10:00:01'")
    assert kept(f"name = '{long_text}'")
    assert not kept("name < 'A'")


def _refused(snapshot: Snapshot) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for kind in OperationKind:
        for name, _ in refusals(snapshot.protocol, snapshot.metadata, kind):
            found.setdefault(name, set()).add(kind.value)
    return found


@pytest.mark.matrix
def test_features_as_spark_lists_them(delta_spark: SparkSession, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    _create(delta_spark, plain, "id LONG, name STRING NOT NULL")
    assert _refused(_log(plain).snapshot()) == {}

    checked = tmp_path / "checked"
    table = _create(
        delta_spark,
        checked,
        "id LONG, name STRING, twice LONG GENERATED ALWAYS AS (id * 2)",
        delta__enableChangeDataFeed="true",
    )
    delta_spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < 100)")
    assert _refused(_log(checked).snapshot()) == {
        "generatedColumns": {"Ingest", "Update", "Merge", "Replace"},
    }

    clustered = tmp_path / "clustered"
    delta_spark.sql(f"CREATE TABLE delta.`{clustered}` (id LONG) USING delta CLUSTER BY (id)")
    snapshot = _log(clustered).snapshot()
    assert _refused(snapshot) == {}
    assert "delta.clustering" in snapshot.domains

    tracked = tmp_path / "tracked"
    _create(delta_spark, tracked, "id LONG", delta__enableRowTracking="true")
    statements = {"Update", "Delete", "Merge", "Replace"}
    assert _refused(_log(tracked).snapshot()) == {"rowTracking": statements}

    variant = tmp_path / "variant"
    _create(delta_spark, variant, "id LONG, v VARIANT")
    assert "Read" in _refused(_log(variant).snapshot())["variantType"]


def _forget(spark: SparkSession) -> None:
    """Make Spark + Delta look at the log again instead of at what it remembers."""
    jvm = present(spark._jvm)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _legacy_table(root: Path, version: tuple[int, int], field: Json, configuration: Json) -> None:
    """A table of two rows, whose old protocol says nothing of what its metadata uses."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    type_ = field.pop("type", "long")
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "x", "type": type_, "nullable": True, "metadata": field},
    ]
    arrow = pa.timestamp("us") if type_ == "timestamp_ntz" else pa.int64()
    x = pa.array([1, 2], pa.int64()).cast(arrow)
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64()), "x": x}), root / "a.parquet")
    metadata = {
        "id": root.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 0,
    }
    add = {
        "path": "a.parquet",
        "partitionValues": {},
        "size": (root / "a.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 2}),
    }
    features: Json = {"writerFeatures": []} if version[1] == 7 else {}
    protocol = {"minReaderVersion": version[0], "minWriterVersion": version[1], **features}
    actions: list[Json] = [
        {"commitInfo": {"timestamp": 0, "inCommitTimestamp": 1, "operation": "WRITE"}},
        {"protocol": protocol},
        {"metaData": metadata},
        {"add": add},
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))


LEGACY_TABLES: dict[str, tuple[tuple[int, int], Json, Json]] = {
    "constraint": ((1, 2), {}, {"delta.constraints.a": "id > 0"}),
    "invariant": ((1, 1), {"delta.invariants": '{"expression":{"expression":"x > 0"}}'}, {}),
    "generated": ((1, 4), {"delta.generationExpression": "id"}, {}),
    "identity": (
        (1, 6),
        {
            "delta.identity.start": 1,
            "delta.identity.step": 1,
            "delta.identity.highWaterMark": 2,
            "delta.identity.allowExplicitInsert": True,
        },
        {},
    ),
    "feed": ((1, 3), {}, {"delta.enableChangeDataFeed": "true"}),
    "ntz": ((1, 2), {"type": "timestamp_ntz"}, {}),
    "stamps": ((1, 4), {}, {"delta.enableInCommitTimestamps": "true"}),
    "widening": ((1, 5), {}, {"delta.enableTypeWidening": "true"}),
    "policy": ((1, 2), {}, {"delta.checkpointPolicy": "v2"}),
    "several": (
        (1, 6), {}, {"delta.appendOnly": "true", "delta.enableInCommitTimestamps": "true"},
    ),
    "mapping": ((2, 5), {}, {"delta.checkpointPolicy": "v2"}),
    "seven": ((1, 7), {}, {"delta.enableChangeDataFeed": "true"}),
}  # fmt: skip
_NOT_DELTALAKE = {"policy", "mapping", "widening", "stamps", "several", "identity", "generated"}


@pytest.mark.part(4)
@pytest.mark.parametrize("name", LEGACY_TABLES)
def test_a_legacy_table_that_was_upgraded_is_read_and_written_by_spark(
    delta_spark: SparkSession, tmp_path: Path, name: str
) -> None:
    version, field, configuration = LEGACY_TABLES[name]
    root = tmp_path / name
    _legacy_table(root, version, dict(field), configuration)
    [resource] = load_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\n"
        f"metadata: {{name: {name}}}\n"
        f"spec: {{location: '{root.as_uri()}', enableDeletionVectors: true}}\n"
    )
    assert isinstance(resource, LakeTable)
    adopt(open_table(resource), SystemClock(), SystemNonces())
    table = f"delta.`{root}`"
    x = "TIMESTAMP_NTZ '2026-01-01 00:00:00'" if name == "ntz" else "3"
    assert delta_spark.table(table).count() == 2
    delta_spark.sql(f"INSERT INTO {table} (id, x) VALUES (3, {x})")
    if name != "several":  # it is append-only
        delta_spark.sql(f"DELETE FROM {table} WHERE id = 1")
    ids = {row.id for row in delta_spark.table(table).collect()}
    assert ids == ({1, 2, 3} if name == "several" else {2, 3})
    if name not in _NOT_DELTALAKE:
        found = pa.table(DeltaTable(root).scan()).column("id").to_pylist()
        assert set(found) == ids


def test_new_files_are_logged_as_sparks_uris(delta_spark: SparkSession) -> None:
    java = present(delta_spark.sparkContext._jvm)
    for value in ODD_VALUES:
        path = writer.new_path("0123456789abcdef-1", {"p": value}, 0)
        assert java.org.apache.hadoop.fs.Path(path).toUri().toString() == writer.logged(path)
        folder = java.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName(
            value
        )
        assert path.split("/")[1] == f"p={folder}"


@pytest.mark.matrix
def test_a_vacuum_of_spark_keeps_new_files(delta_spark: SparkSession, tmp_path: Path) -> None:
    """It compares the encoded paths of files with those that the log names."""
    schema = pa.schema({"id": pa.int64(), "v": pa.int64(), "p": pa.string()})
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties={}, partition_by=["p"])
    count = len(ODD_VALUES)
    rows = pa.table({"id": range(count), "v": [0] * count, "p": ODD_VALUES}, schema=schema)
    write_deltalake(lake.location, rows, mode="append")
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    assert lake.run(lake.update("v = 0", v="1"), ports=ports).phase is Phase.SUCCEEDED
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    java, session = delta_spark.sparkContext._jvm, delta_spark._jsparkSession
    assert java is not None
    delta_spark.conf.set(check, "false")
    try:
        java.io.delta.tables.DeltaTable.forPath(session, str(lake.path)).vacuum(0.0)
    finally:
        delta_spark.conf.unset(check)
    found = delta_spark.read.format("delta").load(str(lake.path)).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(i, 1, value) for i, value in enumerate(ODD_VALUES)]


# Deletion vectors between us and Spark + Delta, the second oracle.


ROWS = 200


def create(root: Path) -> list[dict[str, Any]]:
    """Three files of `ROWS` rows each; returns their `add` actions."""
    for first in range(0, 3 * ROWS, ROWS):
        write_deltalake(
            str(root),
            pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())}),
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"},
        )
    return adds(root)


def adds(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for commit in sorted((root / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        found += [action["add"] for action in actions if "add" in action]
    return found


def spark_ids(spark: SparkSession, root: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(root)).collect())


def test_spark_hides_the_rows_that_we_delete(delta_spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    sets = [BitMap64([0, 7]), BitMap64(range(50, 150)), BitMap64(range(0, ROWS, 3))]
    ours = dv.write_file(store, "_tandem/dv/0123456789abcdef-1", sets[:2])
    ours.append(encode_inline(sets[2]))
    lines = []
    gone: set[int] = set()
    for add, vector, bitmap in zip(create(tmp_path), ours, sets, strict=True):
        described: dict[str, Any] = {
            "storageType": vector.storage,
            "pathOrInlineDv": vector.path_or_inline,
            "sizeInBytes": vector.size,
            "cardinality": vector.cardinality,
        }
        if vector.offset is not None:
            described["offset"] = vector.offset
        stats = {**json.loads(add["stats"]), "tightBounds": False}
        lines.append({"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}})
        lines.append({"add": {**add, "stats": json.dumps(stats), "deletionVector": described}})
        ids = pq.ParquetFile(tmp_path / add["path"]).read().column("id").to_pylist()
        gone |= {ids[position] for position in bitmap}
    text = "\n".join(json.dumps(line) for line in lines)
    store.put_if_absent(f"_delta_log/{3:020}.json", text.encode())
    assert spark_ids(delta_spark, tmp_path) == sorted(set(range(3 * ROWS)) - gone)


def test_tandem_hides_the_rows_that_spark_deletes(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    from delta.tables import DeltaTable as SparkTable

    create(tmp_path)
    SparkTable.forPath(delta_spark, str(tmp_path)).delete("id % 7 = 0 OR id BETWEEN 20 AND 90")
    store = open_store(str(tmp_path))
    live: list[int] = []
    latest = {add["path"]: add for add in adds(tmp_path)}
    assert any("deletionVector" in add for add in latest.values())
    for path, add in latest.items():
        ids = pq.ParquetFile(tmp_path / path).read().column("id").to_pylist()
        logged = add.get("deletionVector")
        bitmap = BitMap64()
        if logged:
            bitmap = dv.load(
                store,
                DeletionVector(
                    logged["storageType"],
                    logged["pathOrInlineDv"],
                    logged["sizeInBytes"],
                    logged["cardinality"],
                    logged.get("offset"),
                ),
            )
        assert not bitmap or bitmap.max() < len(ids)
        live += [row for position, row in enumerate(ids) if position not in bitmap]
    assert sorted(live) == spark_ids(delta_spark, tmp_path)
    assert sorted(live) == [n for n in range(3 * ROWS) if n % 7 and not 20 <= n <= 90]
