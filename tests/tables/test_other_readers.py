"""What our operations write, read row by row by Arrow Go and fastparquet, of files that parquet-go
wrote: types with their extreme values, and nested ones.

Filters of other readers: `test_values_survive`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_lake import QuickLake
from support.parquet import by_fastparquet, go_parquet
from support.parquet.go_parquet import WriteOptions
from support.values.kinds import tables
from support.values.nested import with_nested
from support.values.operations import OPERATIONS
from support.values.readers import live_files
from tandem.delta.datafiles.rowgroups import schema as fitness
from tandem.locks.store import InProcessLocks
from tandem.operations.ports import Ports
from tandem.spark.launch.in_process import InProcessJobs

FILES: Mapping[str, WriteOptions] = {
    "plain": {},
    "dictionaries and filters": {
        "encoding": "dictionary",
        "codec": "snappy",
        "bloom": ["text", "i64", "day", "f64"],
    },
    "version 2 pages": {"page_version": 2, "page_bytes": 100},
    "delta encodings": {"encoding": "delta", "page_version": 2, "codec": "gzip"},
    "INT96": {"int96": True, "codec": "brotli"},
}
INDEXED = ("dictionaries and filters", "delta encodings")
"""Of plain pages parquet-go cuts bounds after 16 bytes, and has no bound above sixteen 0xFF."""
READ_BY_FASTPARQUET = ("plain", "dictionaries and filters")
NEEDS_NO_SPARK = ("bin-pack", "sort by a float", "z-order", "update", "segment rewrite")


def rows_of(number: int) -> pa.Table:
    return with_nested(tables()[number], number).drop_columns(["g"])


ROWS = [rows_of(number) for number in range(len(tables()))]


def lake_of(folder: Path, options: WriteOptions) -> QuickLake:
    """A table of files by parquet-go, without statistics in its log."""
    lake = quick_lake.make(folder, 0, schema=ROWS[0].schema)
    for number, rows in enumerate(ROWS):
        path = lake.path / f"{number}.parquet"
        go_parquet.write(path, rows, **options)
        add = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}
        lake.log_raw({"add": {**add, "modificationTime": 1, "dataChange": True}})
    return lake


def values(rows: pa.Table) -> dict[str, list[str]]:
    """By column; NaN is equal to itself, zeros have a sign, and times are numbers."""
    rows = rows.sort_by("id")
    found = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        elif pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        found[name] = [repr(value) for value in column.to_pylist()]
    return found


def was_copied(path: Path) -> bool:
    return "parquet-go" in pq.read_metadata(path).created_by


@pytest.mark.part(8)
@pytest.mark.parametrize("operation", [*NEEDS_NO_SPARK, "copied row groups"])
@pytest.mark.parametrize("files", FILES)
def test_every_value_survives(
    files: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, FILES[files])
    truth = values(pa.concat_tables(ROWS))
    if operation == "copied row groups":
        monkeypatch.setattr(fitness, "GROUP_ROWS", 1)
        resource = OPERATIONS["bin-pack"](lake)
    else:
        resource = OPERATIONS[operation](lake)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    lake.do(resource, ports=ports)
    written = [Path(path) for path in live_files(lake.path)]
    assert not {path.name for path in written} & {f"{n}.parquet" for n in range(len(ROWS))}
    if operation == "update":
        truth["v"] = ["1"] * len(truth["v"])
    assert values(pa.concat_tables(map(go_parquet.read, written))) == truth
    for path in written:
        if files in INDEXED:
            go_parquet.check(path)
        rows = pq.read_table(path)
        if files in READ_BY_FASTPARQUET or not was_copied(path):
            wanted = by_fastparquet.expected(rows)
            assert by_fastparquet.read(path, wanted) == wanted


def test_deltalakes_filter_on_a_boolean_finds_the_rows_of_our_files(tmp_path: Path) -> None:
    """Its dataset takes a file whose statistics have no bounds of a column for one without rows."""
    schema = pa.schema({"id": pa.int64(), "yes": pa.bool_()})
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties={})
    for load in range(2):
        lake.load(pa.table({"id": [load, load + 10], "yes": [True, None]}, schema=schema))
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    for operation in (lake.compaction("Major"), lake.update("id = 0", yes="NOT yes")):
        lake.do(operation, ports=ports)
    for value, ids in ((True, [1]), (False, [0])):
        found = DeltaTable(lake.location).to_pyarrow_table(filters=[("yes", "=", value)])
        assert found["id"].to_pylist() == ids
