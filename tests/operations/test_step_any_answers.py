"""The machine alone, fed with any answers that its effects may get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from operations.machine_play import PLAN, RESULT
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
    CommitRefused,
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
from tandem.operations.machine.state import OperationState
from tandem.operations.machine.step import step
from tandem.spec.status import Phase

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
            CommitRefused(True),
            CommitRefused(False),
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
    Point.ENTER_COMMIT: (CommitRefused, YieldRequired, EffectDone),
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
