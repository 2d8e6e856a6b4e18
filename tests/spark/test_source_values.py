"""Values of sources: every text and every type ends as what was written, or is refused."""

from __future__ import annotations

import datetime as dt
import gzip
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from delta_session import interpreting
from support.foreign.tables import broken_texts
from support.jobs import job_files as jobs
from support.jobs.both_ways import both_ways as both_ways
from tandem.errors import InvalidSpec, Reason, StatementFailed
from tandem.jobs.formats import IngestJob
from tandem.spark.jobs import ingest
from tandem.spark.runtime.control import Control, answer
from tandem.spark.runtime.frames import isolated_session
from tandem.spark.sources.casts import assigned, exact_value, require_zoneless

NO = "refused"


class Refused(str):
    """What an error says."""


DAY = dt.date(2020, 1, 2)
AT = dt.datetime.fromisoformat("2020-01-02T03:04:05.123456")
MIDNIGHT = dt.datetime.fromisoformat("2020-01-02")
TEXTS: dict[str, dict[str, Any]] = {
    "int": {" 7 ": 7, "+7": 7, "007": 7, "2.9": NO, "2.0": NO, "1e2": NO, "0x10": NO, "1_0": NO,
            "1,000": NO, "2147483647": 2147483647, "2147483648": NO, "": NO, "NaN": NO},
    "tinyint": {"-128": -128, "128": NO},
    "bigint": {"9223372036854775807": 2**63 - 1, "9223372036854775808": NO},
    "decimal(10,2)": {
        "1.23": Decimal("1.23"), "1.2300": Decimal("1.23"), "-.5": Decimal("-0.50"),
        "1.": Decimal("1.00"), "1.239": NO, "123.456": NO, "1,000": NO, "0.001": NO,
        "99999999.99": Decimal("99999999.99"), "100000000": NO, "1.2e1": Decimal("12.00"),
        "1.234e1": Decimal("12.34"), "1.2345e1": NO, "125e-2": Decimal("1.25"), "1e-40": NO,
        "1e-400": NO, ".": NO, "NaN": NO, "1.5d": NO, "1.10000e0": Decimal("1.10"),
    },
    "decimal(38,8)": {"123456789012345678901.123456781e0": NO},
    "double": {
        "1.5": 1.5, " 1e3 ": 1000.0, ".5": 0.5, "-0.0": -0.0, "1e400": NO, "-1e400": NO,
        "1e-400": NO, "0e5": 0.0, "inf": float("inf"), "-Infinity": -float("inf"), "1d": NO,
        "1.5f": NO, "0x1p3": NO, "1,5": NO, "": NO,
    },
    "float": {"1.5": 1.5, "1e39": NO, "Infinity": float("inf"), "1e-60": NO},
    "boolean": {"true": True, "NO": False, "1": True, "2": NO, "": NO},
    "date": {
        "2020-01-02": DAY, "2020-1-2": DAY, " 2020-01-02 ": DAY, "2020-01-02T00:00:00Z": DAY,
        "2020-01-02 00:00:00.000": DAY, "2020-01-02 10:00:00": NO, "2020-01-02T00:00:01": NO,
        "2013-02-30": NO, "2020": NO, "2020-01": NO, "02/01/2020": NO, "20200102": NO, "": NO,
        "9999-12-31": dt.date(9999, 12, 31), "2020-01-02x": NO,
    },
    "timestamp": {
        "2020-01-02 03:04:05.123456": AT, "2020-01-02T03:04:05.123456000Z": AT,
        "2020-01-02T05:04:05.123456+02:00": AT, "2020-01-02": MIDNIGHT,
        "2020-01-02 03:04:05.1234567": NO, "12:34": NO, "2020": NO, "2020-01": NO,
        "1580000000": NO, "2020-13-01": NO, "T12:34:56": NO,
    },
    "timestamp_ntz": {
        "2020-01-02 03:04:05.123456": AT, "2020-01-02": MIDNIGHT,
        "2020-01-02T03:04:05Z": NO, "2020-01-02T03:04:05+02:00": NO,
        "2020-01-02 03:04:05.1234567": NO, "2020-01-02 03:04:05 Europe/Berlin": NO,
    },
    "binary": {"ab": b"ab", "": b""},
}  # fmt: skip
JSON: dict[str, dict[str, Any]] = {
    "boolean": {"true": True, "false": False, "1": NO, "yes": NO, "True": NO},
    "binary": {"AQI=": b"\x01\x02", "A*": NO},
}


@pytest.mark.parametrize("json", [False, True])
def test_texts_are_values_exactly_or_refused(spark: SparkSession, json: bool) -> None:
    wrong = []
    with isolated_session(spark) as own:
        for name, cases in (JSON if json else TEXTS).items():
            type_ = T.DataType.fromDDL(name)
            rows = own.createDataFrame([(text,) for text in cases], "t string")
            found = rows.select(
                "t", exact_value(F.col("t"), type_, {}, json=json).alias("v")
            ).collect()
            for text, value in found:
                got = NO if value is None else bytes(value) if name == "binary" else value
                if got != cases[text] or str(got) != str(cases[text]):
                    wrong.append((name, text, got, cases[text]))
    assert not wrong


@pytest.mark.parametrize(
    ("found", "wanted", "value", "expected"),
    [
        ("int", "bigint", "7", 7),
        ("bigint", "int", "7", 7),
        ("bigint", "int", "3000000000", Refused("column c: a value does not fit")),
        ("double", "int", "2.9D", Refused("digits after the point")),
        ("double", "decimal(10,2)", "1.5D", Refused("digits after the point")),
        ("decimal(10,3)", "decimal(10,2)", "1.239", Refused("digits after the point")),
        ("decimal(10,2)", "decimal(5,2)", "1234.56", Refused("column c: a value does not fit")),
        ("decimal(10,2)", "decimal(12,4)", "1.23", Decimal("1.2300")),
        ("decimal(10,2)", "int", "1.00", Refused("digits after the point")),
        ("timestamp", "date", "TIMESTAMP'2020-01-02 03:00:00'", Refused("time of day")),
        ("timestamp_ntz", "date", "TIMESTAMP_NTZ'2020-01-02 03:00:00'", Refused("time of day")),
        ("date", "timestamp_ntz", "DATE'2020-01-02'", MIDNIGHT),
        ("double", "float", "1e300D", Refused("column c: a value does not fit")),
        ("double", "float", "double('inf')", float("inf")),
        ("int", "string", "7", "7"),
        ("binary", "string", "X'00'", Refused("not converted implicitly")),
        ("string", "int", "'7'", Refused("not converted implicitly")),
        ("boolean", "int", "true", Refused("not converted implicitly")),
        (
            "struct<x:double>",
            "struct<x:int>",
            "named_struct('x', 2.9D)",
            Refused("digits after the"),
        ),
        ("array<bigint>", "array<int>", "array(3000000000)", Refused("column c.element: a value")),
        (
            "map<string,bigint>",
            "map<string,int>",
            "map('k', 3000000000)",
            Refused("column c.value: a"),
        ),
    ],
)
def test_types_follow_the_rule_of_update(
    spark: SparkSession, found: str, wanted: str, value: str, expected: Any
) -> None:
    with isolated_session(spark) as own:
        rows = own.sql(f"SELECT CAST({value} AS {found}) AS c")
        types = T.DataType.fromDDL(found), T.DataType.fromDDL(wanted)

        def result() -> Any:
            return rows.select(assigned(F.col("c"), *types, "here", "c")).collect()[0][0]

        if not isinstance(expected, Refused):
            assert result() == expected
            return
        with pytest.raises((StatementFailed, PySparkException), match=expected):
            result()


def test_a_format_with_a_zone_for_times_without_one_is_refused() -> None:
    require_zoneless({"timestampNTZFormat": "yyyy 'Z' HH"})
    with pytest.raises(InvalidSpec, match="timestampNTZFormat"):
        require_zoneless({"timestampNTZFormat": "yyyy-MM-dd HH:mmXXX"})


def job_for(table: Path, form: str, source: Path, attempt: int = 1) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    options = {"header": "true"} if form == "Csv" else {}
    job = IngestJob(
        source_format=form,
        source_location=source.as_uri(),
        source_options=options,
        target_file_size=1 << 30,
    )
    return jobs.control(store, snapshot, job, attempt)


def outcome(job: Control, spark: SparkSession) -> Any:
    """The rows written, or the failure."""
    if answer(lambda c: ingest.run(c, spark), job):
        return jobs.failure(job)
    [output] = jobs.result(job).outputs
    return jobs.read_output(job, output.path, output.partition_values).to_pylist()


@pytest.mark.matrix
def test_char_and_varchar_are_stored_as_spark_stores_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    fields = "v VARCHAR(3), c CHAR(4), s STRUCT<x: VARCHAR(2)>, a ARRAY<CHAR(2)>"
    interpreting(spark).sql(f"CREATE TABLE delta.`{tmp_path / 't'}` ({fields}) USING delta")
    good = '{"v": "ab   ", "c": "ab", "s": {"x": "\u00e9\u00e9"}, "a": ["x"]}'
    source = tmp_path / "s.json"
    source.write_text(good + "\n")
    expected = [{"v": "ab ", "c": "ab  ", "s": {"x": "\u00e9\u00e9"}, "a": ["x "]}]
    assert outcome(job_for(tmp_path / "t", "Json", source), spark) == expected
    bad = {
        "v": '{"v": "abcd"}',
        "c": '{"c": "abcde"}',
        "s.x": '{"s": {"x": "abc"}}',
        "a.element": '{"a": ["x", "abc"]}',
    }
    for attempt, (column, text) in enumerate(bad.items(), start=2):
        source.write_text(f"{good}\n{text}\n")
        failure = outcome(job_for(tmp_path / "t", "Json", source, attempt), spark)
        place = f"s.json, line 2, column {column}"
        assert f"{place}: a string is too long for its column" in failure.message
        assert failure.reason == Reason.CONSTRAINT_VIOLATED


def test_a_source_that_does_not_fit_is_named_as_a_reader_would_look_for_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    fields = "id INT, v VARCHAR(2)"
    interpreting(spark).sql(f"CREATE TABLE delta.`{tmp_path / 't'}` ({fields}) USING delta")
    cases = [
        (
            "s.csv",
            "id;v\n1;a\n",
            "spec.source: s.csv: the source has columns that",
            "options header",
        ),
        (
            "s.csv",
            "id,v\n1,a\n2,abc\n",
            "s.csv, line 3, column v: a string is too long",
            "abc",
        ),
        ("s.csv", "id,v,ID\n1,a,2\n", "/s.csv: a column occurs twice in the source", "id"),
        ("s.json", '{"id":\n1}\n', "s.json, line 1, column id: ", "each object is on one line"),
        ("s.parquet", "", "s.parquet, column id: a column of the source has another", "double"),
    ]
    for attempt, (name, text, place, hint) in enumerate(cases, start=1):
        source = tmp_path / name
        source.write_text(text)
        if not text:
            pq.write_table(pa.table({"id": [1.5]}), source)
        form = {"csv": "Csv", "json": "Json", "parquet": "Parquet"}[name.rpartition(".")[2]]
        failure = outcome(job_for(tmp_path / "t", form, source, attempt), spark)
        assert place in failure.message
        assert hint in failure.message


def parquet(path: Path) -> bytes:
    pq.write_table(pa.table({"id": pa.array(range(5000), pa.int64())}), path)
    return path.read_bytes()


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("name", "form", "damage"),
    [
        ("s.csv.gz", "Csv", lambda _: gzip.compress(b"id\n" + b"1\n" * 9999)[:-9]),
        ("s.json.gz", "Json", lambda _: gzip.compress(b'{"id": 1}\n' * 9999)[:-9]),
        ("s.json.gz", "Json", lambda _: b""),
        ("s.csv", "Csv", lambda _: gzip.compress(b"id\n1\n")),
        ("s.parquet", "Parquet", lambda data: data[:-20]),
        ("s.parquet", "Parquet", lambda data: data[:100] + b"\xff" * 900 + data[1000:]),
        ("s.parquet", "Parquet", lambda _: b"id\n1\n"),
    ],
)
def test_a_broken_source_is_not_a_transient_error(
    tmp_path: Path, spark: SparkSession, name: str, form: str, damage: Callable[[bytes], bytes]
) -> None:
    interpreting(spark).sql(f"CREATE TABLE delta.`{tmp_path / 't'}` (id BIGINT) USING delta")
    source = tmp_path / name
    source.write_bytes(damage(parquet(tmp_path / "whole.parquet")))
    failure = outcome(job_for(tmp_path / "t", form, source), spark)
    assert (failure.reason, failure.transient) == (Reason.SOURCE_UNREADABLE, False)
    assert name in failure.message


@pytest.mark.matrix
def test_values_that_no_table_holds_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    interpreting(spark).sql(
        f"CREATE TABLE delta.`{tmp_path / 't'}` (id BIGINT, s STRING, t TIMESTAMP, "
        "m MAP<BIGINT, STRING>) USING delta"
    )
    twice = pa.array([[(1, "a"), (1, "b")]], pa.map_(pa.int64(), pa.string()))
    nanos = pa.array([1_234_567_891], pa.timestamp("ns", tz="UTC"))
    cases: list[tuple[Any, Reason, str]] = [
        ({"t": nanos}, Reason.SOURCE_UNREADABLE, "s.parquet.t: "),
        ({"s": broken_texts(1)}, Reason.STATEMENT_FAILED, "s: a new string is not valid UTF-8"),
        (
            {"m": twice},
            Reason.STATEMENT_FAILED,
            "s.parquet, row 1, column m: a map has a key",
        ),
        ('{"m":{"1":"a","01":"b"}}', Reason.STATEMENT_FAILED, "s.json, line 1, column m: a map"),
    ]
    for attempt, (content, reason, expected_text) in enumerate(cases, start=1):
        text = isinstance(content, str)
        source = tmp_path / ("s.json" if text else "s.parquet")
        if text:
            source.write_text(content)
        else:
            pq.write_table(pa.table(content), source)
        job = job_for(tmp_path / "t", "Json" if text else "Parquet", source, attempt)
        failure = outcome(job, spark)
        assert (failure.reason, failure.transient) == (reason, False), failure.message
        assert expected_text in failure.message
    good = pa.table(
        {
            "s": ["ä"],
            "t": pa.array([1_234_567_000], pa.timestamp("ns", tz="UTC")),
            "m": pa.array([[(2, "a"), (1, None)]], pa.map_(pa.int64(), pa.string())),
        }
    )
    pq.write_table(good, source.with_suffix(".parquet"))
    job = job_for(tmp_path / "t", "Parquet", tmp_path / "s.parquet", 9)
    [row] = outcome(job, spark)
    assert (row["s"], row["m"]) == ("ä", [(2, "a"), (1, None)])
