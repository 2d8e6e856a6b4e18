"""The child: a process that does the small jobs of one tenant, until the operator closes the pipe.

It is forked from a template that has imported everything and begun nothing. Whatever it reads can
end or harm it, and nothing else.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from tandem.errors import JobFailed, OutOfMemory, TandemError
from tandem.jobs.formats import JobSpec, RoundRequest
from tandem.jobs.port import JobKey, RoundState
from tandem.jobs.results import JobResult
from tandem.jobs.runner import JobRequest
from tandem.kube.children.pipe import ChildAnswer, ChildCall, InvalidCall, Pipe
from tandem.spark.launch.in_process import InProcessJobs
from tandem.spark.runtime.control import open_spec

LEAST_MEMORY: Final = 256 << 20
"""The least bound under which a child does anything: it begins with half of it."""
_CALLS_AT_ONCE: Final = 8
_JOBS_AT_ONCE: Final = 2
"""Their rows share the bound of memory."""
_STACK: Final = 2 << 20
"""Of a thread. The usual eight megabytes count against the bound also where they are not used: a
dozen threads would take half of the least one."""
_BUG: Final = "a bug: please report it"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`memory`: how many bytes the process may have, None for any number; `request_s`: how long a
    request of a store may take."""

    memory: int | None = None
    request_s: float | None = None


def main(connection: Connection, bounds: Bounds, environ: Mapping[str, str]) -> None:
    """Do what the operator says, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the operator ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if bounds.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory, resource.RLIM_INFINITY))
    os.environ.clear()
    os.environ.update(environ)
    threading.stack_size(_STACK)
    _Child(Pipe(connection), bounds).serve()
    # Threads of jobs may wait for a store that does not answer.
    os._exit(0)


class _Child:
    def __init__(self, pipe: Pipe, bounds: Bounds) -> None:
        self._pipe = pipe
        self._bounds = bounds
        self._jobs = InProcessJobs(None, self._changed, _JOBS_AT_ONCE)
        self._keys: dict[str, JobKey] = {}
        self._lock = threading.Lock()
        self._does: Mapping[str, Callable[..., Any]] = {
            "start": self._start,
            "poll": self._poll,
            "result": self._result,
            "file": self._file,
            "ask": self._ask,
            "finish": self._finish,
            "stop": self._stop,
        }

    def serve(self) -> None:
        """Answer calls until the operator closes the pipe, or is gone."""
        calls = SimpleQueue[ChildCall]()
        # Begun before anything takes memory: a thread that cannot begin would end all jobs.
        for number in range(_CALLS_AT_ONCE):
            name = f"call-{number}"
            threading.Thread(target=self._serve, args=(calls,), name=name, daemon=True).start()
        while True:
            try:
                call = self._pipe.receive_call()
            except InvalidCall as error:
                answer = ChildAnswer(error.number, error=JobFailed(_BUG, found=str(error)))
                self._send(partial(self._pipe.send_answer, answer, ""))
            except (EOFError, OSError):
                return
            else:
                calls.put(call)

    def _serve(self, calls: SimpleQueue[ChildCall]) -> None:
        while True:
            self._answer(calls.get())

    def _answer(self, call: ChildCall) -> None:
        try:
            answer = self._found(call)
            self._send(lambda: self._pipe.send_answer(answer, call.name))
        except MemoryError:
            # The operator would wait for an answer, or a job for what it was asked.
            os._exit(1)

    def _found(self, call: ChildCall) -> ChildAnswer:
        try:
            found = self._does[call.name](*call.arguments)
        except TandemError as error:
            return ChildAnswer(call.number, error=error)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of a process: reported, not lost
            text = f"{type(error).__name__}: {error}"
            return ChildAnswer(call.number, error=JobFailed(_BUG, found=text))
        content = found if isinstance(found, bytes) else None
        return ChildAnswer(
            call.number, found is not None if call.name == "file" else found, content
        )

    def _changed(self, job: str) -> None:
        self._send(lambda: self._pipe.send_change(job))

    @staticmethod
    def _send(send: Callable[[], None]) -> None:
        try:
            send()
        except OSError:  # the operator has ended
            os._exit(0)

    # Calls

    def _start(self, request: JobRequest, spec: JobSpec) -> None:
        opened = open_spec(
            spec,
            request.location,
            request.spec_path,
            dict(request.storage_options),
            request.allowed_locations,
            ceiling_s=self._bounds.request_s,
        )
        key = JobKey(request.name, request.operation_id, request.attempt, opened.store)
        with self._lock:
            self._keys[request.name] = key
        try:
            self._jobs.start(key, request, spec)
        except RuntimeError as error:
            with self._lock:
                del self._keys[request.name]
            raise OutOfMemory("there is no thread for the job", found=str(error)) from error

    def _poll(self, name: str, round_: int) -> RoundState:
        return self._jobs.poll(self._keys[name], round_)

    def _result(self, name: str, round_: int) -> JobResult | None:
        return self._jobs.result(self._keys[name], round_)

    def _file(self, path: str) -> bytes | None:
        return self._jobs.held(path)

    def _ask(self, name: str, request: RoundRequest) -> RoundRequest:
        return self._jobs.ask(self._keys[name], request)

    def _finish(self, name: str) -> None:
        self._jobs.finish(self._keys[name])

    def _stop(self, name: str) -> None:
        with self._lock:
            key = self._keys.pop(name, None)
        if key is not None:
            self._jobs.stop(key)
