"""`DeltaLog`: the transaction log of one table, read and written through the store port.

Finds the newest usable checkpoint, replays the commits after it, and commits by put-if-absent. The
pure modules of this package interpret the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tandem.delta import protocol
from tandem.delta.actions import Action, Commit, CommitInfo, Metadata
from tandem.delta.budget import FILE_BYTES, ROW_BYTES, TEXT_FACTOR, UNLIMITED, Account, TableBudget
from tandem.delta.log import checkpoint_read, codec, names, timetravel
from tandem.delta.log import files as files_
from tandem.delta.log.listing import Checkpoint, Listing, read_hint, read_log
from tandem.delta.log.replay import EMPTY, fold
from tandem.delta.log.snapshot import LogPosition, Snapshot, in_commit_timestamps
from tandem.errors import (
    AlreadyExists,
    CorruptLog,
    LogGap,
    ObjectNotFound,
    OutcomeUnknown,
    TableNotFound,
    VersionNotFound,
)
from tandem.storage.store import ObjectInfo, Store, side_by_side

_MANY = 16
"""So many commits are worth threads on a local disk, too."""
_INFO_BYTES = 65_536
"""The first bytes of a commit that are read for its commitInfo."""


class DeltaLog:
    """The log of the table at a store's root. Holds no state between calls: thread-safe.

    Args:
        parallel_reads: so many requests are made at once; 1 keeps the order of store calls
            deterministic.
        check: called with each commit that `snapshot`, `update` and `commits` read; it raises to
            refuse one.
        budget: what reading the table may take in memory. Beyond it, everything that reads raises
            TooLarge.
    """

    def __init__(
        self,
        store: Store,
        *,
        parallel_reads: int = 16,
        check: Callable[[Commit], None] | None = None,
        budget: TableBudget = UNLIMITED,
    ) -> None:
        self._store = store
        self._check = check
        self.budget = budget
        self.parallel_reads = parallel_reads

    @property
    def store(self) -> Store:
        return self._store

    def account(self) -> Account:
        """Of one look at the table."""
        return self.budget.account(self._store.location)

    @property
    def parallel_requests(self) -> int:
        """How many small requests to make at once: on a local disk one, since a thread takes longer
        than such a request. `parallel_reads` is for what may be large or many."""
        return 1 if getattr(self._store, "near", False) else self.parallel_reads

    # Reading

    def exists(self) -> bool:
        """Whether there is a table at all."""
        return self._list(0).latest >= 0

    def latest_version(self, hint: int | None = None) -> int:
        """The newest version.

        Args:
            hint: a version that existed a while ago, so that only what follows is listed.
        Raises: TableNotFound.
        """
        return self._latest_listing(hint).latest

    def snapshot(self, version: int | None = None, *, timestamp_ms: int | None = None) -> Snapshot:
        """The table at a version, or at the newest version not after a time (Unix
        milliseconds), or now.

        A time after the last commit means the latest version, as in delta-rs.
        Raises: TableNotFound, VersionNotFound, CorruptLog, UnsupportedFeature, TooLarge.
        """
        if timestamp_ms is not None:
            if version is not None:
                raise ValueError("a version and a timestamp cannot be combined")
            version = self.version_at(timestamp_ms)
        try:
            loaded = self._load(version)
        except ObjectNotFound:
            # A clean-up ran between our listing and our reading: once more, on a new listing.
            loaded = self._load(version)
        protocol.check_readable(loaded.protocol, loaded.metadata, resource=self._store.location)
        return loaded

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
            known: the contents of commits that the caller has written. They are not read again.
            seen: gets the commits by which the result follows `snapshot`; none after a full load.
        Raises: as `snapshot()`.
        """
        return self._follow(snapshot, self._list(snapshot.version), version, known, seen)

    def _follow(
        self,
        snapshot: Snapshot,
        listing: Listing,
        version: int | None,
        known: Mapping[int, bytes],
        seen: list[Commit] | None = None,
    ) -> Snapshot:
        """`update`, by a listing from the snapshot on. `known` are commits that were read."""
        last = max(listing.commits, default=-1) if version is None else version
        account = self.account()
        if last > snapshot.version:
            files = snapshot.num_files
            texts = max(0, snapshot.files.nbytes - ROW_BYTES * files)
            what = f"{files:,} files at version {snapshot.version}"
            account.spend(FILE_BYTES * files + TEXT_FACTOR * texts, what)
        commits = self._after(listing, snapshot.version, snapshot.position, last, known, account)
        if commits is None:
            return self.snapshot(version)
        if not commits:
            return snapshot
        self._look_at_metadata(commits, account)
        advanced = snapshot.advance(commits, _position(listing.commits[last]))
        advanced = self._with_time(advanced)
        protocol.check_readable(advanced.protocol, advanced.metadata, resource=self._store.location)
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
        listing = self._list(version)
        last = max(listing.commits, default=-1)
        if most is not None and last - version > most:
            return None
        commits = self._after(listing, version, position, last, {}, self.account())
        if commits is None:
            return None
        return commits, _position(listing.commits[last])

    def _after(
        self,
        listing: Listing,
        version: int,
        position: LogPosition | None,
        last: int,
        known: Mapping[int, bytes],
        account: Account,
    ) -> list[Commit] | None:
        """The commits after a version up to `last`, or None; as in `later`."""
        here = listing.commits.get(version)
        if (
            here is None
            or position != _position(here)
            or listing.missing(version + 1, last) is not None
        ):
            return None
        try:
            metas = [listing.commits[v] for v in range(version + 1, last + 1)]
            return self._read(metas, account, known)
        except ObjectNotFound:
            return None

    def commits(self, first: int, last: int) -> list[Commit]:
        """Versions `first` to `last`, both included, oldest first.

        Raises: LogGap if clean-up removed some (its `first_available` is the first version from
        which the commits run on to `last`), VersionNotFound if `last` does not exist yet.
        """
        if first > last:
            return []
        listing = self._list(first)
        if last > listing.latest:
            raise self._no_version(last, self._list(0))
        metas: list[ObjectInfo] = []
        for version in range(last, first - 1, -1):
            meta = listing.commits.get(version)
            if meta is None:
                raise self._gap(first, version)
            metas.append(meta)
        try:
            return self._read(metas[::-1], self.account())
        except ObjectNotFound:
            # Removed since the listing; the next listing says which.
            left = self._list(first).commits
            missing = [v for v in range(first, last + 1) if v not in left]
            raise self._gap(first, max(missing, default=last)) from None

    def commit(self, version: int) -> Commit | None:
        """One version's commit, None if there is no such file."""
        path = names.commit_path(version)
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
        return codec.decode_commit(
            version, data[0], path=path, modified_ms=meta[0].modified_ms, account=self.account()
        )

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version not after a time (Unix milliseconds). Raises: TableNotFound,
        VersionNotFound if it lies before the oldest version that is left, CorruptLog."""
        listing = self._latest_listing(None, start=0)
        return timetravel.version_at(
            listing,
            self._load(None),
            timestamp_ms,
            lambda metas: self._read(list(metas), self.account()),
        )

    def versions(self) -> tuple[int, int]:
        """The oldest version that can be rebuilt, and the newest. Raises: TableNotFound."""
        listing = self._latest_listing(None, start=0)
        return listing.earliest, listing.latest

    # Writing

    def put_commit(self, version: int, actions: Sequence[Action], *, token: str) -> None:
        """Publish a commit as `version`, if that is free.

        The first action must be the `CommitInfo`; `token` is added to it as `txnId`. A token
        stands for one content: a rebased commit needs a new one. Returns once the version is
        ours, also if the answer of the put was lost, or a retry within the client met its own
        first try.

        Raises:
            AlreadyExists: another writer has committed this version.
            OutcomeUnknown: the answer was lost and there is no such object *yet*; the put may
                still arrive, so call again with the same token, or look with `find_commit`.
        """
        path = names.commit_path(version)
        try:
            self._publish(path, _with_token(actions, token))
        except AlreadyExists:
            if not self.find_commit(version, token):
                raise
        except OutcomeUnknown:
            try:
                ours = self._token_of(version) == token
            except ObjectNotFound:
                ours = None
            if ours is None:
                raise
            if not ours:
                raise AlreadyExists(
                    f"version {version} was committed by another writer",
                    resource=f"{self._store.location}/{path}",
                ) from None

    def commit_after(
        self,
        snapshot: Snapshot,
        actions: Sequence[Action],
        *,
        token: str,
        beside: Executor | None = None,
        known: dict[int, bytes] | None = None,
        seen: list[Commit] | None = None,
    ) -> Snapshot | None:
        """As `put_commit`, as the version after a snapshot. What a writer has to read after a lost
        version is read in two requests' time.

        Args:
            beside: where the log is listed while the commit that won is read; by default a thread
                is made for that.
            known: gets the content of our commit, for `update`.
            seen: as of `update`.
        Returns: None once the version is ours; the latest version, if another writer has taken it.
        Raises: OutcomeUnknown, and as `snapshot()`.
        """
        version = snapshot.version + 1
        path = names.commit_path(version)
        content = _with_token(actions, token)
        if known is not None:
            known[version] = content
        try:
            self._publish(path, content)
        except AlreadyExists:
            pass
        except OutcomeUnknown:
            if self._bytes(path) is None:
                raise
        else:
            return None
        return self._after_refusal(snapshot, token, beside, seen)

    def _after_refusal(
        self, snapshot: Snapshot, token: str, beside: Executor | None, seen: list[Commit] | None
    ) -> Snapshot | None:
        """What `commit_after` returns once there is a commit of the version."""
        version = snapshot.version + 1
        path = names.commit_path(version)
        contents: list[bytes | None] = []
        listings: list[Listing] = []

        def read() -> None:
            contents.append(self._bytes(path))

        def list_() -> None:
            listings.append(self._list(snapshot.version))

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

    def find_commit(self, version: int, token: str) -> bool:
        """Whether `version` exists and carries our token. False says nothing about a put whose
        outcome is unknown and that may still arrive."""
        try:
            return self._token_of(version) == token
        except ObjectNotFound:
            return False

    # Internals

    def _publish(self, path: str, content: bytes) -> None:
        """Put a commit, never over another one. Raises: AlreadyExists, OutcomeUnknown."""
        self._store.put_if_absent(path, content)

    def _bytes(self, path: str) -> bytes | None:
        try:
            return self._store.get(path)
        except ObjectNotFound:
            return None

    def _token_of(self, version: int) -> str:
        path = names.commit_path(version)
        info = self._decoded(version, self._store.get(path)).info
        return info.txn_id if info else ""

    def _decoded(self, version: int, data: bytes) -> Commit:
        """Without its time."""
        path = names.commit_path(version)
        account = self.account()
        return codec.decode_commit(version, data, path=path, modified_ms=0, account=account)

    def _list(self, start: int) -> Listing:
        return read_log(self._store, start, self.account())

    def _latest_listing(self, hint: int | None, *, start: int | None = None) -> Listing:
        if start is None:
            start = hint if hint is not None else read_hint(self._store) or 0
        listing = self._list(start)
        if listing.latest < 0 and start:
            listing = self._list(0)
        if listing.latest < 0:
            raise TableNotFound(
                "there is no Delta table",
                resource=self._store.location,
                found=f"no commit and no checkpoint in {names.LOG}",
                expected="a Delta log",
                remedy="Check the location",
            )
        return listing

    def _load(self, version: int | None) -> Snapshot:
        hint = read_hint(self._store) or 0
        start = hint if version is None or hint <= version else 0
        listing = self._latest_listing(None, start=start)
        if start and listing.start:
            try:
                return self._build(listing, version)
            except (CorruptLog, VersionNotFound):
                # The hint may be wrong: decide on the whole log.
                listing = self._list(0)
        return self._build(listing, version)

    def _build(self, listing: Listing, version: int | None) -> Snapshot:
        target = listing.latest if version is None else version
        if target > listing.latest or target < 0:
            raise self._no_version(target, listing)
        first_error: CorruptLog | None = None
        for checkpoint in reversed(listing.checkpoints):
            if checkpoint.version > target:
                continue
            if listing.missing(checkpoint.version + 1, target) is not None:
                # Older checkpoints need even more commits.
                break
            try:
                return self._from_checkpoint(listing, checkpoint, target)
            except CorruptLog as error:
                first_error = first_error or error
        if listing.missing(0, target) is None:
            return self._from_commits(listing, target)
        if first_error is not None:
            raise first_error
        bases = [c.version for c in listing.checkpoints if c.version <= target]
        if not bases and listing.earliest > target:
            raise self._no_version(target, listing)
        missing = listing.missing(max(bases, default=-1) + 1, target)
        raise CorruptLog(
            f"version {target} cannot be rebuilt: a commit is missing",
            resource=self._store.location,
            field=names.commit_path(missing or 0),
            found="no such object",
            expected="every version after the last checkpoint",
            remedy="Restore the missing file, or read another version",
        )

    def _from_commits(self, listing: Listing, target: int) -> Snapshot:
        account = self.account()
        commits = self._read([listing.commits[v] for v in range(target + 1)], account)
        state = fold(EMPTY, commits)
        for found, kind in ((state.protocol, "protocol"), (state.metadata, "metaData")):
            if found is None:
                raise CorruptLog(
                    f"the log has no {kind}",
                    resource=self._store.location,
                    field=kind,
                    found=f"none in versions 0 to {target}",
                    expected="one in version 0",
                    remedy="This is not a complete Delta table: restore its first commit",
                )
        assert state.protocol is not None
        assert state.metadata is not None
        self._look_at_metadata(commits, account)
        last = commits[-1]
        return self._with_time(
            Snapshot(
                location=self._store.location,
                version=target,
                timestamp_ms=last.timestamp_ms,
                metadata=state.metadata,
                protocol=state.protocol,
                txns=state.txns,
                domains=state.live_domains,
                files=files_.from_adds(list(state.live.values())),
                info=last.info,
                position=_position(listing.commits[target]),
            )
        )

    def _from_checkpoint(self, listing: Listing, checkpoint: Checkpoint, target: int) -> Snapshot:
        account = self.account()
        try:
            content = checkpoint_read.read(
                self._store, checkpoint, account, parallel=self.parallel_reads
            )
        except ObjectNotFound as error:
            raise CorruptLog(
                "the checkpoint is gone", resource=error.resource, field=str(checkpoint.version)
            ) from error
        # The commit at the checkpoint's version still tells its time and provenance.
        own = listing.commits.get(checkpoint.version)
        info, timestamp = None, checkpoint.files[0].modified_ms
        if own is not None:
            timestamp = own.modified_ms
        metadata, protocol_ = content.state.metadata, content.state.protocol
        assert metadata is not None
        assert protocol_ is not None
        account.document(metadata.schema_string, "the schema")
        if own is not None and target == checkpoint.version:
            info = self._info(own, account)
            if info is not None and info.in_commit_timestamp is not None:
                timestamp = info.in_commit_timestamp
        base = Snapshot(
            location=self._store.location,
            version=checkpoint.version,
            timestamp_ms=timestamp,
            metadata=metadata,
            protocol=protocol_,
            txns=content.state.txns,
            domains=content.state.live_domains,
            files=content.files,
            info=info,
            position=_position(own) if own else None,
            checkpoint_version=checkpoint.version,
        )
        later = range(checkpoint.version + 1, target + 1)
        commits = self._read([listing.commits[v] for v in later], account)
        if commits:
            self._look_at_metadata(commits, account)
            base = base.advance(commits, _position(listing.commits[target]))
            base = replace(base, change=None)  # the caller has no snapshot of the checkpoint
        return self._with_time(base)

    def _with_time(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with its time. In a table without in-commit timestamps, one in a commit is
        ignored, and the file's modification time is used."""
        if snapshot.position is None or in_commit_timestamps(snapshot.metadata):
            return snapshot
        return replace(snapshot, timestamp_ms=snapshot.position.modified_ms)

    def _look_at_metadata(self, commits: Sequence[Commit], account: Account) -> None:
        """Spend what the schemas take: readers of the snapshot decode them later."""
        for commit in commits:
            for action in commit.actions:
                if isinstance(action, Metadata):
                    account.document(
                        action.schema_string, f"the schema of version {commit.version}"
                    )

    def _read(
        self,
        metas: Sequence[ObjectInfo],
        account: Account,
        known: Mapping[int, bytes] = MappingProxyType({}),
    ) -> list[Commit]:
        """The commits in their order, of which the `known` ones are not read again."""
        size = sum(meta.size for meta in metas)
        account.require(size, f"{len(metas):,} commits of {size:,} bytes")
        reads = [partial(self._read_one, meta, known, account) for meta in metas]
        few = len(reads) < _MANY
        return side_by_side(reads, self.parallel_requests if few else self.parallel_reads)

    def _info(self, meta: ObjectInfo, account: Account) -> CommitInfo | None:
        """The commitInfo of a commit whose other actions a checkpoint has. It mostly comes first:
        the rest, which can be a million files, is not read then."""
        if self._check is not None:
            return self._read([meta], account)[0].info
        start = self._store.get_range(meta.path, 0, _INFO_BYTES)
        # Without the line that is cut off.
        whole = start if meta.size <= len(start) else start[: start.rfind(b"\n") + 1]
        found = codec.decode_info(whole, path=meta.path, account=account)
        if found is None and len(whole) < meta.size:
            account.require(meta.size, f"{meta.path}: {meta.size:,} bytes")
            found = codec.decode_info(self._store.get(meta.path), path=meta.path, account=account)
        return found

    def _read_one(self, meta: ObjectInfo, known: Mapping[int, bytes], account: Account) -> Commit:
        file = names.parse(meta.path.rsplit("/", 1)[-1])
        assert file is not None  # only listed commits come here
        data = known.get(file.version)
        if data is None or len(data) != meta.size:  # it is another commit, of a replaced log
            data = self._store.get(meta.path)
        found = codec.decode_commit(
            file.version,
            data,
            path=meta.path,
            modified_ms=meta.modified_ms,
            account=account,
        )
        if self._check is not None:
            self._check(found)
        return found

    def _no_version(self, version: int, listing: Listing) -> VersionNotFound:
        return VersionNotFound(
            f"there is no version {version}",
            resource=self._store.location,
            field="version",
            found=version,
            expected=f"a version from {listing.earliest} to {listing.latest}",
            remedy="Log clean-up removes older versions; newer ones are not committed yet",
        )

    def _gap(self, first: int, missing: int) -> LogGap:
        return LogGap(
            f"version {missing} is no longer in the log",
            resource=self._store.location,
            field=names.commit_path(missing),
            found=f"commits from version {missing + 1}",
            expected=f"every commit from version {first}",
            remedy="Log clean-up removed it; a longer delta.logRetentionDuration keeps more",
            first_available=missing + 1,
        )


def _with_token(actions: Sequence[Action], token: str) -> bytes:
    """A commit as it is written."""
    if not actions or not isinstance(actions[0], CommitInfo):
        raise ValueError("a commit begins with its commitInfo")
    return codec.encode_commit([CommitInfo({**actions[0].body, "txnId": token}), *actions[1:]])


def _position(meta: ObjectInfo) -> LogPosition:
    return LogPosition(meta.modified_ms, meta.size)
