"""Tables whose data files Iceberg can read (icebergCompatV2, materializePartitionColumns): each new
file has the partition columns, ids for all fields, elements, keys and values, and no INT96. Spark +
Delta makes the tables and is the judge; the ids that are expected are those in the log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake, of_kind
from support.lake.lake import Lake, Lakes, message, reason
from tandem.delta.actions import AddFile, Protocol
from tandem.delta.log.codec import encode_action
from tandem.delta.protocol import writer_features
from tandem.delta.scan import scan
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

COLUMNS = (
    "id BIGINT, k BIGINT, v BIGINT, p STRING, d DATE, f DOUBLE, at TIMESTAMP, a ARRAY<INT>, "
    "m MAP<STRING, ARRAY<STRUCT<x: DOUBLE, `a.b`: ARRAY<DATE>>>>"
)
TYPES = pa.schema(
    [
        *((name, pa.int64()) for name in ("id", "k", "v")),
        ("p", pa.string()),
        ("d", pa.date32()),
        ("f", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("a", pa.list_(pa.int32())),
        (
            "m",
            pa.map_(
                pa.string(),
                pa.list_(pa.struct([("x", pa.float64()), ("a.b", pa.list_(pa.date32()))])),
            ),
        ),
    ]
)
PARTITIONS = (None, "x y", "é/'")
DAYS = (date(1970, 1, 1), date(9999, 12, 31), None)
FLOATS = (0.5, -0.0, float("nan"), None)
V2 = {"delta.enableIcebergCompatV2": "true"}
MATERIALIZED = {"delta.enableMaterializePartitionColumnsFeature": "true"}


def some(numbers: range) -> pa.Table:
    nested = [{"x": -0.0, "a.b": [date(2020, 1, 1), None]}, None]
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "k": n % 5,
                "v": n * 100,
                "p": PARTITIONS[n % 3],
                "d": DAYS[n % 2],
                "f": FLOATS[n % 4],
                "at": datetime(1400 + n, 1, 1, tzinfo=UTC),
                "a": None if n % 4 == 3 else [n, None],
                "m": [(f"key {n}", None if n % 4 == 2 else nested)],
            }
            for n in numbers
        ],
        TYPES,
    )


def create(
    lakes: Lakes, properties: Mapping[str, str], mode: str = "name", partitions: str = "f, p, d"
) -> Lake:
    lake = lakes.empty()
    shutil.rmtree(lake.path)
    settings = {"delta.columnMapping.mode": mode, "delta.enableDeletionVectors": "false"}
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in {**settings, **properties}.items())
    lake.delta_spark.sql(
        f"CREATE TABLE {lake.sql_name} ({COLUMNS}) USING delta "
        f"{f'PARTITIONED BY ({partitions})' if partitions else ''} TBLPROPERTIES ({listed})"
    )
    arrow = of_kind(ArrowLake, lake.location, lake.sources)
    arrow.spark, arrow.first_version = lake.spark, lake.version
    return arrow


def insert(lake: Lake, numbers: range) -> None:
    """By Spark."""
    path = lake.source(some(numbers)).as_uri()
    lake.sql(f"INSERT INTO TABLE SELECT * FROM parquet.`{path}`")


@pytest.fixture
def lakes(
    spark: SparkSession,
    delta_spark: SparkSession,
    tmp_path: Path,
    templates: Path,
) -> Iterator[Lakes]:
    conf = delta_spark.conf
    conf.set("spark.sql.parquet.compression.codec", "zstd")
    yield Lakes(spark, tmp_path, templates, spark_works=False)
    conf.unset("spark.sql.parquet.compression.codec")


def content(lake: Lake) -> list[str]:
    return sorted(map(repr, pa.table(scan(lake.log.snapshot(), lake.store)).to_pylist()))


def ids(lake: Lake) -> set[int]:
    found = pa.table(scan(lake.log.snapshot(), lake.store, ["id"]))["id"].to_pylist()
    assert len(set(found)) == len(found)
    return set(found)


def by_spark(lake: Lake) -> list[str]:
    """As `content`."""
    frame = lake.delta_spark.read.format("delta").load(str(lake.path))
    return sorted(map(repr, frame.toArrow().to_pylist()))


def new_files(lake: Lake, since: int) -> Iterator[AddFile]:
    for version in range(since + 1, lake.version + 1):
        info = lake.commit(version).info
        if info is not None and "tandem" in str(info.body.get("engineInfo")).lower():
            yield from (a for a in lake.commit(version).actions if isinstance(a, AddFile))


def expected_ids(field: Mapping[str, Any], compat: bool) -> Iterator[tuple[str, str]]:
    """(path, id) of a column in the log and of all in it, as the protocol names them."""

    def inside(type_: Any, near: Mapping[str, Any], key: str, path: str) -> Iterator[Any]:
        nested = near["metadata"].get("delta.columnMapping.nested.ids", {})
        if isinstance(type_, str):
            return
        if type_["type"] == "struct":
            for each in type_["fields"]:
                name = each["metadata"]["delta.columnMapping.physicalName"]
                yield f"{path}.{name}", str(each["metadata"]["delta.columnMapping.id"])
                yield from inside(each["type"], each, name, f"{path}.{name}")
            return
        for part, inner in {
            "array": {"element": "elementType"},
            "map": {"key": "keyType", "value": "valueType"},
        }[type_["type"]].items():
            if compat:
                yield f"{path}.{part}", str(nested[f"{key}.{part}"])
            yield from inside(type_[inner], near, f"{key}.{part}", f"{path}.{part}")

    name = field["metadata"]["delta.columnMapping.physicalName"]
    yield name, str(field["metadata"]["delta.columnMapping.id"])
    yield from inside(field["type"], field, name, name)


def found_ids(field: pa.Field, path: str = "") -> Iterator[tuple[str, str]]:
    id_ = (field.metadata or {}).get(b"PARQUET:field_id")
    own = f"{path}{field.name}"
    if id_ is not None:
        yield own, id_.decode()
    type_ = field.type
    if pa.types.is_struct(type_):
        for each in type_:
            yield from found_ids(each, f"{own}.")
    elif pa.types.is_list(type_):
        yield from found_ids(type_.value_field.with_name("element"), f"{own}.")
    elif pa.types.is_map(type_):
        yield from found_ids(type_.key_field.with_name("key"), f"{own}.")
        yield from found_ids(type_.item_field.with_name("value"), f"{own}.")


def check_files(lake: Lake, since: int, *, compat: bool) -> int:
    """Of each file that Tandem added after a version; how many there are."""
    snapshot = lake.log.snapshot()
    fields = json.loads(snapshot.metadata.schema_string)["fields"]
    wanted = {path: id_ for field in fields for path, id_ in expected_ids(field, compat)}
    partitions = [
        field["metadata"]["delta.columnMapping.physicalName"]
        for name in snapshot.partition_columns
        for field in fields
        if field["name"] == name
    ]
    count = 0
    for add in new_files(lake, since):
        file = pq.ParquetFile(lake.path / add.path)
        names = file.schema_arrow.names
        found = {path: id_ for each in file.schema_arrow for path, id_ in found_ids(each)}
        assert found == wanted
        assert names[len(fields) - len(partitions) :] == partitions
        stats = json.loads(str(add.stats))
        assert stats["numRecords"] == file.metadata.num_rows
        assert not {*partitions} & {*stats["minValues"], *stats["nullCount"]}
        columns = [file.schema.column(n) for n in range(len(file.schema))]
        assert "INT96" not in {column.physical_type for column in columns}
        if partitions:
            [row] = file.read(partitions).group_by(partitions).aggregate([]).to_pylist()
            assert {name: None if v is None else str(v) for name, v in row.items()} == {
                name: None if v is None else v if v != "NaN" else "nan"
                for name, v in add.partition_values.items()
            }
        count += 1
    return count


STEPS: tuple[Callable[[Lake], Operation], ...] = (
    lambda lake: lake.update("k = 1", p="'moved'", v="v + 1"),
    lambda lake: lake.compaction("Major", minRowGroupRows=0),
    lambda lake: lake.delete("id IN (3, 9, 14, 41)"),
    lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v", "id"]}),
    lambda lake: lake.compaction("Major", layout={"strategy": "ZOrder", "columns": ["id", "at"]}),
)

TABLES: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "V2": (V2, "name", "f, p, d"),
    "V2, by id": (V2, "id", "p"),
    "V2, no partitions": (V2, "name", ""),
    "materialized": (MATERIALIZED, "name", "d, p"),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind == "materialized" else pytest.mark.matrix)
        for kind in TABLES
    ],
)
def test_all_operations_keep_what_iceberg_needs(lakes: Lakes, kind: str) -> None:
    properties, mode, partitions = TABLES[kind]
    lake = create(lakes, properties, mode, partitions)
    insert(lake, range(12))
    insert(lake, range(12, 18))
    for number, step in enumerate(STEPS):
        if number % 2:
            insert(lake, range(40 + 5 * number, 45 + 5 * number))
        before, version = content(lake), lake.version
        operation = step(lake)
        status = lake.run(operation)
        assert status.phase is Phase.SUCCEEDED, message(status)
        assert lake.version > version, operation
        if operation.id.startswith("TableCompaction/"):
            assert content(lake) == before
        else:
            assert content(lake) != before
    assert check_files(lake, lake.first_version, compat=properties is V2) > len(STEPS)
    assert by_spark(lake) == content(lake)
    # Delta's own checks: they look at the table that this writes to.
    lake.sql("UPDATE TABLE SET v = 0 WHERE id = 1")
    lake.sql("INSERT INTO TABLE SELECT * FROM TABLE WHERE id = 1")


@pytest.mark.part(2)
@pytest.mark.parametrize(
    "kind", ["V2", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in list(TABLES)[1:])]
)
def test_jobs_of_spark_write_what_iceberg_needs(lakes: Lakes, kind: str) -> None:
    properties, mode, partitions = TABLES[kind]
    lake = create(lakes, properties, mode, partitions)
    working = Lake(lake.location, lake.spark, lake.sources, lake.store)
    working.first_version = lake.version
    source = {"format": "Parquet", "location": working.source(some(range(12))).as_uri()}
    working.do(working.resource("TableIngest", {"source": source}))
    working.do(working.merge(working.source(some(range(6, 15)))))
    working.do(working.compaction("Major"))
    scopes = {"AtStart": range(60, 72, 3), "AtCommit": range(72, 90, 3)}
    if not partitions:
        del scopes["AtCommit"]  # it does not go with segments
    for scope, numbers in scopes.items():
        # A partition's rows by others of it; without partitions, those of a segment.
        inside = some(numbers).set_column(3, "p", pa.array(["x y"] * len(numbers)))
        place = {"partitions": [{"p": "x y"}]} if partitions else {"segments": [working.names[0]]}
        body = {"format": "Parquet", "location": working.source(inside).as_uri()}
        working.do(
            working.resource("TableReplace", {"replace": place, "scope": scope, "source": body})
        )
        assert {n for n in ids(working) if n >= numbers.start} == {*numbers}
    assert check_files(working, lake.first_version, compat=properties is V2) > 5
    assert by_spark(working) == content(working)
    lake.sql("UPDATE TABLE SET v = 0 WHERE id = 1")


CONTRADICTIONS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "vectors": ({"delta.enableDeletionVectors": "true"}, "it forbids deletion vectors"),
    "V3, too": ({"delta.enableIcebergCompatV3": "true"}, "enable one version"),
    "no mapping": ({"delta.columnMapping.mode": "none"}, "it needs column mapping"),
}
"""Properties beside `V2`, which Spark would refuse to set, and what the refusal says."""


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_what_contradicts_the_feature_is_refused(tmp_path: Path, kind: str) -> None:
    more, expected = CONTRADICTIONS[kind]
    lake = quick_lake.make(tmp_path, 2, properties={})
    snapshot = lake.log.snapshot()
    features = frozenset({"icebergCompatV2", "icebergCompatV3", "columnMapping", "deletionVectors"})
    both = features & {"columnMapping", "deletionVectors"}
    settings = {"delta.columnMapping.mode": "name", **V2, **more}
    lake.log_raw(
        encode_action(Protocol(3, 7, both, features)),
        encode_action(replace(snapshot.metadata, configuration=settings)),
    )
    status = lake.run(lake.update("id = 1", v="0"))
    assert (reason(status), lake.version) == ("UnsupportedFeature", snapshot.version + 1)
    assert "icebergCompatV2" in message(status)
    assert expected in message(status)


def test_the_demands_of_a_table_change_meanwhile(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 3, properties={}, partition_by=["k"])
    held = lake.hold(lake.compaction("Major"), Point.PUT_COMMIT)
    features = writer_features(lake.log.snapshot().protocol) | {"materializePartitionColumns"}
    lake.log_raw(encode_action(Protocol(1, 7, frozenset(), features)))
    since = lake.version
    held.succeed()
    added = list(new_files(lake, since))
    assert added
    assert all("k" in pq.read_schema(lake.path / add.path).names for add in added)
