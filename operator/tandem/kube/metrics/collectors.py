"""The operator's metrics: one object per operator, with a registry of its own, since several
operators may run in one process.

Counts and durations are recorded when they occur, in any thread, for some microseconds each; values
that can be derived from the state are computed at each scrape (`tandem.kube.state_metrics`). The
families are listed in `tandem.kube.metrics.families`. Nothing is kept over a restart: counters
begin at zero, as Prometheus expects.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import __version__
from tandem.errors import LocksUnavailable
from tandem.kube.metrics import families as families
from tandem.kube.metrics.families import Family
from tandem.locks.rules import CommitLease, Granted, LockEntry, LockRequest, LockResources, Waiting
from tandem.locks.store import LockStore
from tandem.spec.common import OPERATIONS
from tandem.spec.status import OperationStatus, Phase

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_LAG_S = 1.0
_CLASSES: dict[str, type[Counter | Gauge | Histogram]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
}
_METHODS = {"add": "inc", "observe": "observe", "set": "set"}


class Metrics:
    """All metrics of one operator. Thread-safe. The values of labels are given in their order."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._instrument(families.BUILD).labels(__version__, platform.python_version()).inc()
        self._made = {
            each.name: (each, self._instrument(each))
            for each in families.FAMILIES
            if each not in families.LOOKED_UP and each is not families.BUILD
        }
        self._series: dict[tuple[str, tuple[object, ...]], Any] = {}
        # The series that alerts use with `increase` exist before their first increment.
        for where in families.WHERE.values:
            self._child(families.INTERNAL_ERRORS.name, (where,))
        for reason in families.BAD_ENDS:
            self._child(families.STEP_FAILURES.name, (reason,))
            for kind in OPERATIONS:
                self._child(families.ENDED_TOTAL.name, (kind, Phase.FAILED, reason))
                self._child(families.JOBS_ENDED.name, (kind, reason))

    def _instrument(self, family: Family) -> Any:
        options: dict[str, Any] = {"registry": self.registry}
        if family.type == "histogram":
            options["buckets"] = family.buckets
        names = [label.name for label in family.labels]
        return _CLASSES[family.type](family.name, family.meaning, names, **options)

    def _child(self, name: str, values: tuple[object, ...]) -> Any:
        """The series of these labels, made at zero."""
        child = self._series.get((name, values))
        if child is None:
            family, child = self._made[name]
            if values:
                pairs = zip(family.labels, values, strict=True)
                child = child.labels(*(label.of(value) for label, value in pairs))
            if len(self._series) < 10_000:  # values from outside are unbounded
                self._series[name, values] = child
        return child

    def count(self, family: Family, *labels: object) -> None:
        self._record(family.name, "add", 1, labels)

    def add(self, family: Family, amount: float, *labels: object) -> None:
        if amount:
            self._record(family.name, "add", amount, labels)

    def observe(self, family: Family, value: float, *labels: object) -> None:
        self._record(family.name, "observe", value, labels)

    def set(self, family: Family, value: float, *labels: object) -> None:
        self._record(family.name, "set", value, labels)

    def _record(self, family: str, how: str, value: float, labels: tuple[object, ...]) -> None:
        getattr(self._child(family, labels), _METHODS[how])(value)

    def record(self, family: str, how: str, value: float, labels: Sequence[str]) -> None:
        """Record what another process has: `how` is `add`, `observe` or `set`. Raises: LookupError,
        ValueError for what is no such record."""
        if not isfinite(value):
            raise ValueError("no number that can be counted")
        self._record(family, how, float(value), tuple(labels))

    def register(self, collector: Collector) -> None:
        """Have it collected at every scrape, in the event loop."""
        self.registry.register(collector)

    def operation_ended(self, kind: str, status: OperationStatus, seconds: float | None) -> None:
        """Record the end of an operation. `seconds`: since its start, None if not known."""
        self.count(families.ENDED_TOTAL, kind, status.phase, status.conditions[0].reason)
        if seconds is not None:
            self.observe(families.DURATION, seconds, kind, status.phase)
        result = status.result
        if result is None or status.phase is not Phase.SUCCEEDED:
            return
        self.add(families.FILES_ADDED, result.files_added or 0, kind)
        self.add(families.FILES_REMOVED, result.files_removed or 0, kind)
        self.add(families.BYTES_ADDED, result.bytes_added or 0, kind)
        self.add(families.BYTES_REMOVED, result.bytes_removed or 0, kind)
        if result.replaced is not None:
            self.add(families.LATE_ROWS_KEPT, result.replaced.late or 0)
        reconciled = result.reconciled
        if reconciled is None:
            return
        if reconciled.rounds:
            self.observe(families.ROUNDS, reconciled.rounds, kind)
        self.add(families.COMMITS_SEEN, reconciled.commits_seen, kind)
        self.add(families.REPLAYED, reconciled.deletes_remapped, kind)
        self.add(families.MASKED, reconciled.rows_masked, kind)
        self.add(families.EVALUATED, reconciled.rows_evaluated, kind)
        self.add(families.BINS_CONTENDED, reconciled.bins_contended or 0, kind)

    def api_call(self, method: str, url: str, code: int, seconds: float) -> None:
        """Record one try of a call; `code` is 0 if there was no response."""
        verb, resource = verb_and_resource(method, url)
        self.count(families.API_REQUESTS, verb, resource, code or "Unreachable")
        self.observe(families.API_LATENCY, seconds, verb)

    async def watch_loop(self) -> None:
        """Record the lag of the event loop, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self.observe(families.LOOP_LAG, max(0.0, loop.time() - due))

    async def exposition(self) -> bytes:
        """The response to a scrape. Values are collected in the loop, and formatted in a
        thread."""
        found = list(self.registry.collect())
        return await asyncio.to_thread(_text, found)


class _Collected:
    """Metrics without the times at which they were created: they would double the series."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        for metric in self._metrics:
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


def _text(metrics: Iterable[Metric]) -> bytes:
    return generate_latest(_Collected(metrics))


def verb_and_resource(method: str, url: str) -> tuple[str, str]:
    """`GET`, `/apis/g/v/namespaces/n/tablecompactions` → `LIST`, `tablecompactions`. Pure."""
    parts = url.split("/")[1:]
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    resource = parts[0] if parts else families.OTHER
    verb = "LIST" if method == "GET" and len(parts) < 2 else method
    return verb, resource


# A wrapper that measures the calls of any lock store.


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
            metrics.count(families.LOCK_REQUESTS, request, outcome)
            metrics.observe(families.LOCK_LATENCY, time.perf_counter() - begun, request)
            if outcome == "Unavailable" or request in _ASKED:
                metrics.set(families.LOCK_STORE_UP, outcome != "Unavailable")

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
