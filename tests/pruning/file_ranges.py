"""Files of which statistics say what a test wants, for `tandem.pruning`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tandem.delta import schema, stats
from tandem.delta.actions import AddFile
from tandem.delta.log import files
from tandem.distinct import BoolArray
from tandem.pruning.predicate import FileBounds, bounds_of, columns_of, may_match
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType


@dataclass(frozen=True)
class ColumnRange:
    """`min` and `max` are Python values of the column; None is left out."""

    min: Any = None
    max: Any = None
    null_count: int | None = None


@dataclass(frozen=True)
class FileRange:
    """What the statistics and `partition_values` of a file say."""

    columns: Mapping[str, ColumnRange] = field(default_factory=dict)
    num_records: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)


def table_of(ranges: Sequence[FileRange]) -> pa.Table:
    """One row a file, as in `Snapshot.files`."""
    return files.from_adds([_add(n, each) for n, each in enumerate(ranges)])


def known(
    ranges: Sequence[FileRange], schema_string: str, wanted: Mapping[str, SqlType]
) -> FileBounds:
    """What is known of the wanted columns of the files."""
    partitions = {name for each in ranges for name in each.partition_values}
    return bounds_of(table_of(ranges), schema.parse(schema_string), partitions, wanted)


def matching(where: Expr, ranges: Sequence[FileRange], schema_string: str) -> BoolArray:
    """Which of the files may hold a row on which the condition is true."""
    return may_match(where, known(ranges, schema_string, dict(columns_of(where))))


def _add(number: int, file: FileRange) -> AddFile:
    named = file.columns.items()
    body: dict[str, Any] = {
        "minValues": {n: _json(c.min) for n, c in named if c.min is not None},
        "maxValues": {n: _json(c.max) for n, c in named if c.max is not None},
        "nullCount": {n: c.null_count for n, c in named if c.null_count is not None},
    }
    if file.num_records is not None:
        body["numRecords"] = file.num_records
    # ASCII, so that half of a surrogate pair can be written.
    text = json.dumps(json.loads(stats.dumps(body))) if _plain(file) else stats.dumps(body)
    return AddFile(
        logged_path=f"{number}.parquet", partition_values=file.partition_values, size=1,
        modified_ms=0, data_change=True, stats=text,
    )  # fmt: skip


def _plain(file: FileRange) -> bool:
    return not any(isinstance(c.min, Decimal | float) for c in file.columns.values())


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return repr(value)
    return value.isoformat() if isinstance(value, dt.date) else value
