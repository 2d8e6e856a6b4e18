"""Whether the row groups of a file can be copied into another file: the same columns in the same
form, or why not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.footer import TAIL, ColumnChunk, FileFooter, parse
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.stats import counted_leaves, listed_leaves
from tandem.delta.datafiles.times import RebaseBoundaries
from tandem.delta.datafiles.writer import arrow_writer, codec_of
from tandem.delta.schema import Field, StructType, to_arrow_field

# Whether the columns of two Parquet files are the same, those that our writer gives a file, and
# how it encodes one as a file has it.
#
# Two files whose schemas are *equal* can share an output. A file whose schema *fits* has the
# table's columns as our writer would write them, but for what no reader of a Delta table looks at:
# whether a column is required, the name of the root, older annotations beside newer ones, the
# length of a type that has but one, and how a decimal is stored. No I/O.


_TYPE, _LENGTH, _REPETITION, _NAME, CHILDREN, _CONVERTED, _SCALE, _PRECISION, _ID, _LOGICAL = range(
    1, 11
)
_REQUIRED: Final = b"\x00"
_OPTIONAL: Final = b"\x02"
_REPEATED: Final = b"\x04"
_DECIMAL: Final = b"\x0a"
_FIXED: Final = b"\x0e"
"""Repetitions, a converted type and a physical type, in Thrift's encoding of numbers."""

_LOGICAL_OF: Final = {
    bytes([2 * converted]): logical
    for converted, logical in {
        0: b"\x1c\x00\x00",  # UTF8, STRING
        1: b"\x2c\x00\x00",  # MAP
        3: b"\x3c\x00\x00",  # LIST
        6: b"\x6c\x00\x00",  # DATE
        10: b"\x8c\x11\x1c\x2c\x00\x00\x00\x00",  # TIMESTAMP_MICROS, in UTC
        15: b"\xac\x13\x08\x11\x00\x00",  # INT_8
        16: b"\xac\x13\x10\x11\x00\x00",  # INT_16
        17: b"\xac\x13\x20\x11\x00\x00",  # INT_32
        18: b"\xac\x13\x40\x11\x00\x00",  # INT_64
    }.items()
}
"""Logical types by the older annotations that mean the same, both as Thrift encodes them."""
_WHOLE: Final = frozenset({_LOGICAL_OF[b"\x22"], _LOGICAL_OF[b"\x24"]})
"""What says of a column of 32 or 64 bits no more than its physical type."""

_LIST, _ELEMENT, _KEY_VALUE, _KEY, _VALUE = (
    thrift.binary_bytes(name) for name in (b"list", b"element", b"key_value", b"key", b"value")
)
_SPELLINGS: Final = {
    _LIST: (_LIST, thrift.binary_bytes(b"bag")),
    _KEY_VALUE: (_KEY_VALUE, thrift.binary_bytes(b"map"), thrift.binary_bytes(b"entries")),
}
"""Names of the groups that lists and maps repeat; what is in these may have any name."""

Element = dict[int, bytes]
Key = tuple[tuple[tuple[int, bytes], ...], ...]


def key_of(footer: FileFooter) -> Key:
    """Equal for files whose row groups may be in one file: their schemas are equal but for the
    root's name, and so is what they say of the order of values."""
    elements = [tuple(sorted(_element(each).items())) for each in footer.schema[1:]]
    return (*elements, ((0, footer.orders),))


def written_by_us(table: TableFormat) -> FileFooter:
    """The footer of a file without rows that our writer writes for a table."""
    columns = all_nullable(table.file_schema)
    fields = [to_arrow_field(each, physical=True).with_nullable(True) for each in columns]
    return _footer_of(pa.schema(fields), integers=True)


def _footer_of(schema: pa.Schema, *, integers: bool) -> FileFooter:
    """The footer of a file without rows. `integers`: whether small decimals are integers."""
    sink = pa.BufferOutputStream()
    with arrow_writer(sink, schema, dictionary=None, store_decimal_as_integer=integers):
        pass
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-TAIL : -TAIL + 4], "little")
    return parse(data[-TAIL - length : -TAIL], len(data))


def table_of(footer: FileFooter, table: TableFormat) -> TableFormat | None:
    """The table as it would be with the columns of a file alone, in the file's order: a file may be
    older than a column. None if the file has others, or lacks those of partitions."""
    by_name = {field.physical_name: field for field in table.file_schema}
    found: list[Field] = []
    try:
        found += [by_name.pop(name) for name, _ in columns_of(footer.schema)]
    except (KeyError, IndexError, ValueError):
        return None
    if table.repeats_partitions and any(
        f.name in table.partition_columns for f in by_name.values()
    ):
        return None
    own = StructType(tuple(found)).without(table.partition_columns)
    partitions = [table.schema[name] for name in table.partition_columns]
    return replace(table, schema=StructType((*own, *partitions)))


def columns_of(schema: Sequence[bytes]) -> Iterator[tuple[str, Sequence[bytes]]]:
    """The name and the elements of each top-level column. Raises: ValueError, IndexError,
    KeyError."""
    for start, end in _columns(schema):
        name = _element(schema[start])[_NAME]
        length, at = thrift.varint(name, 0)
        yield name[at : at + length].decode(), schema[start:end]


def is_leaf(element: bytes) -> bool:
    """Whether an element of a schema is a Parquet column."""
    children = _element(element).get(CHILDREN)
    return children is None or thrift.integer(children, 0)[0] == 0


def _columns(schema: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where the elements of each top-level column begin and end. Raises: IndexError."""
    at = 1
    while at < len(schema):
        start, left = at, 1
        while left > 0:
            children = _element(schema[at]).get(CHILDREN)
            left += (0 if children is None else thrift.integer(children, 0)[0]) - 1
            at += 1
        yield start, at


@dataclass(frozen=True, slots=True)
class FileColumn:
    """How our writer encodes a column so that the schema of a file describes it.

    `arrow` is its field under physical names, required where the file requires values; `integers`:
    whether small decimals are integers, None if our writer stores the column in another way than
    the file: decimals as texts, keys that may be NULL.
    """

    arrow: pa.Field
    integers: bool | None


def file_columns(footer: FileFooter, table: TableFormat) -> tuple[FileColumn, ...]:
    """Of each column of a file that has those of the table (`fits`)."""
    places = list(_columns(footer.schema))
    fields = [
        _required(to_arrow_field(field, physical=True), map(_element, footer.schema[start:end]))
        for field, (start, end) in zip(table.file_schema, places, strict=True)
    ]
    written = {flag: _footer_of(pa.schema(fields), integers=flag) for flag in (True, False)}

    def column(field: pa.Field, start: int, end: int) -> FileColumn:
        wanted = [*map(_stored, footer.schema[start:end])]
        same = (
            integers
            for integers, ours in written.items()
            if [*map(_stored, ours.schema[start:end])] == wanted
        )
        return FileColumn(field, next(same, None))

    return tuple(column(field, *place) for field, place in zip(fields, places, strict=True))


def _required(field: pa.Field, elements: Iterator[Element]) -> pa.Field:
    """The field, with values required where these elements of a file require them."""
    optional = next(elements).get(_REPETITION) != _REQUIRED
    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_required(child, elements) for child in type_])
    elif pa.types.is_list(type_):
        next(elements)  # the group that is repeated
        type_ = pa.list_(_required(type_.value_field, elements))
    elif pa.types.is_map(type_):
        next(elements)
        key = _required(type_.key_field, elements).with_nullable(False)
        type_ = pa.map_(key, _required(type_.item_field, elements))
    return field.with_type(type_).with_nullable(optional)


def _stored(data: bytes) -> tuple[bytes | None, ...]:
    """What decides how values of an element are encoded."""
    element = _element(data)
    length = element.get(_LENGTH) if element.get(_TYPE) == _FIXED else None
    return element.get(_TYPE), length, element.get(_REPETITION), element.get(CHILDREN)


def fits(
    footer: FileFooter, table: TableFormat, ours: FileFooter, *, any_spelling: bool = False
) -> bool:
    """Whether a file has the columns of a table, in its order, as in `ours`, which our writer wrote
    for it.

    Args:
        any_spelling: whatever the elements of lists and maps are called (delta-rs: `item`).
    """
    ids = table.mapping != "none"
    return _loose(footer.schema[1:], ids, any_spelling) == _loose(ours.schema[1:], ids, False)


def _loose(
    schema: Sequence[bytes], ids: bool, any_spelling: bool
) -> list[tuple[bytes | None, ...]]:
    elements = [*map(_element, schema)]
    names = _spelled(elements) if any_spelling else [each.get(_NAME) for each in elements]
    found: list[tuple[bytes | None, ...]] = []
    for element, name in zip(elements, names, strict=True):
        repeated = _REPEATED if element.get(_REPETITION) == _REPEATED else _OPTIONAL
        same = (
            name,
            element.get(CHILDREN),
            repeated,
            element.get(_ID) if ids else None,
        )
        if element.get(_CONVERTED) == _DECIMAL:
            found.append((*same, element.get(_SCALE), element.get(_PRECISION)))
            continue
        # parquet-go gives each column a length, in bits where the type is a number.
        length = element.get(_LENGTH) if element.get(_TYPE) == _FIXED else None
        found.append((*same, element.get(_TYPE), length, _meaning(element)))
    return found


def _spelled(schema: Sequence[Element]) -> list[bytes | None]:
    """The names of elements, with those inside of lists and maps as our writer spells them. Other
    names of a group that is repeated may mean another type ("LIST" in apache/parquet-format's
    LogicalTypes.md)."""
    found: list[bytes | None] = []
    coming: list[
        bytes
    ] = []  # what the elements that follow are in a list or map, the next one last
    for element in schema:
        part = coming.pop() if coming else b""
        name = element.get(_NAME)
        is_ours = part and name in _SPELLINGS.get(part, (name,))
        found.append(part if is_ours else name)
        count = thrift.integer(element[CHILDREN], 0)[0] if CHILDREN in element else 0
        meaning = _meaning(element)
        if part == _LIST and count == 1:
            coming.append(_ELEMENT)
        elif part == _KEY_VALUE and count == 2:
            coming += [_VALUE, _KEY]
        elif count == 1 and meaning in (_LOGICAL_OF[b"\x06"], _LOGICAL_OF[b"\x02"]):
            coming.append(_LIST if meaning == _LOGICAL_OF[b"\x06"] else _KEY_VALUE)
        else:
            coming += [b""] * min(count, len(schema))
    return found


def _meaning(element: Element) -> bytes | None:
    """The logical type; that of the older annotation where a writer gives no other."""
    converted = element.get(_CONVERTED, b"")
    logical = element.get(_LOGICAL, _LOGICAL_OF.get(converted, converted))
    return None if logical in _WHOLE else logical or None


def _element(data: bytes) -> Element:
    """Files of a table have the same elements, which are read several times each."""
    return _small_element(data) if len(data) <= _SMALL else _parsed(data)


def _parsed(data: bytes) -> Element:
    return {field.id: field.value for field in thrift.fields(data, 0)[0]}


_SMALL: Final = 256
"""Bytes of an element that is kept at most: an element may be as large as its footer."""
_small_element = lru_cache(4096)(_parsed)


# Whether the row groups of a file can be copied into another file, and if not, why.
#
# Copying is a decision: row groups of a thousand rows make a joined file larger, and more than
# twice as slow to read, as one that is encoded again; at 100,000 rows there is no difference. A
# file that does not fit is decoded and encoded, which is always right. No I/O.


GROUP_ROWS: Final = 64_000
GROUP_BYTES: Final = 4 << 20
"""By default a row group is large enough to be copied with so many rows, or so many bytes; on
average in its file."""
DELETED_SHARE: Final = 0.05
"""A file with a larger share of deleted rows is encoded again, without them."""

CODECS: Final = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""By Parquet's numbers, without those that our writer does not write: 5, for one, is an LZ4 that
each writer framed in its own way."""
_BYTE_ARRAY: Final = 6
_OLD_WRITER: Final = re.compile(rb"parquet-mr version (0|1)\.\d\.|parquet-cpp version ")
"""parquet-mr before 1.10 and the first parquet-cpp, some of which wrote wrong statistics or sizes
(PARQUET-251, PARQUET-816); readers know them by this text, which a joined file may not keep."""


class Unfit(StrEnum):
    """Why the row groups of a file are not copied, in words that follow "files"."""

    SMALL = "with small row groups"
    DELETED = "with many deleted rows"
    COLUMNS = "with other columns or types than the table"
    CODEC = "with another codec than new files"
    STATISTICS = "with incomplete statistics"
    CALENDAR = "with times of another calendar"
    FILTERS = "without the bloom filters of the table"
    WRITER = "of an old writer"
    FOOTER = "with a footer that cannot be copied"


@dataclass(frozen=True, slots=True)
class Demands:
    """What row groups must be like to be copied into files of a table.

    `ours` is the footer that our writer gives a file of the table; `codec` the one that it would
    use: rows are encoded into it once, and copied from then on; `filters` the indexes of the
    Parquet columns that must have bloom filters; `bounded` those that must have bounds; `counted`
    those that must count nulls. `group_rows` is `minRowGroupRows`, None for the default.
    """

    table: TableFormat
    ours: FileFooter
    codec: str
    filters: frozenset[int]
    bounded: frozenset[int]
    counted: frozenset[int]
    group_rows: int | None = None

    @classmethod
    def of(cls, table: TableFormat, group_rows: int | None = None) -> Demands:
        """Raises: UnsupportedFeature if the table sets a codec that Tandem does not write."""
        leaves = counted_leaves(table.data_schema)
        return cls(
            table=table,
            ours=written_by_us(table),
            codec=codec_of(table.configuration),
            filters=frozenset(i for i, leaf in leaves.items() if leaf.column in table.filters),
            bounded=frozenset(i for i, leaf in leaves.items() if leaf.bounded),
            counted=frozenset(leaves),
            group_rows=group_rows,
        )


def is_small(rows: int, size: int, group_rows: int | None) -> bool:
    """Whether a row group of so many rows and bytes is small; of a whole file, whether its row
    groups are, however it is divided.

    Args:
        group_rows: `minRowGroupRows`, with which bytes do not count; None for the default.
    """
    if group_rows is not None:
        return rows < group_rows
    return rows < GROUP_ROWS and size < GROUP_BYTES


def unfit(footer: FileFooter, demands: Demands, *, deleted: int = 0) -> Unfit | None:
    """Why the row groups of a file are not copied, None if they are.

    Args:
        deleted: rows of the file that are deleted, and are copied with the others.
    """
    found = foreign(footer, demands.table, demands.ours)
    if found is not None:
        return found
    if deleted > DELETED_SHARE * footer.rows:
        return Unfit.DELETED
    groups = [group for group in footer.groups if group.rows]
    size = sum(group.size for group in groups)
    if groups and is_small(footer.rows // len(groups), size // len(groups), demands.group_rows):
        return Unfit.SMALL
    for group in groups:
        for index, chunk in enumerate(group.chunks):
            found = _unfit_chunk(chunk, index, demands)
            if found is not None:
                return found
    return None


def foreign(
    footer: FileFooter, table: TableFormat, ours: FileFooter, *, any_spelling: bool = False
) -> Unfit | None:
    """Why no file of a table may have row groups of a file as they are, None if one may; one with
    its schema, if elements of lists and maps may have any spelling."""
    if _OLD_WRITER.match(footer.creator):
        return Unfit.WRITER
    if not footer.orders or not fits(footer, table, ours, any_spelling=any_spelling):
        return Unfit.COLUMNS
    pairs = {key: value or b"" for key, value in footer.pairs.items()}
    return None if RebaseBoundaries.of(pairs).always else Unfit.CALENDAR


def cannot_be_edited(footer: FileFooter, table: TableFormat, ours: FileFooter) -> Unfit | None:
    """Why an edit of a file cannot keep its row groups, None if it can. Whatever their size and
    codec: the file is there already. Statistics must not become fewer than encoding would make
    them; it makes no bounds of long values either, and none that the log does not list."""
    found = foreign(footer, table, ours, any_spelling=True)
    if found is not None:
        return found
    listed = listed_leaves(table.data_schema, table.configuration)
    for group in footer.groups:
        for index, chunk in enumerate(group.chunks):
            if chunk.codec not in CODECS:
                return Unfit.CODEC
            leaf = listed.get(index)
            if leaf is None or not group.rows:
                continue
            wide = leaf.bounded and not chunk.has_bounds and chunk.nulls != chunk.values
            if chunk.nulls is None or (wide and chunk.type != _BYTE_ARRAY):
                return Unfit.STATISTICS
    return None


def _unfit_chunk(chunk: ColumnChunk, index: int, demands: Demands) -> Unfit | None:
    if CODECS.get(chunk.codec) != demands.codec:
        return Unfit.CODEC
    if index in demands.filters and chunk.filter is None:
        return Unfit.FILTERS
    if index in demands.counted and chunk.nulls is None:
        return Unfit.STATISTICS
    if index in demands.bounded and not chunk.has_bounds and chunk.nulls != chunk.values:
        return Unfit.STATISTICS
    return None


def counted_reasons(reasons: Mapping[Unfit, int]) -> tuple[str, ...]:
    """`3 files with small row groups`, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{count} file{'s' if count != 1 else ''} {why}" for why, count in ordered)
