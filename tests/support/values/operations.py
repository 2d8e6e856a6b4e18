"""Our operations on tables of extreme values: all rewrite every row, none changes a value."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from support.lake.lake import DELETION_VECTORS, Lake
from support.values.kinds import KINDS, Kind
from tandem.delta.scan import scan
from tandem.spec.resources import Operation
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NS_MICROS = 9_223_372_036_854_775
"""INT96 within this many microseconds of 1970 is read as nanoseconds by everyone."""


def within_nanoseconds(kind: Kind) -> Kind:
    """Without the instants that Spark's INT96 holds and others cannot read."""
    if kind.name != "moment":
        return kind
    return replace(kind, extremes=tuple(v for v in kind.extremes if abs(v) < _NS_MICROS))


KINDS_OF_SPARK = tuple(map(within_nanoseconds, KINDS))


def _merge(lake: Lake) -> Operation:
    ids = pa.table(scan(lake.log.snapshot(), lake.store))["id"]
    source = pa.table({"id": ids, "v": pa.repeat(pa.scalar(1), len(ids))})
    return lake.merge(source, whenMatched=[{"update": {"set": {"v": "s.v"}}}])


def _layout(strategy: str, *columns: str) -> Callable[[Lake], Operation]:
    body = {"strategy": strategy, "columns": list(columns)}
    return lambda lake: lake.compaction("SemiMajor", layout=body)


OPERATIONS: Mapping[str, Callable[[Lake], Operation]] = {
    "bin-pack": lambda lake: lake.compaction("SemiMajor"),
    "sort by a float": _layout("Sort", "f64", "text"),
    "z-order": _layout("ZOrder", "f32", "i64", "text"),
    "update": lambda lake: lake.update("v = 0", v="v + 1"),
    "merge": _merge,
    "segment rewrite": lambda lake: lake.resource(
        "SegmentRewrite",
        {"segments": lake.names, "rewrite": {"recompress": {"codec": "gzip"}}},
    ),
}


def lake_at(spark: SparkSession, root: Path) -> Lake:
    location = root.as_uri()
    lake = Lake(location, spark, root.with_name(f"{root.name}-sources"), open_store(location))
    lake.first_version = lake.version
    return lake


def rewritten(spark: SparkSession, before: Path, operation: str) -> Path:
    """A copy of the table at `before`, after an operation that succeeded."""
    root = before.with_name(f"{before.name}-{operation.replace(' ', '-')}")
    shutil.copytree(before, root)
    lake = lake_at(spark, root)
    old = {add.path for add in lake.log.snapshot().adds()}
    lake.do(OPERATIONS[operation](lake))
    assert old.isdisjoint({add.path for add in lake.log.snapshot().adds()}), "rows kept their files"
    return root


def ingested(spark: SparkSession, before: Path) -> Path:
    """An empty table that has ingested the rows of the table at `before`, a group at a time."""
    root = before.with_name(f"{before.name}-ingested")
    there = lake_at(spark, before)
    rows = pa.table(scan(there.log.snapshot(), there.store))
    DeltaTable.create(
        str(root), rows.schema, partition_by=["g"], configuration=dict(DELETION_VECTORS)
    )
    lake = lake_at(spark, root)
    source = root.with_name(f"{root.name}.parquet")
    pq.write_table(rows.sort_by("id"), source)
    body = {"source": {"format": "Parquet", "location": source.as_uri()}}
    lake.do(lake.resource("TableIngest", body))
    assert pc.sum(lake.log.snapshot().num_records).as_py() == rows.num_rows
    return root
