"""Jobs in the engine's own process: small ones without Spark, the others on Spark beside it.

A rewrite needs no shuffle, unless rows are sorted that do not fit into memory: Spark only hands
out its bins; so it does with the files of an update, delete or merge whose expressions are proven
equal over Arrow. For a small one, starting a JVM takes longer than the work. It is the same code.
One whose rows turn out not to fit goes on on Spark, and so does a statement or merge of which an
expression, a row or the source needs it.

Nothing of what engine and job say to each other is stored, with one exception: the result of work
that took long, so that another process need not repeat it if this one dies before the commit. A
thread cannot be killed: `stop` waits for the end of a job without Spark, or of its round.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from tandem.errors import JobFailed, Reason, StorageError, TandemError
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.port import JobKey, JobPlace, RoundState, read_side_file
from tandem.jobs.results import JobFailure, JobProgress, JobResult, SideFileRef
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobStatus
from tandem.spark.jobs.apps import run, run_here
from tandem.spark.local_spark import HARMFUL, Spark, SparkBusy
from tandem.spark.runtime.control import (
    TRANSIENT,
    Control,
    Counters,
    HeldCounters,
    recorded,
    translate,
)
from tandem.storage import open_store
from tandem.storage.store import Store

KEPT_AFTER_S: Final = 60.0
"""The result of work that took so long is stored."""
END_SECONDS: Final = 1.0
"""How long a job that is stopped may go on: after its last round it ends by itself."""
STOP_SECONDS: Final = 5.0
"""How long a job that was cancelled may take to end."""


@dataclass
class _Said:
    """What the engine and a job have said to each other. `files`: what results refer to, by path.
    `asked` is set by the engine whenever it said something. After `stopped`, the job says nothing
    that counts: what it wrote is about to be deleted. `changed` is called when the job has said
    something."""

    changed: Callable[[], None]
    requests: dict[int, RoundRequest] = field(default_factory=dict)
    results: dict[int, JobResult] = field(default_factory=dict)
    failures: dict[int, JobFailure] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    counters: dict[int, HeldCounters] = field(default_factory=dict)
    progress: JobProgress | None = None
    done: bool = False
    stopped: bool = False
    asked: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class HeldControl(Control):
    """The job's side, in memory."""

    said: _Said = field(default_factory=lambda: _Said(_nothing))
    begun_s: float = field(default_factory=time.monotonic)
    folder: Store | None = None
    """For files between driver and tasks, which are other processes on Spark."""

    @property
    def scratch(self) -> Store:
        return self.store if self.folder is None else self.folder

    def side_file(self, round_: int, name: str, data: bytes) -> SideFileRef:
        path = self.round_path(round_, f"{name}-{uuid.uuid4()}")
        self.said.files[path] = data
        return SideFileRef(path=path, size=len(data), sha256="")

    def read_side_file(self, ref: SideFileRef) -> bytes:
        held = self.said.files.get(ref.path)
        return super().read_side_file(ref) if held is None else held

    def publish(self, result: JobResult) -> bool:
        # Only this job's thread publishes. A job that goes on on Spark finds its rounds again.
        if self.said.stopped or result.round in self.said.results:
            return False
        if time.monotonic() - self.begun_s > KEPT_AFTER_S and result.round == 0:
            with contextlib.suppress(StorageError):  # what is lost by that is only time
                self._keep(result)
        self.said.results[result.round] = result
        self.said.changed()
        return True

    def fail(self, error: TandemError, round_: int = 0) -> None:
        self.said.failures.setdefault(round_, self.failure_of(error, round_))
        self.said.changed()

    def counters(self, round_: int) -> Counters:
        if self.folder is not None:
            return super().counters(round_)
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
    """`ended` is set when the job is to end, or to go on on Spark; it is `stopped` only in the
    first case. `waits`: for its turn. `needs_spark`: and there is none here; `problem` is what has
    become of the one that there was."""

    control: HeldControl
    request: JobRequest
    thread: threading.Thread
    ended: threading.Event = field(default_factory=threading.Event)
    waits: bool = False
    on_spark: bool = False
    needs_spark: bool = False
    problem: str = ""
    failure: TandemError | None = None

    @property
    def stopped(self) -> bool:
        return self.control.said.stopped

    def stop(self) -> None:
        self.control.said.stopped = True
        self.ended.set()
        self.control.said.asked.set()

    def status(self, log: str) -> JobStatus:
        if self.needs_spark:  # its thread has nothing more to do
            return JobStatus(JobPhase.ENDED, self.problem, log)
        if self.thread.is_alive():
            return JobStatus(JobPhase.RUNNING, log=log)
        if self.failure is not None:
            reason = self.failure.reason
            transient = reason in TRANSIENT
            return JobStatus(JobPhase.FAILED, str(self.failure), log, reason, transient)
        return JobStatus(JobPhase.ENDED, log=log)


@dataclass(frozen=True)
class _Turn(AbstractContextManager[None]):
    """The time in which a job computes in this process. Raises JobFailed once it is stopped."""

    slots: threading.Semaphore
    job: _Job

    def __enter__(self) -> None:
        job = self.job
        job.waits = True
        self.slots.acquire()
        job.waits = False
        if job.stopped:  # `stop` sets it before it looks whether the job waits
            self.slots.release()
            raise JobFailed("the job was stopped before its turn", resource=job.request.name)

    def __exit__(self, *_: object) -> None:
        self.slots.release()


def needs_no_spark(request: JobRequest) -> bool:
    """Whether a job is begun without Spark: a small one."""
    return request.input_bytes <= SMALL_BYTES


class InProcessJobs:
    """A `Jobs` whose jobs are threads.

    Args:
        spark: does what needs Spark; without it, a job that needs it ends, and `poll` says so.
        changed: called, in any thread, with the name of a job that has something new to say.
        at_once: how many jobs compute at once; None for one on each core. A job holds rows in
            memory then, but not while it waits for a round.
        small: given where all jobs are small, by the choice of who starts them, and others have
            Spark elsewhere: how many bytes one may read on `spark`, with its source. If it reads
            more, or `spark` has no place for it or fails with it, it ends as one without Spark.
    """

    def __init__(
        self,
        spark: Spark | None,
        changed: Callable[[str], None] | None = None,
        at_once: int | None = None,
        small: int | None = None,
    ) -> None:
        self._spark = spark
        self._small = small
        self._changed = changed or (lambda _: None)
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(at_once or os.cpu_count() or 1)

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:  # noqa: ARG002
        return JobPlace.HERE

    def place_of(self, key: JobKey) -> JobPlace:  # noqa: ARG002
        return JobPlace.HERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        """Also raises RuntimeError if there is no thread for the job."""
        with self._lock:
            if key.name in self._jobs:
                return
            if self._spark is not None and not self._begins_here(request):
                self._spark.require()
            thread = threading.Thread(target=lambda: self._perform(job), name=key.name, daemon=True)
            said = _Said(lambda: self._changed(key.name))
            job = self._jobs[key.name] = _Job(HeldControl(spec, key.store, said), request, thread)
            try:
                thread.start()
            except RuntimeError:  # no memory for its stack
                del self._jobs[key.name]
                raise

    def knows(self, key: JobKey) -> bool:
        return key.name in self._jobs

    def poll(self, key: JobKey, round_: int) -> RoundState:
        job = self._jobs.get(key.name)
        if job is None:
            return RoundState(JobStatus(JobPhase.UNKNOWN, "not started by this process"))
        log = self._spark.log() if self._spark is not None and job.on_spark else ""
        status, said = job.status(log), job.control.said
        if round_ in said.results:
            return RoundState(status, has_result=True)
        failure = said.failures.get(round_, said.failures.get(0))
        return RoundState(
            status, failure=failure, progress=said.progress, needs_spark=job.needs_spark
        )

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        job = self._jobs.get(key.name)
        return None if job is None else job.control.said.results.get(round_)

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        held = self.held(ref.path)
        return read_side_file(store, ref) if held is None else held

    def held(self, path: str) -> bytes | None:
        """A file that a result refers to; None if no job of this process has written it."""
        found = (job.control.said.files.get(path) for job in list(self._jobs.values()))
        return next((data for data in found if data is not None), None)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        job = self._jobs.get(key.name)
        if job is None:  # of another process: it is lost, as `poll` will say
            return request
        standing = job.control.said.requests.setdefault(request.round, request)
        job.control.said.asked.set()
        return standing

    def finish(self, key: JobKey) -> None:
        job = self._jobs.get(key.name)
        if job is not None:
            job.control.said.done = True
            job.control.said.asked.set()

    def stop(self, key: JobKey) -> None:
        """Wait for the end of a job, or of its round. One on Spark is cancelled, and left to itself
        if it does not end then: it can publish nothing."""
        self.drop(key.name)

    def drop(self, name: str) -> None:
        """`stop`, by its name."""
        job = self._jobs.pop(name, None)
        if job is None:
            return
        job.stop()
        if self._spark is not None and job.on_spark:
            job.thread.join(END_SECONDS)
            if job.thread.is_alive():
                self._spark.cancel(name)
                job.thread.join(STOP_SECONDS)
        elif not job.waits:  # else it ends when its turn comes
            job.thread.join()

    def _perform(self, job: _Job) -> None:
        def work(control: Control) -> None:
            turn = _Turn(self._slots, job)
            if self._begins_here(job.request) and run_here(control, job.ended, turn):
                return
            if self._spark is None or self._reads_more(job):
                job.needs_spark = not job.stopped
                return
            job.on_spark = True
            job.ended.clear()
            if job.stopped:  # `stop` sets it before it looks where the job is
                return
            try:
                self._on_spark(self._spark, job)
            except Exception as error:
                if self._small is None or not _says_nothing_of_the_job(error):
                    raise
                job.problem = str(error)
                job.needs_spark = not job.stopped

        job.failure = recorded(work, job.control)
        self._changed(job.request.name)

    def _begins_here(self, request: JobRequest) -> bool:
        """Whether a job is begun without Spark. Without any, all are."""
        return self._spark is None or self._small is not None or needs_no_spark(request)

    def _reads_more(self, job: _Job) -> bool:
        """Whether a job, of which the source was not measured before, reads more than it may."""
        if self._small is None or job.request.size_known:
            return False
        from tandem.spark.sources.readers import source_bytes

        return job.request.input_bytes + source_bytes(job.control) > self._small

    @staticmethod
    def _on_spark(spark: Spark, job: _Job) -> None:
        with (
            spark.job(job.request) as context,
            tempfile.TemporaryDirectory(prefix="tandem-job-") as folder,
        ):
            if not job.stopped:
                run(replace(job.control, folder=open_store(folder)), context, job.ended)


def _says_nothing_of_the_job(error: Exception) -> bool:
    """Whether Spark itself has failed, or may have."""
    failed = HARMFUL | {Reason.SPARK_MISSING}
    return isinstance(error, SparkBusy) or translate(error).reason in failed


def _nothing() -> None:
    pass
