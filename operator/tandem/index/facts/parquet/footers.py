"""Reads the footers of many files. One that is not believed is not read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from tandem.errors import FactsRefused, StorageError
from tandem.index.facts.model import UNKNOWN, FileFacts
from tandem.index.facts.parquet.footer import read_facts
from tandem.index.facts.threads import each_in_threads
from tandem.storage.store import Store

File = tuple[str, int, int]
"""Path as logged, bytes, rows (`UNKNOWN` where the log does not say)."""

_MOST: Final = 10_000
"""Files that are remembered as refused at most."""

_log = structlog.get_logger("tandem.index.facts")


class Footers:
    """The footers of a table's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused: set[tuple[str, int]] = set()

    def worth(self, files: Sequence[File]) -> list[File]:
        """Those that were not refused."""
        return [file for file in files if file[:2] not in self._refused]

    def read(self, files: Sequence[File], columns: Collection[str] | None) -> list[FileFacts]:
        """The facts of files, of those whose footers can be read and are believed."""
        found = each_in_threads(lambda file: self._one(file, columns), files)
        return [facts for facts in found if facts is not None]

    def _one(self, file: File, columns: Collection[str] | None) -> FileFacts | None:
        path, size, rows = file
        known = None if rows == UNKNOWN else rows
        try:
            return read_facts(self._store, path, size, rows=known, columns=columns)
        except FactsRefused as error:
            # What is wrong with the file, its reader says.
            _log.info("a footer is not used", path=path, problem=str(error))
            if len(self._refused) >= _MOST:
                self._refused.clear()
            self._refused.add((path, size))
        except StorageError as error:
            _log.info("a footer cannot be read now", path=path, problem=str(error))
        return None
