"""The effect of each call on the entries of a table. Pure: both stores apply these decisions.

A store makes read, decide and write atomic, assigns places in the queue and tokens, and handles
time; everything else about locks is in this module and in `conflicts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tandem.locks.conflicts import Grant, Wait, conflict, decide
from tandem.locks.model import (
    CommitLease,
    EntryState,
    LockEntry,
    LockRequest,
    LockResource,
    LockResources,
    Mode,
    Waiting,
)

LAST = 2**63
"""The place of a new request: behind all others."""

WRITERS = frozenset({Mode.APPEND, Mode.UPDATE, Mode.REPLACE})
"""The modes of operations that change rows."""

Blockers = tuple[tuple[LockEntry, LockResource], ...]


@dataclass(frozen=True, slots=True)
class LockUpdate:
    """What to store for the operation, and the answer to it.

    `entry` is None if the stored entry stays as it is. Its `order` is `LAST` if it gets a new
    place, its `token` is 0 if a grant gets a new token. The request is granted if no entry blocks
    it. `revoke` names the operations to be marked in the same transaction as the grant.
    """

    entry: LockEntry | None
    blockers: Blockers = ()
    revoke: tuple[str, ...] = ()

    @property
    def granted(self) -> bool:
        return not self.blockers


def acquire(
    request: LockRequest,
    mine: LockEntry | None,
    entries: Collection[LockEntry],
    most_revoked: int | None = None,
) -> LockUpdate:
    """Take all resources or queue for all of them. `mine` is the operation's entry, if any.

    A revoked entry counts as none: the operation starts again at the end of the queue. Another
    owner gets the entry as it is, but not the state of being inside a commit. If more holders than
    `most_revoked` would have to be revoked, the request waits until some are gone.
    """
    if mine is not None and mine.revoked_by:
        mine = None
    if mine is not None and mine.state is not EntryState.WAITING and covers(mine, request):
        if mine.request.owner != request.owner:
            return LockUpdate(replace(mine, request=request, state=EntryState.HELD, token=0))
        return LockUpdate(None if mine.request == request else replace(mine, request=request))
    order = LAST if mine is None else mine.order
    decision = _decide(request, entries, order, most_revoked)
    if not isinstance(decision, Wait):
        return LockUpdate(LockEntry(request, EntryState.HELD, order), revoke=decision.revoke)
    if mine is not None and mine.state is EntryState.WAITING and mine.request == request:
        return LockUpdate(None, decision.blockers)
    # No request holds one resource while it waits for another: that could be a deadlock.
    return LockUpdate(LockEntry(request, EntryState.WAITING, order), decision.blockers)


def covers(held: LockEntry, request: LockRequest) -> bool:
    """Whether the held resources include the requested ones."""
    have = held.request
    return (
        have.mode is request.mode
        and have.row_concurrency <= request.row_concurrency
        and have.resources.covers(request.resources)
    )


def extend(
    mine: LockEntry | None,
    owner: str,
    resources: LockResources,
    entries: Iterable[LockEntry],
    most_revoked: int | None = None,
) -> LockUpdate | None:
    """Hold these as well, under the same token; None if `owner` holds nothing.

    It does not wait for waiters, since they may wait for us.
    """
    if mine is None or mine.request.owner != owner or mine.revoked_by:
        return None
    if mine.state is EntryState.WAITING:
        return None
    if mine.request.resources.covers(resources):
        return LockUpdate(None)
    wanted = replace(mine.request, resources=mine.request.resources | resources)
    holders = [e for e in entries if e.state is not EntryState.WAITING]
    decision = _decide(wanted, holders, mine.order, most_revoked)
    if isinstance(decision, Wait):
        return LockUpdate(None, decision.blockers)
    return LockUpdate(replace(mine, request=wanted), revoke=decision.revoke)


def may_commit(mine: LockEntry | None, owner: str) -> CommitLease:
    """The answer to `enter_commit` by the entry alone."""
    if mine is None or mine.request.owner != owner or mine.state is EntryState.WAITING:
        return CommitLease.LOST
    return CommitLease.REVOKED if mine.revoked_by else CommitLease.ENTERED


def is_inside_commit(mine: LockEntry | None, owner: str) -> bool:
    """Whether `leave_commit` has anything to do."""
    return mine is not None and mine.request.owner == owner and mine.state is EntryState.COMMITTING


def blockers_of(
    mine: LockEntry | None, entries: Collection[LockEntry], most_revoked: int | None = None
) -> Blockers:
    """Which entries block the owner of `mine`; none if it does not (or no longer) wait."""
    if mine is None or mine.revoked_by or mine.state is not EntryState.WAITING:
        return ()
    decision = _decide(mine.request, entries, mine.order, most_revoked)
    return decision.blockers if isinstance(decision, Wait) else ()


def _decide(
    request: LockRequest, entries: Collection[LockEntry], order: int, most_revoked: int | None
) -> Grant | Wait:
    decision = decide(request, entries, order=order)
    if isinstance(decision, Wait) or most_revoked is None or len(decision.revoke) <= most_revoked:
        return decision
    revoke = frozenset(decision.revoke)
    holders = [entry for entry in entries if entry.request.operation in revoke]
    met = ((h, request.resources.common(h.request.resources)) for h in holders)
    return Wait(tuple((h, resource or LockResource()) for h, resource in met))


def wanted_by(entries: Collection[LockEntry], operation: str, owner: str) -> str:
    """The writer that waits for what `operation` holds, or the operation that has revoked it, for
    messages; "" if there is none.

    A waiter of lower priority does not count: it would be revoked again.
    """
    mine = next((e for e in entries if e.request.operation == operation), None)
    if mine is None or mine.request.owner != owner or mine.state is EntryState.WAITING:
        return ""
    if mine.revoked_by:
        named = (_who(e) for e in entries if e.request.operation == mine.revoked_by)
        return next(named, f"operation {mine.revoked_by}")
    for entry in entries:
        request = entry.request
        waits = entry.state is EntryState.WAITING and request.mode in WRITERS
        weighs = request.priority >= mine.request.priority
        if waits and weighs and conflict(request, mine.request) is not None:
            return _who(entry)
    return ""


def waiting(blockers: Blockers) -> Waiting:
    """The blockers in a form for messages: which operation holds what."""
    return Waiting(tuple((_who(entry), str(resource)) for entry, resource in blockers))


def _who(entry: LockEntry) -> str:
    return entry.request.display or entry.request.operation
