"""Sources of Hive folders: `year=2024/…`. Judged by what Spark reads of the same folders with the
schema of the table, and by what was written into them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from support.jobs import job_files as jobs
from support.jobs.both_ways import both_ways as both_ways
from tandem.errors import InvalidSpec, StatementFailed
from tandem.jobs.formats import IngestJob, MergeClause, MergeJob
from tandem.spark.jobs import ingest, merge
from tandem.spark.runtime.control import Control, answer
from tandem.spark.runtime.listing import FolderColumn, HiveFolders, hive_folders

# Names -------------------------------------------------------------------------------------------


def found(*paths: str, above: str = "/lake") -> HiveFolders:
    return hive_folders(paths, above, location="file:///lake", field="spec.source")


def test_folders_are_columns_in_their_order_and_escapes_are_text() -> None:
    of = found("Year=2024/t=10%3A00/x.csv", f"Year=2025/t={quote('ü/=%', safe='')}/y/z=1.csv")
    assert of.names == ("Year", "t")
    assert of.values == (("2024", "10:00"), ("2025", "ü/=%"))
    assert found("a/b/p=__HIVE_DEFAULT_PARTITION__/x.csv").values == ((None,),)
    assert found("p=1=2/x.csv").values == (("1=2",),)
    assert found("x.csv", "y/z.csv").names == ()


def test_the_location_has_folders_of_its_own() -> None:
    assert found("x.csv", above="/a=0/lake/year=2024/m=%31").above == {"year": "2024", "m": "1"}
    assert found("x.csv", above="/lake/year=2024/raw").above == {"year": "2024"}
    assert found("x.csv", above="/lake/=1/y=").above == {}


@pytest.mark.parametrize(
    "paths",
    [
        ("p=1/x.csv", "x.csv"),
        ("x.csv", "p=1/x.csv"),
        ("p=1/x.csv", "q=1/x.csv"),
        ("p=1/x.csv", "p=1/q=1/x.csv"),
        ("p=1/q=1/x.csv", "q=1/p=1/x.csv"),
        ("a/p=1/x.csv", "b/p=1/x.csv"),
        ("p=1/a/q=1/x.csv",),
        ("p=1/P=2/x.csv",),
        ("p=/x.csv",),
        ("=1/x.csv",),
        ("p=%FF/x.csv",),
    ],
)
def test_folders_that_do_not_agree_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpec, match="do not agree") as caught:
        found(*paths)
    assert caught.value.field == "spec.source"
    assert paths[-1] in caught.value.found or paths[0] in caught.value.found


@pytest.mark.parametrize(
    ("type_", "text", "exact"),
    [
        ("string", "01", "01"),
        ("integer", "01", "1"),
        ("byte", "-7", "-7"),
        ("decimal(5,2)", "1.5", "1.50"),
        ("double", "1e3", "1000.0"),
        ("boolean", "TRUE", "true"),
        ("date", "2024-1-5", "2024-01-05"),
        ("date", "2024-01-05 00:00:00", "2024-01-05"),
        ("timestamp", "2024-01-05", "2024-01-05T00:00:00.000000Z"),
        ("timestamp", "2024-01-05 10:00:00.5", "2024-01-05T10:00:00.500000Z"),
        ("timestamp", "2024-01-05T10:00:00+01:00", "2024-01-05T09:00:00.000000Z"),
        ("timestamp_ntz", "2024-01-05 10:00:00", "2024-01-05 10:00:00.000000"),
        ("integer", None, None),
    ],
)
def test_a_text_is_a_value_of_the_columns_type(
    type_: str, text: str | None, exact: str | None
) -> None:
    assert FolderColumn("p", type_, (text,), overrides=True).text(0, "p=x/y") == exact


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("integer", "2024a"),
        ("integer", "1.0"),
        ("integer", "3000000000"),
        ("byte", "128"),
        ("decimal(5,2)", "1.239"),
        ("decimal(3,2)", "100"),
        ("boolean", "yes"),
        ("date", "2024-01-05 10:00"),
        ("date", "2024-02-30"),
        ("timestamp", "10:00"),
        ("timestamp", "2024-01-05 10:00:00.1234567"),
        ("timestamp_ntz", "2024-01-05 10:00:00Z"),
        ({"type": "array", "elementType": "string", "containsNull": True}, "x"),
        ("other", "x"),
    ],
)
def test_a_text_that_is_none_is_refused(type_: Any, text: str) -> None:
    with pytest.raises(StatementFailed, match="name of a folder") as caught:
        FolderColumn("p", type_, (text,), overrides=True).text(0, "p=x/y")
    assert caught.value.resource == "p=x/y"
    assert caught.value.found == text


# Rows --------------------------------------------------------------------------------------------

TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("year", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("late", pa.string()),
    ]
)
TEXTS = ["10:00", "a b/c", "x=y", "100%", "01", "ü", "it's", None, "__x"]
FORMATS = ["Parquet", "Csv", "Json"]
Rows = list[dict[str, Any]]


def rows_of(count: int = len(TEXTS)) -> Rows:
    return [
        {
            "id": n,
            "day": dt.date(2024, 1, 1 + n),
            "text": TEXTS[n],
            "year": 2020 + n % 2,
            "at": dt.datetime(2024, 1, 1, n, 30, tzinfo=dt.UTC),
            "late": None,
        }
        for n in range(count)
    ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(str(tmp_path / "t"), TABLE.empty_table())
    return tmp_path / "t"


@pytest.fixture
def tree(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """Written by Spark, in one of the formats; `id` is in the files, `late` nowhere."""
    form = request.param
    path = tmp_path / "tree"
    rows = spark.createDataFrame(pa.Table.from_pylist(rows_of(), TABLE)).drop("late")
    writer = rows.coalesce(1).write.partitionBy("year", "text", "day", "at")
    writer.option("header", "true").format(form.lower()).save(str(path))
    return path, form


def by_spark(spark: SparkSession, path: Path, form: str) -> Rows:
    schema = spark.createDataFrame(TABLE.empty_table()).schema
    reader = spark.read.schema(schema).option("header", "true").format(form.lower())
    return in_order(reader.load(str(path)).select(*TABLE.names).toArrow().to_pylist())


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["id"], str(row)))


def ingest_of(table: Path, source: Path, form: str, attempt: int = 1, **options: str) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    if form == "Csv":
        options = {"header": "true", **options}
    job = IngestJob(
        source_format=form,
        source_location=source.as_uri(),
        source_options=options,
        target_file_size=1 << 30,
    )
    return jobs.control(store, snapshot, job, attempt)


def ingested(spark: SparkSession, job: Control) -> Rows:
    assert answer(lambda c: ingest.run(c, spark), job) == 0, jobs.failure(job).message
    rows: Rows = []
    for output in jobs.result(job).outputs:
        rows += jobs.read_output(job, output.path, output.partition_values).to_pylist()
    return in_order(rows)


def refused(spark: SparkSession, job: Control) -> str:
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    assert not jobs.failure(job).transient
    return jobs.failure(job).message


def leaves(tree: Path) -> list[Path]:
    return sorted({file.parent for file in tree.rglob("part-*") if file.suffix != ".crc"})


@pytest.mark.parametrize("tree", FORMATS, indirect=True)
def test_the_parent_gives_what_spark_reads(
    table: Path, tree: tuple[Path, str], spark: SparkSession
) -> None:
    path, form = tree
    assert ingested(spark, ingest_of(table, path, form)) == by_spark(spark, path, form)
    assert by_spark(spark, path, form) == rows_of()


@pytest.mark.parametrize("tree", FORMATS, indirect=True)
def test_one_folder_gives_its_part_and_no_null(
    table: Path, tree: tuple[Path, str], spark: SparkSession
) -> None:
    path, form = tree
    expected = rows_of()
    year = path / "year=2021"
    assert ingested(spark, ingest_of(table, year, form)) == [
        r for r in expected if r["year"] == 2021
    ]
    leaf = leaves(path)[0]
    [file] = [file for file in leaf.glob("part-*") if file.suffix != ".crc"]
    [row] = ingested(spark, ingest_of(table, leaf, form, 2))
    assert row in expected
    assert ingested(spark, ingest_of(table, file, form, 3)) == [row]


def test_csv_without_a_header_has_the_other_columns_in_their_order(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "in" / "year=2021" / "text=a%20b"
    folder.mkdir(parents=True)
    at = "2024-01-01 10:00:00"
    (folder / "x.csv").write_text(f"1,2024-01-02,{at},z\n")
    job = ingest_of(table, tmp_path / "in", "Csv", 1, header="false")
    [row] = ingested(spark, job)
    assert (row["id"], row["year"], row["text"], row["late"]) == (1, 2021, "a b", "z")
    # One folder: without its columns, or with them.
    assert ingested(spark, ingest_of(table, folder, "Csv", 2, header="false")) == [row]
    (folder / "x.csv").write_text(f"1,2024-01-02,own,7,{at},z\n")
    [own] = ingested(spark, ingest_of(table, folder, "Csv", 3, header="false"))
    assert own == {**row, "text": "own", "year": 7}
    message = refused(spark, ingest_of(table, tmp_path / "in", "Csv", 4, header="false"))
    assert "a different number of columns" in message


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_that_files_have_too_is_the_folders_as_for_spark(
    form: str, table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """Below the location. Of one folder, Spark reads the files alone: there they count."""
    folder = tmp_path / "in" / "year=2021"
    folder.mkdir(parents=True)
    rows: Rows = [{"id": 1, "Year": 1999}, {"id": 2, "Year": 1998}]
    if form == "Parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    elif form == "Csv":
        (folder / "x.csv").write_text("Year,id\n1999,1\n1998,2\n")
    else:
        (folder / "x.json").write_text("\n".join(map(json.dumps, rows)))
    for attempt, (source, years) in enumerate(
        [(tmp_path / "in", [2021, 2021]), (folder, [1999, 1998])], start=1
    ):
        found = ingested(spark, ingest_of(table, source, form, attempt))
        assert [row["year"] for row in found] == years
        reader = spark.read.option("header", "true").format(form.lower())
        theirs = reader.load(str(source)).selectExpr("CAST(id AS INT)", "CAST(year AS INT)")
        assert sorted(tuple(row) for row in theirs.collect()) == list(enumerate(years, start=1))


def test_rows_of_json_that_lack_the_field_have_the_folders_value(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "year=2021"
    folder.mkdir()
    (folder / "x.json").write_text('{"id": 1}\n{"id": 2, "year": 1999}\n')
    found = ingested(spark, ingest_of(table, folder, "Json"))
    assert [row["year"] for row in found] == [2021, 1999]


def test_files_of_one_folder_may_differ_in_whether_they_have_the_column(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "year=2021"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "a.parquet")
    pq.write_table(pa.table({"id": [2], "year": [1999]}), folder / "b.parquet")
    found = ingested(spark, ingest_of(table, folder, "Parquet"))
    assert [row["year"] for row in found] == [2021, 1999]


def test_a_folder_of_the_location_that_is_no_column_means_nothing(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """As before there were partition folders, and as for Spark."""
    folder = tmp_path / "run=10:00" / "year=backup"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "year": [1999]}), folder / "a.parquet")
    [row] = ingested(spark, ingest_of(table, folder, "Parquet"))
    assert row["year"] == 1999
    message = refused(spark, ingest_of(table, tmp_path / "run=10:00", "Parquet", 2))
    assert "the name of a folder is no value of its column (found: backup" in message
    message = refused(spark, ingest_of(table, tmp_path, "Parquet", 3))
    assert "partition columns" in message or "columns that the table lacks" in message


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_of_folders_that_the_table_lacks_is_refused(
    form: str, table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "in" / "shop=7"
    folder.mkdir(parents=True)
    if form == "Parquet":
        pq.write_table(pa.table({"id": [1]}), folder / "x")
    else:
        (folder / "x").write_text("id\n1\n" if form == "Csv" else '{"id": 1}\n')
    message = refused(spark, ingest_of(table, tmp_path / "in", form))
    assert "columns that the table lacks (found: shop" in message


def test_what_spark_reads_of_hidden_folders_is_read(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    write_deltalake(
        str(tmp_path / "u"), pa.schema([("id", pa.int64()), ("_p", pa.int32())]).empty_table()
    )
    for name in ("_p=1/a", "_p=2/_b", ".p=3/c", "_temporary/_p=4/d"):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), file)
    assert ingested(spark, ingest_of(tmp_path / "u", tmp_path / "in", "Parquet")) == [
        {"id": 1, "_p": 1}
    ]
    assert spark.read.parquet(str(tmp_path / "in")).count() == 1


def test_folders_by_pyarrow_are_read_as_they_were_written(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """It escapes UTF-8, which Spark takes for Latin-1."""
    rows = pa.Table.from_pylist(rows_of(), TABLE)
    columns = pa.schema([TABLE.field("text"), TABLE.field("year")])
    ds.write_dataset(
        rows,
        tmp_path / "in",
        format="parquet",
        partitioning=ds.partitioning(columns, flavor="hive"),
    )
    assert ingested(spark, ingest_of(table, tmp_path / "in", "Parquet")) == rows_of()


# Merges ------------------------------------------------------------------------------------------


def merge_of(
    table: Path, source: Path, form: str, attempt: int, on: str, insert: tuple[str, ...]
) -> Control:
    """Sets `late` of rows that match, and inserts others with these columns."""
    store, snapshot = jobs.snapshot_of(table)
    job = MergeJob(
        source_format=form,
        source_location=source.as_uri(),
        source_options={"header": "true"} if form == "Csv" else {},
        on=on,
        clauses=(
            MergeClause(when="Matched", action="Update", set={"late": "concat('y', s.year)"}),
            MergeClause(
                when="NotMatched", action="Insert", set={name: f"s.{name}" for name in insert}
            ),
        ),
        target_file_size=1 << 30,
        inputs=jobs.input_files(store, snapshot),
    )
    made = jobs.control(store, snapshot, job, attempt)
    made.store.put(made.path("done.json"), b"{}")
    return made


def written(job: Control) -> Rows:
    rows: Rows = []
    for output in jobs.result(job).outputs:
        rows += jobs.read_output(job, output.path, output.partition_values).to_pylist()
    return in_order(rows)


@pytest.mark.part(3)
@pytest.mark.parametrize("local", [False, True], ids=["spark", "arrow"])
@pytest.mark.parametrize("tree", FORMATS, indirect=True)
def test_a_merge_has_the_columns_of_the_folders(
    table: Path, tree: tuple[Path, str], spark: SparkSession, local: bool
) -> None:
    """Compared and written, of the parent and of one folder, with types of the table."""
    path, form = tree
    write_deltalake(str(table), pa.Table.from_pylist(rows_of(2), TABLE), mode="append")
    expected = rows_of()
    for row in expected[:2]:
        row["late"] = f"y{row['year']}"
    on, names = "t.id = s.id AND t.year = s.year AND t.at = s.at", tuple(TABLE.names[:-1])
    job = merge_of(table, path, form, 1, on, names)
    assert answer(lambda c: merge.run(c, spark, local=local), job) == 0, jobs.failure(job).message
    assert written(job) == expected
    leaf = next(each for each in leaves(path) if each.match("*/text=10%3A00/*/*"))
    job = merge_of(table, leaf, form, 2, on, names)
    job.store.delete([job.spec.control_prefix.rpartition("/attempts/")[0] + "/source.json"])
    assert answer(lambda c: merge.run(c, spark, local=local), job) == 0, jobs.failure(job).message
    assert written(job) == expected[:1]


def test_a_column_of_folders_that_a_merges_table_lacks_is_text(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    write_deltalake(str(table), pa.Table.from_pylist(rows_of(2), TABLE), mode="append")
    for shop in ("7", "08"):
        (tmp_path / "in" / f"shop={shop}").mkdir(parents=True)
        pq.write_table(
            pa.table({"id": [int(shop) - 7], "year": [1]}), tmp_path / "in" / f"shop={shop}" / "x"
        )
    on = "t.id = s.id AND s.shop IN ('7', '08')"
    job = merge_of(table, tmp_path / "in", "Parquet", 1, on, ("id",))
    assert answer(lambda c: merge.run(c, spark), job) == 0, jobs.failure(job).message
    assert [row["late"] for row in written(job)] == ["y1", "y1"]
