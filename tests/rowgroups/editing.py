"""Edits of files, and the obvious way to make one: decode all, filter, replace."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tandem.delta.datafiles.edited_files import EditedFile, FileEditor
from tandem.delta.datafiles.encoded_columns import NewValues
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.storage import Store, open_store

Row = dict[str, Any]


@dataclass(frozen=True)
class Edit:
    """What an edit is asked for: `values` are whole rows by position, of which `columns` (physical
    names) may differ; None for all."""

    drops: frozenset[int] = frozenset()
    values: Mapping[int, Row] | None = None
    columns: frozenset[str] | None = None


def editor(path: Path, table: TableFormat, store: Store | None = None) -> FileEditor:
    store = store or open_store(f"file://{path.parent}")
    rows = pq.read_metadata(path).num_rows
    size = path.stat().st_size
    return FileEditor(store, path.name, size, rows, table, prefix="edits", partition_values={})


def make(of: FileEditor, table: TableFormat, edit: Edit) -> EditedFile:
    return of.edit(BitMap64(edit.drops), new_values(table, edit))


def new_values(table: TableFormat, edit: Edit) -> NewValues | None:
    if edit.values is None:
        return None
    positions = sorted(edit.values)
    schema = arrow_schema(table, table.data_schema.names)
    rows = pa.Table.from_pylist([edit.values[p] for p in positions], schema)
    return NewValues(np.array(positions, np.int64), rows, edit.columns)


def wanted(rows: Sequence[Row], table: TableFormat, edit: Edit) -> list[Row]:
    """The rows that an edit of a file of these has."""
    found = []
    asked = new_values(table, edit)
    values = (
        {}
        if asked is None
        else dict(zip(asked.positions.tolist(), asked.rows.to_pylist(), strict=True))
    )
    for position, row in enumerate(rows):
        if position in edit.drops:
            continue
        new = values.get(position)
        if new is not None:
            fields = table.data_schema.fields
            chosen = [
                f.name for f in fields if edit.columns is None or f.physical_name in edit.columns
            ]
            row = {**row, **{name: new[name] for name in chosen}}
        found.append(row)
    return found


def read(path: Path, table: TableFormat) -> list[Row]:
    store = open_store(f"file://{path.parent}")
    with DataFileReader(store, path.name, table) as reader:
        return [row for batch in reader.batches() for row in batch.to_pylist()]


def shown(rows: Iterable[Row]) -> list[str]:
    """Rows that can be compared: NaN is equal to itself, and zeros have a sign."""
    return [repr(row) for row in rows]


def assert_true_bounds(path: Path, stats: str, rows: Sequence[Row], table: TableFormat) -> None:
    """Every value of a simple column lies in the bounds of the log, and of its row group."""
    found = json.loads(stats)
    assert found["numRecords"] == len(rows)
    for field in table.data_schema:
        values = [row[field.name] for row in rows if row[field.name] is not None]
        nulls = found["nullCount"].get(field.physical_name)
        assert nulls is None or isinstance(nulls, dict) or nulls == len(rows) - len(values)
        low = found["minValues"].get(field.physical_name)
        high = found["maxValues"].get(field.physical_name)
        if low is not None and not isinstance(low, dict):
            assert values
            kind = type(values[0])
            for value in values:
                assert value == value, "no bounds beside NaN"
                assert _parsed(low, kind) <= _plain(value) <= _parsed(high, kind)
    file = pq.ParquetFile(path)
    start = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        part = rows[start : start + group.num_rows]
        start += group.num_rows
        simple = {f.physical_name: f.name for f in table.data_schema}
        for index in range(group.num_columns):
            chunk = group.column(index)
            bounds = chunk.statistics
            if chunk.path_in_schema not in simple or bounds is None:
                continue
            values = [row[simple[chunk.path_in_schema]] for row in part]
            if bounds.has_null_count:
                assert bounds.null_count == sum(value is None for value in values)
            if bounds.has_min_max and not isinstance(bounds.min, dt.datetime | dt.date):
                for value in values:
                    if value is not None:
                        assert bounds.min <= value <= bounds.max
    assert start == len(rows)


def _parsed(bound: Any, kind: type) -> Any:
    if kind is dt.date:
        return dt.date.fromisoformat(bound)
    if kind is dt.datetime:
        return dt.datetime.fromisoformat(bound).replace(tzinfo=None)
    return Decimal(str(bound)) if kind is Decimal else bound


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
