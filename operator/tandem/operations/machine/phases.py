"""The phases of an operation, as transitions. Pure, parts of `step`.

What is there       the state of the operation, from the log and what earlier sessions left
Plan, locks, job    up to the results of a round
Commit, or an end   reconcile with what was committed meanwhile, commit, or end without
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.attempt_files import MOST_ATTEMPTS
from tandem.operations.machine.events import (
    AbandonRefused,
    AdoptionRefused,
    AttemptAdopted,
    CommitFound,
    CommitPut,
    Decided,
    EarlierFound,
    Effect,
    Ending,
    JobLost,
    JobRunning,
    LocksGone,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    RecordedBefore,
    RoundDone,
    StartRefused,
    StopRequest,
    TableRead,
    Verdict,
    YieldRequired,
)
from tandem.operations.machine.state import (
    Closing,
    LockState,
    OperationState,
    Refusal,
    YieldState,
    with_batches,
)
from tandem.operations.machine.transitions import (
    START_OVER,
    Transition,
    attempts_exhausted,
    claim,
    close,
    do,
    end,
    end_before_start,
    fail,
    give_up,
    give_way,
    perform,
    stop,
    succeed,
    unlock,
)
from tandem.spec.status import PLANNED_ONLY, Phase

# --- What is there -------------------------------------------------------------------------


def started(state: OperationState) -> Transition:
    """Read the table first. A job of an earlier session may still run, so a suspension is met only
    after that."""
    if state.request.limits.suspended:
        state = replace(state, request=replace(state.request, stop=StopRequest.SUSPEND))
    return do(state, Point.READ_TABLE)


def table_read(state: OperationState, event: TableRead) -> Transition:
    """Stop if the log says so; otherwise continue with the rest of this attempt."""
    log = replace(
        state.log,
        version=event.version,
        succeeded=event.succeeded,
        abandoned=event.abandoned,
        closed=event.closed,
        batches=event.batches,
    )
    state, attempt = replace(state, log=log), state.attempt
    if not attempt.number:
        if event.abandoned > MOST_ATTEMPTS and not (event.succeeded or event.closed):
            return attempts_exhausted(state, event.abandoned)
        return do(state, Point.CHECK_EARLIER_OUTCOME)
    if event.succeeded not in (0, attempt.number):
        # What ours wrote after (or without) the other's cleaning is ours to delete.
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        message = f"attempt {event.succeeded} succeeded instead"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number)
        return close(state, Closing(todo, ending, again=True))
    if event.succeeded:
        return do(state, Point.FIND_COMMIT)
    if event.closed or event.abandoned >= attempt.number:
        # This session is the zombie. Its files can never be committed.
        message = f"attempt {attempt.number} was abandoned by a later run; it publishes nothing"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number)
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        return close(state, Closing(todo, ending))
    if state.request.stop is not None:
        return stop(state, state.request.stop)
    if attempt.persisted:
        return do(replace(state, phase=Phase.RECONCILING), Point.RECONCILE)
    return do(state, Point.PLAN)


def earlier_found(state: OperationState, event: EarlierFound) -> Transition:
    """Report an ending that is known; otherwise close, adopt or clean what earlier sessions
    left."""
    log, limits = state.log, state.request.limits
    if event.recorded is not None and not (
        log.succeeded and event.recorded.reason is not Reason.COMMITTED
    ):
        return _end_recorded(state, event.recorded, event.attempt)
    attempt = replace(state.attempt, last_claimed=event.attempt, failures=event.failures)
    state = _with_yields(replace(state, attempt=attempt), event)
    if log.succeeded:
        return do(_work_on(state, log.succeeded), Point.FIND_COMMIT)
    if event.closing is not None:
        if limits.dry_run:
            return end(state, event.closing)
        cleaning = (Point.CLEAN_ATTEMPT,) if log.closed else ()
        todo = (*cleaning, Point.RECORD_RESULT)
        return close(_work_on(state, event.attempt), Closing(todo, event.closing))
    if not event.attempt or limits.dry_run:
        return (
            do(state, Point.PLAN) if state.request.stop is None else stop(state, state.request.stop)
        )
    if event.alive:
        message = f"attempt {event.attempt} is being run by {event.alive}"
        return end(state, Ending(Phase.FAILED, Reason.ALREADY_RUNNING, message, event.attempt))
    if event.attempt > log.abandoned and state.request.stop is not None:
        return stop(state, state.request.stop)
    if event.attempt > log.abandoned and not event.ended:
        return _take_over(_work_on(state, event.attempt), event)
    if event.failures > limits.backoff_limit:
        message = f"{event.failures} attempts failed, and backoffLimit is {limits.backoff_limit}"
        ending = Ending(
            Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message, event.attempt, plan=attempt.plan
        )
        todo = (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RECORD_RESULT)
        return close(_work_on(state, event.attempt), Closing(todo, ending, closes=True))
    if state.request.stop is not None:
        return stop(state, state.request.stop)
    # The cleaning after an abandonment may have been interrupted. None of these attempts is ours,
    # so the effect names them. Later ones may still commit.
    delay_ms = _wait_ms(state, event)
    if delay_ms:
        yields = replace(state.yields, next_try_ms=event.now_ms + delay_ms)
        state = replace(state, yields=yields)
    return perform(state, Effect(Point.CLEAN_ATTEMPT, log.abandoned, delay_ms=delay_ms))


def _end_recorded(state: OperationState, recorded: Ending, last: int) -> Transition:
    """Report an ending that is known; first delete what came too late for the one that recorded it.

    That session cannot know of an attempt that was claimed since it was taken for dead, and has
    cleaned up before this one wrote the last files of an attempt that it gave up.
    """
    log, given_up = state.log, state.attempt.given_up
    if state.request.limits.dry_run:
        return end(state, recorded)
    if log.succeeded and log.succeeded == given_up:
        closing = Closing((Point.CLEAN_UNUSED,), recorded)
        return close(_work_on(state, given_up), closing)
    if given_up or 0 < log.succeeded < last:
        closing = Closing((Point.CLEAN_ATTEMPT,), recorded)
        return close(_work_on(state, max(last, given_up)), closing)
    return end(state, recorded)


def _with_yields(state: OperationState, event: EarlierFound) -> OperationState:
    """The state with the yields of earlier attempts, in any process."""
    found, limit = event.yields, state.request.limits.exclusive
    if limit is None or not found.count:
        return state
    state = replace(state, yields=YieldState(found.count, found.by))
    if state.exclusive:
        return state
    message = f"yields: {found.count}, the last one to {found.by}; goes on as Concurrent"
    return replace(state, message=message)


def _wait_ms(state: OperationState, event: EarlierFound) -> int:
    """What is left of the time between the last yield and the next attempt."""
    found, limit = event.yields, state.request.limits.exclusive
    if limit is None or not found.count or not state.exclusive:
        return 0
    # The store's clock may be ahead of ours.
    waited_ms = max(0, event.now_ms - found.last_ms)
    return max(0, limit.backoff_ms(found.count) - waited_ms)


def _work_on(state: OperationState, number: int) -> OperationState:
    return replace(state, attempt=replace(state.attempt, number=number))


def _take_over(state: OperationState, event: EarlierFound) -> Transition:
    """Continue an attempt whose session is gone, or start over."""
    if event.complete or event.running:
        return do(state, Point.ADOPT_ATTEMPT)
    return _end_earlier(state, "ended without a result", counted=event.begun)


def _end_earlier(state: OperationState, why: str, *, counted: bool = True) -> Transition:
    ending = Ending(Phase.FAILED, Reason.ABANDONED, why, state.attempt.number)
    todo = (*START_OVER, Point.RELEASE_LOCKS)
    return close(state, Closing(todo, ending, again=True, counted=counted))


def commit_found(state: OperationState, event: CommitFound) -> Transition:
    """The commit is there already: report it. It is an earlier session's unless this one has
    worked on the attempt."""
    earlier_ms = 0 if state.attempt.owned else event.committed_ms
    return succeed(_work_on(state, state.log.succeeded), event.result, earlier_ms=earlier_ms)


def attempt_adopted(state: OperationState, event: AttemptAdopted) -> Transition:
    """Continue with the results of an earlier session, or with its job that still runs."""
    state = replace(
        state,
        attempt=replace(state.attempt, owned=True, plan=event.plan, persisted=True),
        job=replace(state.job, round=event.round, adopted=event.awaited),
        phase=Phase.RUNNING if event.awaited else Phase.PLANNED,
    )
    return do(state, Point.ACQUIRE_LOCKS)


def adoption_refused(state: OperationState, event: AdoptionRefused) -> Transition:
    """What is left of the attempt cannot be used: start over."""
    return _end_earlier(state, event.why)


# --- Plan, locks, job ----------------------------------------------------------------------


LONGEST_REFUSAL_MS = 120_000
"""The longest pause before the cluster is asked again to take a job."""
_REFUSED_AGAIN_MS = 2_000


def plan_made(state: OperationState, event: PlanMade) -> Transition:
    """Claim an attempt for the plan and take its locks, unless there is nothing to do."""
    attempt = replace(state.attempt, plan=event.plan, without_job=event.without_job)
    state = replace(state, attempt=attempt)
    if state.request.limits.dry_run:
        message = event.nothing_to_do or PLANNED_ONLY
        return end(state, Ending(Phase.SUCCEEDED, Reason.DRY_RUN, message, plan=event.plan))
    if event.nothing_to_do:
        ending = Ending(
            Phase.SUPERSEDED if event.superseded else Phase.SUCCEEDED,
            Reason.SUPERSEDED if event.superseded else Reason.NOTHING_TO_DO,
            with_batches(event.nothing_to_do, state.log.batches),
            state.attempt.number, plan=event.plan,
        )  # fmt: skip
        return end_before_start(state, ending)
    state = replace(state, phase=Phase.PLANNED)
    return do(state, Point.ACQUIRE_LOCKS) if state.attempt.number else claim(state)


def claim_lost(state: OperationState) -> Transition:
    """The session that was faster is alive, on any host: leave the operation to it."""
    message = "another process has just started the same operation"
    return end(state, Ending(Phase.FAILED, Reason.ALREADY_RUNNING, message))


def locks_granted(state: OperationState, event: LocksGranted) -> Transition:
    """Start the job, or continue where the locks were lost."""
    before = state.locks
    state = replace(state, locks=LockState(event.token))
    if state.job.adopted:
        return do(replace(state, job=replace(state.job, adopted=False)), Point.POLL_JOB)
    if before.lost and not before.waited:
        # The put detects commits made meanwhile. Reading the log first would take so long that
        # two sessions that take the locks from each other might never commit.
        return do(state, Point.ENTER_COMMIT)
    state = replace(state, phase=Phase.LOCKED)
    if state.attempt.persisted:
        return do(state, Point.READ_TABLE)
    if before.waited:
        # The holder before us may have changed what we planned on (I-28).
        return do(state, Point.READ_TABLE)
    return do(state, Point.PERSIST_PLAN)


def locks_waiting(state: OperationState, event: LocksWaiting) -> Transition:
    """Wait for a while, then request the locks again."""
    locks = replace(
        state.locks,
        blockers=event.blockers,
        waiting_since_ms=state.locks.waiting_since_ms or event.now_ms,
        waited=True,
    )
    return do(replace(state, locks=locks), Point.AWAIT_LOCKS)


def start_refused(state: OperationState, event: StartRefused) -> Transition:
    """Release the locks and plan again later, or end: no job has run, so that the log keeps
    nothing of it and another run starts over."""
    if event.certain:
        attempt = replace(state.attempt, persisted=False)
        state = replace(state, attempt=attempt, phase=Phase.PENDING)
    if not event.passing:
        return give_up(state, Phase.FAILED, event.reason, event.message, closes=False)
    refusal = state.refusal
    tries = 0 if refusal is None else refusal.tries
    delay_ms = min(LONGEST_REFUSAL_MS, _REFUSED_AGAIN_MS * 2 ** min(tries, 16))
    delay_ms = int(delay_ms * (0.75 + event.spread / 2))
    since_ms = event.now_ms if refusal is None else refusal.since_ms
    refusal = Refusal(
        event.reason, event.message, since_ms, tries + 1, event.now_ms + delay_ms, delay_ms
    )
    state = replace(state, refusal=refusal)
    if event.certain:
        return do(state, Point.RELEASE_LOCKS)
    return give_up(
        state,
        Phase.FAILED,
        event.reason,
        event.message,
        again=True,
        counted=False,
        delay_ms=delay_ms,
    )


def refused_released(state: OperationState) -> Transition:
    """The locks of a refused job are released: plan again when the cluster is asked again."""
    refusal = state.refusal
    assert refusal is not None
    state = replace(state, locks=LockState())
    return do(state, Point.READ_TABLE, delay_ms=refusal.delay_ms)


def job_running(state: OperationState, event: JobRunning) -> Transition:
    """Look again after a pause."""
    job = state.job
    delay_ms = job.pause_ms(state.request.limits.poll_ms)
    job = replace(
        job, progress=event.progress or job.progress, awaited_ms=job.awaited_ms + delay_ms
    )
    state, effects = do(replace(state, job=job), Point.POLL_JOB, delay_ms=delay_ms)
    pending = replace(state.pending, waiting_reason=event.waiting_reason)
    return replace(state, pending=pending), effects


def job_lost(state: OperationState, event: JobLost) -> Transition:
    """The attempt failed with its job."""
    return fail(state, event.reason, event.message, fresh=event.transient)


def yield_required(state: OperationState, event: YieldRequired) -> Transition:
    """Stop the job and release the locks; the next attempt decides when it begins."""
    return give_way(state, event.by)


def round_done(state: OperationState, event: RoundDone) -> Transition:
    """Read and verify the results."""
    progress = None if state.job.progress is None else state.job.progress.completed()
    job = replace(state.job, round=event.round, progress=progress)
    return do(replace(state, job=job), Point.READ_RESULT)


# --- Commit, or an end ---------------------------------------------------------------------


def decided(state: OperationState, event: Decided) -> Transition:
    """Commit, evaluate more rows, or give up, as reconciliation has decided."""
    if event.verdict is Verdict.COMMIT:
        return do(state, Point.WRITE_SIDECARS)
    if event.verdict is Verdict.EVALUATE:
        job = replace(state.job, round=state.job.round + 1)
        return do(replace(state, job=job), Point.REQUEST_ROUND)
    if event.verdict is Verdict.SUPERSEDED:
        why = with_batches(event.why, state.log.batches)
        return give_up(state, Phase.SUPERSEDED, Reason.SUPERSEDED, why)
    if event.verdict is Verdict.REPLAN:
        return give_up(state, Phase.FAILED, Reason.RETRYING, event.why, again=True, counted=False)
    return fail(state, event.reason, event.why, fresh=False)


def locks_gone(state: OperationState, event: LocksGone) -> Transition:
    """Give up if a higher priority revoked the locks; acquire them again if they were lost."""
    if event.revoked:
        message = "an operation of higher priority took the locks"
        return give_up(
            state, Phase.FAILED, Reason.WAITING_FOR_LOCK, message, again=True, counted=False
        )
    locks = replace(state.locks, lost=True, waited=False)
    return do(replace(state, locks=locks), Point.ACQUIRE_LOCKS)


def commit_put(state: OperationState, event: CommitPut) -> Transition:
    """The commit is in the log."""
    log = replace(state.log, succeeded=state.attempt.number)
    return succeed(replace(state, log=log), event.result)


def commit_lost(state: OperationState) -> Transition:
    """Read the log again, and reconcile with what others have committed: the version is theirs, or
    the put was not made, or has not become visible."""
    if state.attempt.unknown_puts > state.request.limits.effect_retries:
        return fail(
            state, Reason.STORAGE_ERROR, "every attempt to write the commit failed", fresh=True
        )
    return do(state, Point.READ_TABLE)


def commit_unknown(state: OperationState) -> Transition:
    """Look up, after a pause, whose commit it is."""
    attempt = state.attempt
    delay = state.request.limits.retry_delay_ms * 2**attempt.unknown_puts // 4
    attempt = replace(attempt, unknown_puts=attempt.unknown_puts + 1)
    return do(replace(state, attempt=attempt), Point.LOOK_UP_COMMIT, delay_ms=delay)


def abandon_refused(state: OperationState, event: AbandonRefused) -> Transition:
    """An attempt has committed: report that instead of the ending that was meant."""
    state = replace(state, outcome=replace(state.outcome, closing=None))
    if event.attempt != state.attempt.number:
        # Files that we wrote after another session cleaned are ours to delete.
        return do(state, Point.READ_TABLE)
    log = replace(state.log, succeeded=event.attempt)
    return do(replace(state, log=log), Point.FIND_COMMIT)


def abandoned_before(state: OperationState) -> Transition:
    """Another session goes on with the operation, and reports how it ends."""
    attempt = state.attempt
    message = f"attempt {attempt.number} was declared dead and ended by another session"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number, plan=attempt.plan)
    wrote = () if state.outcome.ended_before_start is not None else (Point.CLEAN_ATTEMPT,)
    return close(state, Closing((*wrote, Point.RELEASE_LOCKS), ending))


def ended_before_start(state: OperationState) -> Transition:
    """Another process has ended the operation: start over to find out how."""
    message = "another process has ended the operation"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt.number)
    return close(state, Closing(unlock(state), ending, again=True))


def recorded_before(state: OperationState, event: RecordedBefore) -> Transition:
    """That ending may have been reported: report the same."""
    closing = state.outcome.closing
    assert closing is not None
    return close(state, replace(closing, ending=event.ending))
