"""The port through which the engine takes locks.

Idempotent by operation: a restarted holder that asks again gets its own entry back (I-27).
Implementations: `tandem.locks.memory` and `tandem.locks.etcd.store`. `LockContract` in
`tests/support/lock_contract.py` is the suite that each of them must pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tandem.locks.model import CommitLease, Granted, LockEntry, LockRequest, LockResource, Waiting


class LockStore(Protocol):
    """Locks of many tables. Every call, but not `watch`, may raise `LocksUnavailable`: the store
    did not answer in time. Then the call may be repeated, whether it had an effect or not."""

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        """Take all resources, or queue for all of them; never some (I-26).

        Asked again, a waiter keeps its place. A holder that asks for other resources gives up
        what it holds where it must wait for them, and keeps its place: holding while waiting
        would be a deadlock. A revoked entry starts again, at the end of the queue. Another owner
        of the same operation takes its entry over, place and resources included (I-27).
        """
        ...

    def extend(
        self, table: str, operation: str, owner: str, resources: tuple[LockResource, ...]
    ) -> Granted | Waiting:
        """Hold these as well (S24). If another operation holds one of them, nothing changes and
        nothing is queued; nor does it wait for those who wait, perhaps for us."""
        ...

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        """Block until `acquire` may answer otherwise, at most `timeout_s` seconds."""
        ...

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever `acquire` may answer otherwise than "wait": the way is free, or
        the operation has no entry (any more), or its entry was revoked; at once if it is so
        already. Who watches while holding learns so of a loss.

        `wake` is called from any thread, often or in vain; it must return at once and call no
        method of the store. It is called no more, but for a call under way, after the function
        that is returned was called.
        """
        ...

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        """From here to `leave_commit` or `release` no other operation revokes us (S28). `LOST`
        also if another owner took the entry over."""
        ...

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        """Back to merely holding: a round of evaluation may take long."""
        ...

    def release(self, table: str, operation: str, owner: str) -> None:
        """Let go of everything, held or waited for, unless another owner took it over. To be
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
