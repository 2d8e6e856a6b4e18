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
from tandem.kube.metrics.families import Family, MetricLabel
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


class Instrument:
    """The counter, gauge or histogram of one family. Thread-safe."""

    def __init__(self, family: Family, registry: CollectorRegistry) -> None:
        options: dict[str, Any] = {"registry": registry}
        if family.type == "histogram":
            options["buckets"] = family.buckets
        self._labels: tuple[MetricLabel, ...] = family.labels
        names = [label.name for label in family.labels]
        self._made = _CLASSES[family.type](family.name, family.meaning, names, **options)
        self._known: dict[tuple[object, ...], Any] = {}

    def _child(self, values: tuple[object, ...]) -> Any:
        child = self._known.get(values)
        if child is None:
            child = self._made
            if values:
                pairs = zip(self._labels, values, strict=True)
                child = child.labels(*(label.of(value) for label, value in pairs))
            if len(self._known) < 10_000:  # values from outside are unbounded
                self._known[values] = child
        return child

    def add(self, amount: float, *labels: object) -> None:
        if amount:
            self._child(labels).inc(amount)

    def count(self, *labels: object) -> None:
        self._child(labels).inc()

    def observe(self, value: float, *labels: object) -> None:
        self._child(labels).observe(value)

    def set(self, value: float, *labels: object) -> None:
        self._child(labels).set(value)

    def prepare(self, *labels: object) -> None:
        """Create the series, at zero."""
        self._child(labels)


class Metrics:
    """All instruments of one operator."""

    def __init__(self) -> None:
        self._instruments: dict[str, Instrument] = {}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge(
            families.BUILD.name,
            families.BUILD.meaning,
            [label.name for label in families.BUILD.labels],
            registry=self.registry,
        )
        build.labels(__version__, platform.python_version()).set(1)
        self.loop_lag = self._new(families.LOOP_LAG)
        self.internal_errors = self._new(families.INTERNAL_ERRORS)
        self.ended_total = self._new(families.ENDED_TOTAL)
        self.duration = self._new(families.DURATION)
        self.adopted = self._new(families.ADOPTED)
        self.step_failures = self._new(families.STEP_FAILURES)
        self.step_duration = self._new(families.STEP_DURATION)
        self.lock_wait = self._new(families.LOCK_WAIT)
        self.lock_requests = self._new(families.LOCK_REQUESTS)
        self.lock_latency = self._new(families.LOCK_LATENCY)
        self.lock_store_up = self._new(families.LOCK_STORE_UP)
        self.commits = self._new(families.COMMITS)
        self.races_lost = self._new(families.RACES_LOST)
        self.yields = self._new(families.YIELDS)
        self.rounds = self._new(families.ROUNDS)
        self.commits_seen = self._new(families.COMMITS_SEEN)
        self.replayed = self._new(families.REPLAYED)
        self.masked = self._new(families.MASKED)
        self.evaluated = self._new(families.EVALUATED)
        self.bins_contended = self._new(families.BINS_CONTENDED)
        self.late_rows_kept = self._new(families.LATE_ROWS_KEPT)
        self.files_added = self._new(families.FILES_ADDED)
        self.files_removed = self._new(families.FILES_REMOVED)
        self.bytes_added = self._new(families.BYTES_ADDED)
        self.bytes_removed = self._new(families.BYTES_REMOVED)
        self.jobs_started = self._new(families.JOBS_STARTED)
        self.jobs_ended = self._new(families.JOBS_ENDED)
        self.job_duration = self._new(families.JOB_DURATION)
        self.child_processes_started = self._new(families.CHILD_PROCESSES_STARTED)
        self.child_processes_lost = self._new(families.CHILD_PROCESSES_LOST)
        self.small_jobs_lost = self._new(families.SMALL_JOBS_LOST)
        self.cleaned_files = self._new(families.CLEANED_FILES)
        self.cleaned_bytes = self._new(families.CLEANED_BYTES)
        self.api_requests = self._new(families.API_REQUESTS)
        self.api_latency = self._new(families.API_LATENCY)
        self._prepare()

    def _new(self, family: Family) -> Instrument:
        made = self._instruments[family.name] = self._made(family)
        return made

    def _made(self, family: Family) -> Instrument:
        return Instrument(family, self.registry)

    def record(self, family: str, how: str, value: float, labels: Sequence[str]) -> None:
        """Record what another process has: `how` is the name of the instrument's method. Raises:
        LookupError, ValueError for what is no such record."""
        if not isfinite(value):
            raise ValueError("no number that can be counted")
        instrument = self._instruments[family]
        methods = {"add": instrument.add, "observe": instrument.observe, "set": instrument.set}
        methods[how](float(value), *labels)

    def _prepare(self) -> None:
        """Create the series that alerts use with `increase` before their first increment."""
        for where in families.WHERE.values:
            self.internal_errors.prepare(where)
        for reason in families.BAD_ENDS:
            self.step_failures.prepare(reason)
            for kind in OPERATIONS:
                self.ended_total.prepare(kind, Phase.FAILED, reason)
                self.jobs_ended.prepare(kind, reason)

    def add(self, collector: Collector) -> None:
        """Have it collected at every scrape, in the event loop."""
        self.registry.register(collector)

    def operation_ended(self, kind: str, status: OperationStatus, seconds: float | None) -> None:
        """Record the end of an operation. `seconds`: since its start, None if not known."""
        self.ended_total.count(kind, status.phase, status.conditions[0].reason)
        if seconds is not None:
            self.duration.observe(seconds, kind, status.phase)
        result = status.result
        if result is None or status.phase is not Phase.SUCCEEDED:
            return
        self.files_added.add(result.files_added or 0, kind)
        self.files_removed.add(result.files_removed or 0, kind)
        self.bytes_added.add(result.bytes_added or 0, kind)
        self.bytes_removed.add(result.bytes_removed or 0, kind)
        if result.replaced is not None:
            self.late_rows_kept.add(result.replaced.late or 0)
        reconciled = result.reconciled
        if reconciled is None:
            return
        if reconciled.rounds:
            self.rounds.observe(reconciled.rounds, kind)
        self.commits_seen.add(reconciled.commits_seen, kind)
        self.replayed.add(reconciled.deletes_remapped, kind)
        self.masked.add(reconciled.rows_masked, kind)
        self.evaluated.add(reconciled.rows_evaluated, kind)
        self.bins_contended.add(reconciled.bins_contended or 0, kind)

    def api_call(self, method: str, url: str, code: int, seconds: float) -> None:
        """Record one try of a call; `code` is 0 if there was no response."""
        verb, resource = verb_and_resource(method, url)
        self.api_requests.count(verb, resource, code or "Unreachable")
        self.api_latency.observe(seconds, verb)

    async def watch_loop(self) -> None:
        """Record the lag of the event loop, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self.loop_lag.observe(max(0.0, loop.time() - due))

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
