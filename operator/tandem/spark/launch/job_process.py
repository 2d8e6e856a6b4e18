"""A `spark-submit` process that does jobs one after the other, and so starts Spark once.

The process connects to a socket of ours, reads a job as a line, and answers with its exit code
(`tandem.spark.runtime.job_loop`). It is a separate process group, so that a terminal's interrupt
reaches only the engine, and ending it kills the JVM and its Python workers together. Does not
decide which jobs may follow each other.
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
