"""With `in_tasks` each task of a read asks for its own files: the rows are those of
`format("delta")`, whoever answers the tasks, and the driver is given no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from index.test_exact_numbers import CONDITIONS
from spark.test_indexed_read import TABLES, by_delta, numbered, rows_of, tables
from support.some import some
from support.statements.rows import runtime_errors
from tandem import index
from tandem.spark import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["tables"]


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_schema_are_those_of_delta(
    delta_spark: SparkSession, tables: dict[str, Path], name: str
) -> None:
    held = index.open_index(str(tables[name]))
    every = by_delta(delta_spark, tables[name])
    for text in ["", *some(CONDITIONS, 5)]:
        try:
            expected = rows_of(every.where(text or "TRUE"))
        except runtime_errors():
            continue
        found = read(delta_spark, held, text, in_tasks=True)
        assert found.schema == every.schema
        assert rows_of(found) == expected, text
