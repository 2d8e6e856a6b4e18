"""Where the stored facts of a table lie, and which of its files may describe a data file.

    _tandem/index/facts/<folder>/<name>.facts   of data files in `<folder>/`, by the job that wrote
                                                them
    _tandem/index/facts/<name>.facts            of any data files, by who has read their footers

So one listing of all of them, however many data files there are, leads from a path to its facts. It
is made when facts are wanted, and not again for `LISTED_S`. What cannot be listed or read is not
there: facts are never needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import structlog

from tandem.errors import StorageError
from tandem.index.facts.model import FileFacts
from tandem.index.facts.packed import FOLDER, load
from tandem.storage.store import ObjectInfo, Store

WORTH_STORED: Final = 1 << 20
"""Of data files of fewer bytes no facts are stored."""
LISTED_S: Final = 60.0
"""For so many seconds a listing is not repeated."""
MOST_LISTED: Final = 20_000
"""Names of a listing at most; the facts in files beyond them are not used."""
MOST_READ: Final = 64
"""Files of facts that are read for one question."""
MOST_BYTES: Final = 64 << 20
"""Bytes of a file of facts at most, packed or not."""

_log = structlog.get_logger("tandem.index.facts")


def folder_of(path: str) -> str:
    """The folder of a data file, as its path is logged; "" for the table's root."""
    return path.rpartition("/")[0]


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
        self._read: set[str] = set()

    def of(self, paths: Iterable[str], table_id: str) -> list[FileFacts]:
        """The facts in files that may describe some of these data files and were not read before.

        Args:
            paths: of data files, as logged.
            table_id: of the table whose files they must be of.
        """
        self._list()
        folders = dict.fromkeys([*filter(None, map(folder_of, paths)), ""])
        wanted = [
            meta
            for folder in folders
            for meta in self._files.get(folder, ())
            if meta.path not in self._read
        ]
        return self._load(wanted[:MOST_READ], table_id)

    def add(self, path: str) -> None:
        """Do not read a file: what is in it is known."""
        self._read.add(path)

    def forget(self) -> None:
        """Read files again when they are wanted."""
        self._read.clear()

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
            _log.info("stored facts cannot be listed now", problem=str(error))
        for metas in found.values():
            metas.sort(key=lambda meta: -meta.modified_ms)
        self._files = found
        self._read &= {meta.path for metas in found.values() for meta in metas}

    def _load(self, wanted: Sequence[ObjectInfo], table_id: str) -> list[FileFacts]:
        if not wanted:
            return []
        with ThreadPoolExecutor(min(8, len(wanted)), "tandem-facts") as pool:
            return [
                facts
                for facts in pool.map(lambda meta: self._one(meta, table_id), wanted)
                if facts is not None
            ]

    def _one(self, meta: ObjectInfo, table_id: str) -> FileFacts | None:
        try:
            found = load(self._store, meta.path, table_id, self.not_believed, limit=MOST_BYTES)
        except StorageError as error:
            _log.info("stored facts cannot be read now", path=meta.path, problem=str(error))
            return None
        self._read.add(meta.path)
        if found is None:
            _log.info("stored facts are not used", path=meta.path)
        return found
