"""The machine alone: what it asks for on its way to a commit, or to another end.

No store, no job, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.machine_play import (
    BEGIN,
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
    AdoptionRefused,
    AttemptAdopted,
    ClaimLost,
    CommitFound,
    CommitLost,
    CommitPut,
    CommitUnknown,
    Decided,
    EarlierFound,
    Effect,
    EffectDone,
    EffectFailed,
    EndedBeforeStart,
    Ending,
    Event,
    JobLost,
    JobRunning,
    LocksGone,
    LocksGranted,
    LocksWaiting,
    PlanMade,
    Point,
    RecordedBefore,
    RoundDone,
    Started,
    StartRefused,
    StopRequest,
    TableRead,
    Verdict,
    YieldCause,
    YieldRequired,
    Yields,
)
from tandem.operations.machine.state import (
    AttemptState,
    Limits,
    LogState,
    OperationState,
    Request,
)
from tandem.operations.machine.step import step
from tandem.operations.machine.transitions import AFTER_SUCCESS
from tandem.spec.status import Phase

# The machine alone: what it asks for on its way to a commit. No store, no job, no clock.


def test_an_undisturbed_operation_commits() -> None:
    events = [*PUTTING, CommitPut(RESULT), *done(*AFTER_SUCCESS)]
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
    assert state.outcome.ended == Ending(
        Phase.SUCCEEDED, Reason.COMMITTED, "committed as version 4", 1, RESULT, PLAN
    )


def test_phases_follow_each_other() -> None:
    state = OperationState()
    phases = [state.phase]
    for event in [*PUTTING, CommitPut(RESULT), *done(*AFTER_SUCCESS)]:
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
            *done(Point.WRITE_SIDECARS, Point.ENTER_COMMIT),
        ]
    )
    assert effects[-1] == Effect(Point.PUT_COMMIT, attempt=1, version=10)


@pytest.mark.parametrize("stop", [TableRead(9, abandoned=1), TableRead(9, closed=True)])
def test_an_abandoned_attempt_publishes_nothing(stop: TableRead) -> None:
    state, effects = play([*PUTTING, CommitLost(), stop])
    todo = [Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS]
    assert points(effects)[-1] is todo[0]
    state, effects = play([*PUTTING, CommitLost(), stop, *done(*todo)])
    assert ended(state).reason is Reason.ABANDONED
    assert Point.RECORD_RESULT not in points(effects)


def test_a_success_in_the_log_is_reported_instead_of_put_again() -> None:
    _, effects = play([*PUTTING, CommitUnknown(), CommitLost(), TableRead(4, succeeded=1)])
    assert points(effects)[-3:] == [Point.LOOK_UP_COMMIT, Point.READ_TABLE, Point.FIND_COMMIT]


def test_a_recorded_result_is_reported() -> None:
    recorded = Ending(Phase.FAILED, Reason.CONFLICT, "lost", 2)
    state, effects = play(found(recorded=recorded))
    assert state.outcome.ended == recorded
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]


@pytest.mark.parametrize(("claimed", "cleans"), [(0, False), (1, False), (2, True)])
def test_I5_a_recorded_success_ends_after_later_attempts_are_cleaned(
    claimed: int, cleans: bool
) -> None:
    """The session that committed was taken for dead, and could not know of them."""
    recorded = Ending(Phase.SUCCEEDED, Reason.COMMITTED, "done", 1)
    found = EarlierFound(recorded=recorded, attempt=claimed)
    events: list[Event] = [Started(), TableRead(9, succeeded=1), found]
    if cleans:
        events.append(EffectDone(Point.CLEAN_ATTEMPT))
    state, effects = play(events)
    assert state.outcome.ended == recorded
    last = Effect(Point.CLEAN_ATTEMPT, 2) if cleans else Effect(Point.CHECK_EARLIER_OUTCOME)
    assert effects[-1] == last


@pytest.mark.parametrize(
    ("given_up", "succeeded", "cleans"),
    [(1, 1, Point.CLEAN_UNUSED), (1, 2, Point.CLEAN_ATTEMPT), (2, 1, Point.CLEAN_ATTEMPT)],
)
def test_I5_a_session_that_gave_an_attempt_up_deletes_what_it_wrote_after_the_others_cleaning(
    given_up: int, succeeded: int, cleans: Point
) -> None:
    recorded = Ending(Phase.SUCCEEDED, Reason.COMMITTED, "done", succeeded)
    state = OperationState(
        Request(), log=LogState(9, succeeded=succeeded), attempt=AttemptState(given_up=given_up)
    )
    state, [effect] = step(state, EarlierFound(recorded=recorded, attempt=succeeded))
    assert effect == Effect(cleans, max(given_up, succeeded))
    state, effects = step(state, EffectDone(cleans))
    assert effects == ()
    assert state.outcome.ended == recorded


def test_a_success_in_the_log_overrides_a_contradictory_record() -> None:
    recorded = Ending(Phase.SUCCEEDED, Reason.NOTHING_TO_DO, "nothing", 0)
    events: list[Event] = [Started(), TableRead(9, succeeded=2), EarlierFound(recorded=recorded)]
    _, effects = play(events)
    assert effects[-1] == Effect(Point.FIND_COMMIT, attempt=2)


def test_a_complete_attempt_is_adopted_and_reconciled_under_its_own_number() -> None:
    events: list[Event] = [
        *found(attempt=2, complete=True),
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
        *found(attempt=2, running=True),
        AttemptAdopted(PLAN, round_, awaited=True),
        LocksGranted(5),
    ]
    state, effects = play(events)
    assert state.phase is Phase.RUNNING
    assert points(effects)[2:] == [Point.ADOPT_ATTEMPT, Point.ACQUIRE_LOCKS, Point.POLL_JOB]
    assert effects[-1] == Effect(Point.POLL_JOB, attempt=2, round=round_)
    _, effects = play([*events, RoundDone(round_), EffectDone(Point.READ_RESULT), TableRead(4)])
    assert effects[-1] == Effect(Point.RECONCILE, attempt=2, round=round_)
    # Locks that are lost later are no reason to wait for the job once more.
    reconciled: list[Event] = [
        *events,
        RoundDone(round_),
        EffectDone(Point.READ_RESULT),
        TableRead(4),
        Decided(4, Verdict.COMMIT),
        EffectDone(Point.WRITE_SIDECARS),
        LocksGone(revoked=False),
        LocksGranted(6),
    ]
    _, effects = play(reconciled)
    assert points(effects)[-1] is Point.ENTER_COMMIT


def test_a_job_that_was_taken_over_and_fails_counts_as_one_more() -> None:
    events: list[Event] = [
        *found(attempt=2, running=True, failures=1),
        AttemptAdopted(PLAN, 0, awaited=True),
        LocksGranted(5),
        JobLost(Reason.JOB_FAILED, "out of memory"),
    ]
    state, _ = play(events, Limits(backoff_limit=1))
    assert not closing(state).again
    assert "attempt 2 of 2" in closing(state).ending.message


def test_the_failure_of_an_attempt_is_not_reported_for_the_next_one() -> None:
    lost = JobLost(Reason.JOB_FAILED, "out of memory")
    state, effects = play([*RUNNING, lost], Limits(backoff_limit=1))
    while state.outcome.closing is not None:
        state, next_effects = step(state, EffectDone(effects[-1].point))
        effects = list(next_effects)
    assert points(effects) == [Point.READ_TABLE]
    assert state.message == "attempt 1: out of memory"


def test_after_an_incomplete_attempt_the_next_starts_and_the_log_learns_nothing() -> None:
    events: list[Event] = [
        *found(attempt=2),
        *done(Point.STOP_JOB, Point.END_ATTEMPT, Point.RELEASE_LOCKS),
        TableRead(3),
        EarlierFound(attempt=2, ended=True, failures=1),
        EffectDone(Point.CLEAN_ATTEMPT),
        PlanMade(PLAN),
    ]
    _, effects = play(events)
    assert Point.ABANDON_ATTEMPT not in points(effects)
    # It may yet be committed by a session that we take for dead: its files stay.
    assert [e.attempt for e in effects if e.point is Point.CLEAN_ATTEMPT] == [0]
    assert effects[-1] == Effect(Point.CLAIM_ATTEMPT, attempt=3)


def test_an_attempt_stops_and_cleans_up_once_another_one_has_succeeded() -> None:
    """One that a session that was taken for dead has committed after all."""
    events: list[Event] = [*PUTTING, CommitLost(), TableRead(9, succeeded=2)]
    state, effects = play(events)
    assert effects[-1] == Effect(Point.STOP_JOB, attempt=1)
    assert closing(state).todo == (Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
    assert closing(state).again


@pytest.mark.parametrize(("abandoned", "closes"), [(0, True), (1, False)])
def test_an_ending_without_a_job_is_committed_if_an_earlier_attempt_may_still_commit(
    abandoned: int, closes: bool
) -> None:
    events: list[Event] = [
        Started(),
        TableRead(3, abandoned=abandoned),
        EarlierFound(attempt=1, ended=True),
        EffectDone(Point.CLEAN_ATTEMPT),
        PlanMade(PLAN, nothing_to_do="nothing to do"),
        EffectDone(Point.CLAIM_ATTEMPT),
    ]
    _, effects = play(events)
    first = Point.ABANDON_ATTEMPT if closes else Point.RECORD_RESULT
    assert effects[-1] == Effect(first, attempt=2)


@pytest.mark.parametrize(
    "failed",
    [
        StopRequest.DEADLINE,
        EffectFailed(Effect(Point.ACQUIRE_LOCKS, 1), Reason.UNSUPPORTED_FEATURE, "refused"),
    ],
)
def test_what_ends_before_a_job_is_asked_for_writes_nothing_to_the_log(failed: Event) -> None:
    waiting: list[Event] = [*CLAIMED, LocksWaiting((("a", "b"),))]
    ends: list[Event] = [*done(Point.RECORD_RESULT, Point.RELEASE_LOCKS)]
    state, effects = play([*waiting, failed, *ends])
    assert ended(state)
    assert points(effects)[-2:] == [Point.RECORD_RESULT, Point.RELEASE_LOCKS]
    assert Point.ABANDON_ATTEMPT not in points(effects)


@pytest.mark.parametrize("begun", [True, False])
def test_an_attempt_without_a_plan_cannot_have_failed(begun: bool) -> None:
    """The process that claimed it was suspended or restarted before it did anything: it does not
    count towards the backoff limit."""
    state, _ = play(found(attempt=1, begun=begun))
    assert closing(state).counted is begun


def test_adoption_refused_means_another_attempt() -> None:
    events: list[Event] = [
        *found(attempt=1, complete=True),
        AdoptionRefused("the row map is damaged"),
    ]
    state, _ = play(events)
    assert closing(state).again


def test_a_live_process_is_left_alone() -> None:
    state, effects = play(found(attempt=1, alive="process 7"))
    assert ended(state).reason is Reason.ALREADY_RUNNING
    assert "process 7" in ended(state).message
    assert points(effects) == [Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME]


def test_a_lost_claim_is_a_live_process_too() -> None:
    state, _ = play([*BEGIN, ClaimLost()])
    assert ended(state).reason is Reason.ALREADY_RUNNING


def test_I28_an_operation_that_waited_for_locks_plans_again() -> None:
    waiting: list[Event] = [
        *CLAIMED,
        LocksWaiting((("TableCompaction/nightly", "segment 0.1"),), now_ms=7),
    ]
    state, effects = play(waiting)
    assert state.locks.waiting_since_ms == 7
    still = LocksWaiting(state.locks.blockers, now_ms=99)
    assert play([*waiting, EffectDone(Point.AWAIT_LOCKS), still])[0].locks.waiting_since_ms == 7
    assert state.locks.blockers == (("TableCompaction/nightly", "segment 0.1"),)
    assert points(effects)[-1] is Point.AWAIT_LOCKS
    granted: list[Event] = [*waiting, EffectDone(Point.AWAIT_LOCKS), LocksGranted(2), TableRead(5)]
    state, effects = play(granted)
    assert state.locks.waiting_since_ms == 0
    assert points(effects)[-2:] == [Point.READ_TABLE, Point.PLAN]
    _, effects = play([*granted, PlanMade(PLAN), LocksGranted(2)])
    assert points(effects)[-1] is Point.PERSIST_PLAN


def test_I25_a_revoked_holder_publishes_nothing_and_queues_again() -> None:
    state, effects = play([*DECIDED, LocksGone(revoked=True)])
    assert Point.PUT_COMMIT not in points(effects)
    assert closing(state).again
    assert not closing(state).counted


def test_dry_run_stops_at_the_plan_and_records_nothing() -> None:
    state, effects = play(BEGIN, Limits(dry_run=True))
    assert ended(state).plan == PLAN
    assert points(effects)[-1] is Point.PLAN


def test_the_result_of_a_round_is_looked_for_often_at_first() -> None:
    """Others may commit until we do: at most an eighth of a round is waited for nothing."""
    asked: list[Event] = [
        *RECONCILING,
        Decided(3, Verdict.EVALUATE),
        EffectDone(Point.REQUEST_ROUND),
    ]
    state, _ = play(asked, Limits(poll_ms=300))
    pauses: list[int] = []
    while sum(pauses) < 5_000:
        state, effects = step(state, JobRunning())
        pauses.append(effects[0].delay_ms)
    assert pauses[:8] == [20] * 8
    assert pauses[-1] == 300
    waited = [sum(pauses[:number]) for number in range(len(pauses))]
    assert all(p <= max(20, w / 8) for p, w in zip(pauses, waited, strict=True))
    # The next round starts again; before the first, there is no race.
    state, _ = play([*asked, RoundDone(1), EffectDone(Point.READ_RESULT), TableRead(4)])
    assert play([*RUNNING, JobRunning()], Limits(poll_ms=300))[1][-1].delay_ms == 300
    for event in (Decided(4, Verdict.EVALUATE), EffectDone(Point.REQUEST_ROUND), JobRunning()):
        state, effects = step(state, event)
    assert effects[0].delay_ms == 20


# The machine alone: operations that end when they are planned, without a commit.


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


# The machine alone, fed with any answers that its effects may get.


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
        ended=st.booleans(),
        complete=st.booleans(),
        running=st.booleans(),
        failures=st.integers(0, 4),
        yields=st.builds(Yields, st.integers(0, 6), st.just("x"), st.integers(0, 9)),
        now_ms=st.integers(0, 9),
    ),
    st.sampled_from(
        [
            CommitFound(RESULT),
            PlanMade(PLAN),
            PlanMade(PLAN, nothing_to_do="nothing"),
            EffectFailed(Effect(Point.PLAN), Reason.DATA_FILE_MISSING, "gone", fresh=True),
            EffectFailed(Effect(Point.PLAN), Reason.UNSUPPORTED_FEATURE, "refused"),
            AttemptAdopted(PLAN, 0),
            AttemptAdopted(PLAN, 1, awaited=True),
            AdoptionRefused("no"),
            ClaimLost(),
            LocksGranted(1),
            LocksWaiting((("a", "b"),)),
            StartRefused(Reason.JOB_REFUSED, "x"),
            StartRefused(Reason.JOB_REFUSED, "x", certain=False),
            StartRefused(Reason.INVALID_SPEC, "x", passing=False),
            JobRunning(),
            JobLost(Reason.JOB_FAILED, "x"),
            RoundDone(0),
            YieldRequired("x", YieldCause.COMMIT),
            *(Decided(3, verdict) for verdict in Verdict),
            LocksGone(True),
            LocksGone(False),
            CommitPut(RESULT),
            CommitLost(),
            CommitUnknown(),
            AbandonRefused(1),
            AbandonedBefore(),
            EndedBeforeStart(),
            RecordedBefore(Ending(Phase.FAILED, Reason.CONFLICT, "recorded", 1)),
            *StopRequest,
        ]
    ),
)


_ANSWERS = {
    Point.READ_TABLE: (TableRead,),
    Point.CHECK_EARLIER_OUTCOME: (EarlierFound,),
    Point.FIND_COMMIT: (CommitFound,),
    Point.PLAN: (PlanMade, EffectFailed),
    Point.ADOPT_ATTEMPT: (AttemptAdopted, AdoptionRefused, ClaimLost),
    Point.ACQUIRE_LOCKS: (LocksGranted, LocksWaiting),
    Point.START_JOB: (StartRefused, EffectDone),
    Point.POLL_JOB: (JobRunning, JobLost, RoundDone, YieldRequired),
    Point.RECONCILE: (Decided, YieldRequired),
    Point.ENTER_COMMIT: (LocksGone, YieldRequired, EffectDone),
    Point.PUT_COMMIT: (CommitPut, CommitLost, CommitUnknown),
    Point.LOOK_UP_COMMIT: (CommitPut, CommitLost),
    Point.END_ATTEMPT: (AbandonRefused, AbandonedBefore, EndedBeforeStart, EffectDone),
    Point.ABANDON_ATTEMPT: (AbandonRefused, AbandonedBefore, EndedBeforeStart, EffectDone),
    Point.RECORD_RESULT: (AbandonedBefore, RecordedBefore, EffectDone),
}
"""Which events a point may answer with; others answer `EffectDone`."""


@given(st.lists(_RANDOM_EVENTS, max_size=80), st.randoms(use_true_random=False))
def test_no_events_lead_to_a_put_that_a_stop_forbids(events: list[Event], rng: object) -> None:
    """Fed with any possible answers: it never puts over a stop that it was shown, never
    cleans an attempt before its abandonment, and always knows what to do next."""
    state, effects = step(OperationState(), Started())
    read = TableRead(-1)
    abandoned: set[int] = set()
    for event in events:
        if state.outcome.ended is not None:
            return
        assert len(effects) == 1, "something is always under way, and one thing at a time"
        effect = effects[0]
        if effect.point is Point.PUT_COMMIT:
            assert effect.version == read.version + 1
            assert not read.succeeded
            assert not read.closed
            assert effect.attempt > read.abandoned
        if effect.point is Point.CLEAN_ATTEMPT:
            # If another session goes on with the operation, the performer leaves the files.
            assert (
                effect.attempt <= read.abandoned
                or read.closed
                or read.succeeded not in (0, effect.attempt)
                or effect.attempt in abandoned
            ) or effect.attempt == 0
        allowed = _ANSWERS.get(effect.point, (EffectDone,))
        if not isinstance(event, (*allowed, StopRequest)):
            event = EffectDone(effect.point) if EffectDone in allowed else None  # type: ignore[assignment]
            if event is None:
                continue
        if isinstance(event, TableRead):
            read = event
        is_end = effect.point in (Point.END_ATTEMPT, Point.ABANDON_ATTEMPT)
        if (effect.point is Point.ABANDON_ATTEMPT and isinstance(event, EffectDone)) or (
            is_end and isinstance(event, AbandonedBefore)
        ):
            abandoned.add(effect.attempt)
        state, effects = step(state, event)
