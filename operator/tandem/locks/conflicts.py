"""Which locks are compatible: the design's matrix as a table, and one pure function.

Every `LockStore` calls `decide` within an atomic read-decide-write (by a mutex in memory, by a
compare on the table's head key in etcd).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tandem.locks.model import EntryState, LockEntry, LockRequest, LockResource, Mode


class Compatibility(Enum):
    """Whether a request is compatible with a holder of an overlapping resource."""

    YES = "yes"
    NO = "no"
    ROWS = "yes: rows are checked at commit"  # "no" if either asks for segment concurrency


_YES, _NO, _ROWS = Compatibility.YES, Compatibility.NO, Compatibility.ROWS
_COLUMNS = (Mode.APPEND, Mode.UPDATE, Mode.REWRITE, Mode.REPLACE, Mode.EXCLUSIVE)

# fmt: off
MATRIX: dict[tuple[Mode, Mode], Compatibility] = {
    (requested, held): cell
    for requested, row in {
        # requested ↓ / held →   Append  Update  Rewrite Replace Exclusive
        Mode.APPEND:            (_YES,   _YES,   _YES,   _YES,   _NO),
        Mode.UPDATE:            (_YES,   _ROWS,  _YES,   _NO,    _NO),
        Mode.REWRITE:           (_YES,   _YES,   _NO,    _NO,    _NO),
        Mode.REPLACE:           (_YES,   _NO,    _YES,   _NO,    _NO),
        Mode.EXCLUSIVE:         (_NO,    _NO,    _NO,    _NO,    _NO),
    }.items()
    for held, cell in zip(_COLUMNS, row, strict=True)
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Grant:
    """The request is granted, provided that the entries of `revoke` are marked (all or none)."""

    revoke: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The request is blocked by these entries, each with the first common resource."""

    blockers: tuple[tuple[LockEntry, LockResource], ...]


def conflict(request: LockRequest, other: LockRequest) -> LockResource | None:
    """The resource over which `request` conflicts with `other`; None if they are compatible."""
    beside = MATRIX[request.mode, other.mode]
    if beside is Compatibility.YES:
        return None
    if beside is Compatibility.ROWS and request.row_concurrency and other.row_concurrency:
        return None
    return request.resources.common(other.resources)


def decide(request: LockRequest, entries: Iterable[LockEntry], *, order: int) -> Grant | Wait:
    """Decide on a request, given all other entries of its table.

    `order` is the request's own place in the queue. It waits for holders that it conflicts
    with, and (fairness) for earlier waiters of at least its priority that it conflicts with.
    A strictly higher priority revokes all conflicting holders or none: none if one of them
    is inside its commit or as important as the request (S26, S27, S28, I-24).
    """
    blockers: list[tuple[LockEntry, LockResource]] = []
    revocable: list[str] = []
    for entry in entries:
        if entry.request.operation == request.operation or entry.revoked_by:
            continue
        if entry.state is EntryState.WAITING and not _goes_first(entry, request, order):
            continue
        resource = conflict(request, entry.request)
        if resource is None:
            continue
        if entry.state is EntryState.HELD and entry.request.priority < request.priority:
            revocable.append(entry.request.operation)
        else:
            blockers.append((entry, resource))
    if blockers:
        return Wait(tuple(blockers))
    return Grant(revoke=tuple(revocable))


def _goes_first(waiter: LockEntry, request: LockRequest, order: int) -> bool:
    if waiter.request.priority != request.priority:
        return waiter.request.priority > request.priority
    return waiter.order < order
