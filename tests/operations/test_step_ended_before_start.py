"""The machine alone: operations that end when they are planned, without a commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operations.machine_play import (
    BEGIN,
    CLAIMED,
    PLAN,
    done,
    ended,
    found,
    play,
    points,
)
from tandem.errors import Reason
from tandem.operations.machine.events import (
    AbandonedBefore,
    ClaimLost,
    Effect,
    EffectDone,
    EffectFailed,
    EndedBeforeStart,
    Ending,
    Event,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    StopRequest,
    TableRead,
)
from tandem.operations.machine.state import Limits
from tandem.spec.status import Phase

NOTHING: Event = PlanMade(PLAN, nothing_to_do="nothing")
REFUSED: Event = EffectFailed(Effect(Point.PLAN), Reason.UNSUPPORTED_FEATURE, "refused")
ENDED_BEFORE_START = [
    (NOTHING, Ending(Phase.SUCCEEDED, Reason.NOTHING_TO_DO, "nothing", 1, plan=PLAN)),
    (REFUSED, Ending(Phase.FAILED, Reason.UNSUPPORTED_FEATURE, "refused", 1)),
]


@pytest.mark.parametrize(("planned", "ending"), ENDED_BEFORE_START)
def test_the_outcome_of_a_plan_is_recorded_under_a_claim(planned: Event, ending: Ending) -> None:
    events = [*BEGIN[:-1], planned, *done(Point.CLAIM_ATTEMPT, Point.RECORD_RESULT)]
    state, effects = play(events)
    assert effects[-2:] == [Effect(Point.CLAIM_ATTEMPT, 1), Effect(Point.RECORD_RESULT, 1)]
    assert state.outcome.ended == ending


@pytest.mark.parametrize(("planned", "ending"), ENDED_BEFORE_START)
def test_a_repeated_plan_ends_its_attempt_without_a_commit(planned: Event, ending: Ending) -> None:
    waited: list[Event] = [
        LocksWaiting((("a", "b"),)),
        EffectDone(Point.AWAIT_LOCKS),
        LocksGranted(4),
    ]
    events = [*CLAIMED, *waited, TableRead(9), planned]
    state, effects = play([*events, *done(Point.RECORD_RESULT, Point.RELEASE_LOCKS)])
    assert points(effects)[-2:] == [Point.RECORD_RESULT, Point.RELEASE_LOCKS]
    assert state.outcome.ended == replace(ending, plan=PLAN)


@pytest.mark.parametrize("planned", [NOTHING, REFUSED])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ClaimLost(), Reason.ALREADY_RUNNING),
        (StopRequest.CANCEL, Reason.CANCELLED),
        (
            EffectFailed(Effect(Point.CLAIM_ATTEMPT, 1), Reason.ACCESS_DENIED, "no"),
            Reason.ACCESS_DENIED,
        ),
    ],
)
def test_without_its_claim_the_outcome_of_a_plan_is_not_reported(
    planned: Event, answer: Event, reason: Reason
) -> None:
    state, effects = play([*BEGIN[:-1], planned, answer])
    assert ended(state).reason is reason
    assert points(effects)[-1] is Point.CLAIM_ATTEMPT


@pytest.mark.parametrize("planned", [NOTHING, REFUSED])
def test_without_its_record_the_outcome_of_a_plan_is_not_reported(planned: Event) -> None:
    begun = [*BEGIN[:-1], planned, EffectDone(Point.CLAIM_ATTEMPT)]
    failed = EffectFailed(Effect(Point.RECORD_RESULT, 1), Reason.STORAGE_FULL, "no room")
    state, _ = play([*begun, failed])
    assert ended(state).reason is Reason.STORAGE_FULL
    assert ended(state).message.endswith("; this could not be recorded: no room")
    state, _ = play([*begun, AbandonedBefore(), EffectDone(Point.RELEASE_LOCKS)])
    assert ended(state).reason is Reason.ABANDONED


def test_a_plan_that_fails_for_its_environment_makes_no_claim() -> None:
    denied = EffectFailed(Effect(Point.PLAN), Reason.ACCESS_DENIED, "no")
    state, effects = play([*BEGIN[:-1], denied])
    assert state.outcome.ended == Ending(Phase.FAILED, Reason.ACCESS_DENIED, "no")
    assert points(effects)[-1] is Point.PLAN


def test_a_dry_run_that_is_refused_claims_nothing() -> None:
    state, effects = play([*BEGIN[:-1], REFUSED], Limits(dry_run=True))
    assert state.outcome.ended == Ending(Phase.FAILED, Reason.UNSUPPORTED_FEATURE, "refused")
    assert points(effects)[-1] is Point.PLAN


def test_a_dry_run_reports_an_unrecorded_ending_and_records_nothing() -> None:
    recorded = Ending(Phase.FAILED, Reason.UNSUPPORTED_FEATURE, "refused", 1)
    events: list[Event] = found(closing=recorded, attempt=1)
    state, _ = play(events, Limits(dry_run=True))
    assert state.outcome.ended == recorded
    _, effects = play(events)
    assert effects[-1] == Effect(Point.RECORD_RESULT, 1)


def test_an_attempt_whose_owner_ended_the_operation_is_read_again() -> None:
    dead: list[Event] = [*found(attempt=1), EffectDone(Point.STOP_JOB)]
    state, effects = play([*dead, EndedBeforeStart()])
    assert points(effects)[-2:] == [Point.END_ATTEMPT, Point.READ_TABLE]
    assert (state.attempt.number, state.outcome.closing) == (0, None)
