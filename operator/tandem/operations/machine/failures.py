"""What follows when an effect failed: waiting, a retry, another attempt, or the end.

Pure, a part of `step`. A final ending is recorded before it is reported; if that fails, the
message says so.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.effects import Point
from tandem.operations.machine.events import EffectFailed, Ending
from tandem.operations.machine.parts import with_batches
from tandem.operations.machine.state import Closing, OperationState, PendingEffect
from tandem.operations.machine.transitions import (
    UNRECORDED,
    Transition,
    close,
    do,
    end_before_start,
    fail,
    unlock,
)
from tandem.spec.status import Phase

LONGEST_PATIENCE_MS = 10_000
"""The longest pause before calling a service again that did not answer."""


def failed(state: OperationState, event: EffectFailed) -> Transition:
    """Retry the effect as long as that may help; then fail, unless it is too late for that."""
    # No service is waited for while closing: leases expire by themselves, and jobs have an owner
    # reference.
    limits, pending, outcome = state.request.limits, state.pending, state.outcome
    patient = event.patient and outcome.closing is None
    if patient or (event.retryable and pending.retries < limits.effect_retries):
        delay = limits.retry_delay_ms * 2 ** min(pending.retries, 16) // 4
        waiting_reason = pending.waiting_reason
        if patient:
            delay = min(delay, LONGEST_PATIENCE_MS)
            waiting_reason = (event.reason, f"waiting, nothing is lost: {event.message}")
        effect = replace(event.effect, delay_ms=delay)
        pending = PendingEffect(effect, pending.retries + 1, waiting_reason)
        return replace(state, pending=pending), (effect,)
    if outcome.ended_before_start is not None and event.effect.point is not Point.RELEASE_LOCKS:
        return _unrecorded(state, outcome.ended_before_start, event)
    if outcome.closing is not None:
        return _closing_failed(state, outcome.closing, event)
    if event.effect.point is Point.LOOK_UP_COMMIT:
        return _unknown(state, event, f"whether version {event.effect.version} is ours is unknown")
    if event.effect.point is Point.FIND_COMMIT:
        what = f"attempt {state.attempt.number} has committed, but its result cannot be read"
        return _unknown(state, event, what)
    if event.effect.point is Point.PLAN:
        return _plan_failed(state, event)
    return fail(state, event.reason, event.message, fresh=event.fresh)


def _unknown(state: OperationState, event: EffectFailed, what: str) -> Transition:
    """The operation has committed, or may have: nothing may be deleted or claimed, and the message
    must not advise to repeat it (Z20)."""
    message = f"{what}: {event.message}. Run it again to find out"
    ending = Ending(Phase.FAILED, Reason.STORAGE_ERROR, message, state.attempt.number)
    return close(state, Closing((Point.STOP_JOB, Point.RELEASE_LOCKS), ending))


def _plan_failed(state: OperationState, event: EffectFailed) -> Transition:
    log, attempt = state.log, state.attempt
    if event.fresh and _may_be_outdated(state):
        # A vacuum may have deleted a file of this version: see whether there is a later version.
        log = replace(log, unreadable=(*log.unreadable, log.version))
        return do(replace(state, log=log), Point.READ_TABLE)
    again = event.reason in UNRECORDED or (event.fresh and attempt.number)
    if again or state.request.limits.dry_run:
        return fail(state, event.reason, event.message, fresh=event.fresh)
    message = with_batches(event.message, log.batches)
    return end_before_start(
        state, Ending(Phase.FAILED, event.reason, message, attempt.number, plan=attempt.plan)
    )


def _may_be_outdated(state: OperationState) -> bool:
    known, tries = state.log.unreadable, state.request.limits.effect_retries
    return state.log.version not in known and len(known) < tries


def _unrecorded(state: OperationState, ending: Ending, event: EffectFailed) -> Transition:
    """Recording an ending without a job failed: it may be reported only once no session can start
    the operation."""
    message = f"{ending.message}; this could not be recorded: {event.message}"
    attempt = state.attempt
    reported = Ending(Phase.FAILED, event.reason, message, attempt.number, plan=attempt.plan)
    return close(state, Closing(unlock(state), reported))


def _closing_failed(state: OperationState, closing: Closing, event: EffectFailed) -> Transition:
    """An effect of the closing failed. Only the end of the attempt matters: without it, files must
    stay, and no other attempt may follow."""
    if event.effect.point not in (Point.END_ATTEMPT, Point.ABANDON_ATTEMPT):
        return close(state, closing)
    meant = closing.ending
    message = f"{meant.message}; the attempt could not be closed: {event.message}. A later run "
    message += "may resume it"
    resumes = meant.phase is Phase.SUSPENDED or meant.reason in UNRECORDED
    ending = (
        replace(meant, message=message)
        if resumes and not closing.again
        else Ending(
            Phase.FAILED, event.reason, message, state.attempt.number, plan=state.attempt.plan
        )
    )
    return close(state, Closing((Point.RELEASE_LOCKS,), ending))
