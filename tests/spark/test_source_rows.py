"""Rows of a source that differ are distinguished, and equal ones are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from pyspark.sql import SparkSession

from tandem.jobs.formats import SOURCE_IDS, MergeClause
from tandem.spark.jobs import merge_source
from tandem.spark.jobs.merge_source import with_identity
from tandem.statements.merge import parse_merge
from tandem.statements.types import Schema

if TYPE_CHECKING:
    from tandem.spark.runtime.control import Control

TEXT = "a STRING, b STRING, x DOUBLE, n INT, d DECIMAL(30, 2), y BINARY, f BOOLEAN"
DIFFERENT = (
    ("u", None, 0.0, 1, None, b"", True),
    (None, "u", 0.0, 1, None, b"", True),
    ("u", None, -0.0, 1, None, b"", True),
    ("u", "", 0.0, 1, None, b"", True),
    ("uv", "w", 0.0, 1, None, b"", True),
    ("u", "vw", 0.0, 1, None, b"", True),
    ("u", "vw", 0.0, None, None, b"", True),
    ("u", "vw", None, None, None, b"", True),
    ("u", "vw", None, None, None, b"", False),
    ("u", "vw", None, None, None, None, False),
    (None, None, None, None, None, None, None),
)


def identities(spark: SparkSession, rows: tuple[tuple[object, ...], ...]) -> list[tuple[int, int]]:
    identified = with_identity(spark.createDataFrame(rows, TEXT))
    assert identified is not None
    return [(row[0], row[1]) for row in identified.select(*SOURCE_IDS).collect()]


def test_rows_that_differ_are_distinguished_by_either_hash(spark: SparkSession) -> None:
    found = identities(spark, DIFFERENT)
    for one in zip(*found, strict=True):
        assert len(set(one)) == len(DIFFERENT)
    assert found[0][0] != found[0][1]
    assert (0, 0) not in found


def test_equal_rows_are_one_whatever_the_order_of_rows_and_columns(spark: SparkSession) -> None:
    found = identities(spark, DIFFERENT)
    assert identities(spark, DIFFERENT[::-1]) == found[::-1]
    other = spark.createDataFrame(DIFFERENT, TEXT).select("y", "n", "d", "x", "b", "a", "f")
    identified = with_identity(other)
    assert identified is not None
    assert [tuple(row) for row in identified.select(*SOURCE_IDS).collect()] == found


def test_sources_with_nested_types_have_no_row_identity(spark: SparkSession) -> None:
    for type_ in ("STRUCT<a: INT, b: INT>", "MAP<INT, INT>", "ARRAY<INT>"):
        assert with_identity(spark.createDataFrame([], f"k INT, v {type_}")) is None


def test_a_source_of_much_memory_is_not_collected(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 360 kB with gigabytes of one text took the driver's memory."""
    source = spark.range(3).selectExpr("id", "repeat('x', 12582912) AS w", "array(id) AS a")
    columns = Schema.from_json(source.schema.json())
    clause = MergeClause(when="Matched", action="Update", all=True, field="spec.merge")
    merge = parse_merge("t.id = s.id AND s.w = t.w", (clause,), columns, columns)

    def collected(_frame: object) -> None:
        raise AssertionError

    monkeypatch.setattr(type(source), "toArrow", collected)
    nowhere = cast("Control", None)
    size = merge_source.measure(source, merge)
    assert size.rows == 3
    assert 3 * 12582912 < size.bytes < 3 * 12582912 + 1000
    assert merge_source.copy_all_rows(nowhere, source, merge, size, 0) is None
