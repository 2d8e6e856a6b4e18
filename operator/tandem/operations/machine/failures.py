"""What follows when an effect failed: patience, another try, another attempt, or the way out.

Pure, like `step`, whose part this is. What is told for good is recorded first; where that cannot
be done, the message says so.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.effects import Point
from tandem.operations.machine.events import EffectFailed, Ending
from tandem.operations.machine.state import Closing, OperationState
from tandem.operations.machine.transitions import (
    UNRECORDED,
    Step,
    close,
    do,
    end_unbegun,
    fail,
    unlock,
)
from tandem.spec.status import Phase

LONGEST_PATIENCE_MS = 10_000
"""How long it waits at most before it asks a service again that did not answer."""


def failed(state: OperationState, event: EffectFailed) -> Step:
    """Try it again as long as that may help; then fail, as far as that is still possible."""
    # On the way out nobody is waited for: leases expire by themselves, and jobs are owned.
    patient = event.patient and state.closing is None
    if patient or (event.retryable and state.retries < state.limits.effect_retries):
        delay = state.limits.retry_delay_ms * 2 ** min(state.retries, 16) // 4
        if patient:
            delay = min(delay, LONGEST_PATIENCE_MS)
            message = f"waits, nothing is lost: {event.message}"
            state = state.at(hindrance=(event.reason, message))
        effect = replace(event.effect, delay_ms=delay)
        return state.at(retries=state.retries + 1, waiting=effect), (effect,)
    if state.unbegun is not None and event.effect.point is not Point.RELEASE_LOCKS:
        return _untold(state, state.unbegun, event)
    if state.closing is not None:
        return _closing_failed(state, state.closing, event)
    if event.effect.point is Point.LOOK_UP_COMMIT:
        return _unknown(state, event, f"whether version {event.effect.version} is ours is unknown")
    if event.effect.point is Point.FIND_COMMIT:
        return _unknown(state, event, f"attempt {state.attempt} has committed, we cannot read what")
    if event.effect.point is Point.PLAN:
        return _plan_failed(state, event)
    return fail(state, event.reason, event.message, fresh=event.fresh)


def _unknown(state: OperationState, event: EffectFailed, what: str) -> Step:
    """Committed, or perhaps: nothing may be deleted, nothing claimed, and nobody may be advised
    to do it once more (Z20)."""
    message = f"{what}: {event.message}. Run it again to find out"
    ending = Ending(Phase.FAILED, Reason.STORAGE_ERROR, message, state.attempt)
    return close(state, Closing((Point.STOP_JOB, Point.RELEASE_LOCKS), ending))


def _plan_failed(state: OperationState, event: EffectFailed) -> Step:
    if event.fresh and _may_be_outdated(state):
        # A vacuum may have taken what this version names: is there another one by now?
        return do(state, Point.READ_TABLE, unreadable=(*state.unreadable, state.version))
    again = event.reason in UNRECORDED or (event.fresh and state.attempt)
    if again or state.limits.dry_run:
        return fail(state, event.reason, event.message, fresh=event.fresh)
    return end_unbegun(
        state, Ending(Phase.FAILED, event.reason, event.message, state.attempt, plan=state.plan)
    )


def _may_be_outdated(state: OperationState) -> bool:
    known, tries = state.unreadable, state.limits.effect_retries
    return state.version not in known and len(known) < tries


def _untold(state: OperationState, ending: Ending, event: EffectFailed) -> Step:
    """What a plan came to may be told only once nobody can begin any more."""
    message = f"{ending.message}; this could not be recorded: {event.message}"
    untold = Ending(Phase.FAILED, event.reason, message, state.attempt, plan=state.plan)
    return close(state, Closing(unlock(state), untold))


def _closing_failed(state: OperationState, closing: Closing, event: EffectFailed) -> Step:
    """On the way out nothing but an abandonment matters: without it, files must stay."""
    if event.effect.point is not Point.ABANDON_ATTEMPT:
        return close(state, closing)
    meant = closing.ending
    message = f"{meant.message}; the attempt could not be closed: {event.message}. A later run "
    message += "may go on with it"
    resumes = meant.phase is Phase.SUSPENDED or meant.reason in UNRECORDED
    ending = (
        replace(meant, message=message)
        if resumes and not closing.again
        else Ending(Phase.FAILED, event.reason, message, state.attempt, plan=state.plan)
    )
    return close(state, Closing((Point.RELEASE_LOCKS,), ending))
