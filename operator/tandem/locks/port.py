"""The port through which the engine takes locks.

Idempotent by operation: a restarted holder that requests again gets its own entry back (I-27).
Implementations: `tandem.locks.memory` and `tandem.locks.etcd.store`. `LockContract` in
`tests/locks/lock_contract.py` is the suite that each of them must pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tandem.locks.model import CommitLease, Granted, LockEntry, LockRequest, LockResources, Waiting
from tandem.turns import waiting


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
        with waiting():
            woken.wait(timeout_s)
    finally:
        end()
