"""Facts of many files as bytes, where they are stored, and which of them to believe."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from tandem.errors import FactsRefused, ObjectNotFound, StorageError
from tandem.index.facts.footers import AT_ONCE, each_in_threads, facts_of
from tandem.index.facts.row_groups import (
    UNKNOWN,
    ColumnFacts,
    ColumnKey,
    FileFacts,
    StoredType,
    ValueKind,
    concat,
)
from tandem.index.packed import Form, PackedSection, count_in, numbers, require_end
from tandem.storage.store import ObjectInfo, Store

# Facts of many files as bytes, and the ones to believe.
#
# They lie in `_tandem/index/facts`, named by their content (`name_of`): writing them again changes
# nothing, and no name is ever used for other facts. Header: table id; numbers of files and row
# groups; the columns: name, field id, stored type. Two sections: of the files path, size, rows and
# row groups; of the row groups rows, and for each column low, high, nulls, filter start, filter
# bytes.


FOLDER: Final = "_tandem/index/facts"
LIMIT: Final = 256 << 20
"""Bytes of facts at most, packed or not."""

FORM: Final = Form(
    b"TNDMFCTS",
    3,
    16 << 20,
    "facts of data files are not believed",
    "Footers are read instead. A file of facts can be deleted at any time",
)


def name_of(data: bytes) -> str:
    """The path of packed facts, relative to the table's root."""
    return f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:32]}.facts"


def pack(facts: FileFacts, table_id: str) -> bytes:
    """The persisted form of the facts of a table's files; equal facts give equal bytes."""
    of_files = (facts.paths, facts.sizes, facts.rows, facts.groups)
    of_groups = [
        getattr(column, field.name) for column in facts.columns.values() for field in fields(column)
    ]
    header = {
        "tableId": table_id,
        "files": len(facts),
        "groups": len(facts.group_rows),
        "columns": [[key.name, key.field_id, *astuple(key.type)] for key in facts.columns],
    }
    sections = [PackedSection.of(*of_files), PackedSection.of(facts.group_rows, *of_groups)]
    return FORM.pack(header, sections)


def unpack(data: bytes, table_id: str, *, resource: str = "facts", limit: int = LIMIT) -> FileFacts:
    """Read facts back.

    Args:
        table_id: of the table whose files they must be of.
        resource: names them in errors, usually by their path.
        limit: bytes at most, when they are not compressed.
    Raises: FactsRefused.
    """
    header, sections = FORM.unpack(data, resource, limit)
    with FORM.content(resource):
        table = header["tableId"]
        if table == table_id:
            return _decode(header, sections)
    raise FORM.refused(resource, "tableId", table, table_id)


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


def _decode(header: Mapping[str, Any], sections: deque[PackedSection]) -> FileFacts:
    files, groups = (count_in(header[name]) for name in ("files", "groups"))
    keys = [_key(column) for column in header["columns"]]
    if len(set(keys)) != len(keys):
        raise ValueError("a column is there twice")
    found = sections.popleft().opened([pa.string(), *[pa.int64()] * 3], files)
    paths, sizes, rows, row_groups = found
    types = [[key.type.bounds] * 2 + [pa.int64()] * 3 for key in keys]
    group_rows, *of_groups = sections.popleft().opened([pa.int64(), *chain(*types)], groups)
    require_end(sections)
    columns = {}
    for at, key in enumerate(keys):
        low, high, *counts = of_groups[5 * at : 5 * at + 5]
        columns[key] = ColumnFacts(low, high, *map(numbers, counts))
    facts = FileFacts(
        paths, numbers(sizes), numbers(rows), numbers(row_groups), numbers(group_rows), columns
    )
    facts.check()
    return facts


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


# Where the stored facts of a table lie, and which of its files may describe a data file.
#
#     _tandem/index/facts/<folder>/<name>.facts   of data files below `<folder>/`, by the job that
#                                                 wrote them
#     _tandem/index/facts/<name>.facts            of any data files, by who has read their footers
#
# So one listing of all of them, however many data files there are, leads from a path to its facts.
# It is made when facts are wanted, and not again for `LISTED_S`. What cannot be listed or read is
# not there: facts are never needed.


WORTH_STORED: Final = 1 << 20
"""Of data files of fewer bytes no facts are stored."""
LISTED_S: Final = 60.0
"""For so many seconds a listing is not repeated."""
MOST_LISTED: Final = 20_000
"""Names of a listing at most; the facts in files beyond them are not used."""
MOST_READ: Final = 64
"""Files of facts that are read for one question."""
MOST_BYTES: Final = 32 << 20
"""Bytes of a file of facts at most, packed or not."""
_CELL: Final = 40
"""Bytes of a column in a row group at least."""


def folder_of(path: str) -> str:
    """The folder of a data file, as its path is logged, without those of partition values; "" for
    the table's root."""
    folders = path.split("/")[:-1]
    while folders and "=" in folders[-1]:
        folders.pop()
    return "/".join(folders)


def packs(parts: Sequence[FileFacts], table_id: str) -> Iterator[tuple[FileFacts, bytes]]:
    """Facts together, packed: in as many files as they need to be read again (`MOST_BYTES`). Facts
    of one file that are larger are left out."""
    columns = {key for part in parts for key in part.columns}
    groups = sum(len(part.group_rows) for part in parts)
    # Together they may take much more than each alone.
    facts = concat(parts) if len(columns) * groups * _CELL <= MOST_BYTES else None
    if facts is not None and facts.nbytes <= MOST_BYTES // 2:
        yield facts, pack(facts, table_id)
    elif len(parts) > 1:
        middle = len(parts) // 2
        yield from packs(parts[:middle], table_id)
        yield from packs(parts[middle:], table_id)


class FactsListing:
    """Which files of facts a table has. Several caches may share one. Thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, store: Store, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._listed = -float("inf")
        self._files: Mapping[str, Sequence[ObjectInfo]] = {}

    def files(self) -> Mapping[str, Sequence[ObjectInfo]]:
        """By the folder whose data files they describe, "" for any; the newest first. A new mapping
        after each look."""
        with self._lock:
            if self._now() - self._listed >= LISTED_S:
                self._listed = self._now()
                self._files = self._look()
            return self._files

    def _look(self) -> dict[str, list[ObjectInfo]]:
        found: dict[str, list[ObjectInfo]] = {}
        try:
            for meta in islice(self._store.list(FOLDER), MOST_LISTED):
                found.setdefault(folder_of(meta.path)[len(FOLDER) + 1 :], []).append(meta)
        except StorageError as error:
            _note("stored facts cannot be listed now", problem=str(error))
        for metas in found.values():
            metas.sort(key=lambda meta: -meta.modified_ms)
        return found


class StoredFacts:
    """The files of facts of a table, each read once. Not thread-safe."""

    def __init__(self, store: Store, listing: FactsListing) -> None:
        self.not_believed: Counter[str] = Counter()
        """How many were not believed, by the field that was wrong."""
        self._store, self._listing = store, listing
        self._files: Mapping[str, Sequence[ObjectInfo]] = {}
        self._known: set[str] = set()
        """The files that were read, or written."""
        self._unread: set[str] = set()
        """The other ones of the last listing."""
        self._writable = True

    def of(self, paths: pa.Array, table_id: str, *, limit: int) -> list[FileFacts]:
        """The facts in files that may describe some of these data files and were not read before.

        Args:
            paths: of data files, as logged.
            table_id: of the table whose files they must be of.
            limit: bytes of facts after which no more are read.
        """
        self._look()
        if not self._unread:
            return []
        folders = dict.fromkeys([*filter(None, map(folder_of, paths.to_pylist())), ""])
        wanted = [
            meta
            for folder in folders
            for meta in self._files.get(folder, ())
            if meta.path in self._unread
        ][:MOST_READ]
        found: list[FileFacts] = []
        for first in range(0, len(wanted), AT_ONCE):
            piece = wanted[first : first + AT_ONCE]
            read = each_in_threads(lambda meta: self._one(meta, table_id), piece)
            found += [facts for facts in read if facts is not None]
            if sum(facts.nbytes for facts in found) > limit:
                break
        return found

    def put(self, parts: Sequence[FileFacts], table_id: str) -> None:
        """Store facts of any data files, which are not read again. A store that cannot be written
        is not tried again."""
        if not parts or not self._writable:
            return
        try:
            for _, data in packs(parts, table_id):
                self._store.put(name_of(data), data)
                self._known.add(name_of(data))
        except StorageError as error:
            self._writable = False
            _note("facts are not stored", files=len(parts), problem=str(error))

    def forget(self) -> None:
        """Read files again when they are wanted."""
        self._known.clear()
        self._unread = {meta.path for metas in self._files.values() for meta in metas}

    def _look(self) -> None:
        files = self._listing.files()
        if files is not self._files:
            self._files = files
            there = {meta.path for metas in files.values() for meta in metas}
            self._known &= there
            self._unread = there - self._known

    def _one(self, meta: ObjectInfo, table_id: str) -> FileFacts | None:
        try:
            found = load(self._store, meta.path, table_id, self.not_believed, limit=MOST_BYTES)
        except StorageError as error:
            _note("stored facts cannot be read now", path=meta.path, problem=str(error))
            return None
        self._known.add(meta.path)
        self._unread.discard(meta.path)
        if found is None:
            _note("stored facts are not used", path=meta.path)
        return found


def _note(what: str, **details: object) -> None:
    import structlog  # which takes longer to import than all else here

    structlog.get_logger("tandem.index.facts").info(what, **details)


# Facts of files that are being written: from a footer to what is stored beside them.


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
