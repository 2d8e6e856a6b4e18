"""Counts, bounds and pruned reads of a Delta table in DuckDB, Polars and pyarrow, without Spark.

    python recipes.py FOLDER

Writes a year of orders by `deltalake` into FOLDER, a file for each month, deletes some, and asks.
"""

from __future__ import annotations

import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from tandem import index


def make(folder: str) -> None:
    for month in range(1, 13):
        ids = range(1_000 * month, 1_000 * month + 1_000)
        orders = pa.table(
            {
                "id": ids,
                "day": [f"2026-{month:02d}-{1 + n % 28:02d}" for n in ids],
                "price": [float(n % 97) for n in ids],
            }
        )
        write_deltalake(folder, orders, mode="append")
    DeltaTable(folder).delete("id = 12007")


def main(folder: str) -> None:
    make(folder)

    # By the log alone: no data file is opened.
    print("rows", index.count(folder))
    print("of the first half", index.count(folder, "id < 7000"))
    print("ids", index.bounds(folder, ["id"])["id"])

    # One file of twelve is read. The filter is applied.
    found = index.reader(folder, "id BETWEEN 3100 AND 3399", ["id", "price"])
    print("DuckDB", duckdb.sql("SELECT count(*), sum(price) FROM found").fetchall())

    found = index.reader(folder, "day >= '2026-12-20'", ["price"])
    print("Polars", pl.from_arrow(found.read_all()).select(pl.len(), pl.col("price").max()).rows())

    # Readers of Parquet need paths, and apply the filter themselves.
    paths = index.paths(folder, "id BETWEEN 3100 AND 3399")
    files = ds.dataset([f"{folder}/{path}" for path in paths])
    wanted = (pc.field("id") >= 3100) & (pc.field("id") <= 3399)
    print("pyarrow", files.to_table(filter=wanted).num_rows, "rows of", files.count_rows())

    # Held between questions, and followed from commit to commit.
    held = index.open_index(folder)
    before = held.count()
    write_deltalake(folder, pa.table({"id": [1], "day": ["2027-01-01"], "price": [1.0]}),
                    mode="append")  # fmt: skip
    print("one more", held.count() - before)


if __name__ == "__main__":
    main(sys.argv[1])
