"""Composes the status of a LakeTable, and what metrics and index servers need to know of a table,
wherever its controller runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from tandem.errors import Reason
from tandem.kube.client.resources import CachedResource
from tandem.locks.rules import EntryState, LockEntry, LockResource, blockers_of, described, waiting
from tandem.spec.common import PLAN_LABEL
from tandem.spec.status import (
    LOG_INSTANT,
    WHOLE_LOG,
    Condition,
    ConditionType,
    FinishedOperation,
    Phase,
    TableLock,
    TableStatus,
    conditions_of,
    rfc3339,
)

_LAST = 5
_NAMED = 8
_LOCKS = 20
_BEHIND = 3
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
        Reason.TOO_LARGE,
    }
)
"""Problems that need an action of the user: the table is stalled."""
Number = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""What a metric can be: a greater number would fail every scrape."""


def ready(reason: Reason, message: str, generation: int, now_ms: int) -> tuple[Condition, ...]:
    """The conditions of a table that can be used."""
    truths = {
        ConditionType.READY: True,
        ConditionType.RECONCILING: False,
        ConditionType.STALLED: False,
    }
    return conditions_of(truths, reason, message, generation, now_ms)


def not_ready(reason: Reason, message: str, generation: int, now_ms: int) -> tuple[Condition, ...]:
    """The conditions of a table that cannot be used (yet)."""
    lasting = reason in LASTING
    truths = {
        ConditionType.READY: False,
        ConditionType.RECONCILING: not lasting,
        ConditionType.STALLED: lasting,
    }
    return conditions_of(truths, reason, message, generation, now_ms)


def compose(
    facts: TableStatus | None,
    conditions: tuple[Condition, ...],
    generation: int,
    operations: Iterable[CachedResource],
    locks: Iterable[LockEntry],
    since: MutableMapping[tuple[str, bool], str] | None = None,
    now_ms: int = 0,
    log_locks: Iterable[LockEntry] = (),
) -> TableStatus:
    """The whole status: `facts` of the table's latest version (None if it was never read), and its
    operations and locks. `since` and `log_locks` as for `table_locks`."""
    # Dry runs of `kubectl tandem plan` are left out.
    operations = [o for o in operations if all(key != PLAN_LABEL for key, _ in o.labels)]
    locks, log_locks = tuple(locks), tuple(log_locks)
    is_ready = conditions[0].status == "True"
    is_stalled = conditions[2].status == "True"
    return (facts or TableStatus()).model_copy(
        update={
            "observed_generation": generation,
            "phase": Phase.SUCCEEDED if is_ready else Phase.FAILED if is_stalled else Phase.PENDING,
            "conditions": conditions,
            "running_operations": tuple(sorted(o.display for o in operations if _running(o))),
            "held_locks": tuple(
                held_lock(entry, of_log=entries is log_locks)
                for entries in (locks, log_locks)
                for entry in entries
                if entry.state is not EntryState.WAITING
            ),
            "locks": table_locks(locks, {} if since is None else since, now_ms, log_locks) or None,
            "last_operations": _last(operations),
        }
    )


def _running(operation: CachedResource) -> bool:
    return operation.active and operation.phase not in ("", Phase.SUSPENDED, Phase.FAILED)


def _last(operations: list[CachedResource]) -> tuple[FinishedOperation, ...]:
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


def table_locks(
    entries: Sequence[LockEntry],
    since: MutableMapping[tuple[str, bool], str],
    now_ms: int,
    log_entries: Sequence[LockEntry] = (),
) -> tuple[TableLock, ...]:
    """Locks in detail, and the queue; no more than a status should hold.

    Args:
        log_entries: those of the table's log of blocks, which has locks of its own.
        since: since when each operation holds (True) or waits (False). New ones are added with
            `now_ms`, and those that are gone are removed. Lock entries have no times.
    """
    there = {_place(entry) for entry in (*entries, *log_entries)}
    for place in [place for place in since if place not in there]:
        del since[place]
    found: list[TableLock] = []
    both = [(entry, entries, False) for entry in entries]
    both += [(entry, log_entries, True) for entry in log_entries]
    for entry, among, of_log in both:
        begun = since.setdefault(_place(entry), rfc3339(now_ms))
        if len(found) == _LOCKS:
            continue
        resources = tuple(entry.request.resources)
        behind = waiting(blockers_of(entry, among)).blockers
        found.append(
            TableLock(
                operation=entry.request.display or entry.request.operation,
                mode=entry.request.mode,
                state=entry.state.capitalize(),
                segments=tuple(_named(resource, of_log=of_log) for resource in resources[:_NAMED]),
                more=len(resources) - _NAMED if len(resources) > _NAMED else None,
                since=begun,
                behind=tuple(f"{who} on {what}" for who, what in behind[:_BEHIND]) or None,
            )
        )
    return tuple(found)


def remembered_since(status: Mapping[str, Any]) -> dict[tuple[str, bool], str]:
    """`since` of `table_locks` as an earlier operator left it in a LakeTable's status."""
    return {
        (str(lock.get("operation", "")), lock.get("state") != "Waiting"): str(lock["since"])
        for lock in status.get("locks") or ()
        if lock.get("since")
    }


def _place(entry: LockEntry) -> tuple[str, bool]:
    who = entry.request.display or entry.request.operation
    return who, entry.state is not EntryState.WAITING


def held_lock(entry: LockEntry, *, of_log: bool = False) -> str:
    """`TableCompaction/nightly: 0.1, 5 (Rewrite)`"""
    resources = tuple(entry.request.resources)
    names = [_named(resource, of_log=of_log) for resource in resources[:_NAMED]]
    more = f" and {len(resources) - _NAMED} more" if len(resources) > _NAMED else ""
    who = entry.request.display or entry.request.operation
    return f"{who}: {', '.join(names) or 'nothing yet'}{more} ({entry.request.mode})"


def _named(resource: LockResource, *, of_log: bool) -> str:
    if resource == LockResource():
        return WHOLE_LOG if of_log else "the whole table"
    if resource.segment:
        return f"{LOG_INSTANT}{resource.segment}" if of_log else resource.segment
    return described(resource.interval)


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table as of its controller's last round.

    Attributes:
        ready: whether it can be used; `reason` and `message` say why not, or since when.
        adopted: whether it has been adopted, by this operator or by an earlier one.
        location: canonical; None while it cannot be used.
        log_blocks, log_bytes, log_oldest_ms: of its log; None without one.
        hold: what automatic compaction waits for; None if it is off.
        next_ms: when it starts next, in Unix milliseconds; None if that is not known.
    """

    uid: str
    ready: bool
    reason: str
    message: str = ""
    adopted: bool = False
    location: str | None = None
    version: Number | None = None
    segments: Number | None = None
    files: Number | None = None
    bytes: Number | None = None
    small_files: Number | None = None
    deleted_rows: Number | None = None
    log_blocks: Number | None = None
    log_bytes: Number | None = None
    log_oldest_ms: Number | None = None
    hold: str | None = None
    next_ms: Number | None = None
    chunks_due: Number | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableFigures:
        """Raises: ValueError."""
        return _ADAPTER.validate_python(found)


_ADAPTER: Final = TypeAdapter(TableFigures)
