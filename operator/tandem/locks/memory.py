"""A `LockStore` inside one process: for `tandem run`, and for tests.

One mutex makes read-decide-write atomic, as the head key does in etcd.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tandem.locks import rules
from tandem.locks.model import (
    CommitLease,
    EntryState,
    Granted,
    LockEntry,
    LockRequest,
    LockResources,
    Waiting,
)
from tandem.locks.port import wait_by_watching


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
