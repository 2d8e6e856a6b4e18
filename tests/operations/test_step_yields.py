"""The machine alone: an exclusive attempt gives way to other writers, and at last goes on beside
them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operations.machine_play import (
    DECIDED,
    PLAN,
    RECONCILING,
    RUNNING,
    closing,
    done,
    ended,
    play,
    points,
)
from tandem.errors import Reason
from tandem.operations.machine.events import (
    AttemptAdopted,
    CommitRefused,
    EarlierFound,
    Effect,
    EffectDone,
    Event,
    JobRunning,
    LocksGranted,
    PlanMade,
    Point,
    Started,
    StopRequest,
    TableRead,
    YieldCause,
    YieldRequired,
    Yields,
)
from tandem.operations.machine.state import Limits, OperationState, Request
from tandem.operations.machine.step import step
from tandem.operations.report.status import status_of
from tandem.spec.common import Exclusive
from tandem.spec.status import OperationStatus, Phase

MINUTE = 60_000
LIMITS = Limits(exclusive=Exclusive.model_validate({"maxYields": 3, "backoff": "1m"}))
WRITTEN = YieldRequired("version 51, WRITE by deltalake", YieldCause.COMMIT)
CLOSING = (
    Point.STOP_JOB,
    Point.END_ATTEMPT,
    Point.RELEASE_LOCKS,
)
"""What an attempt that yields still does, in this order."""


def status(state: OperationState, now_ms: int = 0) -> OperationStatus:
    return status_of(state, operation_id="x", generation=1, started_ms=0, now_ms=now_ms)


def earlier(
    count: int, *, last_ms: int = 0, now_ms: int = 0, running: bool = False
) -> EarlierFound:
    """`count` attempts have yielded; with `running`, another one runs."""
    attempt = count + running
    yields = Yields(count, WRITTEN.by, last_ms)
    return EarlierFound(attempt=attempt, yields=yields, now_ms=now_ms, running=running)


def restarted(found: EarlierFound, limits: Limits = LIMITS) -> tuple[OperationState, list[Effect]]:
    """The machine of a process that finds this."""
    return play([Started(), TableRead(9, abandoned=found.yields.count), found], limits)


YIELDING: list[tuple[list[Event], Event]] = [
    (RUNNING, WRITTEN),
    ([*RUNNING, JobRunning()], WRITTEN),
    (RECONCILING, WRITTEN),
    (DECIDED, YieldRequired("TableIngest/x, which needs its locks", YieldCause.LOCKS)),
]


@pytest.mark.parametrize(("before", "event"), YIELDING)
def test_it_stops_its_job_releases_its_locks_and_tries_again(
    before: list[Event], event: Event
) -> None:
    state, effects = play([*before, event], LIMITS)
    for point in CLOSING:
        assert effects[-1].point is point
        ending = closing(state).ending
        assert (ending.reason, ending.message[:11]) == (Reason.YIELDED, "yielded to ")
        assert not closing(state).counted
        state, effects = step(state, EffectDone(point))  # type: ignore[assignment]
    assert points(list(effects)) == [Point.READ_TABLE]
    assert (state.attempt.number, state.locks.token) == (0, 0)


def test_it_keeps_its_locks_as_long_as_no_other_writer_comes() -> None:
    state, effects = play([*RUNNING, JobRunning(), JobRunning()], LIMITS)
    assert effects[-1].point is Point.POLL_JOB
    assert state.exclusive
    assert state.outcome.closing is None


def test_A6_the_wait_doubles_and_is_shown() -> None:
    for count, minutes in ((1, 1), (2, 2)):
        state, effects = restarted(earlier(count, last_ms=MINUTE, now_ms=MINUTE))
        assert (effects[-1].point, effects[-1].delay_ms) == (Point.CLEAN_ATTEMPT, minutes * MINUTE)
        shown = status(state)
        assert shown.phase is Phase.PENDING
        assert shown.attempt == count
        assert shown.conditions[0].reason == Reason.YIELDED
        assert shown.yields is not None
        assert (shown.yields.count, shown.yields.by) == (count, WRITTEN.by)
        assert shown.yields.next_try == f"1970-01-01T00:0{1 + minutes}:00Z"
        assert shown.conditions[0].message.startswith(f"yielded to {WRITTEN.by}; tries again at")
        state, effects = step(state, EffectDone(Point.CLEAN_ATTEMPT))  # type: ignore[assignment]
        assert points(list(effects)) == [Point.PLAN]
        shown = status(state)
        assert shown.yields is not None
        assert shown.yields.next_try is None
        assert shown.conditions[0].reason == Reason.PENDING


def test_A6_a_process_that_takes_over_waits_for_what_is_left() -> None:
    _, effects = restarted(earlier(2, last_ms=1_000, now_ms=1_000 + MINUTE))
    assert effects[-1].delay_ms == MINUTE
    _, effects = restarted(earlier(2, last_ms=1_000, now_ms=1_000 + 9 * MINUTE))
    assert effects[-1].delay_ms == 0
    # A store whose clock is an hour ahead makes nothing wait for an hour.
    _, effects = restarted(earlier(1, last_ms=60 * MINUTE, now_ms=0))
    assert effects[-1].delay_ms == MINUTE


def test_D22_after_the_last_yield_it_goes_on_beside_writers() -> None:
    state, effects = restarted(earlier(3, last_ms=0, now_ms=0))
    assert (effects[-1].point, effects[-1].delay_ms) == (Point.CLEAN_ATTEMPT, 0)
    assert not state.exclusive
    said = f"yields: 3, the last one to {WRITTEN.by}; goes on as Concurrent"
    assert status(state).conditions[0].message == said
    # It keeps its count and says so until it ends; a higher priority revokes it as any other.
    on: list[Event] = [
        EffectDone(Point.CLEAN_ATTEMPT),
        PlanMade(PLAN),
        EffectDone(Point.CLAIM_ATTEMPT),
        LocksGranted(1),
        *done(Point.PERSIST_PLAN, Point.START_JOB),
    ]
    for event in on:
        state, _ = step(state, event)
    shown = status(state)
    assert shown.yields is not None
    assert (shown.phase, shown.yields.count) == (Phase.RUNNING, 3)
    assert shown.conditions[0].message == said


def test_an_attempt_that_is_adopted_knows_how_often_others_yielded() -> None:
    found = earlier(2, last_ms=0, now_ms=0, running=True)
    state, effects = restarted(found)
    assert effects[-1].point is Point.ADOPT_ATTEMPT
    state, _ = step(state, AttemptAdopted(PLAN, 0, awaited=True))
    state, _ = step(state, LocksGranted(1))
    assert state.exclusive
    assert status(state).conditions[0].reason == Reason.RUNNING
    state, _ = restarted(replace(found, yields=replace(found.yields, count=3)))
    assert not state.exclusive


def test_a_request_to_stop_ends_the_wait() -> None:
    state, _ = restarted(earlier(1))
    state, effects = step(state, StopRequest.SUSPEND)
    assert (ended(state).phase, effects) == (Phase.SUSPENDED, ())
    shown = status(state).yields
    assert shown is not None
    assert (shown.count, shown.next_try) == (1, None)


def test_yields_of_an_operation_that_never_locks_exclusively_change_nothing() -> None:
    state, effects = restarted(earlier(2), Limits())
    assert effects[-1].delay_ms == 0
    assert status(state).yields is None
    state = OperationState(Request(Limits()))
    assert not state.exclusive
    revoked: list[Event] = [*DECIDED, CommitRefused(revoked=True)]
    state, _ = play(revoked)
    assert closing(state).ending.reason is Reason.WAITING_FOR_LOCK
