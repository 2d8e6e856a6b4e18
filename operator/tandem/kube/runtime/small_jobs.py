"""The jobs of a child's operations: small ones are done by its own threads, any other one by a
SparkApplication.

A job that turns out to need Spark before it has said anything has it in a JVM beside the child, if
the administrator has allowed that; else, or if that fails, it gets an application in the same
attempt, once there is a slot for it. One that ran out of memory fails, and the next attempt has an
application; so does that of one whose child ended. Without a Spark operator, it is here again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from tandem.errors import InvalidSpec, JobRefused, Reason
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.port import JobKey, JobPlace, Jobs, RoundState
from tandem.jobs.results import JobResult, SideFileRef
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.runtime.tenants import SmallJobRules, Tenant, may_read
from tandem.spark.in_process import InProcessJobs
from tandem.spark.local_spark import HARMFUL, JvmBounds, LocalSpark
from tandem.storage.store import Store

_log = structlog.get_logger("tandem.kube.children")
_WAITS: Final = RoundState(JobStatus(JobPhase.STARTING, "needs Spark, and waits for a job slot"))
_REMEDY: Final = "A further attempt has a SparkApplication: see backoffLimit"
_AT_ONCE: Final = 2
"""So many jobs compute at once: their rows share the bound of memory."""


class SmallJobs:
    """All small jobs of a child. Thread-safe.

    Args:
        note: called with the uid of an operation that has a small job from now on (True), which an
            end of this process would lose, or has none (None), or is not suited (False).
        harmed: called when a job has ended, and is over, that may have harmed this process.
        folder: where the JVM has its files, if there may be one.
    """

    def __init__(
        self,
        tenant: Tenant,
        rules: SmallJobRules,
        note: Callable[[str, bool | None], None],
        harmed: Callable[[], None],
        folder: Path | None = None,
    ) -> None:
        self.tenant = tenant
        self.rules = rules
        self._note = note
        self._harmed = harmed
        self._harmful: set[str] = set()
        self._unsuited: set[str] = set()
        self._owners: dict[str, tuple[str, Callable[[], None]]] = {}
        self._spark = None
        small = None
        if rules.heap:
            assert folder is not None
            self._spark = LocalSpark(folder, JvmBounds(rules.heap, folder / "spark"))
            small = rules.most_bytes
        self._jobs = InProcessJobs(self._spark, self._changed, _AT_ONCE, small)

    @property
    def has_spark(self) -> bool:
        """Whether there may be a JVM."""
        return self._spark is not None

    def renewed(self, tenant: Tenant) -> None:
        """The tenant's Secret was read, and is in the environment."""
        if tenant != self.tenant and self._spark is not None:
            self._spark.replace()  # it has the keys with which it was started
        self.tenant = tenant

    def of(self, owner: str, spark: Jobs, changed: Callable[[], None]) -> OperationJobs:
        """The jobs of one operation. `owner`: its uid; `changed` is called, in any thread, when a
        small job has something new to say."""
        return OperationJobs(self, self._jobs, owner, spark, changed)

    def suits(self, owner: str) -> bool:
        """Whether no small job of an operation has failed in a way that Spark may not."""
        return owner not in self._unsuited

    def suits_not(self, owner: str) -> None:
        """A small job of an operation has failed, perhaps in an earlier process."""
        self._unsuited.add(owner)
        self._note(owner, False)

    def suits_again(self, owner: str) -> None:
        """There are no applications. `backoffLimit` bounds how often its jobs may fail."""
        self._unsuited.discard(owner)

    def harms(self, name: str) -> None:
        """A job has failed, perhaps with its process: memory that was short may stay so."""
        self._harmful.add(name)

    def owns(self, owner: str) -> bool:
        """Whether an operation has a small job."""
        return any(whose == owner for whose, _ in list(self._owners.values()))

    def begun(self, name: str, owner: str, changed: Callable[[], None]) -> None:
        self._owners[name] = owner, changed
        self._note(owner, True)

    def dropped(self, name: str) -> None:
        owner, _ = self._owners.pop(name, ("", None))
        if owner and owner not in self._unsuited and not self.owns(owner):
            self._note(owner, None)
        if name in self._harmful:
            self._harmful.discard(name)
            self._harmed()

    def leave(self, owner: str) -> None:
        """End the jobs of an operation that no session follows. May wait for the end of a
        round."""
        for name, (whose, _) in list(self._owners.items()):
            if whose == owner:
                self._jobs.drop(name)
                self.dropped(name)

    def _changed(self, name: str) -> None:
        known = self._owners.get(name)
        if known is not None:
            known[1]()


class OperationJobs:
    """The `Jobs` of one operation. Thread-safe as its engine needs it."""

    def __init__(
        self,
        small: SmallJobs,
        here: InProcessJobs,
        owner: str,
        spark: Jobs,
        changed: Callable[[], None],
    ) -> None:
        self._small = small
        self._here = here
        self._owner = owner
        self._spark = spark
        self._job_changed = changed
        self._started: dict[str, tuple[JobRequest, JobSpec]] = {}
        self._passed_on: set[str] = set()
        """Jobs that need Spark after all, until they have it."""
        self._on_spark: set[str] = set()
        self._needs_spark = False

    def has_application(self, name: str) -> bool:
        """Whether a job is, or was, done by a SparkApplication."""
        return name in self._on_spark

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:  # noqa: ARG002
        rules = self._small.rules
        if (
            input_bytes <= rules.most_bytes
            and self._small.suits(self._owner)
            and may_read(job, self._small.tenant, bounded=rules.bounded, trusted=rules.trusted)
        ):
            return JobPlace.HERE
        return JobPlace.ELSEWHERE

    def place_of(self, key: JobKey) -> JobPlace:
        if key.name in self._passed_on:
            return JobPlace.WAITS
        return JobPlace.HERE if self._is_here(key) else JobPlace.ELSEWHERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        if key.name in self._passed_on or self._is_here(key):
            return
        if self.place_for(key.operation_id, spec.job, request.input_bytes) is not JobPlace.HERE:
            try:
                self._spark.start(key, request, spec)
            except JobRefused as error:
                if error.reason is Reason.SPARK_MISSING and not self._needs_spark:
                    self._small.suits_again(self._owner)
                raise
            self._on_spark.add(key.name)
            return
        self._started[key.name] = request, spec
        self._small.begun(key.name, self._owner, self._job_changed)
        try:
            self._here.start(key, request, spec)
        except RuntimeError as error:
            _log.warning("no thread for a small job", job=key.name, problem=str(error))
            self._small.dropped(key.name)
            self._passed_on.add(key.name)

    def knows(self, key: JobKey) -> bool:
        return key.name in self._passed_on or self._is_here(key) or self._spark.knows(key)

    def poll(self, key: JobKey, round_: int) -> RoundState:
        if key.name in self._passed_on:
            return self._start_on_spark(key)
        if not self._is_here(key):
            self._on_spark.add(key.name)
            return self._spark.poll(key, round_)
        state = self._here.poll(key, round_)
        self._needs_spark |= state.needs_spark and not self._small.has_spark
        if state.needs_spark and state.status.message:
            _log.warning("no Spark beside a child", job=key.name, why=state.status.message)
        if state.needs_spark and round_ == 0:
            self._here.stop(key)
            self._small.dropped(key.name)
            self._passed_on.add(key.name)
            return _WAITS
        if state.needs_spark:
            # Its first rounds are here: only a new attempt can be on Spark.
            self._small.suits_not(self._owner)
            message = f"round {round_} of it needs Spark"
            return RoundState(JobStatus(JobPhase.FAILED, message, reason=Reason.JOB_FAILED))
        if (why := _harmful(state)) is not None:
            self._small.suits_not(self._owner)
            self._small.harms(key.name)
            _log.warning("a small job failed with its process", job=key.name, why=str(why))
            return _explained(state)
        return state

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        return self._of(key).result(key, round_)

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        return self._here.read(store, ref)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        return self._of(key).ask(key, request)

    def finish(self, key: JobKey) -> None:
        self._of(key).finish(key)

    def stop(self, key: JobKey) -> None:
        self._passed_on.discard(key.name)
        if not self._is_here(key):
            self._spark.stop(key)
            return
        try:
            self._here.stop(key)
        finally:
            self._small.dropped(key.name)

    def _is_here(self, key: JobKey) -> bool:
        return self._here.knows(key)

    def _of(self, key: JobKey) -> Jobs:
        return self._here if self._is_here(key) else self._spark

    def _start_on_spark(self, key: JobKey) -> RoundState:
        """Only called while there is a slot for it. Raises: as `start`."""
        request, spec = self._started[key.name]
        try:
            self._spark.start(key, request, spec)
        except (InvalidSpec, JobRefused) as error:
            if error.reason is not Reason.SPARK_MISSING or not self._small.has_spark:
                # The next plan is for Spark from the start: it waits before it takes its locks.
                self._small.suits_not(self._owner)
            self._passed_on.discard(key.name)
            raise
        self._passed_on.discard(key.name)
        self._on_spark.add(key.name)
        return RoundState(JobStatus(JobPhase.STARTING))


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
