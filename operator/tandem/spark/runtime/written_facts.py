"""Facts of the files that a job writes, for the index, from the footers that it has in memory.

A task describes each file when it closes it, and what it says travels with the task's answer; the
driver stores the facts of all files before the commit that names them. Until a version names a
file, its facts mean nothing.

Nothing here fails a job: facts are never needed (X-f). The index is imported only where there is
something to describe, since most jobs of a small table write nothing that is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tandem.delta.datafiles.writer import WrittenFile
from tandem.storage.store import Store

WORTH: Final = 1 << 20
"""Files of fewer bytes are not described."""
MOST_TRAVELLING: Final = 16 << 10
"""Bytes of a file's facts that travel to the driver at most: it may hold those of many thousand
files. A task stores larger ones itself."""


class FileDescriber:
    """Describes files when they are closed, for `ParquetDataWriter`.

    Args:
        store: of the table, in which large facts are stored at once.
    """

    def __init__(self, store: Store, table_id: str) -> None:
        self._store, self._table_id = store, table_id

    def __call__(self, path: str, size: int, footer: bytes) -> bytes:
        """The packed facts of a file; b"" if there are none to pass on."""
        if size < WORTH:
            return b""
        from tandem.index.facts.files import described, store_packed

        try:
            data = described(path, size, footer, self._table_id)
            if len(data) <= MOST_TRAVELLING:
                return data
            store_packed(self._store, [data], self._table_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the file is written
            _warn("the facts of a file are not stored", path=path, problem=str(error)[:500])
        return b""


def store_facts(store: Store, table_id: str, files: Iterable[WrittenFile]) -> None:
    """Store the facts of files that tasks have written."""
    described = [file.facts for file in files if file.facts]
    if not described:
        return
    from tandem.index.facts.files import store_packed

    try:
        store_packed(store, described, table_id)
    except Exception as error:  # noqa: BLE001 - whatever it is, the files are written
        _warn("the facts of files are not stored", files=len(described), problem=str(error)[:500])


def _warn(what: str, **details: object) -> None:
    import structlog  # which takes as long as a small job

    structlog.get_logger("tandem.index.facts").warning(what, **details)
