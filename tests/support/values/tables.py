"""Tables of extreme values, by our writer alone, and by foreign writers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from support.lake.lake import DELETION_VECTORS
from support.parquet import go_parquet
from support.parquet.go_parquet import WriteOptions
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.log.delta_log import DeltaLog
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def by_our_writer(
    root: Path, tables: Sequence[pa.Table], filters: Mapping[str, float] | None = None
) -> None:
    """A file for each table, with the statistics that we log; `filters` are those that the table
    asks for, by column."""
    DeltaTable.create(str(root), tables[0].schema)
    store = open_store(root.as_uri())
    snapshot = DeltaLog(store).snapshot()
    format_ = TableFormat(snapshot.schema, (), {}, filters=filters or {})
    adds: list[dict[str, Any]] = []
    for table in tables:
        with ParquetDataWriter(store, "data", format_) as writer:
            for batch in table.combine_chunks().to_batches():
                writer.write(batch)
        [file] = writer.files
        adds.append(
            {
                "path": file.path,
                "size": file.size,
                "partitionValues": {},
                "modificationTime": file.modified_ms,
                "dataChange": True,
                "stats": file.stats,
            }
        )
    text = "".join(json.dumps({"add": add}) + "\n" for add in adds)
    (root / f"_delta_log/{1:020d}.json").write_text(text)


def by_deltalake(root: Path, tables: Sequence[pa.Table]) -> None:
    """A partition for each table, two files in each."""
    DeltaTable.create(
        str(root), tables[0].schema, partition_by=["g"], configuration=dict(DELETION_VECTORS)
    )
    for part in _halves(tables):
        write_deltalake(str(root), part, mode="append")


def by_parquet_go(root: Path, tables: Sequence[pa.Table]) -> None:
    """The same by parquet-go, without statistics in the log: plain and with dictionaries, data
    pages of version 1 and 2."""
    DeltaTable.create(
        str(root), tables[0].schema, partition_by=["g"], configuration=dict(DELETION_VECTORS)
    )
    styles: tuple[WriteOptions, ...] = (
        {"encoding": "dictionary", "bloom": ["id", "text"]},
        {"page_version": 2},
    )
    adds: list[dict[str, Any]] = []
    for group, table in enumerate(tables):
        rows = table.drop_columns(["g"])
        half = rows.num_rows // 2
        for part, style in zip((rows.slice(0, half), rows.slice(half)), styles, strict=True):
            path = root / f"{len(adds)}.parquet"
            go_parquet.write(path, part, **style)
            add = {"path": path.name, "size": path.stat().st_size, "modificationTime": 1}
            adds.append({**add, "partitionValues": {"g": str(group)}, "dataChange": True})
    text = "".join(json.dumps({"add": add}) + "\n" for add in adds)
    (root / f"_delta_log/{1:020d}.json").write_text(text)


def by_spark(spark: SparkSession, root: Path, tables: Sequence[pa.Table]) -> None:
    """The same by Spark with default settings: instants are INT96. A timestamp without a zone is
    TIMESTAMP_NTZ, which Spark takes from Arrow only where a schema says so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    for part in _halves(tables):
        schema = from_arrow_schema(part.schema, prefer_timestamp_ntz=True)
        frame = spark.createDataFrame(part, schema).repartition(1)
        writer = frame.write.format("delta").mode("append").partitionBy("g")
        writer.option("delta.enableDeletionVectors", "true").save(str(root))


def _halves(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The first rows of each table, and the others."""
    return [
        pa.concat_tables([t.slice(0, t.num_rows // 2) for t in tables]),
        pa.concat_tables([t.slice(t.num_rows // 2) for t in tables]),
    ]
