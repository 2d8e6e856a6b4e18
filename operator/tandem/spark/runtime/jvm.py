"""A JVM beside this process, for Spark in this process.

As PySpark starts one, but as a process that can be ended at any time, also before it answers, in a
process group of its own within this session, and without a fork of this process, which has threads.
It ends by itself when this process does, however that ends: it reads from a pipe of ours. What it
prints goes into a file, since it prints warnings that no setting disables.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from tandem.errors import JobFailed, OutOfMemory, TandemError
from tandem.jobs.runner import OUT_OF_MEMORY
from tandem.spark.runtime.session import launch_environment, spark_home

if TYPE_CHECKING:
    from pyspark import SparkContext

_END_S: Final = 5.0
"""How long it may take to end before it is killed."""
_LOOK_S: Final = 0.02
_TAIL_BYTES: Final = 16_384
_LIMITED: Final = 'ulimit -d "$0" && exec "$@"'
_ENVIRONMENT = threading.Lock()


class LocalJvm:
    """Starts the process at once, and does not wait for it. Thread-safe.

    Args:
        conf: Spark's settings.
        log: the file for what it prints; None: that is kept until it answers.
        most_bytes: how much data it and its Python workers may each have (RLIMIT_DATA); None for
            what this process may have.
        environ: variables besides those of this process: credentials.
    """

    def __init__(
        self,
        app_name: str,
        conf: Mapping[str, str],
        log: Path | None = None,
        most_bytes: int | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._app_name = app_name
        self._conf = conf
        self._context: SparkContext | None = None
        self._connecting = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        self.log = self._folder / "log" if log is None else log
        settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        command = [str(spark_home() / "bin" / "spark-submit"), *settings, "pyspark-shell"]
        if most_bytes is not None:
            # By a shell: nothing else may be done between a fork of threads and the start.
            command = ["/bin/sh", "-c", _LIMITED, str(most_bytes >> 10), *command]
        variables = {
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._folder / "gateway"),
        }
        with ExitStack() as undone:
            undone.callback(self._remove_folder)
            with self.log.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    env={**launch_environment(), **environ, **variables},
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            undone.pop_all()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def connected(self) -> bool:
        return self._context is not None

    def context(self) -> SparkContext:
        """The context, once there is one. Raises: JobFailed, OutOfMemory."""
        with self._connecting:
            if self._context is None:
                try:
                    self._context = self._connect()
                finally:
                    if self._context is None:
                        self.kill()  # the next caller finds it dead, and does not wait for it
                    self._remove_folder()
            return self._context

    def death(self, within_s: float = 1.0) -> TandemError | None:
        """Why it has ended, within some seconds; None if it has not."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        kind = OutOfMemory if OUT_OF_MEMORY.search(tail_of(self.log)) else JobFailed
        return kind(
            f"Spark {how}",
            found=last_line(self.log) or None,
            remedy=f"Does `java -version` work, and is there enough memory? Its log: {self.log}",
        )

    def kill(self) -> None:
        """End its process group and reap it; not an error if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipe()
        self._remove_folder()  # who waits for its answer may never look again

    def close(self) -> None:
        """Let it end by itself, which takes a second."""
        self._close_pipe()

    def wait_or_kill(self, patience_s: float = _END_S) -> None:
        """Wait for the end that was asked for, and enforce it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()

    def end(self, patience_s: float = _END_S) -> None:
        """End it, and make room for another one in this process."""
        self.close()
        self.wait_or_kill(patience_s)
        if self._context is not None:
            _forget(self._context)

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> SparkContext:
        # Errors are reported, once: PySpark logs them, too.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            # PySpark warns about pandas while it is imported; nothing here uses pandas.
            warnings.simplefilter("ignore", FutureWarning)
            from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        found, pause = self._folder / "gateway", threading.Event()
        while not found.is_file():  # it is there as a whole, or not
            if not self.alive:
                death = self.death()
                assert death is not None
                raise death
            pause.wait(_LOOK_S)
        with found.open("rb") as source:
            port = read_int(source)  # type: ignore[no-untyped-call]
            secret = UTF8Deserializer().loads(source)  # type: ignore[no-untyped-call]
        settings = SparkConf().setAppName(self._app_name).setAll(list(self._conf.items()))
        # The way in which PySpark finds a JVM that it has not started.
        variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        with _ENVIRONMENT:
            before = {name: os.environ.get(name) for name in variables}
            os.environ.update(variables)
            try:
                gateway = launch_gateway()  # type: ignore[no-untyped-call]
            finally:
                for name, value in before.items():
                    del os.environ[name]
                    if value is not None:  # this process is a driver of another JVM
                        os.environ[name] = value
        gateway.proc = self._process  # as long as there is a context, its pipe stays open
        with ExitStack() as undone:
            undone.callback(_forget_gateway)  # or the next context would use this JVM
            context: Any = SparkContext(conf=settings, gateway=gateway)
            undone.pop_all()
        # PySpark takes `PYSPARK_PYTHON`, or `python3`: perhaps one without our packages.
        context.pythonExec = sys.executable
        # Its threads print a traceback when the JVM ends.
        context._accumulatorServer.handle_error = lambda *_: None
        return cast("SparkContext", context)


def _forget(context: Any) -> None:
    """End this process's side of a context whose JVM has ended."""
    from pyspark.sql import SparkSession

    context._jsc = None
    context.stop()
    _forget_gateway()
    sessions: Any = SparkSession
    sessions._instantiatedSession = None


def _forget_gateway() -> None:
    from pyspark import SparkContext

    contexts: Any = SparkContext
    contexts._gateway = contexts._jvm = None


def tail_of(log: Path) -> str:
    """The end of a log."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return source.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(log: Path) -> str:
    """The last output of a job, for a message of one line."""
    lines = [line.strip() for line in tail_of(log).splitlines()]
    output = [line for line in lines if line and " INFO " not in line]
    return output[-1][:300] if output else ""
