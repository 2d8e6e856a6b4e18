"""The machine: `step(state, event) -> (state, effects)`. Pure: no I/O, no clock, no randomness.

The course of an operation without failures or conflicts:

    ReadTable → CheckEarlierOutcome → Plan → ClaimAttempt → AcquireLocks → PersistPlan → StartJob
    → PollJob… → ReadResult → ReadTable → Reconcile → WriteSidecars → EnterCommit → PutCommit
    → FinishJob → StopJob → ReleaseLocks → CleanUnused → RecordResult → Maintain

The commit loop goes back to ReadTable whenever another writer was faster. Both markers (a visible
success, an abandonment of our attempt) are checked in the same version that the next put builds
on, so that put-if-absent makes check and put atomic (docs/decisions/0031).
"""

from __future__ import annotations

from dataclasses import replace

from tandem.operations.machine import phases, transitions
from tandem.operations.machine.events import (
    AbandonedBefore,
    AbandonRefused,
    AdoptionRefused,
    AttemptAdopted,
    ClaimLost,
    CommitFound,
    CommitLost,
    CommitPut,
    CommitUnknown,
    Decided,
    EarlierFound,
    EffectDone,
    EffectFailed,
    EndedBeforeStart,
    Event,
    JobLost,
    JobRunning,
    LocksGone,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    PrerequisiteFound,
    RecordedBefore,
    RoundDone,
    Started,
    StartRefused,
    StopRequest,
    TableRead,
    YieldRequired,
)
from tandem.operations.machine.state import LockState, OperationState
from tandem.operations.machine.transitions import Transition, close, do, end_before_start
from tandem.spec.status import Phase


def step(state: OperationState, event: Event) -> Transition:
    """What follows from `event`; an ended operation ignores everything."""
    if state.outcome.ended is not None:
        return state, ()
    match event:
        case Started():
            return phases.started(state)
        case TableRead():
            return phases.table_read(state, event)
        case EarlierFound():
            return phases.earlier_found(state, event)
        case CommitFound():
            return phases.commit_found(state, event)
        case AttemptAdopted():
            return phases.attempt_adopted(state, event)
        case AdoptionRefused():
            return phases.adoption_refused(state, event)
        case PrerequisiteFound():
            # Then plan on what it has committed. Locks of an earlier plan were released for it.
            log = replace(state.log, batches=max(state.log.batches, event.batches))
            return do(replace(state, locks=LockState(), log=log), Point.READ_TABLE)
        case PlanMade():
            return phases.plan_made(state, event)
        case ClaimLost():
            return phases.claim_lost(state)
        case LocksGranted():
            return phases.locks_granted(state, event)
        case LocksWaiting():
            return phases.locks_waiting(state, event)
        case StartRefused():
            return phases.start_refused(state, event)
        case JobRunning():
            return phases.job_running(state, event)
        case JobLost():
            return phases.job_lost(state, event)
        case YieldRequired():
            return phases.yield_required(state, event)
        case RoundDone():
            return phases.round_done(state, event)
        case Decided():
            return phases.decided(state, event)
        case LocksGone():
            return phases.locks_gone(state, event)
        case CommitPut():
            return phases.commit_put(state, event)
        case CommitLost():
            return phases.commit_lost(state)
        case CommitUnknown():
            return phases.commit_unknown(state)
        case AbandonRefused():
            return phases.abandon_refused(state, event)
        case AbandonedBefore():
            return phases.abandoned_before(state)
        case EndedBeforeStart():
            return phases.ended_before_start(state)
        case RecordedBefore():
            return phases.recorded_before(state, event)
        case EffectFailed():
            return transitions.failed(state, event)
        case StopRequest():
            return transitions.requested(state, event)
        case EffectDone():
            return _done(state, event)


_NEXT = {
    Point.CLEAN_ATTEMPT: Point.PLAN,
    Point.AWAIT_LOCKS: Point.ACQUIRE_LOCKS,
    Point.PERSIST_PLAN: Point.START_JOB,
    Point.REQUEST_ROUND: Point.POLL_JOB,
    Point.READ_RESULT: Point.READ_TABLE,
    Point.WRITE_SIDECARS: Point.ENTER_COMMIT,
    Point.ENTER_COMMIT: Point.PUT_COMMIT,
}
"""The transition after an effect that has no answer."""


def _done(state: OperationState, event: EffectDone) -> Transition:
    if state.outcome.closing is not None:
        return close(state, state.outcome.closing)
    if event.point is Point.CLAIM_ATTEMPT and state.pending.effect is not None:
        return _claimed(state, state.pending.effect.attempt)
    if event.point is Point.CLEAN_ATTEMPT:  # and what a yield had to wait for is over
        state = replace(state, yields=replace(state.yields, next_try_ms=0))
    if event.point is Point.START_JOB:
        delay_ms = state.request.limits.poll_ms
        state = replace(state, phase=Phase.RUNNING, refusal=None)
        return do(state, Point.POLL_JOB, delay_ms=delay_ms)
    if event.point is Point.RELEASE_LOCKS:
        return phases.refused_released(state)
    if event.point is Point.PERSIST_PLAN:
        state = replace(state, attempt=replace(state.attempt, persisted=True))
        if state.attempt.without_job:
            return do(state, Point.READ_RESULT)
    elif event.point is Point.REQUEST_ROUND:
        state = replace(state, job=replace(state.job, awaited_ms=0))
    elif event.point is Point.READ_RESULT:
        state = replace(state, phase=Phase.RECONCILING)
    return do(state, _NEXT[event.point])


def _claimed(state: OperationState, number: int) -> Transition:
    state = replace(state, attempt=replace(state.attempt, number=number, owned=True))
    ending = state.outcome.ended_before_start
    if ending is not None:
        return end_before_start(state, replace(ending, attempt=number))
    return do(state, Point.ACQUIRE_LOCKS)
