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

    def groups(data: bytes) -> bytes:
        parts, head = _structs(data)
        if len(parts) != len(floats.groups):
            raise ValueError(f"{len(parts)} row groups were written, expected {len(floats.groups)}")
        found = zip(parts, floats.groups, strict=True)
        return head + b"".join(
            _amend_struct(part, _ROW_GROUP_COLUMNS, partial(_amend_columns, seen=seen))
            for part, seen in found
        )

    return _amend_struct(footer, _FILE_ROW_GROUPS, groups)


def _amend_columns(data: bytes, seen: Mapping[int, FloatStatistics]) -> bytes:
    parts, head = _structs(data)
    return head + b"".join(
        _amend_struct(part, _CHUNK_METADATA, partial(_amend_column, seen=seen.get(index)))
        for index, part in enumerate(parts)
    )


def _amend_column(data: bytes, seen: FloatStatistics | None) -> bytes:
    fields, _ = _fields(data, 0)
    [type_] = [_unzigzag(_varint(f.value, 0)[0]) for f in fields if f.id == _COLUMN_TYPE]
    if type_ not in _FORMS:
        return data
    left_out = (_COLUMN_STATISTICS, _COLUMN_ENCODING_STATS)
    fields = [f for f in fields if f.id not in left_out]
    if seen is not None:
        fields.append(_Field(_COLUMN_STATISTICS, _STRUCT, _statistics(seen, _FORMS[type_])))
    return _struct(sorted(fields, key=lambda f: f.id))


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


def _amend_struct(data: bytes, id_: int, amend: Callable[[bytes], bytes]) -> bytes:
    fields, _ = _fields(data, 0)
    return _struct([_Field(f.id, f.type, amend(f.value)) if f.id == id_ else f for f in fields])


def _structs(data: bytes) -> tuple[list[bytes], bytes]:
    """(the entries of a list of structs, what comes before them)."""
    count, type_, at = _list_head(data, 0)
    if type_ != _STRUCT:
        raise ValueError(f"a list of type {type_} in a Parquet footer, expected structs")
    head, parts = data[:at], []
    for _ in range(count):
        end = _after(data, at, _STRUCT)
        parts.append(data[at:end])
        at = end
    return parts, head


def _fields(data: bytes, at: int) -> tuple[list[_Field], int]:
    """(the fields of the struct that begins at `at`, where it ends)."""
    fields: list[_Field] = []
    last = 0
    while (head := data[at]) != _STOP:
        at += 1
        type_, delta = head & 15, head >> 4
        if delta:
            last += delta
        else:
            number, at = _varint(data, at)
            last = _unzigzag(number)
        # Inside of a struct, a boolean is its type.
        end = at if type_ in (_TRUE, _FALSE) else _after(data, at, type_)
        fields.append(_Field(last, type_, data[at:end]))
        at = end
    return fields, at + 1


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
            return _fields(data, at)[1]
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
