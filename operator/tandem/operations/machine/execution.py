"""Plans, takes the locks and runs the job, up to the results of a round.

Pure, a part of `step`.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.events import (
    Ending,
    JobLost,
    JobRunning,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    RoundDone,
    StartRefused,
    YieldRequired,
)
from tandem.operations.machine.state import LockState, OperationState, Refusal, with_batches
from tandem.operations.machine.transitions import (
    Transition,
    claim,
    do,
    end,
    end_before_start,
    fail,
    give_up,
    give_way,
)
from tandem.spec.status import PLANNED_ONLY, Phase

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
