"""New files lie in folders of their partition values, from which Polars takes these values: after
each of our operations, on any values, Polars with its default settings reads what deltalake does.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS
from tandem.delta.datafiles import writer as names
from tandem.delta.scan import scan
from tandem.locks.store import InProcessLocks
from tandem.operations.ports import Ports
from tandem.spark.in_process import InProcessJobs
from tandem.spec.resources import Operation
from tandem.storage.paths import object_path

# fmt: off
ODD = ["a", " b ", "c/d", "e=f", "50%", "100%25", "x:y", "ü", "{[^?#*'\"\\]}", "+&", None, "日本",
       ".", "n\u00a0b", "l\u2028s", "😀", "`|<>~!$&'()*,;@", ""]
# fmt: on
PARTITIONS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ODD),
    "number": (pa.int64(), [0, -1, 2**62, None]),
    "day": (pa.date32(), [dt.date(2020, 2, 29), dt.date(1, 1, 1), None]),
    "moment": (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 2, 3, 4, 5, 6, dt.UTC), None]),
    "yes": (pa.bool_(), [True, False, None]),
    "sum": (pa.decimal128(10, 2), [Decimal("12.30"), Decimal("0.00"), None]),
}
OPERATIONS: Mapping[str, Callable[[QuickLake], Operation]] = {
    "bin-pack": lambda lake: lake.compaction("Major"),
    "sort": lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["x"]}),
    "update": lambda lake: lake.update("id % 2 = 0", x="x + 1"),
    "delete": lambda lake: lake.delete("id % 4 = 1"),
    "segment rewrite": lambda lake: lake.resource(
        "SegmentRewrite",
        {"segments": lake.names, "rewrite": {"recompress": {"codec": "gzip"}}},
    ),
}


def made(folder: Path, name: str, *, vectors: bool) -> QuickLake:
    """With deletion vectors only values that no path encodes: Polars 2.1 does not see the vector of
    a file that the log names with a percent sign, from any writer."""
    type_, values = PARTITIONS[name]
    if vectors:
        values = [v for v in values if v is None or re.fullmatch(r"[\w.+&-]+", str(v), re.ASCII)]
    schema = pa.schema({"id": pa.int64(), "x": pa.int64(), "p": type_})
    properties = DELETION_VECTORS if vectors else {}
    lake = quick_lake.make(folder, 0, schema=schema, properties=properties, partition_by=["p"])
    for load in range(2):
        ids = range(load * 100, load * 100 + 4 * len(values))
        rows = {"id": ids, "x": ids, "p": values * 4}
        write_deltalake(lake.location, pa.table(rows, schema=schema), mode="append")
    lake.first_version = lake.version
    return lake


def by_polars(lake: QuickLake) -> list[dict[str, Any]]:
    return pl.scan_delta(lake.location).sort("id").collect().to_dicts()


def by_deltalake(lake: QuickLake) -> list[dict[str, Any]]:
    found = pl.from_arrow(pa.table(DeltaTable(lake.location).scan()))
    assert isinstance(found, pl.DataFrame)
    return found.sort("id").to_dicts()


def run(lake: QuickLake, operation: Operation) -> None:
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    lake.do(operation, ports=ports)


@pytest.mark.part(3)
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "plain"])
@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_polars_reads_what_deltalake_reads(
    tmp_path: Path, name: str, kind: str, vectors: bool
) -> None:
    lake = made(tmp_path, name, vectors=vectors)
    before = by_deltalake(lake)
    run(lake, OPERATIONS[kind](lake))
    after = by_deltalake(lake)
    assert [(row["id"], row["p"]) for row in after] == [
        (row["id"], row["p"]) for row in before if kind != "delete" or row["id"] % 4 != 1
    ]
    assert by_polars(lake) == after
    if name == "text":
        for value in {row["p"] for row in after} - {None}:
            found = pl.scan_delta(lake.location).filter(pl.col("p") == value).collect()
            assert sorted(found["id"]) == [row["id"] for row in after if row["p"] == value]
    ours = pl.from_arrow(pa.table(scan(lake.log.snapshot(), lake.store)))
    assert isinstance(ours, pl.DataFrame)
    assert ours.sort("id").to_dicts() == after
    # What was written is found again: by the next operations, and by a cleaning.
    run(lake, lake.compaction("Major"))
    run(lake, lake.update("id >= 0", x="x + 1"))
    assert [row["x"] for row in by_polars(lake)] == [row["x"] + 1 for row in after]
    lake.assert_clean()


def test_values_that_are_too_long_for_a_path_have_no_folder(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "x": pa.int64(), "p": pa.string()})
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties={}, partition_by=["p"])
    path = lake.path / "foreign.parquet"
    pq.write_table(pa.table({"id": [1, 2], "x": [1, 2]}), path)
    add = {"path": path.name, "size": path.stat().st_size, "partitionValues": {"p": "é" * 200}}
    lake.log_raw({"add": {**add, "modificationTime": 1, "dataChange": True}})
    run(lake, lake.update("id = 1", x="5"))
    [add_] = lake.log.snapshot().adds()
    assert add_.logged_path.count("/") == 1
    assert [(row["id"], row["x"], row["p"]) for row in by_deltalake(lake)] == [
        (1, 5, "é" * 200),
        (2, 2, "é" * 200),
    ]


@pytest.mark.parametrize("value", [*ODD, "\x01\x7f", "%2E%2E", "..", "../.."])
def test_a_logged_path_names_the_path(value: str | None) -> None:
    path = names.new_path("1234-1", {"p": value, "a b": "1"}, 7)
    assert object_path(names.logged(path)) == path
    folders = path.split("/")
    assert len(folders) == 4
    assert folders[2] == "a b=1"
    assert (folders[1] == "p=__HIVE_DEFAULT_PARTITION__") == (value is None)
