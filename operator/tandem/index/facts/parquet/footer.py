"""Takes the facts of one file from its footer, in one or two requests to the store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles.times import RebaseBoundaries
from tandem.distinct import IntArray
from tandem.errors import FactsRefused
from tandem.index.facts.model import UNKNOWN, ColumnFacts, ColumnKey, FileFacts
from tandem.index.facts.parquet.footer_format import Chunks, Footer, Leaf, parse
from tandem.index.facts.parquet.statistics import bounds, may_be_rebased
from tandem.storage.paths import object_path
from tandem.storage.store import Store

TAIL: Final = 64 << 10
"""Bytes that are read first: most footers are shorter."""
LIMIT: Final = 64 << 20
"""Bytes of a footer at most."""
_MAGIC: Final = b"PAR1"
_END: Final = 8
"""Bytes after a footer: its length and the magic."""


def read_facts(
    store: Store,
    logged_path: str,
    size: int,
    *,
    rows: int | None = None,
    columns: Collection[str] | None = None,
    tail: int = TAIL,
    limit: int = LIMIT,
) -> FileFacts:
    """The facts of one file.

    Args:
        size: in bytes, as logged.
        rows: physical rows, None if the log does not say.
        columns: physical names of the columns that are wanted; None for all.
        tail: bytes that are read first.
        limit: bytes of a footer at most.
    Raises: FactsRefused if the file is not what the log says, or no Parquet, or its footer does not
        fit; ObjectNotFound, AccessDenied, StorageError of the store.
    """
    path = object_path(logged_path)
    data, start = _footer(store, path, size, tail, limit)
    try:
        footer = parse(data, start, columns)
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        raise _refused(path, "footer", f"{type(error).__name__}: {error}"[:200]) from error
    if rows is not None and rows != footer.rows:
        raise _refused(path, "num_rows", footer.rows, f"{rows}, as logged")
    return _facts(logged_path, size, footer)


def facts_of(logged_path: str, size: int, footer: bytes) -> FileFacts:
    """The facts of a file whose footer is at hand.

    Args:
        size: of the file, in bytes.
    Raises: ValueError, IndexError, KeyError, RecursionError for a footer that is none.
    """
    return _facts(logged_path, size, parse(footer, size - _END - len(footer)))


def _footer(store: Store, path: str, size: int, tail: int, limit: int) -> tuple[bytes, int]:
    """The footer, and where it begins."""
    if size < len(_MAGIC) + _END:
        raise _refused(path, "size", size)
    first = _range(store, path, size - min(size, tail), min(size, tail))
    if first[-len(_MAGIC) :] != _MAGIC:
        raise _refused(path, "magic", first[-len(_MAGIC) :].hex(), _MAGIC.hex())
    length = int.from_bytes(first[-_END : -len(_MAGIC)], "little")
    most = min(limit, size - _END - len(_MAGIC))
    if not 0 < length <= most:
        raise _refused(path, "footer length", length, f"1 to {most} bytes")
    start = size - _END - length
    missing = length + _END - len(first)
    if missing > 0:
        first = _range(store, path, start, missing) + first
    return first[-length - _END : -_END], start


def _range(store: Store, path: str, start: int, length: int) -> bytes:
    data = store.get_range(path, start, length)
    if len(data) != length:
        raise _refused(path, "size", start + len(data), f"{start + length} at least, as logged")
    return data


def _facts(logged_path: str, size: int, footer: Footer) -> FileFacts:
    calendar = RebaseBoundaries.of(footer.properties)
    groups = len(footer.group_rows)
    return FileFacts(
        pa.array([logged_path], pa.string()), _ints([size]), _ints([footer.rows]), _ints([groups]),
        _ints(footer.group_rows), _ints(footer.group_start), _ints(footer.group_bytes),
        {
            ColumnKey(leaf.name, leaf.type, leaf.field_id): _column(leaf, chunks, calendar)
            for leaf, chunks in footer.columns
        },
    )  # fmt: skip


def _column(leaf: Leaf, chunks: Chunks, calendar: RebaseBoundaries) -> ColumnFacts:
    found = [
        bounds(low, high, leaf.type, calendar)
        for low, high in zip(chunks.low, chunks.high, strict=True)
    ]
    type_ = leaf.type.bounds
    low = pa.array([low for low, _ in found], type_)
    starts = _ints(chunks.filter_start)
    if may_be_rebased(leaf.type, calendar):
        # Its filter may hold other values than readers see.
        starts[np.asarray(low.is_null())] = UNKNOWN
    return ColumnFacts(
        low, pa.array([high for _, high in found], type_),
        _ints(chunks.nulls), starts, _ints(chunks.filter_bytes),
    )  # fmt: skip


def _ints(numbers: list[int]) -> IntArray:
    return np.array(numbers, np.int64)


def _refused(path: str, field: str, found: object, expected: str = "") -> FactsRefused:
    return FactsRefused(
        "the footer of a data file is not believed",
        resource=path,
        field=field,
        found=found,
        expected=expected or "a Parquet file that is as logged",
        remedy="The file is read without it. Check it with its writer",
    )
