"""Edits of files of any schema, against decoding all rows, filtering and replacing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowgroups.any_schema import mapped, tables
from rowgroups.editing import Edit, assert_true_bounds, editor, make, read, shown, wanted
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.schema import to_arrow_field
from tandem.storage import open_store

Rows = list[dict[str, Any]]


@st.composite
def edits(draw: st.DrawFn, table: TableFormat, rows: int, values: Rows) -> Edit:
    """An edit of a file of so many rows; new values are those of `values`."""
    positions = st.integers(0, rows - 1)
    drops = draw(st.frozensets(positions, max_size=rows - 1))
    if not values or draw(st.booleans()):
        return Edit(drops)
    at = draw(st.frozensets(positions, max_size=len(values)))
    names = [field.physical_name for field in table.data_schema]
    columns = draw(st.none() | st.frozensets(st.sampled_from(names), max_size=len(names)))
    return Edit(drops, dict(zip(sorted(at), values, strict=False)), columns)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableFormat, Rows, list[Edit]]:
    table, (rows, values) = draw(tables(((2, 8), (0, 8))))
    table = draw(st.sampled_from([table, mapped(table, "name"), mapped(table, "id")]))
    return table, rows, [draw(edits(table, len(rows), values)) for _ in range(2)]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "page index": {"write_page_index": True, "data_page_size": 8, "write_batch_size": 1},
    "decimals as bytes": {"store_decimal_as_integer": False, "compression": "snappy"},
    "pages of version 2": {"data_page_version": "2.0", "compression": "gzip"},
}


def write(path: Path, table: TableFormat, rows: Rows, writer: str, size: int) -> str:
    """Returns the statistics of our writer."""
    logical = pa.Table.from_pylist(rows, arrow_schema(table))
    if writer == "tandem":
        with ParquetDataWriter(open_store(f"file://{path.parent}"), "", table) as made:
            for batch in logical.to_batches(max_chunksize=size):
                made.write(batch)
                made.flush()
        [file] = made.files
        (path.parent / file.path).rename(path)
        return file.stats
    fields = [to_arrow_field(field, physical=True) for field in table.data_schema]
    arrays = [c.cast(f.type) for c, f in zip(logical.columns, fields, strict=True)]
    physical = pa.table(arrays, schema=pa.schema(fields))
    with pq.ParquetWriter(path, physical.schema, **OPTIONS[writer]) as file:
        for start in range(0, len(rows), size):
            file.write_table(physical.slice(start, size), row_group_size=size)
            file.write_table(physical.slice(0, 0))
    return ""


@pytest.mark.parametrize("writer", ["tandem", *OPTIONS])
@given(case=cases(), size=st.integers(1, 5))
def test_an_edit_is_what_decoding_filtering_and_replacing_gives(
    writer: str, case: tuple[TableFormat, Rows, list[Edit]], size: int
) -> None:
    table, rows, asked = case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source.parquet"
        write(source, table, rows, writer, size)
        rows = read(source, table)
        of = editor(source, table)
        for edit in asked:
            expected = wanted(rows, table, edit)
            found = make(of, table, edit)
            made = folder / found.file.path
            assert shown(read(made, table)) == shown(expected)
            assert_true_bounds(made, found.file.stats, expected, table)
            whole = write(folder / "whole.parquet", table, expected, "tandem", 100)
            assert found.file.stats == whole
            with duckdb.connect() as session:
                query = f"SELECT count(*) FROM (SELECT * FROM '{made}')"
                assert session.sql(query).fetchall() == [(len(expected),)]
