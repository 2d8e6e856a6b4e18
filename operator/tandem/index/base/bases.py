"""The bases of a table, in its store: which of them to begin with, and writing a new one.

    _tandem/index/base/<version>-<hash>.base

A base is never needed: one that is gone, cannot be read or is not believed costs the time to read
the log. It continues the log of this table only if the commit of its version is still the file that
it was: size, time and beginning.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tandem.delta.actions import Commit
from tandem.delta.log import names
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import LogPosition
from tandem.errors import CorruptLog, FactsRefused, StorageError
from tandem.index.base.packed import (
    LIMIT,
    MOST_HEADER,
    PREFIX,
    Base,
    BaseHead,
    head_of,
    pack,
    unpack,
)
from tandem.storage.store import ObjectInfo

FOLDER: Final = "_tandem/index/base"
MOST_COMMITS: Final = 1_000
"""A base with more commits after it is not begun with: a checkpoint is nearer."""
_KEPT: Final = 2
"""Bases that are left, so that one that another process reads is not deleted meanwhile."""
_BEGINNING: Final = 65_536
"""Bytes of a commit that tell it from others: its provenance, and paths of files."""
_NAME: Final = re.compile(r"(\d{20})-[0-9a-f]{32}\.base")

_log = structlog.get_logger("tandem.index.base")


@dataclass(frozen=True)
class Continued:
    """A base, the commits after it, oldest first, and the position of the last version."""

    base: Base
    commits: Sequence[Commit]
    position: LogPosition | None


class Bases:
    """The bases of the table of a log. Thread-safe.

    Args:
        limit: bytes of a base at most, packed or not.
    """

    def __init__(self, log: DeltaLog, *, limit: int = LIMIT) -> None:
        self._log, self._limit = log, limit
        self.not_believed: Counter[str] = Counter()
        """How many were not believed, by the field that was wrong."""
        self._wrong: set[str] = set()

    def load(self) -> Continued | None:
        """The newest base that the log continues; None if there is none."""
        for meta in reversed(self._list()):
            try:
                found = self._one(meta)
            except FactsRefused as error:
                self._not_believed(meta.path, error.field)
                if error.field != "version":  # that of a newer program is not ours to delete
                    self._wrong.add(meta.path)
                found = None
            except (StorageError, CorruptLog) as error:
                # The log itself may be readable, by a checkpoint after a broken commit.
                _log.info("a base cannot be used now", path=meta.path, problem=str(error))
                found = None
            if found is not None:
                return found
        return None

    def write(self, base: Base) -> bool:
        """Write a base, and delete those that it replaces; whether it is there now. One that the
        table has outgrown (`packed.LIMIT`) is not written.

        Raises: AccessDenied, StorageError.
        """
        data = pack(base)
        if data is None:
            return False
        digest = hashlib.sha256(data).hexdigest()[:32]
        path = f"{FOLDER}/{base.head.version:020d}-{digest}.base"
        self._log.store.put(path, data)
        others = [meta for meta in self._list() if meta.path != path]
        others.sort(key=lambda meta: meta.modified_ms)
        old = {meta.path for meta in others[: len(others) - _KEPT + 1]}
        self._log.store.delete(sorted(old | self._wrong - {path}))
        self._wrong.clear()
        return True

    def commit_digest(self, version: int) -> str:
        """A digest of the beginning of a commit. Raises: ObjectNotFound, StorageError."""
        path = names.commit_path(version)
        return hashlib.sha256(self._log.store.get_range(path, 0, _BEGINNING)).hexdigest()

    def _list(self) -> list[ObjectInfo]:
        """Oldest version first."""
        try:
            found = list(self._log.store.list(FOLDER))
        except StorageError as error:
            _log.debug("bases cannot be listed", problem=str(error))
            return []
        return [meta for meta in found if _NAME.fullmatch(meta.path[len(FOLDER) + 1 :])]

    def _one(self, meta: ObjectInfo) -> Continued | None:
        """Raises: FactsRefused, StorageError, CorruptLog."""
        if meta.size > self._limit:
            raise FactsRefused("a base is too large", resource=meta.path, field="size")
        store = self._log.store
        start = store.get_range(meta.path, 0, PREFIX.size + MOST_HEADER)
        head = head_of(start, resource=meta.path)
        later = self._after(head)
        if later is None:
            self._not_believed(meta.path, "commit")
            return None
        data = start if len(start) >= meta.size else store.get(meta.path)
        base = unpack(data, resource=meta.path, limit=self._limit)
        return Continued(base, *later)

    def _after(self, head: BaseHead) -> tuple[list[Commit], LogPosition | None] | None:
        later = self._log.later(head.version, head.position, most=MOST_COMMITS)
        if later is None or self.commit_digest(head.version) != head.commit:
            return None
        return later

    def _not_believed(self, path: str, field: str) -> None:
        self.not_believed[field] += 1
        _log.info("a base is not used", path=path, field=field)
