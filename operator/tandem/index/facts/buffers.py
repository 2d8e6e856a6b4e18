"""The buffers of Arrow arrays one after the other, and arrays from them.

Lengths are known before anything is read, and arrays lie in the bytes that were read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray

_FILLED: Final = 8
"""Buffers begin at multiples of so many bytes."""
_TEXTS: Final = (pa.string(), pa.binary())


class BufferWriter:
    """Collects arrays of 64-bit numbers and texts. What a null hides is not written, so that equal
    arrays give equal bytes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """Bytes of each buffer, without what fills it up."""
        self._parts: list[bytes] = []

    def add(self, array: pa.Array) -> None:
        if array.type in _TEXTS:
            self._put(_valid(array))
            texts = [b"" if text is None else text for text in array.cast(pa.binary()).to_pylist()]
            ends = np.cumsum([0, *map(len, texts)])
            self._put(ends.astype("<i4").tobytes())
            self._put(b"".join(texts))
        else:
            self._put(_valid(array))
            filled = pc.fill_null(array, pa.scalar(0, array.type)).to_numpy()
            self._put(filled.astype(filled.dtype.newbyteorder("<")).tobytes())

    def data(self) -> bytes:
        return b"".join(self._parts)

    def _put(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self._parts += [data, bytes(-len(data) % _FILLED)]


class BufferReader:
    """Arrays from the bytes of a `BufferWriter`, in the order in which they were added.

    Args:
        data: as many bytes as `needed`.
    Raises: ValueError.
    """

    def __init__(self, data: pa.Buffer, sizes: Sequence[Any]) -> None:
        if data.size != self.needed(sizes):
            raise ValueError(f"{data.size} bytes, expected {self.needed(sizes)}")
        self._buffers = self._split(data, sizes)

    @staticmethod
    def needed(sizes: Sequence[Any]) -> int:
        """Bytes of buffers of these sizes. Raises: ValueError."""
        if any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError("a buffer of no size")
        return sum(size + -size % _FILLED for size in sizes)

    def array(self, type_: pa.DataType, length: int) -> pa.Array:
        """The next array. Raises: ValueError if it is none of that type and length."""
        valid = self._next()
        buffers = [valid if valid.size else None, *self._values(type_, length)]
        if valid.size and valid.size != (length + 7) // 8:
            raise ValueError(f"{valid.size} bytes say which of {length} values are null")
        array = pa.Array.from_buffers(type_, length, buffers)
        array.validate(full=True)
        return array

    def numbers(self, length: int) -> IntArray:
        """The next array, of integers. Raises: ValueError if one is null."""
        array = self.array(pa.int64(), length)
        if array.null_count:
            raise ValueError("a number is missing")
        numbers: IntArray = array.to_numpy()
        return numbers

    def require_end(self) -> None:
        """Raises: ValueError if there are more buffers."""
        if next(self._buffers, None) is not None:
            raise ValueError("more buffers than arrays")

    def _values(self, type_: pa.DataType, length: int) -> list[pa.Buffer]:
        first = self._next()
        width, more = (4, 1) if type_ in _TEXTS else (8, 0)
        if first.size != width * (length + more):
            raise ValueError(f"{first.size} bytes of {length} values")
        return [first, self._next()] if more else [first]

    def _next(self) -> pa.Buffer:
        found = next(self._buffers, None)
        if found is None:
            raise ValueError("fewer buffers than arrays")
        return found

    @staticmethod
    def _split(data: pa.Buffer, sizes: Sequence[int]) -> Iterator[pa.Buffer]:
        at = 0
        for size in sizes:
            yield data.slice(at, size)
            at += size + -size % _FILLED


def _valid(array: pa.Array) -> bytes:
    """A bit for each value, none if no value is null."""
    if not array.null_count:
        return b""
    return np.packbits(np.asarray(array.is_valid()), bitorder="little").tobytes()
