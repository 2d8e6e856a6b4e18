"""From a state to the `status` that people see. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from tandem.errors import Reason
from tandem.operations.state import OperationState
from tandem.spec.status import (
    ENDED,
    Condition,
    ConditionType,
    OperationStatus,
    Phase,
    Progress,
)

_PHASE_REASON = {
    Phase.PENDING: Reason.PENDING,
    Phase.PLANNED: Reason.PLANNED,
    Phase.LOCKED: Reason.PLANNED,
    Phase.RUNNING: Reason.RUNNING,
    Phase.RECONCILING: Reason.RECONCILING,
}

Truth = Literal["True", "False", "Unknown"]


def rfc3339(ms: int) -> str:
    """Unix milliseconds as Kubernetes writes times."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(
    state: OperationState,
    *,
    operation_id: str,
    generation: int,
    started_ms: int,
    now_ms: int,
) -> OperationStatus:
    """The status of an operation that started at `started_ms` (Unix milliseconds)."""
    ending = state.ended
    phase = ending.phase if ending else state.phase
    reason = ending.reason if ending else _reason(state)
    message = ending.message if ending else _message(state)
    return OperationStatus(
        observed_generation=generation,
        phase=phase,
        attempt=ending.attempt if ending else state.attempt,
        operation_id=operation_id,
        start_time=rfc3339(started_ms),
        completion_time=rfc3339(now_ms) if phase in ENDED else None,
        conditions=conditions(phase, reason, message, generation, now_ms),
        progress=_progress(state.progress, phase),
        plan=(ending.plan if ending else None) or state.plan,
        result=ending.result if ending else None,
    )


def _progress(progress: Progress | None, phase: Phase) -> Progress | None:
    """What the job said last, which need not have been its end."""
    if progress is None or phase is not Phase.SUCCEEDED:
        return progress
    return Progress(
        percent=100,
        files_done=progress.files_total,
        files_total=progress.files_total,
        bytes_done=progress.bytes_total,
        bytes_total=progress.bytes_total,
        summary=f"{progress.files_total}/{progress.files_total} files",
    )


def _reason(state: OperationState) -> Reason:
    if state.hindrance:
        return state.hindrance[0]
    if state.blockers:
        return Reason.WAITING_FOR_LOCK
    return _PHASE_REASON.get(state.phase, Reason.PENDING)


def _message(state: OperationState) -> str:
    if state.hindrance:
        return state.hindrance[1]
    if state.blockers:
        who, what = state.blockers[0]
        more = f" and {len(state.blockers) - 1} more" if len(state.blockers) > 1 else ""
        return f"waits for {who} on {what}{more}"
    return state.message


def conditions(
    phase: Phase, reason: Reason, message: str, generation: int, now_ms: int
) -> tuple[Condition, ...]:
    """The four conditions of an operation in `phase`."""

    def condition(type_: ConditionType, status: Truth, why: Reason, text: str) -> Condition:
        return Condition(
            type=type_,
            status=status,
            reason=why,
            message=text,
            last_transition_time=rfc3339(now_ms),
            observed_generation=generation,
        )

    well = phase in (Phase.SUCCEEDED, Phase.SUPERSEDED)
    failed = phase is Phase.FAILED
    succeeded: Truth = "True" if well else "False" if failed else "Unknown"
    return (
        condition(ConditionType.SUCCEEDED, succeeded, reason, message),
        condition(ConditionType.RECONCILING, "False" if phase in ENDED else "True", reason, ""),
        condition(ConditionType.STALLED, "True" if failed else "False", reason, ""),
        condition(ConditionType.READY, "True" if well else "False", reason, ""),
    )
