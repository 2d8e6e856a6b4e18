"""Facts of many files as bytes, and the ones to believe.

They lie in `_tandem/index/facts`, named by their content (`name_of`): writing them again changes
nothing, and no name is ever used for other facts. The form:

    8   magic            TNDMFCTS
    2   version          little-endian, as all numbers
    2   zero
    4   header bytes
    8   body bytes
    h   header           JSON: table id; numbers of files and row groups; the columns: name, field
                         id, stored type; bytes of each buffer
    b   body             zstd, of the buffers of Arrow arrays, each of them filled up to 8 bytes:
                         path, size, rows and row groups of the files; rows, start and bytes of the
                         row groups; for each column, of the row groups, low, high, nulls, filter
                         start and filter bytes
    32  SHA-256          of everything before it

Not Arrow's IPC format: a few bytes of it can ask for any amount of memory.

Facts that are cut off, changed, of another version or of another table are not believed as a whole,
and never in part.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Final

import pyarrow as pa

from tandem.errors import FactsRefused, ObjectNotFound
from tandem.index.facts.buffers import BufferReader, BufferWriter
from tandem.index.facts.model import ColumnFacts, ColumnKey, FileFacts
from tandem.index.facts.stored import StoredType, ValueKind
from tandem.storage.store import Store

FOLDER: Final = "_tandem/index/facts"
MAGIC: Final = b"TNDMFCTS"
VERSION: Final = 1
LIMIT: Final = 256 << 20
"""Bytes of facts at most, packed or not."""

_PREFIX = struct.Struct("<8sHHIQ")
_DIGEST: Final = 32
_MOST_HEADER: Final = 16 << 20


def name_of(data: bytes) -> str:
    """The path of packed facts, relative to the table's root."""
    return f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:32]}.facts"


def pack(facts: FileFacts, table_id: str) -> bytes:
    """The persisted form of the facts of a table's files; equal facts give equal bytes."""
    writer = BufferWriter()
    writer.add(facts.paths)
    for numbers in (facts.sizes, facts.rows, facts.groups, facts.group_rows, facts.group_start,
                    facts.group_bytes):  # fmt: skip
        writer.add(pa.array(numbers))
    for column in facts.columns.values():
        writer.add(column.low)
        writer.add(column.high)
        for numbers in (column.nulls, column.filter_start, column.filter_bytes):
            writer.add(pa.array(numbers))
    header = json.dumps(
        {
            "tableId": table_id,
            "files": len(facts),
            "groups": len(facts.group_rows),
            "columns": [[key.name, key.field_id, *astuple(key.type)] for key in facts.columns],
            "buffers": writer.sizes,
        },
        separators=(",", ":"),
    ).encode()
    body: bytes = pa.compress(writer.data(), codec="zstd", asbytes=True)
    data = _PREFIX.pack(MAGIC, VERSION, 0, len(header), len(body)) + header + body
    return data + hashlib.sha256(data).digest()


def unpack(data: bytes, table_id: str, *, resource: str = "facts", limit: int = LIMIT) -> FileFacts:
    """Read facts back.

    Args:
        table_id: of the table whose files they must be of.
        resource: names them in errors, usually by their path.
        limit: bytes at most, when they are not compressed.
    Raises: FactsRefused.
    """

    def refused(field: str, found: object, expected: object) -> FactsRefused:
        return FactsRefused(
            "facts of data files are not believed",
            resource=resource,
            field=field,
            found=found,
            expected=str(expected),
            remedy="Footers are read instead. A file of facts can be deleted at any time",
        )

    if len(data) < _PREFIX.size + _DIGEST:
        raise refused("size", f"{len(data)} bytes", "whole facts")
    magic, version, _, header_size, body_size = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise refused("magic", magic, MAGIC)
    if version != VERSION:
        raise refused("version", version, VERSION)
    size = _PREFIX.size + header_size + body_size + _DIGEST
    if len(data) != size:
        raise refused("size", f"{len(data)} bytes", size)
    if header_size > _MOST_HEADER:
        raise refused("header", f"{header_size} bytes", f"{_MOST_HEADER} at most")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise refused("checksum", data[-_DIGEST:].hex(), "that of the content")
    try:
        header = json.loads(data[_PREFIX.size : _PREFIX.size + header_size])
        table = header["tableId"]
        if table == table_id:
            return _decode(header, data[_PREFIX.size + header_size : -_DIGEST], limit)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError,
            OSError) as error:  # fmt: skip
        # The checksum is right: a writer other than Tandem made them.
        raise refused("content", f"{type(error).__name__}: {error}"[:200], "facts") from error
    raise refused("tableId", table, table_id)


def load(
    store: Store, path: str, table_id: str, not_believed: Counter[str], *, limit: int = LIMIT
) -> FileFacts | None:
    """The facts in a file; None if there is none, or it is not believed, which is counted in
    `not_believed` by the field that is wrong.

    Args:
        limit: bytes at most, packed or not.
    Raises: AccessDenied, StorageError of the store.
    """
    try:
        # One byte more, to see that it is longer.
        data = store.get_range(path, 0, limit + 1)
        if len(data) > limit:
            not_believed["size"] += 1
            return None
        return unpack(data, table_id, resource=path, limit=limit)
    except ObjectNotFound:
        return None
    except FactsRefused as error:
        not_believed[error.field] += 1
        return None


def _decode(header: Mapping[str, Any], body: bytes, limit: int) -> FileFacts:
    sizes = header["buffers"]
    whole = BufferReader.needed(sizes)
    if whole > limit:
        raise ValueError(f"{whole} bytes, expected {limit} at most")
    with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
        reader = BufferReader(stream.read_buffer(whole + 1), sizes)
    files, groups = (_count(header[name]) for name in ("files", "groups"))
    keys = [_key(column) for column in header["columns"]]
    if len(set(keys)) != len(keys):
        raise ValueError("a column is there twice")
    paths = reader.array(pa.string(), files)
    facts = FileFacts(
        paths, reader.numbers(files), reader.numbers(files), reader.numbers(files),
        reader.numbers(groups), reader.numbers(groups), reader.numbers(groups),
        {key: _column(reader, key, groups) for key in keys},
    )  # fmt: skip
    reader.require_end()
    facts.check()
    return facts


def _column(reader: BufferReader, key: ColumnKey, groups: int) -> ColumnFacts:
    return ColumnFacts(
        reader.array(key.type.bounds, groups), reader.array(key.type.bounds, groups),
        reader.numbers(groups), reader.numbers(groups), reader.numbers(groups),
    )  # fmt: skip


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"no number: {number}")
    return number


def _key(column: list[Any]) -> ColumnKey:
    name, field_id, physical, kind, length, precision, scale, unit = column
    texts = all(isinstance(each, str) for each in (name, physical, kind, unit))
    numbers = all(type(each) is int for each in (length, precision, scale, field_id or 0))
    if not texts or not numbers:
        raise ValueError(f"no column: {column}")
    stored = StoredType(physical, ValueKind(kind), length, precision, scale, unit)
    if not stored.known:
        raise ValueError(f"no type of a column: {stored}")
    return ColumnKey(name, stored, field_id)
