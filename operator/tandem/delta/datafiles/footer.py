"""Amends the footer of a Parquet file while it is written (Thrift's compact protocol).

Adds statistics of floats, for which Arrow's writer has no setting. Everything else is copied byte
for byte, known or not. Source: `parquet.thrift` of apache/parquet-format for the numbers of
fields, "Thrift compact protocol encoding" of apache/thrift for their form. No I/O of its own.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tandem.delta.datafiles.float_bounds import FloatBounds, FloatStatistics

_MAGIC = b"PAR1"
_LENGTH = 4

# Fields, by the struct that has them
_FILE_ROW_GROUPS = 4
_ROW_GROUP_COLUMNS = 1
_CHUNK_METADATA = 3
_COLUMN_TYPE = 1
_COLUMN_STATISTICS = 12
_COLUMN_ENCODING_STATS = 13
_FORMS = {4: "<f", 5: "<d"}
"""FLOAT and DOUBLE, and the `struct` formats of their values."""

# Types of the compact protocol
_STOP, _TRUE, _FALSE, _I64, _BINARY, _STRUCT = 0, 1, 2, 6, 8, 12


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
        count = _list_head(data, at)[0]
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
    fields, end = _fields(data, at)
    [type_] = [_unzigzag(_varint(f.value, 0)[0]) for f in fields if f.id == _COLUMN_TYPE]
    if type_ not in _FORMS:
        return data[at:end], end
    left_out = (_COLUMN_STATISTICS, _COLUMN_ENCODING_STATS)
    fields = [f for f in fields if f.id not in left_out]
    if seen is not None:
        fields.append(_Field(_COLUMN_STATISTICS, _STRUCT, _statistics(seen, _FORMS[type_])))
    return _struct(sorted(fields, key=lambda f: f.id)), end


def _statistics(seen: FloatStatistics, form: str) -> bytes:
    fields = [_Field(3, _I64, _packed(seen.nulls << 1))]
    if seen.low is not None and seen.high is not None:
        fields += [
            _Field(5, _BINARY, _bytes(struct.pack(form, seen.high))),
            _Field(6, _BINARY, _bytes(struct.pack(form, seen.low))),
            # A zero bound covers both zeros, of which the column may hold either.
            _Field(7, _FALSE if seen.high == 0 else _TRUE, b""),
            _Field(8, _FALSE if seen.low == 0 else _TRUE, b""),
        ]
    return _struct(fields)


@dataclass(frozen=True, slots=True)
class _Field:
    id: int
    type: int
    value: bytes


def _amend_struct(
    data: bytes, at: int, id_: int, amend: Callable[[bytes, int], tuple[bytes, int]]
) -> tuple[bytes, int]:
    """(the struct that begins at `at` with one field amended, where it ended). Each byte is read
    once: a footer has thousands, and a small append of rows a footer."""
    parts = []
    start, last = at, 0
    while data[at] != _STOP:
        last, type_, at = _field_head(data, at, last)
        if last == id_:
            parts.append(data[start:at])
            amended, at = amend(data, at)
            parts.append(amended)
            start = at
        else:
            at = _after_field(data, at, type_)
    parts.append(data[start : at + 1])
    return b"".join(parts), at + 1


def _amend_structs(
    data: bytes, at: int, amend: Callable[[int, bytes, int], tuple[bytes, int]]
) -> tuple[bytes, int]:
    """(the list of structs that begins at `at` with each entry amended, where it ended)."""
    count, type_, begin = _list_head(data, at)
    if type_ != _STRUCT:
        raise ValueError(f"a list of type {type_} in a Parquet footer, expected structs")
    parts, at = [data[at:begin]], begin
    for index in range(count):
        amended, at = amend(index, data, at)
        parts.append(amended)
    return b"".join(parts), at


def _fields(data: bytes, at: int) -> tuple[list[_Field], int]:
    """(the fields of the struct that begins at `at`, where it ends)."""
    fields: list[_Field] = []
    last = 0
    while data[at] != _STOP:
        last, type_, at = _field_head(data, at, last)
        end = _after_field(data, at, type_)
        fields.append(_Field(last, type_, data[at:end]))
        at = end
    return fields, at + 1


def _field_head(data: bytes, at: int, last: int) -> tuple[int, int, int]:
    """(number of the field that begins at `at`, its type, where its value begins). `last`: the
    number of the field before."""
    head = data[at]
    delta = head >> 4
    if delta:
        return last + delta, head & 15, at + 1
    number, at = _varint(data, at + 1)
    return _unzigzag(number), head & 15, at


def _after_field(data: bytes, at: int, type_: int) -> int:
    # Inside of a struct, a boolean is its type.
    return at if type_ in (_TRUE, _FALSE) else _after(data, at, type_)


def _struct(fields: list[_Field]) -> bytes:
    parts = []
    last = 0
    for field in fields:
        delta = field.id - last
        if 0 < delta <= 15:
            parts.append(bytes([delta << 4 | field.type]))
        else:
            parts.append(bytes([field.type]) + _packed(field.id << 1 ^ field.id >> 15))
        parts.append(field.value)
        last = field.id
    return b"".join([*parts, bytes([_STOP])])


def _after(data: bytes, at: int, type_: int) -> int:
    """Where the value of a type that begins at `at` ends."""
    match type_:
        case 1 | 2 | 3:  # a byte; in lists, a boolean is one, too
            return at + 1
        case 4 | 5 | 6:  # integers
            return _varint(data, at)[1]
        case 7:  # a double
            return at + 8
        case 8:  # bytes
            length, at = _varint(data, at)
            return at + length
        case 9 | 10:  # a list, a set
            count, of, at = _list_head(data, at)
            for _ in range(count):
                at = _after(data, at, of)
            return at
        case 11:  # a map
            count, at = _varint(data, at)
            key, value = (data[at] >> 4, data[at] & 15) if count else (0, 0)
            at += 1 if count else 0
            for _ in range(count):
                at = _after(data, _after(data, at, key), value)
            return at
        case 12:  # a struct
            last = 0
            while data[at] != _STOP:
                last, of, at = _field_head(data, at, last)
                at = _after_field(data, at, of)
            return at + 1
        case _:
            raise ValueError(f"unknown type {type_} at byte {at} of a Parquet footer")


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """(entries, their type, where the first one begins)."""
    count, type_ = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    return count, type_, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _packed(value: int) -> bytes:
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _bytes(value: bytes) -> bytes:
    return _packed(len(value)) + value


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
