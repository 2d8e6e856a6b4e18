"""The engine's `Jobs` in a cluster: a small job is done in the tenant's child, any other one by a
SparkApplication.

A job that turns out to need Spark before it has said anything gets an application in the same
attempt, once there is a slot for it. One whose child ended, or ran out of memory, is lost, and the
next attempt has an application: what is wrong with a child costs a job one attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from tandem.errors import InvalidSpec, JobFailed, JobRefused, OutOfMemory, Reason, TandemError
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.port import JobKey, JobPlace, Jobs, RoundState, read_side_file
from tandem.jobs.results import JobResult, SideFileRef
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobStatus
from tandem.kube.children.supervisor import (
    STOP_ALONE_S,
    STOP_S,
    ChildEnded,
    ChildProcess,
    ChildProcesses,
)
from tandem.kube.children.tenants import Tenant, may_read
from tandem.spark.launch.local_spark import HARMFUL
from tandem.storage.store import Store

_log = structlog.get_logger("tandem.kube.children")
_WAITS: Final = RoundState(JobStatus(JobPhase.STARTING, "needs Spark, and waits for a job slot"))
_REMEDY: Final = "A further attempt has a SparkApplication: see backoffLimit"


@dataclass(frozen=True, slots=True)
class SmallJobRules:
    """What is done in a child: jobs that read at most `most_bytes`. `bounded`, `trusted`: as of
    `may_read`."""

    most_bytes: int = SMALL_BYTES
    bounded: bool = False
    trusted: bool = False


class ClusterJobs:
    """The `Jobs` of one operation. Thread-safe as its engine needs it.

    Args:
        tenant: whose table it is, as of now: its Secret may be renewed while an operation waits.
            None if that is not known: no job is begun in a child then.
        changed: called, in any thread, when a job in a child has something new to say.
        owner: of the jobs, as of `ChildProcesses.leave`.
    """

    def __init__(
        self,
        children: ChildProcesses,
        tenant: Callable[[], Tenant | None],
        spark: Jobs,
        rules: SmallJobRules,
        changed: Callable[[], None],
        owner: str = "",
    ) -> None:
        self._owner = owner
        self._children = children
        self._tenant = tenant
        self._spark = spark
        self._rules = rules
        self._job_changed = changed
        self._passed_on: dict[str, tuple[JobRequest, JobSpec]] = {}
        """Jobs that need Spark after all, until they have it."""
        self._started: dict[str, tuple[JobRequest, JobSpec]] = {}
        self._on_spark: set[str] = set()
        self._results: dict[tuple[str, int], JobResult] = {}
        self._files: dict[str, bytes] = {}
        """What results refer to. Both are here as soon as `poll` says that there is a result."""

    def has_application(self, name: str) -> bool:
        """Whether a job is, or was, done by a SparkApplication."""
        return name in self._on_spark

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:
        tenant = self._tenant()
        if (
            tenant is not None
            and input_bytes <= self._rules.most_bytes
            and self._children.suits(operation_id)
            and may_read(job, tenant, bounded=self._rules.bounded, trusted=self._rules.trusted)
        ):
            return JobPlace.HERE
        return JobPlace.ELSEWHERE

    def place_of(self, key: JobKey) -> JobPlace:
        if key.name in self._passed_on:
            return JobPlace.WAITS
        return JobPlace.ELSEWHERE if self._children.of(key.name) is None else JobPlace.HERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        if key.name in self._passed_on or self._children.of(key.name) is not None:
            return
        place = self.place_for(key.operation_id, spec.job, request.input_bytes)
        tenant = self._tenant()
        if tenant is None or place is not JobPlace.HERE:
            self._spark.start(key, request, spec)
            self._on_spark.add(key.name)
            return
        self._started[key.name] = request, spec
        try:
            child = self._children.begin(tenant, key.name, self._job_changed, self._owner)
            child.call("start", request, spec)
        except OutOfMemory as error:
            # It was not begun. Those that were may have all that they need.
            self._distrust(key, None, str(error))
            self._pass_on(key)
        except (ChildEnded, JobFailed) as error:
            self._distrust(key, self._children.of(key.name), str(error))
            self._pass_on(key)
        except TandemError:
            self._children.drop(key.name)
            raise

    def knows(self, key: JobKey) -> bool:
        return (
            key.name in self._passed_on
            or self._children.of(key.name) is not None
            or self._spark.knows(key)
        )

    def poll(self, key: JobKey, round_: int) -> RoundState:
        if key.name in self._passed_on:
            return self._start_on_spark(key)
        child = self._children.of(key.name)
        if child is None:
            self._on_spark.add(key.name)
            return self._spark.poll(key, round_)
        if (key.name, round_) in self._results:
            return RoundState(JobStatus(JobPhase.RUNNING), has_result=True)
        try:
            return self._polled(key, round_, child)
        except ChildEnded as error:
            self._distrust(key, child, str(error))
            message = f"it was done in a process of the operator, and {error}. {_REMEDY}"
            return RoundState(JobStatus(JobPhase.FAILED, message, reason=Reason.JOB_FAILED))
        except JobFailed as error:  # of the call, not of the job
            self._distrust(key, child, str(error))
            message = f"{error}. {_REMEDY}"
            return RoundState(JobStatus(JobPhase.FAILED, message, reason=error.reason))

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        if self._children.of(key.name) is None:
            return self._spark.result(key, round_)
        return self._results.get((key.name, round_))

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        held = self._files.get(ref.path)
        return read_side_file(store, ref) if held is None else held

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        child = self._children.of(key.name)
        if child is None:
            return self._spark.ask(key, request)
        try:
            standing: RoundRequest = child.call("ask", key.name, request).result
        except ChildEnded:  # as `poll` will say
            return request
        return standing

    def finish(self, key: JobKey) -> None:
        child = self._children.of(key.name)
        if child is None:
            self._spark.finish(key)
            return
        try:
            child.call("finish", key.name)
        except ChildEnded as error:
            _log.info("a child has ended", job=key.name, how=str(error))

    def stop(self, key: JobKey) -> None:
        self._passed_on.pop(key.name, None)
        child = self._children.of(key.name)
        if child is None:
            self._spark.stop(key)
            return
        self._end_in(child, key)
        self._results.clear()
        self._files.clear()

    def _polled(self, key: JobKey, round_: int, child: ChildProcess) -> RoundState:
        state: RoundState = child.call("poll", key.name, round_).result
        if state.has_result:
            self._fetch(key, round_, child)
        elif state.needs_spark and round_ == 0 and key.name in self._started:
            self._end_in(child, key)
            self._pass_on(key)
            return _WAITS
        elif state.needs_spark:
            # Another session began it, or its first rounds have files: only a new attempt can be
            # on Spark.
            self._children.suits_not(key.operation_id, None)
            message = f"round {round_} of it needs Spark"
            return RoundState(JobStatus(JobPhase.FAILED, message, reason=Reason.JOB_FAILED))
        elif (failed := _harmful(state)) is not None:
            self._distrust(key, child, str(failed))
            return _explained(state)
        return state

    def _fetch(self, key: JobKey, round_: int, child: ChildProcess) -> None:
        result: JobResult = child.call("result", key.name, round_).result
        for ref in (result.row_map, result.matches, result.source):
            content = None if ref is None else child.call("file", ref.path).content
            if ref is not None and content is not None:
                self._files[ref.path] = content
        self._results[key.name, round_] = result

    def _end_in(self, child: ChildProcess, key: JobKey) -> None:
        patience_s = STOP_S if len(child.jobs) > 1 else STOP_ALONE_S
        try:
            child.call("stop", key.name, timeout_s=patience_s)
        except ChildEnded as error:
            _log.info("a child has ended", job=key.name, how=str(error))
        finally:
            self._children.drop(key.name)

    def _pass_on(self, key: JobKey) -> None:
        self._passed_on[key.name] = self._started[key.name]
        self._children.drop(key.name)

    def _start_on_spark(self, key: JobKey) -> RoundState:
        """Only called while there is a slot for it. Raises: as `start`."""
        request, spec = self._passed_on[key.name]
        try:
            self._spark.start(key, request, spec)
        except (InvalidSpec, JobRefused):
            # The next plan is for Spark from the start: it waits before it takes its locks.
            self._children.suits_not(key.operation_id, None)
            self._passed_on.pop(key.name, None)
            raise
        self._passed_on.pop(key.name, None)
        self._on_spark.add(key.name)
        return RoundState(JobStatus(JobPhase.STARTING))

    def _distrust(self, key: JobKey, child: ChildProcess | None, why: str) -> None:
        self._children.suits_not(key.operation_id, child)
        _log.warning("a small job failed with its process", job=key.name, why=why)


def _harmful(state: RoundState) -> Reason | None:
    """Why a job failed, if that may have harmed its process."""
    reasons = (state.status.reason, None if state.failure is None else state.failure.reason)
    return next((Reason(reason) for reason in reasons if reason in HARMFUL), None)


def _explained(state: RoundState) -> RoundState:
    """The same, if there was not enough memory with what helps here: it had no driver."""
    failure = state.failure
    if failure is None or failure.reason != Reason.OUT_OF_MEMORY:
        return state
    message = (
        "the job ran out of the memory that a process of the operator has (--table-memory). "
        f"{_REMEDY}"
    )
    return replace(state, failure=failure.model_copy(update={"message": message}))
