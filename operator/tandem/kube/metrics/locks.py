"""A wrapper that measures the calls of any lock store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tandem.errors import LocksUnavailable
from tandem.kube.metrics.collectors import Metrics
from tandem.locks.rules import CommitLease, Granted, LockEntry, LockRequest, LockResources, Waiting
from tandem.locks.store import LockStore

_T = TypeVar("_T")
_ASKED = frozenset({"acquire", "extend", "release", "entries"})
"""Calls that the store does not answer from memory."""


class MeasuredLocks:
    """The `LockStore` of an operator. Delegates to `inner`."""

    def __init__(self, inner: LockStore, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    def _call(self, request: str, call: Callable[[], _T]) -> _T:
        metrics, outcome = self._metrics, "Failed"
        begun = time.perf_counter()
        try:
            answer = call()
            outcome = "Answered"
            return answer
        except LocksUnavailable:
            outcome = "Unavailable"
            raise
        finally:
            metrics.lock_requests.count(request, outcome)
            metrics.lock_latency.observe(time.perf_counter() - begun, request)
            if outcome == "Unavailable" or request in _ASKED:
                metrics.lock_store_up.set(outcome != "Unavailable")

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        return self._call("acquire", lambda: self._inner.acquire(request))

    def extend(
        self, table: str, operation: str, owner: str, resources: LockResources
    ) -> Granted | Waiting:
        return self._call("extend", lambda: self._inner.extend(table, operation, owner, resources))

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        self._call("wait", lambda: self._inner.wait(table, operation, timeout_s))

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        return self._call("watch", lambda: self._inner.watch(table, operation, wake))

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        return self._call("enter_commit", lambda: self._inner.enter_commit(table, operation, owner))

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        self._call("leave_commit", lambda: self._inner.leave_commit(table, operation, owner))

    def release(self, table: str, operation: str, owner: str) -> None:
        self._call("release", lambda: self._inner.release(table, operation, owner))

    def entries(self, table: str) -> tuple[LockEntry, ...]:
        return self._call("entries", lambda: self._inner.entries(table))
