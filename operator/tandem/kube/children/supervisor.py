"""The children of one operator: begun when a tenant needs one, ended when idle, and killed when
they do not answer or the pod's memory runs short.

A process can be killed, a thread cannot; and the system bounds a process's memory, which no
arithmetic of ours can. What a child was doing is then lost, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any, Final

import structlog

from tandem.errors import TandemError
from tandem.kube.children import child as child_process
from tandem.kube.children.child import Bounds
from tandem.kube.children.pipe import ChildAnswer, ChildCall, Pipe
from tandem.kube.children.tenants import Tenant, environment
from tandem.kube.metrics.collectors import Metrics
from tandem.spark.runtime.control import alive
from tandem.turns import locked, waiting

_log = structlog.get_logger("tandem.kube.children")
ANSWER_S: Final = 60.0
"""How long a child may take to answer: it waits for nothing meanwhile."""
STOP_S: Final = 60.0
"""How long a job may take to stop: others would be lost with its process."""
STOP_ALONE_S: Final = 5.0
"""The same, if there are no others."""
IDLE_S: Final = 600.0
_LOOK_S: Final = 1.0
_FULL: Final = 0.9
"""At this share of the pod's memory limit the largest child is killed: a pod that exceeds its limit
is killed as a whole."""
_TEMPLATE: Final = "tandem.kube.children.template"
_END_S: Final = 5.0
_UNKNOWN: Final = 255
"""The exit code of a process of which it is not known how, or even whether, it ended: the fork
server, which is its parent, has ended."""
_PAUSES_S: Final = (0.1, 0.5)
"""The pauses between tries to begin a process."""
_MOST_KNOWN: Final = 10_000
_FRAME: Final = 1 << 30
"""Bytes that a child may say at once: the operator holds them in memory. Files of the result of a
job of 256 MiB take less."""


class ChildEnded(Exception):
    """The child has ended before it answered; the message says how."""


class ChildProcess:
    """A child as the operator sees it. Thread-safe; never to be called on the event loop's own
    thread. Every call may raise `ChildEnded`.

    Args:
        changed: called, in a thread of ours, with the name of a job that has something new to say;
            for every unfinished job, if the child ends.
    """

    def __init__(
        self,
        tenant: Tenant,
        process: ForkServerProcess,
        pipe: Pipe,
        changed: Callable[[str], None],
    ) -> None:
        self.tenant = tenant
        self.jobs: set[str] = set()
        """Those that it has, by name."""
        self.retired = False
        """Whether it takes no more jobs."""
        self.idle_since_s = time.monotonic()
        self._process = process
        self._pipe = pipe
        self._changed = changed
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._called: dict[int, str] = {}
        self._answers: dict[int, Future[ChildAnswer]] = {}
        self._end = ""
        self._killed_for = ""
        self._reader = threading.Thread(target=self._read, name="tandem-child", daemon=True)
        self._reader.start()

    @property
    def end(self) -> str:
        """How it ended; "" while it lives."""
        return self._end

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def memory(self) -> int:
        """Bytes that it has for itself: what a kill gives back. 0 if it has ended."""
        return _private_bytes(self.pid)

    def call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> ChildAnswer:
        """Ask it, and wait for the answer. One that does not answer within `timeout_s`, else
        `ANSWER_S`, is killed.

        Raises: ChildEnded, and the TandemError that it answers.
        """
        answer, timeout_s = Future[ChildAnswer](), timeout_s or ANSWER_S
        with self._lock:
            if self._end:
                raise ChildEnded(self._end)
            number = next(self._numbers)
            self._called[number], self._answers[number] = name, answer
        try:
            self._pipe.send_call(ChildCall(number, name, arguments))
        except OSError:
            self.kill("it takes no calls")
        try:
            with waiting():
                found = answer.result(timeout_s)
        except NoAnswer:
            self.kill(f"it did not answer within {timeout_s:g} s")
            raise ChildEnded(self._killed_for) from None
        if found.error is not None:
            raise found.error
        return found

    def close(self) -> None:
        """Let it end: it does nothing for any operation."""
        self._killed_for = self._killed_for or "it was idle"
        try:
            self._pipe.hang_up()
        except OSError:  # no descriptor is left
            self._kill()

    def kill(self, why: str) -> None:
        self._killed_for = self._killed_for or why
        self._kill()

    def _kill(self) -> None:
        self._process.kill()
        if self._lives_unseen:
            with suppress(ProcessLookupError):
                os.kill(self.pid, SIGKILL)

    @property
    def _lives_unseen(self) -> bool:
        """Whether it lives although it counts as ended, since the fork server has ended."""
        return not self._end and self._process.exitcode == _UNKNOWN and alive(self.pid)

    def _read(self) -> None:
        try:
            while True:
                found = self._pipe.receive_answer(self._called)
                if isinstance(found, str):
                    self._changed(found)
                    continue
                with self._lock:
                    answer = self._answers.pop(found.number)
                    del self._called[found.number]
                answer.set_result(found)
        except (EOFError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 - whatever a process that was taken over may say
            self.kill(f"what it said is no answer: {error}")
        self._process.join(_END_S)
        if self._process.is_alive() or self._lives_unseen:
            self._kill()
            self._process.join(_END_S)
        end = self._killed_for or _how(self._process.exitcode)
        with self._lock:
            self._end = end
            left = list(self._answers.values())
            self._answers.clear()
        for answer in left:
            answer.set_exception(ChildEnded(end))
        with suppress(OSError):
            self._pipe.hang_up()  # so that none goes on sending to a process that cannot be killed
        with suppress(OSError):
            self._pipe.close()
        for job in list(self.jobs):
            self._changed(job)


def _how(code: int | None) -> str:
    if code == _UNKNOWN:
        return "its process ended"
    if code is not None and code < 0:
        signals = {number.value: number.name for number in Signals}  # some have no name
        return f"its process was killed by {signals.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}"


def _first_run(operation_id: str) -> str:
    """The operation id without the number of its run."""
    return re.sub(r"r\d+\Z", "", operation_id)


def _private_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(kinds))


@dataclass(frozen=True, slots=True)
class PodMemory:
    """The memory of the container that we run in: version 2 of cgroups, without what the kernel
    gives back when it is needed."""

    root: Path = Path("/sys/fs/cgroup")

    def share(self) -> float:
        """Of its limit, how much is used; 0 without a limit."""
        try:
            limit = (self.root / "memory.max").read_text(encoding="ascii").strip()
            used = int((self.root / "memory.current").read_text(encoding="ascii"))
            stat = (self.root / "memory.stat").read_text(encoding="ascii")
        except (OSError, ValueError):
            return 0.0
        if not limit.isdecimal():
            return 0.0
        cached = sum(
            int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")
        )
        return (used - cached) / int(limit)


@dataclass(frozen=True, slots=True)
class _Known:
    """Where a job is, whose it is, and what to call when it has something new to say."""

    child: ChildProcess
    owner: str
    changed: Callable[[], None]


class ChildProcesses:
    """All children. Thread-safe; never to be called on the event loop's own thread, but for
    `watch` and `close`.

    Args:
        bounds: of each child.
    """

    def __init__(
        self,
        bounds: Bounds,
        metrics: Metrics,
        *,
        pod: PodMemory | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self._bounds = bounds
        self._metrics = metrics
        self._pod = pod or PodMemory()
        self._own = os.environ if own is None else own
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([_TEMPLATE])
        self._children: dict[Tenant, ChildProcess] = {}
        self._leaving: set[ChildProcess] = set()
        """Retired ones that still have jobs."""
        self._jobs: dict[str, _Known] = {}
        self._unsuited: dict[str, None] = {}
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        """Held while a process begins: not by those who only look."""
        self._closed = False

    def living(self) -> list[ChildProcess]:
        with self._lock:
            return [child for child in self._all() if not child.end]

    def suits(self, operation_id: str) -> bool:
        """Whether no child has failed for an operation, or for an earlier run of it."""
        return _first_run(operation_id) not in self._unsuited

    def suits_not(self, operation_id: str, child: ChildProcess | None) -> None:
        """A child has failed for an operation: it gets no other one, nor does the child get more
        jobs."""
        if child is not None:
            self._metrics.small_jobs_lost.count()
        with self._lock:
            self._unsuited[_first_run(operation_id)] = None
            while len(self._unsuited) > _MOST_KNOWN:
                del self._unsuited[next(iter(self._unsuited))]
        if child is not None:
            self._retire(child)

    def begin(
        self, tenant: Tenant, job: str, changed: Callable[[], None], owner: str = ""
    ) -> ChildProcess:
        """The tenant's child, for a job. `changed` is called, in any thread, when the job has
        something new to say; `owner` is for `leave`. Raises: ChildEnded if none can be begun."""
        known = changed, owner
        with locked(self._beginning):
            if (child := self._taken(tenant, job, *known)) is not None:
                return child
            begun = self._begun(tenant)
            with self._lock:
                closed = self._closed
                self._children[tenant] = begun
            if closed:  # which has not seen it
                begun.kill("the operator has ended")
            if self._taken(tenant, job, *known) is None:
                raise ChildEnded(begun.end)
            return begun

    def _taken(
        self, tenant: Tenant, job: str, changed: Callable[[], None], owner: str
    ) -> ChildProcess | None:
        """The tenant's child, which has the job from now on; None if it has none that lives."""
        with self._lock:
            child = self._children.get(tenant)
            if child is None or child.end:
                return None
            child.jobs.add(job)
            self._jobs[job] = _Known(child, owner, changed)
            return child

    def of(self, job: str) -> ChildProcess | None:
        """Where a job is, or was when its child ended; None for one that was never begun, or is
        dropped."""
        known = self._jobs.get(job)
        return None if known is None else known.child

    def drop(self, job: str) -> None:
        """The job is no longer needed."""
        with self._lock:
            known = self._jobs.pop(job, None)
            if known is None:
                return
            child = known.child
            child.jobs.discard(job)
            child.idle_since_s = time.monotonic()
        if child.retired and not child.jobs:
            child.close()

    def of_owner(self, owner: str) -> list[str]:
        """The jobs of an owner that were begun and not dropped."""
        with self._lock:
            return [job for job, known in self._jobs.items() if known.owner == owner]

    def leave(self, owner: str) -> None:
        """Stop and drop the jobs of an owner that has ended without doing so."""
        for job in self.of_owner(owner):
            child = self.of(job)
            if child is not None:
                with suppress(ChildEnded, TandemError):
                    child.call("stop", job)
            self.drop(job)

    async def watch(self) -> None:
        """End idle children, and the largest one when memory runs short, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self, *, later_s: float = 0.0) -> None:
        """What `watch` does once a second. `later_s`: as if it were later."""
        now_s = time.monotonic() + later_s
        with self._lock:
            idle = [
                child
                for child in self._children.values()
                if not child.jobs and now_s - child.idle_since_s >= IDLE_S
            ]
            self._children = {
                tenant: child
                for tenant, child in self._children.items()
                if child not in idle and not child.end
            }
            self._leaving = {child for child in self._leaving if not child.end}
        for child in idle:
            child.close()
        living = self.living()
        if living and self._pod.share() >= _FULL:
            if unused := [child for child in living if not child.jobs]:
                for child in unused:
                    self._retire(child)
                return
            largest = max(living, key=lambda child: child.memory)
            _log.warning("killed a child", namespace=largest.tenant.namespace, why="memory")
            largest.kill("it was the largest process when the pod's memory ran short")

    def prepare(self) -> None:
        """Begin the template, so that the first child need not wait for it."""
        from multiprocessing.forkserver import ensure_running

        ensure_running()

    def close(self) -> None:
        """End all of them: what they do is lost."""
        with self._lock:
            self._closed = True
            every = self._all()
        for child in every:
            child.kill("the operator has ended")

    def _all(self) -> list[ChildProcess]:
        return [*self._children.values(), *self._leaving]

    def _retire(self, child: ChildProcess) -> None:
        with self._lock:
            child.retired = True
            if self._children.get(child.tenant) is child:
                del self._children[child.tenant]
                self._leaving.add(child)
            empty = not child.jobs
        if empty:
            child.close()

    def _begun(self, tenant: Tenant) -> ChildProcess:
        """A new child. A fork server that has ended takes a moment, in which it refuses.
        Raises: ChildEnded."""
        for pause_s in _PAUSES_S:
            with suppress(ChildEnded):
                return self._try_to_begin(tenant)
            with waiting():
                time.sleep(pause_s)
        return self._try_to_begin(tenant)

    def _try_to_begin(self, tenant: Tenant) -> ChildProcess:
        if self._closed:
            raise ChildEnded("the operator ends")
        try:
            ours, theirs = self._context.Pipe()
        except OSError as error:
            raise ChildEnded(f"no process could be begun: {error}") from error
        process = self._context.Process(
            target=child_process.main,
            args=(theirs, self._bounds, environment(tenant, self._own)),
            name=f"tandem-{tenant.namespace}",
            daemon=True,
        )
        try:
            with waiting():
                process.start()
            most_bytes = min(_FRAME, self._bounds.memory or _FRAME)
            pipe = Pipe(ours, most_bytes, ANSWER_S)
            child = ChildProcess(tenant, process, pipe, self._job_changed)
        except (OSError, EOFError, RuntimeError) as error:  # the last: no thread for it
            ours.close()
            raise ChildEnded(f"no process could be begun: {error}") from error
        finally:
            theirs.close()
        self._metrics.child_processes_started.count()
        return child

    def _job_changed(self, job: str) -> None:
        known = self._jobs.get(job)
        if known is not None:
            known.changed()
