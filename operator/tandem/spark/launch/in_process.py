"""Small jobs in the engine's own process, without Spark; it passes the others on.

A rewrite needs no shuffle, unless rows are sorted that do not fit into memory: Spark only hands
out its bins; so it does with the files of an update, delete or merge whose expressions are proven
equal over Arrow. For a small one, starting a JVM takes longer than the work. It is the same code.
Nothing of what engine and job say to each other is stored, with one exception: the result of work
that took long, so that another process need not repeat it if this one dies before the commit.

A job cannot be killed here: `stop` waits for its end, or that of its round, so only small ones are
taken. One whose rows turn out not to fit is passed on, and so is a statement or merge of which an
expression, a row or the source needs Spark.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Final

from tandem.errors import StorageError, TandemError
from tandem.jobs.formats import JobSpec, RoundRequest
from tandem.jobs.port import JobKey, Jobs, RoundState
from tandem.jobs.results import JobFailure, JobProgress, JobResult, SideFileRef
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobStatus
from tandem.spark.runtime.control import (
    TRANSIENT,
    Control,
    Counters,
    HeldCounters,
    recorded,
)
from tandem.storage.store import Store

KEPT_AFTER_S: Final = 60.0
"""The result of work that took so long is stored."""


@dataclass
class _Said:
    """What the engine and a job have said to each other. `files`: what results refer to, by path.
    `asked` is set by the engine whenever it said something."""

    requests: dict[int, RoundRequest] = field(default_factory=dict)
    results: dict[int, JobResult] = field(default_factory=dict)
    failures: dict[int, JobFailure] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    counters: dict[int, HeldCounters] = field(default_factory=dict)
    progress: JobProgress | None = None
    done: bool = False
    asked: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class HeldControl(Control):
    """The job's side, in memory."""

    said: _Said = field(default_factory=_Said)
    begun_s: float = field(default_factory=time.monotonic)

    def side_file(self, round_: int, name: str, data: bytes) -> SideFileRef:
        path = self.round_path(round_, f"{name}-{uuid.uuid4()}")
        self.said.files[path] = data
        return SideFileRef(path=path, size=len(data), sha256="")

    def read_side_file(self, ref: SideFileRef) -> bytes:
        held = self.said.files.get(ref.path)
        return super().read_side_file(ref) if held is None else held

    def publish(self, result: JobResult) -> bool:
        if time.monotonic() - self.begun_s > KEPT_AFTER_S and result.round == 0:
            with contextlib.suppress(StorageError):  # what is lost by that is only time
                self._keep(result)
        return self.said.results.setdefault(result.round, result) is result

    def fail(self, error: TandemError, round_: int = 0) -> None:
        self.said.failures.setdefault(round_, self.failure_of(error, round_))

    def counters(self, round_: int) -> Counters:
        return self.said.counters.setdefault(round_, HeldCounters())

    def progress(self, progress: JobProgress) -> None:
        self.said.progress = progress

    def request(self, round_: int) -> RoundRequest | None:
        return self.said.requests.get(round_)

    def result(self, round_: int) -> JobResult:
        return self.said.results[round_]

    def wait(self, ended: threading.Event, seconds: float) -> None:
        if not ended.is_set() and self.said.asked.wait(seconds):
            self.said.asked.clear()

    def is_done(self) -> bool:
        return self.said.done

    def keep(self) -> None:
        """Store what has been said, for a job in another process that goes on from there. Raises:
        StorageError."""
        for round_ in sorted(self.said.results):
            self._keep(self.said.results[round_])
        for round_, request in sorted(self.said.requests.items()):
            self._put_once(self.round_path(round_, "request.json"), request)

    def _keep(self, result: JobResult) -> None:
        names = ("row_map", "matches", "source")
        refs = {name: getattr(result, name) for name in names}
        stored = {name: self._stored(ref) for name, ref in refs.items() if ref is not None}
        super().publish(result.model_copy(update=stored))

    def _stored(self, ref: SideFileRef) -> SideFileRef:
        data = self.said.files[ref.path]
        self.store.put(ref.path, data)
        return ref.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})


@dataclass
class _Job:
    control: HeldControl
    request: JobRequest
    thread: threading.Thread
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    failure: TandemError | None = None
    passed_on: bool = False

    @property
    def status(self) -> JobStatus:
        if self.thread.is_alive():
            return JobStatus(JobPhase.RUNNING)
        if self.failure is not None:
            reason = self.failure.reason
            transient = reason in TRANSIENT
            return JobStatus(JobPhase.FAILED, str(self.failure), reason=reason, transient=transient)
        return JobStatus(JobPhase.ENDED)


def needs_no_spark(request: JobRequest) -> bool:
    """Whether a job is begun in this process: a small rewrite, update, delete or merge, whose
    credentials are those of this process."""
    is_small = request.input_bytes <= SMALL_BYTES
    return request.app in ("rewrite", "statement", "merge") and is_small and not request.environ


class InProcessJobs:
    """A `Jobs` whose jobs are threads.

    Args:
        others: has the jobs done that are not done here.
    """

    def __init__(self, others: Jobs) -> None:
        self._others = others
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        # One for each core: a job holds rows in memory, but not while it waits for a round.
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        if not needs_no_spark(request):
            self._others.start(key, request, spec)
            return
        with self._lock:
            if key.name in self._jobs:
                return
            thread = threading.Thread(
                target=lambda: self._perform(key, job), name=key.name, daemon=True
            )
            job = self._jobs[key.name] = _Job(HeldControl(spec, key.store), request, thread)
            thread.start()

    def knows(self, key: JobKey) -> bool:
        return self._own(key) is not None or self._others.knows(key)

    def poll(self, key: JobKey, round_: int) -> RoundState:
        job = self._own(key)
        if job is None:
            return self._others.poll(key, round_)
        status, said = job.status, job.control.said
        failure = said.failures.get(round_, said.failures.get(0))
        if round_ in said.results:
            return RoundState(status, has_result=True)
        if job.passed_on:  # between the two looks
            return self._others.poll(key, round_)
        return RoundState(status, failure=failure, progress=said.progress)

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        job = self._jobs.get(key.name)
        held = None if job is None else job.control.said.results.get(round_)
        return self._others.result(key, round_) if held is None else held

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        for job in list(self._jobs.values()):
            if (held := job.control.said.files.get(ref.path)) is not None:
                return held
        return self._others.read(store, ref)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        job = self._jobs.get(key.name)
        if job is not None:
            with job.lock:
                if not job.passed_on:
                    standing = job.control.said.requests.setdefault(request.round, request)
                    job.control.said.asked.set()
                    return standing
        return self._others.ask(key, request)

    def finish(self, key: JobKey) -> None:
        job = self._own(key)
        if job is None:
            self._others.finish(key)
        else:
            job.control.said.done = True
            job.control.said.asked.set()

    def stop(self, key: JobKey) -> None:
        """Wait for the end of a job of this process, or of its round; stop another one."""
        job = self._jobs.get(key.name)
        if job is not None:
            job.ended.set()
            job.control.said.asked.set()
            job.thread.join()
            del self._jobs[key.name]
        if job is None or job.passed_on:
            self._others.stop(key)

    def _own(self, key: JobKey) -> _Job | None:
        job = self._jobs.get(key.name)
        return None if job is None or job.passed_on else job

    def _perform(self, key: JobKey, job: _Job) -> None:
        is_done = True

        # Each imported for its own jobs only: that takes as long as a small job.
        def here(control: Control) -> None:
            nonlocal is_done
            if job.request.app == "statement":
                from tandem.spark.jobs import statement

                is_done = statement.run_here(control, job.ended, self._slots)
                return
            if job.request.app == "merge":
                from tandem.spark.jobs import merge

                is_done = merge.run_here(control, job.ended, self._slots)
                return
            from tandem.spark.jobs.rewrite import job as rewrite

            with self._slots:
                is_done = rewrite.run_here(control)

        try:
            job.failure = recorded(here, job.control)
            if not is_done:
                with job.lock:  # a request that comes meanwhile goes to the other one
                    job.control.keep()
                    self._others.start(key, job.request, job.control.spec)
                    job.passed_on = True
        except TandemError as error:  # of the store, or no Spark
            job.failure = error
