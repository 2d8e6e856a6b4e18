"""Where the stored facts of a table lie, and which of its files may describe a data file.

    _tandem/index/facts/<folder>/<name>.facts   of data files below `<folder>/`, by the job that
                                                wrote them
    _tandem/index/facts/<name>.facts            of any data files, by who has read their footers

So one listing of all of them, however many data files there are, leads from a path to its facts. It
is made when facts are wanted, and not again for `LISTED_S`. What cannot be listed or read is not
there: facts are never needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

import pyarrow as pa

from tandem.errors import StorageError
from tandem.index.facts.model import FileFacts, concat
from tandem.index.facts.packed import FOLDER, load, name_of, pack
from tandem.index.facts.threads import AT_ONCE, each_in_threads
from tandem.storage.store import ObjectInfo, Store

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


class StoredFacts:
    """The files of facts of a table, each read once. Not thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, store: Store, *, now: Callable[[], float] = time.monotonic) -> None:
        self.not_believed: Counter[str] = Counter()
        """How many were not believed, by the field that was wrong."""
        self._store, self._now = store, now
        self._listed = -float("inf")
        self._files: dict[str, list[ObjectInfo]] = {}
        """By the folder whose data files they describe; "" for any."""
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
        self._list()
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

    def _list(self) -> None:
        now = self._now()
        if now - self._listed < LISTED_S:
            return
        self._listed = now
        found: dict[str, list[ObjectInfo]] = {}
        try:
            for meta in islice(self._store.list(FOLDER), MOST_LISTED):
                found.setdefault(folder_of(meta.path)[len(FOLDER) + 1 :], []).append(meta)
        except StorageError as error:
            _note("stored facts cannot be listed now", problem=str(error))
        for metas in found.values():
            metas.sort(key=lambda meta: -meta.modified_ms)
        self._files = found
        there = {meta.path for metas in found.values() for meta in metas}
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
