"""Derives a resource's `status` from the state machine's state. Pure."""

from __future__ import annotations

from tandem.errors import Reason
from tandem.operations.machine.events import Ending
from tandem.operations.machine.state import OperationState
from tandem.spec.status import (
    ENDED,
    Condition,
    ConditionType,
    OperationResult,
    OperationStatus,
    Phase,
    Progress,
    Yielded,
    conditions_of,
    rfc3339,
)

_PHASE_REASON = {
    Phase.PENDING: Reason.PENDING,
    Phase.PLANNED: Reason.PLANNED,
    Phase.LOCKED: Reason.PLANNED,
    Phase.RUNNING: Reason.RUNNING,
    Phase.RECONCILING: Reason.RECONCILING,
}


def shown_parts(state: OperationState) -> tuple[object, ...]:
    """All of a state that its status depends on, beside the time; and how often the effect that is
    awaited was tried. Most steps change none of it, and a status takes longer to make than this."""
    return (
        *(state.phase, state.message, state.attempt, state.locks, state.yields, state.refusal),
        *(state.pending.waiting_reason, state.pending.retries, state.job.progress),
        state.outcome.ended,
    )


def status_of(
    state: OperationState,
    *,
    operation_id: str,
    generation: int,
    started_ms: int,
    now_ms: int,
) -> OperationStatus:
    """The status of an operation that started at `started_ms` (Unix milliseconds)."""
    ending = state.outcome.ended
    phase = ending.phase if ending else _phase(state)
    reason = ending.reason if ending else _reason(state)
    message = ending.message if ending else _message(state, now_ms)
    return OperationStatus(
        observed_generation=generation,
        phase=phase,
        attempt=ending.attempt if ending else _attempt(state),
        operation_id=operation_id,
        start_time=rfc3339(started_ms),
        completion_time=rfc3339(now_ms) if phase in ENDED else None,
        conditions=conditions(phase, reason, message, generation, now_ms),
        progress=_progress(state.job.progress, phase),
        plan=(ending.plan if ending else None) or state.attempt.plan,
        yields=_yields(state),
        result=ending.result if ending else None,
    )


def repeated(status: OperationStatus, ending: Ending | None) -> OperationStatus:
    """A status without a cluster: if it reports what an earlier run did, it says so, with the times
    of that run. (In a cluster there is one run, whichever session reports it.)"""
    if ending is None or not ending.ended_ms:
        return status
    result = status.result or OperationResult()
    return status.model_copy(
        update={
            "result": result.model_copy(update={"repeated": True}),
            "start_time": rfc3339(ending.started_ms or ending.ended_ms),
            "completion_time": rfc3339(ending.ended_ms),
        }
    )


def _attempt(state: OperationState) -> int:
    """The latest one: between two, that which yielded."""
    return state.attempt.number or (state.attempt.last_claimed if state.yields.next_try_ms else 0)


def _yields(state: OperationState) -> Yielded | None:
    yields = state.yields
    if not yields.count:
        return None
    waits = yields.next_try_ms and state.outcome.ended is None
    next_try = rfc3339(yields.next_try_ms) if waits else None
    return Yielded(count=yields.count, next_try=next_try, by=yields.by)


def _progress(progress: Progress | None, phase: Phase) -> Progress | None:
    if progress is None:
        return None
    if phase is Phase.SUCCEEDED:
        # The job's last report may be from before its end.
        return progress.completed()
    return progress.stopped() if phase in ENDED or phase is Phase.SUSPENDED else progress


def _phase(state: OperationState) -> Phase:
    """While the cluster takes no job, each try plans and locks for a moment."""
    before_job = state.phase in (Phase.PLANNED, Phase.LOCKED)
    return Phase.PENDING if state.refusal is not None and before_job else state.phase


def _reason(state: OperationState) -> Reason:
    if state.pending.waiting_reason:
        return state.pending.waiting_reason[0]
    if state.yields.next_try_ms:
        return Reason.YIELDED
    if state.locks.waiting_since_ms:
        return Reason.WAITING_FOR_LOCK
    if state.refusal is not None:
        return state.refusal.reason
    return _PHASE_REASON.get(state.phase, Reason.PENDING)


def _message(state: OperationState, now_ms: int) -> str:
    if state.pending.waiting_reason:
        return state.pending.waiting_reason[1]
    locks, yields = state.locks, state.yields
    if yields.next_try_ms:
        return f"yielded to {yields.by}; tries again at {rfc3339(yields.next_try_ms)}"
    if locks.waiting_since_ms:
        lasts = duration_in_words((now_ms - locks.waiting_since_ms) // 1000)
        if not locks.blockers:
            return f"waits for its turn, {lasts}"
        who, what = locks.blockers[0]
        more = f" and {len(locks.blockers) - 1} more" if len(locks.blockers) > 1 else ""
        return f"waits for {who} on {what}{more}, {lasts}"
    if state.refusal is not None:
        refusal = state.refusal
        since, next_try = rfc3339(refusal.since_ms), rfc3339(refusal.next_try_ms)
        return f"{refusal.message} (since {since}, tried again at {next_try})"
    return state.message


def duration_in_words(seconds: int) -> str:
    """A duration in words: `40 s`, `3 min`, `2 h 5 min`."""
    minutes, seconds = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes else f"{seconds} s"


def conditions(
    phase: Phase, reason: Reason, message: str, generation: int, now_ms: int
) -> tuple[Condition, ...]:
    """The conditions of an operation in `phase`, the most informative one first.

    Their values follow how tools read them (Flux and `kubectl wait` through kstatus, Argo CD):
    `Ready` False alone means "in progress" to them, so a failure is also `Stalled`. A suspended
    operation is in the state that its owner wants, so it has no `Ready` condition.
    """

    failed = phase is Phase.FAILED
    ended_well = True if phase in (Phase.SUCCEEDED, Phase.SUPERSEDED) else False if failed else None
    truths = {
        ConditionType.SUCCEEDED: ended_well,
        ConditionType.RECONCILING: phase not in ENDED and phase is not Phase.SUSPENDED,
        ConditionType.STALLED: failed,
    }
    if phase is not Phase.SUSPENDED:
        truths[ConditionType.READY] = ended_well
    found = conditions_of(truths, reason, message, generation, now_ms)
    if failed:
        stalled = found[2].model_copy(update={"message": message})
        return (*found[:2], stalled, *found[3:])
    return found
