"""Facts of files that are being written: from a footer to what is stored beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.index.facts.model import UNKNOWN, FileFacts
from tandem.index.facts.packed import FOLDER, name_of, pack, unpack
from tandem.index.facts.parquet.footer import facts_of
from tandem.index.facts.places import folder_of, packs
from tandem.storage.store import Store

_AT_ONCE: Final = 5_000
"""Files whose facts are packed together at most."""


def described(path: str, size: int, footer: bytes, table_id: str) -> bytes:
    """The packed facts of a file, b"" if they can narrow nothing: it has one row group, and no
    filters.

    Args:
        path: as it will be logged.
        size: in bytes.
    Raises: ValueError, IndexError, KeyError, RecursionError for a footer that is none.
    """
    facts = facts_of(path, size, footer)
    filters = any((column.filter_start != UNKNOWN).any() for column in facts.columns.values())
    return pack(facts, table_id) if filters or len(facts.group_rows) > 1 else b""


def store_packed(store: Store, described: Sequence[bytes], table_id: str) -> None:
    """Store facts of files of one folder together.

    Raises: FactsRefused, StorageError.
    """
    for first in range(0, len(described), _AT_ONCE):
        piece = described[first : first + _AT_ONCE]
        for facts, data in packs([unpack(each, table_id) for each in piece], table_id):
            store.put(place_of(facts, data), data)


def place_of(facts: FileFacts, data: bytes) -> str:
    """Where the packed facts of files of one folder lie."""
    folder = folder_of(facts.paths[0].as_py())
    name = name_of(data)[len(FOLDER) + 1 :]
    return f"{FOLDER}/{folder}/{name}" if folder else f"{FOLDER}/{name}"
