"""Stitching and merging change no value of the view, whatever its types and names are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from mergelog.orders import MERGE, STITCH, Orders
from tandem import mergelog
from tandem.delta.scan import scan


def bits(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Values that tell both zeros apart, and dates beyond Python's calendar."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return [repr(value) for value in array.to_pylist()]


def contents(rows: Any) -> list[tuple[str, ...]]:
    """The rows of a table of any engine, sorted."""
    found = pa.table(rows)
    return sorted(zip(*(bits(column) for column in found.columns), strict=True))


def assert_services_change_nothing(path: Path) -> None:
    """The view, by our reader, stays as it is; the base has it afterwards, also for `deltalake`."""
    table = Orders(path)
    view = mergelog.MergedView.open(table.log)
    columns, before = view.base.schema.names, contents(view.scan().read_all())
    for name, spec in (("stitch", STITCH), ("merge", MERGE)):
        number = table.log.log.latest_version()
        table.do(spec, name=f"{name}-{number}")
        assert contents(mergelog.MergedView.open(table.log).scan().read_all()) == before, name
    base = table.log.base.snapshot()
    assert contents(scan(base, table.store).read_all()) == before
    theirs = pa.table(DeltaTable(table.location).scan())
    assert contents(theirs.select(list(columns))) == before
