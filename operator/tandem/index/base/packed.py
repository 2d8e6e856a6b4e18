"""A base as bytes: the entries of one version of a table, with what was decoded of them.

    8   magic            TNDMBASE
    2   version          little-endian, as all numbers
    2   zero
    4   header bytes
    8   body bytes
    h   header           JSON: table id, version and its time; size and time of its commit, and a
                         digest of its beginning; protocol and metadata; the number of files; the
                         columns that are there; bytes of each section, and of its buffers
    b   body             sections, each one zstd frame, of the buffers of one Arrow array
    32  SHA-256          of everything before it

`VERSION` changes with the form, and with the meaning of decoded bounds. A base that is cut off,
changed, of another version, or that does not fit together, is not believed as a whole, and never in
part: the log says the same, more slowly.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import Metadata, Protocol
from tandem.delta.log import codec
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import LogPosition
from tandem.distinct import IntArray
from tandem.errors import CorruptLog, FactsRefused
from tandem.index.statistics import BLOCK, UNKNOWN, ColumnName, HeldStatistics, PackedTexts
from tandem.pruning.bounds import (
    HeldBounds,
    NumberBounds,
    TextBounds,
    statistics_bounds,
    statistics_type,
)
from tandem.statements.types import SqlType, type_named

# Arrow arrays as the buffers that they consist of, and back. Pure.
#
# Not Arrow's IPC format: a few bytes of it can ask for any amount of memory. What is read is
# validated before it is used.


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


MAGIC: Final = b"TNDMBASE"
VERSION: Final = 1
MOST_HEADER: Final = 1 << 20
LIMIT: Final = 2 << 30
"""Bytes of a base at most, packed or not: some five million files."""

PREFIX: Final = struct.Struct("<8sHHIQ")
_DIGEST: Final = 32
_MOST_BLOCK: Final = 256 << 20
"""Bytes of a block of texts."""
_LEVEL: Final = 1


@dataclass(frozen=True)
class BaseHead:
    """What a base says of its version.

    Attributes:
        timestamp_ms: of the version, Unix milliseconds.
        position: of its commit file.
        commit: a digest of the beginning of that file.
        files: so many.
    """

    version: int
    timestamp_ms: int
    position: LogPosition
    commit: str
    metadata: Metadata
    protocol: Protocol
    files: int


@dataclass(frozen=True)
class Base:
    """A version's files, as in `Snapshot.files` but without statistics, and these."""

    head: BaseHead
    files: pa.Table
    statistics: HeldStatistics


def pack(base: Base) -> bytes | None:
    """The persisted form; None if it would be too large."""
    held = [name for name in files_.SCHEMA.names if base.files[name].null_count < base.head.files]
    packed = base.statistics.packed
    columns = {
        (name, type_): column
        for (name, type_), column in base.statistics.decoded.items()
        if column is not None and type_named(_type_name(type_)) == type_
    }
    body = _Body()
    for name in held:
        body.add(base.files[name].combine_chunks())
    body.put([bytes(packed.data)])
    for numbers in (packed.starts, packed.sizes, base.statistics.rows):
        body.add(pa.array(numbers))
    body.add(pa.array(base.statistics.tight))
    for column in columns.values():
        for array in _arrays_of(column):
            body.add(array)
    head = base.head
    header = json.dumps(
        {
            "tableId": head.metadata.id,
            "version": head.version,
            "timestampMs": head.timestamp_ms,
            "commit": {
                "modifiedMs": head.position.modified_ms,
                "size": head.position.size,
                "sha256": head.commit,
            },
            "protocol": codec.encode_action(head.protocol)["protocol"],
            "metaData": codec.encode_action(head.metadata)["metaData"],
            "files": head.files,
            "held": held,
            "columns": [[name, _type_name(type_)] for name, type_ in columns],
            "sections": body.sizes,
        },
        separators=(",", ":"),
    ).encode()
    if len(header) > MOST_HEADER or body.raw > LIMIT:
        return None
    data = b"".join(body.parts)
    data = b"".join((PREFIX.pack(MAGIC, VERSION, 0, len(header), len(data)), header, data))
    return data + hashlib.sha256(data).digest()


def head_of(data: bytes, *, resource: str = "base") -> BaseHead:
    """The head of a base by its beginning of `PREFIX.size + MOST_HEADER` bytes, or by all of it: as
    yet without a look at its checksum. Raises: FactsRefused."""
    try:
        return _head(_header(data, resource))
    except _WRONG as error:
        raise _refused(resource, "content", error, "a base") from error


def unpack(data: bytes, *, resource: str = "base", limit: int = LIMIT) -> Base:
    """Read a base back.

    Args:
        resource: names it in errors, usually by its path.
        limit: bytes at most, when it is not compressed.
    Raises: FactsRefused.
    """
    if len(data) < PREFIX.size + _DIGEST:
        raise _refused(resource, "size", f"{len(data)} bytes", "a whole base")
    header = _header(data, resource)
    _, _, _, header_size, body_size = PREFIX.unpack_from(data)
    size = PREFIX.size + header_size + body_size + _DIGEST
    if len(data) != size:
        raise _refused(resource, "size", f"{len(data)} bytes", size)
    whole = memoryview(data)
    if hashlib.sha256(whole[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise _refused(resource, "checksum", data[-_DIGEST:].hex(), "that of the content")
    try:
        return _decode(header, whole[PREFIX.size + header_size : -_DIGEST], limit)
    except _WRONG as error:
        # The checksum is right: a writer other than Tandem made it.
        raise _refused(resource, "content", error, "a base") from error


_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError,
          RecursionError, OSError, CorruptLog)  # fmt: skip
"""What content raises that is none."""


def _refused(resource: str, field: str, found: object, expected: object) -> FactsRefused:
    if isinstance(found, Exception):
        found = f"{type(found).__name__}: {found}"[:200]
    return FactsRefused(
        "a base is not believed",
        resource=resource,
        field=field,
        found=found,
        expected=str(expected),
        remedy="The log is read instead. Files below _tandem/index can be deleted at any time",
    )


class _Body:
    """Collects sections.

    Attributes:
        sizes: of each the bytes of its frame, and those of each buffer in it.
        raw: bytes of all buffers.
    """

    def __init__(self) -> None:
        self.sizes: list[tuple[int, list[int]]] = []
        self.parts: list[bytes] = []
        self.raw = 0

    def add(self, array: pa.Array) -> None:
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
        self.put(buffers_of(array))

    def put(self, buffers: list[bytes]) -> None:
        frame = pa.Codec("zstd", _LEVEL).compress(b"".join(buffers), asbytes=True)
        self.sizes.append((len(frame), [len(each) for each in buffers]))
        self.parts.append(frame)
        self.raw += sum(map(len, buffers))


def _header(data: bytes, resource: str) -> Mapping[str, Any]:
    if len(data) < PREFIX.size:
        raise _refused(resource, "size", f"{len(data)} bytes", "a whole base")
    magic, version, _, size, _ = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _refused(resource, "magic", magic, MAGIC)
    if version != VERSION:
        raise _refused(resource, "version", version, VERSION)
    if size > MOST_HEADER or len(data) < PREFIX.size + size:
        raise _refused(resource, "header", f"{size} bytes", f"{MOST_HEADER} at most, all there")
    try:
        header = json.loads(data[PREFIX.size : PREFIX.size + size])
        return {**header}
    except _WRONG as error:
        raise _refused(resource, "header", error, "JSON") from error


def _head(header: Mapping[str, Any]) -> BaseHead:
    commit = header["commit"]
    metadata = codec.decode_action("metaData", header["metaData"], path="base")
    protocol = codec.decode_action("protocol", header["protocol"], path="base")
    if not isinstance(metadata, Metadata) or not isinstance(protocol, Protocol):
        raise ValueError("no metadata or no protocol")
    if metadata.id != header["tableId"] or type(commit["sha256"]) is not str:
        raise ValueError("the table id is not that of the metadata")
    position = LogPosition(_count(commit["modifiedMs"]), _count(commit["size"]))
    return BaseHead(
        _count(header["version"]), _count(header["timestampMs"]), position, commit["sha256"],
        metadata, protocol, _count(header["files"]),
    )  # fmt: skip


class _Sections:
    """The arrays of a body, in the order in which they were added. Raises: ValueError, OSError."""

    def __init__(self, sizes: list[Any], body: memoryview, limit: int) -> None:
        total = 0
        for frame, buffers in sizes:
            total += sum(map(_count, buffers)) + 0 * _count(frame)
        if total > limit:
            raise ValueError(f"{total} bytes, expected {limit} at most")
        self._sizes, self._body, self._at = iter(sizes), body, 0

    def array(self, type_: pa.DataType, length: int) -> pa.Array:
        buffers = iter(self.buffers())
        found = array_from(type_, length, buffers)
        if next(buffers, None) is not None:
            raise ValueError("more buffers than an array has")
        return found

    def numbers(self, length: int) -> Any:
        found = self.array(pa.int64(), length)
        if found.null_count:
            raise ValueError("a number is missing")
        return found.to_numpy()

    def flags(self, length: int) -> Any:
        found = self.array(pa.bool_(), length)
        if found.null_count:
            raise ValueError("a value is missing")
        return np.asarray(found)

    def buffers(self) -> list[pa.Buffer]:
        frame, sizes = next(self._sizes, (len(self._body) + 1, []))
        if self._at + frame > len(self._body):
            raise ValueError("fewer sections than arrays")
        packed = self._body[self._at : self._at + frame]
        self._at += frame
        whole = sum(sizes)
        # One byte more, to see that it is longer.
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            content = stream.read_buffer(whole + 1)
        if content.size != whole:
            raise ValueError(f"{content.size} bytes, expected {whole}")
        ends = np.cumsum([0, *sizes]).tolist()
        return [content.slice(at, size) for at, size in zip(ends, sizes, strict=False)]

    def require_end(self) -> None:
        if next(self._sizes, None) is not None or self._at != len(self._body):
            raise ValueError("more sections than arrays")


def _decode(header: Mapping[str, Any], body: memoryview, limit: int) -> Base:
    head = _head(header)
    count = head.files
    sections = _Sections(header["sections"], body, limit)
    columns: dict[str, pa.Array] = {}
    for name in header["held"]:
        columns[name] = sections.array(files_.SCHEMA.field(name).type, count)
    if "path" not in columns or columns["path"].null_count or columns["size"].null_count:
        raise ValueError("a file without a path or a size")
    statistics = _statistics(header, sections, count)
    sections.require_end()
    files = [columns.get(field.name, pa.nulls(count, field.type)) for field in files_.SCHEMA]
    return Base(head, pa.table(files, schema=files_.SCHEMA), statistics)


def _statistics(header: Mapping[str, Any], sections: _Sections, count: int) -> HeldStatistics:
    blocks = -(-count // BLOCK)
    [data] = sections.buffers()
    starts, sizes = sections.numbers(blocks + 1), sections.numbers(blocks)
    if starts[0] != 0 or starts[-1] != data.size or (np.diff(starts) < 0).any():
        raise ValueError("blocks of texts do not fill their section")
    if (sizes < 0).any() or int(sizes.max(initial=0)) > _MOST_BLOCK:
        raise ValueError("a block of texts of no size")
    texts = PackedTexts(count, data, starts, sizes)
    texts.validate()
    rows, tight = sections.numbers(count), sections.flags(count)
    if (rows < UNKNOWN).any():
        raise ValueError("a number of rows that is none")
    columns: dict[ColumnName, HeldBounds | None] = {}
    for name, type_name in header["columns"]:
        type_ = type_named(str(type_name))
        form = statistics_type(type_)
        if form is None:
            raise ValueError(f"a column of {type_name} has no bounds")
        columns[str(name), type_] = _column(sections, type_, form, count)
    return HeldStatistics(texts, rows=rows, tight=tight, columns=columns)


def _column(sections: _Sections, type_: SqlType, form: pa.DataType, count: int) -> HeldBounds:
    bounds = pa.binary() if type_.name == "string" else _bounds_type(form)
    low, high = sections.array(bounds, count), sections.array(bounds, count)
    some_null, some_value = sections.flags(count), sections.flags(count)
    return statistics_bounds(type_, low, high, some_null, some_value)


def _arrays_of(column: HeldBounds) -> list[pa.Array]:
    """What `_column` reads."""
    if not isinstance(column, NumberBounds | TextBounds):
        raise TypeError(type(column).__name__)
    low, high = column.arrow()
    return [low, high, pa.array(column.some_null), pa.array(column.some_value)]


def _bounds_type(form: pa.DataType) -> pa.DataType:
    """The type of bounds of a column whose statistics are read as `form`."""
    if pa.types.is_floating(form):
        return pa.float64()
    return pa.int64()


def _type_name(type_: SqlType) -> str:
    if type_.name == "decimal":
        return f"decimal({type_.precision},{type_.scale})"
    return type_.name


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"no number: {number}")
    return number
