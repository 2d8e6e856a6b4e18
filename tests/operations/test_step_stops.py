"""The machine alone: what it does when it is asked to stop, and on its way out."""

from __future__ import annotations

import pytest

from operations.machine_play import (
    PUTTING,
    RESULT,
    RUNNING,
    closing,
    done,
    ended,
    found,
    play,
    points,
)
from tandem.errors import Reason
from tandem.operations.machine.events import (
    AbandonedBefore,
    AbandonRefused,
    CommitPut,
    EarlierFound,
    Effect,
    EffectDone,
    EffectFailed,
    Event,
    JobLost,
    Point,
    Started,
    StopRequest,
    TableRead,
)
from tandem.operations.machine.state import Limits
from tandem.operations.machine.step import step
from tandem.operations.machine.transitions import GIVE_UP
from tandem.spec.status import Phase


@pytest.mark.parametrize(
    ("ask", "phase", "reason", "closes"),
    [
        (StopRequest.INTERRUPT, Phase.FAILED, Reason.INTERRUPTED, False),
        (StopRequest.CANCEL, Phase.FAILED, Reason.CANCELLED, False),
        (StopRequest.SUSPEND, Phase.SUSPENDED, Reason.SUSPENDED, False),
        (StopRequest.DEADLINE, Phase.FAILED, Reason.DEADLINE_EXCEEDED, True),
    ],
)
def test_a_stop_request_ends_an_operation(
    ask: StopRequest, phase: Phase, reason: Reason, closes: bool
) -> None:
    state, effects = play([*RUNNING, ask])
    assert points(effects)[-1] is Point.STOP_JOB
    ending = closing(state).ending
    assert (ending.phase, ending.reason) == (phase, reason)
    # Only what is final forbids a later run to go on.
    assert closing(state).closes is closes
    assert (Point.RECORD_RESULT in closing(state).todo) is closes
    assert closing(state).counted is (ask is StopRequest.DEADLINE)


def recorded_for(ask: StopRequest) -> list[Event]:
    """What it still does before it reports that it has stopped. A deadline is final."""
    return [*done(Point.CLAIM_ATTEMPT, Point.RECORD_RESULT)] if ask is StopRequest.DEADLINE else []


@pytest.mark.parametrize("ask", [StopRequest.CANCEL, StopRequest.SUSPEND, StopRequest.DEADLINE])
def test_a_stop_request_before_it_is_known_whether_it_committed(ask: StopRequest) -> None:
    begin: list[Event] = [Started(), ask, TableRead(3, succeeded=1), EarlierFound(attempt=1)]
    _, effects = play(begin)
    assert points(effects) == [
        Point.READ_TABLE,
        Point.READ_TABLE,
        Point.CHECK_EARLIER_OUTCOME,
        Point.FIND_COMMIT,
    ]
    state, effects = play([Started(), ask, TableRead(3), EarlierFound(), *recorded_for(ask)])
    assert ended(state).result is None
    assert Point.PLAN not in points(effects)


@pytest.mark.parametrize("ask", [StopRequest.CANCEL, StopRequest.SUSPEND, StopRequest.DEADLINE])
def test_a_stop_request_stops_what_an_earlier_run_left(ask: StopRequest) -> None:
    state, effects = play([Started(), TableRead(3), ask, EarlierFound(attempt=2, complete=True)])
    assert effects[-1] == Effect(Point.STOP_JOB, attempt=2)
    assert Point.ABANDON_ATTEMPT in closing(state).todo


def test_an_interrupt_before_the_start_ends_at_once() -> None:
    state, _ = play([Started(), StopRequest.INTERRUPT])
    assert ended(state).reason is Reason.INTERRUPTED


@pytest.mark.parametrize("ask", list(StopRequest))
def test_a_stop_request_between_two_attempts(ask: StopRequest) -> None:
    """The request comes while a failed attempt is cleaned up: there is no other attempt."""
    events: list[Event] = [
        *RUNNING,
        JobLost(Reason.JOB_FAILED, "out of memory"),
        ask,
        *done(Point.STOP_JOB, Point.END_ATTEMPT, Point.RELEASE_LOCKS),
        TableRead(4),
        EarlierFound(attempt=1, ended=True, failures=1),
        *(EffectDone(point) for point in (*GIVE_UP, Point.RELEASE_LOCKS)),
        EffectDone(Point.RECORD_RESULT),
    ]
    state, effects = play(events)
    assert ended(state).reason is not Reason.JOB_FAILED
    # Without the delay of another attempt.
    assert Effect(Point.READ_TABLE) in effects[len(RUNNING) :]
    assert Point.PLAN not in points(effects[len(RUNNING) :])
    # After a stop, no session that was taken for dead commits the attempt.
    assert points(effects).count(Point.ABANDON_ATTEMPT) == 1


def test_a_stop_request_after_the_commit_is_too_late() -> None:
    before, _ = play([*PUTTING, CommitPut(RESULT)])
    after, effects = play([*PUTTING, CommitPut(RESULT), StopRequest.INTERRUPT])
    assert after == before
    assert effects[-1] == effects[-2]


def test_a_suspended_operation_does_not_start() -> None:
    events: list[Event] = found()
    state, effects = play(events, Limits(suspended=True))
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]
    assert ended(state).phase is Phase.SUSPENDED


def test_a_suspended_operation_stops_the_job_of_an_earlier_run() -> None:
    events: list[Event] = found(attempt=1)
    state, effects = play(events, Limits(suspended=True))
    assert effects[-1] == Effect(Point.STOP_JOB, attempt=1)
    todo = [Point.STOP_JOB, Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    state, effects = play([*events, *done(*todo)], Limits(suspended=True))
    assert points(effects)[-4:] == todo
    assert ended(state).phase is Phase.SUSPENDED


def test_an_abandonment_that_meets_a_success_reports_it() -> None:
    _, effects = play(
        [*RUNNING, StopRequest.INTERRUPT, EffectDone(Point.STOP_JOB), AbandonRefused(1)]
    )
    assert points(effects)[-1] is Point.FIND_COMMIT


@pytest.mark.parametrize(
    "stopped",
    [JobLost(Reason.JOB_FAILED, "x"), StopRequest.DEADLINE, StopRequest.CANCEL],
)
@pytest.mark.parametrize("backoff_limit", [0, 3])
def test_Z1_a_process_whose_attempt_another_has_ended_reports_and_does_nothing_more(
    stopped: Event, backoff_limit: int
) -> None:
    """Neither another attempt, which would kill the other's, nor an end of the operation."""
    todo = [Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    events = [*RUNNING, stopped, EffectDone(Point.STOP_JOB), AbandonedBefore()]
    limits = Limits(backoff_limit=backoff_limit)
    state, effects = play([*events, *done(*todo)], limits)
    assert points(effects)[-2:] == todo
    assert ended(state).elsewhere


def test_an_attempt_that_could_not_be_abandoned_keeps_its_files() -> None:
    abandon = Effect(Point.ABANDON_ATTEMPT, attempt=1)
    failed = EffectFailed(abandon, Reason.ACCESS_DENIED, "read-only")
    state, effects = play([*RUNNING, StopRequest.INTERRUPT, EffectDone(Point.STOP_JOB), failed])
    assert Point.CLEAN_ATTEMPT not in points(effects)
    assert Point.CLEAN_ATTEMPT not in closing(state).todo


def test_files_that_a_zombie_wrote_after_cleaning_are_removed() -> None:
    later = TableRead(version=9, succeeded=2, abandoned=1)
    interrupted: list[Event] = [
        StopRequest.INTERRUPT,
        EffectDone(Point.STOP_JOB),
        AbandonRefused(2),
    ]
    state, effects = play([*RUNNING, *interrupted, later])
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.STOP_JOB]
    assert closing(state).todo[:1] == (Point.CLEAN_ATTEMPT,)
    assert state.attempt.number == 1


def test_an_ending_operation_does_not_wait_for_its_lock_store() -> None:
    closing, effects = play([*RUNNING, StopRequest.INTERRUPT, EffectDone(Point.STOP_JOB)])
    release = [*(EffectDone(p) for p in (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT))]
    for event in release:
        closing, effects_now = step(closing, event)
        effects = [*effects, *effects_now]
    assert effects[-1].point is Point.RELEASE_LOCKS
    failed = EffectFailed(effects[-1], Reason.LOCKS_UNAVAILABLE, "x", retryable=True, patient=True)
    for _ in range(Limits().effect_retries + 1):
        closing, _ = step(closing, failed)
    assert closing.outcome.ended is not None
    assert closing.outcome.ended.reason is Reason.INTERRUPTED
