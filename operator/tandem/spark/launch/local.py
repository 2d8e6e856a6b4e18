"""Runs jobs as local `spark-submit` processes instead of in a cluster.

Each job is a separate process group, so that a terminal's interrupt reaches only the engine, and
stopping a job kills the JVM and its Python workers together. No job outlives its engine: the
application watches its parent and ends with it (`tandem.spark.runtime.parent_watch`), so that after
a crash no process of an old attempt runs for long. A restarted engine does not know the jobs of its
predecessor: `status` returns UNKNOWN, and the engine looks for the result or starts a new attempt.

`spark-submit` costs one JVM, in which the driver runs, and a short-lived launcher that builds its
command line; there is no second driver process to save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import SparkMissing
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime.parent_watch import PARENT
from tandem.spark.runtime.session import (
    PACKAGE,
    SHORT_JOB_BYTES,
    build_conf,
    cache_dir,
    launch_environment,
    spark_home,
)

STOP_SECONDS = 5.0
"""How long a stopped job may take to end before it is killed."""
_TAIL_BYTES = 16_384


@dataclass
class _Job:
    process: subprocess.Popen[bytes]
    log: Path
    group_ended: bool = False

    def poll(self) -> int | None:
        """The exit code once the driver has ended; its workers end with it."""
        code = self.process.poll()
        if code is not None:
            self.end_group()
        return code

    def end_group(self) -> None:
        """Kill the rest of the group, once: later its number may belong to another process."""
        if not self.group_ended:
            self.group_ended = True
            _signal(self.process.pid, signal.SIGKILL)


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
            command = self._command(request)
            env = launch_environment(self._environ)
            env.update(request.environ)
            env[PARENT] = str(os.getpid())
            package = str(PACKAGE.parent)
            env["PYTHONPATH"] = os.pathsep.join(p for p in (package, env.get("PYTHONPATH")) if p)
            self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{request.name}.log"
            with log.open("ab") as sink:
                process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._jobs[request.name] = _Job(process, log)

    def status(self, name: str) -> JobStatus:
        job = self._jobs.get(name)
        if job is None:
            return JobStatus(JobPhase.UNKNOWN, "not started by this runner")
        code = job.poll()
        log = str(job.log)
        if code is None:
            return JobStatus(JobPhase.RUNNING, log=log)
        if code == 0:
            return JobStatus(JobPhase.ENDED, log=log)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return JobStatus(JobPhase.FAILED, f"spark-submit {how}{_last_line(job.log)}", log)

    def stop(self, name: str) -> None:
        """End the whole process group and reap it; not an error if it has ended."""
        job = self._jobs.get(name)
        if job is None:
            return
        if job.poll() is None:
            _signal(job.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(STOP_SECONDS)
        # Workers may briefly outlive the driver, and a hanging driver ignores the first signal.
        job.end_group()
        job.process.wait()

    def close(self) -> None:
        """Stop all jobs."""
        for name in list(self._jobs):
            self.stop(name)

    def _command(self, request: JobRequest) -> list[str]:
        app = self._apps / f"{request.app}.py"
        if not app.is_file():
            raise SparkMissing(
                "a Spark application is not installed",
                found=str(app),
                expected=f"one of {', '.join(sorted(p.stem for p in self._apps.glob('*.py')))}",
                remedy="Run from a checkout, or set TANDEM_SPARK_APPS to the folder",
            )
        conf = build_conf(
            cores=request.cores,
            memory_bytes=request.memory_bytes,
            short=request.input_bytes < SHORT_JOB_BYTES,
            environ=self._environ,
        )
        command = [str(spark_home() / "bin" / "spark-submit"), "--name", request.name]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        return [*command, str(app), *request.arguments()]


def apps_folder() -> Path:
    """`$TANDEM_SPARK_APPS`, else `spark_apps/` of the checkout that holds this package."""
    configured = os.environ.get("TANDEM_SPARK_APPS")
    return Path(configured) if configured else PACKAGE.parents[1] / "spark_apps"


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # the whole group has ended


def _last_line(log: Path) -> str:
    """The last output of the job, for a message of one line."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = source.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    output = [line.strip() for line in lines if line.strip() and " INFO " not in line]
    return f": {output[-1][:300]}" if output else ""
