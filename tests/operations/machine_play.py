"""The events of an undisturbed operation, and the effects that the machine requests for them."""

from __future__ import annotations

from tandem.operations.machine.events import (
    Decided,
    EarlierFound,
    Effect,
    EffectDone,
    Event,
    LocksGranted,
    PlanMade,
    Point,
    RoundDone,
    Started,
    TableRead,
    Verdict,
)
from tandem.operations.machine.state import Limits, OperationState, Request
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


def points(effects: list[Effect]) -> list[Point]:
    return [effect.point for effect in effects]


BEGIN: list[Event] = [Started(), TableRead(3), EarlierFound(), PlanMade(PLAN)]
RUNNING: list[Event] = [
    *BEGIN,
    EffectDone(Point.CLAIM_ATTEMPT),
    LocksGranted(1),
    EffectDone(Point.PERSIST_PLAN),
    EffectDone(Point.START_JOB),
]


RECONCILING: list[Event] = [*RUNNING, RoundDone(0), EffectDone(Point.READ_RESULT), TableRead(3)]
PUTTING: list[Event] = [
    *RECONCILING,
    Decided(3, Verdict.COMMIT),
    EffectDone(Point.WRITE_SIDECARS),
    EffectDone(Point.ENTER_COMMIT),
]
