"""Column chunks that are written without their numbers: engines read the numbers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.parquet import go_parquet
from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.copyable import CODECS
from tandem.delta.datafiles.footer import MAGIC, ByteRange
from tandem.delta.datafiles.footer_edit import Placed, footer_bytes, group_at, group_of
from tandem.delta.datafiles.progressions import Progression, chunk_of, optional_element

LAST = 2**63 - 1
MANY = 300_001
"""More than two pages."""
NUMBERS = [
    *(Progression(first, step, values) for first, step, values in product(
        (0, 70_000_000_000), (0, 1), (1, 2, 128, 129, 130, 257, MANY))),
    Progression(LAST - MANY + 1, 1, MANY),
    Progression(LAST, 0, 1_000),
]  # fmt: skip


def write(path: Path, numbers: Progression, codec: str, *, indexed: bool) -> None:
    """A file of one column `n`, in one row group."""
    chunk, data = chunk_of("n", numbers, len(MAGIC), codec, indexed=indexed)
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


def expected(numbers: Progression) -> list[int]:
    return [numbers.first + numbers.step * n for n in range(numbers.values)]


@pytest.mark.part(4)
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("codec", CODECS.values())
def test_other_readers_find_the_numbers(tmp_path: Path, codec: str, indexed: bool) -> None:
    path = tmp_path / "n.parquet"
    for numbers in NUMBERS:
        write(path, numbers, codec, indexed=indexed)
        wanted = expected(numbers)
        assert pq.read_table(path)["n"].to_pylist() == wanted
        assert pl.read_parquet(path)["n"].to_list() == wanted
        assert go_parquet.read(path)["n"].to_pylist() == wanted
        found = duckdb.execute(f"SELECT n FROM read_parquet('{path}')").fetchall()
        assert [n for (n,) in found] == wanted
        bounds = pq.read_metadata(path).row_group(0).column(0).statistics
        assert (bounds.min, bounds.max, bounds.null_count) == (wanted[0], wanted[-1], 0)


def test_spark_finds_the_numbers(spark: SparkSession, tmp_path: Path) -> None:
    for number, numbers in enumerate(NUMBERS):
        write(tmp_path / f"{number}.parquet", numbers, "zstd", indexed=number % 2 == 0)
        rows = spark.read.parquet(str(tmp_path / f"{number}.parquet"))
        assert rows.toArrow()["n"].to_pylist() == expected(numbers)
        last = numbers.first + numbers.step * (numbers.values - 1)
        assert rows.where(f"n = {last}").count() == (1 if numbers.step else numbers.values)


def test_they_take_few_bytes() -> None:
    _, data = chunk_of("n", Progression(7, 1, 1 << 20), 4, "zstd", indexed=True)
    assert len(data) < 2_000
