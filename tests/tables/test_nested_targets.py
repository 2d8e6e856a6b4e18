"""Fields of structs, arrays and maps as targets, in tables that Spark + Delta made: rows are those
that Spark itself writes for the same statement.

Jobs run over Arrow, on Spark where the table is partitioned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.jobs.quick_lake import rows_by_spark, theirs, twins
from support.lake.lake import INSERT_ALL, Lake
from tandem.spec.resources import Operation

COLUMNS = (
    "id BIGINT, p INT, s STRUCT<a: INT, `b-c`: STRING, in: STRUCT<d: DOUBLE, l: ARRAY<INT>>>, "
    "o STRUCT<d: DOUBLE, l: ARRAY<INT>>, l ARRAY<INT>, k ARRAY<INT>, m MAP<STRING, INT>, "
    "n MAP<STRING, INT>"
)
ROWS = """
    SELECT id, CAST(id % 2 AS INT) AS p,
      IF(id % 4 = 3, NULL, named_struct(
        'a', IF(id = 1, NULL, CAST(id AS INT)), 'b-c', concat('t', id),
        'in', IF(id = 2, NULL, named_struct('d', id / 3, 'l', array(1, CAST(id AS INT))))
      )) AS s,
      named_struct('d', double('NaN'), 'l', array(CAST(NULL AS INT))) AS o,
      IF(id = 4, NULL, array(CAST(id AS INT), NULL)) AS l, array(7, 8) AS k,
      map('x', CAST(id AS INT), 'y', NULL) AS m, IF(id = 5, NULL, map('z', 1)) AS n
    FROM range({}, {})
"""
TABLES = {
    "edits": ("", "'delta.enableDeletionVectors' = 'false'"),
    "vectors": ("", "'delta.enableDeletionVectors' = 'true'"),
    "mapped": ("PARTITIONED BY (p)", "'delta.columnMapping.mode' = 'name'"),
}


@dataclass(frozen=True)
class Statement:
    """Of Tandem and of Spark. `source`: the ids of rows that Spark finds as `s`."""

    of: Callable[[Lake], Operation]
    sql: str
    source: range = field(default_factory=lambda: range(0))


def update(where: str, **set_: str) -> Statement:
    """`__` stands for the dot of a field."""
    values = {name.replace("__", "."): value for name, value in set_.items()}
    sql = ", ".join(f"{name} = {value}" for name, value in values.items())
    return Statement(
        lambda lake: lake.update(where, **values), f"UPDATE {{}} SET {sql} WHERE {where}"
    )


def merged(source: range, sql: str, **clauses: Any) -> Statement:
    def of(lake: Lake) -> Operation:
        return lake.merge(rows(lake, source), **clauses)

    return Statement(of, f"MERGE INTO {{}} t USING s ON t.id = s.id {sql}", source)


SET = {"s.in.d": "s.o.d", "s.a": "s.s.a", "l": "s.k", "m": "s.n"}
TO = ", ".join(f"t.{name} = {value}" for name, value in SET.items())
VALUES = {"id": "s.id", "s": "s.s", "l": "s.l", "o": "named_struct('l', s.k, 'd', 1)"}
STATEMENTS = {
    "a field": update("id < 6", s__a="s.a + 1"),
    "of a NULL struct": update("true", s__a="9"),
    "to NULL": update("id IN (0, 1, 3)", s__a="NULL", s__in__d="NULL"),
    "two fields": update("p = 0", s__a="id", s__in__l="l"),
    "deep": update("id > 1", s__in__d="coalesce(s.in.d, 0) + 0.5"),
    "struct from struct": update("id % 3 = 0", s__in="o"),
    "struct from a field": update("id % 3 = 0", o="s.in"),
    "struct to NULL": update("id < 4", s="NULL", o="NULL"),
    "a new struct": update("id < 7", o="named_struct('d', id, 'l', k)"),
    "arrays and maps": update("id > 2", l="k", m="n", n="m"),
    "arrays and maps to NULL": update("id > 2", l="NULL", m="NULL"),
    "to another partition": update("id < 5", p="5", s__a="p"),
    "merge": merged(
        range(2, 7), f"WHEN MATCHED THEN UPDATE SET {TO}", whenMatched=[{"update": {"set": SET}}]
    ),
    "insert": merged(
        range(6, 12),
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(VALUES)}) VALUES ({', '.join(VALUES.values())})",
        whenNotMatched=[{"insert": {"values": VALUES}}],
    ),
    "upsert": merged(
        range(6, 12),
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        whenMatched=[{"updateAll": {}}],
        **INSERT_ALL,
    ),
}
ALWAYS = ("of a NULL struct", "two fields", "struct from a field", "arrays and maps", "merge")


def rows(lake: Lake, ids: range) -> pa.Table:
    folder = lake.path.with_name("rows")
    frame = lake.delta_spark.sql(ROWS.format(ids.start, ids.stop))
    frame.coalesce(1).write.parquet(str(folder), mode="overwrite")
    return pq.read_table(folder)


@pytest.fixture(scope="module")
def templates(
    delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("nested")
    for name, (by, properties) in TABLES.items():
        table = f"delta.`{root / name}`"
        delta_spark.sql(
            f"CREATE TABLE {table} ({COLUMNS}) USING delta {by} TBLPROPERTIES ({properties})"
        )
        for start in (0, 4):
            delta_spark.sql(f"INSERT INTO {table} {ROWS.format(start, start + 4)}")
    return {name: root / name for name in TABLES}


@pytest.fixture
def lake(
    spark: SparkSession, templates: dict[str, Path], tmp_path: Path, kind: str, name: str
) -> Lake:
    """Jobs without Spark write one partition, and copy no maps of a source."""
    arrow = not TABLES[kind][0] and name not in ("merge", "upsert")
    return twins(spark, templates[kind], tmp_path, arrow=arrow)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind, name, marks=() if kind == "edits" and name in ALWAYS else pytest.mark.matrix
        )
        for kind in TABLES
        for name in STATEMENTS
    ],
)
def test_nested_values_are_those_of_spark(lake: Lake, name: str) -> None:
    statement = STATEMENTS[name]
    of_ours = statement.of(lake)
    if statement.source:
        source = rows(lake, statement.source)
        lake.delta_spark.createDataFrame(source).createOrReplaceTempView("s")
    lake.delta_spark.sql(statement.sql.format(f"delta.`{theirs(lake)}`"))
    lake.do(of_ours)
    assert rows_by_spark(lake, lake.path) == rows_by_spark(lake, theirs(lake))
    for where in ("s.a = 9", "s.in.d > 1", "s.a IS NULL", "o.d < 1", "s.`b-c` >= 't3'"):
        # By the statistics, too.
        found = [
            lake.delta_spark.read.format("delta").load(str(path)).where(where).count()
            for path in (lake.path, theirs(lake))
        ]
        assert found[0] == found[1], where
    lake.do(lake.compaction("Major"))
    assert rows_by_spark(lake, lake.path) == rows_by_spark(lake, theirs(lake))
