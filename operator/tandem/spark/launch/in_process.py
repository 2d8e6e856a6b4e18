"""Does small jobs in this process, without Spark, and passes the others on.

A rewrite needs no shuffle, unless rows are sorted that do not fit into memory: Spark only hands out
its bins; so it does with the files of an update, delete or merge whose expressions are proven equal
over Arrow. For a small one, starting a JVM takes longer than the work. It is the same code, and the
result is a file, too. A job cannot be killed here: `stop` waits for its end, or that of its round,
so only small ones are taken. One whose rows turn out not to fit is passed on, and so is a statement
or merge of which an expression, a row or the source needs Spark.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from tandem.errors import TandemError
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobRunner, JobStatus
from tandem.spark.runtime.control import TRANSIENT, Control, open_job, recorded


@dataclass
class _InProcessJob:
    thread: threading.Thread
    ended: threading.Event
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
    """A `JobRunner`. Thread-safe.

    Args:
        others: runs the jobs that are not done here.
    """

    def __init__(self, others: JobRunner) -> None:
        self._others = others
        self._jobs: dict[str, _InProcessJob] = {}
        self._lock = threading.Lock()
        # One for each core: a job holds rows in memory, but not while it waits for a round.
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)

    def start(self, request: JobRequest) -> None:
        """Start the job, unless a job of that name was started. Raises: SparkMissing."""
        if not needs_no_spark(request):
            self._others.start(request)
            return
        with self._lock:
            if request.name in self._jobs:
                return
            job = _InProcessJob(
                threading.Thread(
                    target=lambda: self._perform(request, job), name=request.name, daemon=True
                ),
                threading.Event(),
            )
            self._jobs[request.name] = job
            job.thread.start()

    def status(self, name: str) -> JobStatus:
        job = self._jobs.get(name)
        return self._others.status(name) if job is None or job.passed_on else job.status

    def stop(self, name: str) -> None:
        """Wait for the end of a job of this process, or of its round; stop another one."""
        job = self._jobs.get(name)
        if job is not None:
            job.ended.set()
            job.thread.join()
        if job is None or job.passed_on:
            self._others.stop(name)

    def _perform(self, request: JobRequest, job: _InProcessJob) -> None:
        is_done = True

        # Each imported for its own jobs only: that takes as long as a small job.
        def here(control: Control) -> None:
            nonlocal is_done
            if request.app == "statement":
                from tandem.spark.jobs import statement

                is_done = statement.run_here(control, job.ended, self._slots)
                return
            if request.app == "merge":
                from tandem.spark.jobs import merge

                is_done = merge.run_here(control, job.ended, self._slots)
                return
            from tandem.spark.jobs.rewrite import job as rewrite

            with self._slots:
                is_done = rewrite.run_here(control)

        try:
            opened = open_job(
                request.location,
                request.spec_path,
                dict(request.storage_options),
                request.allowed_locations,
            )
            failure = recorded(here, opened)
            if not is_done:
                self._others.start(request)
                job.passed_on = True
        except TandemError as error:  # of the store, in which a failure is recorded; or no Spark
            failure = error
        job.failure = failure
