"""Edits of files of any schema, against decoding all rows, filtering and replacing."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from rowgroups.any_schema import mapped, tables
from rowgroups.editing import Edit, assert_true_bounds, editor, make, read, shown, wanted
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.schema import (
    ArrayType,
    DataType,
    Field,
    MapType,
    PrimitiveType,
    StructType,
    to_arrow_field,
)
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
    "names of Arrow": {"use_compliant_nested_type": False},
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
            assert found.whole is None
            assert shown(read(made, table)) == shown(expected)
            assert_true_bounds(made, found.file.stats, expected, table)
            whole = write(folder / "whole.parquet", table, expected, "tandem", 100)
            assert found.file.stats == whole
            with duckdb.connect() as session:
                query = f"SELECT count(*) FROM (SELECT * FROM '{made}')"
                assert session.sql(query).fetchall() == [(len(expected),)]


NESTED = pa.schema(
    [
        ("i", pa.int64()),
        ("d9", pa.decimal128(9, 2)),
        ("d18", pa.decimal128(18, 3)),
        ("d38", pa.decimal128(38, 4)),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("p", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int16()))])),
    ]
)


def nested_rows(count: int) -> Rows:
    moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    return [
        {
            "i": n,
            "d9": Decimal(n) / 4,
            "d18": None if n % 5 == 1 else Decimal(n) / 8,
            "d38": Decimal(-n),
            "t": moment + dt.timedelta(n),
            "n": moment.replace(tzinfo=None) - dt.timedelta(microseconds=n),
            "l": None if n % 4 == 3 else [str(n), None][: n % 4],
            "m": [("k", n), ("l", None)][: n % 3],
            "p": None if n % 6 == 4 else {"x": n / 2, "y": [n]},
        }
        for n in range(count)
    ]


def by_deltalake(path: Path, rows: pa.Table) -> None:
    """With its defaults: Snappy, and Arrow's names of the elements of lists and maps."""
    folder = path.with_suffix("")
    write_deltalake(folder, rows, writer_properties=WriterProperties(max_row_group_size=10))
    [file] = DeltaTable(folder).file_uris()
    Path(file.removeprefix("file://")).rename(path)


def by_duckdb(path: Path, rows: pa.Table) -> None:
    with duckdb.connect() as session:
        session.register("t", rows)
        session.sql("SET timezone = 'UTC'")
        session.sql(f"COPY t TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 10)")


def by_polars(path: Path, rows: pa.Table) -> None:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=10)


NESTED_WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "deltalake": by_deltalake,
    "duckdb": by_duckdb,
    "polars": by_polars,
}


def nested_table(columns: Iterable[str]) -> TableFormat:
    types = {
        "i": "long", "d9": "decimal(9,2)", "d18": "decimal(18,3)", "d38": "decimal(38,4)",
        "t": "timestamp", "n": "timestamp_ntz",
    }  # fmt: skip
    short = ArrayType(PrimitiveType("short"))
    fields: dict[str, DataType] = {name: PrimitiveType(type_) for name, type_ in types.items()}
    fields["l"] = ArrayType(PrimitiveType("string"))
    fields["m"] = MapType(PrimitiveType("string"), PrimitiveType("integer"))
    fields["p"] = StructType((Field("x", PrimitiveType("double")), Field("y", short)))
    return TableFormat(StructType(tuple(Field(name, fields[name]) for name in columns)))


@pytest.mark.parametrize("writer", NESTED_WRITERS)
def test_each_column_alone_is_encoded_as_its_writer_did(writer: str, tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    rows = pa.Table.from_pylist(nested_rows(25), NESTED)
    if writer == "polars":
        rows = rows.drop_columns(["m"])  # a list of structs there
    NESTED_WRITERS[writer](source, rows)
    table = nested_table(rows.column_names)
    before = read(source, table)
    new = {3: before[17], 4: before[23], 24: before[1]}
    for columns in (None, *[frozenset({name}) for name in rows.column_names]):
        edit = Edit(frozenset({9}) if columns is None else frozenset(), new, columns)
        found = make(editor(source, table), table, edit)
        assert found.whole is None
        assert columns is None or found.bytes_copied
        made = tmp_path / found.file.path
        expected = wanted(before, table, edit)
        assert shown(read(made, table)) == shown(expected)
        assert_true_bounds(made, found.file.stats, expected, table)
        assert shown(pq.read_table(made).to_pylist()) == shown(expected)
        with duckdb.connect() as session:
            session.sql("SET timezone = 'UTC'")
            answer = session.sql(f"SELECT i, l, p FROM '{made}'").to_arrow_table()
            assert answer.to_pylist() == [{n: row[n] for n in "ilp"} for row in expected]
        frame = pl.read_parquet(made, columns=["i", "l", "p"])
        assert frame.to_dicts() == [{n: row[n] for n in "ilp"} for row in expected]
