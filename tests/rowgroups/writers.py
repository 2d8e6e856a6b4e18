"""Parquet files of several writers, with the same rows, and how each reader reads them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake

from support.parquet import go_parquet
from tandem.delta.datafiles.copyable import Demands
from tandem.delta.datafiles.footer import FileFooter, parse, read_footer
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.storage import open_store

ROWS = 1_500
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("bytes", pa.binary()),
    ]
)
TYPES = ("long", "byte", "double", "string", "boolean", "date", "timestamp", "binary")
TABLE = TableFormat(
    StructType(
        tuple(
            Field(name, PrimitiveType(type_), nullable=True)
            for name, type_ in zip(SCHEMA.names, TYPES, strict=True)
        )
    )
)


def rows(number: int, count: int = ROWS) -> pa.Table:
    """Rows with NULL, NaN, both zeros, and the extremes of types, that differ by `number`."""
    chance = np.random.default_rng(number)
    ids = np.arange(number * count, (number + 1) * count)

    def some(values: list[Any]) -> list[Any]:
        return [values[n] for n in chance.integers(0, len(values), count)]

    first, last = dt.date(1, 1, 1), dt.date(9999, 12, 31)
    zone = dt.UTC
    return pa.table(
        {
            "id": ids,
            "small": some([-128, 127, 0, None]),
            "f": some([0.0, -0.0, 1.5, float("inf"), -1e308, None]) if number % 3
            else some([float("nan"), 1.0]),
            "s": some(["", "a", "ü" * 40, "\U0010ffff", "x" * 300, None]),
            "b": some([True, False, None]),
            "d": some([first, last, dt.date(1970, 1, 1), None]),
            "t": some([dt.datetime(1, 1, 1, tzinfo=zone), dt.datetime(9999, 12, 31, 23, 59, 59,
                       999_999, tzinfo=zone), None]),
            "bytes": some([b"", b"\x00\xff", None]),
        },
        schema=SCHEMA,
    )  # fmt: skip


Write = Callable[[Path, pa.Table], None]


def pyarrow(**options: Any) -> Write:
    def write(path: Path, table: pa.Table) -> None:
        pq.write_table(table, path, **{"compression": "zstd", "row_group_size": 700, **options})

    return write


def by_duckdb(path: Path, table: pa.Table) -> None:
    with duckdb.connect() as session:
        session.register("t", table)
        session.sql(f"COPY t TO '{path}' (FORMAT parquet, CODEC zstd, ROW_GROUP_SIZE 700)")


def by_polars(path: Path, table: pa.Table) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, compression="zstd", row_group_size=700)


def by_delta_rs(path: Path, table: pa.Table) -> None:
    folder = path.with_suffix("")
    properties = WriterProperties(compression="ZSTD", max_row_group_size=700)
    write_deltalake(folder, table, writer_properties=properties)
    [file] = DeltaTable(folder).file_uris()
    Path(file.removeprefix("file://")).rename(path)


def by_tandem(path: Path, table: pa.Table) -> None:
    store = open_store(f"file://{path.parent}")
    with ParquetDataWriter(store, "ours", TABLE) as writer:
        for batch in table.to_batches(max_chunksize=700):
            writer.write(batch)
            writer.flush()
    [file] = writer.files
    (path.parent / file.path).rename(path)


def by_parquet_go(**options: Unpack[go_parquet.WriteOptions]) -> Write:
    given: go_parquet.WriteOptions = {"group_rows": 700, "page_bytes": 2000}
    given.update(options)

    def write(path: Path, table: pa.Table) -> None:
        go_parquet.write(path, table, **given)

    return write


WRITERS: dict[str, Write] = {
    "tandem": by_tandem,
    "pyarrow": pyarrow(),
    "pyarrow plain": pyarrow(use_dictionary=False),
    "pyarrow version 2 pages": pyarrow(data_page_version="2.0", data_page_size=500),
    "pyarrow page indexes": pyarrow(write_page_index=True, data_page_size=500),
    "pyarrow checksums": pyarrow(write_page_checksum=True),
    "pyarrow bloom filters": pyarrow(
        bloom_filter_options={"id": {"ndv": 2000, "fpp": 0.01}, "s": {"ndv": 10, "fpp": 0.01}}
    ),
    "pyarrow without its schema": pyarrow(store_schema=False),
    "polars": by_polars,
    "delta-rs": by_delta_rs,
    "duckdb": by_duckdb,
    "parquet-go": by_parquet_go(encoding="dictionary", bloom=["id", "s", "f"]),
    "parquet-go plain version 2 pages": by_parquet_go(page_version=2),
    "parquet-go delta encodings": by_parquet_go(encoding="delta", page_version=2, bloom=["id"]),
}


def footer_of(path: Path) -> FileFooter:
    with path.open("rb") as source:
        return parse(read_footer(source), path.stat().st_size)


def demands(table: TableFormat = TABLE) -> Demands:
    return Demands.of(table)
