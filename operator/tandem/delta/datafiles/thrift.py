"""Thrift's compact protocol, as Parquet's footers and headers use it.

Source: "Thrift compact protocol encoding" of apache/thrift. The bytes may be hostile: whatever
they are, reading ends within a time in proportion to their number, with a value, or with a
ValueError, IndexError or RecursionError. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

STOP: Final = 0
TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12

_LAST_SHIFT: Final = 63
"""Of the last group of bits of a 64-bit number."""


@dataclass(frozen=True, slots=True)
class EncodedField:
    """A field of a struct; `value` is encoded."""

    id: int
    type: int
    value: bytes


INT: Final = "int"
BYTES: Final = "bytes"
FLAG: Final = "flag"
Wanted = Mapping[int, Any]
"""The fields to read of a struct: number → INT, BYTES, FLAG, the fields of a struct, or, for a list
of structs, the fields of each in a list of one entry. A function reads a value itself: (data, where
it begins, its type) → (value, where it ends)."""
MOST_FIELDS: Final = 1_000
"""Fields of a struct that are kept; those of Parquet have fewer than twenty."""
MOST_ITEMS: Final = 100_000
"""Structs of a list that are kept: a byte of a list can become a hundred of memory."""


def read(data: bytes, at: int, wanted: Wanted) -> tuple[dict[int, Any], int]:
    """(the wanted fields of the struct that begins at `at`, where it ends).

    Raises: ValueError, IndexError, RecursionError.
    """
    found: dict[int, Any] = {}
    id_ = 0
    while True:
        head = data[at]
        if not head:
            return found, at + 1
        at += 1
        type_ = head & 15
        if head >> 4:
            id_ += head >> 4
        else:
            id_, at = integer(data, at)
        shape = wanted.get(id_)
        if shape is None:
            if type_ > FALSE:
                at = after(data, at, type_)
        else:
            found[id_], at = _value(data, at, type_, shape)


def _value(data: bytes, at: int, type_: int, shape: Any) -> tuple[Any, int]:
    if shape is INT and BYTE < type_ <= I64:
        return integer(data, at)
    if shape is BYTES and type_ == BINARY:
        length, at = varint(data, at)
        if length > len(data) - at:
            raise ValueError(f"{length} bytes at byte {at} of {len(data)}")
        return data[at : at + length], at + length
    if shape is FLAG and type_ in (TRUE, FALSE):
        return type_ == TRUE, at
    if callable(shape):
        found: tuple[Any, int] = shape(data, at, type_)
        return found
    if isinstance(shape, dict) and type_ == STRUCT:
        return read(data, at, shape)
    if isinstance(shape, list):
        return structs(data, at, type_, shape[0])
    raise ValueError(f"a field of type {type_} at byte {at}, expected {shape}")


def structs(data: bytes, at: int, type_: int, wanted: Wanted) -> tuple[list[dict[int, Any]], int]:
    """(the wanted fields of each struct of the list that begins at `at`, where it ends).

    Raises: ValueError, IndexError, RecursionError.
    """
    count, at = struct_list_head(data, at, type_)
    if count > MOST_ITEMS:
        raise ValueError(f"{count} structs at byte {at}, expected {MOST_ITEMS} at most")
    items = []
    for _ in range(count):
        item, at = read(data, at, wanted)
        items.append(item)
    return items, at


Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""(data, where a value begins, its type) → (the value, where it ends)."""


def fields(data: bytes, at: int) -> tuple[list[EncodedField], int]:
    """(the fields of the struct that begins at `at`, where it ends)."""
    found, _, end = fields_and(data, at, {})
    return found, end


def fields_and(
    data: bytes, at: int, inner: Mapping[int, Reader]
) -> tuple[list[EncodedField], dict[int, Any], int]:
    """(the fields of the struct that begins at `at`, the values that were read by `inner`, where it
    ends). The encoded values of the latter are left empty: each byte is read once."""
    found: list[EncodedField] = []
    values: dict[int, Any] = {}
    last = 0
    while data[at] != STOP:
        last, type_, at = field_head(data, at, last)
        reader = inner.get(last)
        value = b""
        if reader is not None:
            values[last], at = reader(data, at, type_)
        else:
            end = after_field(data, at, type_)
            value, at = data[at:end], end
        found.append(EncodedField(last, type_, value))
        if len(found) > MOST_FIELDS:
            raise ValueError(f"more than {MOST_FIELDS} fields of a struct before byte {at}")
    return found, values, at + 1


def each_of(read: Callable[[bytes, int], tuple[Any, int]]) -> Reader:
    """A reader of a list of structs, each by `read`; it returns a list."""

    def read_list(data: bytes, at: int, type_: int) -> tuple[list[Any], int]:
        count, at = struct_list_head(data, at, type_)
        found = []
        for _ in range(count):
            value, at = read(data, at)
            found.append(value)
        return found, at

    return read_list


def field_head(data: bytes, at: int, last: int) -> tuple[int, int, int]:
    """(number of the field that begins at `at`, its type, where its value begins). `last`: the
    number of the field before."""
    head = data[at]
    delta = head >> 4
    if delta:
        return last + delta, head & 15, at + 1
    number, at = integer(data, at + 1)
    return number, head & 15, at


def after_field(data: bytes, at: int, type_: int) -> int:
    """Where the value of a field ends. Inside of a struct, a boolean is its type."""
    return at if type_ in (TRUE, FALSE) else after(data, at, type_)


def after(data: bytes, at: int, type_: int) -> int:
    """Where the value of a type that begins at `at` ends; outside of a struct's fields. Numbers are
    skipped in place, since footers consist of them: a call costs more than the number."""
    match type_:
        case 4 | 5 | 6:  # integers
            while data[at] > 127:
                at += 1
            return at + 1
        case 8:  # bytes
            length, at = varint(data, at)
            return at + length
        case 12:  # a struct
            while head := data[at]:
                at += 1
                if head < 16:  # the field's number follows
                    _, at = varint(data, at)
                of = head & 15
                if 4 <= of <= 6:
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif of > FALSE:
                    at = after(data, at, of)
            return at + 1
        case 9 | 10:  # a list, a set
            count, of, at = list_head(data, at)
            if 4 <= of <= 6:
                for _ in range(count):
                    while data[at] > 127:
                        at += 1
                    at += 1
                return at
            for _ in range(count):
                at = after(data, at, of)
            return at
        case 1 | 2 | 3:  # a byte; in lists, a boolean is one, too
            return at + 1
        case 7:  # a double
            return at + 8
        case 11:  # a map
            count, at = varint(data, at)
            if count > len(data) - at:
                raise ValueError(f"{count} entries at byte {at} of {len(data)}")
            key, value = (data[at] >> 4, data[at] & 15) if count else (0, 0)
            at += 1 if count else 0
            for _ in range(count):
                at = after(data, after(data, at, key), value)
            return at
        case _:
            raise ValueError(f"unknown type {type_} at byte {at}")


def list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """(entries, their type, where the first one begins)."""
    count, type_ = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = varint(data, at)
        if count > len(data) - at:
            # An entry has a byte at least. Without this, a loop over doubles would not end.
            raise ValueError(f"{count} entries at byte {at} of {len(data)}")
    return count, type_, at


def integer(data: bytes, at: int) -> tuple[int, int]:
    """(the signed number that begins at `at`, where it ends)."""
    value, at = varint(data, at)
    return value >> 1 ^ -(value & 1), at


def struct_list_head(data: bytes, at: int, type_: int) -> tuple[int, int]:
    """(entries of a value that must be a list of structs, where the first one begins)."""
    count, of, begin = list_head(data, at)
    if type_ != LIST or (count and of != STRUCT):
        raise ValueError(f"type {type_} of {of} at byte {at}, expected a list of structs")
    return count, begin


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(the unsigned number that begins at `at`, where it ends)."""
    value = data[at]
    if value < 128:  # most are
        return value, at + 1
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError(f"a number of more than 64 bits at byte {at}")


def struct_bytes(found: list[EncodedField]) -> bytes:
    """A struct of fields, which are in the order of their numbers."""
    parts = []
    last = 0
    for field in found:
        delta = field.id - last
        if 0 < delta <= 15:
            parts.append(bytes([delta << 4 | field.type]))
        else:
            parts.append(bytes([field.type]) + varint_bytes(field.id << 1 ^ field.id >> 15))
        parts.append(field.value)
        last = field.id
    return b"".join([*parts, bytes([STOP])])


def varint_bytes(value: int) -> bytes:
    """An unsigned number."""
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def binary_bytes(value: bytes) -> bytes:
    """Bytes with their length."""
    return varint_bytes(len(value)) + value


def list_bytes(structs: Sequence[bytes]) -> bytes:
    """A list of encoded structs."""
    count = len(structs)
    head = (
        bytes([count << 4 | STRUCT])
        if count < 15
        else (bytes([0xF0 | STRUCT]) + varint_bytes(count))
    )
    return b"".join([head, *structs])


def integer_bytes(value: int) -> bytes:
    """A signed number."""
    return varint_bytes(value << 1 if value >= 0 else (-value << 1) - 1)
