"""The columns of row ids and versions of a file whose row groups are copied.

Other columns are copied as bytes. Of these two, what the file has is decoded, filled where it has
no value, and encoded again; so a copied row keeps its id and version in a file where its position
is another one (protocol, "Row Tracking").
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, Final, Self, TypeVar, cast

import pyarrow as pa

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.copyable import CHILDREN, columns_of, is_leaf
from tandem.delta.datafiles.footer import (
    MAGIC,
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    RowGroup,
    parse,
    read_footer,
)
from tandem.delta.datafiles.joined_files import ChunkSource
from tandem.delta.datafiles.progressions import (
    NOWHERE,
    Places,
    Progression,
    chunk_of,
    optional_element,
)
from tandem.delta.datafiles.reader import DataFileReader, RowOrigin, TableFormat
from tandem.delta.datafiles.writer import arrow_writer, codec_of
from tandem.delta.schema import to_arrow_field
from tandem.storage.store import Store

MOST_ROWS: Final = 1 << 24
"""Rows of a row group that is copied at most if its file has ids: they are in memory at once."""
_BY_TYPE: Final = b"\x1c\x00\x00"
"""The order of a column's values is that of its type."""
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
    ours = [optional_element(name) for name in table.row_ids]
    orders = [*_structs(footer.orders), *[_BY_TYPE] * len(ours)]
    root = _with_columns(footer.schema[0], len(list(columns_of(footer.schema))) + len(ours))
    schema = (root, *footer.schema[1:], *ours)
    return replace(footer, schema=schema, orders=thrift.list_bytes(orders))


def _schema_of(table: TableFormat, names: Sequence[str]) -> pa.Schema:
    return pa.schema([to_arrow_field(table.schema[name]) for name in names])


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
    chunks = dict(zip(rows.column_names, encoded.chunks, strict=True))
    return ChunkSource(source, footer, _placed(chunks, table, like), {})


def _placed(
    chunks: Mapping[str, ColumnChunk], table: TableFormat, like: RowGroup
) -> dict[int, ColumnChunk]:
    """The columns by their numbers, after those of a row group."""
    return {len(like.chunks) + table.row_ids.index(name): each for name, each in chunks.items()}


def whole_columns(footer: FileFooter, number: int, table: TableFormat) -> dict[str, ColumnChunk]:
    """The columns of row ids of a row group that its file has as our writer writes them, and
    without a NULL: nothing of them is to be filled, so that they can be copied as well. Raises:
    ValueError, IndexError, KeyError."""
    chunks = footer.groups[number].chunks
    leaf, found = 0, dict[str, ColumnChunk]()
    for name, elements in columns_of(footer.schema):
        is_ours = name in table.row_ids and elements == (optional_element(name),)
        if is_ours and chunks[leaf].nulls == 0:
            found[name] = chunks[leaf]
        leaf += sum(is_leaf(each) for each in elements)
    return found


class RowIdColumns:
    """The ids and versions of the rows of a file, by row group. Use as a context manager.

    Args:
        path: of the file, for the store.
        origin: of ids that are not in the file; without it, they stay without.
        in_file: the open file and its footer, if it has one of these columns; else no byte of it
            is read, no id is in memory, and there is an origin.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        table: TableFormat,
        origin: RowOrigin | None,
        *,
        in_file: tuple[BinaryIO, FileFooter] | None,
    ) -> None:
        self._store, self._path, self._table, self._origin = store, path, table, origin
        self._in_file = in_file
        self._readers: dict[tuple[str, ...], DataFileReader] = {}

    def of(
        self,
        number: int,
        group: RowGroup,
        position: int,
        names: Sequence[str],
        without_version: Places = NOWHERE,
    ) -> list[ChunkSource]:
        """Those with these names, of a row group that begins at this position of the file, as
        columns after its own.

        Args:
            without_version: rows that get no version, ascending; of a file without these columns.
        Raises: FooterInvalid, StorageError.
        """
        if self._in_file is None:
            return [self._of_log(position, group, names, without_version)]
        source, footer = self._in_file
        found = whole_columns(footer, number, self._table)
        whole = {name: found[name] for name in names if name in found}
        parts = [ChunkSource(source, footer, _placed(whole, self._table, group), {})]
        others = tuple(name for name in names if name not in whole)
        if others:
            batches = self._reader(others).batches(row_groups=range(number, number + 1))
            rows = pa.Table.from_batches(batches, _schema_of(self._table, others))
            if rows.num_rows != group.rows:
                raise FooterInvalid(f"{rows.num_rows} rows in row group {number}, not {group.rows}")
            parts.append(encoded_row_ids(rows, self._table, group))
        return [part for part in parts if part.chunks]

    def _reader(self, names: tuple[str, ...]) -> DataFileReader:
        if names not in self._readers:
            self._readers[names] = DataFileReader(
                self._store, self._path, self._table, columns=names, origin=self._origin
            )
        return self._readers[names]

    def _of_log(
        self, position: int, group: RowGroup, names: Sequence[str], without_version: Places
    ) -> ChunkSource:
        assert self._origin is not None
        ids = Progression(self._origin.base_id + position, 1, group.rows)
        versions = Progression(self._origin.version, 0, group.rows)
        indexed = any(chunk.offset_index is not None for chunk in group.chunks)
        codec = codec_of(self._table.configuration)
        data, chunks = MAGIC, dict[str, ColumnChunk]()
        found = (ids, NOWHERE), (versions, without_version)
        for name, (numbers, nulls) in zip(self._table.row_ids, found, strict=True):
            if name in names:
                chunks[name], more = chunk_of(
                    name, numbers, len(data), codec, indexed=indexed, nulls=nulls
                )
                data += more
        footer = FileFooter(len(data), 1, (), (), {}, b"", b"")
        source = cast(BinaryIO, pa.BufferReader(data))
        return ChunkSource(source, footer, _placed(chunks, self._table, group), {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()


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
