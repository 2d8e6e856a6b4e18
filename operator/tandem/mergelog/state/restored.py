"""Which versions of a base table a restore by time may have restored.

A restore leaves the files of its version. Spark logs the time as it was typed: without a zone, it
may be in any. Statements that change properties, or begin and end a vacuum, leave the files as they
are, so several versions may fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tandem.delta.actions import Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import VersionNotFound

_ZONES_MS: Final = 14 * 3_600_000
"""How far a time zone is from UTC, at most."""

FileKey = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Candidates:
    """`versions` ascend. Unless they are `complete`, a version that is gone may be another one."""

    versions: tuple[int, ...]
    complete: bool


def candidates(base: DeltaLog, commit: Commit, time: str) -> Candidates:
    """The versions with the files of a restore: of those at the times that its text can mean, or
    of all if none of them fits.

    Raises: CorruptLog, LogGap if the log is cleaned up meanwhile, StorageError.
    """
    span = _span(time)
    after = base.snapshot(commit.version)
    wanted, last = _keys(after), commit.version - 1
    first, _ = base.versions()
    begin = None if span is None else _version_at(base, span.earliest_ms)
    complete = not first or begin is not None
    if span is not None:
        in_time = after.timestamp_ms <= span.latest_ms
        end = last if in_time else _version_at(base, span.latest_ms)
        if end is not None:
            low = first if begin is None else min(begin, last)
            found = _with_files(base, wanted, low, min(end, last))
            if found:
                return Candidates(found, complete)
    return Candidates(_with_files(base, wanted, first, last), complete)


def _version_at(base: DeltaLog, time_ms: int) -> int | None:
    try:
        return base.snapshot(timestamp_ms=time_ms).version
    except VersionNotFound:
        return None


def _with_files(
    base: DeltaLog, wanted: frozenset[FileKey], first: int, last: int
) -> tuple[int, ...]:
    differing = set(_keys(base.snapshot(first)) ^ wanted)
    found = [] if differing else [first]
    for commit in base.commits(first + 1, last):
        added = {add.key for add in commit.adds}
        touched = added | {remove.key for remove in commit.removes}
        differing -= touched
        differing |= {key for key in touched if (key in added) != (key in wanted)}
        if not differing:
            found.append(commit.version)
    return tuple(found)


def _keys(snapshot: Snapshot) -> frozenset[FileKey]:
    return frozenset(add.key for add in snapshot.adds())


@dataclass(frozen=True, slots=True)
class _Span:
    """What a time can mean, in Unix milliseconds; both ends are included."""

    earliest_ms: int
    latest_ms: int


def _span(time: str) -> _Span | None:
    """Of milliseconds since 1970, or a text; None if it is neither."""
    if time.lstrip("-").isdecimal():
        return _Span(int(time), int(time))
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    zones_ms = 0 if found.tzinfo else _ZONES_MS
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    milliseconds = int(aware.timestamp() * 1000)
    return _Span(milliseconds - zones_ms, milliseconds + zones_ms)
