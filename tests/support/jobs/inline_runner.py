"""A `JobRunner` that runs the same job code in a thread, on the session that tests share; or the
work of `quick_jobs`, for tests of what is around a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from support.jobs import quick_jobs
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.jobs import ingest, log_merge, merge, rewrite, statement, stitch, upsert
from tandem.spark.runtime import control
from tandem.spark.runtime.control import Control


class DriverDied(BaseException):
    """What a SIGKILL is to a driver that is a thread: nothing after it is done or reported."""


Opened = Callable[[JobRequest, Control], Control]


def as_it_is(_request: JobRequest, opened: Control) -> Control:
    """The control files of a job, unchanged."""
    return opened


class InlineRunner:
    """Starts no process, so a job costs a tenth of a second instead of seconds. `opened` may
    give a job another hold on its files, to stand in its way. `seconds` has the duration of each
    job that ended. Without `spark`, the next jobs do without it."""

    def __init__(self, spark: SparkSession | None, opened: Opened = as_it_is) -> None:
        self.spark = spark
        self._opened = opened
        self._threads: dict[str, threading.Thread] = {}
        self._codes: dict[str, int] = {}
        self._stops: dict[str, threading.Event] = {}
        self.seconds: dict[str, float] = {}

    def start(self, request: JobRequest) -> None:
        if request.name in self._threads:
            return
        stop = self._stops[request.name] = threading.Event()
        spark = self.spark

        def work(opened: Control) -> None:
            if spark is None:
                quick_jobs.drive(opened, stop)
                return
            match request.app:
                case "rewrite":
                    rewrite.run(opened, spark.sparkContext)
                case "statement":
                    statement.run(opened, spark, stop=stop)
                case "merge":
                    merge.run(opened, spark, stop=stop)
                case "ingest":
                    ingest.run(opened, spark, stop=stop)
                case "upsert":
                    upsert.run(opened, spark)
                case "stitch":
                    stitch.run(opened, spark.sparkContext)
                case "log_merge":
                    log_merge.run(opened, spark.sparkContext)
                case other:
                    raise ValueError(f"no application {other}")

        def body() -> None:
            started = time.perf_counter()
            opened = control.open_job(
                request.location,
                request.spec_path,
                dict(request.storage_options),
                request.allowed_locations,
            )
            try:
                code = control.answer(work, self._opened(request, opened))
            except DriverDied:
                code = 137
            self._codes[request.name] = code
            self.seconds[request.name] = time.perf_counter() - started

        thread = threading.Thread(target=body, name=request.name, daemon=True)
        self._threads[request.name] = thread
        thread.start()

    def status(self, name: str) -> JobStatus:
        thread = self._threads.get(name)
        if thread is None:
            return JobStatus(JobPhase.UNKNOWN)
        if thread.is_alive():
            return JobStatus(JobPhase.RUNNING)
        code = self._codes.get(name, 1)
        return JobStatus(JobPhase.ENDED if code == 0 else JobPhase.FAILED, f"exit code {code}")

    def stop(self, name: str) -> None:
        thread = self._threads.get(name)
        if thread is not None:
            self._stops[name].set()
            thread.join()
