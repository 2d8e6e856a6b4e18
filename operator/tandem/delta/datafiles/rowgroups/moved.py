"""The same row groups at other offsets: encodes what `footer` has read, with new places.

Only offsets and numbers are replaced; what is not known is kept byte for byte. No I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.rowgroups import field_numbers as n
from tandem.delta.datafiles.rowgroups.footer import (
    MAGIC,
    ByteRange,
    ColumnChunk,
    FooterInvalid,
    RowGroup,
    read_each,
    read_struct,
)
from tandem.delta.datafiles.thrift import EncodedField

_NOWHERE = ByteRange(0, 0)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a chunk's parts are in the new file; 0 for a filter or column index that is left
    out."""

    data: int
    filter: int = 0
    column_index: int = 0
    offset_index: ByteRange = _NOWHERE


def group_of(rows: int, chunks: Sequence[ColumnChunk]) -> RowGroup:
    """A row group of columns of several files. Nothing is known of the order of its rows. Raises:
    FooterInvalid if a column does not say how large it is."""
    try:
        raw = sum(chunk.raw for chunk in chunks)
    except KeyError as error:
        raise FooterInvalid("a column has no size") from error
    size = sum(chunk.data.size for chunk in chunks)
    fields = (_i64(n.G_BYTES, raw), _i64(n.G_ROWS, rows), _i64(n.G_COMPRESSED, size))
    return RowGroup(fields, rows, tuple(chunks))


def group_at(group: RowGroup, places: Sequence[Placed], ordinal: int) -> bytes:
    """The encoded row group, with its columns at these places of another file."""
    columns = [_chunk_at(c, p) for c, p in zip(group.chunks, places, strict=True)]
    first = min((place.data for place in places), default=len(MAGIC))
    changed: dict[int, EncodedField | None] = {
        n.G_COLUMNS: EncodedField(n.G_COLUMNS, thrift.LIST, list_bytes(columns)),
        n.G_OFFSET: _i64(n.G_OFFSET, first),
        n.G_ORDINAL: EncodedField(n.G_ORDINAL, thrift.I16, _zigzag(ordinal)),
    }
    return _amended(group.fields, changed)


def _chunk_at(chunk: ColumnChunk, place: Placed) -> bytes:
    moved = place.data - chunk.data.start

    def shifted(field: EncodedField) -> EncodedField:
        return _i64(field.id, thrift.integer(field.value, 0)[0] + moved)

    metadata: dict[int, EncodedField | None] = {}
    for field in chunk.metadata:
        if field.id in (n.M_DATA, n.M_INDEX):
            metadata[field.id] = shifted(field)
        elif field.id == n.M_DICTIONARY:
            # Some writers write 0 where there is no dictionary.
            has = thrift.integer(field.value, 0)[0] > 0
            metadata[field.id] = shifted(field) if has else None
        elif field.id == n.M_STATISTICS:
            metadata[field.id] = dataclasses.replace(field, value=_statistics(field.value))
    if not place.filter:
        metadata |= {n.M_FILTER: None, n.M_FILTER_SIZE: None}
    elif chunk.filter is not None:
        metadata[n.M_FILTER] = _i64(n.M_FILTER, place.filter)
    changed: dict[int, EncodedField | None] = {
        # Where the chunk's metadata is repeated among its pages, which no reader looks at; 0 says
        # that it is not.
        n.C_OFFSET: _i64(n.C_OFFSET, 0),
        n.C_METADATA: EncodedField(n.C_METADATA, thrift.STRUCT, _amended(chunk.metadata, metadata)),
    }
    if not place.column_index:
        changed |= {n.C_INDEX: None, n.C_INDEX_SIZE: None}
    elif chunk.column_index is not None:
        changed[n.C_INDEX] = _i64(n.C_INDEX, place.column_index)
    if chunk.offset_index is not None:
        changed[n.C_OFFSETS] = _i64(n.C_OFFSETS, place.offset_index.start)
        changed[n.C_OFFSETS_SIZE] = EncodedField(
            n.C_OFFSETS_SIZE, thrift.I32, _zigzag(place.offset_index.size)
        )
    return _amended(chunk.fields, changed)


def _statistics(data: bytes) -> bytes:
    """Statistics without the deprecated bounds, whose order depends on who wrote them."""
    return _amended(thrift.fields(data, 0)[0], {n.S_MAX: None, n.S_MIN: None})


def offset_index_at(data: bytes, moved: int) -> bytes:
    """A chunk's offset index after its pages were moved by so many bytes. Raises: FooterInvalid."""
    try:
        pages_at = read_each(partial(_page_at, moved=moved))
        fields, inner, _ = read_struct(data, 0, {n.PAGES: pages_at})
        pages = EncodedField(n.PAGES, thrift.LIST, list_bytes(inner[n.PAGES]))
        return _amended(fields, {n.PAGES: pages})
    except (ValueError, IndexError, RecursionError, KeyError) as error:
        raise FooterInvalid(f"an offset index cannot be read: {error}") from error


def _page_at(data: bytes, at: int, moved: int) -> tuple[bytes, int]:
    """A page's location after it was moved; its offset comes first."""
    id_, type_, start = thrift.field_head(data, at, 0)
    if id_ != n.PAGE_OFFSET or type_ != thrift.I64:
        raise FooterInvalid(f"a page's location begins with field {id_} of type {type_}")
    offset, rest = thrift.integer(data, start)
    end = thrift.after(data, rest, thrift.STRUCT)
    return data[at:start] + _zigzag(offset + moved) + data[rest:end], end


def footer_bytes(
    *,
    version: int,
    schema: Sequence[bytes],
    rows: int,
    groups: Sequence[bytes],
    pairs: Mapping[bytes, bytes | None],
    creator: bytes,
    orders: bytes,
) -> bytes:
    """An encoded footer of encoded parts."""
    fields = [
        EncodedField(n.VERSION, thrift.I32, _zigzag(version)),
        EncodedField(n.SCHEMA, thrift.LIST, list_bytes(schema)),
        _i64(n.ROWS, rows),
        EncodedField(n.GROUPS, thrift.LIST, list_bytes(groups)),
    ]
    if pairs:
        encoded = [_pair_bytes(key, value) for key, value in pairs.items()]
        fields.append(EncodedField(n.PAIRS, thrift.LIST, list_bytes(encoded)))
    fields.append(EncodedField(n.CREATOR, thrift.BINARY, thrift.binary_bytes(creator)))
    if orders:
        fields.append(EncodedField(n.ORDERS, thrift.LIST, orders))
    return thrift.struct_bytes(fields)


def list_bytes(structs: Sequence[bytes]) -> bytes:
    """A list of encoded structs."""
    count = len(structs)
    head = (
        bytes([count << 4 | thrift.STRUCT])
        if count < 15
        else (bytes([0xF0 | thrift.STRUCT]) + thrift.varint_bytes(count))
    )
    return b"".join([head, *structs])


def _pair_bytes(key: bytes, value: bytes | None) -> bytes:
    fields = [EncodedField(1, thrift.BINARY, thrift.binary_bytes(key))]
    if value is not None:
        fields.append(EncodedField(2, thrift.BINARY, thrift.binary_bytes(value)))
    return thrift.struct_bytes(fields)


def _amended(fields: Iterable[EncodedField], changed: Mapping[int, EncodedField | None]) -> bytes:
    """A struct of these fields, with some replaced or added, and without those that are None."""
    kept = [field for field in fields if field.id not in changed]
    kept += [field for field in changed.values() if field is not None]
    return thrift.struct_bytes(sorted(kept, key=lambda field: field.id))


def _i64(id_: int, value: int) -> EncodedField:
    return EncodedField(id_, thrift.I64, _zigzag(value))


def _zigzag(value: int) -> bytes:
    return thrift.varint_bytes(value << 1 if value >= 0 else (-value << 1) - 1)
