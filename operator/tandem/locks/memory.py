"""A `LockStore` inside one process: for `tandem run`, and for tests.

One mutex makes read-decide-write atomic, as the head key does in etcd.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from tandem.locks.conflicts import Wait, decide
from tandem.locks.model import (
    CommitLease,
    Entry,
    EntryState,
    Granted,
    LockRequest,
    Resource,
    Waiting,
)


class InProcessLocks:
    """Thread-safe and fair by order of creation."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[str, dict[str, Entry]] = {}
        self._next_order = 1
        self._next_token = 1

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        with self._changed:
            entries = self._entries.setdefault(request.table, {})
            mine = entries.get(request.operation)
            if mine is not None and mine.revoked_by:
                mine = None
            held = mine is not None and mine.state is not EntryState.WAITING
            if mine is not None and mine.request.owner != request.owner:
                mine = self._take_over(mine, request)
            if mine is not None and held and set(request.resources) <= set(mine.request.resources):
                entries[request.operation] = replace(mine, request=request)
                self._changed.notify_all()
                return Granted(mine.token)
            order = mine.order if mine is not None else self._take_order()
            decision = decide(request, entries.values(), order=order)
            if isinstance(decision, Wait):
                # Nobody holds one thing while it waits for another: that would be a deadlock.
                entries[request.operation] = Entry(request, EntryState.WAITING, order)
                self._changed.notify_all()
                return _waiting(decision)
            self._revoke(entries, decision.revoke, request.operation)
            token = self._take_token()
            entries[request.operation] = Entry(request, EntryState.HELD, order, token)
            self._changed.notify_all()
            return Granted(token)

    def extend(
        self, table: str, operation: str, owner: str, resources: tuple[Resource, ...]
    ) -> Granted | Waiting:
        with self._changed:
            entries = self._entries.get(table, {})
            mine = self._mine(table, operation, owner)
            if mine is None or mine.revoked_by or mine.state is EntryState.WAITING:
                return Waiting(())
            known = set(mine.request.resources)
            added = tuple(r for r in resources if r not in known)
            wanted = replace(mine.request, resources=(*mine.request.resources, *added))
            holders = [e for e in entries.values() if e.state is not EntryState.WAITING]
            decision = decide(wanted, holders, order=mine.order)
            if isinstance(decision, Wait):
                return _waiting(decision)
            self._revoke(entries, decision.revoke, operation)
            entries[operation] = replace(mine, request=wanted)
            return Granted(mine.token)

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        def may_go() -> bool:
            entries = self._entries.get(table, {})
            mine = entries.get(operation)
            if mine is None or mine.revoked_by or mine.state is not EntryState.WAITING:
                return True
            return not isinstance(decide(mine.request, entries.values(), order=mine.order), Wait)

        with self._changed:
            self._changed.wait_for(may_go, timeout=timeout_s)

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        with self._changed:
            mine = self._mine(table, operation, owner)
            if mine is None or mine.state is EntryState.WAITING:
                return CommitLease.LOST
            if mine.revoked_by:
                return CommitLease.REVOKED
            self._entries[table][operation] = replace(mine, state=EntryState.COMMITTING)
            return CommitLease.ENTERED

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        with self._changed:
            mine = self._mine(table, operation, owner)
            if mine is not None and mine.state is EntryState.COMMITTING:
                self._entries[table][operation] = replace(mine, state=EntryState.HELD)
                self._changed.notify_all()

    def release(self, table: str, operation: str, owner: str) -> None:
        with self._changed:
            if self._mine(table, operation, owner) is not None:
                del self._entries[table][operation]
                self._changed.notify_all()

    def expire(self, table: str, operation: str) -> None:
        """What a store with leases does by itself when the holder has died."""
        with self._changed:
            if self._entries.get(table, {}).pop(operation, None) is not None:
                self._changed.notify_all()

    def _mine(self, table: str, operation: str, owner: str) -> Entry | None:
        entry = self._entries.get(table, {}).get(operation)
        return entry if entry is not None and entry.request.owner == owner else None

    def _take_over(self, entry: Entry, request: LockRequest) -> Entry:
        """The entry in another owner's hands: same place, same resources, a new token."""
        waiting = entry.state is EntryState.WAITING
        taken = replace(
            entry,
            request=replace(entry.request, owner=request.owner),
            state=EntryState.WAITING if waiting else EntryState.HELD,
            token=0 if waiting else self._take_token(),
        )
        self._entries[request.table][request.operation] = taken
        return taken

    def entries(self, table: str) -> tuple[Entry, ...]:
        with self._changed:
            return tuple(sorted(self._entries.get(table, {}).values(), key=lambda e: e.order))

    def _revoke(self, entries: dict[str, Entry], operations: tuple[str, ...], by: str) -> None:
        for operation in operations:
            entries[operation] = replace(entries[operation], revoked_by=by)

    def _take_order(self) -> int:
        self._next_order += 1
        return self._next_order - 1

    def _take_token(self) -> int:
        self._next_token += 1
        return self._next_token - 1


def _waiting(decision: Wait) -> Waiting:
    return Waiting(tuple((_who(e), _what(r)) for e, r in decision.blockers))


def _who(entry: Entry) -> str:
    return entry.request.display or entry.request.operation


def _what(resource: Resource) -> str:
    if resource.segment:
        return f"segment {resource.segment}"
    if not resource.interval.start and not resource.interval.end:
        return "the table"
    return f"interval {resource.interval.start}/{resource.interval.end}"
