"""The machine: `step(state, event) -> (state, effects)`. Pure: no I/O, no clock, no randomness.

The straight way of an operation:

    ReadTable → CheckEarlierOutcome → Plan → ClaimAttempt → AcquireLocks → PersistPlan → StartJob
    → PollJob… → ReadResult → ReadTable → Reconcile → WriteSidecars → EnterCommit → PutCommit
    → FinishJob → StopJob → ReleaseLocks → CleanUnused → RecordResult → Maintain

The commit loop goes back to ReadTable whenever somebody else was faster. Both stops (a visible
success, an abandonment of our attempt) are looked for in the very version that the next put
builds on, so that put-if-absent makes look and put one (design, "Exactly once").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tandem.errors import Reason
from tandem.operations.attempt.paths import MOST_ATTEMPTS
from tandem.operations.machine.effects import Effect, Point
from tandem.operations.machine.events import (
    AbandonedBefore,
    AbandonRefused,
    AdoptionRefused,
    Ask,
    Asked,
    AttemptAdopted,
    ClaimLost,
    CommitFound,
    CommitLost,
    CommitPut,
    CommitRefused,
    CommitUnknown,
    Decided,
    Done,
    EarlierFound,
    EffectFailed,
    EndedUnbegun,
    Ending,
    Event,
    JobLost,
    JobRunning,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    RecordedBefore,
    RoundDone,
    Started,
    TableRead,
    Verdict,
)
from tandem.operations.machine.failures import failed
from tandem.operations.machine.state import Closing, OperationState
from tandem.operations.machine.stop_requests import asked, stop
from tandem.operations.machine.transitions import (
    GIVE_UP,
    Step,
    claim,
    close,
    do,
    end,
    end_unbegun,
    fail,
    give_up,
    perform,
    succeed,
    too_many,
    unlock,
)
from tandem.spec.status import PLANNED_ONLY, Phase


def step(state: OperationState, event: Event) -> Step:
    """What follows from `event`; an ended operation ignores everything."""
    if state.ended is not None:
        return state, ()
    return _HANDLERS[type(event)](state, event)


# Finding out where we are -------------------------------------------------------------------


def _started(state: OperationState, _event: Started) -> Step:
    # An earlier run may have left something at work: what is asked for concerns that too.
    asked = Ask.SUSPEND if state.limits.suspended else state.asked
    return do(state, Point.READ_TABLE, asked=asked)


def _table_read(state: OperationState, event: TableRead) -> Step:
    state = state.at(
        version=event.version,
        succeeded=event.succeeded,
        abandoned=event.abandoned,
        closed=event.closed,
    )
    if not state.attempt:
        if event.abandoned > MOST_ATTEMPTS and not (event.succeeded or event.closed):
            return too_many(state, event.abandoned)
        return do(state, Point.CHECK_EARLIER_OUTCOME)
    if event.succeeded > state.attempt <= event.abandoned:
        # A later attempt succeeded, and cleaned before we wrote (the rest of) our files.
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        message = f"attempt {state.attempt} was abandoned, attempt {event.succeeded} succeeded"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt)
        return close(state, Closing(todo, ending, again=True))
    if event.succeeded:
        return do(state, Point.FIND_COMMIT)
    if event.closed or event.abandoned >= state.attempt:
        # We are the zombie. What we wrote can never be committed, whoever cleaned before.
        message = f"attempt {state.attempt} was abandoned by a later run; it publishes nothing"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt)
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        return close(state, Closing(todo, ending))
    if state.asked is not None:
        return stop(state, state.asked)
    if state.persisted:
        return do(state, Point.RECONCILE, phase=Phase.RECONCILING)
    return do(state, Point.PLAN)


def _earlier_found(state: OperationState, event: EarlierFound) -> Step:
    if event.recorded is not None and not (
        state.succeeded and event.recorded.reason is not Reason.COMMITTED
    ):
        return end(state, event.recorded)
    state = state.at(earlier=event.attempt, failures=event.failures)
    if state.succeeded:
        return do(state, Point.FIND_COMMIT, attempt=state.succeeded)
    if event.closing is not None:
        if state.limits.dry_run:
            return end(state, event.closing)
        cleaning = (Point.CLEAN_ATTEMPT,) if state.closed else ()
        todo = (*cleaning, Point.RECORD_RESULT)
        return close(state.at(attempt=event.attempt), Closing(todo, event.closing))
    if not event.attempt or state.limits.dry_run:
        return _plan_unless_asked(state)
    if event.alive:
        message = f"attempt {event.attempt} is being worked on by {event.alive}"
        return end(state, Ending(Phase.FAILED, Reason.ALREADY_RUNNING, message, event.attempt))
    if event.attempt > state.abandoned:
        state = state.at(attempt=event.attempt)
        if state.asked is not None:
            # Its job may be at work, and its files are there.
            return stop(state.at(persisted=True), state.asked)
        if event.complete or event.running:
            return do(state, Point.ADOPT_ATTEMPT)
        why = f"attempt {event.attempt} ended without a result"
        return _abandon_earlier(state, why, counted=event.begun)
    if event.failures > state.limits.backoff_limit:
        message = f"{event.failures} attempts failed, and backoffLimit is "
        message += str(state.limits.backoff_limit)
        ending = Ending(
            Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message, event.attempt, plan=state.plan
        )
        todo = (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RECORD_RESULT)
        return close(state.at(attempt=event.attempt), Closing(todo, ending, closes=True))
    if state.asked is not None:
        return stop(state, state.asked)
    # The cleaning after an abandonment may itself have been cut short. None of these attempts
    # is ours, so the effect says by itself which they are.
    return perform(state, Effect(Point.CLEAN_ATTEMPT, state.abandoned))


def _plan_unless_asked(state: OperationState) -> Step:
    return do(state, Point.PLAN) if state.asked is None else stop(state, state.asked)


def _abandon_earlier(state: OperationState, why: str, *, counted: bool = True) -> Step:
    ending = Ending(Phase.FAILED, Reason.ABANDONED, why, state.attempt)
    todo = (*GIVE_UP, Point.RELEASE_LOCKS)
    return close(state, Closing(todo, ending, again=True, counted=counted))


def _commit_found(state: OperationState, event: CommitFound) -> Step:
    return succeed(state.at(attempt=state.succeeded), event.result)


def _attempt_adopted(state: OperationState, event: AttemptAdopted) -> Step:
    return do(
        state, Point.ACQUIRE_LOCKS, plan=event.plan, round=event.round, persisted=True,
        own=True, adopting=event.awaited, phase=Phase.RUNNING if event.awaited else Phase.PLANNED,
    )  # fmt: skip


def _adoption_refused(state: OperationState, event: AdoptionRefused) -> Step:
    return _abandon_earlier(state, event.why)


# Planning and locking -----------------------------------------------------------------------


def _plan_made(state: OperationState, event: PlanMade) -> Step:
    state = state.at(plan=event.plan)
    if state.limits.dry_run:
        message = event.nothing_to_do or PLANNED_ONLY
        return end(state, Ending(Phase.SUCCEEDED, Reason.DRY_RUN, message, plan=event.plan))
    if event.nothing_to_do:
        ending = Ending(
            Phase.SUPERSEDED if event.superseded else Phase.SUCCEEDED,
            Reason.SUPERSEDED if event.superseded else Reason.NOTHING_TO_DO,
            event.nothing_to_do, state.attempt, plan=event.plan,
        )  # fmt: skip
        return end_unbegun(state, ending)
    state = state.at(phase=Phase.PLANNED)
    return do(state, Point.ACQUIRE_LOCKS) if state.attempt else claim(state)


def _claim_lost(state: OperationState, _event: ClaimLost) -> Step:
    # Whoever was faster lives right now, on whatever host: to fight over it helps nobody.
    message = "another process has just started the same operation"
    return end(state, Ending(Phase.FAILED, Reason.ALREADY_RUNNING, message))


def _locks_granted(state: OperationState, event: LocksGranted) -> Step:
    state = state.at(token=event.token, blockers=(), waiting_since_ms=0)
    if state.adopting:
        return do(state, Point.POLL_JOB, adopting=False)
    if state.lost and not state.waited:
        # Whatever was committed meanwhile, the put will meet it. To look first would take so
        # long that two drivers, who take the locks from each other, might never come to it.
        return do(state, Point.ENTER_COMMIT, lost=False)
    state = state.at(phase=Phase.LOCKED)
    if state.persisted:
        return do(state, Point.READ_TABLE, lost=False, waited=False)
    if state.waited:
        # Whoever held them may have changed what we planned on (I-28).
        return do(state, Point.READ_TABLE, waited=False)
    return do(state, Point.PERSIST_PLAN)


def _locks_waiting(state: OperationState, event: LocksWaiting) -> Step:
    since = state.waiting_since_ms or event.now_ms
    return do(
        state, Point.AWAIT_LOCKS, waited=True, blockers=event.blockers, waiting_since_ms=since
    )


# Running ------------------------------------------------------------------------------------


def _job_running(state: OperationState, event: JobRunning) -> Step:
    progress = event.progress or state.progress
    delay_ms = state.pause_ms
    state, effects = do(state, Point.POLL_JOB, delay_ms=delay_ms, progress=progress)
    awaited_ms = state.awaited_ms + delay_ms
    return state.at(hindrance=event.hindrance, awaited_ms=awaited_ms), effects


def _job_lost(state: OperationState, event: JobLost) -> Step:
    return fail(state, event.reason, event.message, fresh=event.transient)


def _round_done(state: OperationState, event: RoundDone) -> Step:
    progress = None if state.progress is None else state.progress.completed()
    return do(state, Point.READ_RESULT, round=event.round, progress=progress)


# Reconciling and committing -----------------------------------------------------------------


def _decided(state: OperationState, event: Decided) -> Step:
    if event.verdict is Verdict.COMMIT:
        return do(state, Point.WRITE_SIDECARS)
    if event.verdict is Verdict.EVALUATE:
        return do(state, Point.REQUEST_ROUND, round=state.round + 1)
    if event.verdict is Verdict.SUPERSEDED:
        return give_up(state, Phase.SUPERSEDED, Reason.SUPERSEDED, event.why)
    if event.verdict is Verdict.REPLAN:
        return give_up(state, Phase.FAILED, Reason.RETRYING, event.why, again=True, counted=False)
    return fail(state, event.reason, event.why, fresh=False)


def _commit_refused(state: OperationState, event: CommitRefused) -> Step:
    if event.revoked:
        message = "an operation of higher priority took the locks"
        return give_up(
            state, Phase.FAILED, Reason.WAITING_FOR_LOCK, message, again=True, counted=False
        )
    return do(state, Point.ACQUIRE_LOCKS, lost=True, waited=False)


def _commit_put(state: OperationState, event: CommitPut) -> Step:
    return succeed(state.at(succeeded=state.attempt), event.result)


def _commit_lost(state: OperationState, _event: CommitLost) -> Step:
    if state.unsure > state.limits.effect_retries:
        return fail(state, Reason.STORAGE_ERROR, "no put of the commit got through", fresh=True)
    return do(state, Point.READ_TABLE)


def _commit_unknown(state: OperationState, _event: CommitUnknown) -> Step:
    delay = state.limits.retry_delay_ms * 2**state.unsure // 4
    return do(state, Point.LOOK_UP_COMMIT, delay_ms=delay, unsure=state.unsure + 1)


def _abandon_refused(state: OperationState, event: AbandonRefused) -> Step:
    if event.attempt != state.attempt:
        # What we wrote since somebody else cleaned is ours to clean: see there.
        return do(state, Point.READ_TABLE, closing=None)
    return do(
        state, Point.FIND_COMMIT, closing=None, attempt=event.attempt, succeeded=event.attempt
    )


def _abandoned_before(state: OperationState, _event: AbandonedBefore) -> Step:
    # Whatever we meant to say of the operation, or to do next: the other session says and does.
    message = f"attempt {state.attempt} was taken for dead and abandoned by another session"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt, plan=state.plan)
    wrote = () if state.unbegun is not None else (Point.CLEAN_ATTEMPT,)
    return close(state, Closing((*wrote, Point.RELEASE_LOCKS), ending))


def _ended_unbegun(state: OperationState, _event: EndedUnbegun) -> Step:
    # Who looks again finds how.
    message = "another process has ended the operation"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt)
    return close(state, Closing(unlock(state), ending, again=True))


def _recorded_before(state: OperationState, event: RecordedBefore) -> Step:
    # Somebody has been told that: nobody is told anything else.
    assert state.closing is not None
    return close(state, replace(state.closing, ending=event.ending))


# Plain answers, failures, requests -----------------------------------------------------------

_NEXT = {
    Point.CLEAN_ATTEMPT: Point.PLAN,
    Point.AWAIT_LOCKS: Point.ACQUIRE_LOCKS,
    Point.PERSIST_PLAN: Point.START_JOB,
    Point.REQUEST_ROUND: Point.POLL_JOB,
    Point.READ_RESULT: Point.READ_TABLE,
    Point.WRITE_SIDECARS: Point.ENTER_COMMIT,
    Point.ENTER_COMMIT: Point.PUT_COMMIT,
}
"""What follows an effect that has nothing else to say."""


def _done(state: OperationState, event: Done) -> Step:
    if state.closing is not None:
        return close(state, state.closing)
    if event.point is Point.CLAIM_ATTEMPT and state.waiting is not None:
        state = state.at(attempt=state.waiting.attempt, own=True)
        if state.unbegun is not None:
            return end_unbegun(state, replace(state.unbegun, attempt=state.attempt))
        return do(state, Point.ACQUIRE_LOCKS)
    if event.point is Point.START_JOB:
        return do(state, Point.POLL_JOB, phase=Phase.RUNNING, delay_ms=state.limits.poll_ms)
    changes: dict[str, Any] = {}
    if event.point is Point.PERSIST_PLAN:
        changes = {"persisted": True}
    elif event.point is Point.REQUEST_ROUND:
        changes = {"awaited_ms": 0}
    elif event.point is Point.READ_RESULT:
        changes = {"phase": Phase.RECONCILING}
    return do(state, _NEXT[event.point], **changes)


_HANDLERS: dict[type[Event], Callable[[OperationState, Any], Step]] = {
    Started: _started,
    TableRead: _table_read,
    EarlierFound: _earlier_found,
    CommitFound: _commit_found,
    PlanMade: _plan_made,
    ClaimLost: _claim_lost,
    AttemptAdopted: _attempt_adopted,
    AdoptionRefused: _adoption_refused,
    LocksGranted: _locks_granted,
    LocksWaiting: _locks_waiting,
    JobRunning: _job_running,
    JobLost: _job_lost,
    RoundDone: _round_done,
    Decided: _decided,
    CommitRefused: _commit_refused,
    CommitPut: _commit_put,
    CommitLost: _commit_lost,
    CommitUnknown: _commit_unknown,
    AbandonRefused: _abandon_refused,
    AbandonedBefore: _abandoned_before,
    EndedUnbegun: _ended_unbegun,
    RecordedBefore: _recorded_before,
    Done: _done,
    EffectFailed: failed,
    Asked: asked,
}
