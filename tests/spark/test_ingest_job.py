"""The ingest job: sources of every format end as rows of the table's schema, or as an error."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from delta_session import interpreting
from support.jobs import job_files as jobs
from support.jobs.both_ways import both_ways as both_ways
from support.lake.lake import Lakes
from support.lake.rows import k_is, plus, rows
from support.lake.s3 import S3Server
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import Reason
from tandem.jobs.formats import IngestJob
from tandem.spark.jobs import ingest
from tandem.spark.runtime.control import Control, answer
from tandem.spark.sources import text_frames

SOURCE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["it's", None, "c,d"]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("late", pa.int32())])
    write_deltalake(str(tmp_path / "t"), schema.empty_table())
    return tmp_path / "t"


def job_for(
    table: Path,
    form: str,
    source: Path,
    options: dict[str, str] | None = None,
    attempt: int = 1,
) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    job = IngestJob(
        source_format=form,
        source_location=source.as_uri(),
        source_options=options or {},
        target_file_size=1 << 30,
    )
    return jobs.control(store, snapshot, job, attempt)


def written(job: Control) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for output in jobs.result(job).outputs:
        found += jobs.read_output(job, output.path, output.partition_values).to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


EXPECTED = [{**row, "late": None} for row in SOURCE.to_pylist()]


def test_parquet(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    pq.write_table(SOURCE, tmp_path / "s.parquet")
    job = job_for(table, "Parquet", tmp_path / "s.parquet")
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED
    assert jobs.result(job).rows_written == 3


@pytest.mark.parametrize("form", ["Parquet", "Csv", "Json"])
@pytest.mark.parametrize("place", ["export-2024-01-01T10:00:00.x", "run-10:00/a:b.x"])
def test_a_colon_in_a_name_is_no_scheme(
    form: str, place: str, table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """The file itself, and the folder that it lies in."""
    file = tmp_path / "sources" / place
    file.parent.mkdir(parents=True)
    if form == "Parquet":
        pq.write_table(SOURCE, file)
    elif form == "Csv":
        file.write_text('name,id\nit\'s,1\n,2\n"c,d",3\n')
    else:
        file.write_text('{"id":1,"name":"it\'s"}\n{"id":2}\n{"id":3,"name":"c,d"}\n')
    options = {"header": "true"} if form == "Csv" else None
    for attempt, source in enumerate([file, file.parent], start=1):
        job = job_for(table, form, source, options, attempt)
        assert answer(lambda c: ingest.run(c, spark), job) == 0
        assert written(job) == EXPECTED


def test_csv_with_a_header(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "s 1.csv"
    source.write_text('name,id\nit\'s,1\n,2\n"c,d",3\n')
    job = job_for(table, "Csv", source, {"header": "true"})
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


def test_json(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "s.json"
    source.write_text('{"id":1,"name":"it\'s"}\n{"id":2}\n{"id":3,"name":"c,d"}\n')
    job = job_for(table, "Json", source)
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


@pytest.mark.matrix
def test_delta_with_deletion_vectors(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "d"
    more = pa.table({"id": pa.array([9], pa.int64()), "name": ["gone"]})
    write_deltalake(
        str(source),
        pa.concat_tables([SOURCE, more]),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    interpreting(spark).sql(f"DELETE FROM delta.`{source}` WHERE id = 9")
    assert DeltaTable(str(source)).version() == 1
    job = job_for(table, "Delta", source)
    assert answer(lambda c: ingest.run(c, spark), job) == 0
    assert written(job) == EXPECTED


def test_a_column_that_the_table_lacks_is_named(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    pq.write_table(SOURCE.append_column("surplus", pa.array([1, 2, 3])), tmp_path / "s.parquet")
    job = job_for(table, "Parquet", tmp_path / "s.parquet")
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    assert jobs.failure(job).reason == Reason.INVALID_SPEC
    assert "surplus" in jobs.failure(job).message


def test_a_value_that_does_not_fit_is_an_error(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "s.csv"
    source.write_text("id,name\none,x\n")
    job = job_for(table, "Csv", source, {"header": "true"})
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    assert jobs.failure(job).reason == Reason.STATEMENT_FAILED
    message = (
        "s.csv, line 2, column id: a value does not fit its column (found: one; expected: bigint)"
    )
    assert message in jobs.failure(job).message


def ingested(job: Control, spark: SparkSession) -> list[dict[str, object]]:
    assert answer(lambda c: ingest.run(c, spark), job) == 0, jobs.failure(job).message
    return written(job)


def refused(job: Control, spark: SparkSession) -> str:
    assert answer(lambda c: ingest.run(c, spark), job) == 1
    failure = jobs.failure(job)
    assert failure.reason in (
        Reason.INVALID_SPEC,
        Reason.STATEMENT_FAILED,
        Reason.CONSTRAINT_VIOLATED,
    ), failure
    assert not failure.transient
    return failure.message


def make(folder: Path, *fields: pa.Field) -> Path:
    """A table with these columns, by deltalake."""
    write_deltalake(str(folder / "m"), pa.schema(fields).empty_table())
    return folder / "m"


def test_a_folder_of_csv_files_whose_headers_differ(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "in é"
    source.mkdir()
    (source / "a.csv").write_text("# says who\n\nname;id\nit's;1\n")
    (source / "b.csv.gz").write_bytes(gzip.compress(b"ID;Name\n2;\n3;c,d\n"))
    (source / "_ignored.csv").write_text("what;ever\n1;2\n")
    (source / "empty.csv").write_text("")
    options = {"header": "true", "sep": ";", "comment": "#"}
    assert ingested(job_for(table, "Csv", source, options), spark) == EXPECTED


def test_csv_without_a_header_goes_by_position(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "s.csv"
    source.write_text('1,it\'s,\n2,,\n3,"c,d",\n')
    assert ingested(job_for(table, "Csv", source), spark) == EXPECTED
    source.write_text("1,2\n")
    assert "a different number of columns" in refused(job_for(table, "Csv", source), spark)


@pytest.mark.parametrize("text", ["id,name\n1,a,surplus\n", "id,name\n1\n"])
def test_csv_records_of_another_length_are_errors(
    table: Path, tmp_path: Path, spark: SparkSession, text: str
) -> None:
    source = tmp_path / "s.csv"
    source.write_text(text)
    message = refused(job_for(table, "Csv", source, {"header": "true"}), spark)
    assert "s.csv, line 2, column " in message
    assert "one value for each column" in message


def test_csv_values_over_lines_are_one_value_wherever_a_file_is_cut(
    table: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_frames, "STRIPE_BYTES", 100)
    monkeypatch.setattr(text_frames.plan, "__defaults__", (100,))
    source = tmp_path / "s.csv"
    values = [f'"two, ""{n}\n{n},lines\r\n"' if n % 3 else f"plain {n}" for n in range(60)]
    source.write_bytes(("id,name\n" + "".join(f"{n},{v}\n" for n, v in enumerate(values))).encode())
    found = ingested(job_for(table, "Csv", source, {"header": "true"}), spark)
    plain = [
        v.replace('""', "\0").strip('"').replace("\0", '"') if v[0] == '"' else v for v in values
    ]
    assert {row["id"]: row["name"] for row in found} == dict(enumerate(plain))
    with source.open("a") as file:
        file.write("60,x\n61,y,z\n")
    message = refused(job_for(table, "Csv", source, {"header": "true"}, attempt=2), spark)
    assert f"s.csv, line {2 + 60 + 2 * 40 + 1}, column 3" in message


def test_formats_of_times_are_followed(tmp_path: Path, spark: SparkSession) -> None:
    table = make(
        tmp_path,
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("id", pa.int32()),
    )
    source = tmp_path / "s.csv"
    source.write_text("day,at,id\n31/01/2020,2020.02.01 03h,1\n")
    options = {"header": "true", "dateFormat": "dd/MM/yyyy", "timestampFormat": "yyyy.MM.dd HH'h'"}
    at = dt.datetime(2020, 2, 1, 3, tzinfo=dt.UTC)
    expected = [{"day": dt.date(2020, 1, 31), "at": at, "id": 1}]
    assert ingested(job_for(table, "Csv", source, options), spark) == expected
    source.write_text("day,at,id\n2020-01-31,2020.02.01 03h,1\n")
    assert "line 2, column day: a value does not fit" in refused(
        job_for(table, "Csv", source, options), spark
    )


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1, "name": "x"\n', "s.json, line 1, column name: a line is not JSON"),
        ('{"id": 1}\n{"id": 1.5}\n', "s.json, line 2, column id: a value does not fit"),
        ('{"id": 1, "surplus": 2}\n', "s.json, line 1, column surplus"),
        ('{"id": 1}{"id": 2}\n', "s.json, line 1: a line holds more than one value"),
        ('{"id": 1, "id": 2}\n', "s.json, line 1, column id: an object has a field twice"),
    ],
)
def test_json_that_does_not_fit_is_an_error(
    table: Path, tmp_path: Path, spark: SparkSession, text: str, message: str
) -> None:
    source = tmp_path / "s.json"
    source.write_text(text)
    assert message in refused(job_for(table, "Json", source), spark)


def test_names_match_in_any_case_and_structs_by_name(tmp_path: Path, spark: SparkSession) -> None:
    fields = {"a": pa.int32(), "b": pa.string(), "c": pa.list_(pa.int32())}
    table = make(tmp_path, pa.field("id", pa.int64()), pa.field("s", pa.struct(fields)))
    expected = [
        {"id": 1, "s": {"a": 7, "b": "x", "c": [1]}},
        {"id": 2, "s": {"a": None, "b": "y", "c": None}},
        {"id": 3, "s": None},
    ]
    source = tmp_path / "s.json"
    source.write_text(
        '{"ID": 1, "s": {"B": "x", "a": 7, "c": [1]}}\n{"id": 2, "S": {"b": "y"}}\n{"Id": 3}\n'
    )
    assert ingested(job_for(table, "Json", source), spark) == expected
    turned = pa.table(
        {
            "S": [{"B": "x", "c": [1], "A": 7}, {"B": "y", "c": None, "A": None}, None],
            "id": pa.array([1, 2, 3], pa.int8()),
        }
    )
    pq.write_table(turned, tmp_path / "s.parquet")
    assert ingested(job_for(table, "Parquet", tmp_path / "s.parquet"), spark) == expected
    source.write_text('{"s": {"b": "x", "z": 1}}\n')
    assert "s.z" in refused(job_for(table, "Json", source), spark)


def test_parquet_files_of_different_columns_and_encodings(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(SOURCE.slice(0, 1), source / "a.parquet")
    encoded = pa.table({"name": pa.array([None, "c,d"]).dictionary_encode(), "id": [2, 3]})
    pq.write_table(encoded, source / "b c%.parquet")
    assert ingested(job_for(table, "Parquet", source), spark) == EXPECTED


def test_a_folder_of_nothing_is_refused(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "in" / "_nothing"
    file.parent.mkdir(parents=True)
    file.touch()
    assert "spec.source.location" in refused(job_for(table, "Parquet", tmp_path / "in"), spark)


NOT_NULL = (
    pa.field("id", pa.int64(), nullable=False),
    pa.field("s", pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.int32())])),
    pa.field("p", pa.string()),
)


def test_nulls_where_none_may_be_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    table = make(tmp_path, *NOT_NULL)
    source = tmp_path / "s.json"
    for attempt, (text, column) in enumerate(
        [
            ('{"s": {"a": 1}, "p": "x"}', "id"),
            ('{"id": 1, "s": {"b": 1}}', "s.a"),
            ('{"id": 1, "s": null}', "s.a"),  # as in Delta
            ('{"id": null}', "id"),
        ],
        start=1,
    ):
        source.write_text(text + "\n")
        message = refused(job_for(table, "Json", source, attempt=attempt), spark)
        assert "must not be null" in message
        assert column in message
        assert "expected: NOT NULL" in message
    source.write_text('{"id": 1, "s": {"a": 2}}\n')
    expected = [{"id": 1, "s": {"a": 2, "b": None}, "p": None}]
    job = job_for(table, "Json", source, attempt=9)
    assert ingested(job, spark) == expected


@pytest.fixture
def credentials(spark: SparkSession, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, ours and that of Spark's workers: the only place they are taken from."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)


@pytest.mark.matrix
def test_from_s3_into_s3_by_the_workers_own_credentials(
    spark: SparkSession, s3_server: S3Server, credentials: None
) -> None:
    source, target = s3_server.open(), s3_server.fresh_location()
    source.put("in/a 1.csv", b"id,name\n1,it's\n2,\n")
    source.put("in/b.csv", b'name,id\n"c,d",3\n')
    source.put("in/s.json", b'{"id": 4, "name": "j"}\n')
    packed = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [5]}), packed)
    source.put("s.parquet", packed.getvalue().to_pybytes())
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("late", pa.int32())])
    write_deltalake(target, schema.empty_table(), storage_options=s3_server.storage_options)
    store = s3_server.open(target)
    sources: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("Csv", "in/a 1.csv", {"header": "true"}),
        ("Csv", "in/b.csv", {"header": "true"}),
        ("Json", "in/s.json", {}),
        ("Parquet", "s.parquet", {}),
    )
    found: list[dict[str, object]] = []
    for attempt, (form, path, options) in enumerate(sources, start=1):
        job = IngestJob(
            source_format=form,
            source_location=f"{source.location}/{quote(path)}",
            source_options=options,
            target_file_size=1 << 30,
        )
        control = jobs.control(store, DeltaLog(store).snapshot(), job, attempt)
        table = control.spec.table.model_copy(update={"storage_options": s3_server.options})
        control = Control(control.spec.model_copy(update={"table": table}), store)
        found += ingested(control, spark)
    assert [(r["id"], r["name"]) for r in found] == [
        (1, "it's"), (2, None), (3, "c,d"), (4, "j"), (5, None),
    ]  # fmt: skip


@pytest.mark.matrix
def test_operations_from_s3_into_s3(
    tmp_path: Path, spark: SparkSession, s3_server: S3Server, credentials: None
) -> None:
    lake = Lakes(spark, tmp_path, tmp_path / "templates").on_s3(s3_server)
    source = s3_server.open()
    for part in range(2):
        text_lines = [f"{n},{n % 5},{n * 100}\n" for n in range(part * 10, part * 10 + 10)]
        source.put(f"day {part}.csv", ("id,k,v\n" + "".join(text_lines)).encode())
        body = {
            "format": "Csv",
            "location": f"{source.location}/day%20{part}.csv",
            "options": {"header": "true"},
        }
        lake.do(lake.resource("TableIngest", {"source": body}))
    assert lake.names == ["0", "1"]
    lake.assert_rows(rows(range(20)))
    lake.do(lake.compaction("Major"))
    assert lake.names == ["0.1"]
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.assert_rows(plus(rows(range(20)), k_is(1), 15))
