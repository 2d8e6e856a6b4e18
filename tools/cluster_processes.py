"""Processes of this machine that die with their parent, however it ends; and etcd as one or
three such processes.

Needs only Python's standard library and writes only below the given folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 90.0
POLL_S = 0.02

# Asks the kernel to kill this process when its parent ends; exits if the parent has ended already.
_TIED = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
# To the kernel, a parent is a thread. This thread lives as long as the process; with a thread of a
# test or a server, its children would die at the thread's end.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


_GO = {"GOGC": "400"}
"""Go collects garbage when the memory in use has grown five times, not twice: an API server starts
with a third less CPU, and needs half of it while idle."""


class PartFailed(RuntimeError):
    """A part did not start, or ended unexpectedly; has the end of its log."""


@cache
def built(*parts: str) -> Path:
    """The cache with these parts (see `tools/build-kubernetes.sh`); builds missing ones."""
    script = str(REPOSITORY / "tools" / "build-kubernetes.sh")
    done = subprocess.run([script, *parts], stdout=subprocess.PIPE, check=True, text=True)
    return Path(done.stdout.strip())


def free_ports(count: int) -> list[int]:
    """Free loopback ports, below the range that systems use for outgoing
    connections: a part that is restarted must find its port free."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder. If the block fails it is kept for its logs, and the error names it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except BaseException as error:
        error.add_note(f"Logs are in {folder}")
        raise
    shutil.rmtree(folder)


class Part:
    """One process with its log. `start` again is a restart: same ports, same data."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PartFailed(f"{self.name} is not running")
        return self._process.pid

    def launch(self) -> None:
        """Start it without waiting until it is ready."""
        if self._process is not None and self._process.poll() is None:
            raise PartFailed(f"{self.name} is running already")
        with self.log.open("ab") as output:
            self._process = _spawner.submit(
                subprocess.Popen,
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *self._command],
                env={**_GO, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).result()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self, within_s: float = READY_WITHIN_S) -> None:
        pause = threading.Event()
        for _ in range(int(within_s / POLL_S)):
            self.check()
            if self._is_ready():
                return
            pause.wait(POLL_S)
        raise PartFailed(f"{self.name} is not ready after {within_s} s: {self.tail()}")

    def check(self) -> None:
        """Raises: PartFailed if it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise PartFailed(f"{self.name} has ended: {self.tail()}")

    def kill(self) -> None:
        """SIGKILL: no time to flush data or to close connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self, within_s: float = 15.0) -> None:
        """SIGTERM, and SIGKILL if it has not ended in that time."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self) -> None:
        """SIGSTOP: it does not respond, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs; start it with the same ports and data, and wait until ready."""
        self.kill()
        self.start()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


class EtcdMember(Part):
    """One member of an etcd cluster."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        """Address for clients: host:port, without TLS."""
        self.data = folder / f"{name}.data"
        super().__init__(name, [*command, "--data-dir", str(self.data)], folder, self._healthy)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False

    def wipe(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


@dataclass
class Etcd:
    """Members that form one cluster. They do not sync to the disk: data survives the kill of a
    process, but not of the machine."""

    members: list[EtcdMember]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_ready()

    def kill(self) -> None:
        for member in self.members:
            member.kill()


def etcd(
    folder: Path, members: int = 1, arguments: Sequence[str] = (), program: Path | None = None
) -> Etcd:
    """An etcd cluster that is not started yet; `arguments` go to every member. `program`: another
    build of etcd."""
    program = program or built("etcd") / "bin" / "etcd"
    ports = free_ports(2 * members)
    clients, peers = ports[:members], ports[members:]
    names = [f"etcd-{number}" if members > 1 else "etcd" for number in range(members)]
    initial_cluster = ",".join(
        f"{name}=http://127.0.0.1:{peer}" for name, peer in zip(names, peers, strict=True)
    )
    found = []
    for name, client, peer in zip(names, clients, peers, strict=True):
        command = [
            str(program),
            f"--name={name}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={initial_cluster}",
            f"--initial-cluster-token={ports[0]}",
            "--log-level=warn",
            "--unsafe-no-fsync",
            *arguments,
        ]
        found.append(EtcdMember(name, command, folder, client))
    return Etcd(found)
