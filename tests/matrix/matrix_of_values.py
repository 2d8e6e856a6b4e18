"""Type × extreme value × filter × operation × reader: a rewrite of ours changes no answer.

Truth is what each engine says of the foreign table when it cannot skip; Arrow Go, which does not
filter, finds the rows that we find in it. Foreign writers are Spark with default settings (instants
are INT96), deltalake and parquet-go. `tests/delta/test_value_bounds.py` is
the part of it that `make test` runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.parquet import go_parquet
from support.values.kinds import KINDS, OPERATORS, Kind, filters, tables
from support.values.operations import KINDS_OF_SPARK, OPERATIONS, ingested, lake_at, rewritten
from support.values.readers import (
    Deltalake,
    DuckDB,
    Polars,
    Reader,
    Spark,
    differences,
    live_files,
)
from support.values.tables import by_deltalake, by_parquet_go, by_spark
from tandem.delta.scan import scan

pytestmark = pytest.mark.timeout(1800)

FOREIGN = {"deltalake": KINDS, "spark": KINDS_OF_SPARK, "parquet-go": KINDS}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


def foreign(spark: SparkSession, root: Path, writer: str) -> Path:
    """The table of a foreign writer, made once."""
    table = root / writer
    if not table.exists() and writer == "spark":
        by_spark(spark, table, tables(KINDS_OF_SPARK))
    elif not table.exists():
        write = by_parquet_go if writer == "parquet-go" else by_deltalake
        write(table, tables(KINDS))
    return table


def rows_of(files: Iterable[pa.Table], kinds: Sequence[Kind]) -> list[str]:
    """The values of all rows, by `id`."""
    names = ["id", *(kind.name for kind in kinds)]
    rows = pa.concat_tables(file.select(names) for file in files).sort_by("id")
    times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type)]
    for name in times:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, rows[name].cast(pa.int64()))
    days = rows.schema.get_field_index("day")
    return [*map(repr, rows.set_column(days, "day", rows["day"].cast(pa.int32())).to_pylist())]


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
    kinds = FOREIGN[writer]
    there = lake_at(spark, before)
    ours = pa.table(scan(there.log.snapshot(), there.store))
    by_arrow_go = (go_parquet.read(Path(path)) for path in live_files(after))
    assert rows_of(by_arrow_go, kinds) == rows_of([ours], kinds)
    readers: list[Reader] = [Spark.quick(spark), DuckDB(), Deltalake(), Polars()]
    wrong = []
    for kind in kinds:
        for reader in readers:
            # Delta runs a job of Spark for each filter.
            few = isinstance(reader, Spark)
            asked = list(filters(kind, ("=", "<=", ">=") if few else OPERATORS))
            truth = reader.evaluated(before, asked)
            wrong += differences(reader, truth, reader.found(after, asked), asked)
    assert wrong == []
