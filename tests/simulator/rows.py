"""Tiny data files: JSON lists of rows that carry an identity, or Parquet in a `ParquetStore`.

A row is (rid, k, v). `rid` identifies a row for the checker; statements look at `k` and
`v` and never change `rid`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake.memory_store import MemoryStore
from tandem.storage.store import Store

SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": "long", "nullable": True, "metadata": {}}
            for name in ("rid", "k", "v")
        ],
    }
)


class Row(NamedTuple):
    rid: int
    k: int
    v: int


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
    merge-on-read table."""


def write(store: Store, path: str, rows: Sequence[Row]) -> int:
    """Write a data file; its size in bytes."""
    data = _parquet(rows) if isinstance(store, ParquetStore) else json.dumps(rows).encode()
    store.put(path, data)
    return len(data)


def read(store: Store, path: str) -> list[Row]:
    data = store.get(path)
    if not data.startswith(b"PAR1"):
        return [Row(*row) for row in json.loads(data)]
    found = pq.read_table(pa.BufferReader(data), columns=list(Row._fields))
    columns = [found[name].to_pylist() for name in Row._fields]
    return [Row(*values) for values in zip(*columns, strict=True)]


def _parquet(rows: Sequence[Row]) -> bytes:
    schema = pa.schema([(name, pa.int64()) for name in Row._fields])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema), sink)
    return bytes(sink.getvalue())


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})
