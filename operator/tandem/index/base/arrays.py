"""Arrow arrays as the buffers that they consist of, and back. Pure.

Not Arrow's IPC format: a few bytes of it can ask for any amount of memory. What is read is
validated before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray

_NUMBERS: Final[dict[pa.DataType, np.dtype[Any]]] = {
    pa.int64(): np.dtype("<i8"),
    pa.int32(): np.dtype("<i4"),
    pa.float64(): np.dtype("<f8"),
}
_TEXTS: Final = (pa.string(), pa.binary())
_MOST: Final = 2**31 - 1
"""Bytes of the texts of an array, or entries of maps."""


def buffers_of(array: pa.Array) -> list[bytes]:
    """The buffers of an array: which values are there, then the values. Texts and maps are their
    lengths and then what is in them.

    Raises: TypeError for a type that is not held.
    """
    type_ = array.type
    valid = _packed(np.asarray(array.is_valid())) if array.null_count else b""
    if type_ in _NUMBERS:
        filled = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return [valid, filled.astype(_NUMBERS[type_]).tobytes()]
    if pa.types.is_boolean(type_):
        return [valid, _packed(np.asarray(pc.fill_null(array, False)))]
    if type_ in _TEXTS:
        _, ends, data = array.buffers()
        offsets = _offsets(ends, array)
        content = b"" if data is None else data.slice(int(offsets[0]), int(np.ptp(offsets)))
        return [valid, np.diff(offsets).astype("<i4").tobytes(), bytes(content)]
    if pa.types.is_map(type_):
        offsets = _offsets(array.buffers()[1], array)
        start, count = int(offsets[0]), int(np.ptp(offsets))
        inner = [buffers_of(each.slice(start, count)) for each in (array.keys, array.items)]
        return [valid, np.diff(offsets).astype("<i4").tobytes(), *inner[0], *inner[1]]
    if pa.types.is_struct(type_):
        fields = [pc.struct_field(array, [at]) for at in range(type_.num_fields)]
        return [valid, *(each for field in fields for each in buffers_of(field))]
    raise TypeError(str(type_))


def array_from(type_: pa.DataType, length: int, buffers: Iterator[pa.Buffer]) -> pa.Array:
    """The array that `buffers_of` made these from; they are taken from the iterator.

    Raises: ValueError if they are not those of such an array.
    """
    array = _array(type_, length, buffers)
    array.validate(full=True)
    return array


def _array(type_: pa.DataType, length: int, buffers: Iterator[pa.Buffer]) -> pa.Array:
    valid = _next(buffers)
    if valid.size not in (0, _bytes_of_bits(length)):
        raise ValueError(f"{valid.size} bytes say which of {length} values are there")
    there = valid if valid.size else None
    if type_ in _NUMBERS:
        values = _sized(_next(buffers), _NUMBERS[type_].itemsize * length)
        return pa.Array.from_buffers(type_, length, [there, values])
    if pa.types.is_boolean(type_):
        values = _sized(_next(buffers), _bytes_of_bits(length))
        return pa.Array.from_buffers(type_, length, [there, values])
    if type_ in _TEXTS:
        ends, total = _ends(_next(buffers), length)
        return pa.Array.from_buffers(type_, length, [there, ends, _sized(_next(buffers), total)])
    if pa.types.is_map(type_):
        ends, total = _ends(_next(buffers), length)
        keys = _array(type_.key_type, total, buffers)
        items = _array(type_.item_type, total, buffers)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[type_.key_field, type_.item_field]
        )
        return pa.Array.from_buffers(type_, length, [there, ends], children=[entries])
    fields = [_array(field.type, length, buffers) for field in type_]
    return pa.Array.from_buffers(type_, length, [there], children=fields)


def _offsets(ends: pa.Buffer | None, array: pa.Array) -> IntArray:
    if ends is None or not len(array):
        return np.zeros(1, np.int64)
    found = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return found.astype(np.int64)


def _ends(lengths: pa.Buffer, count: int) -> tuple[pa.Buffer, int]:
    """The offsets that lengths add up to, and the last one."""
    numbers = np.frombuffer(_sized(lengths, 4 * count), "<i4")
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(numbers, out=ends[1:])
    if (numbers < 0).any() or ends[-1] > _MOST:
        raise ValueError("lengths that are none")
    return pa.py_buffer(ends.astype(np.int32)), int(ends[-1])


def _packed(bits: npt.NDArray[Any]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _bytes_of_bits(count: int) -> int:
    return (count + 7) // 8


def _sized(buffer: pa.Buffer, size: int) -> pa.Buffer:
    if buffer.size != size:
        raise ValueError(f"a buffer of {buffer.size} bytes, expected {size}")
    return buffer


def _next(buffers: Iterator[pa.Buffer]) -> pa.Buffer:
    found = next(buffers, None)
    if found is None:
        raise ValueError("fewer buffers than arrays")
    return found
