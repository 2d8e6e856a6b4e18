"""The machine alone: requests to stop, failures, and attempts that give way to other writers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operations.machine_play import (
    CLAIMED,
    DECIDED,
    PLAN,
    PUTTING,
    RECONCILING,
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
    AttemptAdopted,
    CommitLost,
    CommitPut,
    CommitUnknown,
    EarlierFound,
    Effect,
    EffectDone,
    EffectFailed,
    Ending,
    Event,
    JobLost,
    JobRunning,
    LocksGone,
    LocksGranted,
    LocksWaiting,
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
from tandem.operations.machine.transitions import GIVE_UP
from tandem.operations.status import status_of
from tandem.spec.common import Exclusive
from tandem.spec.status import OperationStatus, Phase

# The machine alone: what it does when it is asked to stop, and on its way out.


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


# The machine alone: failed jobs, and a store or locks that do not answer.


def test_Z20_a_put_of_unknown_outcome_is_looked_up_before_anything_else() -> None:
    events: list[Event] = [*PUTTING, CommitUnknown(), StopRequest.INTERRUPT]
    _, effects = play(events)
    assert points(effects)[-2:] == [Point.LOOK_UP_COMMIT, Point.LOOK_UP_COMMIT]
    state, effects = play([*events, CommitLost(), TableRead(5)])
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.STOP_JOB]
    assert closing(state).ending.reason is Reason.INTERRUPTED


def test_Z20_an_outcome_that_stays_unknown_deletes_nothing() -> None:
    look_up = Effect(Point.LOOK_UP_COMMIT, attempt=1, version=4)
    failed = EffectFailed(look_up, Reason.STORAGE_ERROR, "no answer", retryable=True)
    tries = Limits().effect_retries + 1
    state, effects = play([*PUTTING, CommitUnknown(), *[failed] * tries])
    assert points(effects)[-1] is Point.STOP_JOB
    left = {*points(effects[len(PUTTING) :]), *closing(state).todo}
    assert not left & {Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RECORD_RESULT}


def test_a_lost_lease_stops_the_work_before_its_commit() -> None:
    lost: list[Event] = [*DECIDED, LocksGone(revoked=False)]
    _, effects = play([*lost, LocksGranted(9)])
    assert points(effects)[-2:] == [Point.ACQUIRE_LOCKS, Point.ENTER_COMMIT]
    assert Point.PUT_COMMIT not in points(effects)
    # Another operation had them: the table is read before anything else.
    waited: list[Event] = [*lost, LocksWaiting((("a", "b"),)), EffectDone(Point.AWAIT_LOCKS)]
    _, effects = play([*waited, LocksGranted(9)])
    assert points(effects)[-1] is Point.READ_TABLE
    _, effects = play([*waited, LocksGranted(9), TableRead(8)])
    assert points(effects)[-1] is Point.RECONCILE


def test_a_failed_job_is_tried_again_up_to_the_backoff_limit() -> None:
    lost = JobLost(Reason.JOB_FAILED, "out of memory")
    state, _ = play([*RUNNING, lost], Limits(backoff_limit=1))
    assert closing(state).again
    state, _ = play([*RUNNING, lost], Limits(backoff_limit=0))
    assert not closing(state).again
    assert closing(state).closes
    assert Point.RECORD_RESULT in closing(state).todo


def test_a_statement_that_fails_is_not_tried_again() -> None:
    lost = JobLost(Reason.STATEMENT_FAILED, "division by zero", transient=False)
    state, _ = play([*RUNNING, lost])
    assert not closing(state).again
    assert closing(state).ending.reason is Reason.STATEMENT_FAILED


def test_a_store_that_does_not_answer_is_asked_again_with_growing_delays() -> None:
    read = Effect(Point.READ_TABLE)
    failed = EffectFailed(read, Reason.STORAGE_ERROR, "503", retryable=True)
    _, effects = play([Started(), failed, failed, failed])
    delays = [effect.delay_ms for effect in effects[1:]]
    assert points(effects) == [Point.READ_TABLE] * 4
    assert delays == sorted(set(delays))


GONE = EffectFailed(Effect(Point.PLAN), Reason.DATA_FILE_MISSING, "x.parquet is gone", fresh=True)


def test_a_version_whose_files_are_gone_is_read_again_and_fails_if_it_is_still_the_last() -> None:
    once: list[Event] = [TableRead(3), EarlierFound(), GONE]
    _, effects = play([Started(), *once])
    assert effects[-1] == Effect(Point.READ_TABLE)
    state, _ = play([Started(), *once, *once])
    ended = state.outcome.ended_before_start
    assert ended == Ending(Phase.FAILED, Reason.DATA_FILE_MISSING, GONE.message)


def test_a_growing_table_does_not_hide_a_missing_file_for_ever() -> None:
    versions = range(Limits().effect_retries + 1)
    events = [e for version in versions for e in (TableRead(version), EarlierFound(), GONE)]
    state, _ = play([Started(), *events[:-1]])
    assert state.outcome.ended_before_start is None
    state, _ = step(state, GONE)
    assert state.outcome.ended_before_start is not None
    assert state.outcome.ended_before_start.reason is Reason.DATA_FILE_MISSING


LOCKING = [
    (Point.ACQUIRE_LOCKS, [*CLAIMED]),
    (Point.AWAIT_LOCKS, [*CLAIMED, LocksWaiting((("a", "b"),))]),
    (Point.POLL_JOB, RUNNING),
    (Point.ENTER_COMMIT, DECIDED),
]


@pytest.mark.parametrize(("point", "before"), LOCKING)
def test_without_its_lock_store_an_operation_waits_and_loses_nothing(
    point: Point, before: list[Event]
) -> None:
    begun, [*_, effect] = play(before)
    assert effect.point is point
    failed = EffectFailed(
        effect, Reason.LOCKS_UNAVAILABLE, "etcd is away", retryable=True, patient=True
    )
    state, delays = begun, []
    for _ in range(100):
        state, [again] = step(state, failed)
        assert replace(again, delay_ms=effect.delay_ms) == effect
        delays.append(again.delay_ms)
    assert delays[0] < 1_000
    assert max(delays) == delays[-1] == 10_000
    status = status_of(state, operation_id="x", generation=1, started_ms=0, now_ms=9)
    assert status.conditions[0].reason == Reason.LOCKS_UNAVAILABLE
    assert "etcd is away" in status.conditions[0].message
    # It listens to requests, and goes on as if nothing had been.
    stopped, [stop] = step(state, StopRequest.CANCEL)
    assert stop.delay_ms == 0
    assert stopped.outcome.closing is not None
    answer: dict[Point, Event] = {
        Point.ACQUIRE_LOCKS: LocksGranted(1),
        Point.POLL_JOB: JobRunning(),
    }
    event = answer.get(point, EffectDone(point))
    after, _ = step(state, event)
    assert after == step(begun, event)[0]


# The machine alone: an exclusive attempt gives way to other writers, and at last goes on beside
# them.


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
    revoked: list[Event] = [*DECIDED, LocksGone(revoked=True)]
    state, _ = play(revoked)
    assert closing(state).ending.reason is Reason.WAITING_FOR_LOCK
