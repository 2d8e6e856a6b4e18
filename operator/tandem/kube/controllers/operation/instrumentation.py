"""Metrics and log lines of one operation, from the effects that are performed for it. Decides
nothing and changes nothing.

Runs in the thread that performs the effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from tandem.errors import TandemError
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.log_context import LogContext
from tandem.operations.attempt.paths import job_name
from tandem.operations.machine.events import (
    AttemptAdopted,
    CommitLost,
    CommitPut,
    Effect,
    Event,
    JobLost,
    LocksGranted,
    LocksWaiting,
    Point,
    RoundDone,
    YieldRequired,
)
from tandem.operations.session.options import Interceptor

_log = structlog.get_logger("tandem.kube.operation")


class InstrumentedInterceptor:
    """The `interceptor` of one operation. Each session needs a new one."""

    def __init__(self, metrics: Metrics, log_context: LogContext, interceptor: Interceptor) -> None:
        self._metrics = metrics
        self._log_context = log_context
        self._kind = log_context.kind
        self._interceptor = interceptor
        self._waits_since: float | None = None
        self._job_since: float | None = None
        self._has_job = False

    def __call__(self, effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.attempt:
            self._log_context.attempt = effect.attempt
        begun = time.perf_counter()
        try:
            event = self._interceptor(effect, call)
        except TandemError as error:
            self._metrics.step_failures.count(error.reason)
            raise
        now = time.perf_counter()
        self._metrics.step_duration.observe(now - begun, effect.point)
        self._note(effect, event, now)
        return event

    def _note(self, effect: Effect, event: Event, now: float) -> None:
        metrics, kind = self._metrics, self._kind
        point = effect.point
        if isinstance(event, YieldRequired):
            metrics.yields.count(kind, event.cause)
            _log.info("yielded", to=event.by)
        if point is Point.POLL_JOB:
            if isinstance(event, RoundDone):
                self._job_answered("Succeeded", now)
            elif isinstance(event, JobLost):
                self._job_answered("Failed", now)
                self._job_ended(event.reason)
        elif point is Point.ACQUIRE_LOCKS:
            if isinstance(event, LocksWaiting):
                self._waits_since = self._waits_since or now
            elif isinstance(event, LocksGranted):
                metrics.lock_wait.observe(now - (self._waits_since or now), kind)
                self._waits_since = None
        elif point is Point.START_JOB:
            metrics.jobs_started.count(kind)
            self._has_job, self._job_since = True, now
            job = job_name(self._log_context.operation, effect.attempt)
            _log.info("job started", job=job)
        elif point is Point.FINISH_JOB:
            self._job_ended("Finished")
        elif point is Point.STOP_JOB:
            self._job_ended("Stopped")
        elif isinstance(event, CommitPut):
            metrics.commits.count(kind)
            _log.info("committed", version=event.result.version)
        elif isinstance(event, CommitLost):
            metrics.conflicts.count(kind)
        elif isinstance(event, AttemptAdopted):
            metrics.adopted.count(kind)
            self._has_job = event.awaited
            _log.info("adopted", awaits_job=event.awaited)

    def _job_answered(self, outcome: str, now: float) -> None:
        if self._job_since is not None:
            self._metrics.job_duration.observe(now - self._job_since, self._kind, outcome)
            self._job_since = None

    def _job_ended(self, reason: str) -> None:
        if self._has_job:
            self._has_job = False
            self._metrics.jobs_ended.count(self._kind, reason)
