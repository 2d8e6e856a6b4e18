"""What people, deadlines and controllers ask of an operation under way, and when it is done.

Pure, like `step`, whose part this is. Nothing that was asked for is forgotten: what cannot be
done at once (it is not known yet whether it has committed) is done as soon as it can be.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.effects import Point
from tandem.operations.machine.events import Ask, Asked, Ending
from tandem.operations.machine.state import OperationState
from tandem.operations.machine.transitions import Step, end_unbegun, give_up
from tandem.spec.status import Phase

_ASKED = {
    Ask.INTERRUPT: (Phase.FAILED, Reason.INTERRUPTED, "interrupted; nothing was committed"),
    Ask.CANCEL: (
        Phase.FAILED,
        Reason.CANCELLED,
        "the resource was deleted; nothing was committed",
    ),
    Ask.SUSPEND: (Phase.SUSPENDED, Reason.SUSPENDED, "suspended; nothing was committed"),
    Ask.DEADLINE: (
        Phase.FAILED,
        Reason.DEADLINE_EXCEEDED,
        "activeDeadlineSeconds passed before the commit",
    ),
}


_FINDING_OUT = frozenset({Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME})


def asked(state: OperationState, event: Asked) -> Step:
    """Do what is asked for: now, later, or not at all since it is too late."""
    if state.succeeded or (state.closing is not None and not state.closing.again):
        # Too late: what is visible is reported, and what ends, ends.
        return _again(state)
    if state.closing is not None or _must_look_first(state, event.what):
        return _again(state.at(asked=event.what))
    if state.unbegun is not None and event.what is Ask.DEADLINE:
        return _again(state)  # it ends as it is
    return stop(state, event.what)


def _must_look_first(state: OperationState, what: Ask) -> bool:
    point = state.waiting.point if state.waiting is not None else None
    if point is Point.LOOK_UP_COMMIT:
        return True  # perhaps it has committed
    # Whether it has, and what is still at work, is not known yet. Who interrupts will not wait
    # for it, and the next run finds it out.
    return what is not Ask.INTERRUPT and not state.attempt and point in _FINDING_OUT


def _again(state: OperationState) -> Step:
    """The effect under way once more, which the request came before; and no longer wait."""
    if state.waiting is None:
        return state, ()
    effect = replace(state.waiting, delay_ms=0 if state.asked else state.waiting.delay_ms)
    return state.at(waiting=effect), (effect,)


def stop(state: OperationState, what: Ask) -> Step:
    """Give up what is under way, as was asked. Where an operation stands is known by now."""
    phase, reason, message = _ASKED[what]
    if what is Ask.DEADLINE and not state.attempt and not state.limits.dry_run:
        return end_unbegun(state.at(asked=None), Ending(phase, reason, message))
    return give_up(state.at(asked=None), phase, reason, message, counted=what is Ask.DEADLINE)
