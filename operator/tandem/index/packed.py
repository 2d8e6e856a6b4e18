"""Arrow arrays as bytes: the form of stored facts, and of bases. Pure.

    8   magic            TNDMFCTS, TNDMBASE
    2   version          little-endian, as all numbers
    2   zero
    4   header bytes
    8   body bytes
    h   header           JSON, in it the bytes of each section, and of its buffers
    b   body             sections, each one zstd frame, of the buffers of Arrow arrays, each of
                         them filled up to 8 bytes
    32  SHA-256          of everything before it

Not Arrow's IPC format: a few bytes of it can ask for any amount of memory. Here lengths are known
before anything is read, and every array is validated. What is cut off, changed, of another version,
or does not fit together is not believed as a whole, and never in part.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.errors import CorruptLog, FactsRefused

PREFIX: Final = struct.Struct("<8sHHIQ")
_DIGEST: Final = 32
_FILLED: Final = 8
"""Buffers begin at multiples of so many bytes."""
_LEVEL: Final = 1

_NUMBERS: Final[dict[pa.DataType, np.dtype[Any]]] = {
    pa.int64(): np.dtype("<i8"),
    pa.int32(): np.dtype("<i4"),
    pa.float64(): np.dtype("<f8"),
}
_TEXTS: Final = (pa.string(), pa.binary())
_MOST: Final = 2**31 - 1
"""Bytes of the texts of an array, or entries of maps."""
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError,
          RecursionError, OSError, CorruptLog)  # fmt: skip
"""What content raises that is none."""


class SectionWriter:
    """Collects sections.

    Attributes:
        sizes: of each the bytes of its frame, and those of each buffer in it.
        raw: bytes of all buffers.
    """

    def __init__(self) -> None:
        self.sizes: list[tuple[int, list[int]]] = []
        self.parts: list[bytes] = []
        self.raw = 0

    def add(self, *arrays: Any) -> None:
        """A section of some arrays, of Arrow or NumPy. Raises: TypeError for a type that is not
        held."""
        self.put([each for array in arrays for each in _buffers_of(array)])

    def put(self, buffers: list[bytes]) -> None:
        content = b"".join(each + bytes(-len(each) % _FILLED) for each in buffers)
        frame = pa.Codec("zstd", _LEVEL).compress(content, asbytes=True)
        self.sizes.append((len(frame), [len(each) for each in buffers]))
        self.parts.append(frame)
        self.raw += sum(map(len, buffers))


class Section:
    """The arrays of a section, in the order in which they were added. Each raises: ValueError if
    the next one is none of that type and length."""

    def __init__(self, content: pa.Buffer, sizes: list[int]) -> None:
        ends = np.cumsum([0, *(size + -size % _FILLED for size in sizes)]).tolist()
        places = zip(ends, sizes, strict=False)
        self._buffers = iter([content.slice(at, size) for at, size in places])

    def array(self, type_: pa.DataType, length: int) -> pa.Array:
        found = self._array(type_, length)
        found.validate(full=True)
        return found

    def numbers(self, length: int) -> IntArray:
        """The next array, of integers. Raises: ValueError if one is null, too."""
        found: IntArray = self._without_null(pa.int64(), length).to_numpy()
        return found

    def flags(self, length: int) -> BoolArray:
        return np.asarray(self._without_null(pa.bool_(), length))

    def buffer(self) -> pa.Buffer:
        found = next(self._buffers, None)
        if found is None:
            raise ValueError("fewer buffers than arrays")
        return found

    def require_end(self) -> None:
        """Raises: ValueError if there are more buffers."""
        if next(self._buffers, None) is not None:
            raise ValueError("more buffers than arrays")

    def _without_null(self, type_: pa.DataType, length: int) -> pa.Array:
        found = self.array(type_, length)
        if found.null_count:
            raise ValueError("a value is missing")
        return found

    def _array(self, type_: pa.DataType, length: int) -> pa.Array:
        valid = self.buffer()
        if valid.size not in (0, _bytes_of_bits(length)):
            raise ValueError(f"{valid.size} bytes say which of {length} values are there")
        there = valid if valid.size else None
        if type_ in _NUMBERS:
            values = self._sized(_NUMBERS[type_].itemsize * length)
            return pa.Array.from_buffers(type_, length, [there, values])
        if pa.types.is_boolean(type_):
            return pa.Array.from_buffers(
                type_, length, [there, self._sized(_bytes_of_bits(length))]
            )
        if type_ in _TEXTS:
            ends, total = self._ends(length)
            return pa.Array.from_buffers(type_, length, [there, ends, self._sized(total)])
        if pa.types.is_map(type_):
            ends, total = self._ends(length)
            inner = [self._array(each, total) for each in (type_.key_type, type_.item_type)]
            fields = [type_.key_field, type_.item_field]
            entries = pa.StructArray.from_arrays(inner, fields=fields)
            return pa.Array.from_buffers(type_, length, [there, ends], children=[entries])
        children = [self._array(field.type, length) for field in type_]
        return pa.Array.from_buffers(type_, length, [there], children=children)

    def _ends(self, count: int) -> tuple[pa.Buffer, int]:
        """The offsets that lengths add up to, and the last one."""
        numbers = np.frombuffer(self._sized(4 * count), "<i4")
        ends = np.zeros(count + 1, np.int64)
        np.cumsum(numbers, out=ends[1:])
        if (numbers < 0).any() or ends[-1] > _MOST:
            raise ValueError("lengths that are none")
        return pa.py_buffer(ends.astype(np.int32)), int(ends[-1])

    def _sized(self, size: int) -> pa.Buffer:
        buffer = self.buffer()
        if buffer.size != size:
            raise ValueError(f"a buffer of {buffer.size} bytes, expected {size}")
        return buffer


class SectionReader:
    """The sections of a body, in the order in which they were added. Raises: ValueError, OSError.

    Args:
        limit: bytes at most, when it is not compressed.
    """

    def __init__(self, sizes: list[Any], body: memoryview, limit: int) -> None:
        total = 0
        for frame, buffers in sizes:
            total += sum(map(count_in, buffers)) + 0 * count_in(frame)
        if total > limit:
            raise ValueError(f"{total} bytes, expected {limit} at most")
        self._sizes, self._body, self._at = iter(sizes), body, 0

    def section(self) -> Section:
        frame, sizes = next(self._sizes, (len(self._body) + 1, []))
        if self._at + frame > len(self._body):
            raise ValueError("fewer sections than arrays")
        packed = self._body[self._at : self._at + frame]
        self._at += frame
        whole = sum(size + -size % _FILLED for size in sizes)
        # One byte more, to see that it is longer.
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            content = stream.read_buffer(whole + 1)
        if content.size != whole:
            raise ValueError(f"{content.size} bytes, expected {whole}")
        return Section(content, sizes)

    def array(self, type_: pa.DataType, length: int) -> pa.Array:
        """The array of a section that has one."""
        section = self.section()
        found = section.array(type_, length)
        section.require_end()
        return found

    def require_end(self) -> None:
        if next(self._sizes, None) is not None or self._at != len(self._body):
            raise ValueError("more sections than arrays")


@dataclass(frozen=True)
class Form:
    """What is packed so.

    Args:
        version: changes with the form, and with the meaning of what is in it.
        most_header: bytes of a header at most.
        refusal, remedy: what an error says.
    """

    magic: bytes
    version: int
    most_header: int
    refusal: str
    remedy: str

    def pack(self, header: Mapping[str, Any], sections: SectionWriter) -> bytes:
        text = json.dumps({**header, "sections": sections.sizes}, separators=(",", ":")).encode()
        body = b"".join(sections.parts)
        prefix = PREFIX.pack(self.magic, self.version, 0, len(text), len(body))
        data = b"".join((prefix, text, body))
        return data + hashlib.sha256(data).digest()

    def header(self, data: bytes, resource: str) -> dict[str, Any]:
        """The header by a beginning of `PREFIX.size + most_header` bytes, as yet without a look at
        the checksum. Raises: FactsRefused."""
        size, _ = self._prefix(data, resource)
        if size > self.most_header or len(data) < PREFIX.size + size:
            expected = f"{self.most_header} at most, all there"
            raise self.refused(resource, "header", f"{size} bytes", expected)
        try:
            return {**json.loads(data[PREFIX.size : PREFIX.size + size])}
        except _WRONG as error:
            raise self.refused(resource, "header", _text(error), "JSON") from error

    def unpack(
        self, data: bytes, resource: str, limit: int
    ) -> tuple[dict[str, Any], SectionReader]:
        """The header and the sections. Raises: FactsRefused."""
        header_size, body_size = self._prefix(data, resource)
        size = PREFIX.size + header_size + body_size + _DIGEST
        if len(data) != size:
            raise self.refused(resource, "size", f"{len(data)} bytes", size)
        whole = memoryview(data)
        if hashlib.sha256(whole[:-_DIGEST]).digest() != data[-_DIGEST:]:
            found = data[-_DIGEST:].hex()
            raise self.refused(resource, "checksum", found, "that of the content")
        header = self.header(data, resource)
        with self.content(resource):
            body = whole[PREFIX.size + header_size : -_DIGEST]
            return header, SectionReader(header["sections"], body, limit)

    @contextmanager
    def content(self, resource: str) -> Iterator[None]:
        """Reads content of which the checksum is right: a writer other than Tandem may have made
        it. Raises: FactsRefused."""
        try:
            yield
        except _WRONG as error:
            raise self.refused(resource, "content", _text(error), "what fits together") from error

    def refused(self, resource: str, field: str, found: object, expected: object) -> FactsRefused:
        return FactsRefused(
            self.refusal,
            resource=resource,
            field=field,
            found=found,
            expected=str(expected),
            remedy=self.remedy,
        )

    def _prefix(self, data: bytes, resource: str) -> tuple[int, int]:
        """Bytes of the header, and of the body."""
        if len(data) < PREFIX.size:
            raise self.refused(resource, "size", f"{len(data)} bytes", "all of it")
        magic, version, _, header_size, body_size = PREFIX.unpack_from(data)
        if magic != self.magic:
            raise self.refused(resource, "magic", magic, self.magic)
        if version != self.version:
            raise self.refused(resource, "version", version, self.version)
        return header_size, body_size


def count_in(number: Any) -> int:
    """A number of a header. Raises: ValueError if it is none."""
    if type(number) is not int or number < 0:
        raise ValueError(f"no number: {number}")
    return number


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _buffers_of(values: Any) -> list[bytes]:
    """The buffers of an array: which values are there, then the values. Texts and maps are their
    lengths and then what is in them. What a null hides is not written, so that equal arrays give
    equal bytes."""
    array = pa.array(values) if isinstance(values, np.ndarray) else values
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    type_ = array.type
    valid = _bits(np.asarray(array.is_valid())) if array.null_count else b""
    if type_ in _NUMBERS:
        filled = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return [valid, filled.astype(_NUMBERS[type_]).tobytes()]
    if pa.types.is_boolean(type_):
        return [valid, _bits(np.asarray(pc.fill_null(array, False)))]
    if type_ in _TEXTS:
        texts = pc.fill_null(array, pa.scalar(b"", pa.binary()).cast(type_))
        _, ends, data = texts.buffers()
        offsets = _offsets(ends, texts)
        content = b"" if data is None else data.slice(int(offsets[0]), int(np.ptp(offsets)))
        return [valid, np.diff(offsets).astype("<i4").tobytes(), bytes(content)]
    if pa.types.is_map(type_):
        offsets = _offsets(array.buffers()[1], array)
        start, count = int(offsets[0]), int(np.ptp(offsets))
        inner = [_buffers_of(each.slice(start, count)) for each in (array.keys, array.items)]
        return [valid, np.diff(offsets).astype("<i4").tobytes(), *inner[0], *inner[1]]
    if pa.types.is_struct(type_):
        fields = [pc.struct_field(array, [at]) for at in range(type_.num_fields)]
        return [valid, *(each for field in fields for each in _buffers_of(field))]
    raise TypeError(str(type_))


def _offsets(ends: pa.Buffer | None, array: pa.Array) -> IntArray:
    if ends is None or not len(array):
        return np.zeros(1, np.int64)
    found = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return found.astype(np.int64)


def _bits(values: npt.NDArray[Any]) -> bytes:
    return np.packbits(values, bitorder="little").tobytes()


def _bytes_of_bits(count: int) -> int:
    return (count + 7) // 8
