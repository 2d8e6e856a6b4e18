"""Arrow arrays as bytes: the form of stored facts, and of bases. Pure.

    8   magic            TNDMFCTS, TNDMBASE
    2   version          little-endian, as all numbers
    2   zero
    4   header bytes
    8   body bytes
    h   header           JSON, in it the bytes of each section, compressed and not
    b   body             sections, each one zstd frame of a record batch as a message of Arrow's IPC
    32  SHA-256          of everything before it

A few bytes of compressed buffers within a message can ask for any amount of memory, so those are
refused: lengths are known before anything is read. Every array is validated. What is cut off,
changed, of another version, or does not fit together is not believed as a whole, and never in part.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tandem.distinct import BoolArray, IntArray
from tandem.errors import CorruptLog, FactsRefused

PREFIX: Final = struct.Struct("<8sHHIQ")
_DIGEST: Final = 32
_LEVEL: Final = 1

# Fields of Message and RecordBatch
_HEADER, _COMPRESSION = 2, 3

_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, OSError,
          RecursionError, EOFError, struct.error, pa.ArrowException, CorruptLog)  # fmt: skip
"""What content raises that is none."""


class PackedSection(NamedTuple):
    """Arrays of one length, compressed.

    Attributes:
        frame: of zstd.
        size: bytes that it unpacks to.
    """

    frame: Any
    size: int

    @classmethod
    def of(cls, *arrays: Any) -> PackedSection:
        """Args: arrays: of Arrow or NumPy."""
        batch = pa.record_batch([_whole(each) for each in arrays], _names(len(arrays)))
        content = batch.serialize()
        return cls(pa.Codec("zstd", _LEVEL).compress(content, asbytes=True), content.size)

    def opened(self, types: Sequence[pa.DataType], length: int) -> list[pa.Array]:
        """The arrays. Raises: ValueError, OSError, EOFError if they are not of these types and of
        this length."""
        # One byte more, to see that it is longer.
        with pa.CompressedInputStream(pa.BufferReader(self.frame), "zstd") as stream:
            content = stream.read_buffer(self.size + 1)
        if content.size != self.size:
            raise ValueError(f"{content.size} bytes, expected {self.size}")
        message = pa.ipc.read_message(content)
        if _is_compressed(message.metadata):
            raise ValueError("arrays that are compressed twice")
        schema = pa.schema(list(zip(_names(len(types)), types, strict=True)))
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        if batch.num_rows != length:
            raise ValueError(f"arrays of {batch.num_rows} values, expected {length}")
        if pa.ipc.get_record_batch_size(batch) != self.size:
            raise ValueError("more than these arrays")
        found: list[pa.Array] = batch.columns
        return found


def _names(count: int) -> list[str]:
    return list(map(str, range(count)))


def _whole(values: Any) -> pa.Array:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether the buffers of a record batch are compressed: then they may ask for any amount of
    memory. Source: `Message.fbs` of apache/arrow. Arrow has checked the offsets."""
    data = bytes(metadata)

    def field(table: int, number: int) -> int:
        """Where a field of a table begins, 0 if it is not there."""
        fields = table - struct.unpack_from("<i", data, table)[0]
        place = 4 + 2 * number
        if place >= struct.unpack_from("<H", data, fields)[0]:
            return 0
        start: int = struct.unpack_from("<H", data, fields + place)[0]
        return table + start if start else 0

    def table_at(at: int) -> int:
        start: int = struct.unpack_from("<I", data, at)[0]
        return at + start

    header = field(table_at(0), _HEADER)
    return not header or field(table_at(header), _COMPRESSION) != 0


def numbers(array: pa.Array) -> IntArray:
    """Raises: ValueError if one is null."""
    found: IntArray = _complete(array).to_numpy()
    return found


def flags(array: pa.Array) -> BoolArray:
    """Raises: ValueError if one is null."""
    return np.asarray(_complete(array))


def _complete(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise ValueError("a value is missing")
    return array


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

    def pack(self, header: Mapping[str, Any], sections: Sequence[PackedSection]) -> bytes:
        sizes = [(len(frame), size) for frame, size in sections]
        text = json.dumps({**header, "sections": sizes}, separators=(",", ":")).encode()
        body = b"".join(frame for frame, _ in sections)
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
    ) -> tuple[dict[str, Any], deque[PackedSection]]:
        """The header and the sections.

        Args:
            limit: bytes of all sections at most, when they are not compressed.
        Raises: FactsRefused.
        """
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
            return header, _sections(header["sections"], body, limit)

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


def _sections(sizes: list[Any], body: memoryview, limit: int) -> deque[PackedSection]:
    """Raises: ValueError if they are larger, or are not all of the body."""
    found = deque[PackedSection]()
    end = total = 0
    for frame, size in sizes:
        start, end = end, end + count_in(frame)
        total += count_in(size)
        found.append(PackedSection(body[start:end], size))
    if total > limit:
        raise ValueError(f"{total} bytes, expected {limit} at most")
    if end != len(body):
        raise ValueError(f"sections of {end} bytes in {len(body)}")
    return found


def require_end(sections: Collection[PackedSection]) -> None:
    """Raises: ValueError if there are more."""
    if sections:
        raise ValueError("more sections than arrays")


def count_in(number: Any) -> int:
    """A number of a header. Raises: ValueError if it is none."""
    if type(number) is not int or number < 0:
        raise ValueError(f"no number: {number}")
    return number


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
