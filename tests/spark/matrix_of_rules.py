"""Rules of a table against Spark + Delta's own verdict: which rows each keeps, and which not.

Delta's check of constraints (`DeltaInvariantCheckerExec`) judges each row in the driver; that it is
what a write does, and what else a write does, is seen by writes.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from support.jobs import job_files as jobs
from support.present import present
from tandem.delta.char_types import fitted
from tandem.delta.datafiles.conform import SchemaMismatch, forbidden_null
from tandem.delta.schema import Field, PrimitiveType, StructType, to_delta_json
from tandem.errors import ConstraintViolated
from tandem.jobs.formats import JobTable
from tandem.spark.runtime.frames import with_rules
from tandem.spark.runtime.row_files import BROKEN
from tandem.statements.local import NeedsSpark
from tandem.statements.local.rules import LocalRules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAN, INF = float("nan"), float("inf")
_DAYS = [None, *(dt.date(*day) for day in ((1, 1, 1), (1999, 12, 31), (2000, 1, 1)))]
_TIMES = [dt.datetime(*at, tzinfo=dt.UTC) for at in ((1970, 1, 1), (9999, 12, 31), (1, 1, 1))]
_DECIMALS = map(Decimal, ("99999999.99", "-99999999.99", "0.00", "1.00", "1.01"))
GRID: dict[str, tuple[pa.DataType, list[Any]]] = {
    "f": (pa.float64(), [None, NAN, -0.0, 0.0, INF, -INF, 5e-324, 1.0, -1.5, 1.1]),
    "g": (pa.float32(), [None, NAN, -0.0, 0.0, 1.1, -3.4028234663852886e38]),
    "i": (pa.int32(), [None, -(2**31), 2**31 - 1, 0, -1, 1, 2]),
    "b": (pa.int64(), [None, -(2**63), 2**63 - 1, 0, 2**53 + 1]),
    "d": (pa.decimal128(10, 2), [None, *_DECIMALS]),
    "s": (pa.string(), [None, "", " ", "a", "a ", " a", "A", "ab  ", "é", "ß", "10", "a\0"]),
    "t": (pa.timestamp("us", "UTC"), [None, *_TIMES, _TIMES[0] - dt.timedelta(microseconds=1)]),
    "y": (pa.date32(), _DAYS),
    "o": (pa.bool_(), [None, True, False]),
}
"""By column its type, and the values that are tried."""

RULES: dict[str, str] = {
    "f": "f > 0; f = 0.0; f = f; NOT (f < 1); f <= 0 OR f IS NULL; isnan(f) = false; f <=> NULL; "
    "f IN (0.0, 1.1); f BETWEEN -1 AND 1; 1 / f > 0; f = 0e0; f > -0e0",
    "g": "g = 1.1; g < 1.1; g >= 0; CAST(g AS DOUBLE) = 0",
    "i": "i >= 0; i % 2 = 0; i + 1 > 0; abs(i) > 0; i / 2 < 1; i IN (1, 2, NULL)",
    "b": "b > 9007199254740992; b = 9007199254740992.0; -b < 5; b < 10e0",
    "d": "d < 1.005; d = 0; d * d > 1; d > 1e0",
    "s": "s = 'a'; s > 'a'; length(s) <= 2; s LIKE 'a%'; trim(s) = 'a'; upper(s) = 'A'; "
    "s RLIKE '^a'; s IS NOT NULL; CAST(s AS INT) > 5; s || 'x' = 'ax'",
    "t": "t >= TIMESTAMP '1970-01-01 00:00:00'; year(t) = 1970; CAST(t AS DATE) < '2000-01-01'",
    "y": "y < DATE '2000-01-01'; y >= '2000-01-01'; month(y) = 1",
    "o": "o; NOT o; o OR NULL; o IS NOT FALSE; NULL",
}  # fmt: skip


def judged(frame: DataFrame, text: str) -> list[bool]:
    """Delta's verdict on each row."""
    spark = frame.sparkSession
    jvm: Any = present(spark._jvm)
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    constraints = jvm.org.apache.spark.sql.delta.constraints
    session = spark._jsparkSession
    plan = frame._jdf.queryExecution().executedPlan()
    check = getattr(constraints, "Constraints$Check")(
        "r", session.sessionState().sqlParser().parseExpression(text)
    )
    one = jvm.PythonUtils.toSeq([check])
    checks = constraints.DeltaInvariantCheckerExec.buildInvariantChecks(plan.output(), one, session)
    projection = catalyst.UnsafeProjection.create(checks, plan.output())
    return [_kept(projection, row) for row in plan.executeCollect()]


def _kept(projection: Any, row: Any) -> bool:
    try:
        projection.apply(row)
    except Exception as error:
        text = str(error)
        if "DELTA_VIOLATE_CONSTRAINT" not in text and "SQLSTATE: 22" not in text:
            raise
        return False
    return True


def table_of(rows: pa.Table, text: str, partitions: tuple[str, ...] = ()) -> JobTable:
    """A table with these columns and a constraint."""
    types = {
        "float": "float",
        "int32": "integer",
        "int64": "long",
        "date32[day]": "date",
        "bool": "boolean",
        "decimal128(10, 2)": "decimal(10,2)",
        "timestamp[us, tz=UTC]": "timestamp",
    }
    fields = [
        Field(f.name, PrimitiveType(types.get(str(f.type), str(f.type)))) for f in rows.schema
    ]
    return JobTable(
        location="memory:",
        version=0,
        table_id="t",
        schema_string=to_delta_json(StructType(tuple(fields))),
        partition_columns=partitions,
        configuration={"delta.constraints.r": text},
    )


def kept(table: JobTable, rows: pa.Table, spark: SparkSession) -> list[bool]:
    """Our verdict on each row, over Arrow and by Spark, which must agree."""
    local = LocalRules.of(table.schema_string, table.configuration, table.partition_columns)
    found = _kept_by_spark(table, rows, spark)
    for at, by_spark in enumerate(found):
        row = rows.slice(at, 1)
        try:
            local.require(row)
            assert by_spark, (row.to_pylist(), "kept here, refused by Spark")
        except ConstraintViolated:
            assert not by_spark, (row.to_pylist(), "refused here, kept by Spark")
        except NeedsSpark:
            continue
    return found


def _kept_by_spark(table: JobTable, rows: pa.Table, spark: SparkSession) -> list[bool]:
    frame = spark.createDataFrame(rows).coalesce(1)
    try:
        return [row[BROKEN] is None for row in with_rules(frame, table).select(BROKEN).collect()]
    except Exception as error:
        if "SQLSTATE: 22" not in str(error):
            raise
    if rows.num_rows == 1:
        return [False]
    each = (_kept_by_spark(table, rows.slice(at, 1), spark) for at in range(rows.num_rows))
    return [one for found in each for one in found]


@pytest.mark.parametrize("column", GRID)
def test_constraints(oracle_spark: SparkSession, delta_spark: SparkSession, column: str) -> None:
    type_, values = GRID[column]
    rows = pa.table({column: pa.array(values, type_)})
    frame = delta_spark.createDataFrame(rows).coalesce(1)
    for text in RULES[column].split("; "):
        ours = kept(table_of(rows, text), rows, oracle_spark)
        assert dict(zip(map(repr, values), ours, strict=True)) == dict(
            zip(map(repr, values), judged(frame, text), strict=True)
        ), text


def refusal_of(spark: SparkSession, path: Path, rows: pa.Table) -> str:
    """What Spark + Delta says of an append; "" if it has written the rows."""
    try:
        spark.createDataFrame(rows).write.format("delta").mode("append").save(str(path))
    except Exception as error:  # noqa: BLE001 - Spark's, or Java's; its text is judged
        return str(error) or type(error).__name__
    return ""


@pytest.mark.parametrize("text", ["p IS NOT NULL", "length(p) >= 0", "p != ''"])
def test_an_empty_text_of_a_partition_is_checked_as_it_is_stored(
    tmp_path: Path, oracle_spark: SparkSession, delta_spark: SparkSession, text: str
) -> None:
    path = tmp_path / "t"
    delta_spark.sql(f"CREATE TABLE delta.`{path}` (i INT, p STRING) USING delta PARTITIONED BY (p)")
    delta_spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT r CHECK ({text})")
    rows = pa.table({"i": pa.array([1, 2], pa.int32()), "p": ["", " "]})
    ours = kept(table_of(rows, text, ("p",)), rows, oracle_spark)
    assert ours == [False, True]
    refusals = [refusal_of(delta_spark, path, rows.slice(at, 1)) for at in range(2)]
    assert "DELTA_VIOLATE_CONSTRAINT" in refusals[0]
    assert refusals[1] == ""


def test_not_null_in_structs(tmp_path: Path, delta_spark: SparkSession) -> None:
    path = tmp_path / "t"
    ddl = "i INT, s STRUCT<a: INT NOT NULL, b: STRUCT<c: INT NOT NULL>>"
    delta_spark.sql(f"CREATE TABLE delta.`{path}` ({ddl}) USING delta")
    type_ = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.int32())]))])
    values = [None, {"a": None, "b": {"c": 1}}, {"a": 1, "b": None}, {"a": 1, "b": {"c": None}},
              {"a": 1, "b": {"c": 1}}]  # fmt: skip
    rows = pa.table({"i": pa.array(range(5), pa.int32()), "s": pa.array(values, type_)})
    field = jobs.snapshot_of(path)[1].schema["s"]
    for at, value in enumerate(values):
        row = rows.slice(at, 1)
        ours = forbidden_null(field, row["s"].combine_chunks()) is None
        refused = refusal_of(delta_spark, path, row)
        assert ours == (refused == ""), (value, refused[:300])


FIT = (None, "", "ab", "abc", "äöü", "😀😀😀")
BLANK = ("abc  ", "ab    ")
LONG = ("abcd", "äöüx", "a\t\t\t")


@pytest.mark.parametrize("type_", ["CHAR(3)", "VARCHAR(3)"])
def test_lengths(tmp_path: Path, delta_spark: SparkSession, type_: str) -> None:
    path = tmp_path / "t"
    delta_spark.sql(f"CREATE TABLE delta.`{path}` (v {type_}) USING delta")
    field = jobs.snapshot_of(path)[1].schema["v"]
    found, theirs = set(), set()
    for value in (*FIT, *BLANK, *LONG):
        row = pa.table({"v": pa.array([value], pa.string())})
        if refusal_of(delta_spark, path, row) == "":
            theirs.add(value)
        try:
            fitted(row["v"].combine_chunks(), field)
        except SchemaMismatch:
            continue
        found.add(value)
    # Spark's own tables lose trailing blanks that are too many, as ours do.
    assert (found, theirs) == ({*FIT, *BLANK}, {*FIT})
