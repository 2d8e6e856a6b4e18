"""The events of an undisturbed operation, and the effects that the machine requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.present import present
from tandem.operations.machine.events import (
    Decided,
    EarlierFound,
    Effect,
    EffectDone,
    Ending,
    Event,
    LocksGranted,
    PlanMade,
    Point,
    RoundDone,
    Started,
    TableRead,
    Verdict,
)
from tandem.operations.machine.state import Closing, Limits, OperationState, Request
from tandem.operations.machine.step import step
from tandem.spec.status import OperationResult, Plan

PLAN = Plan(read_version=3, inputs=2, input_bytes=20, segments=("0", "1"))
RESULT = OperationResult(version=4)


def play(events: list[Event], limits: Limits | None = None) -> tuple[OperationState, list[Effect]]:
    """The state and all effects after these events."""
    state = OperationState(Request(limits or Limits()))
    effects: list[Effect] = []
    for event in events:
        state, found = step(state, event)
        effects += found
    return state, effects


def points(effects: Sequence[Effect]) -> list[Point]:
    return [effect.point for effect in effects]


def closing(state: OperationState) -> Closing:
    """The end of an attempt that is on its way out."""
    return present(state.outcome.closing)


def ended(state: OperationState) -> Ending:
    return present(state.outcome.ended)


def done(*points: Point) -> list[Event]:
    """These effects, one after the other."""
    return [EffectDone(point) for point in points]


def found(version: int = 3, /, **earlier: Any) -> list[Event]:
    """A process that starts, and finds this of earlier ones."""
    return [Started(), TableRead(version), EarlierFound(**earlier)]


BEGIN: list[Event] = [*found(), PlanMade(PLAN)]
CLAIMED: list[Event] = [*BEGIN, EffectDone(Point.CLAIM_ATTEMPT)]
RUNNING: list[Event] = [*CLAIMED, LocksGranted(1), *done(Point.PERSIST_PLAN, Point.START_JOB)]
RECONCILING: list[Event] = [*RUNNING, RoundDone(0), EffectDone(Point.READ_RESULT), TableRead(3)]
DECIDED: list[Event] = [*RECONCILING, Decided(3, Verdict.COMMIT), EffectDone(Point.WRITE_SIDECARS)]
PUTTING: list[Event] = [*DECIDED, EffectDone(Point.ENTER_COMMIT)]
