"""The types of JSON fields that are said without Spark are those that Spark infers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tandem.spark.sources.json_text import fields_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: tuple[dict[str, Any], ...] = (
    {"b": True, "l": 1, "d": 1.5, "s": "x", "m": 1, "n": None, "o": 1, "t": "2026-01-01", "z": 1e3},
    {"b": None, "l": -(1 << 63), "d": 2.0, "s": "1", "m": 0.5, "o": "a", "t": "12:00:00", "z": 2.0},
)


def test_the_types_are_those_that_spark_infers(spark: SparkSession) -> None:
    lines = [json.dumps(row) for row in ROWS]
    found = fields_of(["\n".join(lines) + "\n"])
    assert found is not None
    assert {name for name, type_ in found.items() if not type_} == {"n", "o"}
    frame = spark.createDataFrame([(line,) for line in lines], "value string")
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    inferred = spark.read.json(frame.select(F.col("value"))).schema
    assert {f.name for f in inferred} == set(found)
    spark_types = {f.name: f.dataType.simpleString().replace("bigint", "long") for f in inferred}
    assert {n: t for n, t in found.items() if t} == {n: spark_types[n] for n in found if found[n]}


@pytest.mark.parametrize(
    "text",
    ['{"a": 1', "[1]", "1", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1, "A": 2}', "[" * 100_000],
)
def test_what_is_in_doubt_is_not_said(text: str) -> None:
    assert fields_of(['{"a": 1}\n', text]) is None


def test_a_number_beyond_64_bits_and_a_nested_value_are_in_doubt() -> None:
    assert fields_of([f'{{"a": {1 << 63}, "b": [1], "c": {{}}, "d": 1}}\n']) == {
        "a": "",
        "b": "",
        "c": "",
        "d": "long",
    }
    assert fields_of(["\n", ""]) == {}
    assert fields_of(["x" * (9 << 20)]) is None
