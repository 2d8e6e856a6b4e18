"""What copying row groups must know of a Parquet footer, and the same row groups at other offsets.

A footer is read into the encoded fields of its structs (`thrift`), of which those with offsets and
numbers are replaced: what this module does not know is kept byte for byte. A footer may be hostile:
every range that it names is checked against its file before it is used.

Source: `parquet.thrift` of apache/parquet-format for the numbers of fields. No I/O of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, BinaryIO, Final

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.thrift import EncodedField

MAGIC: Final = b"PAR1"
TAIL: Final = 8
"""Bytes after a footer: its length and the magic."""
MOST_FOOTER: Final = 64 << 20
"""Bytes of a footer that is read at most."""

# Fields, by the struct that has them
_VERSION, _SCHEMA, _ROWS, _GROUPS, _PAIRS, _CREATOR, _ORDERS, _ENCRYPTION = range(1, 9)
_KNOWN: Final = frozenset(range(1, 8))
_G_COLUMNS, _G_BYTES, _G_ROWS, _G_SORTING, _G_OFFSET, _G_COMPRESSED, _G_ORDINAL = range(1, 8)
_C_PATH, _C_OFFSET, _C_METADATA, _C_OFFSETS, _C_OFFSETS_SIZE = range(1, 6)
_C_INDEX, _C_INDEX_SIZE, _C_CRYPTO, _C_ENCRYPTED = range(6, 10)
_M_TYPE, _M_ENCODINGS, _M_NAMES, _M_CODEC, _M_VALUES, _M_RAW, _M_SIZE = range(1, 8)
_M_DATA, _M_INDEX, _M_DICTIONARY, _M_STATISTICS = range(9, 13)
_M_FILTER, _M_FILTER_SIZE = 14, 15
_S_MAX, _S_MIN, _S_NULLS, _S_DISTINCT, _S_MAX_VALUE, _S_MIN_VALUE = range(1, 7)
_PAGE_OFFSET, _PAGES = 1, 1


class FooterInvalid(ValueError):
    """A footer that contradicts its file, or itself."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`size` bytes of a file from `start`."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of a row group. `data` has its pages; `filter`, `column_index` and `offset_index`
    are None where there are none. `type` and `codec` are Parquet's numbers."""

    fields: tuple[EncodedField, ...]
    metadata: tuple[EncodedField, ...]
    type: int
    codec: int
    values: int
    data: ByteRange
    filter: ByteRange | None
    column_index: ByteRange | None
    offset_index: ByteRange | None
    nulls: int | None
    has_bounds: bool


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file; `size` counts the bytes of its pages."""

    fields: tuple[EncodedField, ...]
    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def size(self) -> int:
        return sum(chunk.data.size for chunk in self.chunks)


@dataclass(frozen=True)
class FileFooter:
    """The footer of a file of `size` bytes. `schema` holds one encoded struct per element, the root
    first; `orders` are the encoded column orders, b"" for none."""

    size: int
    version: int
    schema: tuple[bytes, ...]
    groups: tuple[RowGroup, ...]
    pairs: Mapping[bytes, bytes | None]
    creator: bytes
    orders: bytes

    @cached_property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)


def read_footer(source: BinaryIO) -> bytes:
    """The bytes of a file's footer. Raises: FooterInvalid, OSError."""
    size = source.seek(0, 2)
    if size < len(MAGIC) + TAIL:
        raise FooterInvalid(f"a file of {size} bytes has no footer")
    source.seek(size - TAIL)
    tail = bytes(source.read(TAIL))
    if tail[4:] != MAGIC:
        raise FooterInvalid(f"the file ends with {tail[4:]!r}, not {MAGIC!r}")
    length = int.from_bytes(tail[:4], "little")
    if length > min(MOST_FOOTER, size - len(MAGIC) - TAIL):
        raise FooterInvalid(f"a footer of {length} bytes in a file of {size}")
    source.seek(size - TAIL - length)
    return bytes(source.read(length))


def parse(data: bytes, size: int) -> FileFooter:
    """The footer of a file of `size` bytes. Raises: FooterInvalid."""
    try:
        return _parse(data, size)
    except (ValueError, IndexError, RecursionError, KeyError) as error:
        raise FooterInvalid(str(error) or type(error).__name__) from error


def _parse(data: bytes, size: int) -> FileFooter:
    limit = size - TAIL - len(data)
    fields, inner, end = _struct(data, 0, {_GROUPS: _each(partial(_group, limit=limit))})
    if end != len(data):
        raise FooterInvalid(f"{len(data) - end} bytes after the footer's end")
    found = _by_id(fields)
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        what = "encrypted" if _ENCRYPTION in unknown else "from a later format"
        raise FooterInvalid(f"the file is {what}: fields {unknown}")
    groups = tuple(inner[_GROUPS])
    leaves = {len(group.chunks) for group in groups}
    if len(leaves) > 1:
        raise FooterInvalid(f"row groups of {sorted(leaves)} columns")
    footer = FileFooter(
        size=size,
        version=_number(found, _VERSION),
        schema=tuple(_structs(found[_SCHEMA].value)),
        groups=groups,
        pairs=_pairs(found[_PAIRS].value) if _PAIRS in found else {},
        creator=_bytes(found[_CREATOR].value) if _CREATOR in found else b"",
        orders=found[_ORDERS].value if _ORDERS in found else b"",
    )
    if footer.rows != _number(found, _ROWS):
        raise FooterInvalid(f"{footer.rows} rows in row groups, {_number(found, _ROWS)} in all")
    return footer


def _group(data: bytes, at: int, limit: int) -> tuple[RowGroup, int]:
    fields, inner, after = _struct(data, at, {_G_COLUMNS: _each(partial(_chunk, limit=limit))})
    rows = _number(_by_id(fields), _G_ROWS)
    if rows < 0:
        raise FooterInvalid(f"a row group of {rows} rows")
    chunks = tuple(inner[_G_COLUMNS])
    end = len(MAGIC)
    for range_ in sorted((chunk.data for chunk in chunks), key=lambda each: each.start):
        if range_.start < end:
            raise FooterInvalid(f"columns overlap at byte {range_.start}")
        end = range_.end
    return RowGroup(tuple(fields), rows, chunks), after


def _chunk(data: bytes, at: int, limit: int) -> tuple[ColumnChunk, int]:
    fields, inner, end = _struct(data, at, {_C_METADATA: _fields})
    found = _by_id(fields)
    if _C_CRYPTO in found or _C_ENCRYPTED in found:
        raise FooterInvalid("a column is encrypted")
    if _C_PATH in found and _bytes(found[_C_PATH].value):
        raise FooterInvalid("a column is in another file")
    metadata = inner[_C_METADATA]
    values = _by_id(metadata)
    start = _number(values, _M_DATA)
    dictionary = _number(values, _M_DICTIONARY) if _M_DICTIONARY in values else 0
    if 0 < dictionary < start:
        start = dictionary
    statistics: dict[int, EncodedField] = {}
    if _M_STATISTICS in values:
        statistics = _by_id(thrift.fields(values[_M_STATISTICS].value, 0)[0])
    chunk = ColumnChunk(
        fields=tuple(fields),
        metadata=tuple(metadata),
        type=_number(values, _M_TYPE),
        codec=_number(values, _M_CODEC),
        values=_number(values, _M_VALUES),
        data=_range(start, _number(values, _M_SIZE), limit),
        filter=_optional(values, _M_FILTER, _M_FILTER_SIZE, limit),
        column_index=_optional(found, _C_INDEX, _C_INDEX_SIZE, limit),
        offset_index=_optional(found, _C_OFFSETS, _C_OFFSETS_SIZE, limit),
        nulls=_number(statistics, _S_NULLS) if _S_NULLS in statistics else None,
        has_bounds=_S_MIN_VALUE in statistics and _S_MAX_VALUE in statistics,
    )
    return chunk, end


_Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""(data, where a value begins, its type) → (the value, where it ends)."""


def _struct(
    data: bytes, at: int, inner: Mapping[int, _Reader]
) -> tuple[list[EncodedField], dict[int, Any], int]:
    """(the fields of the struct that begins at `at`, the values that were read by `inner`, where it
    ends). The encoded values of the latter are left empty: each byte is read once."""
    fields: list[EncodedField] = []
    found: dict[int, Any] = {}
    last = 0
    while data[at] != thrift.STOP:
        last, type_, at = thrift.field_head(data, at, last)
        reader = inner.get(last)
        value = b""
        if reader is not None:
            found[last], at = reader(data, at, type_)
        else:
            end = thrift.after_field(data, at, type_)
            value, at = data[at:end], end
        fields.append(EncodedField(last, type_, value))
    return fields, found, at + 1


def _each(read: Callable[[bytes, int], tuple[Any, int]]) -> _Reader:
    """Reads a list of structs."""

    def read_list(data: bytes, at: int, type_: int) -> tuple[list[Any], int]:
        count, at = thrift.struct_list_head(data, at, type_)
        found = []
        for _ in range(count):
            value, at = read(data, at)
            found.append(value)
        return found, at

    return read_list


def _fields(data: bytes, at: int, type_: int) -> tuple[list[EncodedField], int]:
    if type_ != thrift.STRUCT:
        raise FooterInvalid(f"a field of type {type_} at byte {at}, expected a struct")
    return thrift.fields(data, at)


def _optional(
    found: Mapping[int, EncodedField], start: int, size: int, limit: int
) -> ByteRange | None:
    if start not in found:
        return None
    if size not in found:
        raise FooterInvalid("a part of a column has an offset, but no length")
    return _range(_number(found, start), _number(found, size), limit)


def _range(start: int, size: int, limit: int) -> ByteRange:
    if not (len(MAGIC) <= start <= limit and 0 <= size <= limit - start):
        raise FooterInvalid(f"{size} bytes at byte {start}, where data ends at byte {limit}")
    return ByteRange(start, size)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a chunk's parts are in the new file."""

    data: int
    filter: int = 0
    column_index: int = 0
    offset_index: ByteRange = ByteRange(0, 0)


def group_at(group: RowGroup, places: Sequence[Placed], ordinal: int) -> bytes:
    """The encoded row group, with its columns at these places of another file."""
    columns = [_chunk_at(c, p) for c, p in zip(group.chunks, places, strict=True)]
    first = min((place.data for place in places), default=len(MAGIC))
    changed: dict[int, EncodedField | None] = {
        _G_COLUMNS: EncodedField(_G_COLUMNS, thrift.LIST, list_bytes(columns)),
        _G_OFFSET: _i64(_G_OFFSET, first),
        _G_ORDINAL: EncodedField(_G_ORDINAL, thrift.I16, _zigzag(ordinal)),
    }
    return _amended(group.fields, changed)


def _chunk_at(chunk: ColumnChunk, place: Placed) -> bytes:
    moved = place.data - chunk.data.start

    def shifted(field: EncodedField) -> EncodedField:
        return _i64(field.id, thrift.integer(field.value, 0)[0] + moved)

    metadata: dict[int, EncodedField | None] = {}
    for field in chunk.metadata:
        if field.id in (_M_DATA, _M_INDEX):
            metadata[field.id] = shifted(field)
        elif field.id == _M_DICTIONARY:
            # Some writers write 0 where there is no dictionary.
            has = thrift.integer(field.value, 0)[0] > 0
            metadata[field.id] = shifted(field) if has else None
        elif field.id == _M_STATISTICS:
            metadata[field.id] = dataclasses.replace(field, value=_statistics(field.value))
    if chunk.filter is not None:
        metadata[_M_FILTER] = _i64(_M_FILTER, place.filter)
    changed: dict[int, EncodedField | None] = {
        # Where the chunk's metadata is repeated among its pages, which no reader looks at; 0 says
        # that it is not.
        _C_OFFSET: _i64(_C_OFFSET, 0),
        _C_METADATA: EncodedField(_C_METADATA, thrift.STRUCT, _amended(chunk.metadata, metadata)),
    }
    if chunk.column_index is not None:
        changed[_C_INDEX] = _i64(_C_INDEX, place.column_index)
    if chunk.offset_index is not None:
        changed[_C_OFFSETS] = _i64(_C_OFFSETS, place.offset_index.start)
        changed[_C_OFFSETS_SIZE] = EncodedField(
            _C_OFFSETS_SIZE, thrift.I32, _zigzag(place.offset_index.size)
        )
    return _amended(chunk.fields, changed)


def _statistics(data: bytes) -> bytes:
    """Statistics without the deprecated bounds, whose order depends on who wrote them."""
    return _amended(thrift.fields(data, 0)[0], {_S_MAX: None, _S_MIN: None})


def offset_index_at(data: bytes, moved: int) -> bytes:
    """A chunk's offset index after its pages were moved by so many bytes. Raises: FooterInvalid."""
    try:
        fields, inner, _ = _struct(data, 0, {_PAGES: _each(partial(_page_at, moved=moved))})
        pages = EncodedField(_PAGES, thrift.LIST, list_bytes(inner[_PAGES]))
        return _amended(fields, {_PAGES: pages})
    except (ValueError, IndexError, RecursionError, KeyError) as error:
        raise FooterInvalid(f"an offset index cannot be read: {error}") from error


def _page_at(data: bytes, at: int, moved: int) -> tuple[bytes, int]:
    """A page's location after it was moved; its offset comes first."""
    id_, type_, start = thrift.field_head(data, at, 0)
    if id_ != _PAGE_OFFSET or type_ != thrift.I64:
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
        EncodedField(_VERSION, thrift.I32, _zigzag(version)),
        EncodedField(_SCHEMA, thrift.LIST, list_bytes(schema)),
        _i64(_ROWS, rows),
        EncodedField(_GROUPS, thrift.LIST, list_bytes(groups)),
    ]
    if pairs:
        encoded = [_pair_bytes(key, value) for key, value in pairs.items()]
        fields.append(EncodedField(_PAIRS, thrift.LIST, list_bytes(encoded)))
    fields.append(EncodedField(_CREATOR, thrift.BINARY, thrift.binary_bytes(creator)))
    if orders:
        fields.append(EncodedField(_ORDERS, thrift.LIST, orders))
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


def _structs(data: bytes) -> list[bytes]:
    """The encoded structs of a list."""
    count, at = thrift.struct_list_head(data, 0, thrift.LIST)
    found = []
    for _ in range(count):
        end = thrift.after(data, at, thrift.STRUCT)
        if end > len(data):
            raise FooterInvalid("a list is longer than its footer")
        found.append(data[at:end])
        at = end
    return found


def _pairs(data: bytes) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for each in _structs(data):
        fields = _by_id(thrift.fields(each, 0)[0])
        found[_bytes(fields[1].value)] = _bytes(fields[2].value) if 2 in fields else None
    return found


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


def _by_id(fields: Iterable[EncodedField]) -> dict[int, EncodedField]:
    return {field.id: field for field in fields}


def _number(found: Mapping[int, EncodedField], id_: int) -> int:
    field = found[id_]
    if not thrift.BYTE < field.type <= thrift.I64:
        raise FooterInvalid(f"field {id_} is of type {field.type}, expected a number")
    return thrift.integer(field.value, 0)[0]


def _bytes(data: bytes) -> bytes:
    length, at = thrift.varint(data, 0)
    if length > len(data) - at:
        raise FooterInvalid(f"a text of {length} bytes in {len(data)}")
    return data[at : at + length]


def _i64(id_: int, value: int) -> EncodedField:
    return EncodedField(id_, thrift.I64, _zigzag(value))


def _zigzag(value: int) -> bytes:
    return thrift.varint_bytes(value << 1 if value >= 0 else (-value << 1) - 1)
