"""Every kind of job on Spark writes the bloom filters that its LakeTable asks for, and stores the
facts of its files, by which the index finds a key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from support.lake.lake import DELETION_VECTORS, Lake
from support.lake.rewritten import rewrite
from tandem.index import Query, TableIndex
from tandem.index.facts.files import FOLDER, unpack
from tandem.spec.resources import Operation
from tandem.storage import open_store

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("n", pa.int64())])
COUNT = 50_000
"""Rows of files that are worth it: of more than a mebibyte."""


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def rows(first: int, n: int, count: int = COUNT) -> pa.Table:
    ids = range(first, first + count)
    return pa.table([ids, [key(id_) for id_ in ids], [n] * count], schema=SCHEMA)


def lake_of(folder: Path, spark: SparkSession) -> Lake:
    location = (folder / "lake").as_uri()
    DeltaTable.create(location, SCHEMA, configuration=DELETION_VECTORS)
    lake = Lake(location, spark, folder / "sources", open_store(location), small=False)
    lake.index = {"bloomFilters": {"columns": ["key"]}}
    return lake


def ingested(lake: Lake, table: pa.Table) -> Operation:
    source = {"format": "Parquet", "location": lake.source(table).as_uri()}
    return lake.resource("TableIngest", {"source": source})


def check(lake: Lake, operation: Operation) -> None:
    """All files that an operation adds have filters, and facts by which a key is found."""
    before = {add.path for add in lake.log.snapshot().adds()}
    lake.do(operation)
    snapshot = lake.log.snapshot()
    new = {add.path for add in snapshot.adds()} - before
    assert new
    described: set[str] = set()
    for meta in lake.store.list(FOLDER):
        described |= set(unpack(lake.store.get(meta.path), snapshot.metadata.id).paths.to_pylist())
    for path in new:
        chunk = pq.read_metadata(lake.path / path).row_group(0).column(1)
        assert (chunk.path_in_schema, chunk.bloom_filter_offset is not None) == ("key", True)
    assert new <= described
    index = TableIndex(lake.log)
    for number in (0, COUNT - 1):
        assert index.count(Query(f"key = '{key(number)}'")) == 1
        assert len(index.splits(Query(f"key = '{key(number)}'"))) <= 2
    assert sum(len(index.splits(Query(f"key = '{key(-n)}'"))) for n in range(1, 40)) <= 4
    assert index._facts is not None
    assert not index._facts._stored.not_believed


@pytest.mark.matrix
@pytest.mark.whole
def test_jobs_on_spark_write_filters_and_facts(tmp_path: Path, spark: SparkSession) -> None:
    lake = lake_of(tmp_path, spark)
    check(lake, ingested(lake, rows(0, 1)))
    check(lake, ingested(lake, rows(COUNT, 1)))
    layout = {"strategy": "Sort", "columns": ["n", "id"]}
    check(lake, lake.compaction("Major", layout=layout))
    check(lake, rewrite(lake, *lake.names, recompress={"codec": "snappy"}))
    check(lake, lake.update("id >= 0", n="n + 1"))
    check(lake, lake.merge(rows(0, 7, 2 * COUNT)))
    assert TableIndex(lake.log).count() == 2 * COUNT
