"""Row groups of any schema: what is copied reads as what was written, and whatever does not fit is
refused, not misread."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowgroups.joining import joined
from rowgroups.writers import footer_of
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.datafiles.rowgroups.fitness import Demands, unfit
from tandem.delta.datafiles.rowgroups.schema import key_of
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.schema import ArrayType, DataType, Field, MapType, PrimitiveType, StructType
from tandem.storage import open_store

NAMES = st.sampled_from(["a", "b.c", "`", "ü", "x y", "element", "list", "key", "A1", ""]).map(
    lambda name: name or "empty"
)
SIMPLE: Mapping[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "byte": st.integers(-128, 127),
    "short": st.integers(-(2**15), 2**15 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "string": st.text(st.characters(codec="utf-8"), max_size=50),
    "binary": st.binary(max_size=5),
    "decimal(9,2)": st.decimals(-(10**6), 10**6, places=2, allow_nan=False),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10, allow_nan=False),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
}


def types(depth: int = 2) -> st.SearchStrategy[tuple[DataType, st.SearchStrategy[Any]]]:
    """A type, and its values."""
    simple = st.sampled_from(sorted(SIMPLE)).map(lambda n: (PrimitiveType(n), SIMPLE[n]))
    if not depth:
        return simple
    inner = types(depth - 1)
    return st.one_of(
        simple,
        inner.map(lambda t: (ArrayType(t[0], True), st.lists(t[1] | st.none(), max_size=3))),
        inner.map(
            lambda t: (
                MapType(PrimitiveType("string"), t[0], True),
                st.dictionaries(st.sampled_from("kl"), t[1] | st.none()).map(
                    lambda found: list(found.items())
                ),
            )
        ),
        st.dictionaries(NAMES, inner, min_size=1, max_size=2).map(
            lambda fields: (
                StructType(tuple(Field(n, t[0], nullable=True) for n, t in fields.items())),
                st.fixed_dictionaries({n: t[1] | st.none() for n, t in fields.items()}),
            )
        ),
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableFormat, list[list[dict[str, Any]]]]:
    """A table, and the rows of two files of it."""
    columns = draw(st.dictionaries(NAMES, types(), min_size=1, max_size=4))
    row = st.fixed_dictionaries({n: t[1] | st.none() for n, t in columns.items()})
    files = draw(st.lists(st.lists(row, min_size=1, max_size=6), min_size=2, max_size=2))
    schema = StructType(tuple(Field(n, t[0], nullable=True) for n, t in columns.items()))
    return TableFormat(schema), files


def write(folder: Path, name: str, of: TableFormat, rows: pa.Table, writer: str) -> str:
    """Returns the statistics of our writer."""
    if writer == "pyarrow":
        pq.write_table(rows, folder / name, compression="zstd", row_group_size=4,
                       store_decimal_as_integer=True)  # fmt: skip
        return ""
    with ParquetDataWriter(open_store(f"file://{folder}"), "", of) as made:
        for batch in rows.to_batches(max_chunksize=4):
            made.write(batch)
            made.flush()
    [file] = made.files
    (folder / file.path).rename(folder / name)
    return file.stats


def read(folder: Path, name: str, of: TableFormat) -> list[Any]:
    with DataFileReader(open_store(f"file://{folder}"), name, of) as reader:
        return [repr(row) for batch in reader.batches() for row in batch.to_pylist()]


@pytest.mark.part(2)
@pytest.mark.parametrize("writer", ["tandem", "pyarrow"])
@given(made=tables())
def test_what_is_copied_reads_as_what_was_written(
    writer: str, made: tuple[TableFormat, list[list[dict[str, Any]]]]
) -> None:
    of, files = made
    schema = arrow_schema(of)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.delta.datafiles.rowgroups.fitness.GROUP_ROWS", 1)
        folder = Path(name)
        for number, rows in enumerate(files):
            write(folder, f"{number}.parquet", of, pa.Table.from_pylist(rows, schema), writer)
        footers = [footer_of(folder / f"{n}.parquet") for n in range(len(files))]
        demands = Demands.of(of)
        if any(unfit(footer, demands) for footer in footers):
            assert writer == "pyarrow"
            return
        assert len({*map(key_of, footers)}) == 1
        found = joined(folder, [folder / f"{n}.parquet" for n in range(len(files))], table=of)
        expected = [row for n in range(len(files)) for row in read(folder, f"{n}.parquet", of)]
        assert read(folder, found.path, of) == expected
        with duckdb.connect() as session:
            query = f"SELECT count(*) FROM (SELECT * FROM '{folder / found.path}')"
            assert session.sql(query).fetchall() == [(len(expected),)]
        whole = pa.Table.from_pylist([row for rows in files for row in rows], schema)
        assert found.stats == write(folder, "whole.parquet", of, whole, "tandem")
