"""Everything that goes into the log: the commit of an attempt, and its abandonment.

Both are put on the very version in which the stops were looked at, and count only once the
table shows them (docs/decisions/0031).
"""

from __future__ import annotations

import re

import pyarrow.compute as pc

from tandem.delta import protocol
from tandem.delta.log.names import commit_path
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AlreadyExists, CorruptLog, ObjectNotFound, OutcomeUnknown, Reason
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import EndedRecord, ResultRecord
from tandem.operations.machine.effects import Effect, Point
from tandem.operations.machine.events import (
    AbandonedBefore,
    AbandonRefused,
    CommitLost,
    CommitPut,
    CommitUnknown,
    EffectDone,
    EffectFailed,
    EndedBeforeStart,
    Ending,
    Event,
)
from tandem.operations.machine.state import OperationState
from tandem.operations.model import Table, Work
from tandem.operations.ports import Clock, Nonces
from tandem.operations.session import commit_actions, job_control, recovery
from tandem.spec.status import OperationResult

_TRIES = 64


class Committer:
    """Puts commits of one operation."""

    def __init__(self, table: Table, operation_id: str, clock: Clock, nonces: Nonces) -> None:
        self._table = table
        self._store = table.store
        self._id = operation_id
        self._clock = clock
        self._nonces = nonces

    def refresh(self, work: Work) -> None:
        """Read the latest version into `work`."""
        log = self._table.log
        work.latest = log.snapshot() if work.latest is None else log.update(work.latest)
        work.now_ms = self._clock.now_ms()

    def is_lost(self, work: Work) -> bool:
        """Whether another writer has the next version already. Raises: StorageError."""
        return self._is_there(work.snapshot.version + 1)

    def put(self, work: Work, effect: Effect, fencing: int) -> Event:
        """Put the change set as the version after the one that was read.

        Raises: OutputMissing if files of ours are gone, StorageError.
        """
        assert work.change is not None
        stops = commit_actions.txn_markers(work.snapshot, self._id)
        if stops.forbid(effect.attempt) or effect.version != work.snapshot.version + 1:
            return CommitLost()  # we have seen more meanwhile than the decision was made on
        # (Where the snapshot comes from a checkpoint alone, there was none to begin with.)
        if work.snapshot.position is not None and not self._is_there(effect.version - 1):
            return CommitLost()
        # As late as can be: a vacuum without retention may run at any time.
        job_control.check_outputs(self._store, self._id, effect.attempt, work.change)
        # One token, one content: what was put before and got lost is told apart by it.
        work.token = self._new_token(effect.attempt)
        actions = commit_actions.actions(work, effect.attempt, fencing)
        result = commit_actions.result_of(work, effect.version)
        try:
            self._table.log.put_commit(effect.version, actions, token=work.token)
        except AlreadyExists:
            return CommitLost()
        except OutcomeUnknown:
            return CommitUnknown()
        return self._visible(work, result)

    def look_up(self, work: Work, effect: Effect) -> Event:
        """Is the put that we could not be sure of ours? Raises: StorageError."""
        if self._table.log.find_commit(effect.version, work.token):
            return self._visible(work, commit_actions.result_of(work, effect.version))
        # Not there (yet). If it still arrives, the next read shows our own success.
        return CommitLost()

    def abandon(
        self, work: Work, effect: Effect, state: OperationState, record: ResultRecord, session: str
    ) -> Event:
        """Commit that the attempt is dead (and if it closes the operation, that all are), unless
        a success is visible, or its owner has ended the operation. Raises: StorageError."""
        attempt, closing = effect.attempt, state.outcome.closing
        assert closing is not None
        ended = EndedRecord(
            operation_id=self._id,
            attempt=attempt,
            reason=closing.ending.reason,
            message=closing.ending.message,
            counted=closing.counted,
            token=session,
        )
        self.refresh(work)
        stops = commit_actions.txn_markers(work.snapshot, self._id)
        over = stops.succeeded > 0 or stops.closed
        if not over and (closing.closes or stops.abandoned < attempt):
            _require_writable(work)  # before it is ended: else it must stay as it is
        there = self._end(ended)
        if there.phase:
            return EndedBeforeStart()
        if state.attempt.owned and there.token != session:
            return self._commit_abandonment(work, effect, attempt) or AbandonedBefore()
        if closing.closes:
            last = recovery.highest_claim(self._store, self._id)
            if last > attempt:
                attempt = last
                if self._end(ended.model_copy(update={"attempt": last})).phase:
                    return EndedBeforeStart()
            # How it ends must be known to whoever finds it closed and no result.
            self._store.put(paths.ending(self._id), records.encode(record))
        refused = self._commit_abandonment(work, effect, attempt, closes=closing.closes)
        return refused or EffectDone(effect.point)

    def declare_dead(self, work: Work, attempt: int, why: str, session: str) -> bool:
        """Commit that attempts up to this one, on which nobody works, are dead; False if a
        success is visible, or the last one's owner has ended the operation: then none may be
        called so. Raises: AlreadyExists if others were faster every time, StorageError."""
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
        """Whether it is this session that ends its attempt, and with it the operation, without
        a word in the log; else it was taken for dead, and may not speak. Raises: StorageError."""
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
        # Perhaps somebody else had, and the record of it was cleaned away since: the log knows.
        self.refresh(work)
        return not commit_actions.txn_markers(work.snapshot, self._id).forbid(ending.attempt)

    def _end(self, ended: EndedRecord) -> EndedRecord:
        """Put if absent how the attempt ended; what is there then, perhaps somebody else's."""
        path = paths.ended(self._id, ended.attempt)
        if records.put_once(self._store, path, ended):
            return ended
        return records.load(self._store, path, EndedRecord, operation_id=self._id) or ended

    def _commit_abandonment(
        self, work: Work, effect: Effect, attempt: int, *, closes: bool = False
    ) -> Event | None:
        """Put until the table shows it; what keeps it from being so, if anything.

        Raises: UnsupportedFeature, CorruptLog if an attempt may have committed after all.
        """
        for _ in range(_TRIES):
            self.refresh(work)
            stops = commit_actions.txn_markers(work.snapshot, self._id)
            if stops.succeeded:
                return AbandonRefused(stops.succeeded)
            if stops.closed or (stops.abandoned >= attempt and not closes):
                return None
            highest = max(attempt, stops.abandoned)
            _require_uncommitted(work, highest)
            actions = commit_actions.abandonment(work, highest, closes=closes)
            token = self._new_token(attempt)
            try:
                self._table.log.put_commit(work.snapshot.version + 1, actions, token=token)
            except AlreadyExists:
                continue
            # Round again: it counts when the table shows it.
        return EffectFailed(
            effect, Reason.CONFLICT, "other writers were faster every time", retryable=True
        )

    def _visible(self, work: Work, result: OperationResult) -> Event:
        """What our commit file came to. One that fell into a hole of the log, below a checkpoint,
        no reader will ever see: it did not happen. But that a checkpoint does not show our
        success proves no hole: others' checkpoints may forget who committed.

        Raises: UnsupportedFeature if nobody can tell any more, StorageError.
        """
        version = result.version
        assert version is not None
        self.refresh(work)
        snapshot = work.snapshot
        if commit_actions.txn_markers(snapshot, self._id).succeeded:
            return CommitPut(result)
        if (snapshot.checkpoint_version or -1) < version:
            return CommitLost()
        if _live_attempts(snapshot, self._id):
            return CommitPut(result)
        protocol.check_remembers(snapshot.metadata, resource=work.identity.display)
        # It would only mislead who reads the log's history.
        self._store.delete([commit_path(version)])
        return CommitLost()

    def _is_there(self, version: int) -> bool:
        """Whether the log still has this commit. If clean-up has taken it (we were stopped for
        long), it may have taken the version after it too: a put there would fall into a hole."""
        try:
            self._store.head(commit_path(version))
        except ObjectNotFound:
            return False
        return True

    def _new_token(self, attempt: int) -> str:
        return f"{self._id}-{attempt}-{self._nonces.nonce()}"


def _live_attempts(snapshot: Snapshot, operation_id: str) -> set[int]:
    """Attempts of which the table has live files: whatever the log says or forgot, they did
    commit."""
    paths = snapshot.files["path"]
    ours = paths.filter(pc.match_substring(paths, f"{operation_id}-")).to_pylist()
    # A clone or a conversion may name them absolutely.
    folder = re.compile(rf"(?:^|/){operation_id}-([1-9][0-9]{{0,2}})/")
    return {int(match[1]) for match in map(folder.search, ours) if match is not None}


def _require_writable(work: Work) -> None:
    """Raises: UnsupportedFeature."""
    snapshot, resource = work.snapshot, work.identity.display
    protocol.check_commits(snapshot.protocol, snapshot.metadata, resource=resource)


def _require_uncommitted(work: Work, highest: int) -> None:
    """Before attempts are declared dead, and then cleaned. Raises: UnsupportedFeature,
    CorruptLog."""
    identity, snapshot = work.identity, work.snapshot
    _require_writable(work)
    live = [n for n in _live_attempts(snapshot, identity.operation_id) if n <= highest]
    if live:
        raise CorruptLog(
            "files of an attempt are live, and the log does not know that it committed",
            resource=identity.display,
            found=f"files of {paths.data(identity.operation_id, max(live))}",
            expected="none of an attempt that is to be abandoned",
            remedy="Nothing was deleted; find out what took the txn of this operation away",
        )
