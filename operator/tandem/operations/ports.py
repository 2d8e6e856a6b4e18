"""What the engine needs from outside, as ports: tests and the operator supply their own.

The store comes with the table (`tandem.storage.Store`), jobs through
`tandem.jobs.port.Jobs`, locks through `tandem.locks.store.LockStore`.
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
from typing import TYPE_CHECKING, Protocol

from tandem.locks.store import InProcessLocks, LockStore

if TYPE_CHECKING:  # the operator has clocks and processes of here, and no table
    from tandem.jobs.port import Jobs
    from tandem.operations.rounds import SmallRounds


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...

    def sleep(self, ms: int, wake: threading.Event) -> None:
        """Wait, at most until `wake` is set."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process for all time: pids are reused, a pid with a start time is not.
    `started` is opaque text, "" if the system does not report it."""

    host: str
    pid: int
    started: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Processes(Protocol):
    def me(self) -> ProcessId: ...

    def alive(self, process: ProcessId) -> bool:
        """Whether the process is certainly alive: False for processes of other hosts, which cannot
        be checked. (A wrong False costs work; the log's markers keep it from costing rows.)"""
        ...


class Nonces(Protocol):
    def nonce(self) -> str:
        """Unique text, usable in a file name."""
        ...


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """An attempt that a process works on."""

    process: ProcessId
    location: str
    operation_id: str
    attempt: int


class LocalClaims:
    """Which sessions of this process work on which attempts. A claim only shows that its process
    is alive; this shows whether one of its sessions still works on the attempt. Thread-safe.

    Sessions are held weakly: one that is garbage-collected without a `drop` holds nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: weakref.WeakValueDictionary[AttemptKey, object] = (
            weakref.WeakValueDictionary()
        )

    def take(self, key: AttemptKey, holder: object) -> bool:
        """Take the attempt; False if another holder has it."""
        with self._lock:
            return self._holders.setdefault(key, holder) is holder

    def busy(self, key: AttemptKey, holder: object) -> bool:
        """Whether another holder has the attempt."""
        with self._lock:
            return self._holders.get(key, holder) is not holder

    def drop(self, holder: object) -> None:
        """Release all attempts of the holder."""
        with self._lock:
            for key in [k for k, v in self._holders.items() if v is holder]:
                del self._holders[key]


THIS_PROCESS = LocalClaims()
"""One for the whole process, shared by all of its engines."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, ms: int, wake: threading.Event) -> None:
        wake.wait(ms / 1000)


class SystemProcesses:
    """Processes of this host. Start times come from /proc; without it only the pid is used."""

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
            pass  # it is alive, and belongs to another user
        return _started(process.pid) == process.started


class SystemNonces:
    """Random, 64 bits."""

    def nonce(self) -> str:
        return secrets.token_hex(8)


@cache
def _host() -> str:
    # Containers may share host names and pids; boot id and pid namespace distinguish them.
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
    # The command, in parentheses, may contain any character; field 22 is counted from its end.
    return stat.rsplit(")", 1)[1].split()[19]


def arrow_rounds() -> SmallRounds:
    """Small rounds evaluated with Arrow. Few operations have any, so they are imported here."""
    from tandem.operations.small_rounds import ArrowRounds

    return ArrowRounds()


@dataclass(frozen=True)
class Ports:
    """All ports of one engine."""

    jobs: Jobs
    locks: LockStore = field(default_factory=InProcessLocks)
    clock: Clock = field(default_factory=SystemClock)
    processes: Processes = field(default_factory=SystemProcesses)
    nonces: Nonces = field(default_factory=SystemNonces)
    local_claims: LocalClaims = THIS_PROCESS
    small_rounds: Callable[[], SmallRounds] = arrow_rounds
    """Creates the evaluator of the small rounds of one operation."""
    close: Callable[[], None] = lambda: None
    """Ends what the ports hold. Called by the creator of the ports, after the last operation."""
