"""Finds the version of a table at a time (protocol, "In-Commit Timestamps").

The time of a version is its in-commit timestamp if the table has them. Otherwise it is the commit
file's modification time, made monotone: a version is at least 1 ms later than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from tandem.delta.actions import Commit
from tandem.delta.log.listing import Listing
from tandem.delta.log.snapshot import Snapshot, in_commit_timestamps
from tandem.errors import VersionNotFound
from tandem.storage.store import ObjectInfo

ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"

ReadCommits = Callable[[Sequence[ObjectInfo]], list[Commit]]


def version_at(listing: Listing, latest: Snapshot, timestamp_ms: int, read: ReadCommits) -> int:
    """The newest version not after `timestamp_ms` (Unix milliseconds).

    `listing` is of the whole log; `read` is called for commits with in-commit timestamps only.
    Raises: VersionNotFound if the time is before the oldest version that is left.
    """
    versions = sorted(v for v in listing.commits if v >= max(listing.earliest, 0))
    if not versions:
        return latest.version
    enabled_from = _enabled_from(latest)
    if enabled_from is not None:
        since, since_ms = enabled_from
        later = [v for v in versions if v >= since]
        if timestamp_ms >= since_ms:
            found = _last_not_after(listing, later, timestamp_ms, read)
            if found is not None:
                return found
            if later and (len(later) == len(versions) or since_ms == 0):
                raise _too_early(latest, timestamp_ms, later[0])
        versions = [v for v in versions if v < since]
    times = monotonic_timestamps([listing.commits[v].modified_ms for v in versions])
    found = None
    for version, time in zip(versions, times, strict=True):
        if time <= timestamp_ms:
            found = version
    if found is None:
        raise _too_early(latest, timestamp_ms, versions[0] if versions else latest.version)
    return found


def monotonic_timestamps(times_ms: Sequence[int]) -> list[int]:
    """The modification times of successive versions, each at least 1 ms after the one before."""
    result: list[int] = []
    for time in times_ms:
        result.append(max(time, result[-1] + 1) if result else time)
    return result


def _enabled_from(snapshot: Snapshot) -> tuple[int, int] | None:
    """Version and time from which in-commit timestamps count, None without them."""
    if not in_commit_timestamps(snapshot.metadata):
        return None
    settings = snapshot.configuration
    if ENABLEMENT_VERSION not in settings or ENABLEMENT_TIMESTAMP not in settings:
        return (0, 0)  # since the table's first version
    return (int(settings[ENABLEMENT_VERSION]), int(settings[ENABLEMENT_TIMESTAMP]))


def _last_not_after(
    listing: Listing, versions: Sequence[int], timestamp_ms: int, read: ReadCommits
) -> int | None:
    """In-commit timestamps increase, so a binary search reads few commits."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        commit = read([listing.commits[versions[middle]]])[0]
        if commit.timestamp_ms <= timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return versions[low - 1] if low else None


def _shown(timestamp_ms: int) -> str:
    """A time as people read it, if the calendar reaches that far."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return moment.isoformat().replace("+00:00", "Z")


def _too_early(latest: Snapshot, timestamp_ms: int, first: int) -> VersionNotFound:
    return VersionNotFound(
        "the table has no version that old",
        resource=latest.location,
        field="timestamp",
        found=_shown(timestamp_ms),
        expected=f"a time not before version {first}, the oldest that is left",
        remedy="Log clean-up removes older versions (delta.logRetentionDuration)",
    )
