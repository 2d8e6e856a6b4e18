"""Footers of Parquet files that we write, or read otherwise than they say: amended, or encoded
again with row groups at other places.

Adds statistics of floats while a file is written, for which Arrow's writer has no setting, and
declares INT96 as bytes while one is read. Everything else is copied byte for byte, known or not.
Source: `parquet.thrift` of apache/parquet-format for the numbers of fields. No I/O of its own.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.footer import (
    C_INDEX,
    C_INDEX_SIZE,
    C_METADATA,
    C_OFFSET,
    C_OFFSETS,
    C_OFFSETS_SIZE,
    CREATOR,
    G_BYTES,
    G_COLUMNS,
    G_COMPRESSED,
    G_OFFSET,
    G_ORDINAL,
    G_ROWS,
    GROUPS,
    M_DATA,
    M_DICTIONARY,
    M_ENCODING_STATS,
    M_FILTER,
    M_FILTER_SIZE,
    M_INDEX,
    M_STATISTICS,
    M_TYPE,
    MAGIC,
    ORDERS,
    PAGE_OFFSET,
    PAGES,
    PAIRS,
    ROWS,
    S_MAX,
    S_MIN,
    SCHEMA,
    VERSION,
    ByteRange,
    ColumnChunk,
    FooterInvalid,
    RowGroup,
)
from tandem.delta.datafiles.stats import FloatBounds, FloatStatistics
from tandem.delta.datafiles.thrift import EncodedField

_LENGTH = 4

_ELEMENT_TYPE = 1
_ELEMENT_LENGTH = 2
_INT96, _FIXED = bytes([3 << 1]), bytes([7 << 1])
"""Types, as encoded numbers."""
_INT96_LENGTH = bytes([12 << 1])
_FORMS = {4: "<f", 5: "<d"}
"""FLOAT and DOUBLE, and the `struct` formats of their values."""


class TailBuffer(io.RawIOBase):
    """A sink that passes on what is written until `hold` is called; after that it buffers it for
    `release`."""

    def __init__(self, sink: Any) -> None:
        super().__init__()
        self._sink = sink
        self._held: bytearray | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._sink.tell()) + len(self._held or b"")

    def write(self, data: Any, /) -> int:
        if self._held is None:
            return int(self._sink.write(data))
        view = memoryview(data).cast("B")
        self._held += view
        return len(view)

    def hold(self) -> None:
        self._held = bytearray()

    def release(self, amend: Callable[[bytes], bytes]) -> None:
        """Pass on the buffered bytes, which must end with a footer, with `amend` applied to the
        footer. Raises: ValueError."""
        held, self._held = bytes(self._held or b""), None
        if held[-len(MAGIC) :] != MAGIC:
            raise ValueError("a Parquet file that was written does not end with PAR1")
        end = len(held) - len(MAGIC) - _LENGTH
        start = end - int.from_bytes(held[end : end + _LENGTH], "little")
        if start < 0:
            raise ValueError(f"a footer begins {-start} bytes before the buffered part of its file")
        footer = amend(held[start:end])
        length = len(footer).to_bytes(_LENGTH, "little")
        self._sink.write(held[:start] + footer + length + MAGIC)


def with_floats(footer: bytes, floats: FloatBounds) -> bytes:
    """The same footer with statistics of float columns, and without their `encoding_stats`.

    The latter show a reader that all values of a column chunk are in the dictionary, so that it
    may skip the chunk by the dictionary; Spark looks values up in Java's order, which
    distinguishes the two zeros. Without them no reader does so (checked in parquet-java, Iceberg
    and Trino), since the encoding is the newer one (`RLE_DICTIONARY`). Raises: ValueError.
    """

    def groups(data: bytes, at: int) -> tuple[bytes, int]:
        count = thrift.list_head(data, at)[0]
        if count != len(floats.groups):
            raise ValueError(f"{count} row groups were written, expected {len(floats.groups)}")
        return _amend_structs(data, at, group)

    def group(index: int, data: bytes, at: int) -> tuple[bytes, int]:
        columns = partial(_amend_structs, amend=partial(_amend_chunk, floats.groups[index]))
        return _amend_struct(data, at, G_COLUMNS, columns)

    return _amend_struct(footer, 0, GROUPS, groups)[0]


def _amend_chunk(
    seen: Mapping[int, FloatStatistics], index: int, data: bytes, at: int
) -> tuple[bytes, int]:
    column = partial(_amend_column, seen=seen.get(index))
    return _amend_struct(data, at, C_METADATA, column)


def _amend_column(data: bytes, at: int, seen: FloatStatistics | None) -> tuple[bytes, int]:
    fields, end = thrift.fields(data, at)
    [type_] = [thrift.integer(f.value, 0)[0] for f in fields if f.id == M_TYPE]
    if type_ not in _FORMS:
        return data[at:end], end
    left_out = (M_STATISTICS, M_ENCODING_STATS)
    fields = [f for f in fields if f.id not in left_out]
    if seen is not None:
        fields.append(EncodedField(M_STATISTICS, thrift.STRUCT, _statistics(seen, _FORMS[type_])))
    return thrift.struct_bytes(sorted(fields, key=lambda f: f.id)), end


def _statistics(seen: FloatStatistics, form: str) -> bytes:
    fields = [EncodedField(3, thrift.I64, thrift.varint_bytes(seen.nulls << 1))]
    if seen.low is not None and seen.high is not None:
        fields += [
            EncodedField(5, thrift.BINARY, thrift.binary_bytes(struct.pack(form, seen.high))),
            EncodedField(6, thrift.BINARY, thrift.binary_bytes(struct.pack(form, seen.low))),
            # A zero bound covers both zeros, of which the column may hold either.
            EncodedField(7, thrift.FALSE if seen.high == 0 else thrift.TRUE, b""),
            EncodedField(8, thrift.FALSE if seen.low == 0 else thrift.TRUE, b""),
        ]
    return thrift.struct_bytes(fields)


def without_int96(footer: bytes) -> bytes:
    """The same footer with INT96 columns declared as fixed-length bytes, twelve each. Both types
    are stored alike, in every encoding. Raises: ValueError."""

    def group(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, G_COLUMNS, partial(_amend_structs, amend=chunk))

    def chunk(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, C_METADATA, metadata)

    def metadata(data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, M_TYPE, type_)

    def type_(data: bytes, at: int) -> tuple[bytes, int]:
        end = thrift.after(data, at, thrift.I32)
        return (_FIXED if data[at:end] == _INT96 else data[at:end]), end

    elements = partial(_amend_structs, amend=_fixed_element)
    footer = _amend_struct(footer, 0, SCHEMA, elements)[0]
    return _amend_struct(footer, 0, GROUPS, partial(_amend_structs, amend=group))[0]


def _fixed_element(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
    fields, end = thrift.fields(data, at)
    if not any(f.id == _ELEMENT_TYPE and f.value == _INT96 for f in fields):
        return data[at:end], end
    fixed = [
        EncodedField(_ELEMENT_TYPE, thrift.I32, _FIXED),
        EncodedField(_ELEMENT_LENGTH, thrift.I32, _INT96_LENGTH),
    ]
    rest = [f for f in fields if f.id not in (_ELEMENT_TYPE, _ELEMENT_LENGTH)]
    return thrift.struct_bytes([*fixed, *rest]), end


def _amend_struct(
    data: bytes, at: int, id_: int, amend: Callable[[bytes, int], tuple[bytes, int]]
) -> tuple[bytes, int]:
    """(the struct that begins at `at` with one field amended, where it ended). Each byte is read
    once: a footer has thousands, and a small append of rows a footer."""
    parts = []
    start, last = at, 0
    while data[at] != thrift.STOP:
        last, type_, at = thrift.field_head(data, at, last)
        if last == id_:
            parts.append(data[start:at])
            amended, at = amend(data, at)
            parts.append(amended)
            start = at
        else:
            at = thrift.after_field(data, at, type_)
    parts.append(data[start : at + 1])
    return b"".join(parts), at + 1


def _amend_structs(
    data: bytes, at: int, amend: Callable[[int, bytes, int], tuple[bytes, int]]
) -> tuple[bytes, int]:
    """(the list of structs that begins at `at` with each entry amended, where it ended)."""
    count, type_, begin = thrift.list_head(data, at)
    if type_ != thrift.STRUCT:
        raise ValueError(f"a list of type {type_} in a Parquet footer, expected structs")
    parts, at = [data[at:begin]], begin
    for index in range(count):
        amended, at = amend(index, data, at)
        parts.append(amended)
    return b"".join(parts), at


# The same row groups at other offsets: encodes what was read above, with new places.
#
# Only offsets and numbers are replaced; what is not known is kept byte for byte. No I/O.


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
    fields = (_i64(G_BYTES, raw), _i64(G_ROWS, rows), _i64(G_COMPRESSED, size))
    return RowGroup(fields, rows, tuple(chunks))


def group_at(group: RowGroup, places: Sequence[Placed], ordinal: int) -> bytes:
    """The encoded row group, with its columns at these places of another file."""
    columns = [_chunk_at(c, p) for c, p in zip(group.chunks, places, strict=True)]
    first = min((place.data for place in places), default=len(MAGIC))
    changed: dict[int, EncodedField | None] = {
        G_COLUMNS: EncodedField(G_COLUMNS, thrift.LIST, thrift.list_bytes(columns)),
        G_OFFSET: _i64(G_OFFSET, first),
        G_ORDINAL: EncodedField(G_ORDINAL, thrift.I16, thrift.integer_bytes(ordinal)),
    }
    return _amended(group.fields, changed)


def _chunk_at(chunk: ColumnChunk, place: Placed) -> bytes:
    moved = place.data - chunk.data.start

    def shifted(field: EncodedField) -> EncodedField:
        return _i64(field.id, thrift.integer(field.value, 0)[0] + moved)

    metadata: dict[int, EncodedField | None] = {}
    for field in chunk.metadata:
        if field.id in (M_DATA, M_INDEX):
            metadata[field.id] = shifted(field)
        elif field.id == M_DICTIONARY:
            # Some writers write 0 where there is no dictionary.
            has = thrift.integer(field.value, 0)[0] > 0
            metadata[field.id] = shifted(field) if has else None
        elif field.id == M_STATISTICS:
            metadata[field.id] = dataclasses.replace(field, value=_without_old_bounds(field.value))
    if not place.filter:
        metadata |= {M_FILTER: None, M_FILTER_SIZE: None}
    elif chunk.filter is not None:
        metadata[M_FILTER] = _i64(M_FILTER, place.filter)
    changed: dict[int, EncodedField | None] = {
        # Where the chunk's metadata is repeated among its pages, which no reader looks at; 0 says
        # that it is not.
        C_OFFSET: _i64(C_OFFSET, 0),
        C_METADATA: EncodedField(C_METADATA, thrift.STRUCT, _amended(chunk.metadata, metadata)),
    }
    if not place.column_index:
        changed |= {C_INDEX: None, C_INDEX_SIZE: None}
    elif chunk.column_index is not None:
        changed[C_INDEX] = _i64(C_INDEX, place.column_index)
    if chunk.offset_index is not None:
        changed[C_OFFSETS] = _i64(C_OFFSETS, place.offset_index.start)
        changed[C_OFFSETS_SIZE] = EncodedField(
            C_OFFSETS_SIZE, thrift.I32, thrift.integer_bytes(place.offset_index.size)
        )
    return _amended(chunk.fields, changed)


def _without_old_bounds(data: bytes) -> bytes:
    """Statistics without the deprecated bounds, whose order depends on who wrote them."""
    return _amended(thrift.fields(data, 0)[0], {S_MAX: None, S_MIN: None})


def offset_index_at(data: bytes, moved: int) -> bytes:
    """A chunk's offset index after its pages were moved by so many bytes. Raises: FooterInvalid."""
    try:
        pages_at = thrift.each_of(partial(_page_at, moved=moved))
        fields, inner, _ = thrift.fields_and(data, 0, {PAGES: pages_at})
        pages = EncodedField(PAGES, thrift.LIST, thrift.list_bytes(inner[PAGES]))
        return _amended(fields, {PAGES: pages})
    except (ValueError, IndexError, RecursionError, KeyError) as error:
        raise FooterInvalid(f"an offset index cannot be read: {error}") from error


def _page_at(data: bytes, at: int, moved: int) -> tuple[bytes, int]:
    """A page's location after it was moved; its offset comes first."""
    id_, type_, start = thrift.field_head(data, at, 0)
    if id_ != PAGE_OFFSET or type_ != thrift.I64:
        raise FooterInvalid(f"a page's location begins with field {id_} of type {type_}")
    offset, rest = thrift.integer(data, start)
    end = thrift.after(data, rest, thrift.STRUCT)
    return data[at:start] + thrift.integer_bytes(offset + moved) + data[rest:end], end


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
        EncodedField(VERSION, thrift.I32, thrift.integer_bytes(version)),
        EncodedField(SCHEMA, thrift.LIST, thrift.list_bytes(schema)),
        _i64(ROWS, rows),
        EncodedField(GROUPS, thrift.LIST, thrift.list_bytes(groups)),
    ]
    if pairs:
        encoded = [_pair_bytes(key, value) for key, value in pairs.items()]
        fields.append(EncodedField(PAIRS, thrift.LIST, thrift.list_bytes(encoded)))
    fields.append(EncodedField(CREATOR, thrift.BINARY, thrift.binary_bytes(creator)))
    if orders:
        fields.append(EncodedField(ORDERS, thrift.LIST, orders))
    return thrift.struct_bytes(fields)


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
    return EncodedField(id_, thrift.I64, thrift.integer_bytes(value))
