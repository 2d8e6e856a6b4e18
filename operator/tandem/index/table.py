"""A table whose entries are held in memory and followed from commit to commit."""

from __future__ import annotations

import threading

from tandem.delta import protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import LogPosition
from tandem.index.window import View, Window


class IndexedTable:
    """The entries of the table of a log. Thread-safe: of several that ask at once, one reads.

    Args:
        keep: so many versions before the latest one can be viewed without being loaded.
    """

    def __init__(self, log: DeltaLog, *, keep: int = 100) -> None:
        self.log = log
        self._keep = keep
        self._lock = threading.Lock()
        self._window: Window | None = None
        self._position: LogPosition | None = None

    def view(self, version: int | None = None, *, timestamp_ms: int | None = None) -> View:
        """A version: the one given, the newest not after a time (Unix milliseconds), or the newest
        of all that had been committed before the call.

        Raises: TableNotFound, VersionNotFound, CorruptLog; UnsupportedFeature if rows of the table
            cannot be read.
        """
        if timestamp_ms is not None:
            if version is not None:
                raise ValueError("a version and a timestamp cannot be combined")
            version = self.log.version_at(timestamp_ms)
        window = self._window
        if version is None or window is None or not window.first <= version <= window.latest:
            window = self._follow(version)
        return _readable(window.view(version))

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return 0 if self._window is None else self._window.nbytes

    def _follow(self, version: int | None) -> Window:
        """The window up to the newest version; or a window of its own for a version before it."""
        with self._lock:
            window = self._window
            if window is not None and (version is None or version > window.latest):
                self._window = window = self._continued(window)
            if window is None and version is None:
                return self._load()
        if window is not None and version is None:
            return window
        if window is not None and version is not None and window.first <= version <= window.latest:
            return window
        return Window(self.log.snapshot(version))

    def _continued(self, window: Window) -> Window:
        later = self.log.later(window.latest, self._position)
        if later is None:
            return self._load()
        commits, position = later
        window.follow(commits)
        window.forget(window.latest - self._keep)
        self._position = position
        return window

    def _load(self) -> Window:
        self._window = None  # what was replaced is not held while its successor is read
        snapshot = self.log.snapshot()
        self._window, self._position = Window(snapshot), snapshot.position
        return self._window


def _readable(view: View) -> View:
    head = view.head
    protocol.check(
        head.protocol, head.metadata, protocol.OperationKind.READ, resource=head.location
    )
    return view
