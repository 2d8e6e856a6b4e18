"""What an operation's status, events, metrics and log lines say. Decides nothing.

Metrics and log lines follow from the effects that are performed for an operation. `Reporter` knows
the resource as it is now, so that a status always has the latest generation seen, and the last
status reported, from which that of a wait differs in phase and reason only.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from tandem.errors import Reason, TandemError
from tandem.kube.client.events import EventRecorder
from tandem.kube.client.resources import (
    Body,
    generation_of,
    key_of,
    retry_requested,
    status_of,
    version_of,
)
from tandem.kube.controllers.status_writer import status_writer
from tandem.kube.metrics import families
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.controller_tasks import LogContext
from tandem.operations.attempt_files import job_name
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
    StartRefused,
    YieldRequired,
)
from tandem.operations.session.options import Interceptor
from tandem.operations.status import conditions
from tandem.spec.status import ENDED, OperationStatus, Phase, rfc3339, unix_ms

_log = structlog.get_logger("tandem.kube.operation")


class InstrumentedInterceptor:
    """The `interceptor` of one operation: counts and logs its effects, changes none. It runs in the
    thread that performs the effect. Each session needs a new one."""

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
            self._metrics.count(families.STEP_FAILURES, error.reason)
            raise
        now = time.perf_counter()
        self._metrics.observe(families.STEP_DURATION, now - begun, effect.point)
        self._note(effect, event, now)
        return event

    def _note(self, effect: Effect, event: Event, now: float) -> None:
        metrics, kind = self._metrics, self._kind
        point = effect.point
        if isinstance(event, YieldRequired):
            metrics.count(families.YIELDS, kind, event.cause)
            _log.info("yielded", to=event.by)
        if isinstance(event, StartRefused):
            self._has_job, self._job_since = False, None
        elif point is Point.POLL_JOB:
            if isinstance(event, RoundDone):
                self._job_answered("Succeeded", now)
            elif isinstance(event, JobLost):
                self._job_answered("Failed", now)
                self._job_ended(event.reason)
        elif point is Point.ACQUIRE_LOCKS:
            if isinstance(event, LocksWaiting):
                self._waits_since = self._waits_since or now
            elif isinstance(event, LocksGranted):
                metrics.observe(families.LOCK_WAIT, now - (self._waits_since or now), kind)
                self._waits_since = None
        elif point is Point.START_JOB:
            metrics.count(families.JOBS_STARTED, kind)
            self._has_job, self._job_since = True, now
            job = job_name(self._log_context.operation, effect.attempt)
            _log.info("job started", job=job)
        elif point is Point.FINISH_JOB:
            self._job_ended("Finished")
        elif point is Point.STOP_JOB:
            self._job_ended("Stopped")
        elif isinstance(event, CommitPut):
            metrics.count(families.COMMITS, kind)
            _log.info("committed", version=event.result.version)
        elif isinstance(event, CommitLost):
            if event.raced:
                metrics.count(families.RACES_LOST, kind)
        elif isinstance(event, AttemptAdopted):
            metrics.count(families.ADOPTED, kind)
            self._has_job = event.awaited
            _log.info("adopted", awaits_job=event.awaited)

    def _job_answered(self, outcome: str, now: float) -> None:
        if self._job_since is not None:
            self._metrics.observe(families.JOB_DURATION, now - self._job_since, self._kind, outcome)
            self._job_since = None

    def _job_ended(self, reason: str) -> None:
        if self._has_job:
            self._has_job = False
            self._metrics.count(families.JOBS_ENDED, self._kind, reason)


BEGUN = frozenset({Phase.PLANNED, Phase.LOCKED, Phase.RUNNING, Phase.RECONCILING})


class Reporter:
    """Reports in one resource: its status, its events, its terminal status. To be used on the event
    loop.

    Args:
        on_gone: called when a write finds the object gone.

    Attributes:
        body: the resource as last seen.
        last: the status last offered.
        has_application: whether a job, by its name, is done by a SparkApplication.
    """

    def __init__(self, context: OperatorContext, body: Body, on_gone: Callable[[], None]) -> None:
        known = dict(status_of(body))
        self.body = body
        self.last = _model(known)
        self.has_application: Callable[[str], bool] = lambda _job: True
        self._context = context
        # kopf's queue of events is found by the context of its handler, in which we are now.
        self._handler_context = contextvars.copy_context()
        self._event_recorder = EventRecorder(known)
        self._writer = status_writer(context, body, on_gone=on_gone)

    @property
    def has_begun_before(self) -> bool:
        """Whether the status says that work has begun, in any process."""
        return status_of(self.body).get("phase") in BEGUN

    @property
    def started_ms(self) -> int | None:
        """When the first attempt began (Unix milliseconds), None if there was none."""
        return unix_ms(self.last.start_time) if self.last.attempt else None

    def observe(self, body: Body) -> None:
        """The resource has changed."""
        self.body = body
        self._writer.observe(status_of(body), version_of(body))

    def renew(self) -> None:
        """The spec has changed while a session is at work, which may not report for hours: show
        that it was seen."""
        if self.last.phase not in ENDED and self.last.conditions:
            self.last = _seen(self.last, generation_of(self.body))
            self._writer.offer(self.last.manifest)

    def report_progress(self, status: OperationStatus, retry: str, acting: str) -> None:
        """Take over a status of the engine. `retry`: the annotation that this run answers.
        `acting`: the operation whose attempt and job it shows, this one or one that has to end
        first."""
        if status.phase in ENDED:
            return  # the last word is not coalesced, nor lost
        if not status.attempt and self.has_begun_before:
            # It finds out where an earlier process left it, or where another one is with it.
            return
        self.offer(self.as_of_now(status, retry, acting))

    def waiting(self, phase: Phase, reason: Reason, message: str) -> None:
        self.offer(self.changed(phase, reason, message))

    def offer(self, status: OperationStatus) -> None:
        """Write `status` soon, unless a newer one comes first."""
        self.last = status
        self._record_event(status)
        self._writer.offer(status.manifest)

    async def finish(self, status: OperationStatus, *, write: bool) -> None:
        """Report the terminal status; returns once that is done. It is not written if the
        resource is being deleted."""
        self.last = status
        self._record_event(status)
        seconds = _duration_s(status)
        kind, namespace, name = key_of(self.body)
        self._context.metrics.operation_ended(kind, status, seconds)
        write_log = _log.warning if status.phase is Phase.FAILED else _log.info
        write_log(
            "ended",
            kind=kind,
            namespace=namespace,
            name=name,
            operation=status.operation_id or "",
            attempt=status.attempt,
            phase=status.phase.value,
            reason=status.conditions[0].reason,
            message=status.conditions[0].message,
            version=None if status.result is None else status.result.version,
            seconds=seconds,
        )
        if write:
            await self._writer.finish(status.manifest())

    def object_gone(self) -> None:
        """The resource is gone: from now on report by events and the log alone."""
        self._writer.gone = True

    async def close(self) -> None:
        await self._writer.close()

    def as_of_now(self, status: OperationStatus, retry: str, acting: str = "") -> OperationStatus:
        """`status` with the current generation, and the retry that it answers."""
        generation = generation_of(self.body)
        answered = retry if retry and (status.attempt or status.phase in ENDED) else None
        application = None
        if status.attempt and status.operation_id:
            name = job_name(acting or status.operation_id, status.attempt)
            # Not every attempt has a job: it may end with its plan, or with a bad template. What an
            # earlier process has reported stays.
            known = self.last.application == name
            if known or (status.phase is Phase.RUNNING and self.has_application(name)):
                application = name
        return _seen(status, generation).model_copy(
            update={
                "observed_retry": answered or self.last.observed_retry,
                "application": application,
            }
        )

    def changed(self, phase: Phase, reason: Reason, message: str) -> OperationStatus:
        """The last status, with another phase and reason."""
        now = self._context.clock.now_ms()
        generation = generation_of(self.body)
        ended = phase in ENDED
        retry = retry_requested(self.body) if ended else ""
        return self.last.model_copy(
            update={
                "observed_generation": generation,
                "observed_retry": retry or self.last.observed_retry,
                "phase": phase,
                "completion_time": rfc3339(now) if ended else None,
                "conditions": conditions(phase, reason, message, generation, now),
            }
        )

    def _record_event(self, status: OperationStatus) -> None:
        self._handler_context.copy().run(self._event_recorder.record, self.body, status)


def _seen(status: OperationStatus, generation: int) -> OperationStatus:
    """`status` as of this generation of the resource."""
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": tuple(
                c
                if c.observed_generation == generation
                else c.model_copy(update={"observed_generation": generation})
                for c in status.conditions
            ),
        }
    )


def _duration_s(status: OperationStatus) -> float | None:
    """Seconds from start to end, if both are known."""
    begun_ms, ended_ms = unix_ms(status.start_time), unix_ms(status.completion_time)
    return None if begun_ms is None or ended_ms is None else (ended_ms - begun_ms) / 1000


def _model(known: object) -> OperationStatus:
    try:
        return OperationStatus.model_validate(known)
    except ValidationError:
        return OperationStatus()  # of another version; nothing in it is needed
