"""Real operators in processes of their own, killed or stopped at named points:
`python -m support.cluster.operator_process`.

A starter imports the operator once and then forks: each order becomes a process (pid, memory,
connections, leases) in a few milliseconds, and many live at once. What dies is a real process
by a real SIGKILL, before or after an effect of the engine; what is stopped by SIGSTOP renews no
lease. The product has no branch for tests: all of it goes through a
`control_factory` of `run_operator`.

    with starter(folder) as operators:
        killed = operators.start(Order(…, blows=(Blow(Point.PUT_COMMIT),)))
        killed.ended()                       # -9
        operators.start(Order(…)).ready()    # takes over

Orders and answers are JSON, a line each, over the starter's standard input and output.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.controllers_here import control_of
from support.jobs.quick_jobs import QuickJobs
from tandem.errors import OutcomeUnknown
from tandem.kube.dev.controller import DevSettings, run_dev
from tandem.kube.operator import run_operator
from tandem.kube.runtime.context import OperatorSettings
from tandem.locks.etcd.store import EtcdSettings
from tandem.operations.machine.events import Effect, Event
from tandem.operations.registry import import_kinds

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 120.0


@dataclass(frozen=True)
class Blow:
    """What happens where. `at` is a `Point`, or `job:written` and `job:published` of a `dev`;
    `nth` counts from 1, over all operations. SIGKILL and SIGSTOP hit the process; signal 0
    loses the answer of the effect, once."""

    at: str
    after: bool = False
    nth: int = 1
    signal: int = int(signal.SIGKILL)

    def __str__(self) -> str:
        how = signal.Signals(self.signal).name if self.signal else "lost-answer"
        return f"{how}-{'after' if self.after else 'before'}-{self.at}-{self.nth}"


@dataclass(frozen=True)
class Order:
    """What a process is to be: an `operator`, or a `dev` whose jobs need no Spark. `election`
    keeps operators of several tests, or two on purpose, apart. A process of the same `instance`
    is the next one of the same pod, and takes its predecessor for dead at once."""

    kubeconfig: str
    namespaces: tuple[str, ...]
    endpoints: tuple[str, ...] = ()
    prefix: str = "/tandem/v1"
    election: str = "tandem"
    instance: str = "pod-0"
    ttl_s: int = 10
    role: str = "operator"
    blows: tuple[Blow, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


class Child:
    """A child process, seen from the test."""

    def __init__(self, name: str, log: Path, changed: threading.Condition) -> None:
        self.name = name
        self.log = log
        self.pid = 0
        self._changed = changed
        self._received: set[str] = set()
        self._end: int | None = None

    def receive(self, message: dict[str, Any]) -> None:
        with self._changed:
            self.pid = int(message.get("pid", self.pid))
            self._received |= message.keys()
            if "ended" in message:
                self._end = int(message["ended"])
            self._changed.notify_all()

    def started(self) -> Child:
        self._await("pid")
        return self

    def ready(self) -> Child:
        """Once it leads, and watches."""
        self._await("ready")
        return self

    def stopped(self) -> Child:
        """Once a SIGSTOP has hit it."""
        self._await("stopped")
        return self

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """How it ended: minus the signal, or its exit code."""
        self._await("ended", limit_s)
        assert self._end is not None
        return self._end

    @property
    def alive(self) -> bool:
        with self._changed:
            return self._end is None

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self.ended()

    def stop(self) -> None:
        """SIGTERM: as a rollout ends it."""
        self._send(signal.SIGTERM)
        assert self.ended() == 0, self.text()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)
        self.stopped()

    def go_on(self) -> None:
        with self._changed:
            self._received.discard("stopped")
        self._send(signal.SIGCONT)

    def text(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-6000:] if self.log.exists() else ""

    def _send(self, which: int) -> None:
        self._await("pid")
        with suppress(ProcessLookupError):
            os.kill(self.pid, which)

    def _await(self, word: str, limit_s: float = LIMIT_S) -> None:
        with self._changed:
            heard = self._changed.wait_for(
                lambda: word in self._received or self._end is not None, limit_s
            )
            if word in self._received:
                return
        how = f"ended with {self._end}" if heard else "no output"
        raise AssertionError(f"{self.name}: no {word}, {how}\n{self.text()}")


class ProcessStarter:
    """Starts processes; logs lie in `folder`. `tree`: whose operator and whose end of the pipe they
    run."""

    def __init__(self, folder: Path, tree: Path = REPOSITORY) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._children: list[Child] = []
        paths = [str(tree / "operator"), str(tree / "tests")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.cluster.operator_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, name="operators", daemon=True)
        self._listener.start()

    def start(self, order: Order) -> Child:
        """A process; it is not yet ready."""
        number = len(self._children)
        name = f"{order.role}-{number}"
        child = Child(name, self._folder / f"{name}.log", self._changed)
        self._children.append(child)
        line = json.dumps({**dataclasses.asdict(order), "number": number, "log": str(child.log)})
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return child

    def kill_all(self) -> None:
        """No process outlives a test."""
        for child in self._children:
            if child.alive:
                child.kill()

    def close(self) -> None:
        self.kill_all()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._listener.join(LIMIT_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                self._children[message.pop("number")].receive(message)
        for child in self._children:
            child.receive({} if not child.alive else {"ended": -1})


@contextmanager
def starter(folder: Path, tree: Path = REPOSITORY) -> Iterator[ProcessStarter]:
    made = ProcessStarter(folder, tree)
    try:
        yield made
    finally:
        made.close()


# The other end of the pipe ------------------------------------------------------------------


class Striker:
    """Counts how often a place is reached, in any thread, and sends the signal."""

    def __init__(self, blows: tuple[Blow, ...]) -> None:
        self._blows = blows
        self._seen: Counter[tuple[str, bool]] = Counter()
        self._lock = threading.Lock()

    def at(self, place: str, *, after: bool) -> None:
        """Raises: OutcomeUnknown where an answer is to be lost."""
        with self._lock:
            self._seen[place, after] += 1
            nth = self._seen[place, after]
        for blow in self._blows:
            if (blow.at, blow.after, blow.nth) != (place, after, nth):
                continue
            if not blow.signal:
                raise OutcomeUnknown("the answer was lost on its way", resource=place)
            os.kill(os.getpid(), blow.signal)

    def interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        self.at(effect.point, after=False)
        event = call()
        self.at(effect.point, after=True)
        return event


def operator_settings(order: Order) -> OperatorSettings:
    etcd = None
    if order.endpoints:
        etcd = EtcdSettings(order.endpoints, order.prefix, order.ttl_s)
    return OperatorSettings(
        namespaces=order.namespaces,
        kubeconfig=Path(order.kubeconfig),
        etcd=etcd,
        election_id=order.election,
        instance=order.instance,
        **{"poll_ms": 50, "table_poll_s": 1.0, "small_job_bytes": 0, **order.settings},
    )


async def _live(order: Order, tell: Callable[..., None]) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    striker = Striker(order.blows)

    async def say_ready() -> None:
        await ready.wait()
        tell(ready=1)

    saying = asyncio.create_task(say_ready())
    try:
        if order.role == "operator":
            # Without blows the controllers are in child processes, which none could strike.
            control = control_of(striker.interceptor) if order.blows else None
            await run_operator(
                operator_settings(order), control_factory=control, stop=stop, working=ready
            )
        else:
            jobs = QuickJobs(hook=lambda where: striker.at(f"job:{where}", after=False))
            settings = DevSettings(
                namespaces=order.namespaces, kubeconfig=Path(order.kubeconfig), **order.settings
            )
            await run_dev(settings, runner=jobs, stop=stop, ready=ready)
    finally:
        saying.cancel()


def _child(order: Order, log: str, tell: Callable[..., None]) -> int:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.enable()
    form = "%(asctime)s %(threadName)s %(name)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr, force=True)
    try:
        asyncio.run(_live(order, tell))
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _parse(line: bytes) -> tuple[Order, int, str]:
    read = json.loads(line)
    number, log = read.pop("number"), read.pop("log")
    blows = tuple(Blow(**blow) for blow in read.pop("blows"))
    for name in ("namespaces", "endpoints"):
        read[name] = tuple(read[name])
    return Order(**read, blows=blows), number, log


def main() -> None:
    """Fork a process for every order, and report what becomes of each, until there are no more
    orders. One thread: nothing is half done in it when it forks."""
    import_kinds()
    answers = os.dup(1)
    children: dict[int, int] = {}

    def teller(number: int) -> Callable[..., None]:
        def tell(**what: int) -> None:
            # One short write: lines of several processes do not mix.
            os.write(answers, (json.dumps({"number": number, **what}) + "\n").encode())

        return tell

    def reap() -> None:
        while children:
            pid, how = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            tell = teller(children[pid])
            if os.WIFSTOPPED(how):
                tell(stopped=os.WSTOPSIG(how))
                continue
            del children[pid]
            tell(ended=-os.WTERMSIG(how) if os.WIFSIGNALED(how) else os.WEXITSTATUS(how))

    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    rest = b""
    while True:
        for key, _ in waiting.select():
            if key.fd == woken:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                reap()
                continue
            data = os.read(0, 65536)
            if not data:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                order, number, log = _parse(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os._exit(_child(order, log, teller(number)))
                children[pid] = number
                teller(number)(pid=pid)


if __name__ == "__main__":
    main()
