"""`DeltaLog`: the transaction log of one table, read and written through the store port.

Finds the newest usable checkpoint, replays the commits after it, and commits; which commits there
are, and who made one, its `CommitLog` says. The pure modules of this package interpret the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from tandem.delta import protocol
from tandem.delta.actions import (
    Action,
    Commit,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
)
from tandem.delta.log import codec
from tandem.delta.log import listing as listing_
from tandem.delta.log.commit_log import CommitLog, FolderLog, MaintenanceRight, NewCommit, Put
from tandem.delta.log.listing import Listing, LogPosition
from tandem.delta.log.load import SnapshotLoader
from tandem.delta.log.snapshot import Snapshot, in_commit_timestamps
from tandem.errors import (
    AlreadyExists,
    LogGap,
    ObjectNotFound,
    OutcomeUnknown,
    VersionNotFound,
)
from tandem.storage.store import ObjectInfo, Store, side_by_side

# Finds the version of a table at a time (protocol, "In-Commit Timestamps").
#
# The time of a version is its in-commit timestamp if the table has them. Otherwise it is the
# commit file's modification time, made monotone: a version is at least 1 ms later than the one
# before.


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


class DeltaLog:
    """The log of the table at a store's root. Holds no state between calls: thread-safe.

    Args:
        commits: what decides which commits there are, for a table that a catalog manages a
            `CatalogLog`; by default the log folder.
        parallel_reads: so many requests are made at once; 1 keeps the order of store calls
            deterministic.
        check: called with each commit that `snapshot`, `update` and `commits` read; it raises to
            refuse one.
    """

    def __init__(
        self,
        store: Store,
        *,
        commits: CommitLog | None = None,
        parallel_reads: int = 16,
        check: Callable[[Commit], None] | None = None,
    ) -> None:
        self._store = store
        self.commit_log: CommitLog = FolderLog(store) if commits is None else commits
        self.parallel_reads = parallel_reads
        self._loader = SnapshotLoader(store, self.commit_log, parallel_reads, check)

    @property
    def store(self) -> Store:
        return self._store

    @property
    def parallel_requests(self) -> int:
        """How many small requests to make at once: on a local disk one, since a thread takes longer
        than such a request. `parallel_reads` is for what may be large or many."""
        return self._loader.parallel_requests

    # Reading

    def exists(self) -> bool:
        """Whether there is a table at all."""
        return self.commit_log.tail(0).latest >= 0

    def latest_version(self, hint: int | None = None) -> int:
        """The newest version.

        Args:
            hint: a version that existed a while ago, so that only what follows is listed.
        Raises: TableNotFound.
        """
        return self._loader.latest_listing(hint).latest

    def snapshot(self, version: int | None = None, *, timestamp_ms: int | None = None) -> Snapshot:
        """The table at a version, or at the newest version not after a time (Unix
        milliseconds), or now.

        A time after the last commit means the latest version, as in delta-rs.
        Raises: TableNotFound, VersionNotFound, CorruptLog, UnsupportedFeature.
        """
        if timestamp_ms is not None:
            if version is not None:
                raise ValueError("a version and a timestamp cannot be combined")
            version = self.version_at(timestamp_ms)
        try:
            loaded = self._loader.load(version)
        except ObjectNotFound:
            # A clean-up ran between our listing and our reading: once more, on a new listing.
            loaded = self._loader.load(version)
        self._check_readable(loaded)
        return loaded

    def _check_readable(self, snapshot: Snapshot) -> None:
        """Raises: UnsupportedFeature, CorruptLog."""
        protocol.check_readable(
            snapshot.protocol,
            snapshot.metadata,
            resource=self._store.location,
            managed=self.commit_log.managed,
        )

    def update(
        self,
        snapshot: Snapshot,
        version: int | None = None,
        *,
        known: Mapping[int, bytes] = MappingProxyType({}),
        seen: list[Commit] | None = None,
    ) -> Snapshot:
        """The latest version, or a given one that is not before `snapshot`, by reading only the
        commits after `snapshot`. Falls back to a full load when the log was cleaned beyond it or
        replaced.

        Args:
            known: the contents of commits that the caller has made. They are not read again; the
                latest version is then the last of them, if a catalog has ratified it.
            seen: gets the commits by which the result follows `snapshot`; none after a full load.
        Raises: as `snapshot()`.
        """
        listing = self.commit_log.after(snapshot.version, known)
        return self._follow(snapshot, listing, version, known, seen)

    def _follow(
        self,
        snapshot: Snapshot,
        listing: Listing,
        version: int | None,
        known: Mapping[int, bytes],
        seen: list[Commit] | None = None,
    ) -> Snapshot:
        """`update`, by a listing from the snapshot on. `known` are commits that were read."""
        last = listing.newest_commit if version is None else version
        commits = self._after(listing, snapshot.version, snapshot.position, last, known)
        if commits is None:
            return self.snapshot(version)
        if not commits:
            return snapshot
        advanced = snapshot.advance(commits, listing.position(last))
        advanced = self._loader.with_time(advanced)
        self._check_readable(advanced)
        if seen is not None:
            seen += commits
        return advanced

    def later(
        self, version: int, position: LogPosition | None, *, most: int | None = None
    ) -> tuple[list[Commit], LogPosition | None] | None:
        """The commits after a version, oldest first, and the position of the last one.

        Args:
            position: that of `version` when it was read.
            most: so many commits at most.
        Returns: None if the log does not continue that version any more: it was cleaned beyond it
            or replaced; or if there are more commits.
        """
        listing = self.commit_log.after(version)
        last = listing.newest_commit
        if most is not None and last - version > most:
            return None
        commits = self._after(listing, version, position, last, {})
        if commits is None:
            return None
        return commits, listing.position(last)

    def _after(
        self,
        listing: Listing,
        version: int,
        position: LogPosition | None,
        last: int,
        known: Mapping[int, bytes],
    ) -> list[Commit] | None:
        """The commits after a version up to `last`, or None; as in `later`."""
        whole = listing.missing(version + 1, last) is None
        if not (whole and listing.continues(version, position)):
            return None
        try:
            metas = [listing.commits[v] for v in range(version + 1, last + 1)]
            return self._loader.read(metas, known)
        except ObjectNotFound:
            return None

    def commits(self, first: int, last: int) -> list[Commit]:
        """Versions `first` to `last`, both included, oldest first.

        Raises: LogGap if clean-up removed some (its `first_available` is the first version from
        which the commits run on to `last`), VersionNotFound if `last` does not exist yet.
        """
        if first > last:
            return []
        listing = self.commit_log.after(first - 1)
        if last > listing.latest:
            raise self._loader.no_version(last, self.commit_log.tail(0))
        metas: list[ObjectInfo] = []
        for version in range(last, first - 1, -1):
            meta = listing.commits.get(version)
            if meta is None:
                raise self._gap(first, version)
            metas.append(meta)
        try:
            return self._loader.read(metas[::-1])
        except ObjectNotFound:
            # Removed since the listing; the next listing says which.
            left = self.commit_log.after(first - 1).commits
            missing = [v for v in range(first, last + 1) if v not in left]
            raise self._gap(first, max(missing, default=last)) from None

    def commit(self, version: int) -> Commit | None:
        """One version's commit, None if there is no such file."""
        path = self.commit_log.path(version)
        if path is None:
            return None
        data: list[bytes] = []
        meta: list[ObjectInfo] = []
        try:
            side_by_side(
                [
                    lambda: data.append(self._store.get(path)),
                    lambda: meta.append(self._store.head(path)),
                ],
                self.parallel_requests,
            )
        except ObjectNotFound:
            return None
        return codec.decode_commit(version, data[0], path=path, modified_ms=meta[0].modified_ms)

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version not after a time (Unix milliseconds). Raises: TableNotFound,
        VersionNotFound if it lies before the oldest version that is left, CorruptLog."""
        listing = self._loader.latest_listing(None, start=0)
        return version_at(
            listing,
            self._loader.load(None),
            timestamp_ms,
            lambda metas: self._loader.read(list(metas)),
        )

    def versions(self) -> tuple[int, int]:
        """The oldest version that can be rebuilt, and the newest. Raises: TableNotFound."""
        listing = self._loader.latest_listing(None, start=0)
        return listing.earliest, listing.latest

    # Writing

    def put_commit(self, version: int, actions: Sequence[Action], *, token: str) -> None:
        """Commit as `version`, if that is free.

        The first action must be the `CommitInfo`; `token` is added to it as `txnId`. A token
        stands for one content: a rebased commit needs a new one. Returns once the version is
        ours, also if the answer of the put was lost, or a retry within the client met its own
        first try.

        Raises:
            AlreadyExists: another writer has committed this version.
            OutcomeUnknown: the answer was lost and there is no such commit *yet*; the put may
                still arrive, so call again with the same token, or look with `is_ours`.
        """
        unknown: OutcomeUnknown | None = None
        try:
            if self.commit_log.put(_new_commit(version, actions, token)) is Put.OURS:
                return
        except OutcomeUnknown as error:
            unknown = error
        ours = self.commit_log.is_ours(version, token)
        if ours is None and unknown is not None:
            raise unknown
        if not ours:
            raise AlreadyExists(
                f"version {version} was committed by another writer",
                resource=f"{self._store.location}/{listing_.commit_path(version)}",
            )

    def commit_after(
        self,
        snapshot: Snapshot,
        actions: Sequence[Action],
        *,
        token: str,
        maintenance: MaintenanceRight | None = None,
        beside: Executor | None = None,
        known: dict[int, bytes] | None = None,
        seen: list[Commit] | None = None,
    ) -> Snapshot | None:
        """As `put_commit`, as the version after a snapshot. What a writer has to read after a lost
        version is read in two requests' time.

        Args:
            maintenance: what the table's catalog has to permit for it.
            beside: where the log is listed while the commit that won is read; by default a thread
                is made for that.
            known: gets the content of our commit, for `update`.
            seen: as of `update`.
        Returns: None once the version is ours; the latest version, if another writer has taken it.
        Raises: OutcomeUnknown, CatalogForbids, and as `snapshot()`.
        """
        version = snapshot.version + 1
        commit = _new_commit(version, actions, token, maintenance)
        if known is not None:
            known[version] = commit.content
        try:
            if self.commit_log.put(commit) is Put.OURS:
                return None
        except OutcomeUnknown:
            if not self.commit_log.has(version):
                raise
        return self._after_refusal(snapshot, token, beside, seen)

    def _after_refusal(
        self, snapshot: Snapshot, token: str, beside: Executor | None, seen: list[Commit] | None
    ) -> Snapshot | None:
        """What `commit_after` returns once there is a commit of the version."""
        version = snapshot.version + 1
        contents: list[bytes | None] = []
        listings: list[Listing] = []

        def read() -> None:
            contents.append(self._content(version))

        def list_() -> None:
            listings.append(self.commit_log.after(snapshot.version))

        if beside is None:
            side_by_side([read, list_], self.parallel_requests)
        else:
            listing = beside.submit(list_)
            read()
            listing.result()
        [found], [listed] = contents, listings
        if found is None:
            return self.update(snapshot, seen=seen)  # cleaned up meanwhile
        info = self._decoded(version, found).info
        if info is not None and info.txn_id == token:
            return None
        return self._follow(snapshot, listed, None, {version: found}, seen)

    def is_ours(self, version: int, token: str) -> bool:
        """Whether `version` exists and carries our token. False says nothing about a put whose
        outcome is unknown and that may still arrive."""
        return self.commit_log.is_ours(version, token) is True

    # Internals

    def _content(self, version: int) -> bytes | None:
        path = self.commit_log.path(version)
        try:
            return None if path is None else self._store.get(path)
        except ObjectNotFound:
            return None

    def _decoded(self, version: int, data: bytes) -> Commit:
        """Without its time."""
        path = listing_.commit_path(version)
        return codec.decode_commit(version, data, path=path, modified_ms=0)

    def _gap(self, first: int, missing: int) -> LogGap:
        return LogGap(
            f"version {missing} is no longer in the log",
            resource=self._store.location,
            field=listing_.commit_path(missing),
            found=f"commits from version {missing + 1}",
            expected=f"every commit from version {first}",
            remedy="Log clean-up removed it; a longer delta.logRetentionDuration keeps more",
            first_available=missing + 1,
        )


def _new_commit(
    version: int, actions: Sequence[Action], token: str, maintenance: MaintenanceRight | None = None
) -> NewCommit:
    """A commit as it is written."""
    if not actions or not isinstance(actions[0], CommitInfo):
        raise ValueError("a commit begins with its commitInfo")
    info = CommitInfo({**actions[0].body, "txnId": token})
    return NewCommit(
        version,
        codec.encode_commit([info, *actions[1:]]),
        token,
        timestamp_ms=info.in_commit_timestamp,
        domains={
            each.domain: each.configuration
            for each in actions
            if isinstance(each, DomainMetadata) and not each.removed
        },
        changes_table=any(isinstance(each, Metadata | Protocol) for each in actions),
        maintenance=maintenance,
    )
