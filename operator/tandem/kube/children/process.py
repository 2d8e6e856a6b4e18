"""One child as the operator sees it: what it is called for, how it is killed, and how it ended.

A child leads a session. What it has started belongs to that, counts as its memory, and ends with
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Final

from tandem.kube.children.link import LinkEnded
from tandem.kube.children.services import ChildServices
from tandem.kube.children.start import RunEnd
from tandem.kube.client.resources import Body, uid_of
from tandem.kube.runtime.tenants import TenantKey
from tandem.kube.runtime.threads import AtWork
from tandem.spark.runtime.session import alive

ANSWER_S: Final = 60.0
"""How long a child's loop may take to answer: it computes nothing itself."""
_END_S: Final = 5.0
_UNKNOWN: Final = 255
"""The exit code of a process of which it is not known how, or even whether, it ended: the fork
server, which is its parent, has ended."""
_PROC: Final = Path("/proc")
_LOOK_S: Final = 0.05
_TRIES: Final = 20


class ChildEnded(Exception):
    """The child has ended; the message says how."""


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


class ChildProcess:
    """A child as the operator sees it. To be used on the operator's loop."""

    def __init__(
        self,
        key: TenantKey,
        process: ForkServerProcess,
        services: ChildServices,
        at_work: AtWork,
        folder: Path | None = None,
    ) -> None:
        self.key = key
        self.folder = folder
        self.at_work = at_work
        self.services = services
        self.runs: set[str] = set()
        """The uids of the resources that it controls or cleans up after."""
        self.begun_s = time.monotonic()
        self.idle_since_s = time.monotonic()
        self.end = ""
        """How it ended; "" while it lives."""
        self.released = asyncio.Event()
        """Set when it has ended and its claims are given up: only then may what it controlled go on
        in another one."""
        self.killed_for_pod = False
        """Whether it was killed since the pod's memory ran short: others may be to blame for it."""
        self.pid = process.pid or 0
        self._process = process
        self._killed_for = ""

    @property
    def small_jobs(self) -> int:
        return len(self.services.at_work)

    @property
    def memory(self) -> int:
        """Bytes that it and what it has started have for themselves: what a kill gives back. 0 if
        it has ended."""
        return memory_of_session(self.pid)

    async def run(self, kind: str, uid: str, *, on_spark: bool) -> RunEnd:
        """Have it control a resource: how that has ended. Raises: ChildEnded once another child may
        control it; TandemError or ValueError for an answer that is none."""
        self.runs.add(uid)
        try:
            return RunEnd(await self.services.link.call("run", kind, uid, on_spark))
        except LinkEnded:
            await self.released.wait()
            raise ChildEnded(self.end) from None
        except asyncio.CancelledError:
            self.services.link.notify("leave", uid)
            raise
        finally:
            self.services.forget(uid)
            self._leave(uid)

    async def clean_up(self, body: Body) -> None:
        """Have it cancel what a resource left. Raises: ChildEnded once another child may do it."""
        uid = uid_of(body)
        self.runs.add(uid)
        try:
            await self.services.link.call("clean_up", body)
        except LinkEnded:
            await self.released.wait()
            raise ChildEnded(self.end) from None
        finally:
            self._leave(uid)

    def _leave(self, uid: str) -> None:
        self.runs.discard(uid)
        self.idle_since_s = time.monotonic()

    def kill(self, why: str) -> None:
        """No effect after its end. `why`: how it has ended then."""
        if self.end:
            return
        self._killed_for = self._killed_for or why
        self._process.kill()
        kill_session(self.pid)

    def close(self, why: str) -> None:
        """Let it end: it controls nothing."""
        self._killed_for = self._killed_for or why
        self.services.link.close()

    async def serve(self) -> None:
        """Answer it until it has ended."""
        if problem := await self.services.link.serve():
            self.kill(problem)
        await asyncio.to_thread(self._reap)
        self.end = self._killed_for or _how(self._process.exitcode)
        with contextlib.suppress(ValueError):  # it still runs
            # Else its descriptors would stay until garbage is collected.
            self._process.close()
        self.services.close()

    async def ping(self) -> None:
        """Kill it if it does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.services.link.call("ping")
        except TimeoutError:
            self.kill(f"it did not answer within {ANSWER_S:g} s")
        except LinkEnded:
            pass  # `serve` sees to its end

    def _reap(self) -> None:
        self._process.join(_END_S)
        if self._process.is_alive() or self._lives_unseen:
            self.kill("it did not end")
            self._process.join(_END_S)
        # A JVM ends by itself, and removes its files.
        end_session(self.pid, _END_S)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _lives_unseen(self) -> bool:
        """Whether it lives although it counts as ended, since the fork server has ended."""
        return not self.end and self._process.exitcode == _UNKNOWN and alive(self.pid)


def _how(code: int | None) -> str:
    if code is None or code == _UNKNOWN:
        return "its process ended"
    if code < 0:
        signals = {number.value: number.name for number in Signals}  # some have no name
        return f"its process was killed by {signals.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}"


# Sessions, by their leaders


def session_processes(leader: int) -> Iterator[int]:
    """The living processes of a session, also without its leader."""
    for folder in _PROC.glob("[0-9]*") if leader else ():
        with contextlib.suppress(OSError):  # it has ended
            # After the name, in which anything may be: state, parent, group, session.
            state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state not in ("Z", "X"):
                yield int(folder.name)


def memory_of_session(leader: int) -> int:
    """Bytes that a session has for itself: what a kill gives back. 0 if it has ended."""
    return sum(map(_memory_of, session_processes(leader)))


def kill_session(leader: int) -> bool:
    """Kill all of a session. Whether there was anything to kill."""
    found = list(session_processes(leader))
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)
    return bool(found)


def end_session(leader: int, patience_s: float) -> None:
    """Wait until a session whose leader has ended has ended, too; then kill what is left of it,
    with what that may have started meanwhile."""
    until_s, pause = time.monotonic() + patience_s, threading.Event()
    while any(session_processes(leader)) and time.monotonic() < until_s:
        pause.wait(_LOOK_S)
    for _ in range(_TRIES):
        if not kill_session(leader):
            break
        pause.wait(_LOOK_S)


def _memory_of(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(kinds))
