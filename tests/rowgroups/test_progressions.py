"""Column chunks that are written without their numbers: engines read the numbers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from support.parquet import go_parquet
from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.copyable import CODECS
from tandem.delta.datafiles.footer import MAGIC, ByteRange
from tandem.delta.datafiles.footer_edit import Placed, footer_bytes, group_at, group_of
from tandem.delta.datafiles.progressions import (
    NOWHERE,
    Places,
    Progression,
    chunk_of,
    optional_element,
)

LAST = 2**63 - 1
MANY = 300_001
"""More than two pages."""
NUMBERS = [
    *(Progression(first, step, values) for first, step, values in product(
        (0, 70_000_000_000), (0, 1), (1, 2, 128, 129, 130, 257, MANY))),
    Progression(LAST - MANY + 1, 1, MANY),
    Progression(LAST, 0, 1_000),
]  # fmt: skip
PAGE = 1 << 17
SAME = [
    (Progression(7, 0, rows), np.arange(first, rows, step))
    for rows, first, step in ((1, 0, 1), (9, 3, 1), (257, 0, 8), (MANY, 0, 100))
]
SAME += [
    (Progression(LAST, 0, MANY), np.arange(PAGE, 2 * PAGE)),  # a page without a number
    (Progression(0, 0, MANY), np.delete(np.arange(MANY), [0, PAGE - 1, PAGE, MANY - 1])),
]
"""Numbers that are all the same, and the rows that have NULL instead."""
COLUMNS = [*((numbers, NOWHERE) for numbers in NUMBERS), *SAME]


def write(
    path: Path, numbers: Progression, codec: str, *, indexed: bool, nulls: Places = NOWHERE
) -> None:
    """A file of one column `n`, in one row group."""
    chunk, data = chunk_of("n", numbers, len(MAGIC), codec, indexed=indexed, nulls=nulls)
    place = Placed(chunk.data.start, offset_index=chunk.offset_index or ByteRange(0, 0))
    root = thrift.struct_bytes(
        [
            thrift.EncodedField(4, thrift.BINARY, thrift.binary_bytes(b"schema")),
            thrift.EncodedField(5, thrift.I32, thrift.integer_bytes(1)),
        ]
    )
    footer = footer_bytes(
        version=1,
        schema=[root, optional_element("n")],
        rows=numbers.values,
        groups=[group_at(group_of(numbers.values, [chunk]), [place], 0)],
        pairs={},
        creator=b"test",
        orders=thrift.list_bytes([b"\x1c\x00\x00"]),  # of its type
    )
    path.write_bytes(MAGIC + data + footer + len(footer).to_bytes(4, "little") + MAGIC)


def expected(numbers: Progression, nulls: Places = NOWHERE) -> pa.ChunkedArray:
    is_null = np.zeros(numbers.values, np.bool_)
    is_null[nulls] = True
    found = numbers.first + numbers.step * np.arange(numbers.values, dtype=np.int64)
    return pa.chunked_array([pa.array(found, mask=is_null)])


@pytest.mark.part(4)
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("codec", CODECS.values())
def test_other_readers_find_the_numbers(tmp_path: Path, codec: str, indexed: bool) -> None:
    path = tmp_path / "n.parquet"
    for numbers, nulls in COLUMNS:
        write(path, numbers, codec, indexed=indexed, nulls=nulls)
        wanted = expected(numbers, nulls)
        assert pq.read_table(path)["n"].equals(wanted)
        assert wanted.equals(pl.read_parquet(path).to_arrow()["n"])
        assert wanted.equals(go_parquet.read(path)["n"])
        found = duckdb.read_parquet(str(path)).to_arrow_table()
        assert wanted.equals(found["n"])
        bounds = pq.read_metadata(path).row_group(0).column(0).statistics
        there = wanted.drop_null()
        assert bounds.null_count == len(nulls)
        assert bounds.has_min_max == bool(there)
        if there:
            assert (bounds.min, bounds.max) == (there[0].as_py(), there[-1].as_py())


@settings(max_examples=200)
@given(st.data())
def test_rows_with_null_among_equal_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, 300) | st.integers(PAGE - 3, PAGE + 3))
    nulls = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), np.int64)
    numbers = Progression(data.draw(st.integers(0, LAST)), 0, rows)
    path = tmp_path_factory.getbasetemp() / "nulls.parquet"
    codec, indexed = data.draw(st.sampled_from([*CODECS.values()])), data.draw(st.booleans())
    write(path, numbers, codec, indexed=indexed, nulls=nulls)
    assert pq.read_table(path)["n"].equals(expected(numbers, nulls))


def test_spark_finds_the_numbers(spark: SparkSession, tmp_path: Path) -> None:
    for number, (numbers, nulls) in enumerate(COLUMNS):
        path = tmp_path / f"{number}.parquet"
        write(path, numbers, "zstd", indexed=number % 2 == 0, nulls=nulls)
        rows = spark.read.parquet(str(path))
        assert rows.toArrow()["n"].equals(expected(numbers, nulls))
        count = 1 if numbers.step else numbers.values - len(nulls)
        assert rows.where(f"n = {numbers.last}").count() == count


def test_they_take_few_bytes() -> None:
    _, data = chunk_of("n", Progression(7, 1, 1 << 20), 4, "zstd", indexed=True)
    assert len(data) < 2_000
