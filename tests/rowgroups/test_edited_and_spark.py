"""Edits and parquet-java: Spark reads those of every writer, and edits of its own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rowgroups.editing import Edit, Row, editor, make, read, shown, wanted
from rowgroups.test_edited import EDITS, OLD
from rowgroups.test_edited_schemas import NESTED, NESTED_WRITERS, nested_rows, nested_table
from rowgroups.test_joined import plain
from rowgroups.test_joined_and_spark import TIMES, VECTORISED, by_spark
from rowgroups.writers import TABLE, WRITERS, rows
from tandem.delta.datafiles import edited_files


@pytest.fixture(autouse=True)
def _small_row_groups_are_not_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited_files, "_TINY", 100)


@pytest.fixture(name="session")
def _session(delta_spark: SparkSession) -> Iterator[SparkSession]:
    """The session that tests share, whose settings are as before afterwards."""
    yield delta_spark
    for name in (VECTORISED, TIMES):
        delta_spark.conf.unset(name)


def assert_read(session: SparkSession, made: Path, expected: Sequence[Row]) -> None:
    """By both readers of Spark, all rows and those that filters ask for."""
    table = rows(0).slice(0, 0).from_pylist(list(expected), rows(0).schema)
    for vectorised in (True, False):
        frame = by_spark(session, [made], vectorised=vectorised)
        assert plain(frame.toArrow()) == plain(table), vectorised
        for filter_, test in FILTERS.items():
            count = sum(map(test, expected))
            assert frame.where(filter_).count() == count, (vectorised, filter_)


def _of(name: str, value: Any) -> Any:
    return lambda row: row[name] == value


FILTERS = {
    "s = 'a'": _of("s", "a"),
    "s = 'new'": _of("s", "new"),
    "id = 1501": _of("id", 1_501),
    "id = 1503": _of("id", 1_503),
    "id = 99999": _of("id", 99_999),
    "small = 127": _of("small", 127),
    "isnan(f) OR f > 1": lambda row: row["f"] is not None and not row["f"] <= 1,
    "f = 0": _of("f", 0.0),
}

CHANGED = Edit(
    frozenset({1, 1_499}),
    {n: {**row, "s": "new", "id": 99_999} for n, row in enumerate(OLD) if n in (3, 700, 1_450)},
    frozenset({"s", "id"}),
)


@pytest.mark.part(6)
@pytest.mark.parametrize(
    "name",
    ["tandem", "pyarrow version 2 pages", "pyarrow page indexes", "pyarrow bloom filters",
     "delta-rs", "duckdb", "parquet-go"],
)  # fmt: skip
def test_spark_reads_edits(name: str, tmp_path: Path, session: SparkSession) -> None:
    path = tmp_path / "source.parquet"
    WRITERS[name](path, rows(1))
    for edit in (EDITS["one column"], EDITS["floats"], CHANGED, EDITS["whole rows"]):
        found = make(editor(path, TABLE), TABLE, edit)
        assert found.whole is None
        assert_read(session, tmp_path / found.file.path, wanted(OLD, TABLE, edit))


@pytest.mark.parametrize(
    "times", ["TIMESTAMP_MICROS", pytest.param("INT96", marks=pytest.mark.matrix)]
)
def test_files_of_spark_are_edited(tmp_path: Path, session: SparkSession, times: str) -> None:
    """With several row groups, page indexes and bloom filters."""
    session.conf.set(TIMES, times)
    source = tmp_path / "source.parquet"
    pq.write_table(rows(1), source)
    frame = by_spark(session, [source], vectorised=True).coalesce(1)
    folder = tmp_path / "spark"
    options = {"parquet.block.size": "20000", "parquet.block.size.row.check.min": "10",
               "parquet.page.size.row.check.min": "10", "parquet.page.row.count.limit": "100",
               "parquet.bloom.filter.enabled#id": "true"}  # fmt: skip
    frame.write.options(**options).parquet(str(folder))
    [path] = folder.glob("*.parquet")
    before = read(path, TABLE)
    assert shown(before) == shown(read(source, TABLE))
    for edit in (EDITS["one column"], CHANGED, EDITS["rows dropped"]):
        found = make(editor(path, TABLE), TABLE, edit)
        assert (found.whole is None) is (times != "INT96")
        made = path.parent / found.file.path
        expected = wanted(before, TABLE, edit)
        assert shown(read(made, TABLE)) == shown(expected)
        assert_read(session, made, expected)


@pytest.mark.parametrize("name", NESTED_WRITERS)
def test_spark_reads_nested_columns_that_were_encoded(
    name: str, tmp_path: Path, session: SparkSession
) -> None:
    path = tmp_path / "source.parquet"
    table = pa.Table.from_pylist(nested_rows(25), NESTED)
    if name == "polars":
        table = table.drop_columns(["m"])
    NESTED_WRITERS[name](path, table)
    of = nested_table(table.column_names)
    before = read(path, of)
    columns = frozenset({"d9", "d18", "d38", "l", "m", "p", "t"} & {*table.column_names})
    edit = Edit(frozenset({20}), {3: before[17], 4: before[23], 15: before[3]}, columns)
    found = make(editor(path, of), of, edit)
    assert found.whole is None
    expected = wanted(before, of, edit)
    for vectorised in (True, False):
        answer = by_spark(session, [tmp_path / found.file.path], vectorised=vectorised).toArrow()
        assert shown(answer.cast(table.schema).to_pylist()) == shown(
            pa.Table.from_pylist(expected, table.schema).to_pylist()
        )
