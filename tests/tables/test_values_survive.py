"""Extreme values in tables that Spark wrote: after a rewrite of ours, Spark finds the same rows.

Every type, operation and reader: `make matrix` (`tests/matrix/matrix_of_values.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.values.kinds import Filter, tables
from support.values.operations import KINDS_OF_SPARK, lake_at, rewritten
from support.values.readers import Deltalake, DuckDB, Polars, Reader, Spark, differences
from support.values.tables import by_spark

KINDS = {
    kind.name: replace(kind, extremes=kind.extremes[:3])
    for kind in KINDS_OF_SPARK
    if kind.name in ("f64", "nested", "moment")
}
DOUBLE = KINDS["f64"]


@pytest.fixture(scope="module")
def foreign(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("values") / "t"
    by_spark(delta_spark, root, tables(tuple(KINDS.values())))
    return root


def test_a_compaction_and_an_update_change_no_value(spark: SparkSession, foreign: Path) -> None:
    compacted = rewritten(spark, foreign, "bin-pack")
    updated = rewritten(spark, compacted, "update")
    asked = [
        *(Filter(DOUBLE, operator, v) for v in (math.nan, 0.0, 100.0) for operator in ("=", ">=")),
        Filter(KINDS["nested"], ">", 100.0),
        *(Filter(KINDS["moment"], operator, -1) for operator in ("=", "<=", ">")),
    ]
    readers: list[Reader] = [Spark.quick(spark), DuckDB(), Deltalake(), Polars()]
    wrong = []
    for reader in readers:
        truth = reader.evaluated(foreign, asked)
        assert any(truth)
        wrong += differences(reader, truth, reader.found(updated, asked), asked)
    assert wrong == []

    # What Spark deletes is what it finds.
    beyond = Filter(DOUBLE, ">", 100.0)
    everything = Filter(DOUBLE, "IS NOT NULL")
    reader = Spark.quick(spark)
    [deleted, there] = reader.evaluated(foreign, [beyond, everything])
    lake_at(spark, updated).sql("DELETE FROM TABLE WHERE f64 > 100")
    [left] = reader.evaluated(updated, [everything])
    assert left == there - deleted
