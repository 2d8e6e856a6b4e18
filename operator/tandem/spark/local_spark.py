"""Spark on this machine. In this process: one JVM, started for the first job that needs it, for all
jobs.

After a failure that may have harmed it, and where a long job needs a compiler that a short one has
done without, the JVM is replaced as soon as no job uses it; a dead one at once. With bounds, it is
one for small jobs of a process whose memory is bounded: it does one at a time, and ends when idle.

For `tandem dev`, jobs are local `spark-submit` processes, a process each, where a cluster's nodes
would run them. No job outlives its engine: the application watches its parent and ends with it
(`tandem.spark.runtime.control`), so that after a crash no process of an old attempt runs for long.
A restarted engine does not know the jobs of its predecessor: `status` returns UNKNOWN, and the
engine looks for the result or starts a new attempt.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tandem.errors import JobFailed, Reason, SparkMissing, TandemError
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime import session
from tandem.spark.runtime.control import translate
from tandem.spark.runtime.jvm import LocalJvm, last_line
from tandem.spark.runtime.session import (
    PACKAGE,
    PARENT,
    build_conf,
    cache_dir,
    launch_environment,
    sizes_here,
    spark_home,
)

if TYPE_CHECKING:
    from pyspark import SparkContext


HARMFUL: Final = frozenset({Reason.OUT_OF_MEMORY, Reason.JOB_FAILED})
"""Failures that say nothing about the job alone: the JVM may be harmed."""
_ANSWER_S: Final = 5.0
"""How long a JVM may take to answer."""
_PATIENCE_S: Final = 60.0
"""How long a job waits for those that use a harmed JVM, or the only place of one: they may wait for
its locks."""
_CORES: Final = 1
"""For small jobs: as many as an application without executors has."""
_BESIDE_HEAP: Final = 512 << 20
"""Bytes of data that a JVM has beside its heap: classes, code, stacks, buffers."""


class SparkBusy(Exception):
    """Other jobs have had Spark for long."""


@dataclass(frozen=True, slots=True)
class JvmBounds:
    """Of a JVM for small jobs.

    Args:
        heap: its bytes.
        folder: for temporary files. What a JVM that was killed has left is removed before the next
            one is started.
        idle_s: so long it stays without a job.
    """

    heap: int
    folder: Path
    idle_s: float = 60.0

    @property
    def data(self) -> int:
        """Bytes of data that the JVM may have, and each of its Python workers."""
        return self.heap + _BESIDE_HEAP

    def conf(self) -> dict[str, str]:
        """Settings of Spark."""
        conf = session.build_conf(cores=_CORES, memory_bytes=self.heap)
        java = "spark.driver.extraJavaOptions"
        ends = "-XX:+ExitOnOutOfMemoryError"  # else it would go on without some of its threads
        conf[java] += f" {ends} -XX:-UsePerfData -Djava.io.tmpdir={self.folder}"
        return conf | {"spark.local.dir": str(self.folder)}


class Spark(Protocol):
    """What jobs in this process need of Spark. Thread-safe."""

    def require(self) -> None:
        """Raises: SparkMissing if Spark cannot be started here."""
        ...

    def job(self, request: JobRequest) -> AbstractContextManager[SparkContext]:
        """A block in which a job has Spark. Raises: SparkMissing, JobFailed, OutOfMemory; SparkBusy
        where jobs wait for each other."""
        ...

    def cancel(self, name: str) -> None:
        """End what Spark does for a job, and will be asked for."""
        ...

    def log(self) -> str:
        """Where the output is; "" if nothing was started."""
        ...


@dataclass
class _Shared:
    """A JVM, whether it has the first compiler alone, the credentials that it was started with
    besides those of this process, and how many jobs use it."""

    jvm: LocalJvm
    short: bool
    environ: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    jobs: int = 0
    harmed: bool = False


class LocalSpark:
    """A `Spark`.

    Args:
        logs: the folder of the logs, which are named after the jobs; None for the cache.
        bounds: of a JVM for small jobs; None for one that has a share of this machine.
    """

    def __init__(self, logs: Path | None = None, bounds: JvmBounds | None = None) -> None:
        self._logs = logs or session.cache_dir() / "logs"
        self._bounds = bounds
        self._idle: threading.Timer | None = None
        self._shared: _Shared | None = None
        self._cancelled: set[str] = set()
        self._closed = False
        self._changed = threading.Condition()

    def require(self) -> None:
        session.find_java()
        if self._shared is None:
            _require_none_else()

    @contextmanager
    def job(self, request: JobRequest) -> Iterator[SparkContext]:
        shared = self._entered(request)
        try:
            context = shared.jvm.context()
            # By this name, `cancel` finds what is done for the job.
            context.setJobGroup(request.name, request.name, interruptOnCancel=True)
            yield context
        except Exception as error:
            if _is_of_connection(error) and (death := shared.jvm.death()) is not None:
                raise death from error
            shared.harmed |= translate(error).reason in HARMFUL
            raise
        finally:
            with self._changed:
                shared.jobs -= 1
                self._changed.notify_all()
                if self._bounds is not None and not shared.jobs:
                    self._idle = threading.Timer(self._bounds.idle_s, self._end_idle, (shared,))
                    self._idle.daemon = True
                    self._idle.start()

    def cancel(self, name: str) -> None:
        with self._changed:
            self._cancelled.add(name)  # it may wait for a JVM, or be about to ask for one
            self._changed.notify_all()
            shared = self._shared
        if shared is None or not self._answers_to_one(shared):
            return
        # A JVM that hangs does not answer.
        asked = threading.Thread(target=_cancel, args=(shared.jvm, name), daemon=True)
        asked.start()
        asked.join(_ANSWER_S)
        with self._changed:  # another job may have come meanwhile
            if asked.is_alive() and self._answers_to_one(shared):
                shared.jvm.kill()

    @staticmethod
    def _answers_to_one(shared: _Shared) -> bool:
        """Whether it should answer by now, or only one job waits for its start."""
        return shared.jvm.connected or shared.jobs == 1

    def log(self) -> str:
        shared = self._shared
        return "" if shared is None else str(shared.jvm.log)

    def close(self) -> None:
        """End Spark. If it still does something, wait for its end, so that nothing is written, nor
        left in temporary folders, after this process. No job starts it again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            shared = self._shared
        if shared is not None:
            shared.jvm.close()
            if shared.jobs:
                shared.jvm.wait_or_kill()

    def replace(self) -> None:
        """Let later jobs have another JVM, since the environment has changed: as soon as no job
        uses this one."""
        with self._changed:
            if self._shared is not None:
                self._shared.harmed = True

    def _end_idle(self, shared: _Shared) -> None:
        with self._changed:
            if (
                self._shared is shared
                and not shared.jobs
                and self._idle is threading.current_thread()
            ):
                shared.jvm.end()
                self._shared = None

    def _entered(self, request: JobRequest) -> _Shared:
        until_s = time.monotonic() + _PATIENCE_S
        with self._changed:
            while True:
                self._require_wanted(request.name)
                if (shared := self._shared) is None:
                    break
                fits = self._bounds is not None or request.is_short or not shared.short
                # With other credentials, a job cannot read its table.
                other = shared.environ != request.environ
                fits &= not other
                left_s = until_s - time.monotonic()
                if not shared.jvm.alive or not (shared.jobs or (fits and not shared.harmed)):
                    # Who still uses a dead one may only wait for a round, perhaps for our locks.
                    shared.jvm.end()
                    self._shared = None
                elif left_s > 0 and (shared.harmed or other or self._is_full(shared)):
                    self._changed.wait(left_s)
                elif other or self._is_full(shared):
                    raise SparkBusy(f"other jobs have had it for {_PATIENCE_S:g} s")
                else:
                    break
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            if shared is None:
                shared = self._shared = self._started(request)
            shared.jobs += 1
            return shared

    def _is_full(self, shared: _Shared) -> bool:
        """Small jobs share a heap that is enough for one."""
        return self._bounds is not None and shared.jobs > 0

    def _require_wanted(self, name: str) -> None:
        if self._closed or name in self._cancelled:
            raise JobFailed("the job was stopped before it had Spark", resource=name)

    def _started(self, request: JobRequest) -> _Shared:
        _require_none_else()
        self._logs.mkdir(parents=True, exist_ok=True)
        if (bounds := self._bounds) is not None:
            shutil.rmtree(bounds.folder, ignore_errors=True)
            bounds.folder.mkdir(exist_ok=True)
            log = self._logs / "spark.log"
            environ = dict(request.environ)
            jvm = LocalJvm("tandem", bounds.conf(), log, bounds.data, environ=environ)
            return _Shared(jvm, True, request.environ)
        log = self._logs / f"{request.name}.log"
        cores, heap = session.sizes_here()
        conf = session.build_conf(cores=cores, memory_bytes=heap, short=request.is_short)
        # A large job leaves room for those beside it.
        conf["spark.scheduler.mode"] = "FAIR"
        jvm = LocalJvm("tandem", conf, log, environ=dict(request.environ))
        return _Shared(jvm, request.is_short, request.environ)


def _require_none_else() -> None:
    """Spark allows one context in a process. Raises: SparkMissing."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._active_spark_context is not None:
        raise SparkMissing(
            "Spark cannot start: this process has a SparkContext already",
            found=str(pyspark.SparkContext._active_spark_context.appName),
            expected="none",
            remedy="Stop it, or run this in a process of its own",
        )


def _cancel(jvm: LocalJvm, name: str) -> None:
    from py4j.protocol import Py4JError

    with suppress(TandemError, Py4JError, OSError):  # it has ended, and its jobs with it
        session.cancel(jvm.context(), name)


def _is_of_connection(error: Exception) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    # What Java raises comes from a JVM that lives.
    of_connection = isinstance(error, (Py4JError, OSError, EOFError))
    return of_connection and not isinstance(error, Py4JJavaError)


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
