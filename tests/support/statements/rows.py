"""Rows that are hard on expressions, and the comparison of two texts inside Spark.

`same_meaning` asks Spark's analyser, not only its results: two texts whose analysed and
canonicalised expressions are equal mean the same on every row there is. Where they are not
equal (Spark balances chains of AND and OR by their length), the results on the rows decide.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tandem.statements import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = (
    "b BOOLEAN, b2 BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, j32 INT, i64 BIGINT, f32 FLOAT, "
    "f64 DOUBLE, g64 DOUBLE, dec DECIMAL(10,2), wide DECIMAL(38,18), s STRING, u STRING, "
    "bin BINARY, d DATE, e DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, `we ird``.x` STRING, "
    "st STRUCT<x: INT, Y: STRUCT<z: STRING>>, arr ARRAY<INT>"
)

NAN, INF = float("nan"), float("inf")
UTC = dt.UTC


def rows() -> list[tuple[Any, ...]]:
    """Values column by column, filled up with NULL and turned into rows."""
    day, moment = dt.date, dt.datetime
    columns: list[list[Any]] = [
        [True, False],
        [True, True, False, False],
        [-128, 127, 0, 1],
        [-(2**15), 2**15 - 1, 0, 5],
        [-(2**31), 2**31 - 1, 0, 7, -7],
        [3, -3, 1, 2, 0],
        [-(2**63), 2**63 - 1, 0, 42],
        [NAN, -0.0, 0.0, INF, -INF, 1.100000023841858],
        [NAN, -0.0, 0.0, INF, -INF, 1.1, 5e-324, 1.7976931348623157e308],
        [0.0, NAN, -0.0, 1.5, -1.5, 1.1],
        [Decimal("1.50"), Decimal("-99999999.99"), Decimal("0.00"), Decimal("99999999.99")],
        [Decimal("1.5"), Decimal("99999999999999999999.999999999999999999"), Decimal(0)],
        ["", "it's", 'a"b', "back\\slash", "Zürich", "ß", "😀", "a%b_c", " pad ", "10", "1.5",
         "abc", "2013-01-01", "true", "\n", "\0x", "ABC"],
        ["a", "it's", "10", "abc", "", "ÀÉ", "%", "_"],
        [b"", b"\x00\xff", b"abc"],
        [day(1, 1, 1), day(9999, 12, 31), day(1969, 12, 31), day(2016, 2, 29), day(2013, 3, 31)],
        [day(2013, 1, 1), day(2013, 12, 31)],
        [moment(2013, 3, 31, 1, 0, tzinfo=UTC), moment(2013, 10, 27, 0, 59, 59, 999999, UTC),
         moment(1960, 1, 1, 0, 0, 0, 1, UTC), moment(2016, 12, 31, 23, 59, 59, tzinfo=UTC)],
        [moment(2013, 3, 31, 2, 30), moment(1900, 1, 1), moment(2024, 2, 29, 12, 0, 0, 5)],
        ["x", "`"],
        [(1, ("q",)), (2, None), (None, (None,))],
        [[1, 2], []],
    ]  # fmt: skip
    height = max(len(column) for column in columns) + 1
    return [
        tuple(column[n] if n < len(column) else None for column in columns) for n in range(height)
    ]


def nasty(spark: SparkSession) -> DataFrame:
    """The rows as a cached DataFrame, made once for each session."""
    # PySpark logs every expected AnalysisException with both stack traces.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    if spark.catalog.tableExists("nasty_rows"):
        return spark.table("nasty_rows")
    frame = spark.createDataFrame(rows(), DDL).coalesce(1).cache()
    frame.createOrReplaceTempView("nasty_rows")
    return frame


def _struct(**fields: Any) -> dict[str, Any]:
    listed = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": listed}


SCHEMA_JSON = json.dumps(
    _struct(
        b="boolean", b2="boolean", i8="byte", i16="short", i32="integer", j32="integer",
        i64="long", f32="float", f64="double", g64="double", dec="decimal(10,2)",
        wide="decimal(38,18)", s="string", u="string", bin="binary", d="date", e="date",
        ts="timestamp", ntz="timestamp_ntz",
        **{"we ird`.x": "string"},
        st=_struct(x="integer", Y=_struct(z="string")),
        arr={"type": "array", "elementType": "integer", "containsNull": True},
    )
)  # fmt: skip
SCHEMA = Schema.from_json(SCHEMA_JSON)


def analyse(frame: DataFrame, texts: Sequence[str]) -> list[Any]:
    """Spark's analysed expressions of several texts (java objects); raises if one is refused."""
    selected = frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(texts)))
    listed = selected._jdf.queryExecution().analyzed().projectList()
    return [listed.apply(n).child() for n in range(len(texts))]


def analysis_error(frame: DataFrame, text: str) -> str:
    """What Spark's parser or analyser says against a text; "" if nothing."""
    from pyspark.errors import PySparkException

    try:
        analyse(frame, [text])
    except PySparkException as error:
        return error.getCondition() or str(error)[:200]
    return ""


def runtime_errors() -> tuple[type[Exception], ...]:
    """What Spark raises; some failures of the JVM reach Python without a condition."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JJavaError)


def outcome(frame: DataFrame, text: str) -> tuple[str, list[Any]]:
    """The values of an expression on all rows, or the name of the error that it raises."""
    from pyspark.errors import PySparkException

    selected = frame.selectExpr(f"CAST(({text}) AS STRING) AS c")
    try:
        return "", [row[0] for row in selected.collect()]
    except runtime_errors() as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        return condition or type(error).__name__, []
