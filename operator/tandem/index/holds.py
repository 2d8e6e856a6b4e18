"""How long a version stays readable, and holds, by which a reader keeps it longer.

A commit removes no file; cleaning does, once the file was removed for as long as the table keeps
it. A hold is a file beside the table that cleaning of Tandem respects until its end. `VACUUM` of
other engines does not know it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

from tandem.delta.actions import Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.properties import files_kept_ms
from tandem.errors import InvalidSpec, LogGap, VersionNotFound
from tandem.index.window import Head, Window
from tandem.timeline.holds import Hold, hold_at, path_of

_AT_ONCE = 500
"""Commits in memory at a time."""
_MARGIN_MS = 60_000
"""Clocks may differ, and requests take time: a version this close to its end is not held."""


def _now_ms() -> int:
    return int(time.time() * 1000)


class Holds:
    """Places holds on the versions of a table. Thread-safe.

    Args:
        kept_ms: how long its LakeTable keeps removed files (`retention.files`), in milliseconds;
            None without a LakeTable, or without that field.
        now_ms: Unix milliseconds.
    """

    def __init__(
        self, log: DeltaLog, *, kept_ms: int | None = None, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._log, self._kept_ms, self._now_ms = log, kept_ms, now_ms
        self._placed: dict[tuple[str, int], Hold] = {}

    def readable_until_ms(self, head: Head, window: Window | None = None) -> int:
        """Until when cleaning leaves a version whole, if it is not held: Unix milliseconds, at
        least. The past if that cannot be known.

        Args:
            window: knows the version and all later ones; without it the log is read.
        Raises: StorageError, CorruptLog.
        """
        if window is not None and window.first <= head.version <= window.latest:
            removed_ms = window.first_removal_ms(head.version)
        else:
            removed_ms = self._first_removal_ms(head.version)
        try:
            return (self._now_ms() if removed_ms is None else removed_ms) + self._kept(head)
        except ValueError:
            return 0

    def place(self, head: Head, seconds: int) -> Hold:
        """Hold a version. It is held in fact on return. Holds last half as long again, so that
        many callers need few.

        Args:
            seconds: from now, at least; `holds.LONGEST_S` at most.
        Raises: VersionNotFound if files of it may be gone already; InvalidSpec if a property of the
            table is invalid; AccessDenied, StorageError.
        """
        try:
            kept_ms = self._kept(head)
        except ValueError as error:
            raise InvalidSpec(
                "a property of the table is invalid",
                resource=head.location,
                field="delta.deletedFileRetentionDuration",
                found=str(error),
                expected="an interval, as in interval 7 days",
            ) from error
        key = head.metadata.id, head.version
        known = self._placed.get(key)
        if known is not None and known.end_ms >= self._now_ms() + seconds * 1000:
            return known
        store = self._log.store
        path = path_of(head.version, seconds + seconds // 2, secrets.token_hex(8))
        store.put(path, b"")
        # Only now: whatever is removed later is removed after the hold was there.
        removed_ms = self._first_removal_ms(head.version)
        least_ms = self._now_ms() + _MARGIN_MS
        if removed_ms is not None and removed_ms + kept_ms < least_ms:
            store.delete([path])
            raise VersionNotFound(
                f"version {head.version} cannot be held any more",
                resource=head.location,
                field="hold",
                found="files of it were removed longer ago than the table keeps them, or soon are",
                expected="a version within the retention of files",
                remedy="Hold the newest version, or raise retention.files of the LakeTable",
            )
        hold = hold_at(path, store.head(path).modified_ms)
        assert hold is not None
        now_ms = self._now_ms()
        live = {at: each for at, each in self._placed.items() if each.end_ms > now_ms}
        self._placed = {**live, key: hold}
        return hold

    def _kept(self, head: Head) -> int:
        return files_kept_ms(head.metadata.configuration, self._kept_ms)

    def _first_removal_ms(self, version: int) -> int | None:
        """When a file was first removed after a version, by the time of the commit, which is never
        later than what cleaning counts from; long ago if the log does not say any more."""
        try:
            removals = (each for each in self._after(version) if any(each.removes))
            return next((each.timestamp_ms for each in removals), None)
        except LogGap:
            return 0

    def _after(self, version: int) -> Iterator[Commit]:
        latest = self._log.latest_version(version)
        for first in range(version + 1, latest + 1, _AT_ONCE):
            yield from self._log.commits(first, min(first + _AT_ONCE - 1, latest))
