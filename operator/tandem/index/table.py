"""A table whose entries are held in memory and followed from commit to commit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import LogPosition
from tandem.errors import CorruptLog, VersionNotFound
from tandem.index.base import Bases
from tandem.index.window import View, Window


class FollowedTable:
    """The entries of the table of a log. Thread-safe.

    Args:
        keep: so many versions before the latest one can be viewed without being loaded.
        history_s: instead, those that were superseded within so many seconds.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        log: DeltaLog,
        *,
        keep: int = 100,
        history_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self._keep, self._history_s, self._now = keep, history_s, now
        self._superseded: deque[tuple[float, int]] = deque()
        """When a version was found to be superseded, oldest first."""
        self._lock = threading.Lock()
        self._window: Window | None = None
        self._older_lock = threading.Lock()
        self._older: Window | None = None
        """Of one version before `_window`: the tasks of a long read ask for it one by one."""
        self._position: LogPosition | None = None
        self._listed = -float("inf")
        """When the last look at the log began that `_window` has the result of."""
        self.bases = Bases(log, now=now)

    def view(
        self,
        version: int | None = None,
        *,
        timestamp_ms: int | None = None,
        at_least: int | None = None,
        max_staleness_s: float = 0.0,
    ) -> View:
        """A version: the one given, the newest not after a time (Unix milliseconds), or the newest.

        Args:
            at_least: the newest version must not be before this one: one's own commit.
            max_staleness_s: so many seconds ago the newest version may have been superseded; 0 for
                the newest of all that had been committed before the call.
        Raises: TableNotFound, VersionNotFound, CorruptLog; UnsupportedFeature if rows of the table
            cannot be read.
        """
        asked = self._now()
        if timestamp_ms is not None:
            if version is not None:
                raise ValueError("a version and a timestamp cannot be combined")
            version = self.log.version_at(timestamp_ms)
        if version is not None:
            return _readable(self._with(version, asked, max_staleness_s).view(version))
        window = self._newest(asked - max_staleness_s, at_least)
        if at_least is not None and window.latest < at_least:
            raise VersionNotFound(
                f"there is no version {at_least} yet",
                resource=self.log.store.location,
                field="atLeast",
                found=f"version {window.latest}",
                expected=f"version {at_least} or a later one",
            )
        return _readable(window.view())

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        held = (self._window, self._older)
        return sum(window.nbytes for window in held if window is not None)

    @property
    def window(self) -> Window | None:
        """What is held."""
        return self._window

    @property
    def latest(self) -> int | None:
        """The newest version that is held."""
        return None if self._window is None else self._window.latest

    def _newest(self, since: float, at_least: int | None = None) -> Window:
        """The window as of a look at the log that began at or after `since`: of several callers
        that wait, one looks."""
        window = self._window
        if window is not None and self._listed >= since and window.latest >= (at_least or 0):
            return window
        with self._lock:
            window = self._window
            if window is not None and self._listed >= since and window.latest >= (at_least or 0):
                return window
            began = self._now()
            window = self._load() if window is None else self._continued(window)
            self._listed = began
            return window

    def _with(self, version: int, asked: float, max_staleness_s: float) -> Window:
        """The window, or one of its own for a version before it."""
        window = self._window
        if window is None:
            return Window(self.log.snapshot(version))
        # A version is immutable, but the log may have been replaced by that of another table.
        held = version <= window.latest
        try:
            window = self._newest(asked - max_staleness_s if held else asked)
        except CorruptLog:
            # A commit after the version that is asked for may be what is broken.
            return Window(self.log.snapshot(version))
        if window.first <= version <= window.latest:
            return window
        return self._loaded(version, window)

    def _loaded(self, version: int, window: Window) -> Window:
        """One version before a window, which is loaded once for all who wait for it."""
        with self._older_lock:
            older = self._older
            if older is not None and older.latest == version and window is self._window:
                return older
            older = Window(self.log.snapshot(version))
            with self._lock:
                # Otherwise it may be a version of a log that was replaced.
                if window is self._window and version < window.first:
                    self._older = older
            return older

    def _continued(self, window: Window) -> Window:
        later = self.log.later(window.latest, self._position)
        if later is None:
            return self._load()
        commits, position = later
        before = window.latest
        window.follow(commits)
        window.forget(self._first_kept(window, before))
        self._position = position
        return window

    def _first_kept(self, window: Window, before: int) -> int:
        """The oldest version that can still be viewed, after the latest one was `before`."""
        if self._history_s is None:
            return window.latest - self._keep
        now = self._now()
        if window.latest > before:
            self._superseded.append((now, before))
        first = window.first
        while self._superseded and self._superseded[0][0] < now - self._history_s:
            first = self._superseded.popleft()[1] + 1
        return first

    def _load(self) -> Window:
        # What was replaced is not held while its successor is read.
        self._window = self._older = None
        self._superseded.clear()
        found = self.bases.load()
        if found is None:
            snapshot = self.log.snapshot()
            found = Window(snapshot), snapshot.position
        self._window, self._position = found
        return self._window

    @property
    def base_due(self) -> bool:
        """Whether what is held should be written down for the next process."""
        window = self._window
        return window is not None and self.bases.due(window)

    def write_base(self) -> bool:
        """Write what is held of the newest version; returns whether it is there. A store that
        cannot be written is left alone for a while. Raises: AccessDenied, StorageError."""
        with self._lock:
            window, position = self._window, self._position
            if window is None:
                return False
            view = window.view()
        return self.bases.write(window, view, position)


def _readable(view: View) -> View:
    """Raises: UnsupportedFeature."""
    assert view.head.readable
    return view
