"""Stop requests to a running operation, and when each is met.

Pure, a part of `step`. No request is lost: one that cannot be met at once, since it is not known
yet whether the operation has committed, is met as soon as possible.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.effects import Point
from tandem.operations.machine.events import Ending, StopRequest
from tandem.operations.machine.parts import committed_in_words, with_batches
from tandem.operations.machine.state import OperationState
from tandem.operations.machine.transitions import Transition, end_before_start, give_up
from tandem.spec.status import Phase

_ENDINGS = {
    StopRequest.INTERRUPT: (Phase.FAILED, Reason.INTERRUPTED, "interrupted; {committed}"),
    StopRequest.CANCEL: (
        Phase.FAILED,
        Reason.CANCELLED,
        "the resource was deleted; {committed}",
    ),
    StopRequest.SUSPEND: (Phase.SUSPENDED, Reason.SUSPENDED, "suspended; {committed}"),
    StopRequest.DEADLINE: (
        Phase.FAILED,
        Reason.DEADLINE_EXCEEDED,
        "activeDeadlineSeconds passed before the commit",
    ),
    StopRequest.TABLE_MOVED: (
        Phase.FAILED,
        Reason.TABLE_REPLACED,
        "the LakeTable was deleted and made again at another location; {committed}",
    ),
}

_FINDING_OUT = frozenset({Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME})


def requested(state: OperationState, request: StopRequest) -> Transition:
    """Meet the request: now, later, or not at all if it is too late."""
    closing = state.outcome.closing
    if state.log.succeeded or (closing is not None and not closing.again):
        # Too late: a visible commit is reported, and an ending stays as it is.
        return _again(state)
    if closing is not None or _must_look_first(state, request):
        return _again(replace(state, request=replace(state.request, stop=request)))
    if state.outcome.ended_before_start is not None and request is StopRequest.DEADLINE:
        return _again(state)  # it ends as it is
    return stop(state, request)


def _must_look_first(state: OperationState, request: StopRequest) -> bool:
    point = state.pending.effect.point if state.pending.effect is not None else None
    if point is Point.LOOK_UP_COMMIT:
        return True  # perhaps it has committed
    # It is not known yet whether it has committed and whether a job runs. An interrupt does not
    # wait for that: the next run finds out.
    waits = request is not StopRequest.INTERRUPT
    return waits and not state.attempt.number and point in _FINDING_OUT


def _again(state: OperationState) -> Transition:
    """Request the pending effect again, which the stop request preempted; without a delay if the
    request waits for it."""
    pending = state.pending
    if pending.effect is None:
        return state, ()
    delay = pending.effect.delay_ms if state.request.stop is None else 0
    effect = replace(pending.effect, delay_ms=delay)
    return replace(state, pending=replace(pending, effect=effect)), (effect,)


def stop(state: OperationState, request: StopRequest) -> Transition:
    """Give up the current work. The state of the operation is known by now."""
    phase, reason, text = _ENDINGS[request]
    message = text.format(committed=committed_in_words(state.log.batches))
    is_deadline = request is StopRequest.DEADLINE
    if is_deadline:
        message = with_batches(message, state.log.batches)
    state = replace(state, request=replace(state.request, stop=None))
    attempt, dry_run = state.attempt, state.request.limits.dry_run
    if not (attempt.number or dry_run) and attempt.last_claimed > state.log.abandoned:
        # Earlier attempts may have a job that runs, and files; and may yet be committed.
        attempt = replace(attempt, number=attempt.last_claimed, persisted=True)
        state = replace(state, attempt=attempt)
    if is_deadline and not attempt.number and not dry_run:
        return end_before_start(state, Ending(phase, reason, message))
    if state.refusal is not None and is_deadline:
        # No job has run: the log keeps nothing of it, and another run starts over.
        message = f"{message}: {state.refusal.message}"
        return give_up(state, phase, reason, message, closes=False)
    return give_up(state, phase, reason, message, counted=is_deadline)
