"""The columns of row ids and versions of a file whose row groups are copied.

Other columns are copied as bytes. Of these two, what the file has is decoded, filled where it has
no value, and encoded again; so a copied row keeps its id and version in a file where its position
is another one (protocol, "Row Tracking").
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import BinaryIO, Final, Self, TypeVar, cast

import pyarrow as pa

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.copyable import CHILDREN, columns_of, is_leaf, written_by_us
from tandem.delta.datafiles.footer import FileFooter, FooterInvalid, RowGroup, parse, read_footer
from tandem.delta.datafiles.joined_files import ChunkSource
from tandem.delta.datafiles.reader import DataFileReader, RowOrigin, TableFormat
from tandem.delta.datafiles.writer import arrow_writer, codec_of
from tandem.delta.schema import to_arrow_field
from tandem.storage.store import Store

MOST_ROWS: Final = 1 << 24
"""Rows of a row group that is copied at most: their ids are in memory at once."""
T = TypeVar("T")


def without_row_ids(footer: FileFooter, names: Sequence[str]) -> FileFooter:
    """The footer as it would be without these columns, wherever they are; the same if it has
    none. Raises: FooterInvalid."""
    if not names:
        return footer
    try:
        columns = list(columns_of(footer.schema))
        if not any(name in names for name, _ in columns):
            return footer
        kept: list[bytes] = []
        dropped: set[int] = set()
        count = leaf = 0
        for name, elements in columns:
            leaves = sum(is_leaf(each) for each in elements)
            if name in names:
                dropped.update(range(leaf, leaf + leaves))
            else:
                kept, count = [*kept, *elements], count + 1
            leaf += leaves
        orders = _others(_structs(footer.orders), dropped) if footer.orders else ()
        return replace(
            footer,
            schema=(_with_columns(footer.schema[0], count), *kept),
            groups=tuple(replace(g, chunks=_others(g.chunks, dropped)) for g in footer.groups),
            orders=thrift.list_bytes(orders) if orders else b"",
        )
    except (ValueError, IndexError, KeyError) as error:
        raise FooterInvalid(str(error)) from error


def with_row_ids(footer: FileFooter, table: TableFormat) -> FileFooter:
    """The schema of a footer that has none of these columns, with them at its end."""
    ours, count = written_by_us(table), len(table.row_ids)
    orders = [*_structs(footer.orders), *_structs(ours.orders)[-count:]]
    root = _with_columns(footer.schema[0], len(list(columns_of(footer.schema))) + count)
    schema = (root, *footer.schema[1:], *ours.schema[-count:])
    return replace(footer, schema=schema, orders=thrift.list_bytes(orders))


def _schema_of(table: TableFormat) -> pa.Schema:
    return pa.schema([to_arrow_field(table.schema[name]) for name in table.row_ids])


def encoded_row_ids(rows: pa.Table, table: TableFormat, like: RowGroup) -> ChunkSource:
    """The ids and versions of the rows of a row group, or one of both, as columns after those of
    another one. Raises: FooterInvalid."""
    sink = io.BytesIO()
    with arrow_writer(
        sink,
        rows.schema,
        dictionary=[],
        row_ids=table.row_ids,
        compression=codec_of(table.configuration),
        write_page_index=any(chunk.offset_index is not None for chunk in like.chunks),
    ) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
    source = cast(BinaryIO, pa.BufferReader(sink.getvalue()))
    footer = parse(read_footer(source), source.seek(0, 2))
    [encoded] = footer.groups
    numbers = (len(like.chunks) + table.row_ids.index(name) for name in rows.column_names)
    return ChunkSource(source, footer, dict(zip(numbers, encoded.chunks, strict=True)), {})


class RowIdColumns:
    """The ids and versions of the rows of a file, encoded by row group. Use as a context manager.

    Args:
        path: of the file, for the store.
        origin: of ids that are not in the file; without it, they stay without.
        in_file: whether it has these columns; else no byte of it is read, and there is an origin.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        table: TableFormat,
        origin: RowOrigin | None,
        *,
        in_file: bool,
    ) -> None:
        self._table, self._origin = table, origin
        self._schema = _schema_of(table)
        self._reader = (
            DataFileReader(store, path, table, columns=table.row_ids, origin=origin)
            if in_file
            else None
        )

    def of(self, number: int, group: RowGroup, position: int) -> ChunkSource:
        """Of a row group, which begins at this position of the file, as columns after its own.
        Raises: FooterInvalid, StorageError."""
        rows = self._rows(number, group.rows, position)
        if rows.num_rows != group.rows:
            raise FooterInvalid(f"{rows.num_rows} rows in row group {number}, not {group.rows}")
        return encoded_row_ids(rows, self._table, group)

    def _rows(self, number: int, count: int, position: int) -> pa.Table:
        if self._reader is not None:
            batches = self._reader.batches(row_groups=range(number, number + 1))
            return pa.Table.from_batches(batches, self._schema)
        assert self._origin is not None
        ids = self._origin.ids(position, count)
        versions = pa.repeat(pa.scalar(self._origin.version, pa.int64()), count)
        return pa.table([ids, versions], self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()


def _others(items: Iterable[T], dropped: Collection[int]) -> tuple[T, ...]:
    return tuple(item for number, item in enumerate(items) if number not in dropped)


def _structs(data: bytes) -> list[bytes]:
    """The encoded structs of a list. Raises: ValueError, IndexError."""
    count, at = thrift.struct_list_head(data, 0, thrift.LIST)
    found = []
    for _ in range(count):
        end = thrift.after(data, at, thrift.STRUCT)
        found.append(data[at:end])
        at = end
    return found


def _with_columns(root: bytes, count: int) -> bytes:
    """The root of a schema with so many top-level columns."""
    changed = thrift.EncodedField(CHILDREN, thrift.I32, thrift.integer_bytes(count))
    fields = thrift.fields(root, 0)[0]
    return thrift.struct_bytes([changed if each.id == CHILDREN else each for each in fields])
