"""`tandem.spark.read` gives the rows of `format("delta")`, from the chosen files only, with the
Delta of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from delta_session import DELTA_PACKAGE
from index.test_exact_numbers import CONDITIONS, plain, spark_delta
from support.some import some
from support.statements.rows import runtime_errors
from tandem import index
from tandem.delta.log import files as files_
from tandem.errors import InvalidSpec, InvalidStatement, UnknownSegment
from tandem.index import Query
from tandem.spark import indexed, read
from tandem.spec import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("spark", "mapped", "deltalake")
ASKED = [
    "",
    "FALSE",
    "i32 < -100",
    "i32 < 5 OR i32 IS NULL",
    "i32 IS NOT NULL",
    *some(CONDITIONS, 20),
]


@pytest.fixture(scope="module")
def tables(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of a few rows: with deletion vectors, column mapping, and partitions."""
    parent = tmp_path_factory.mktemp("indexed")
    # `deltalake` decodes the path that it is given.
    names = {"spark": "a b%20c+d", "mapped": "mapped", "deltalake": "ü b+c"}
    roots = {name: parent / folder for name, folder in names.items()}
    spark_delta(delta_spark, roots["spark"])
    mapped = spark_delta(delta_spark, roots["mapped"], **{"delta.columnMapping.mode": "name"})
    delta_spark.sql(f"ALTER TABLE {mapped} RENAME COLUMN j32 TO renamed")
    delta_spark.sql(f"ALTER TABLE {mapped} ADD COLUMN added INT")
    rows = plain(delta_spark).drop("arr").toArrow()
    for start in range(0, rows.num_rows, 3):
        part = rows.take(list(range(start, min(start + 3, rows.num_rows))))
        write_deltalake(roots["deltalake"], part, mode="append", partition_by=["b2", "u"])
    DeltaTable(roots["deltalake"]).delete("i32 = 7")
    return roots


def by_delta(session: SparkSession, root: Path, version: int | None = None) -> DataFrame:
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(root))


def rows_of(frame: DataFrame) -> list[str]:
    """As texts by Spark: Python's calendar lacks some of the times."""
    return sorted(str(row[0]) for row in frame.selectExpr("CAST(struct(*) AS STRING)").collect())


@pytest.fixture
def no_warning() -> Iterator[None]:
    """Delta's scan was used, not what takes its place."""
    with capture_logs() as logs:
        yield
    assert logs == []


@pytest.mark.part(4)
@pytest.mark.usefixtures("no_warning")
@pytest.mark.parametrize("name", TABLES)
def test_rows_and_schema_are_those_of_delta(
    delta_spark: SparkSession, tables: dict[str, Path], name: str
) -> None:
    assert DELTA_PACKAGE.endswith(":4.4.0"), "read delta_scan.py again for another version"
    held = index.open_index(str(tables[name]))
    every = by_delta(delta_spark, tables[name])
    compared = 0
    for text in ASKED:
        try:
            expected = rows_of(every.where(text or "TRUE"))
        except runtime_errors():
            continue
        found = read(delta_spark, held, text)
        assert found.schema == every.schema
        assert rows_of(found) == expected, text
        compared += 1
    assert compared > len(ASKED) // 2


@pytest.mark.matrix
@pytest.mark.usefixtures("no_warning")
def test_every_version_can_be_read(delta_spark: SparkSession, tables: dict[str, Path]) -> None:
    root = tables["mapped"]
    held = index.open_index(str(root))
    for version in some(range(held.view().version + 1)):
        at = held.view(Query(version=version)).head.timestamp_ms
        every = by_delta(delta_spark, root, version)
        expected = rows_of(every)
        found = read(delta_spark, held, version=version)
        assert found.schema == every.schema
        assert rows_of(found) == expected
        assert rows_of(read(delta_spark, held, timestamp_ms=at)) == expected


@pytest.mark.parametrize("name", TABLES)
def test_only_the_chosen_files_are_read(
    delta_spark: SparkSession, tables: dict[str, Path], name: str
) -> None:
    held = index.open_index(str(tables[name]))
    chosen = held.splits(Query("i32 < -100"))
    paths = {f"{tables[name]}/{unquote(path)}" for path in chosen.files["path"].to_pylist()}
    found = read(delta_spark, held, "i32 < -100")

    assert 0 < len(paths) < len(held.splits())
    assert {file.partition(":")[2] for file in found.inputFiles()} == paths
    read_from = found.select("_metadata.file_path").distinct().collect()
    assert len(read_from) > 0
    assert {unquote(row[0]).partition(":")[2] for row in read_from} <= paths


def test_a_condition_that_is_certain_is_not_evaluated(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    root = numbered(tmp_path)
    held = index.open_index(root)
    certain, open_ = read(delta_spark, held, "id < 20"), read(delta_spark, held, "id < 15")
    assert (certain.count(), open_.count()) == (20, 15)
    assert "Filter" not in plan(certain)
    assert "Filter" in plan(open_)


def plan(frame: DataFrame) -> str:
    jdf: Any = frame._jdf
    return str(jdf.queryExecution().optimizedPlan().toString())


def numbered(folder: Path, files: int = 4) -> str:
    root = str(folder / "numbered")
    for n in range(files):
        write_deltalake(root, pa.table({"id": range(10 * n, 10 * n + 10)}), mode="append")
    return root


def test_X3_X22_only_the_named_segments(delta_spark: SparkSession, tables: dict[str, Path]) -> None:
    held = index.open_index(str(tables["deltalake"]))
    parts = held.view().chosen()
    names = sorted(set[str]().union(*(part.entries.segments_at(part.rows) for part in parts)))
    by_segment = [rows_of(read(delta_spark, held, segments=[name])) for name in names[:3]]
    assert len(names) > 3
    assert all(by_segment)

    some_ = read(delta_spark, held, segments=names[:3])
    assert rows_of(some_) == sorted(row for rows in by_segment for row in rows)
    chosen = held.splits(Query(segments=names[:3]))
    assert len(some_.inputFiles()) == len(chosen) < len(held.splits())
    with pytest.raises(UnknownSegment):
        read(delta_spark, held, segments=["f-000000000000"])


def no_class(session: SparkSession, jvm: Any, splits: object) -> DataFrame:
    indexed._known(jvm.org.apache.spark.sql.delta.MovedElsewhere)
    raise AssertionError("there is such a class")


def other_parameters(session: SparkSession, jvm: Any, splits: object) -> DataFrame:
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, 1, 2, 3, 4, 5)
    raise AssertionError("it takes such parameters")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("planted", "problem"), [(no_class, "MovedElsewhere"), (other_parameters, "forTable")]
)
def test_without_the_scan_of_delta_the_rows_are_the_same(
    delta_spark: SparkSession, tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    planted: Callable[..., DataFrame], problem: str,
) -> None:  # fmt: skip
    held = index.open_index(str(tables["deltalake"]))
    parts = held.view().chosen()
    segments = sorted(set[str]().union(*(p.entries.segments_at(p.rows) for p in parts)))[:4]
    asked: list[dict[str, Any]] = [
        {"where": "i32 < -100"}, {"version": 3}, {"segments": segments},
        {"where": "i32 < 9 OR i32 IS NULL", "segments": segments[:2]},
    ]  # fmt: skip
    expected = [rows_of(read(delta_spark, held, **each)) for each in asked]
    monkeypatch.setattr(indexed, "_scan", planted)
    with capture_logs() as logs:
        found = [rows_of(read(delta_spark, held, **each)) for each in asked]
    assert found == expected
    assert all(expected)
    assert [log["log_level"] for log in logs] == ["warning"] * len(asked)
    assert all(problem in log["problem"] for log in logs)


def test_another_table_of_the_same_version_is_not_read_as_this_one(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    write_deltalake(str(root), pa.table({"a": [1]}))
    assert rows_of(read(delta_spark, str(root))) == ["{1}"]
    for path in sorted(root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    write_deltalake(str(root), pa.table({"a": [2], "b": ["x"]}))
    assert rows_of(read(delta_spark, str(root))) == ["{2, x}"]


def test_a_view_in_sql(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = numbered(tmp_path)
    read(delta_spark, root, "id >= 25").createOrReplaceTempView("late")
    found = delta_spark.sql("SELECT count(*), min(id) FROM late WHERE id <> 30").collect()
    assert [tuple(row) for row in found] == [(14, 25)]
    write_deltalake(root, pa.table({"id": [99]}), mode="append")
    assert delta_spark.table("late").count() == 15, "a view stays at its version"
    assert read(delta_spark, root, "id >= 25").count() == 16


def test_a_table_without_rows(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    write_deltalake(root, pa.table({"a": pa.array([], pa.int64())}))
    for found in (read(delta_spark, root), read(delta_spark, root, "a = 1")):
        assert found.schema.simpleString() == "struct<a:bigint>"
        assert found.collect() == []


def test_a_lake_table_names_its_location(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = numbered(tmp_path)
    table = LakeTable.model_validate(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "numbers"},
            "spec": {"location": f"file://{root}"},
        }
    )
    assert read(delta_spark, table, "id = 7").collect()[0].id == 7
    with pytest.raises(InvalidSpec, match="opened before"):
        read(delta_spark, index.open_index(root), base=True)
    with pytest.raises(InvalidStatement):
        read(delta_spark, root, "nope = 7")


@pytest.mark.matrix
def test_what_delta_knows_of_rows_and_files(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    delta_spark.sql(
        f"CREATE TABLE delta.`{root}` (id INT, c CHAR(4)) USING delta "
        "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    )
    for n in range(2):
        delta_spark.sql(f"INSERT INTO delta.`{root}` VALUES ({n}, 'x'), ({n + 10}, 'y')")
    columns = ["id", "length(c)", "_metadata.row_id", "_metadata.row_commit_version",
               "_metadata.file_modification_time", "_metadata.file_name", "_metadata.file_size",
               ]  # fmt: skip
    where = "id IN (1, 11)"
    found = read(delta_spark, str(root), where).selectExpr(*columns)
    expected = by_delta(delta_spark, root).where(where).selectExpr(*columns)
    assert rows_of(found) == rows_of(expected)
    assert found.count() == 2


def test_a_setting_that_changes_the_condition_is_refused_by_its_name(
    delta_spark: SparkSession, tables: dict[str, Path]
) -> None:
    root = str(tables["spark"])
    times = "ts >= TIMESTAMP '2020-01-01 00:00:00'"
    expected = {text: read(delta_spark, root, text).count() for text in ("i32 < -100", times)}
    other = delta_spark.newSession()
    for key, value in {"spark.sql.session.timeZone": "Asia/Tokyo",
                       "spark.sql.variable.substitute": "true"}.items():  # fmt: skip
        other.conf.set(key, value)
    assert {text: read(other, root, text).count() for text in expected} == expected
    for text in ("hour(ts) = 1", "ts = d", "ts > '2020-01-01'", "CAST(ts AS DATE) = d"):
        with pytest.raises(InvalidSpec) as refused:
            read(other, root, text)
        assert refused.value.field == "spark.sql.session.timeZone"
        assert (refused.value.found, refused.value.expected) == ("Asia/Tokyo", "UTC")
    other.conf.set("spark.sql.ansi.enabled", "false")
    with pytest.raises(InvalidSpec) as refused:
        read(other, root, "i32 < -100")
    assert refused.value.field == "spark.sql.ansi.enabled"
    assert read(other, root).count() == read(delta_spark, root).count()


def test_many_files_get_over_in_a_few_calls(delta_spark: SparkSession) -> None:
    count = 2 * indexed._AT_ONCE + 1
    row = {"partition_values": [("p", 'a"\u20ac')], "size": 5, "modified_ms": 7,
           "data_change": True}  # fmt: skip
    columns = {name: [value] * count for name, value in row.items()}
    columns["path"] = [f"part-{n}.parquet" for n in range(count)]
    arrays = [
        pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type)
        for f in files_.SCHEMA
    ]
    files = pa.table(arrays, schema=files_.SCHEMA)
    found = indexed._files(delta_spark, delta_spark._jvm, files)
    assert found.size() == count
    for at in (0, indexed._AT_ONCE, count - 1):
        add = found.apply(at)
        assert (add.path(), add.size(), add.modificationTime()) == (f"part-{at}.parquet", 5, 7)
        assert add.partitionValues().apply("p") == 'a"\u20ac'


def test_the_file_system_of_s3_is_hadoops(delta_spark: SparkSession) -> None:
    assert indexed.spark_location(delta_spark, "s3://lake/a%20b") == "s3a://lake/a b"
    assert indexed.spark_location(delta_spark, "gs://lake/x") == "gs://lake/x"
    assert indexed.spark_location(delta_spark, "file:///a%20b") == "file:///a b"
