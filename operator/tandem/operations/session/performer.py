"""Performs effects on the store, the log, the locks and the jobs. One method per point.

An exception of an effect becomes an event, so that `step` decides what a failure
means. `interceptor` is a hook for tests: it wraps every effect.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from tandem.delta import protocol, row_tracking
from tandem.delta.identity import identity_columns
from tandem.delta.log.commit_log import maintenance_of
from tandem.errors import (
    InvalidSpec,
    JobRefused,
    ManifestInvalid,
    ObjectNotFound,
    Reason,
    RowMapInvalid,
    SparkMissing,
    StorageError,
    TandemError,
    Unreachable,
)
from tandem.jobs.port import JobPlace
from tandem.locks.rules import (
    NOTHING,
    CommitLease,
    Granted,
    LockRequest,
    LockResources,
    Mode,
    Waiting,
    wanted_by,
)
from tandem.operations import attempt_files, garbage
from tandem.operations.attempt_files import AttemptRecord, OperationRecord, ResultRecord
from tandem.operations.explain import Explainer
from tandem.operations.machine.events import (
    AbandonedBefore,
    AdoptionRefused,
    AttemptAdopted,
    ClaimLost,
    CommitFound,
    CommitLost,
    Decided,
    Effect,
    EffectDone,
    EffectFailed,
    Ending,
    Event,
    JobRunning,
    LocksGone,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    PrerequisiteFound,
    RecordedBefore,
    StartRefused,
    TableRead,
    Verdict,
    YieldCause,
    YieldRequired,
    failure_of,
)
from tandem.operations.machine.state import OperationState
from tandem.operations.model import CommitContent, Decision, Identity, Kind, Table, Work
from tandem.operations.ports import AttemptKey, Ports
from tandem.operations.session import (
    carry_out,
    commit_actions,
    job_control,
    recovery,
    reservation,
)
from tandem.operations.session.committer import Committer
from tandem.operations.session.options import Interceptor, PerformerOptions, passthrough
from tandem.spec.common import Operation
from tandem.storage.store import side_by_side
from tandem.text import counted

_AT_ONCE_MS = 3_000
"""So long a commit to a log is repeated at once. A commit lease is granted for longer."""


class Performer:
    """Performs the effects of one operation. Not thread-safe: one thread per operation."""

    def __init__(
        self,
        identity: Identity,
        table: Table,
        kind: Kind,
        ports: Ports,
        options: PerformerOptions,
        interceptor: Interceptor = passthrough,
    ) -> None:
        self.work = Work(
            identity,
            table,
            ports.small_rounds,
            upgrade=options.upgrade,
            read_beside=ports.jobs.read,
        )
        self._id = identity.operation_id
        self._table = table
        self._store = table.store
        self._kind = kind
        self._ports = ports
        self._options = options
        self._interceptor = interceptor
        self._token = ports.nonces.nonce()
        self._maintenance = maintenance_of(kind.protocol_kind)
        self._committer = Committer(
            table, identity.operation_id, ports.clock, ports.nonces, self._maintenance
        )
        self._explainer = Explainer(table.log)
        self._started_ms = self._requested_ms = ports.clock.now_ms()
        self._has_identity = False
        self._just_read = False
        """A put that lost its version has read the newest one; no other effect followed."""
        self._unsure: set[int] = set()
        """Attempts whose job may exist, although its start was not answered."""
        self._methods: dict[Point, Callable[[Effect, OperationState], Event]] = {
            Point.READ_TABLE: self._read_table,
            Point.CHECK_EARLIER_OUTCOME: self._check_earlier_outcome,
            Point.FIND_COMMIT: self._find_commit,
            Point.PLAN: self._plan,
            Point.CLAIM_ATTEMPT: self._claim_attempt,
            Point.ADOPT_ATTEMPT: self._adopt_attempt,
            Point.ACQUIRE_LOCKS: self._acquire_locks,
            Point.AWAIT_LOCKS: self._await_locks,
            Point.PERSIST_PLAN: self._persist_plan,
            Point.START_JOB: self._start_job,
            Point.POLL_JOB: self._poll_job,
            Point.READ_RESULT: self._read_result,
            Point.RECONCILE: self._reconcile,
            Point.REQUEST_ROUND: self._request_round,
            Point.WRITE_SIDECARS: self._write_sidecars,
            Point.ENTER_COMMIT: self._enter_commit,
            Point.PUT_COMMIT: self._put_commit,
            Point.LOOK_UP_COMMIT: self._look_up_commit,
            Point.RECORD_RESULT: self._record_result,
            Point.FINISH_JOB: self._finish_job,
            Point.STOP_JOB: self._stop_job,
            Point.END_ATTEMPT: self._end_attempt,
            Point.ABANDON_ATTEMPT: self._abandon_attempt,
            Point.CLEAN_ATTEMPT: self._clean_attempt,
            Point.CLEAN_UNUSED: self._clean_unused,
            Point.RELEASE_LOCKS: self._release_locks,
            Point.MAINTAIN: self._maintain,
        }

    def job_place(self, effect: Effect) -> JobPlace:
        """Where the job is done, or would be, that this effect is about."""
        jobs, work = self._ports.jobs, self.work
        if effect.point is Point.POLL_JOB:
            return jobs.place_of(job_control.key(work, effect.attempt))
        job, input_bytes = job_control.planned_job(work)
        return jobs.place_for(self._id, job, input_bytes)

    def close(self) -> None:
        """No more effects follow: another session may take the attempt over."""
        self._ports.local_claims.drop(self)

    def _key(self, attempt: int) -> AttemptKey:
        return AttemptKey(self._ports.processes.me(), self._table.location, self._id, attempt)

    def perform(self, effect: Effect, state: OperationState) -> Event:
        """Perform the effect and return its outcome. Errors of an operation are returned as
        events, not raised."""
        self.work.exclusive = state.exclusive
        if effect.point is not Point.READ_TABLE:
            self._just_read = False
        try:
            return self._interceptor(effect, lambda: self._methods[effect.point](effect, state))
        except TandemError as error:
            return failure_of(effect, error)

    @property
    def prerequisite(self) -> Operation:
        """The operation that has to end before the plan. To be called after `PrerequisiteFound`."""
        planned = self.work.planned
        assert planned is not None
        assert planned.prerequisite is not None
        return planned.prerequisite

    # Determining the state

    def _read_table(self, _effect: Effect, _state: OperationState) -> Event:
        if not self._just_read:
            self._committer.refresh(self.work)
        self._just_read = False
        markers = commit_actions.txn_markers(self.work.snapshot, self._id)
        snapshot = self.work.snapshot
        batches = snapshot.txns.get(attempt_files.batches_app(self._id))
        return TableRead(
            snapshot.version,
            markers.succeeded,
            markers.abandoned,
            markers.closed,
            batches=0 if batches is None else batches.version,
        )

    def _check_earlier_outcome(self, _effect: Effect, _state: OperationState) -> Event:
        markers = commit_actions.txn_markers(self.work.snapshot, self._id)
        self.work.forget_attempt()
        ports = self._ports

        def claimed_here(attempt: int) -> bool:
            return ports.local_claims.busy(self._key(attempt), self)

        found = recovery.find_earlier(
            self._store,
            self._id,
            markers,
            ports.processes,
            ports.jobs,
            claimed_here,
            ports.clock.now_ms(),
            parallel=self._table.log.parallel_requests,
        )
        if found.attempt and found.recorded is None and not markers.succeeded:
            # An attempt that may have committed is neither repeated nor cleaned.
            protocol.check_remembers(
                self.work.snapshot.metadata, resource=self.work.identity.display
            )
        return found

    def _find_commit(self, _effect: Effect, _state: OperationState) -> Event:
        if not commit_actions.txn_markers(self.work.snapshot, self._id).succeeded:
            self._committer.refresh(self.work)
        found = commit_actions.find_success(self._table.log, self._id, self.work.snapshot.version)
        if found is None:
            # Log clean-up has deleted the commit; another process may have recorded it before.
            path = attempt_files.result(self._id)
            recorded = attempt_files.load(self._store, path, ResultRecord, operation_id=self._id)
            if recorded is not None and recorded.result is not None:
                return CommitFound(recorded.result, recorded.ended_ms)
        committed_ms = found.info.timestamp_ms if found is not None and found.info else None
        return CommitFound(commit_actions.result_in(found), committed_ms or 0)

    # Planning and locking

    def _plan(self, _effect: Effect, state: OperationState) -> Event:
        if self.work.identity_needs and not self.work.ahead:
            # Before the plan, whose version must not be older than the reservation.
            self.work.ahead = self._committer.reserve_ahead(self.work)
        snapshot = self.work.snapshot
        protocol.check(
            *self.work.table.rules(snapshot),
            self._kind.protocol_kind,
            resource=self.work.identity.display,
            asked=self.work.identity.asked,
        )
        self._table.log.commit_log.require(self._maintenance)
        row_tracking.check(snapshot, resource=self.work.identity.display)
        if self._kind.protocol_kind in protocol.NEW_VALUES:
            from tandem.statements.rules import rules_of_metadata  # a parser: compactions need none

            # A rule that no job can check is refused before there is one.
            rules_of_metadata(snapshot.metadata, resource=self.work.identity.display)
        if self._kind.protocol_kind in protocol.INSERTS:
            identity_columns(snapshot.metadata.schema_string, resource=self.work.identity.display)
        snapshot.require_unique_paths()
        self.work.new_commits.clear()  # the plan is made on what they led to
        planned = self.work.planned = self._kind.plan(self.work)
        if planned.prerequisite is not None and not state.request.limits.dry_run:
            if planned.before_first is not None:
                # So that a killed `--again` is continued.
                self._put_identity()
                planned.before_first()
            if state.locks.token:
                # Granted for another plan. What comes first may need the same.
                self._ports.locks.release(self._table.location, self._id, self._token)
            return PrerequisiteFound()
        without_job = planned.job is not None and not planned.job.needs_spark
        shown = planned.shown or planned.summary
        return PlanMade(shown, planned.nothing_to_do, planned.superseded, without_job)

    def _claim_attempt(self, effect: Effect, _state: OperationState) -> Event:
        self._put_identity()
        me = self._ports.processes.me()
        path = attempt_files.claim(self._id, effect.attempt)
        claim = AttemptRecord(
            operation_id=self._id,
            attempt=effect.attempt,
            host=me.host,
            pid=me.pid,
            started=me.started,
            token=self._token,
            claimed_ms=self._ports.clock.now_ms(),
        )
        if not attempt_files.put_once(self._store, path, claim):
            there = attempt_files.load(self._store, path, AttemptRecord)
            # It is ours if only the answer of the first try was lost.
            if there is None or there.token != self._token:
                return ClaimLost()
        self._ports.local_claims.take(self._key(effect.attempt), self)
        return EffectDone(effect.point)

    def _put_identity(self) -> None:
        if self._has_identity:
            return  # it is never deleted, and a put that finds it costs an fsync on a local disk
        identity = self.work.identity
        record = OperationRecord(
            operation_id=self._id,
            kind=identity.kind,
            namespace=identity.namespace,
            name=identity.name,
            spec_hash=identity.spec_hash,
            spec=dict(identity.spec),
            run=identity.run,
            table_id=self.work.snapshot.metadata.id,
        )
        attempt_files.put_once(self._store, attempt_files.identity(self._id), record)
        self._has_identity = True

    def _adopt_attempt(self, effect: Effect, _state: OperationState) -> Event:
        work = self.work
        if not self._ports.local_claims.take(self._key(effect.attempt), self):
            return ClaimLost()
        try:
            work.plan, work.job = recovery.load_frozen(self._store, self._id, effect.attempt)
            last = recovery.load_rounds(self._store, work, effect.attempt)
            for round_ in range(last + 1):
                self._load(round_)
            awaited = recovery.awaited(self._store, work, effect.attempt, self._ports.jobs)
        except (ManifestInvalid, RowMapInvalid, ObjectNotFound) as error:
            work.forget_attempt()
            return AdoptionRefused(f"cannot be used: {error}")
        why = self._options.begun_elsewhere()
        if why:
            work.forget_attempt()
            return AdoptionRefused(f"cannot be used: {why}")
        if awaited is not None:
            return AttemptAdopted(work.plan.summary, awaited, awaited=True)
        if last < 0:
            work.forget_attempt()
            return AdoptionRefused("ended without a result")
        return AttemptAdopted(work.plan.summary, last)

    def _acquire_locks(self, _effect: Effect, _state: OperationState) -> Event:
        planned = self.work.planned or self._kind.plan_of_adopted(self.work)
        answer = self._request_locks(planned.locks | self._late_locks)
        if isinstance(answer, Granted):
            return LocksGranted(answer.token)
        return LocksWaiting(answer.blockers, self._ports.clock.now_ms())

    @property
    def _late_locks(self) -> LockResources:
        """Those that the commit needs beyond the plan's."""
        return NOTHING if self.work.change is None else self.work.change.locks

    def _request_locks(self, resources: LockResources) -> Granted | Waiting:
        return self._ports.locks.acquire(
            LockRequest(
                table=self._table.location,
                operation=self._id,
                mode=Mode.EXCLUSIVE if self.work.exclusive else self._options.mode,
                resources=resources,
                owner=self._token,
                priority=self._options.priority,
                display=self.work.identity.display,
            )
        )

    def _await_locks(self, effect: Effect, _state: OperationState) -> Event:
        self._ports.locks.wait(self._table.location, self._id, self._options.lock_wait_s)
        return EffectDone(effect.point)

    # Running

    def _persist_plan(self, effect: Effect, _state: OperationState) -> Event:
        planned = self.work.planned
        if planned is not None and planned.fixes_cutoff:
            # After the locks were granted: not before the commit of their last holder.
            newest = self._table.log.update(self.work.snapshot)
            attempt_files.fix_cutoff(self._store, self._id, effect.attempt, newest)
        identity = self.work.ahead or reservation.values_of_plan(self.work)
        job_control.persist(self.work, effect.attempt, identity)
        self.work.ahead = {}
        return EffectDone(effect.point)

    def _start_job(self, effect: Effect, _state: OperationState) -> Event:
        why = self._options.begun_elsewhere()
        if why:
            return EffectFailed(effect, Reason.ABANDONED, f"{why}: nothing was committed here")
        try:
            key, (_, spec) = job_control.key(self.work, effect.attempt), self.work.frozen
            request = job_control.request(self.work, effect.attempt)
            self._ports.jobs.start(key, request, spec)
        except (InvalidSpec, JobRefused, SparkMissing) as error:
            return self._start_refused(effect, error)
        except Unreachable:
            self._unsure.add(effect.attempt)
            raise
        return EffectDone(effect.point)

    def _start_refused(
        self, effect: Effect, error: InvalidSpec | JobRefused | SparkMissing
    ) -> Event:
        """Withdraw the plan, so that the next one is made on what the table is by then, and this
        attempt does not count as one that has begun."""
        attempt, now_ms = effect.attempt, self._ports.clock.now_ms()
        may_exist = isinstance(error, JobRefused) and not error.certain
        certain = attempt not in self._unsure and not may_exist
        if certain:
            try:
                job_control.withdraw(self.work, attempt)
            except StorageError:
                certain = False  # the attempt is ended instead
        return StartRefused(
            error.reason,
            str(error),
            passing=isinstance(error, JobRefused),
            certain=certain,
            spread=zlib.crc32(f"{self._id} {now_ms}".encode()) / 2**32,
            now_ms=now_ms,
        )

    def _poll_job(self, effect: Effect, _state: OperationState) -> Event:
        now_ms = self._ports.clock.now_ms()
        jobs = self._ports.jobs
        try:
            found = job_control.poll(self.work, jobs, effect.attempt, effect.round, now_ms)
        except (InvalidSpec, JobRefused, SparkMissing) as error:
            return self._start_refused(effect, error)  # of a job that has waited for its slot
        except Unreachable:
            self._unsure.add(effect.attempt)  # likewise
            raise
        if self.work.exclusive and isinstance(found, JobRunning):
            return self._yield_to_commits() or self._yield_to_locks() or found
        return found

    def _yield_to_locks(self) -> YieldRequired | None:
        entries = self._ports.locks.entries(self._table.location)
        who = wanted_by(entries, self._id, self._token)
        return YieldRequired(f"{who}, which needs its locks", YieldCause.LOCKS) if who else None

    def _yield_to_commits(self) -> YieldRequired | None:
        commit = self._options.written(self.work)
        return YieldRequired(commit, YieldCause.COMMIT) if commit else None

    def _read_result(self, effect: Effect, _state: OperationState) -> Event:
        job_control.read_result(self.work, self._ports.jobs, effect.attempt, effect.round)
        self._load(effect.round)
        return EffectDone(effect.point)

    def _load(self, round_: int) -> None:
        request = self.work.requests.get(round_)
        if request is not None and request.edits is not None:
            seconds = (self._ports.clock.now_ms() - self._requested_ms) / 1000
            carry_out.load_edits(self.work, round_, seconds=seconds)
        else:
            self._kind.load(self.work, round_)

    def _request_round(self, effect: Effect, _state: OperationState) -> Event:
        decision = self.work.decision
        assert decision is not None
        assert decision.evaluate is not None
        self._requested_ms = self._ports.clock.now_ms()
        # It may take long: an operation of higher priority need not wait for us.
        self._ports.locks.leave_commit(self._table.location, self._id, self._token)
        key = job_control.key(self.work, effect.attempt)
        self.work.requests[effect.round] = self._ports.jobs.ask(key, decision.evaluate)
        return EffectDone(effect.point)

    # Reconciling and committing

    def _reconcile(self, _effect: Effect, _state: OperationState) -> Event:
        work = self.work
        protocol.check(
            *work.rules,
            self._kind.protocol_kind,
            resource=work.identity.display,
            asked=work.identity.asked,
        )
        row_tracking.check(work.snapshot, resource=work.identity.display)
        if work.exclusive and (written := self._yield_to_commits()) is not None:
            return written
        work.rounds += 1
        begun_ms = self._ports.clock.now_ms()
        decision = work.decision = self._kind.decide(work)
        if decision.verdict is Verdict.COMMIT and work.upgrade is not None:
            # The rest is to commit. What fails must not leave a table that older readers refuse.
            upgrade, work.upgrade = work.upgrade, None
            upgrade()
            self._committer.refresh(work)
            decision = work.decision = self._kind.decide(work)
        if decision.verdict is Verdict.COMMIT:
            taken = self._committer.reserve(work)
            if taken:
                decision = work.decision = Decision(Verdict.REPLAN, taken)
            elif work.reserved:
                # A reservation is a version of its own, after which the commit has to follow.
                decision = work.decision = self._kind.decide(work)
        if decision.verdict is Verdict.COMMIT:
            change = self._kind.change(work)
            took_ms = self._ports.clock.now_ms() - begun_ms
            work.change = self._explainer.change(work, change, took_ms)
            if carry_out.needs_edits(work, change):
                decision = work.decision = self._with_edits(work, change, decision)
        else:
            decision = self._explainer.decision(work, decision)
        return Decided(work.snapshot.version, decision.verdict, decision.why, decision.reason)

    def _with_edits(self, work: Work, change: CommitContent, decision: Decision) -> Decision:
        """The decision to commit, unless its edits come too late again and again, or the job makes
        them first."""
        late = carry_out.too_late(work, change)
        if late is not None:
            return late
        request = carry_out.round_of_edits(work)
        if request is None:
            return decision
        why = f"{counted(len(request.inputs), 'file')} to edit"
        return Decision(Verdict.EVALUATE, why, evaluate=request)

    def _write_sidecars(self, effect: Effect, _state: OperationState) -> Event:
        work = self.work
        assert work.change is not None
        edited = carry_out.needs_edits(work, work.change) and carry_out.make_edits(work)
        if edited or (self._table.base is None and work.rounds > 1):
            is_taken = self._committer.version_is_taken(work)
        else:
            is_taken = False
        if is_taken:
            # The evaluation takes as long as a busy writer's commits are apart: begin the next
            # round at once, instead of writing files that no commit can use. (Beside the writers of
            # a log the version is always taken by now: only puts that follow one another win.)
            # Edits stay, and the next decision probably wants the same.
            return CommitLost(raced=True)
        as_allowed = carry_out.by_edits if work.by_edits else carry_out.by_vectors
        change = work.change = as_allowed(work, work.change)
        folder = attempt_files.deletion_vectors(self._id, effect.attempt)

        def write_vectors() -> None:
            work.vectors = commit_actions.write_vectors(self._store, folder, change, work.vectors)

        def write_row_map() -> None:
            self._store.put(attempt_files.row_map(self._id, effect.attempt), change.row_map)
            work.row_map_written = change.row_map

        writes = [write_vectors]
        if change.row_map and change.row_map != work.row_map_written:
            # Without edits the same in every round: it holds where rows went, not which are live.
            writes.append(write_row_map)
        side_by_side(writes, self._table.log.parallel_requests)
        work.adds = commit_actions.adds_of(change, work.vectors)
        return EffectDone(effect.point)

    def _enter_commit(self, effect: Effect, _state: OperationState) -> Event:
        late = self._late_locks
        if late:
            answer = self._ports.locks.extend(self._table.location, self._id, self._token, late)
            if isinstance(answer, Waiting):
                # An extension is not queued, and another writer yields only to those that are.
                answer = self._request_locks(late)
            if isinstance(answer, Waiting):
                return LocksWaiting(answer.blockers, self._ports.clock.now_ms())
        lease = self._ports.locks.enter_commit(self._table.location, self._id, self._token)
        if lease is CommitLease.ENTERED:
            return EffectDone(effect.point)
        revoked = lease is CommitLease.REVOKED
        if revoked and self.work.exclusive and (wanted := self._yield_to_locks()) is not None:
            return wanted
        return LocksGone(revoked)

    def _put_commit(self, effect: Effect, state: OperationState) -> Event:
        before = self.work.snapshot
        event = self._committer.put(self.work, effect, state.locks.token)
        if self._table.base is None:
            self._just_read = self.work.snapshot is not before
            return event
        # A log has as many writers as there are, whose rounds are three requests. With all the
        # looks of a full round in between, an operation would lose each time.
        until_ms = self._ports.clock.now_ms() + _AT_ONCE_MS
        version = effect.version
        while isinstance(event, CommitLost) and self._ports.clock.now_ms() < until_ms:
            if self.work.snapshot.version < version or not self._decided_at_once(effect, state):
                break
            version = self.work.snapshot.version + 1
            event = self._committer.put_at_once(self.work, effect.attempt, state.locks.token)
        return event

    def _decided_at_once(self, effect: Effect, state: OperationState) -> bool:
        """Decide again after a lost put, which has read the newest version; False for anything but
        another put, which the next full round finds out, too."""
        work = self.work
        work.at_once = True
        try:
            found = self._reconcile(effect, state)
        finally:
            work.at_once = False
        if not isinstance(found, Decided) or found.verdict is not Verdict.COMMIT:
            return False
        assert work.change is not None
        work.adds = commit_actions.adds_of(work.change, work.vectors)
        return True

    def _look_up_commit(self, effect: Effect, _state: OperationState) -> Event:
        return self._committer.look_up(self.work, effect)

    # Closing

    def _record_result(self, effect: Effect, state: OperationState) -> Event:
        assert state.outcome.closing is not None
        self._put_identity()
        path = attempt_files.result(self._id)
        ending = state.outcome.closing.ending
        ended_before_start = state.outcome.ended_before_start is not None
        if ended_before_start and not self._committer.ends_before_start(
            self.work, ending, self._token
        ):
            return AbandonedBefore()
        record = self._record(ending)
        # The log is authoritative: a record made without knowledge of the commit is replaced.
        if ending.result is not None and ending.result.version is not None:
            self._store.put(path, attempt_files.encode(record))
        elif not attempt_files.put_once(self._store, path, record):
            there = attempt_files.load(self._store, path, ResultRecord, operation_id=self._id)
            if there is not None and not state.log.succeeded:
                return RecordedBefore(recovery.ending_of(there))
        return EffectDone(effect.point)

    def _record(self, ending: Ending) -> ResultRecord:
        return ResultRecord(
            operation_id=self._id,
            attempt=ending.attempt,
            phase=ending.phase,
            reason=ending.reason,
            message=ending.message,
            result=ending.result,
            plan=ending.plan,
            started_ms=self._started_ms,
            ended_ms=self._ports.clock.now_ms(),
        )

    def _finish_job(self, effect: Effect, _state: OperationState) -> Event:
        spec = self.work.job
        if spec is None or spec.job.serves_rounds:  # the others have ended with their result
            self._ports.jobs.finish(job_control.key(self.work, effect.attempt))
        return EffectDone(effect.point)

    def _stop_job(self, effect: Effect, _state: OperationState) -> Event:
        self._ports.jobs.stop(job_control.key(self.work, effect.attempt))
        return EffectDone(effect.point)

    def _end_attempt(self, effect: Effect, state: OperationState) -> Event:
        return self._committer.end(self.work, effect, state, self._token)

    def _abandon_attempt(self, effect: Effect, state: OperationState) -> Event:
        assert state.outcome.closing is not None
        record = self._record(state.outcome.closing.ending)
        return self._committer.abandon(self.work, effect, state, record, self._token)

    def _clean_attempt(self, effect: Effect, _state: OperationState) -> Event:
        self._clean_dead(effect.attempt)
        return EffectDone(effect.point)

    def _clean_dead(self, up_to: int) -> None:
        """Of the attempts up to this one, only those that the version last read shows to be dead:
        another one may yet commit, in a session that we take for dead."""
        dead = self._committer.dead(self.work, up_to)
        parallel = self._table.log.parallel_requests
        garbage.clean_dead(self._store, self._id, dead, parallel=parallel)

    def _clean_unused(self, effect: Effect, state: OperationState) -> Event:
        assert state.outcome.closing is not None
        assert state.outcome.closing.ending.result is not None
        version = state.outcome.closing.ending.result.version
        committed = None if version is None else self._committer.commit(version)
        if committed is not None:
            parallel = self._table.log.parallel_requests
            garbage.clean_unused(
                self._store, self._id, effect.attempt, committed, parallel=parallel
            )
        self._clean_dead(max(effect.attempt, state.attempt.last_claimed))
        return EffectDone(effect.point)

    def _release_locks(self, effect: Effect, _state: OperationState) -> Event:
        self._ports.locks.release(self._table.location, self._id, self._token)
        return EffectDone(effect.point)

    def _maintain(self, effect: Effect, state: OperationState) -> Event:
        assert state.outcome.closing is not None
        assert state.outcome.closing.ending.result is not None
        version = state.outcome.closing.ending.result.version
        if self._options.maintain is not None and version is not None:
            self._options.maintain(self._table, self.work.snapshot)
        return EffectDone(effect.point)
