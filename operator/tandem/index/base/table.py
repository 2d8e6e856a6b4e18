"""When a table's base is read and written: a window from one, and one from a window."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import LogPosition, Snapshot
from tandem.errors import ObjectNotFound
from tandem.index.base.bases import MOST_COMMITS, Bases
from tandem.index.base.packed import Base, BaseHead
from tandem.index.entries import FOREVER, Entries
from tandem.index.statistics.held import ColumnName, HeldStatistics
from tandem.index.window import View, Window

LEAST_FILES: Final = 20_000
"""Of a table of fewer files no base is written: a checkpoint of it is read in a second."""
_CHANGED: Final = 10
"""A base is replaced when one in so many entries has changed."""
_REST_S: Final = 60.0
"""Bases are not written more often."""
_FAILED_S: Final = 600.0
"""After a failure none is tried for so many seconds."""


@dataclass(frozen=True)
class _Mark:
    """What the last base had: which version, the changes of the window then, and the columns."""

    version: int
    changes: int
    columns: frozenset[ColumnName]


class BasedTable:
    """The bases of one table. Thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, log: DeltaLog, *, now: Callable[[], float]) -> None:
        self._log, self._now = log, now
        self.bases = Bases(log)
        self._mark: _Mark | None = None
        self._not_before = -float("inf")
        self._writing = threading.Lock()

    def load(self) -> tuple[Window, LogPosition | None] | None:
        """The newest version by a base and the commits after it; None without a base."""
        self._mark = None
        found = self.bases.load()
        if found is None:
            return None
        head, files = found.base.head, found.base.files
        snapshot = Snapshot(
            location=self._log.store.location,
            version=head.version,
            timestamp_ms=head.timestamp_ms,
            metadata=head.metadata,
            protocol=head.protocol,
            txns={},
            domains={},
            files=files,
        )
        statistics = found.base.statistics
        born, died = np.full(head.files, head.version), np.full(head.files, FOREVER)
        window = Window(snapshot, Entries(files, born, died, statistics))
        self._mark = _Mark(head.version, window.changes, frozenset(statistics.decoded))
        window.follow(found.commits)
        window.forget(window.latest)
        return window, found.position

    def due(self, window: Window) -> bool:
        """Whether a window is worth a new base."""
        if len(window) < LEAST_FILES or self._now() < self._not_before:
            return False
        mark = self._mark
        return (
            mark is None
            or _CHANGED * (window.changes - mark.changes) >= len(window)
            or 2 * (window.latest - mark.version) >= MOST_COMMITS
            or not window.decoded <= mark.columns
        )

    def write(self, window: Window, view: View, position: LogPosition | None) -> bool:
        """Write the base of a view, unless another thread does, or the log does not have the
        version's commit any more; returns whether it is there.

        Args:
            position: of the view's version.
        Raises: AccessDenied, StorageError.
        """
        if position is None or not self._writing.acquire(blocking=False):
            return False
        try:
            changes = window.changes
            self._not_before = self._now() + _FAILED_S
            base = self._base_of(view, position)
            if base is None or not self.bases.write(base):
                return False
            self._mark = _Mark(view.version, changes, frozenset(base.statistics.decoded))
            self._not_before = self._now() + _REST_S
            return True
        finally:
            self._writing.release()

    def _base_of(self, view: View, position: LogPosition) -> Base | None:
        later = self._log.later(view.version, position, most=MOST_COMMITS)
        if later is None:
            return None
        try:
            digest = self.bases.commit_digest(view.version)
        except ObjectNotFound:
            return None
        parts = [_live(entries, view.version) for entries in view.parts]
        files = pa.concat_tables([table for table, _ in parts])
        head = BaseHead(
            version=view.version,
            timestamp_ms=view.head.timestamp_ms,
            position=position,
            commit=digest,
            metadata=view.head.metadata,
            protocol=view.head.protocol,
            files=files.num_rows,
        )
        return Base(head, files, HeldStatistics.together([held for _, held in parts]))


def _live(entries: Entries, version: int) -> tuple[pa.Table, HeldStatistics]:
    visible = entries.visible(version)
    if visible.all():
        return entries.files, entries.statistics
    return entries.files.filter(pa.array(visible)), entries.statistics.keep(visible)
