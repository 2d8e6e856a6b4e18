"""Tiny data files: JSON lists of rows that carry an identity, or Parquet in a `ParquetStore`.

A row is (rid, k, v). `rid` identifies a row for the checker; statements look at `k` and
`v` and never change `rid`. Its time is a day of 2013 by its `k`: a column `t` that only Parquet
files have, and whose statistics say that each file may have rows of all days.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake.memory_store import MemoryStore
from tandem.storage.store import Store

DAY_MS = 86_400_000
FIRST_DAY = dt.date(2013, 1, 1)
DAYS = 8
"""So many days are between the bounds of each file, and more than a table of a test has keys."""


def schema_string(**columns: str) -> str:
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


SCHEMA_STRING = schema_string(rid="long", k="long", v="long")
TIMED_SCHEMA_STRING = schema_string(rid="long", k="long", v="long", t="date")


class Row(NamedTuple):
    rid: int
    k: int
    v: int


def day_of(row: Row) -> dt.date:
    return FIRST_DAY + dt.timedelta(row.k % DAYS)


def time_ms(row: Row) -> int:
    """The time of a row, in milliseconds since 1970."""
    return (day_of(row) - dt.date(1970, 1, 1)).days * DAY_MS


PartitionValues = dict[str, str | None]


def by_partition(
    found: Sequence[Row], columns: Sequence[str]
) -> list[tuple[PartitionValues, list[Row]]]:
    """The rows by the values of these columns; all together for no columns, none for no rows."""
    parts: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        parts.setdefault(tuple(str(getattr(row, column)) for column in columns), []).append(row)
    return [
        (dict(zip(columns, values, strict=True)), part) for values, part in sorted(parts.items())
    ]


class ParquetStore(MemoryStore):
    """A store in whose tables data files are Parquet: the engine itself reads the rows of a
    merge-on-read table, and those of files that it edits. `columns` are those that files have."""

    columns: tuple[str, ...] = Row._fields


def write(store: Store, path: str, rows: Sequence[Row]) -> int:
    """Write a data file; its size in bytes."""
    if isinstance(store, ParquetStore):
        data = _parquet(rows, store.columns)
    else:
        data = json.dumps(rows).encode()
    store.put(path, data)
    return len(data)


def read(store: Store, path: str, partition: Mapping[str, str | None]) -> list[Row]:
    """The rows of a file with these partition values."""
    data = store.get(path)
    if not data.startswith(b"PAR1"):
        return [Row(*row) for row in json.loads(data)]
    found = pq.read_table(pa.BufferReader(data), use_threads=False)
    columns = [
        found[name].to_pylist()
        if name in found.column_names
        else [int(partition[name] or 0)] * found.num_rows
        for name in Row._fields
    ]
    return [Row(*values) for values in zip(*columns, strict=True)]


ROW_GROUP = 3
"""Rows of a row group, so that files have several."""


def _parquet(rows: Sequence[Row], columns: Sequence[str]) -> bytes:
    schema = pa.schema([(name, pa.date32() if name == "t" else pa.int64()) for name in columns])
    found = pa.Table.from_pylist([{**row._asdict(), "t": day_of(row)} for row in rows], schema)
    sink = pa.BufferOutputStream()
    pq.write_table(found, sink, row_group_size=ROW_GROUP)
    return bytes(sink.getvalue())


def stats(rows: int) -> str:
    """With bounds of the time that are wider than they need to be."""
    low, high = FIRST_DAY.isoformat(), (FIRST_DAY + dt.timedelta(DAYS - 1)).isoformat()
    bounds = {"minValues": {"t": low}, "maxValues": {"t": high}, "nullCount": {"t": 0}}
    return json.dumps({"numRecords": rows, **bounds})
