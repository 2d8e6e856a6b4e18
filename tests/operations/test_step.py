"""The machine alone: what it asks for, whatever it is told. No store, no job, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import Reason
from tandem.operations.effects import Effect, Point
from tandem.operations.events import (
    AbandonedBefore,
    AbandonRefused,
    AdoptionRefused,
    Ask,
    Asked,
    AttemptAdopted,
    ClaimLost,
    CommitFound,
    CommitLost,
    CommitPut,
    CommitRefused,
    CommitUnknown,
    Decided,
    Done,
    EarlierFound,
    EffectFailed,
    Ending,
    Event,
    JobLost,
    JobRunning,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    RoundDone,
    Started,
    TableRead,
    Verdict,
)
from tandem.operations.moves import AFTER_SUCCESS
from tandem.operations.state import Limits, OperationState
from tandem.operations.statuses import status_of
from tandem.operations.step import step
from tandem.spec.status import OperationResult, Phase, Plan

PLAN = Plan(read_version=3, inputs=2, input_bytes=20, segments=("0", "1"))
RESULT = OperationResult(version=4)


def play(events: list[Event], limits: Limits | None = None) -> tuple[OperationState, list[Effect]]:
    """The state and all effects after these events."""
    state = OperationState(limits=limits or Limits())
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
    Done(Point.CLAIM_ATTEMPT),
    LocksGranted(1),
    Done(Point.PERSIST_PLAN),
    Done(Point.START_JOB),
]
RECONCILING: list[Event] = [*RUNNING, RoundDone(0), Done(Point.READ_RESULT), TableRead(3)]
PUTTING: list[Event] = [
    *RECONCILING,
    Decided(3, Verdict.COMMIT),
    Done(Point.WRITE_SIDECARS),
    Done(Point.ENTER_COMMIT),
]


def test_the_straight_way() -> None:
    events = [*PUTTING, CommitPut(RESULT), *(Done(point) for point in AFTER_SUCCESS)]
    state, effects = play(events)
    assert points(effects) == [
        Point.READ_TABLE,
        Point.CHECK_EARLIER_OUTCOME,
        Point.PLAN,
        Point.CLAIM_ATTEMPT,
        Point.ACQUIRE_LOCKS,
        Point.PERSIST_PLAN,
        Point.START_JOB,
        Point.POLL_JOB,
        Point.READ_RESULT,
        Point.READ_TABLE,
        Point.RECONCILE,
        Point.WRITE_SIDECARS,
        Point.ENTER_COMMIT,
        Point.PUT_COMMIT,
        *AFTER_SUCCESS,
    ]
    assert state.ended == Ending(
        Phase.SUCCEEDED, Reason.COMMITTED, "committed as version 4", 1, RESULT, PLAN
    )


def test_phases_follow_each_other() -> None:
    state = OperationState()
    phases = [state.phase]
    for event in [*PUTTING, CommitPut(RESULT), *(Done(point) for point in AFTER_SUCCESS)]:
        state, _ = step(state, event)
        if state.phase is not phases[-1]:
            phases.append(state.phase)
    assert phases == [
        Phase.PENDING,
        Phase.PLANNED,
        Phase.LOCKED,
        Phase.RUNNING,
        Phase.RECONCILING,
        Phase.SUCCEEDED,
    ]


def test_the_put_is_for_the_version_after_the_one_that_was_looked_at() -> None:
    _, effects = play([*PUTTING, CommitLost(), TableRead(9)])
    assert effects[-3] == Effect(Point.PUT_COMMIT, attempt=1, version=4)
    _, effects = play(
        [
            *PUTTING,
            CommitLost(),
            TableRead(9),
            Decided(9, Verdict.COMMIT),
            Done(Point.WRITE_SIDECARS),
            Done(Point.ENTER_COMMIT),
        ]
    )
    assert effects[-1] == Effect(Point.PUT_COMMIT, attempt=1, version=10)


@pytest.mark.parametrize("stop", [TableRead(9, abandoned=1), TableRead(9, closed=True)])
def test_an_abandoned_attempt_publishes_nothing(stop: TableRead) -> None:
    state, effects = play([*PUTTING, CommitLost(), stop])
    todo = [Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    assert points(effects)[-1] is todo[0]
    state, effects = play([*PUTTING, CommitLost(), stop, *(Done(point) for point in todo)])
    assert state.ended is not None
    assert state.ended.reason is Reason.ABANDONED
    assert Point.RECORD_RESULT not in points(effects)


def test_a_success_that_shows_is_reported_instead_of_put_again() -> None:
    _, effects = play([*PUTTING, CommitUnknown(), CommitLost(), TableRead(4, succeeded=1)])
    assert points(effects)[-3:] == [Point.LOOK_UP_COMMIT, Point.READ_TABLE, Point.FIND_COMMIT]


def test_a_recorded_result_is_reported() -> None:
    recorded = Ending(Phase.FAILED, Reason.CONFLICT, "lost", 2)
    state, effects = play([Started(), TableRead(3), EarlierFound(recorded=recorded)])
    assert state.ended == recorded
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]


NOTHING: list[Event] = [*BEGIN[:-1], PlanMade(PLAN, nothing_to_do="nothing")]


def test_nothing_to_do_is_recorded_under_a_claim() -> None:
    events = [*NOTHING, Done(Point.CLAIM_ATTEMPT), Done(Point.RECORD_RESULT)]
    state, effects = play(events)
    assert effects[-2:] == [Effect(Point.CLAIM_ATTEMPT, 1), Effect(Point.RECORD_RESULT, 1)]
    assert state.ended == Ending(Phase.SUCCEEDED, Reason.NOTHING_TO_DO, "nothing", 1, plan=PLAN)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ClaimLost(), Reason.ALREADY_RUNNING),
        (Asked(Ask.CANCEL), Reason.CANCELLED),
        (
            EffectFailed(Effect(Point.CLAIM_ATTEMPT, 1), Reason.ACCESS_DENIED, "no"),
            Reason.ACCESS_DENIED,
        ),
    ],
)
def test_without_its_claim_nobody_is_told_that_there_is_nothing_to_do(
    answer: Event, reason: Reason
) -> None:
    state, effects = play([*NOTHING, answer])
    assert state.ended is not None
    assert state.ended.reason is reason
    assert points(effects)[-1] is Point.CLAIM_ATTEMPT


def test_a_success_in_the_log_beats_a_record_that_says_otherwise() -> None:
    recorded = Ending(Phase.SUCCEEDED, Reason.NOTHING_TO_DO, "nothing", 0)
    events: list[Event] = [Started(), TableRead(9, succeeded=2), EarlierFound(recorded=recorded)]
    _, effects = play(events)
    assert effects[-1] == Effect(Point.FIND_COMMIT, attempt=2)


def test_a_complete_attempt_is_adopted_and_reconciled_under_its_own_number() -> None:
    events: list[Event] = [
        Started(),
        TableRead(3),
        EarlierFound(attempt=2, complete=True),
        AttemptAdopted(PLAN, round=0),
        LocksGranted(5),
        TableRead(7),
    ]
    _state, effects = play(events)
    assert effects[-1] == Effect(Point.RECONCILE, attempt=2)
    assert Point.PLAN not in points(effects)
    assert Point.START_JOB not in points(effects)


@pytest.mark.parametrize("round_", [0, 2])
def test_a_running_job_is_taken_over_and_its_round_waited_for(round_: int) -> None:
    events: list[Event] = [
        Started(),
        TableRead(3),
        EarlierFound(attempt=2, running=True),
        AttemptAdopted(PLAN, round_, awaited=True),
        LocksGranted(5),
    ]
    state, effects = play(events)
    assert state.phase is Phase.RUNNING
    assert points(effects)[2:] == [Point.ADOPT_ATTEMPT, Point.ACQUIRE_LOCKS, Point.POLL_JOB]
    assert effects[-1] == Effect(Point.POLL_JOB, attempt=2, round=round_)
    _, effects = play([*events, RoundDone(round_), Done(Point.READ_RESULT), TableRead(4)])
    assert effects[-1] == Effect(Point.RECONCILE, attempt=2, round=round_)
    # Locks that are lost later are no reason to wait for the job once more.
    reconciled: list[Event] = [
        *events,
        RoundDone(round_),
        Done(Point.READ_RESULT),
        TableRead(4),
        Decided(4, Verdict.COMMIT),
        Done(Point.WRITE_SIDECARS),
        CommitRefused(revoked=False),
        LocksGranted(6),
    ]
    _, effects = play(reconciled)
    assert points(effects)[-1] is Point.ENTER_COMMIT


def test_a_job_that_was_taken_over_and_fails_counts_as_one_more() -> None:
    events: list[Event] = [
        Started(),
        TableRead(3),
        EarlierFound(attempt=2, running=True, failures=1),
        AttemptAdopted(PLAN, 0, awaited=True),
        LocksGranted(5),
        JobLost(Reason.JOB_FAILED, "out of memory"),
    ]
    state, _ = play(events, Limits(backoff_limit=1))
    assert state.closing is not None
    assert not state.closing.again
    assert "attempt 2 of 2" in state.closing.ending.message


def test_what_failed_an_attempt_is_not_told_of_the_next_one() -> None:
    lost = JobLost(Reason.JOB_FAILED, "out of memory")
    state, effects = play([*RUNNING, lost], Limits(backoff_limit=1))
    while state.closing is not None:
        state, next_effects = step(state, Done(effects[-1].point))
        effects = list(next_effects)
    assert points(effects) == [Point.READ_TABLE]
    assert state.message == "attempt 1: out of memory"


def test_an_incomplete_attempt_is_abandoned_before_its_files_go_and_the_next_starts() -> None:
    events: list[Event] = [
        Started(),
        TableRead(3),
        EarlierFound(attempt=2),
        Done(Point.STOP_JOB),
        Done(Point.ABANDON_ATTEMPT),
        Done(Point.CLEAN_ATTEMPT),
        Done(Point.RELEASE_LOCKS),
        TableRead(4, abandoned=2),
        EarlierFound(attempt=2, failures=1),
        Done(Point.CLEAN_ATTEMPT),
        PlanMade(PLAN),
    ]
    _, effects = play(events)
    found = points(effects)
    assert found.index(Point.ABANDON_ATTEMPT) < found.index(Point.CLEAN_ATTEMPT)
    assert effects[-1] == Effect(Point.CLAIM_ATTEMPT, attempt=3)


@pytest.mark.parametrize("begun", [True, False])
def test_an_attempt_without_a_plan_cannot_have_failed(begun: bool) -> None:
    """Whoever claimed it was suspended or restarted before it did anything: it does not count
    towards the backoff limit."""
    state, _ = play([Started(), TableRead(3), EarlierFound(attempt=1, begun=begun)])
    assert state.closing is not None
    assert state.closing.counted is begun


def test_adoption_refused_means_another_attempt() -> None:
    events: list[Event] = [
        Started(),
        TableRead(3),
        EarlierFound(attempt=1, complete=True),
        AdoptionRefused("the row map is damaged"),
    ]
    state, _ = play(events)
    assert state.closing is not None
    assert state.closing.again


def test_a_live_process_is_left_alone() -> None:
    state, effects = play([Started(), TableRead(3), EarlierFound(attempt=1, alive="process 7")])
    assert state.ended is not None
    assert state.ended.reason is Reason.ALREADY_RUNNING
    assert "process 7" in state.ended.message
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]


def test_a_lost_claim_is_a_live_process_too() -> None:
    state, _ = play([*BEGIN, ClaimLost()])
    assert state.ended is not None
    assert state.ended.reason is Reason.ALREADY_RUNNING


def test_I28_a_plan_that_waited_for_locks_is_made_anew() -> None:
    waiting: list[Event] = [
        *BEGIN,
        Done(Point.CLAIM_ATTEMPT),
        LocksWaiting((("TableCompaction/nightly", "segment 0.1"),), now_ms=7),
    ]
    state, effects = play(waiting)
    assert state.waiting_since_ms == 7
    still = LocksWaiting(state.blockers, now_ms=99)
    assert play([*waiting, Done(Point.AWAIT_LOCKS), still])[0].waiting_since_ms == 7
    assert state.blockers == (("TableCompaction/nightly", "segment 0.1"),)
    assert points(effects)[-1] is Point.AWAIT_LOCKS
    granted: list[Event] = [*waiting, Done(Point.AWAIT_LOCKS), LocksGranted(2), TableRead(5)]
    state, effects = play(granted)
    assert state.waiting_since_ms == 0
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.PLAN]
    _, effects = play([*granted, PlanMade(PLAN), LocksGranted(2)])
    assert points(effects)[-1] is Point.PERSIST_PLAN


def test_I25_a_revoked_holder_publishes_nothing_and_queues_again() -> None:
    state, effects = play([*PUTTING[:-1], CommitRefused(revoked=True)])
    assert Point.PUT_COMMIT not in points(effects)
    assert state.closing is not None
    assert state.closing.again
    assert not state.closing.counted


def test_a_lost_lease_stops_the_work_before_its_commit() -> None:
    lost: list[Event] = [*PUTTING[:-1], CommitRefused(revoked=False)]
    _, effects = play([*lost, LocksGranted(9)])
    assert points(effects)[-2:] == [Point.ACQUIRE_LOCKS, Point.ENTER_COMMIT]
    assert Point.PUT_COMMIT not in points(effects)
    # Somebody else had them: the table is looked at before anything else.
    waited: list[Event] = [*lost, LocksWaiting((("a", "b"),)), Done(Point.AWAIT_LOCKS)]
    _, effects = play([*waited, LocksGranted(9)])
    assert points(effects)[-1] is Point.READ_TABLE
    _, effects = play([*waited, LocksGranted(9), TableRead(8)])
    assert points(effects)[-1] is Point.RECONCILE


def test_a_failed_job_is_tried_again_up_to_the_backoff_limit() -> None:
    lost = JobLost(Reason.JOB_FAILED, "out of memory")
    state, _ = play([*RUNNING, lost], Limits(backoff_limit=1))
    assert state.closing is not None
    assert state.closing.again
    state, _ = play([*RUNNING, lost], Limits(backoff_limit=0))
    assert state.closing is not None
    assert not state.closing.again
    assert state.closing.closes
    assert Point.RECORD_RESULT in state.closing.todo


def test_a_statement_that_fails_is_not_tried_again() -> None:
    lost = JobLost(Reason.STATEMENT_FAILED, "division by zero", transient=False)
    state, _ = play([*RUNNING, lost])
    assert state.closing is not None
    assert not state.closing.again
    assert state.closing.ending.reason is Reason.STATEMENT_FAILED


@pytest.mark.parametrize(
    ("ask", "phase", "reason", "closes"),
    [
        (Ask.INTERRUPT, Phase.FAILED, Reason.INTERRUPTED, False),
        (Ask.CANCEL, Phase.FAILED, Reason.CANCELLED, False),
        (Ask.SUSPEND, Phase.SUSPENDED, Reason.SUSPENDED, False),
        (Ask.DEADLINE, Phase.FAILED, Reason.DEADLINE_EXCEEDED, True),
    ],
)
def test_asked_to_stop(ask: Ask, phase: Phase, reason: Reason, closes: bool) -> None:
    state, effects = play([*RUNNING, Asked(ask)])
    assert points(effects)[-1] is Point.STOP_JOB
    assert state.closing is not None
    assert (state.closing.ending.phase, state.closing.ending.reason) == (phase, reason)
    # Only what is final forbids a later run to go on.
    assert state.closing.closes is closes
    assert (Point.RECORD_RESULT in state.closing.todo) is closes
    assert state.closing.counted is (ask is Ask.DEADLINE)


@pytest.mark.parametrize("ask", [Ask.CANCEL, Ask.SUSPEND, Ask.DEADLINE])
def test_asked_to_stop_before_it_is_known_whether_it_committed(ask: Ask) -> None:
    begin: list[Event] = [Started(), Asked(ask), TableRead(3, succeeded=1), EarlierFound(attempt=1)]
    _, effects = play(begin)
    assert points(effects) == [
        Point.READ_TABLE,
        Point.READ_TABLE,
        Point.CHECK_EARLIER_OUTCOME,
        Point.FIND_COMMIT,
    ]
    state, _ = play([Started(), Asked(ask), TableRead(3), EarlierFound()])
    assert state.ended is not None
    assert state.ended.result is None


@pytest.mark.parametrize("ask", [Ask.CANCEL, Ask.SUSPEND, Ask.DEADLINE])
def test_asked_to_stop_what_an_earlier_run_left(ask: Ask) -> None:
    state, effects = play(
        [Started(), TableRead(3), Asked(ask), EarlierFound(attempt=2, complete=True)]
    )
    assert effects[-1] == Effect(Point.STOP_JOB, attempt=2)
    assert state.closing is not None
    assert Point.ABANDON_ATTEMPT in state.closing.todo


def test_interrupted_before_it_began_ends_at_once() -> None:
    state, _ = play([Started(), Asked(Ask.INTERRUPT)])
    assert state.ended is not None
    assert state.ended.reason is Reason.INTERRUPTED


@pytest.mark.parametrize("ask", list(Ask))
def test_asked_to_stop_between_two_attempts(ask: Ask) -> None:
    """The request comes while a failed attempt is cleaned up: there is no other attempt."""
    events: list[Event] = [
        *RUNNING,
        JobLost(Reason.JOB_FAILED, "out of memory"),
        Asked(ask),
        Done(Point.STOP_JOB),
        Done(Point.ABANDON_ATTEMPT),
        Done(Point.CLEAN_ATTEMPT),
        Done(Point.RELEASE_LOCKS),
        TableRead(4, abandoned=1),
        EarlierFound(attempt=1, failures=1),
    ]
    state, effects = play(events)
    assert state.ended is not None
    assert state.ended.reason is not Reason.JOB_FAILED
    assert effects[-2] == Effect(Point.READ_TABLE)  # without the delay of another attempt
    assert Point.PLAN not in points(effects[len(RUNNING) :])


def test_too_late_to_stop_once_committed() -> None:
    before, _ = play([*PUTTING, CommitPut(RESULT)])
    after, effects = play([*PUTTING, CommitPut(RESULT), Asked(Ask.INTERRUPT)])
    assert after == before
    assert effects[-1] == effects[-2]


def test_Z20_an_unsure_put_is_looked_up_before_anything_else() -> None:
    events: list[Event] = [*PUTTING, CommitUnknown(), Asked(Ask.INTERRUPT)]
    _, effects = play(events)
    assert points(effects)[-2:] == [Point.LOOK_UP_COMMIT, Point.LOOK_UP_COMMIT]
    state, effects = play([*events, CommitLost(), TableRead(5)])
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.STOP_JOB]
    assert state.closing is not None
    assert state.closing.ending.reason is Reason.INTERRUPTED


def test_Z20_an_outcome_that_stays_unknown_deletes_nothing() -> None:
    look_up = Effect(Point.LOOK_UP_COMMIT, attempt=1, version=4)
    failed = EffectFailed(look_up, Reason.STORAGE_ERROR, "no answer", retryable=True)
    tries = Limits().effect_retries + 1
    state, effects = play([*PUTTING, CommitUnknown(), *[failed] * tries])
    assert state.closing is not None
    assert points(effects)[-1] is Point.STOP_JOB
    left = {*points(effects[len(PUTTING) :]), *state.closing.todo}
    assert not left & {Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RECORD_RESULT}


def test_an_abandonment_that_meets_a_success_reports_it() -> None:
    _, effects = play([*RUNNING, Asked(Ask.INTERRUPT), Done(Point.STOP_JOB), AbandonRefused(1)])
    assert points(effects)[-1] is Point.FIND_COMMIT


@pytest.mark.parametrize(
    "stopped", [JobLost(Reason.JOB_FAILED, "x"), Asked(Ask.DEADLINE), Asked(Ask.CANCEL)]
)
@pytest.mark.parametrize("backoff_limit", [0, 3])
def test_Z1_whose_attempt_another_has_ended_says_nothing_and_does_nothing_more(
    stopped: Event, backoff_limit: int
) -> None:
    """Neither another attempt, which would kill the other's, nor an end of the operation."""
    todo = [Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    events = [*RUNNING, stopped, Done(Point.STOP_JOB), AbandonedBefore()]
    limits = Limits(backoff_limit=backoff_limit)
    state, effects = play([*events, *(Done(point) for point in todo)], limits)
    assert points(effects)[-2:] == todo
    assert state.ended is not None
    assert state.ended.elsewhere


def test_an_attempt_that_could_not_be_abandoned_keeps_its_files() -> None:
    abandon = Effect(Point.ABANDON_ATTEMPT, attempt=1)
    failed = EffectFailed(abandon, Reason.ACCESS_DENIED, "read-only")
    state, effects = play([*RUNNING, Asked(Ask.INTERRUPT), Done(Point.STOP_JOB), failed])
    assert Point.CLEAN_ATTEMPT not in points(effects)
    assert state.closing is not None
    assert Point.CLEAN_ATTEMPT not in state.closing.todo


def test_dry_run_stops_at_the_plan_and_records_nothing() -> None:
    state, effects = play(BEGIN, Limits(dry_run=True))
    assert state.ended is not None
    assert state.ended.plan == PLAN
    assert points(effects)[-1] is Point.PLAN


def test_suspended_does_not_start() -> None:
    events: list[Event] = [Started(), TableRead(3), EarlierFound()]
    state, effects = play(events, Limits(suspended=True))
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]
    assert state.ended is not None
    assert state.ended.phase is Phase.SUSPENDED


def test_suspended_stops_what_an_earlier_run_left_at_work() -> None:
    events: list[Event] = [Started(), TableRead(3), EarlierFound(attempt=1)]
    state, effects = play(events, Limits(suspended=True))
    assert effects[-1] == Effect(Point.STOP_JOB, attempt=1)
    todo = [Point.STOP_JOB, Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    state, effects = play([*events, *(Done(point) for point in todo)], Limits(suspended=True))
    assert points(effects)[-4:] == todo
    assert state.ended is not None
    assert state.ended.phase is Phase.SUSPENDED


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
    assert state.ended is not None
    assert state.ended.reason is Reason.DATA_FILE_MISSING


def test_a_table_that_grows_does_not_hide_for_ever_that_a_file_is_gone() -> None:
    versions = range(Limits().effect_retries + 1)
    events = [e for version in versions for e in (TableRead(version), EarlierFound(), GONE)]
    state, _ = play([Started(), *events[:-1]])
    assert state.ended is None
    state, _ = step(state, GONE)
    assert state.ended is not None
    assert state.ended.reason is Reason.DATA_FILE_MISSING


LOCKING = [
    (Point.ACQUIRE_LOCKS, [*BEGIN, Done(Point.CLAIM_ATTEMPT)]),
    (Point.AWAIT_LOCKS, [*BEGIN, Done(Point.CLAIM_ATTEMPT), LocksWaiting((("a", "b"),))]),
    (Point.POLL_JOB, RUNNING),
    (Point.ENTER_COMMIT, PUTTING[:-1]),
]


@pytest.mark.parametrize(("point", "before"), LOCKING)
def test_without_its_lock_store_it_waits_and_loses_nothing(
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
    stopped, [stop] = step(state, Asked(Ask.CANCEL))
    assert stop.delay_ms == 0
    assert stopped.closing is not None
    answer: dict[Point, Event] = {
        Point.ACQUIRE_LOCKS: LocksGranted(1),
        Point.POLL_JOB: JobRunning(),
    }
    event = answer.get(point, Done(point))
    after, _ = step(state, event)
    assert after == step(begun, event)[0]


def test_on_its_way_out_it_does_not_wait_for_its_lock_store() -> None:
    closing, effects = play([*RUNNING, Asked(Ask.INTERRUPT), Done(Point.STOP_JOB)])
    release = [*(Done(p) for p in (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT))]
    for event in release:
        closing, effects_now = step(closing, event)
        effects = [*effects, *effects_now]
    assert effects[-1].point is Point.RELEASE_LOCKS
    failed = EffectFailed(effects[-1], Reason.LOCKS_UNAVAILABLE, "x", retryable=True, patient=True)
    for _ in range(Limits().effect_retries + 1):
        closing, _ = step(closing, failed)
    assert closing.ended is not None
    assert closing.ended.reason is Reason.INTERRUPTED


# Whatever it is told --------------------------------------------------------------------------

_RANDOM_EVENTS = st.one_of(
    st.builds(
        TableRead,
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(0, 2),
        st.booleans(),
    ),
    st.builds(
        EarlierFound,
        attempt=st.integers(0, 2),
        complete=st.booleans(),
        running=st.booleans(),
        failures=st.integers(0, 4),
    ),
    st.sampled_from(
        [
            CommitFound(RESULT),
            PlanMade(PLAN),
            PlanMade(PLAN, nothing_to_do="nothing"),
            AttemptAdopted(PLAN, 0),
            AttemptAdopted(PLAN, 1, awaited=True),
            AdoptionRefused("no"),
            ClaimLost(),
            LocksGranted(1),
            LocksWaiting((("a", "b"),)),
            JobRunning(),
            JobLost(Reason.JOB_FAILED, "x"),
            RoundDone(0),
            *(Decided(3, verdict) for verdict in Verdict),
            CommitRefused(True),
            CommitRefused(False),
            CommitPut(RESULT),
            CommitLost(),
            CommitUnknown(),
            AbandonRefused(1),
            AbandonedBefore(),
            *(Asked(ask) for ask in Ask),
        ]
    ),
)
_ANSWERS = {
    Point.READ_TABLE: (TableRead,),
    Point.CHECK_EARLIER_OUTCOME: (EarlierFound,),
    Point.FIND_COMMIT: (CommitFound,),
    Point.PLAN: (PlanMade,),
    Point.ADOPT_ATTEMPT: (AttemptAdopted, AdoptionRefused, ClaimLost),
    Point.ACQUIRE_LOCKS: (LocksGranted, LocksWaiting),
    Point.POLL_JOB: (JobRunning, JobLost, RoundDone),
    Point.RECONCILE: (Decided,),
    Point.ENTER_COMMIT: (CommitRefused, Done),
    Point.PUT_COMMIT: (CommitPut, CommitLost, CommitUnknown),
    Point.LOOK_UP_COMMIT: (CommitPut, CommitLost),
    Point.ABANDON_ATTEMPT: (AbandonRefused, AbandonedBefore, Done),
}
"""Which events a point may answer with; others answer `Done`."""


@given(st.lists(_RANDOM_EVENTS, max_size=80), st.randoms(use_true_random=False))
def test_no_answers_lead_to_a_put_that_a_stop_forbids(events: list[Event], rng: object) -> None:
    """Fed with any possible answers: it never puts over a stop that it was shown, never
    cleans an attempt before its abandonment, and always knows what to do next."""
    state, effects = step(OperationState(), Started())
    read = TableRead(-1)
    abandoned: set[int] = set()
    for event in events:
        if state.ended is not None:
            return
        assert len(effects) == 1, "something is always under way, and one thing at a time"
        effect = effects[0]
        if effect.point is Point.PUT_COMMIT:
            assert effect.version == read.version + 1
            assert not read.succeeded
            assert not read.closed
            assert effect.attempt > read.abandoned
        if effect.point is Point.CLEAN_ATTEMPT:
            assert (
                effect.attempt <= read.abandoned or read.closed or effect.attempt in abandoned
            ) or effect.attempt == 0
        allowed = _ANSWERS.get(effect.point, (Done,))
        if not isinstance(event, (*allowed, Asked)):
            event = Done(effect.point) if Done in allowed else None  # type: ignore[assignment]
            if event is None:
                continue
        if isinstance(event, TableRead):
            read = event
        if effect.point is Point.ABANDON_ATTEMPT and isinstance(event, Done | AbandonedBefore):
            abandoned.add(effect.attempt)
        state, effects = step(state, event)


def test_what_a_zombie_wrote_after_others_had_cleaned_goes_with_it() -> None:
    later = TableRead(version=9, succeeded=2, abandoned=1)
    interrupted: list[Event] = [Asked(Ask.INTERRUPT), Done(Point.STOP_JOB), AbandonRefused(2)]
    state, effects = play([*RUNNING, *interrupted, later])
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.STOP_JOB]
    assert state.closing is not None
    assert state.closing.todo[:1] == (Point.CLEAN_ATTEMPT,)
    assert state.attempt == 1


def test_the_result_of_a_round_is_looked_for_often_at_first() -> None:
    """Others may commit until we do: at most an eighth of a round is waited for nothing."""
    asked: list[Event] = [*RECONCILING, Decided(3, Verdict.EVALUATE), Done(Point.REQUEST_ROUND)]
    state, _ = play(asked, Limits(poll_ms=300))
    pauses: list[int] = []
    while sum(pauses) < 5_000:
        state, effects = step(state, JobRunning())
        pauses.append(effects[0].delay_ms)
    assert pauses[:8] == [20] * 8
    assert pauses[-1] == 300
    waited = [sum(pauses[:number]) for number in range(len(pauses))]
    assert all(p <= max(20, w / 8) for p, w in zip(pauses, waited, strict=True))
    # The next round begins anew; before the first, nobody is raced.
    state, _ = play([*asked, RoundDone(1), Done(Point.READ_RESULT), TableRead(4)])
    assert play([*RUNNING, JobRunning()], Limits(poll_ms=300))[1][-1].delay_ms == 300
    for event in (Decided(4, Verdict.EVALUATE), Done(Point.REQUEST_ROUND), JobRunning()):
        state, effects = step(state, event)
    assert effects[0].delay_ms == 20
