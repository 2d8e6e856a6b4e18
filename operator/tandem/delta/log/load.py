"""Loading a snapshot: the newest usable checkpoint, and the commits after it.

Reads only; `tandem.delta.log.delta_log` says when, follows a snapshot that is there, and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tandem.delta.actions import Commit, CommitInfo
from tandem.delta.log import checkpoint as checkpoint_read
from tandem.delta.log import codec
from tandem.delta.log import files as files_
from tandem.delta.log import listing as listing_
from tandem.delta.log.commit_log import CommitLog
from tandem.delta.log.files import EMPTY_REPLAY, fold
from tandem.delta.log.listing import VOUCHED, Checkpoint, Listing, read_hint
from tandem.delta.log.snapshot import Snapshot, in_commit_timestamps
from tandem.errors import CorruptLog, ObjectNotFound, TableNotFound, VersionNotFound
from tandem.storage.store import ObjectInfo, Store, side_by_side

_MANY = 16
"""So many commits are worth threads on a local disk, too."""
_INFO_BYTES = 65_536
"""The first bytes of a commit that are read for its commitInfo."""


class SnapshotLoader:
    """Reads what a log has. The arguments are those of `DeltaLog`; thread-safe, as it."""

    def __init__(
        self,
        store: Store,
        commits: CommitLog,
        parallel_reads: int,
        check: Callable[[Commit], None] | None,
    ) -> None:
        self._store = store
        self._commits = commits
        self._check = check
        self._parallel_reads = parallel_reads

    @property
    def parallel_requests(self) -> int:
        """As in `DeltaLog`."""
        return 1 if getattr(self._store, "near", False) else self._parallel_reads

    def latest_listing(self, hint: int | None, *, start: int | None = None) -> Listing:
        if start is None:
            start = hint if hint is not None else read_hint(self._store) or 0
        listing = self._commits.tail(start)
        if listing.latest < 0 and start:
            listing = self._commits.tail(0)
        if listing.latest < 0:
            raise TableNotFound(
                "there is no Delta table",
                resource=self._store.location,
                found=f"no commit and no checkpoint in {listing_.LOG}",
                expected="a Delta log",
                remedy="Check the location",
            )
        return listing

    def load(self, version: int | None) -> Snapshot:
        hint = read_hint(self._store) or 0
        start = hint if version is None or hint <= version else 0
        listing = self.latest_listing(None, start=start)
        if start and listing.start:
            try:
                return self._build(listing, version)
            except (CorruptLog, VersionNotFound):
                # The hint may be wrong: decide on the whole log.
                listing = self._commits.tail(0)
        return self._build(listing, version)

    def _build(self, listing: Listing, version: int | None) -> Snapshot:
        target = listing.latest if version is None else version
        if target > listing.latest or target < 0:
            raise self.no_version(target, listing)
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
        if listing.earliest > target:
            # Whole from there on: what is missing before it fell to clean-up, which may leave
            # older checkpoints.
            raise self.no_version(target, listing)
        bases = [c.version for c in listing.checkpoints if c.version <= target]
        missing = listing.missing(max(bases, default=-1) + 1, target)
        raise CorruptLog(
            f"version {target} cannot be rebuilt: a commit is missing",
            resource=self._store.location,
            field=listing_.commit_path(missing or 0),
            found="no such object",
            expected="every version after the last checkpoint",
            remedy="Restore the missing file, or read another version",
        )

    def _from_commits(self, listing: Listing, target: int) -> Snapshot:
        commits = self.read([listing.commits[v] for v in range(target + 1)])
        state = fold(EMPTY_REPLAY, commits)
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
        last = commits[-1]
        return self.with_time(
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
                position=listing.position(target),
            )
        )

    def _from_checkpoint(self, listing: Listing, checkpoint: Checkpoint, target: int) -> Snapshot:
        try:
            content = checkpoint_read.read(self._store, checkpoint, parallel=self._parallel_reads)
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
        if own is not None and target == checkpoint.version:
            info = self._info(own)
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
            position=listing.position(checkpoint.version) if own else None,
            checkpoint_version=checkpoint.version,
        )
        later = range(checkpoint.version + 1, target + 1)
        commits = self.read([listing.commits[v] for v in later])
        if commits:
            base = base.advance(commits, listing.position(target))
            base = replace(base, change=None)  # the caller has no snapshot of the checkpoint
        return self.with_time(base)

    def with_time(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with its time. In a table without in-commit timestamps, one in a commit is
        ignored, and the file's modification time is used."""
        if snapshot.position in (None, VOUCHED) or in_commit_timestamps(snapshot.metadata):
            return snapshot
        assert snapshot.position is not None
        return replace(snapshot, timestamp_ms=snapshot.position.modified_ms)

    def read(
        self,
        metas: Sequence[ObjectInfo],
        known: Mapping[int, bytes] = MappingProxyType({}),
    ) -> list[Commit]:
        """The commits in their order, of which the `known` ones are not read again."""
        reads = [partial(self._read_one, meta, known) for meta in metas]
        few = len(reads) < _MANY
        return side_by_side(reads, self.parallel_requests if few else self._parallel_reads)

    def _info(self, meta: ObjectInfo) -> CommitInfo | None:
        """The commitInfo of a commit whose other actions a checkpoint has. It mostly comes first:
        the rest, which can be a million files, is not read then."""
        if self._check is not None:
            return self.read([meta])[0].info
        start = self._store.get_range(meta.path, 0, _INFO_BYTES)
        # Without the line that is cut off.
        whole = start if meta.size <= len(start) else start[: start.rfind(b"\n") + 1]
        found = codec.decode_info(whole, path=meta.path)
        if found is None and len(whole) < meta.size:
            found = codec.decode_info(self._store.get(meta.path), path=meta.path)
        return found

    def _read_one(self, meta: ObjectInfo, known: Mapping[int, bytes]) -> Commit:
        file = listing_.parse(meta.path.rsplit("/", 1)[-1])
        assert file is not None  # only listed commits come here
        data = known.get(file.version)
        if data is None or len(data) != meta.size:  # it is another commit, of a replaced log
            data = self._store.get(meta.path)
        found = codec.decode_commit(
            file.version, data, path=meta.path, modified_ms=meta.modified_ms
        )
        if self._check is not None:
            self._check(found)
        return found

    def no_version(self, version: int, listing: Listing) -> VersionNotFound:
        return VersionNotFound(
            f"there is no version {version}",
            resource=self._store.location,
            field="version",
            found=version,
            expected=f"a version from {listing.earliest} to {listing.latest}",
            remedy="Log clean-up removes older versions; newer ones are not committed yet",
        )
