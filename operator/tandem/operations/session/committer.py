"""What an operation writes to its table's log: the commit of an attempt, and its abandonment.

Both are put right after the version in which the markers were checked, and count only once the
table shows them (docs/decisions/0031). Two other modules write to logs: `operations.adopt` creates
and upgrades tables, and `mergelog` appends blocks to the log of a merge-on-read table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import pyarrow.compute as pc

from tandem.delta import dv, protocol
from tandem.delta.actions import Commit
from tandem.delta.log.codec import decode_deletion_vector
from tandem.delta.log.commit_log import MaintenanceRight
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AlreadyExists, CorruptLog, OutcomeUnknown, Reason
from tandem.jobs.formats import IdentityValues
from tandem.operations import attempt_files
from tandem.operations.attempt_files import EndedRecord, ResultRecord
from tandem.operations.machine.events import (
    AbandonedBefore,
    AbandonRefused,
    CommitLost,
    CommitPut,
    CommitUnknown,
    Effect,
    EffectDone,
    EffectFailed,
    EndedBeforeStart,
    Ending,
    Event,
    Point,
)
from tandem.operations.machine.state import Closing, OperationState
from tandem.operations.model import Table, Work
from tandem.operations.ports import Clock, Nonces
from tandem.operations.session import commit_actions, job_control, recovery, reservation
from tandem.spec.status import OperationResult
from tandem.storage.store import side_by_side

_TRIES = 64


class Committer:
    """Puts commits of one operation.

    Args:
        maintenance: what the table's catalog has to permit for the operation's own commit. Its
            abandonment needs no permission.
    """

    def __init__(
        self,
        table: Table,
        operation_id: str,
        clock: Clock,
        nonces: Nonces,
        maintenance: MaintenanceRight | None = None,
    ) -> None:
        self._table = table
        self._maintenance = maintenance
        self._store = table.store
        self._id = operation_id
        self._clock = clock
        self._nonces = nonces
        self._visible_commit: Commit | None = None

    def refresh(
        self, work: Work, *, known: Mapping[int, bytes] = MappingProxyType({})
    ) -> list[Commit]:
        """Read the latest version into `work`; `known` are contents of commits of ours. Returns
        the commits that were read one by one."""
        log, seen = self._table.log, list[Commit]()
        if work.latest is None:
            self._take(work, log.snapshot(), seen)
        else:
            self._take(work, log.update(work.latest, known=known, seen=seen), seen)
        return seen

    def commit(self, version: int) -> Commit | None:
        """The commit of a version, which is read unless it is the one that was last seen to be
        ours. Raises: StorageError."""
        ours = self._visible_commit
        return ours if ours and ours.version == version else self._table.log.commit(version)

    def _take(self, work: Work, latest: Snapshot, seen: list[Commit]) -> None:
        if work.keeps_commits:
            if latest is not work.latest and not seen:
                work.new_commits.clear()  # it was read as a whole: they may be of another log
            work.new_commits.update((commit.version, commit) for commit in seen)
        work.latest, work.now_ms = latest, self._clock.now_ms()

    def version_is_taken(self, work: Work) -> bool:
        """Whether another writer has the next version already. Raises: StorageError."""
        return self._table.log.commit_log.has(work.snapshot.version + 1)

    def put(self, work: Work, effect: Effect, fencing: int) -> Event:
        """Put the change set as the version after the one that was read.

        Raises: OutputMissing if files of ours are gone, UnsupportedFeature, CorruptLog if an
            attempt has committed after all, StorageError.
        """
        assert work.change is not None
        markers = commit_actions.txn_markers(work.snapshot, self._id)
        if markers.forbid(effect.attempt) or effect.version != work.snapshot.version + 1:
            return CommitLost()  # the decision was made on an older version than the latest read
        # (Where the snapshot comes from a checkpoint alone, there was none to begin with.)
        there, outputs = True, dict[str, int]()

        def look_for_version() -> None:
            nonlocal there
            commits, position = self._table.log.commit_log, work.snapshot.position
            there = position is None or commits.can_follow(effect.version - 1)

        def look_for_outputs() -> None:
            outputs.update(job_control.outputs(work, effect.attempt))

        # As late as possible: a vacuum without retention may run at any time.
        side_by_side([look_for_version, look_for_outputs], self._table.log.parallel_requests)
        if not there:
            return CommitLost()
        if effect.attempt > 1:
            _require_uncommitted(work, effect.attempt)  # one before may have committed meanwhile
        job_control.check_outputs(outputs, work)
        return self._put(work, effect.attempt, fencing)

    def put_at_once(self, work: Work, attempt: int, fencing: int) -> Event:
        """As `put`, a moment after one that was lost, on a log of blocks: its versions stay for a
        day at least, and no other engine may vacuum it.

        Raises: StorageError.
        """
        if commit_actions.txn_markers(work.snapshot, self._id).forbid(attempt):
            return CommitLost()
        return self._put(work, attempt, fencing)

    def _put(self, work: Work, attempt: int, fencing: int) -> Event:
        version = work.snapshot.version + 1
        # One token per content: it distinguishes this put from an earlier one that got lost.
        work.token = self._new_token(attempt)
        actions = commit_actions.actions(work, attempt, fencing)
        result = commit_actions.result_of(work, version)
        known, seen = dict[int, bytes](), list[Commit]()
        try:
            newest = self._table.log.commit_after(
                work.snapshot,
                actions,
                token=work.token,
                maintenance=self._maintenance,
                known=known,
                seen=seen,
            )
        except OutcomeUnknown:
            return CommitUnknown()
        if newest is not None:
            self._take(work, newest, seen)
            return CommitLost(raced=True)
        return self._visible(work, result, known=known)

    def look_up(self, work: Work, effect: Effect) -> Event:
        """Find out whether a put of unknown outcome has succeeded. Raises: StorageError."""
        # Nothing was put if the store failed before: then we have no token, as others have none.
        if work.token and self._table.log.is_ours(effect.version, work.token):
            return self._visible(work, commit_actions.result_of(work, effect.version))
        # Not there (yet), or of another writer. If it arrives later, the next read shows our own
        # success.
        return CommitLost()

    def end(self, work: Work, effect: Effect, state: OperationState, session: str) -> Event:
        """Record that the attempt has ended without a commit, so that no session takes it over,
        unless its owner has ended the operation, or another session has ended ours. A session that
        works on it may still commit it: only the log can prevent that. Raises:
        UnsupportedFeature, CorruptLog, StorageError."""
        attempt, closing = effect.attempt, state.outcome.closing
        assert closing is not None
        self.refresh(work)
        markers = commit_actions.txn_markers(work.snapshot, self._id)
        over = markers.succeeded > 0 or markers.closed
        if not over and (closing.closes or markers.abandoned < attempt):
            _require_uncommitted(work, attempt)  # before the end is recorded, which is final
        there = self._end(_ended_record(self._id, attempt, closing, session))
        if there.phase:
            return EndedBeforeStart()
        if state.attempt.owned and there.token != session:
            return AbandonRefused(markers.succeeded) if markers.succeeded else AbandonedBefore()
        return EffectDone(effect.point)

    def abandon(
        self, work: Work, effect: Effect, state: OperationState, record: ResultRecord, session: str
    ) -> Event:
        """Commit that the attempt and those before it are dead (or, if it closes the operation,
        that all attempts are), unless a success is visible, or the attempt's owner has ended the
        operation, or another session has ended ours. Raises: StorageError."""
        attempt, closing = effect.attempt, state.outcome.closing
        assert closing is not None
        ended = self.end(work, effect, state, session)
        if not isinstance(ended, EffectDone):
            return ended
        if closing.closes:
            last = recovery.highest_claim(self._store, self._id)
            if last > attempt:
                attempt = last
                if self._end(_ended_record(self._id, attempt, closing, session)).phase:
                    return EndedBeforeStart()
            # A process that finds the operation closed, but no result, reads its ending here.
            self._store.put(attempt_files.ending(self._id), attempt_files.encode(record))
        refused = self._commit_abandonment(work, effect, attempt, closes=closing.closes)
        return refused or EffectDone(effect.point)

    def abandon_unowned(self, work: Work, attempt: int, why: str, session: str) -> bool:
        """Commit that the attempts up to this one, on which no process works, are dead. False,
        without a commit, if a success is visible or the last one's owner has ended the operation.
        Raises: AlreadyExists if other writers committed first every time, StorageError."""
        self.refresh(work)
        if commit_actions.txn_markers(work.snapshot, self._id).succeeded:
            return False
        ended = EndedRecord(
            operation_id=self._id,
            attempt=attempt,
            reason=Reason.ABANDONED,
            message=why,
            counted=True,
            token=session,
        )
        if self._end(ended).phase:
            return False
        refused = self._commit_abandonment(work, Effect(Point.ABANDON_ATTEMPT, attempt), attempt)
        if isinstance(refused, EffectFailed):
            raise AlreadyExists(refused.message, resource=self._table.location)
        return refused is None

    def ends_before_start(self, work: Work, ending: Ending, session: str) -> bool:
        """Whether this session ends its attempt, and with it the operation, without a commit. If
        not, another session has declared it dead, and it must not report. Raises:
        StorageError."""
        ended = EndedRecord(
            operation_id=self._id,
            attempt=ending.attempt,
            reason=ending.reason,
            message=ending.message,
            counted=False,
            token=session,
            phase=ending.phase,
        )
        if self._end(ended).token != session:
            return False
        # Another session may have ended it before, and the record been cleaned since: the log
        # shows that.
        self.refresh(work)
        return not commit_actions.txn_markers(work.snapshot, self._id).forbid(ending.attempt)

    def dead(self, work: Work, up_to: int) -> tuple[int, ...]:
        """The attempts up to this one whose files may be deleted: the version last read keeps them
        from committing, and refers to none of their files."""
        dead = commit_actions.txn_markers(work.snapshot, self._id).dead(up_to)
        live = _live_attempts(work.snapshot, self._id) if dead else set()
        return tuple(attempt for attempt in dead if attempt not in live)

    def _end(self, ended: EndedRecord) -> EndedRecord:
        """Put if absent how the attempt ended. Returns the record that is there then, perhaps
        that of another session."""
        path = attempt_files.ended(self._id, ended.attempt)
        if attempt_files.put_once(self._store, path, ended):
            return ended
        return attempt_files.load(self._store, path, EndedRecord, operation_id=self._id) or ended

    def _commit_abandonment(
        self, work: Work, effect: Effect, attempt: int, *, closes: bool = False
    ) -> Event | None:
        """Put the abandonment until the table shows it. Returns the event that prevents that, or
        None.

        Raises: UnsupportedFeature, CorruptLog if an attempt may have committed after all.
        """
        for _ in range(_TRIES):
            self.refresh(work)
            markers = commit_actions.txn_markers(work.snapshot, self._id)
            if markers.succeeded:
                return AbandonRefused(markers.succeeded)
            if markers.closed or (markers.abandoned >= attempt and not closes):
                return None
            highest = max(attempt, markers.abandoned)
            _require_uncommitted(work, highest)
            actions = commit_actions.abandonment(work, highest, closes=closes)
            token = self._new_token(attempt)
            try:
                self._table.log.put_commit(work.snapshot.version + 1, actions, token=token)
            except AlreadyExists:
                continue
            # Check again: it counts once the table shows it.
        return EffectFailed(
            effect, Reason.CONFLICT, "other writers committed first every time", retryable=True
        )

    def reserve(self, work: Work) -> str:
        """Commit that the values of identity columns in the attempt's rows are given. Returns why
        that is no longer possible, so that another attempt has to make the rows.

        Raises: UnsupportedFeature, CorruptLog, AlreadyExists if other writers committed first every
            time, StorageError.
        """
        for _ in range(_TRIES):
            found = reservation.missing(work)
            if found.taken:
                reservation.need(work, found.last)
            if found.taken or not found.last:
                return found.taken
            if self._put_marks(work, found.last):
                work.reserved |= found.last
        raise _always_taken(work)

    def reserve_ahead(self, work: Work) -> Mapping[str, IdentityValues]:
        """Commit that as many values are given as an earlier attempt needed; these values.

        Raises: as `reserve`; StatementFailed if there are not as many.
        """
        for _ in range(_TRIES):
            values = reservation.ahead(work)
            marks = {n: each.reserved for n, each in values.items() if n in work.identity_needs}
            if not marks or self._put_marks(work, marks):
                return values
        raise _always_taken(work)

    def _put_marks(self, work: Work, marks: Mapping[str, int]) -> bool:
        """Put a reservation after the version last read, and read on. False if that was taken."""
        _require_writable(work)
        token = self._new_token(0)
        try:
            self._table.log.put_commit(
                work.snapshot.version + 1, reservation.actions(work, marks), token=token
            )
        except AlreadyExists:
            self.refresh(work)
            return False
        self.refresh(work)
        return True

    def _visible(
        self,
        work: Work,
        result: OperationResult,
        *,
        known: Mapping[int, bytes] = MappingProxyType({}),
    ) -> Event:
        """Whether readers see our commit file. A file that was put into a hole of the log, below a
        checkpoint, is never read: the commit did not happen. But a checkpoint without our success
        does not prove that there is a hole: other writers' checkpoints may expire `txn`s.

        Raises: UnsupportedFeature if that can no longer be determined, StorageError.
        """
        version = result.version
        assert version is not None
        seen = self.refresh(work, known=known)
        snapshot = work.snapshot
        if commit_actions.txn_markers(snapshot, self._id).succeeded:
            self._visible_commit = next((c for c in seen if c.version == version), None)
            return CommitPut(result)
        if (snapshot.checkpoint_version or -1) < version:
            return CommitLost()
        if _live_attempts(snapshot, self._id):
            return CommitPut(result)
        protocol.check_remembers(snapshot.metadata, resource=work.identity.display)
        # It would only mislead readers of the log's history.
        self._table.log.commit_log.withdraw(version)
        return CommitLost()

    def _new_token(self, attempt: int) -> str:
        return f"{self._id}-{attempt}-{self._nonces.nonce()}"


def _always_taken(work: Work) -> AlreadyExists:
    return AlreadyExists(
        "other writers committed first every time, so that no identity values were reserved",
        resource=work.table.location,
    )


def _ended_record(operation_id: str, attempt: int, closing: Closing, session: str) -> EndedRecord:
    return EndedRecord(
        operation_id=operation_id,
        attempt=attempt,
        reason=closing.ending.reason,
        message=closing.ending.message,
        counted=closing.counted,
        token=session,
    )


def _live_attempts(snapshot: Snapshot, operation_id: str) -> set[int]:
    """The attempts of which the table has live files or deletion vectors: they have committed,
    whatever `txn`s the log still has."""
    vectors = snapshot.files["deletion_vector"]
    texts = pc.struct_field(vectors, "pathOrInlineDv")
    named = vectors.filter(pc.match_substring(texts, f"{operation_id}-")).to_pylist()
    paths = snapshot.files["path"]
    ours = paths.filter(pc.match_substring(paths, f"{operation_id}-")).to_pylist()
    in_files = (vector for vector in named if vector["storageType"] != "i")
    ours += {dv.file_path(decode_deletion_vector(vector)) for vector in in_files}
    # A clone or a conversion may refer to them by absolute paths.
    folder = re.compile(rf"(?:^|/){operation_id}-([1-9][0-9]{{0,2}})/")
    return {int(match[1]) for match in map(folder.search, ours) if match is not None}


def _require_writable(work: Work) -> None:
    """Raises: UnsupportedFeature."""
    snapshot, resource = work.snapshot, work.identity.display
    protocol.check_commits(snapshot.protocol, snapshot.metadata, resource=resource)


def _require_uncommitted(work: Work, highest: int) -> None:
    """Check that no attempt up to `highest` has committed, before another one follows, or they are
    declared dead and cleaned. Raises: UnsupportedFeature, CorruptLog."""
    identity, snapshot = work.identity, work.snapshot
    _require_writable(work)
    live = [n for n in _live_attempts(snapshot, identity.operation_id) if n <= highest]
    if live:
        raise CorruptLog(
            "files of an attempt are live, but the log has no record of its commit",
            resource=identity.display,
            found=f"files of {attempt_files.data(identity.operation_id, max(live))}",
            expected="none of an attempt that ended without a commit",
            remedy="Nothing was deleted; find out what removed the txn of this operation",
        )
