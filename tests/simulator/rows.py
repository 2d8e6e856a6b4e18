"""Tiny data files: JSON lists of rows that carry an identity.

A row is (rid, k, v). `rid` identifies a row for the checker; statements look at `k` and
`v` and never change `rid`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

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


def write(store: Store, path: str, rows: Sequence[Row]) -> int:
    """Write a data file; its size in bytes."""
    data = json.dumps(rows).encode()
    store.put(path, data)
    return len(data)


def read(store: Store, path: str) -> list[Row]:
    return [Row(*row) for row in json.loads(store.get(path))]


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})
