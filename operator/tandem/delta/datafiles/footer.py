"""What a Parquet footer says, as far as copying row groups needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import BinaryIO, Final

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.thrift import EncodedField

# The numbers of fields in a Parquet footer and in an offset index, by the struct that has them: no
# prefix for `FileMetaData`, `G_` for `RowGroup`, `C_` for `ColumnChunk`, `M_` for
# `ColumnMetaData`, `S_` for `Statistics`.
#
# Source: `parquet.thrift` of apache/parquet-format.


VERSION, SCHEMA, ROWS, GROUPS, PAIRS, CREATOR, ORDERS, ENCRYPTION = range(1, 9)
KNOWN: Final = frozenset(range(1, 8))
G_COLUMNS, G_BYTES, G_ROWS, G_SORTING, G_OFFSET, G_COMPRESSED, G_ORDINAL = range(1, 8)
C_PATH, C_OFFSET, C_METADATA, C_OFFSETS, C_OFFSETS_SIZE = range(1, 6)
C_INDEX, C_INDEX_SIZE, C_CRYPTO, C_ENCRYPTED = range(6, 10)
M_TYPE, M_ENCODINGS, M_NAMES, M_CODEC, M_VALUES, M_RAW, M_SIZE = range(1, 8)
M_DATA, M_INDEX, M_DICTIONARY, M_STATISTICS, M_ENCODING_STATS = range(9, 14)
M_FILTER, M_FILTER_SIZE = 14, 15
S_MAX, S_MIN, S_NULLS, S_DISTINCT, S_MAX_VALUE, S_MIN_VALUE = range(1, 7)
PAGE_OFFSET, PAGES = 1, 1


# What copying row groups must know of a Parquet footer.
#
# A footer is read into the encoded fields of its structs (`thrift`), known or not; `footer_edit`
# replaces those with offsets. A footer may be hostile: every range that it names is checked
# against its file before it is used.
#
# No I/O of its own.


MAGIC: Final = b"PAR1"
TAIL: Final = 8
"""Bytes after a footer: its length and the magic."""
MOST_FOOTER: Final = 64 << 20
"""Bytes of a footer that is read at most."""
MOST_KEPT: Final = 2_000_000
"""Fields and structs that are kept of a footer, as of about 110,000 column chunks: a byte can
become a hundred of memory, so its size alone is no limit."""
MOST_INDEXES: Final = 16 << 20
"""Bytes of the page indexes of a row group, which are read whole."""


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
    """A column of a row group. `path` has the names from the root, joined by dots, as the column
    says; `data` has its pages; `filter`, `column_index` and `offset_index` are None where there are
    none. `type` and `codec` are Parquet's numbers."""

    fields: tuple[EncodedField, ...]
    metadata: tuple[EncodedField, ...]
    path: str
    type: int
    codec: int
    values: int
    data: ByteRange
    filter: ByteRange | None
    column_index: ByteRange | None
    offset_index: ByteRange | None
    nulls: int | None
    has_bounds: bool

    @property
    def raw(self) -> int:
        """Bytes of its pages, decompressed, as the footer says."""
        return _number(_by_id(self.metadata), M_RAW)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file; `size` counts the bytes of its pages."""

    fields: tuple[EncodedField, ...]
    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def size(self) -> int:
        return sum(chunk.data.size for chunk in self.chunks)

    @property
    def kept(self) -> int:
        """What it adds to the fields and structs that are kept of a footer (`MOST_KEPT`)."""
        of_chunks = sum(1 + len(c.fields) + len(c.metadata) for c in self.chunks)
        return 1 + len(self.fields) + of_chunks


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


def parse_group(data: bytes, size: int) -> RowGroup:
    """A row group by its encoded struct, of a file of `size` bytes. Raises: FooterInvalid."""
    try:
        return _group(data, 0, size, _Kept())[0]
    except (ValueError, IndexError, RecursionError, KeyError) as error:
        raise FooterInvalid(str(error) or type(error).__name__) from error


def _parse(data: bytes, size: int) -> FileFooter:
    limit, kept = size - TAIL - len(data), _Kept()
    groups_of = thrift.each_of(partial(_group, limit=limit, kept=kept))
    fields, inner, end = thrift.fields_and(data, 0, {GROUPS: groups_of})
    if end != len(data):
        raise FooterInvalid(f"{len(data) - end} bytes after the footer's end")
    found = _by_id(fields)
    unknown = sorted(found.keys() - KNOWN)
    if unknown:
        what = "encrypted" if ENCRYPTION in unknown else "from a later format"
        raise FooterInvalid(f"the file is {what}: fields {unknown}")
    groups = tuple(inner[GROUPS])
    leaves = {len(group.chunks) for group in groups}
    if len(leaves) > 1:
        raise FooterInvalid(f"row groups of {sorted(leaves)} columns")
    footer = FileFooter(
        size=size,
        version=_number(found, VERSION),
        schema=tuple(_elements(found[SCHEMA].value, kept)),
        groups=groups,
        pairs=_pairs(found[PAIRS].value, kept) if PAIRS in found else {},
        creator=_bytes(found[CREATOR].value) if CREATOR in found else b"",
        orders=found[ORDERS].value if ORDERS in found else b"",
    )
    if footer.rows != _number(found, ROWS):
        raise FooterInvalid(f"{footer.rows} rows in row groups, {_number(found, ROWS)} in all")
    return footer


@dataclass(slots=True)
class _Kept:
    """How many fields and structs are kept of a footer."""

    count: int = 0

    def add(self, more: int) -> None:
        """Raises: FooterInvalid if there are too many."""
        self.count += more
        if self.count > MOST_KEPT:
            raise FooterInvalid(f"more than {MOST_KEPT} fields")


def _group(data: bytes, at: int, limit: int, kept: _Kept) -> tuple[RowGroup, int]:
    columns = thrift.each_of(partial(_chunk, limit=limit, kept=kept))
    fields, inner, after = thrift.fields_and(data, at, {G_COLUMNS: columns})
    kept.add(1 + len(fields))
    rows = _number(_by_id(fields), G_ROWS)
    if rows < 0:
        raise FooterInvalid(f"a row group of {rows} rows")
    chunks = tuple(inner[G_COLUMNS])
    if rows and not all(chunk.values for chunk in chunks):
        raise FooterInvalid(f"a column without values in a row group of {rows} rows")
    end = len(MAGIC)
    for range_ in sorted((chunk.data for chunk in chunks), key=lambda each: each.start):
        if range_.start < end:
            raise FooterInvalid(f"columns overlap at byte {range_.start}")
        end = range_.end
    named = (part for c in chunks for part in (c.column_index, c.offset_index))
    indexes = sum(part.size for part in named if part is not None)
    if indexes > MOST_INDEXES:
        raise FooterInvalid(f"page indexes of {indexes} bytes in a row group")
    return RowGroup(tuple(fields), rows, chunks), after


def _chunk(data: bytes, at: int, limit: int, kept: _Kept) -> tuple[ColumnChunk, int]:
    fields, inner, end = thrift.fields_and(data, at, {C_METADATA: _fields})
    kept.add(1 + len(fields) + len(inner[C_METADATA]))
    found = _by_id(fields)
    if C_CRYPTO in found or C_ENCRYPTED in found:
        raise FooterInvalid("a column is encrypted")
    if C_PATH in found and _bytes(found[C_PATH].value):
        raise FooterInvalid("a column is in another file")
    metadata = inner[C_METADATA]
    values = _by_id(metadata)
    start = _number(values, M_DATA)
    dictionary = _number(values, M_DICTIONARY) if M_DICTIONARY in values else 0
    size, count = _number(values, M_SIZE), _number(values, M_VALUES)
    if 0 < dictionary < start:
        start = dictionary
    elif not start and not count:  # a row group without rows, as Arrow writes it
        start = dictionary or len(MAGIC)
    statistics: dict[int, EncodedField] = {}
    if M_STATISTICS in values:
        statistics = _by_id(thrift.fields(values[M_STATISTICS].value, 0)[0])
    chunk = ColumnChunk(
        fields=tuple(fields),
        metadata=tuple(metadata),
        path=_path(values[M_NAMES].value) if M_NAMES in values else "",
        type=_number(values, M_TYPE),
        codec=_number(values, M_CODEC),
        values=count,
        data=_range(start, size, limit),
        filter=_optional(values, M_FILTER, M_FILTER_SIZE, limit),
        column_index=_optional(found, C_INDEX, C_INDEX_SIZE, limit),
        offset_index=_optional(found, C_OFFSETS, C_OFFSETS_SIZE, limit),
        nulls=_number(statistics, S_NULLS) if S_NULLS in statistics else None,
        has_bounds=S_MIN_VALUE in statistics and S_MAX_VALUE in statistics,
    )
    return chunk, end


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


def _structs(data: bytes, kept: _Kept) -> list[bytes]:
    """The encoded structs of a list."""
    count, at = thrift.struct_list_head(data, 0, thrift.LIST)
    kept.add(count)
    found = []
    for _ in range(count):
        end = thrift.after(data, at, thrift.STRUCT)
        if end > len(data):
            raise FooterInvalid("a list is longer than its footer")
        found.append(data[at:end])
        at = end
    return found


def _elements(data: bytes, kept: _Kept) -> list[bytes]:
    """The encoded elements of a schema, each of which can be read."""
    found = _structs(data, kept)
    for each in found:
        thrift.fields(each, 0)
    return found


def _pairs(data: bytes, kept: _Kept) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for each in _structs(data, kept):
        fields = _by_id(thrift.fields(each, 0)[0])
        found[_bytes(fields[1].value)] = _bytes(fields[2].value) if 2 in fields else None
    return found


def _by_id(fields: Iterable[EncodedField]) -> dict[int, EncodedField]:
    return {field.id: field for field in fields}


def _number(found: Mapping[int, EncodedField], id_: int) -> int:
    field = found[id_]
    if not thrift.BYTE < field.type <= thrift.I64:
        raise FooterInvalid(f"field {id_} is of type {field.type}, expected a number")
    return thrift.integer(field.value, 0)[0]


def _path(data: bytes) -> str:
    count, _, at = thrift.list_head(data, 0)
    names = []
    for _ in range(count):
        names.append(_bytes(data[at:]).decode(errors="replace"))
        at = thrift.after(data, at, thrift.BINARY)
    return ".".join(names)


def _bytes(data: bytes) -> bytes:
    length, at = thrift.varint(data, 0)
    if length > len(data) - at:
        raise FooterInvalid(f"a text of {length} bytes in {len(data)}")
    return data[at : at + length]
