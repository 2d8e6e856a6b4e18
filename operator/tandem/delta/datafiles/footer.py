"""Amends the footer of a Parquet file (Thrift's compact protocol).

Adds statistics of floats while a file is written, for which Arrow's writer has no setting, and
declares INT96 as bytes while one is read. Everything else is copied byte for byte, known or not.
Source: `parquet.thrift` of apache/parquet-format for the numbers of fields. No I/O of its own.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.float_bounds import FloatBounds, FloatStatistics

_MAGIC = b"PAR1"
_LENGTH = 4

# Fields, by the struct that has them
_FILE_SCHEMA = 2
_FILE_ROW_GROUPS = 4
_ELEMENT_TYPE = 1
_ELEMENT_LENGTH = 2
_ROW_GROUP_COLUMNS = 1
_CHUNK_METADATA = 3
_COLUMN_TYPE = 1
_COLUMN_STATISTICS = 12
_COLUMN_ENCODING_STATS = 13
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
        if held[-len(_MAGIC) :] != _MAGIC:
            raise ValueError("a Parquet file that was written does not end with PAR1")
        end = len(held) - len(_MAGIC) - _LENGTH
        start = end - int.from_bytes(held[end : end + _LENGTH], "little")
        if start < 0:
            raise ValueError(f"a footer begins {-start} bytes before the buffered part of its file")
        footer = amend(held[start:end])
        length = len(footer).to_bytes(_LENGTH, "little")
        self._sink.write(held[:start] + footer + length + _MAGIC)


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
        return _amend_struct(data, at, _ROW_GROUP_COLUMNS, columns)

    return _amend_struct(footer, 0, _FILE_ROW_GROUPS, groups)[0]


def _amend_chunk(
    seen: Mapping[int, FloatStatistics], index: int, data: bytes, at: int
) -> tuple[bytes, int]:
    column = partial(_amend_column, seen=seen.get(index))
    return _amend_struct(data, at, _CHUNK_METADATA, column)


def _amend_column(data: bytes, at: int, seen: FloatStatistics | None) -> tuple[bytes, int]:
    fields, end = thrift.fields(data, at)
    [type_] = [thrift.integer(f.value, 0)[0] for f in fields if f.id == _COLUMN_TYPE]
    if type_ not in _FORMS:
        return data[at:end], end
    left_out = (_COLUMN_STATISTICS, _COLUMN_ENCODING_STATS)
    fields = [f for f in fields if f.id not in left_out]
    if seen is not None:
        fields.append(
            thrift.EncodedField(_COLUMN_STATISTICS, thrift.STRUCT, _statistics(seen, _FORMS[type_]))
        )
    return thrift.struct_bytes(sorted(fields, key=lambda f: f.id)), end


def _statistics(seen: FloatStatistics, form: str) -> bytes:
    fields = [thrift.EncodedField(3, thrift.I64, thrift.varint_bytes(seen.nulls << 1))]
    if seen.low is not None and seen.high is not None:
        fields += [
            thrift.EncodedField(
                5, thrift.BINARY, thrift.binary_bytes(struct.pack(form, seen.high))
            ),
            thrift.EncodedField(6, thrift.BINARY, thrift.binary_bytes(struct.pack(form, seen.low))),
            # A zero bound covers both zeros, of which the column may hold either.
            thrift.EncodedField(7, thrift.FALSE if seen.high == 0 else thrift.TRUE, b""),
            thrift.EncodedField(8, thrift.FALSE if seen.low == 0 else thrift.TRUE, b""),
        ]
    return thrift.struct_bytes(fields)


def without_int96(footer: bytes) -> bytes:
    """The same footer with INT96 columns declared as fixed-length bytes, twelve each. Both types
    are stored alike, in every encoding. Raises: ValueError."""

    def group(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, _ROW_GROUP_COLUMNS, partial(_amend_structs, amend=chunk))

    def chunk(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, _CHUNK_METADATA, metadata)

    def metadata(data: bytes, at: int) -> tuple[bytes, int]:
        return _amend_struct(data, at, _COLUMN_TYPE, type_)

    def type_(data: bytes, at: int) -> tuple[bytes, int]:
        end = thrift.after(data, at, thrift.I32)
        return (_FIXED if data[at:end] == _INT96 else data[at:end]), end

    elements = partial(_amend_structs, amend=_fixed_element)
    footer = _amend_struct(footer, 0, _FILE_SCHEMA, elements)[0]
    return _amend_struct(footer, 0, _FILE_ROW_GROUPS, partial(_amend_structs, amend=group))[0]


def _fixed_element(_index: int, data: bytes, at: int) -> tuple[bytes, int]:
    fields, end = thrift.fields(data, at)
    if not any(f.id == _ELEMENT_TYPE and f.value == _INT96 for f in fields):
        return data[at:end], end
    fixed = [
        thrift.EncodedField(_ELEMENT_TYPE, thrift.I32, _FIXED),
        thrift.EncodedField(_ELEMENT_LENGTH, thrift.I32, _INT96_LENGTH),
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
