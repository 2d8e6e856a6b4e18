"""The port through which the engine takes locks, and a store of locks inside one process: for
`tandem run`, and for tests.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from tandem.locks import rules
from tandem.locks.rules import (
    CommitLease,
    EntryState,
    Granted,
    LockEntry,
    LockRequest,
    LockResources,
    Waiting,
)

# The port through which the engine takes locks.
#
# Idempotent by operation: a restarted holder that requests again gets its own entry back (I-27).
# Implementations: `tandem.locks.store` and `tandem.locks.etcd.store`. `LockContract` in
# `tests/locks/lock_contract.py` is the suite that each of them must pass.


class LockStore(Protocol):
    """The locks of many tables. Every call except `watch` may raise `LocksUnavailable`: the store
    did not answer in time. The call may then be repeated, whether or not it had an effect."""

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        """Take all resources, or queue for all of them; never only some (I-26).

        A waiter that requests again keeps its place. A holder that requests other resources and
        has to wait for them gives up the ones it holds, but keeps its place: holding while waiting
        could be a deadlock. A revoked entry starts again, at the end of the queue. Another owner
        of the same operation takes its entry over, with its place and its resources (I-27).
        """
        ...

    def extend(
        self, table: str, operation: str, owner: str, resources: LockResources
    ) -> Granted | Waiting:
        """Hold these as well (S24). If another operation holds one of them, nothing changes and
        nothing is queued. Waiters are not waited for, since they may wait for us."""
        ...

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        """Block until `acquire` may have another answer, at most `timeout_s` seconds."""
        ...

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever `acquire` may no longer answer `Waiting`: the resources are free,
        or the operation has no entry (any more), or its entry was revoked; at once if that is so
        already. A holder that watches is thus informed of the loss of its locks.

        `wake` may be called from any thread, repeatedly and without need; it must return at once
        and must not call the store. The returned function ends that; only a call in progress may
        still follow.
        """
        ...

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        """From now until `leave_commit` or `release` no other operation revokes us (S28). `LOST`
        also if another owner has taken the entry over."""
        ...

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        """Return to merely holding, since a round of evaluation may take long."""
        ...

    def release(self, table: str, operation: str, owner: str) -> None:
        """Release everything, held or waited for, unless another owner has taken it over. To be
        called after the commit (I-29)."""
        ...

    def entries(self, table: str) -> tuple[LockEntry, ...]:
        """All entries of a table, in queue order."""
        ...


def wait_by_watching(store: LockStore, table: str, operation: str, timeout_s: float) -> None:
    """`LockStore.wait` for a store that can watch."""
    woken = threading.Event()
    end = store.watch(table, operation, woken.set)
    try:
        woken.wait(timeout_s)
    finally:
        end()


# A `LockStore` inside one process: for `tandem run`, and for tests.
#
# One mutex makes read-decide-write atomic, as the head key does in etcd.


class InProcessLocks:
    """Thread-safe and fair by order of creation."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[str, dict[str, LockEntry]] = {}
        self._watchers: dict[str, dict[int, tuple[str, Callable[[], None]]]] = {}
        self._orders = itertools.count(1)
        self._tokens = itertools.count(1)
        self._watches = itertools.count()

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        with self._table(request.table) as entries:
            mine = entries.get(request.operation)
            return self._apply(
                entries, request.operation, rules.acquire(request, mine, entries.values())
            )

    def extend(
        self, table: str, operation: str, owner: str, resources: LockResources
    ) -> Granted | Waiting:
        with self._table(table) as entries:
            outcome = rules.extend(entries.get(operation), owner, resources, entries.values())
            return Waiting(()) if outcome is None else self._apply(entries, operation, outcome)

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        wait_by_watching(self, table, operation, timeout_s)

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        number = next(self._watches)
        with self._mutex:
            self._watchers.setdefault(table, {})[number] = (operation, wake)
            at_once = self._may_go(self._entries.get(table, {}), operation)
        if at_once:
            wake()

        def end() -> None:
            with self._mutex:
                watchers = self._watchers.get(table, {})
                watchers.pop(number, None)
                if not watchers:
                    self._watchers.pop(table, None)

        return end

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        with self._table(table) as entries:
            mine = entries.get(operation)
            answer = rules.may_commit(mine, owner)
            if mine is not None and answer is CommitLease.ENTERED:
                entries[operation] = replace(mine, state=EntryState.COMMITTING)
            return answer

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        with self._table(table) as entries:
            mine = entries.get(operation)
            if rules.is_inside_commit(mine, owner):
                entries[operation] = replace(entries[operation], state=EntryState.HELD)

    def release(self, table: str, operation: str, owner: str) -> None:
        with self._table(table) as entries:
            mine = entries.get(operation)
            if mine is not None and mine.request.owner == owner:
                del entries[operation]

    def expire(self, table: str, operation: str) -> None:
        """Remove an entry, as a store with leases does when the holder has died."""
        with self._table(table) as entries:
            entries.pop(operation, None)

    def entries(self, table: str) -> tuple[LockEntry, ...]:
        with self._mutex:
            return tuple(sorted(self._entries.get(table, {}).values(), key=lambda e: e.order))

    @contextmanager
    def _table(self, table: str) -> Iterator[dict[str, LockEntry]]:
        """The entries of a table, to be read and changed; wakes the affected waiters afterwards."""
        woken: list[Callable[[], None]] = []
        with self._mutex:
            entries = self._entries.setdefault(table, {})
            before = dict(entries)
            try:
                yield entries
            finally:
                if entries != before:
                    watchers = self._watchers.get(table, {}).values()
                    woken = [w for operation, w in watchers if self._may_go(entries, operation)]
                if not entries:
                    del self._entries[table]
        # Outside of the mutex: waiters may call this store.
        for wake in woken:
            wake()

    def _apply(
        self, entries: dict[str, LockEntry], operation: str, outcome: rules.LockUpdate
    ) -> Granted | Waiting:
        new = outcome.entry
        if new is not None:
            if new.order == rules.LAST:
                new = replace(new, order=next(self._orders))
            if outcome.granted and not new.token:
                new = replace(new, token=next(self._tokens))
            entries[operation] = new
        for revoked in outcome.revoke:
            entries[revoked] = replace(entries[revoked], revoked_by=operation)
        if not outcome.granted:
            return rules.waiting(outcome.blockers)
        return Granted(entries[operation].token)

    @staticmethod
    def _may_go(entries: dict[str, LockEntry], operation: str) -> bool:
        return not rules.blockers_of(entries.get(operation), entries.values())
