"""The status of a LakeTable, from what is known of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tandem.errors import Reason
from tandem.kube.registry import Summary
from tandem.locks.model import WHOLE_TABLE, Entry, EntryState, Resource
from tandem.operations.statuses import rfc3339
from tandem.spec.status import Condition, ConditionType, FinishedOperation, Phase, TableStatus

_LAST = 5
_NAMED = 8
LASTING = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.REFERENCE_NOT_FOUND,
        Reason.LOCATION_NOT_ALLOWED,
        Reason.TABLE_NOT_FOUND,
        Reason.CORRUPT_LOG,
        Reason.UNSUPPORTED_FEATURE,
        Reason.STORE_UNSUITABLE,
        Reason.ACCESS_DENIED,
    }
)
"""Problems that somebody has to do something about: the table is stalled."""

Truth = Literal["True", "False", "Unknown"]


def ready(reason: Reason, message: str, generation: int, now_ms: int) -> tuple[Condition, ...]:
    """The conditions of a table that can be worked on."""
    return _conditions(("True", "False", "False"), reason, message, generation, now_ms)


def hindered(reason: Reason, message: str, generation: int, now_ms: int) -> tuple[Condition, ...]:
    """The conditions of a table that cannot be worked on (yet)."""
    lasting = reason in LASTING
    truths: tuple[Truth, Truth, Truth] = (
        ("False", "False", "True") if lasting else ("False", "True", "False")
    )
    return _conditions(truths, reason, message, generation, now_ms)


def _conditions(
    truths: tuple[Truth, Truth, Truth], reason: Reason, message: str, generation: int, now_ms: int
) -> tuple[Condition, ...]:
    types = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
    return tuple(
        Condition(
            type=type_,
            status=truth,
            reason=reason,
            message=message if type_ is ConditionType.READY else "",
            last_transition_time=rfc3339(now_ms),
            observed_generation=generation,
        )
        for type_, truth in zip(types, truths, strict=True)
    )


def compose(
    facts: TableStatus | None,
    conditions: tuple[Condition, ...],
    generation: int,
    operations: Iterable[Summary],
    locks: Iterable[Entry],
) -> TableStatus:
    """The whole status: `facts` of the table's latest version (None where it was never read),
    and what happens on it."""
    operations = list(operations)
    is_ready = conditions[0].status == "True"
    is_stalled = conditions[2].status == "True"
    return (facts or TableStatus()).model_copy(
        update={
            "observed_generation": generation,
            "phase": Phase.SUCCEEDED if is_ready else Phase.FAILED if is_stalled else Phase.PENDING,
            "conditions": conditions,
            "running_operations": tuple(sorted(o.display for o in operations if _running(o))),
            "held_locks": tuple(
                held_lock(entry) for entry in locks if entry.state is not EntryState.WAITING
            ),
            "last_operations": _last(operations),
        }
    )


def _running(operation: Summary) -> bool:
    return operation.active and operation.phase not in ("", Phase.SUSPENDED, Phase.FAILED)


def _last(operations: list[Summary]) -> tuple[FinishedOperation, ...]:
    ended = [o for o in operations if o.ended and o.completed]
    ended.sort(key=lambda o: (o.completed, o.name), reverse=True)
    return tuple(
        FinishedOperation(
            name=o.display,
            phase=Phase(o.phase),
            reason=o.reason,
            completion_time=o.completed,
            version=o.version,
        )
        for o in ended[:_LAST]
    )


def held_lock(entry: Entry) -> str:
    """`TableCompaction/nightly: 0.1, 5 (Rewrite)`"""
    resources = entry.request.resources
    names = [_named(resource) for resource in resources[:_NAMED]]
    more = f" and {len(resources) - _NAMED} more" if len(resources) > _NAMED else ""
    who = entry.request.display or entry.request.operation
    return f"{who}: {', '.join(names)}{more} ({entry.request.mode})"


def _named(resource: Resource) -> str:
    if resource == WHOLE_TABLE:
        return "the whole table"
    if resource.segment:
        return resource.segment
    return f"{resource.interval.start or '…'} to {resource.interval.end or '…'}"
