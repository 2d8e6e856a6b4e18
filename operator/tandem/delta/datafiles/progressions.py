"""Column chunks of 64-bit numbers that ascend evenly, or are all the same: the row ids and commit
versions of a file that does not have them.

Such numbers take a few bytes in Parquet's encoding of differences (DELTA_BINARY_PACKED), which can
be written down without the numbers: they are never in memory, and cost a twentieth of what Arrow
takes to encode them. If rows have NULL instead, each row has a bit. Sources: `Encodings.md` and
`parquet.thrift` of apache/parquet-format. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.copyable import CODECS
from tandem.delta.datafiles.footer import (
    C_METADATA,
    C_OFFSET,
    C_OFFSETS,
    C_OFFSETS_SIZE,
    M_CODEC,
    M_DATA,
    M_ENCODINGS,
    M_NAMES,
    M_RAW,
    M_SIZE,
    M_STATISTICS,
    M_TYPE,
    M_VALUES,
    PAGES,
    S_MAX_VALUE,
    S_MIN_VALUE,
    S_NULLS,
    ByteRange,
    ColumnChunk,
)
from tandem.delta.datafiles.thrift import EncodedField

_PAGE_ROWS: Final = 1 << 17
"""Rows of a page: parquet-java decodes all differences of a page at once."""
_BLOCK, _PARTS = 128, 4
"""Differences of a block, and the parts that it has, as all writers make them."""
_INT64, _DATA_PAGE, _RLE, _DELTA_BINARY_PACKED = 2, 0, 3, 5
_NUMBERS: Final = {name: number for number, name in CODECS.items()}
Places = NDArray[np.int64]
NOWHERE: Final[Places] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Progression:
    """`first`, `first + step`, …: so many values, of which none is NULL. All have 64 bits."""

    first: int
    step: int
    values: int

    @property
    def last(self) -> int:
        return self.first + self.step * (self.values - 1)

    def part(self, start: int, values: int) -> Progression:
        return Progression(self.first + self.step * start, self.step, values)

    def without(self, values: int) -> Progression:
        """So many fewer of numbers that are all the same."""
        assert self.step == 0 or not values
        return replace(self, values=self.values - values)

    def encoded(self) -> bytes:
        """By differences: each is the least of its block, and so takes no bits."""
        head = (_BLOCK, _PARTS, self.values)
        block = thrift.integer_bytes(self.step) + bytes(_PARTS)
        blocks = -(-(self.values - 1) // _BLOCK)
        numbers = b"".join(map(thrift.varint_bytes, head)) + thrift.integer_bytes(self.first)
        return numbers + block * blocks


def optional_element(name: str) -> bytes:
    """The element of a schema of such a column, as Arrow and Spark write it."""
    text = EncodedField(4, thrift.BINARY, thrift.binary_bytes(name.encode()))
    type_, optional = _number(1, _INT64, thrift.I32), _number(3, 1, thrift.I32)
    return thrift.struct_bytes([type_, optional, text])


def chunk_of(
    name: str,
    numbers: Progression,
    start: int,
    codec: str,
    *,
    indexed: bool,
    nulls: Places = NOWHERE,
) -> tuple[ColumnChunk, bytes]:
    """An optional column with these values, and its bytes.

    Args:
        numbers: one a row.
        start: where the bytes will be in their file.
        codec: pyarrow's name of it.
        indexed: whether an offset index follows the pages.
        nulls: the rows that have NULL instead, ascending; of numbers that are all the same.
    """
    pages = bytearray()
    locations, raw = [], 0
    for row in range(0, numbers.values, _PAGE_ROWS):
        part = numbers.part(row, min(_PAGE_ROWS, numbers.values - row))
        first, last = np.searchsorted(nulls, (row, row + part.values))
        page, size = _page(part, nulls[first:last] - row, codec)
        place = [
            _number(1, start + len(pages), thrift.I64),
            _number(2, len(page), thrift.I32),
            _number(3, row, thrift.I64),
        ]
        locations.append(thrift.struct_bytes(place))
        pages += page
        raw += size
    data = ByteRange(start, len(pages))
    index = thrift.struct_bytes([EncodedField(PAGES, thrift.LIST, thrift.list_bytes(locations))])
    where = ByteRange(data.end, len(index)) if indexed else None
    metadata = tuple(_metadata(name, numbers, len(nulls), codec, raw, data))
    fields = [
        _number(C_OFFSET, 0, thrift.I64),
        EncodedField(C_METADATA, thrift.STRUCT, thrift.struct_bytes([*metadata])),
    ]
    if where is not None:
        fields.append(_number(C_OFFSETS, where.start, thrift.I64))
        fields.append(_number(C_OFFSETS_SIZE, where.size, thrift.I32))
    chunk = ColumnChunk(
        fields=tuple(fields),
        metadata=metadata,
        path=name,
        type=_INT64,
        codec=_NUMBERS[codec],
        values=numbers.values,
        data=data,
        filter=None,
        column_index=None,
        offset_index=where,
        nulls=len(nulls),
        has_bounds=len(nulls) < numbers.values,
    )
    return chunk, bytes(pages) + (index if indexed else b"")


def _page(numbers: Progression, nulls: Places, codec: str) -> tuple[bytes, int]:
    """A data page with its header, and how large it is without compression."""
    # One run says of all values that they are not NULL, or a bit of each.
    levels = thrift.varint_bytes(numbers.values << 1) + b"\x01"
    if len(nulls):
        is_there = np.ones(numbers.values, np.bool_)
        is_there[nulls] = False
        bits = np.packbits(is_there, bitorder="little").tobytes()
        levels = thrift.varint_bytes(len(bits) << 1 | 1) + bits
    values = numbers.without(len(nulls)).encoded()
    body = len(levels).to_bytes(4, "little") + levels + values
    packed = body if codec == "none" else pa.compress(body, codec=_arrow_name(codec), asbytes=True)
    of_data = thrift.struct_bytes(
        [
            _number(1, numbers.values, thrift.I32),
            _number(2, _DELTA_BINARY_PACKED, thrift.I32),
            _number(3, _RLE, thrift.I32),
            _number(4, _RLE, thrift.I32),
        ]
    )
    header = thrift.struct_bytes(
        [
            _number(1, _DATA_PAGE, thrift.I32),
            _number(2, len(body), thrift.I32),
            _number(3, len(packed), thrift.I32),
            EncodedField(5, thrift.STRUCT, of_data),
        ]
    )
    return header + packed, len(header) + len(body)


def _arrow_name(codec: str) -> str:
    return "lz4_raw" if codec == "lz4" else codec


def _metadata(
    name: str, numbers: Progression, nulls: int, codec: str, raw: int, data: ByteRange
) -> Iterator[EncodedField]:
    low, high = sorted((numbers.first, numbers.last))
    bounds = ((S_MAX_VALUE, high), (S_MIN_VALUE, low)) if nulls < numbers.values else ()
    statistics = [
        _number(S_NULLS, nulls, thrift.I64),
        *(EncodedField(n, thrift.BINARY, b"\x08" + struct.pack("<q", each)) for n, each in bounds),
    ]
    yield _number(M_TYPE, _INT64, thrift.I32)
    encodings = map(thrift.integer_bytes, (_DELTA_BINARY_PACKED, _RLE))
    yield EncodedField(M_ENCODINGS, thrift.LIST, bytes([2 << 4 | thrift.I32]) + b"".join(encodings))
    text = thrift.binary_bytes(name.encode())
    yield EncodedField(M_NAMES, thrift.LIST, bytes([1 << 4 | thrift.BINARY]) + text)
    yield _number(M_CODEC, _NUMBERS[codec], thrift.I32)
    yield _number(M_VALUES, numbers.values, thrift.I64)
    yield _number(M_RAW, raw, thrift.I64)
    yield _number(M_SIZE, data.size, thrift.I64)
    yield _number(M_DATA, data.start, thrift.I64)
    yield EncodedField(M_STATISTICS, thrift.STRUCT, thrift.struct_bytes(statistics))


def _number(id_: int, value: int, type_: int) -> EncodedField:
    return EncodedField(id_, type_, thrift.integer_bytes(value))
