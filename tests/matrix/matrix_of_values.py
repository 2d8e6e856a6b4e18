"""Type × extreme value × filter × operation × reader: a rewrite of ours changes no answer.

Truth is what each engine says of the foreign table when it cannot skip. Foreign writers are Spark
with default settings (instants are INT96) and deltalake. `tests/delta/test_value_bounds.py` is
the part of it that `make test` runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.values.kinds import KINDS, OPERATORS, filters, tables
from support.values.operations import KINDS_OF_SPARK, OPERATIONS, ingested, rewritten
from support.values.readers import Deltalake, DuckDB, Polars, Reader, Spark, differences
from support.values.tables import by_deltalake, by_spark

pytestmark = pytest.mark.timeout(1800)

FOREIGN = {"deltalake": KINDS, "spark": KINDS_OF_SPARK}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


def foreign(spark: SparkSession, root: Path, writer: str) -> Path:
    """The table of a foreign writer, made once."""
    table = root / writer
    if not table.exists() and writer == "spark":
        by_spark(spark, table, tables(KINDS_OF_SPARK))
    elif not table.exists():
        by_deltalake(table, tables(KINDS))
    return table


@pytest.mark.parametrize("operation", [*OPERATIONS, "ingest"])
@pytest.mark.parametrize("writer", FOREIGN)
def test_no_operation_changes_a_value(
    spark: SparkSession, root: Path, writer: str, operation: str
) -> None:
    before = foreign(spark, root, writer)
    if operation == "ingest":
        after = ingested(spark, before)
    else:
        after = rewritten(spark, before, operation)
    readers: list[Reader] = [Spark.quick(spark), DuckDB(), Deltalake(), Polars()]
    wrong = []
    for kind in FOREIGN[writer]:
        for reader in readers:
            # Delta runs a job of Spark for each filter.
            few = isinstance(reader, Spark)
            asked = list(filters(kind, ("=", "<=", ">=") if few else OPERATORS))
            truth = reader.evaluated(before, asked)
            wrong += differences(reader, truth, reader.found(after, asked), asked)
    assert wrong == []
