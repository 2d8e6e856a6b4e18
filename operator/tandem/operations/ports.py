"""What the engine needs from outside, as ports: tests and the operator put in their own.

The store comes with the table (`tandem.storage.Store`), jobs through
`tandem.jobs.runner.JobRunner`, locks through `tandem.locks.port.LockStore`.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from tandem.jobs.runner import JobRunner
from tandem.locks.memory import InProcessLocks
from tandem.locks.port import LockStore
from tandem.operations.rounds.arrow import ArrowRounds
from tandem.operations.rounds.port import SmallRounds


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def sleep(self, ms: int, wake: threading.Event) -> None:
        """Wait, at most until `wake` is set."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for ever: pids are used again, pid with start time is not. `started` is
    opaque text, "" where the system does not tell."""

    host: str
    pid: int
    started: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Processes(Protocol):
    def me(self) -> ProcessId: ...

    def alive(self, process: ProcessId) -> bool:
        """Whether it certainly lives: False for processes of other hosts, which nobody can
        know of. (Wrongly False costs work; the log's stops keep it from costing rows.)"""
        ...


class Nonces(Protocol):
    def nonce(self) -> str:
        """Text that nobody else has, fit for a file name."""
        ...


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """An attempt in the hands of a process."""

    process: ProcessId
    location: str
    operation_id: str
    attempt: int


class LocalClaims:
    """Who of this process is at work on which attempts. A claim's process lives as long as any
    of its threads; whether the one that claimed still cares, only this tells. Thread-safe.

    Held weakly: whoever is forgotten without a word holds nothing any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: weakref.WeakValueDictionary[AttemptKey, object] = (
            weakref.WeakValueDictionary()
        )

    def take(self, key: AttemptKey, holder: object) -> bool:
        """Whether it is in the holder's hands now: nobody else's had it."""
        with self._lock:
            return self._holders.setdefault(key, holder) is holder

    def busy(self, key: AttemptKey, holder: object) -> bool:
        """Whether somebody else has it."""
        with self._lock:
            return self._holders.get(key, holder) is not holder

    def drop(self, holder: object) -> None:
        """Let go of everything."""
        with self._lock:
            for key in [k for k, v in self._holders.items() if v is holder]:
                del self._holders[key]


THIS_PROCESS = LocalClaims()
"""What is true of a process is one for all its engines."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, ms: int, wake: threading.Event) -> None:
        wake.wait(ms / 1000)


class SystemProcesses:
    """Processes of this host. Start times come from /proc; elsewhere the pid has to do."""

    def me(self) -> ProcessId:
        return ProcessId(_host(), os.getpid(), _started(os.getpid()))

    def alive(self, process: ProcessId) -> bool:
        if process.host != _host():
            return False
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it lives, and belongs to somebody else
        return _started(process.pid) == process.started


class SystemNonces:
    """Random, 64 bits."""

    def nonce(self) -> str:
        return secrets.token_hex(8)


@cache
def _host() -> str:
    # Containers share host names and pid numbers; the boot and pid namespace tell them apart.
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        source = Path(path)
        if source.is_symlink():
            parts.append(os.readlink(source))
        elif source.exists():
            parts.append(source.read_text().strip())
    return "/".join(parts)


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command, in brackets, may hold anything; field 22 counts from before it.
    return stat.rsplit(")", 1)[1].split()[19]


@dataclass(frozen=True)
class Ports:
    """Everything from outside that one engine uses."""

    jobs: JobRunner
    locks: LockStore = field(default_factory=InProcessLocks)
    clock: Clock = field(default_factory=SystemClock)
    processes: Processes = field(default_factory=SystemProcesses)
    nonces: Nonces = field(default_factory=SystemNonces)
    local_claims: LocalClaims = THIS_PROCESS
    small_rounds: Callable[[], SmallRounds] = ArrowRounds
    """Makes what evaluates the small rounds of one operation."""
