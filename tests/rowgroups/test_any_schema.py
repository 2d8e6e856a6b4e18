"""Row groups of any schema: what is copied reads as what was written, and whatever does not fit is
refused, not misread."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from rowgroups.any_schema import tables
from rowgroups.joining import joined
from rowgroups.writers import footer_of
from tandem.delta.datafiles.copyable import Demands, key_of, unfit
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.storage import open_store


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
        patch.setattr("tandem.delta.datafiles.copyable.GROUP_ROWS", 1)
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
