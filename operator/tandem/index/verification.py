"""Compares what the log says of each file with the rows that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tandem.delta.actions import AddFile
from tandem.delta.calendar import python_values
from tandem.delta.datafiles.reader import DataFileReader
from tandem.delta.log.files import to_adds
from tandem.index import answers
from tandem.index.columns import EntryColumn
from tandem.index.entries import UNKNOWN_ROWS
from tandem.index.rows import greatest, least, table_format
from tandem.index.sides import BoundArray, Side, side_of
from tandem.index.window import Chosen, View
from tandem.statements.types import Schema, SqlType
from tandem.storage.store import Store


@dataclass(frozen=True)
class Difference:
    """One thing that the log says of a file and its rows do not.

    Attributes:
        field: `numRecords`, or `minValues.NAME`, `maxValues.NAME` or `nullCount.NAME` of a column.
        log: what the log says. rows: what is right.
    """

    path: str
    field: str
    log: Any
    rows: Any


def verify_view(view: View, store: Store) -> Iterator[list[Difference]]:
    """The differences in each file of a version; all columns of all files are read.

    A bound is wrong if a row of the file lies beyond it. Rows in deletion vectors count: a bound
    may be that of a deleted row. A number of NULLs is wrong if it says that there is none, or
    nothing else, and there is; in files with deleted rows it is not looked at.
    Raises: DataFileMissing, StorageError, UnsupportedFeature.
    """
    head = view.head
    schema = Schema.from_json(head.metadata.schema_string)
    types = {column.name: column.type for column in schema.columns if column.type.is_atomic}
    for part in view.chosen():
        found = answers.splits_of(head, [part])
        columns = {
            name: column
            for name, type_ in types.items()
            if (column := _column_of(view, part, name, type_)) is not None
        }
        sides = {
            (name, side): side_of([column], [len(part.rows)], types[name], side)
            for name, column in columns.items()
            for side in Side
        }
        for at, add in enumerate(to_adds(found.files)):
            rows = int(part.entries.rows[part.rows[at]])
            stated = {} if add.deletion_vector else _stated_nulls(columns, at, rows)
            yield list(_of_file(view, store, add, rows, at, sides, stated))


def _column_of(view: View, part: Chosen, name: str, type_: SqlType) -> EntryColumn | None:
    head = view.head
    column = part.entries.column(name, type_, head.schema, head.metadata.partition_columns)
    if column is None or name in head.metadata.partition_columns:
        return None
    return column.take(part.rows)


def _stated_nulls(columns: Mapping[str, EntryColumn], at: int, rows: int) -> dict[str, int]:
    """The columns of a file that have no NULL by the log, or nothing else, and the number of NULLs
    that says so."""
    none = {name: 0 for name, column in columns.items() if not column.some_null[at]}
    return none | {name: rows for name, column in columns.items() if not column.some_value[at]}


def _of_file(
    view: View,
    store: Store,
    add: AddFile,
    rows: int,
    at: int,
    sides: Mapping[tuple[str, Side], BoundArray],
    stated_nulls: Mapping[str, int],
) -> Iterator[Difference]:
    format_ = table_format(view.head)
    names = sorted({name for name, _ in sides})
    best: dict[tuple[str, Side], pa.Array] = {}
    nulls = dict.fromkeys(stated_nulls, 0)
    with DataFileReader(
        store, add.path, format_, partition_values=add.partition_values, columns=names
    ) as reader:
        if rows not in (UNKNOWN_ROWS, reader.num_rows):
            yield Difference(add.path, "numRecords", rows, reader.num_rows)
        for batch in reader.batches() if names else ():
            for name in nulls:
                nulls[name] += batch.column(names.index(name)).null_count
            for name, side in sides:
                kernel = least if side is Side.LOW else greatest
                values = kernel(batch.column(names.index(name)))
                known = best.get((name, side))
                both = values if known is None else pa.concat_arrays([known, values])
                best[name, side] = kernel(both)
    for name, stated in stated_nulls.items():
        if nulls[name] != stated:
            yield Difference(add.path, f"nullCount.{name}", stated, nulls[name])
    for (name, side), values in best.items():
        limit = sides[name, side].value(at)
        if limit is None or not len(values):
            continue
        value = python_values(values)[0]
        if _lies_beyond(value, limit, side):
            field = "minValues" if side is Side.LOW else "maxValues"
            yield Difference(add.path, f"{field}.{name}", limit, value)


def _lies_beyond(value: Any, limit: Any, side: Side) -> bool:
    if isinstance(value, str) and not isinstance(limit, str):
        # A time outside of Python's calendar, which bounds do not reach.
        return value.startswith("+") is (side is Side.HIGH)
    # NaN lies beyond nothing: statistics do not count it.
    return bool(value < limit if side is Side.LOW else value > limit)
