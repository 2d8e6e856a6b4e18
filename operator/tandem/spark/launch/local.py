"""Runs jobs as local `spark-submit` processes instead of in a cluster.

A process whose job has succeeded waits a while for another one that would be started in the same
way: the start of Spark takes longer than most jobs on one machine. Jobs at the same time have a
process each, and stopping a job ends its process. No job outlives its engine: the application
watches its parent and ends with it (`tandem.spark.runtime.control`), so that after a crash no
process of an old attempt runs for long. A restarted engine does not know the jobs of its
predecessor: `status` returns UNKNOWN, and the engine looks for the result or starts a new attempt.

`spark-submit` costs one JVM, in which the driver runs, and a short-lived launcher that builds its
command line; there is no second driver process to save.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tandem.errors import SparkMissing
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime.control import PARENT
from tandem.spark.runtime.session import (
    PACKAGE,
    build_conf,
    cache_dir,
    launch_environment,
    sizes_here,
    spark_home,
)

# A `spark-submit` process that does jobs one after the other, and so starts Spark once.
#
# The process connects to a socket of ours, reads a job as a line, and answers with its exit code
# (`tandem.spark.runtime.session`). It is a separate process group, so that a terminal's interrupt
# reaches only the engine, and ending it kills the JVM and its Python workers together. Does not
# decide which jobs may follow each other.


_LOOK_S = 0.2
"""Seconds between looks at a process that has not connected yet: it may have ended."""


@dataclass
class ProcessJob:
    """One job of a process: `words` are the application's file and its arguments, `code` its exit
    code once it has ended; negative, the number of a signal that killed the process."""

    words: Sequence[str]
    process: JobProcess
    code: int | None = None
    _has_ended: threading.Event = field(default_factory=threading.Event)

    def end(self, code: int) -> None:
        self.code = code
        self._has_ended.set()

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end for some seconds."""
        return self._has_ended.wait(seconds)


class JobProcess:
    """Starts the process at once. It ends with the first job that fails, or by `end`.

    Args:
        command: the command line, to which the path of the socket is added.
        log: where the process writes what it prints.
        on_free: called, in another thread, when a job has succeeded: the process accepts
            another one. None: it ends after its first job.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        on_free: Callable[[JobProcess], None] | None,
    ) -> None:
        self.log = log
        self._on_free = on_free
        self._jobs: queue.SimpleQueue[ProcessJob | None] = queue.SimpleQueue()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-"))
            address = os.path.join(folder, "jobs")
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(address)
            self._listener.listen(1)
            self._listener.settimeout(_LOOK_S)
            with log.open("ab") as sink:
                self._process = subprocess.Popen(
                    [*command, address],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._opened = stack.pop_all()
        self._thread = threading.Thread(target=self._converse, name="jobs", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def give(self, words: Sequence[str]) -> ProcessJob:
        """Hand a job to the process, which must be free."""
        job = ProcessJob(words, self)
        self._jobs.put(job)
        return job

    def end(self, patience_s: float = 0.0) -> None:
        """End the whole process group and reap it; not an error if it has ended.

        Args:
            patience_s: how many seconds it has to end by itself before it is killed.
        """
        if patience_s and self.alive:
            _signal(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        if self._thread.is_alive():  # else its end was noticed, and its group has ended
            _signal(self._process.pid, signal.SIGKILL)
        self._jobs.put(None)
        self._thread.join()

    def _converse(self) -> None:
        """Pass jobs on and take their answers, until one is the last."""
        with self._opened:
            with self._accepted() or nullcontext() as connection:
                while (job := self._jobs.get()) is not None:
                    code = _answer(connection, job) if connection is not None else None
                    if code != 0 or self._on_free is None:
                        break
                    job.end(code)
                    self._on_free(self)
            self._process.wait()
            # Workers may briefly outlive the driver.
            _signal(self._process.pid, signal.SIGKILL)
            if job is not None:
                job.end(self._process.returncode if code is None else code)

    def _accepted(self) -> socket.socket | None:
        """The connection of the process; None if it has ended before."""
        while True:
            try:
                return self._listener.accept()[0]
            except TimeoutError:
                if not self.alive:
                    return None


def _answer(connection: socket.socket, job: ProcessJob) -> int | None:
    """The exit code of a job; None if the process has ended without one."""
    try:
        connection.sendall(json.dumps(list(job.words)).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer = lines.readline()
    except OSError:
        return None
    return int(answer) if answer else None


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # the whole group has ended


END_SECONDS = 1.0
"""How long a job that is stopped may go on: after its last round it ends by itself."""
STOP_SECONDS = 5.0
"""How long a stopped job may take to end before it is killed."""
FREE_SECONDS = 30.0
"""How long a process waits for another job."""
_LOOP = "local_jobs"
_TAIL_BYTES = 16_384


@dataclass(frozen=True)
class _Job:
    run: ProcessJob
    log: Path
    is_program: bool


@dataclass(frozen=True)
class _Start:
    """How a process is started."""

    command: tuple[str, ...]
    environ: Mapping[str, str]


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
        self._free: dict[JobProcess, tuple[_Start, object]] = {}
        self._lock = threading.Lock()

    def start(self, request: JobRequest) -> None:
        """Start the job, unless a job of that name was started. Raises: SparkMissing."""
        with self._lock:
            if request.name in self._jobs:
                return
            words = [str(self._app(request.app)), *request.arguments()]
            start = self._start_of(request)
            self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{request.name}.log"
            is_program = bool(request.request)
            process = None if is_program else self._take_free(start)
            if process is None:
                # A program leaves behind what no job should find: handlers of signals, say.
                keep = None if is_program else lambda free: self._keep(free, start)
                process = JobProcess(start.command, start.environ, log, keep)
            else:
                # What Spark itself prints goes where the process began to write.
                log.unlink(missing_ok=True)
                log.hardlink_to(process.log)
            self._jobs[request.name] = _Job(process.give(words), log, is_program)

    def status(self, name: str) -> JobStatus:
        job = self._jobs.get(name)
        if job is None:
            return JobStatus(JobPhase.UNKNOWN, "not started by this runner")
        code, log = job.run.code, str(job.log)
        if code is None:
            return JobStatus(JobPhase.RUNNING, log=log)
        if code == 0:
            return JobStatus(JobPhase.ENDED, log=log)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return JobStatus(JobPhase.FAILED, f"spark-submit {how}{_last_line(job.log)}", log)

    def stop(self, name: str) -> None:
        """End the job's process and reap it; not an error if the job has ended."""
        job = self._jobs.get(name)
        if job is not None and not job.run.ends_within(0 if job.is_program else END_SECONDS):
            job.run.process.end(STOP_SECONDS)

    def close(self) -> None:
        """Stop all jobs, and end the processes that wait for one."""
        for name in list(self._jobs):
            self.stop(name)
        with self._lock:
            free, self._free = self._free, {}
        for process in free:
            process.end()

    def _take_free(self, start: _Start) -> JobProcess | None:
        """A process that waits for a job and was started in this way."""
        for process, (same, _) in list(self._free.items()):
            if same == start and process.alive:
                del self._free[process]
                return process
        return None

    def _keep(self, process: JobProcess, start: _Start) -> None:
        since = object()
        with self._lock:
            self._free[process] = start, since
        timer = threading.Timer(FREE_SECONDS, self._give_up, (process, since))
        timer.daemon = True
        timer.start()

    def _give_up(self, process: JobProcess, since: object) -> None:
        """End a process that has waited from `since` on."""
        with self._lock:
            if self._free.get(process, (None, None))[1] is not since:
                return
            del self._free[process]
        process.end()

    def _start_of(self, request: JobRequest) -> _Start:
        cores, heap = sizes_here()
        conf = build_conf(
            cores=request.cores or cores,
            memory_bytes=request.memory_bytes or heap,
            short=request.is_short,
            environ=self._environ,
        )
        command = [str(spark_home() / "bin" / "spark-submit")]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        environ = launch_environment(self._environ)
        environ.update(request.environ)
        environ[PARENT] = str(os.getpid())
        package = str(PACKAGE.parent)
        paths = (package, environ.get("PYTHONPATH"))
        environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return _Start((*command, str(self._app(_LOOP))), environ)

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
