"""Generated columns and defaults, in tables that Spark + Delta made: rows with new values are those
that Spark itself writes for the same statement, or both refuse it (R-15).

Jobs run over Arrow, on Spark where the table is partitioned.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.jobs.quick_lake import rows_by_spark, theirs, twins
from support.lake.lake import INSERT_ALL, Lake, message, reason
from tandem.spec.resources import Operation

COLUMNS = (
    "id BIGINT, v INT, ts TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(ts AS DATE)), "
    "`Zwölf-v` BIGINT GENERATED ALWAYS AS (v * 2L), note STRING DEFAULT 'none', "
    "size INT NOT NULL DEFAULT 7"
)
TABLES = {
    "edits": ("", "'delta.enableDeletionVectors' = 'false'"),
    "vectors": ("", "'delta.enableDeletionVectors' = 'true'"),
    "mapped": (
        "PARTITIONED BY (day)",
        "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true'",
    ),
}
NOON = "TIMESTAMP '2026-02-03 12:00:00'"
AT = dt.datetime(2026, 2, 3, 12, tzinfo=dt.UTC)


def rows(*values: dict[str, Any], **types: pa.DataType) -> pa.Table:
    known = {"id": pa.int64(), "v": pa.int32(), "ts": pa.timestamp("us", "UTC"), **types}
    names = list(values[0])
    schema = pa.schema([(n, known.get(n, pa.string())) for n in names])
    return pa.Table.from_pylist(list(values), schema=schema)


TWICE = {"Zwölf-v": pa.int64()}
FEW = rows({"id": 1, "v": 50, "ts": AT}, {"id": 40, "v": 51, "ts": None})
GIVEN = rows({"id": 41, "v": 5, "Zwölf-v": 10}, {"id": 42, "v": None, "Zwölf-v": None}, **TWICE)
WRONG = rows({"id": 41, "v": 5, "Zwölf-v": 11}, **TWICE)
NOTED = rows({"id": 43, "note": None}, {"id": 44, "note": "x"})
BIG = rows({"id": 45, "v": 2**31 - 1}, {"id": 46, "v": -(2**31)})


@dataclass(frozen=True)
class Statement:
    """Of Tandem and of Spark. `source`: what Spark finds as `s`."""

    of: Callable[[Lake], Operation]
    sql: str
    source: pa.Table | None = None


def merged(source: pa.Table, sql: str, **clauses: Any) -> Statement:
    return Statement(
        lambda lake: lake.merge(source, **clauses),
        f"MERGE INTO {{}} t USING s ON t.id = s.id {sql}",
        source,
    )


def loaded(source: pa.Table) -> Statement:
    names = ", ".join(f"`{name}`" for name in source.column_names)
    return Statement(
        lambda lake: lake.resource(
            "TableIngest",
            {"source": {"format": "Parquet", "location": lake.source(source).as_uri()}},
        ),
        f"INSERT INTO {{}} ({names}) SELECT * FROM s",
        source,
    )


def update(sql: str, where: str, **set_: str) -> Statement:
    names = {name.replace("_", "-"): value for name, value in set_.items()}
    return Statement(
        lambda lake: lake.update(where, **names), f"UPDATE {{}} SET {sql} WHERE {where}"
    )


STATEMENTS = {
    "what it reads": update("v = v + 1", "id < 3", v="v + 1"),
    "in another type": update("v = 9L", "id = 2", v="9L"),
    "to another partition": update(f"ts = {NOON}", "id IN (2, 5)", ts=NOON),
    "what it does not read": update("note = upper(note)", "true", note="upper(note)"),
    "to NULL": update("ts = NULL, v = NULL", "id = 3", ts="NULL", v="NULL"),
    "as it is": update("`Zwölf-v` = v + v", "id = 1", Zwölf_v="v + v"),
    "both": update("v = 8, `Zwölf-v` = 16", "id = 1", v="8", Zwölf_v="16"),
    "insert": merged(
        FEW,
        "WHEN NOT MATCHED THEN INSERT (id, v, ts) VALUES (s.id, s.v, s.ts)",
        whenNotMatched=[{"insert": {"values": {"id": "s.id", "v": "s.v", "ts": "s.ts"}}}],
    ),
    "insert of few": merged(
        FEW,
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        whenNotMatched=[{"insert": {"values": {"id": "s.id"}}}],
    ),
    "matched": merged(
        FEW,
        "WHEN MATCHED THEN UPDATE SET v = s.v, ts = s.ts",
        whenMatched=[{"update": {"set": {"v": "s.v", "ts": "s.ts"}}}],
    ),
    "given": loaded(GIVEN),
    "few": loaded(FEW),
    "NULL given": loaded(NOTED),
    "extremes": loaded(BIG),
}
REFUSED = {
    "wrong": update("`Zwölf-v` = v", "id = 1", Zwölf_v="v"),
    "wrong and read": update("v = 8, `Zwölf-v` = 8", "id = 1", v="8", Zwölf_v="8"),
    "wrong in a load": loaded(WRONG),
    "wrong in an insert": merged(
        WRONG,
        "WHEN NOT MATCHED THEN INSERT (id, v, `Zwölf-v`) VALUES (s.id, s.v, s.`Zwölf-v`)",
        whenNotMatched=[
            {"insert": {"values": {"id": "s.id", "v": "s.v", "Zwölf-v": "s.`Zwölf-v`"}}}
        ],
    ),
}


def cases(statements: Mapping[str, Statement], *always: str) -> Iterator[Any]:
    """Each with each kind of table; all but a few are left to `make matrix`: Spark takes its
    time."""
    for kind in TABLES:
        for name, statement in statements.items():
            few = kind == "vectors" and name in always
            marks = () if few else pytest.mark.matrix
            yield pytest.param(kind, statement, marks=marks, id=f"{name}, {kind}")


@pytest.fixture(scope="module")
def templates(
    delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("generated")
    for name, (by, properties) in TABLES.items():
        table = f"delta.`{root / name}`"
        features = "'delta.feature.allowColumnDefaults' = 'supported'"
        delta_spark.sql(
            f"CREATE TABLE {table} ({COLUMNS}) USING delta {by} "
            f"TBLPROPERTIES ({features}, {properties})"
        )
        for start in (0, 3):
            delta_spark.sql(
                f"INSERT INTO {table} (id, v, ts) SELECT id, CAST(id * 10 AS INT), "
                "timestamp_seconds(id * 40000) FROM "
                f"range({start}, {start + 3})"
            )
    return {name: root / name for name in TABLES}


@pytest.fixture
def lake(spark: SparkSession, templates: dict[str, Path], tmp_path: Path, kind: str) -> Lake:
    """Jobs without Spark write one partition."""
    return twins(spark, templates[kind], tmp_path, arrow=not TABLES[kind][0])


def spark_does(lake: Lake, statement: Statement) -> str:
    """The name of Spark's error, if there is one."""
    if statement.source is not None:
        lake.delta_spark.createDataFrame(statement.source).createOrReplaceTempView("s")
    try:
        lake.delta_spark.sql(statement.sql.format(f"delta.`{theirs(lake)}`"))
    except (PySparkException, Py4JJavaError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "statement"), list(cases(STATEMENTS, "what it reads", "insert of few", "NULL given"))
)
def test_new_values_are_those_of_spark(lake: Lake, statement: Statement) -> None:
    lake.do(statement.of(lake))
    assert spark_does(lake, statement) == ""
    assert rows_by_spark(lake, lake.path) == rows_by_spark(lake, theirs(lake))


@pytest.mark.parametrize(("kind", "statement"), list(cases(REFUSED, "wrong")))
def test_values_that_are_not_the_generated_ones_are_refused(
    lake: Lake, statement: Statement
) -> None:
    before = rows_by_spark(lake, lake.path)
    status = lake.run(statement.of(lake))
    assert reason(status) == "ConstraintViolated", status
    assert "generated column Zwölf-v" in message(status)
    assert "v * 2L" in message(status)
    assert rows_by_spark(lake, lake.path) == before
    assert "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES" in spark_does(lake, statement)


@pytest.mark.parametrize("kind", ["vectors"])
def test_all_columns_of_a_source_that_lacks_computed_ones(lake: Lake) -> None:
    """Spark refuses such an INSERT *: it resolves generated columns, and no defaults."""
    lake.do(lake.merge(FEW, **INSERT_ALL))
    insert = "INSERT (id, v, ts) VALUES (s.id, s.v, s.ts)"
    assert spark_does(lake, merged(FEW, f"WHEN NOT MATCHED THEN {insert}")) == ""
    assert rows_by_spark(lake, lake.path) == rows_by_spark(lake, theirs(lake))


@pytest.mark.parametrize("kind", ["edits"])
def test_a_record_of_json_that_lacks_a_key_has_null_and_generated_columns(
    lake: Lake, tmp_path: Path
) -> None:
    """As Spark reads JSON with the schema of the table: no column is absent, so that defaults do
    not apply."""
    source = tmp_path / "rows.json"
    source.write_text('{"id": 50, "v": 3, "size": 1}\n{"id": 51, "size": 2, "Zwölf-v": null}\n')
    lake.do(
        lake.resource("TableIngest", {"source": {"format": "Json", "location": source.as_uri()}})
    )
    found = lake.delta_spark.sql(f"SELECT * FROM {lake.sql_name} WHERE id >= 50 ORDER BY id")
    assert [tuple(row) for row in found.collect()] == [
        (50, 3, None, None, 6, None, 1),
        (51, None, None, None, None, None, 2),
    ]
