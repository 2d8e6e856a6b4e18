"""Does small jobs in this process, without Spark, and passes the others on.

A rewrite that keeps the order of rows needs no shuffle: Spark only hands out its bins. For a small
one, starting a JVM takes longer than the work. It is the same code, and the result is a file, too.
A job cannot be killed here: `stop` waits for its end, so only small ones are taken.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from tandem.errors import TandemError
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobRunner, JobStatus
from tandem.spark.jobs.rewrite import job as rewrite
from tandem.spark.runtime.control import open_job, recorded


@dataclass
class _InProcessJob:
    thread: threading.Thread
    failures: list[str] = field(default_factory=list)

    @property
    def status(self) -> JobStatus:
        if self.thread.is_alive():
            return JobStatus(JobPhase.RUNNING)
        if self.failures:
            return JobStatus(JobPhase.FAILED, self.failures[0])
        return JobStatus(JobPhase.ENDED)


def needs_no_spark(request: JobRequest) -> bool:
    """Whether a job is done in this process: a small rewrite that keeps the order of rows, and
    whose credentials are those of this process."""
    keeps_order = request.app == "rewrite" and request.tasks > 0
    return keeps_order and request.input_bytes <= SMALL_BYTES and not request.environ


class InProcessJobs:
    """A `JobRunner`. Thread-safe.

    Args:
        others: runs the jobs that are not done here.
    """

    def __init__(self, others: JobRunner) -> None:
        self._others = others
        self._jobs: dict[str, _InProcessJob] = {}
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)

    def start(self, request: JobRequest) -> None:
        """Start the job, unless a job of that name was started. Raises: SparkMissing."""
        if not needs_no_spark(request):
            self._others.start(request)
            return
        with self._lock:
            if request.name in self._jobs:
                return
            failures: list[str] = []
            thread = threading.Thread(
                target=self._perform, args=(request, failures), name=request.name, daemon=True
            )
            self._jobs[request.name] = _InProcessJob(thread, failures)
            thread.start()

    def status(self, name: str) -> JobStatus:
        job = self._jobs.get(name)
        return job.status if job is not None else self._others.status(name)

    def stop(self, name: str) -> None:
        """Wait for the end of a job of this process; stop another one."""
        job = self._jobs.get(name)
        if job is None:
            self._others.stop(name)
        else:
            job.thread.join()

    def _perform(self, request: JobRequest, failures: list[str]) -> None:
        try:
            with self._slots:  # one for each core: a job holds row groups in memory
                opened = open_job(
                    request.location,
                    request.spec_path,
                    dict(request.storage_options),
                    request.allowed_locations,
                )
                failure = recorded(lambda control: rewrite.run(control, None), opened)
        except TandemError as error:  # of the store, in which a failure is recorded
            failure = error
        if failure is not None:
            failures.append(str(failure))
