"""Ingests and upserts without Spark: which are, and that texts mean what Spark makes of them.

`support.jobs.both_ways` compares every ingest and upsert of the tests of both."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from support.jobs import job_files as jobs
from support.jobs.both_ways import BothWays
from support.jobs.both_ways import both_ways as both_ways
from tandem.delta.schema import StructType, to_delta_json
from tandem.errors import InvalidSpec, StatementFailed
from tandem.jobs.formats import IngestJob, JobTable, UpsertJob
from tandem.mergelog.log_table import LogSettings, block_format
from tandem.spark.jobs import ingest, upsert
from tandem.spark.runtime.control import Control
from tandem.spark.sources import arrow_rows
from tandem.spark.sources.arrow_rows import value_of
from tandem.spark.sources.casts import exact_value
from tandem.statements.local import NeedsSpark

# Texts


def numbers(rng: random.Random) -> str:
    whole = "".join(rng.choices("0123456789", k=rng.choice((1, 1, 2, 3, 5, 9, 10, 11, 18, 19, 39))))
    fraction = "." + "".join(rng.choices("0012345679", k=rng.choice((0, 1, 2, 3, 7, 20))))
    power = rng.choice(("e", "E")) + str(rng.choice((0, 1, -1, 7, 38, -45, 308, -324, 400, -400)))
    edges = rng.choice(("127", "128", "32768", "2147483648", "9223372036854775807", "0", "00", ""))
    parts = rng.choice(((whole,), (whole, fraction), (whole, fraction, power), (edges,)))
    return rng.choice(("", "", "-", "+", " ")) + "".join(parts) + rng.choice(("", "", "", " ", "d"))


def times(rng: random.Random) -> str:
    year = rng.choice((1, 999, 1000, 1582, 1900, 1970, 2024, 9999, 10000, -1))
    day = f"{year:04d}-{rng.randrange(14):02d}-{rng.randrange(33):02d}"
    if rng.random() < 0.1:
        day = day.replace("-0", "-")
    clock = f"{rng.randrange(26):02d}:{rng.randrange(62):02d}:{rng.randrange(62):02d}"
    fraction = "." + "".join(rng.choices("0019", k=rng.choice((0, 1, 3, 6, 7, 9))))
    zone = rng.choice(("", "", "Z", "z", "+01:00", " UTC"))
    return day + rng.choice(
        ("", "", " " + clock, "T" + clock, f"T{clock}{fraction}", f" {clock}{fraction}{zone}")
    )


WORDS = ("true", "false", "True", "t", "1", "0", "yes", "", " true", "null", "NaN", "Infinity")
KINDS: Sequence[tuple[str, T.DataType]] = (
    ("boolean", T.BooleanType()),
    ("byte", T.ByteType()),
    ("short", T.ShortType()),
    ("integer", T.IntegerType()),
    ("long", T.LongType()),
    ("float", T.FloatType()),
    ("double", T.DoubleType()),
    ("decimal(5,2)", T.DecimalType(5, 2)),
    ("decimal(3,3)", T.DecimalType(3, 3)),
    ("decimal(38,0)", T.DecimalType(38, 0)),
    ("decimal(38,10)", T.DecimalType(38, 10)),
    ("date", T.DateType()),
    ("timestamp", T.TimestampType()),
    ("timestamp_ntz", T.TimestampNTZType()),
)


@pytest.mark.parametrize("is_json", [False, True], ids=["csv", "json"])
def test_a_text_that_is_converted_here_has_the_value_that_spark_gives_it(
    spark: SparkSession, is_json: bool
) -> None:
    rng = random.Random(f"texts {is_json}")
    made = {numbers(rng) for _ in range(3000)} | {times(rng) for _ in range(3000)} | set(WORDS)
    texts = sorted(made)
    rows = spark.createDataFrame(pa.table({"t": texts}))
    columns = [
        exact_value(F.col("t"), type_, {}, json=is_json).alias(name.translate(PLAIN_NAME))
        for name, type_ in KINDS
    ]
    found = rows.select("t", *columns).toArrow()
    by_spark = found["t"].to_pylist()
    for name, _ in KINDS:
        here = [converted(text, name) for text in by_spark]
        known = [at for at, value in enumerate(here) if value is not None]
        expected = found[name.translate(PLAIN_NAME)].take(pa.array(known)).to_pylist()
        wrong = [
            (by_spark[at], here[at], value)
            for at, value in zip(known, expected, strict=True)
            if repr(here[at]) != repr(value)
        ]
        assert wrong == [], name
        assert len(known) > (1 if name in ("boolean", "decimal(3,3)") else 10), name


PLAIN_NAME = str.maketrans("(,)", "___")


def converted(text: str, name: str) -> Any:
    """The value of a text; None if it is left to Spark."""
    try:
        [value] = value_of(pa.array([text]), name).to_pylist()
    except NeedsSpark:
        return None
    assert value is not None
    return value


# Jobs

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("number", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("late", pa.int32()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "text": None if number == 2 else f"it's, {number}",
        "flag": number % 2 == 0,
        "small": -128 + number,
        "number": 0.1 * number,
        "price": Decimal(number) / 4,
        "day": dt.date(2024, 2, 28) + dt.timedelta(number),
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number),
    }
    for number in range(5)
]


def table(path: Path, *, partitioned: bool = False) -> Path:
    by = ["day"] if partitioned else None
    write_deltalake(str(path), COLUMNS.empty_table(), partition_by=by)
    return path


def texts_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a person writes it."""
    shown = {**row, "day": str(row["day"]), "at": row["at"].isoformat()[:26].replace("+00:00", "")}
    return {**shown, "price": float(row["price"])}


def source(folder: Path, form: str) -> Path:
    if form == "Delta":
        write_deltalake(str(folder), pa.Table.from_pylist(ROWS, COLUMNS).drop_columns(["late"]))
        return folder
    folder.mkdir()
    if form == "Parquet":
        pq.write_table(pa.Table.from_pylist(ROWS, COLUMNS).select(range(8)), folder / "a.parquet")
    elif form == "Json":
        lines = [json.dumps(texts_of(row)) for row in ROWS]
        (folder / "a.json").write_text("\n".join(lines))
    else:
        header = ",".join(ROWS[0])
        lines = [
            ",".join(
                ""
                if value is None
                else str(value).lower()
                if isinstance(value, bool)
                else f'"{value}"'
                for value in texts_of(row).values()
            )
            for row in ROWS
        ]
        (folder / "a.csv").write_text("\n".join([header, *lines]))
    return folder


def job_of(at: Path, form: str, location: Path, **options: str) -> Control:
    store, snapshot = jobs.snapshot_of(at)
    job = IngestJob(
        source_format=form,
        source_location=location.as_uri(),
        source_options=options,
        target_file_size=1 << 30,
    )
    return jobs.control(store, snapshot, job)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("form", ["Parquet", "Csv", "Json", "Delta"])
def test_a_source_of_each_form_needs_no_spark(
    tmp_path: Path, spark: SparkSession, both_ways: BothWays, form: str, partitioned: bool
) -> None:
    at = table(tmp_path / "t", partitioned=partitioned)
    options = {"header": "true"} if form == "Csv" else {}
    job = job_of(at, form, source(tmp_path / "s", form), **options)
    ingest.run(job, spark)
    assert both_ways.done == 1
    rows = [
        row
        for output in jobs.result(job).outputs
        for row in jobs.read_output(job, output.path, output.partition_values).to_pylist()
    ]
    assert sorted(rows, key=lambda row: row["id"]) == [{**row, "late": None} for row in ROWS]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"id": 1e2}', "a number that is not written as the column's type"),
        ('{"id": 1, "day": "2024-1-1"}', "a day that only Spark reads"),
        ('{"id": 1, "flag": "true", "at": "2024-01-01T00:00:00+01:00"}', "another zone"),
        ('{"id": 1, "number": 1e400}', "what Spark refuses"),
    ],
)
def test_a_text_that_is_not_plain_is_left_to_spark(tmp_path: Path, line: str, why: str) -> None:
    at = table(tmp_path / "t")
    (tmp_path / "a.json").write_text('{"id": 0}\n' + line)
    assert not ingest.run_here(job_of(at, "Json", tmp_path / "a.json")), why


@pytest.mark.parametrize("form", ["Parquet", "Delta"])
def test_a_column_of_another_type_is_left_to_spark(tmp_path: Path, form: str) -> None:
    at = table(tmp_path / "t")
    rows = pa.table({"id": pa.array([1], pa.int32())})
    if form == "Delta":
        write_deltalake(str(tmp_path / "s"), rows)
    else:
        pq.write_table(rows, tmp_path / "s")
    assert not ingest.run_here(job_of(at, form, tmp_path / "s"))


def test_a_format_is_left_to_spark(tmp_path: Path) -> None:
    at = table(tmp_path / "t")
    (tmp_path / "a.json").write_text('{"id": 0, "day": "2024-01-01"}')
    job = job_of(at, "Json", tmp_path / "a.json", dateFormat="yyyy-MM-dd")
    assert not ingest.run_here(job)


@pytest.mark.parametrize("limit", ["FILE_BYTES", "MEMORY"])
def test_a_large_source_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    at = table(tmp_path / "t")
    monkeypatch.setattr(arrow_rows, limit, 10)
    for form in ("Parquet", "Csv", "Json", "Delta"):
        options = {"header": "true"} if form == "Csv" else {}
        location = source(tmp_path / form, form)
        assert not ingest.run_here(job_of(at, form, location, **options)), form


# What only Spark refuses, or says better


def decimal_of_too_many_digits() -> Any:
    data = pa.py_buffer((10**6).to_bytes(16, "little"))
    return pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, data])


TWICE = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(TWICE, id="a map with a key twice"),
        pytest.param(pa.array([{"x": TWICE[0]}], pa.struct([("x", TWICE.type)])), id="below"),
        pytest.param(decimal_of_too_many_digits(), id="a decimal of too many digits"),
        pytest.param(
            pa.StructArray.from_arrays([decimal_of_too_many_digits()], ["x"]), id="in a struct"
        ),
    ],
)
def test_a_value_that_spark_refuses_is_left_to_spark(tmp_path: Path, column: Any) -> None:
    rows = pa.table({"c": column})
    write_deltalake(str(tmp_path / "t"), rows.schema.empty_table())
    pq.write_table(rows, tmp_path / "a.parquet")
    assert not ingest.run_here(job_of(tmp_path / "t", "Parquet", tmp_path / "a.parquet"))


def test_what_is_wrong_with_options_is_said_before_what_is_wrong_with_the_location(
    tmp_path: Path,
) -> None:
    job = job_of(table(tmp_path / "t"), "Csv", tmp_path / "none", mode="DROPMALFORMED")
    with pytest.raises(InvalidSpec, match="unknown option"):
        ingest.run_here(job)


def test_what_is_wrong_with_columns_is_said_before_what_is_wrong_with_rows(tmp_path: Path) -> None:
    at = table(tmp_path / "t")
    for form in ("csv", "parquet"):
        (tmp_path / form).mkdir()
    (tmp_path / "csv/a.csv").write_text("id,text\n1,2,3\n")
    (tmp_path / "csv/b.csv").write_text("id,other\n1,2\n")
    assert not ingest.run_here(job_of(at, "Csv", tmp_path / "csv", header="true"))
    pq.write_table(
        pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))}), tmp_path / "parquet/a"
    )
    pq.write_table(pa.table({"other": [1]}), tmp_path / "parquet/b")
    assert not ingest.run_here(job_of(at, "Parquet", tmp_path / "parquet"))


def test_of_two_nulls_the_one_is_named_that_spark_names(tmp_path: Path) -> None:
    """It checks some rows at a time, and of these the first column."""
    names = ("a", "b")
    whole = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in names])
    write_deltalake(str(tmp_path / "t"), whole.empty_table())
    numbers = {"a": [0] * 60_000 + [None], "b": [0] * 20_000 + [None] + [0] * 40_000}
    pq.write_table(pa.table({n: pa.array(numbers[n], pa.int64()) for n in names}), tmp_path / "s")
    with pytest.raises(StatementFailed, match=r"^b: a column that must not be null"):
        ingest.run_here(job_of(tmp_path / "t", "Parquet", tmp_path / "s"))


def test_a_line_that_is_no_json_is_left_to_spark_if_a_column_is(tmp_path: Path) -> None:
    """Spark says first what is wrong with the line before it."""
    nested = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    write_deltalake(str(tmp_path / "t"), nested.empty_table())
    (tmp_path / "a.json").write_text('{"id": 1, "s": {"b": 1}}\n{"id":\n')
    assert not ingest.run_here(job_of(tmp_path / "t", "Json", tmp_path / "a.json"))


# Upserts


def upsert_of(folder: Path, rows: pa.Table | str) -> Control:
    """The upsert of a Parquet file, or of a text of CSV, by `a` and `b`."""
    columns = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
    write_deltalake(str(folder / "t"), columns.empty_table())
    store, snapshot = jobs.snapshot_of(folder / "t")
    keys = ("a", "b")
    form = block_format(snapshot, LogSettings(keys, ""))
    fields = (replace(f, nullable=f.nullable and f.name not in keys) for f in form.schema)
    if isinstance(rows, str):
        (folder / "source").write_text(rows)
    else:
        pq.write_table(rows, folder / "source")
    job = UpsertJob(
        source_format="Csv" if isinstance(rows, str) else "Parquet",
        source_location=(folder / "source").as_uri(),
        source_options={"header": "true"} if isinstance(rows, str) else {},
        field="spec.upsert.source",
        blocks=JobTable(
            location=store.location,
            version=0,
            table_id=snapshot.metadata.id,
            schema_string=to_delta_json(StructType(tuple(fields))),
            partition_columns=(),
            configuration={},
        ),
        keys=keys,
        max_block_bytes=1 << 30,
    )
    return jobs.control(store, snapshot, job)


@pytest.mark.parametrize("text", ["b,v\n", "b,v\n1,2\n"], ids=["without rows", "with rows"])
def test_a_csv_file_that_lacks_a_key_is_left_to_spark(tmp_path: Path, text: str) -> None:
    assert not upsert.run_here(upsert_of(tmp_path, text))


def test_a_key_that_is_null_is_left_to_spark_which_shows_the_first_row(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([None, None], pa.string()), "b": [2, None], "v": [2, 4]})
    assert not upsert.run_here(upsert_of(tmp_path, rows))
