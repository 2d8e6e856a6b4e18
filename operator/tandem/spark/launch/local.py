"""Runs jobs as local `spark-submit` processes, a process each, where a cluster's nodes would:
`tandem dev`.

No job outlives its engine: the application watches its parent and ends with it
(`tandem.spark.runtime.control`), so that after a crash no process of an old attempt runs for long.
A restarted engine does not know the jobs of its predecessor: `status` returns UNKNOWN, and the
engine looks for the result or starts a new attempt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import SparkMissing
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime.jvm import last_line
from tandem.spark.runtime.parent_watch import PARENT
from tandem.spark.runtime.session import (
    PACKAGE,
    build_conf,
    cache_dir,
    launch_environment,
    sizes_here,
    spark_home,
)

END_SECONDS = 1.0
"""How long a job that is stopped may go on: after its last round it ends by itself."""
STOP_SECONDS = 5.0
"""How long a stopped job may take to end before it is killed."""


@dataclass(frozen=True)
class _Job:
    process: subprocess.Popen[bytes]
    log: Path
    is_program: bool

    def code(self) -> int | None:
        """Its exit code, once the whole process group has ended; negative, the number of a signal
        that killed it."""
        code = self.process.poll()
        if code is not None:
            self._signal(signal.SIGKILL)  # workers may briefly outlive the driver
        return code

    def end(self) -> None:
        """End the process group and reap it; not an error if it has ended."""
        for seconds, number in (
            (0.0 if self.is_program else END_SECONDS, signal.SIGTERM),
            (STOP_SECONDS, signal.SIGKILL),
        ):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                break
            self._signal(number)
        self.process.wait()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self.process.pid, number)


class LocalRunner:
    """A `JobRunner` on this machine. Thread-safe.

    Args:
        apps: folder of the scripts; None for `spark_apps/` beside the package's source.
        logs: folder of the logs, which are named after the jobs; None for the cache.
        environ: environment of the jobs, including credentials; None for that of this process.
    """

    def __init__(
        self,
        *,
        apps: Path | None = None,
        logs: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._apps = apps or apps_folder()
        self._environ = dict(os.environ if environ is None else environ)
        self._logs = logs or cache_dir(self._environ) / "logs"
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def start(self, request: JobRequest) -> None:
        """Start the job, unless a job of that name was started. Raises: SparkMissing."""
        with self._lock:
            if request.name in self._jobs:
                return
            command, environ = self._start_of(request)
            self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{request.name}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._jobs[request.name] = _Job(process, log, bool(request.request))

    def status(self, name: str) -> JobStatus:
        job = self._jobs.get(name)
        if job is None:
            return JobStatus(JobPhase.UNKNOWN, "not started by this runner")
        code, log = job.code(), str(job.log)
        if code is None:
            return JobStatus(JobPhase.RUNNING, log=log)
        if code == 0:
            return JobStatus(JobPhase.ENDED, log=log)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        line = last_line(job.log)
        return JobStatus(JobPhase.FAILED, f"spark-submit {how}{line and ': '}{line}", log)

    def stop(self, name: str) -> None:
        """End the job's process and reap it; not an error if the job has ended."""
        job = self._jobs.get(name)
        if job is not None:
            job.end()

    def close(self) -> None:
        """Stop all jobs."""
        for name in list(self._jobs):
            self.stop(name)

    def _start_of(self, request: JobRequest) -> tuple[list[str], Mapping[str, str]]:
        """The command line of a job, and its environment."""
        cores, heap = sizes_here()
        conf = build_conf(
            cores=request.cores or cores,
            memory_bytes=request.memory_bytes or heap,
            short=request.is_short,
            environ=self._environ,
        )
        settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        app = str(self._app(request.app))
        command = [str(spark_home() / "bin" / "spark-submit"), *settings, app]
        environ = launch_environment(self._environ)
        environ.update(request.environ)
        environ[PARENT] = str(os.getpid())
        return [*command, *request.arguments()], environ

    def _app(self, name: str) -> Path:
        app = self._apps / f"{name}.py"
        if not app.is_file():
            raise SparkMissing(
                "a Spark application is not installed",
                found=str(app),
                expected=f"one of {', '.join(sorted(p.stem for p in self._apps.glob('*.py')))}",
                remedy="Run from a checkout, or set TANDEM_SPARK_APPS to the folder",
            )
        return app


def apps_folder() -> Path:
    """`$TANDEM_SPARK_APPS`, else `spark_apps/` of the checkout that holds this package."""
    configured = os.environ.get("TANDEM_SPARK_APPS")
    return Path(configured) if configured else PACKAGE.parents[1] / "spark_apps"
