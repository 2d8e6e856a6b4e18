"""The machine alone: failed jobs, and a store or locks that do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operations.machine_play import (
    CLAIMED,
    DECIDED,
    PUTTING,
    RUNNING,
    closing,
    play,
    points,
)
from tandem.errors import Reason
from tandem.operations.machine.events import (
    CommitLost,
    CommitRefused,
    CommitUnknown,
    EarlierFound,
    Effect,
    EffectDone,
    EffectFailed,
    Ending,
    Event,
    JobLost,
    JobRunning,
    LocksGranted,
    LocksWaiting,
    Point,
    Started,
    StopRequest,
    TableRead,
)
from tandem.operations.machine.state import Limits
from tandem.operations.machine.step import step
from tandem.operations.report.status import status_of
from tandem.spec.status import Phase


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
    lost: list[Event] = [*DECIDED, CommitRefused(revoked=False)]
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
