"""Processes that run one operation and are killed on the way: `python -m support.crash.processes`.

A starter imports the engine once and then forks: each order on its standard input becomes a
process of its own (pid, memory, open files), so that a crash costs a tenth of a second. What
dies is a real process, by a real SIGKILL (or is stopped by a real SIGSTOP), at a named point of
the engine or at a change of the file system. Only the job is not Spark's (`quick_jobs`).

Orders and answers are JSON, a line each; `ProcessStarter` is the test's end of the pipe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tandem.operations.execute as driver
from support.foreign import writer as foreign_writer
from support.jobs.quick_jobs import QuickJobs
from tandem import spec
from tandem.delta.datafiles.edited_files import EditedFile
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import OutcomeUnknown
from tandem.locks.rules import WHOLE_TABLE, LockRequest, Mode
from tandem.locks.store import InProcessLocks
from tandem.operations.clean import clean
from tandem.operations.kinds import rewrite
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.registry import import_kinds, table_of
from tandem.operations.rounds import NoSmallRounds
from tandem.operations.session import carry_out
from tandem.operations.session.job_control import FileJobs
from tandem.planning.cleaning import CleaningRules
from tandem.spark.jobs.edits import EditMaker, WantedEdit
from tandem.spec.resources import Operation
from tandem.storage import open_store

REPOSITORY = Path(__file__).resolve().parents[3]
LIMIT_S = 120.0
OTHER = "another-owner"
CLEANING = "Cleaning"
"""In place of a kind: a cleaning, for which everything is old."""


@dataclass(frozen=True)
class Strike:
    """Where the process is struck. `at` is a `Point`, `job:written`, `job:published`, `edit` (one
    of two that are made at a time), or `disk` (a link, rename or unlink below the table); `nth`
    counts from 1; `signal` is SIGKILL or SIGSTOP."""

    at: str
    after: bool = False
    nth: int = 1
    signal: int = int(signal.SIGKILL)

    def __str__(self) -> str:
        name = signal.Signals(self.signal).name
        return f"{name}-{'after' if self.after else 'before'}-{self.at}-{self.nth}"


@dataclass(frozen=True)
class Order:
    """What a process is to do. `answer` is the file for its status; `meanwhile` what
    deltalake commits just before the first reconciliation; `blocked` makes the locks be held
    by another owner at first; `lost_answers` are points of which the first answer is lost;
    `suspended`: the resource is, so that the process stops what an earlier one has begun;
    `edited_by_job`: its job makes the edits, as if all files were large."""

    location: str
    resource: dict[str, Any]
    answer: str
    strike: Strike | None = None
    meanwhile: str = ""
    blocked: bool = False
    lost_answers: tuple[str, ...] = ()
    suspended: bool = False
    edited_by_job: bool = False


@dataclass(frozen=True)
class End:
    """How a process ended: by a signal, or with a status."""

    pid: int
    signal: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    points: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def condition(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["conditions"][0]
        return found


class ProcessStarter:
    """Starts processes, one at a time; use two for two at once. `tree`: whose engine and whose end
    of the pipe they run."""

    def __init__(self, tree: Path = REPOSITORY) -> None:
        paths = [str(tree / "operator"), str(tree / "tests")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.crash.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            # Stopped processes of our group would go on when the shell that started it ends: the
            # kernel does so (SIGHUP, SIGCONT) for a group without a parent in its session.
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, name="starter", daemon=True)
        self._listener.start()
        self._order: Order | None = None
        self._number: int | None = None
        self.pid = 0

    def run(self, order: Order) -> End:
        """Start a process and wait for its end."""
        self.start(order)
        return self.end()

    def start(self, order: Order) -> int:
        """Start a process; its pid."""
        assert self._order is None, "one at a time"
        assert self._process.stdin is not None
        self._order = order
        Path(order.answer).unlink(missing_ok=True)
        # What is not asked for is left out: another tree may not know it.
        fields = {k: v for k, v in dataclasses.asdict(order).items() if v or k == "strike"}
        self._process.stdin.write(json.dumps(fields) + "\n")
        self._process.stdin.flush()
        self.pid = int(self._expect("pid"))
        return self.pid

    def stopped(self) -> None:
        """Wait until the process has been stopped."""
        assert self.stops()

    def stops(self) -> bool:
        """Wait until the process has been stopped, or has ended without it."""
        message = self._receive()
        if "ended" in message:
            self._number = int(message["ended"])
            return False
        assert message == {"stopped": int(signal.SIGSTOP)}, message
        return True

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> End:
        assert self._order is not None
        order, self._order = self._order, None
        number, self._number = self._number, None
        if number is None:
            number = int(self._expect("ended"))
        found = json.loads(Path(order.answer).read_text()) if not number else {}
        return End(self.pid, number, found.get("status", {}), tuple(found.get("points", ())))

    def abort(self) -> None:
        """End what a test that failed has left."""
        if self._order is None:
            return
        self._order = None
        ended, self._number = self._number is not None, None
        if ended:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended, and was not yet asked
            os.kill(self.pid, signal.SIGKILL)
        while "ended" not in self._receive():
            pass

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._listener.join(LIMIT_S)

    def _receive(self) -> dict[str, int]:
        message: dict[str, int] = json.loads(self._lines.get(timeout=LIMIT_S))
        return message

    def _expect(self, word: str) -> int:
        message = self._receive()
        if word not in message:
            raise AssertionError(f"expected {word}, received {message}")
        return int(message[word])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put('{"closed": 1}')


@contextlib.contextmanager
def starter(tree: Path = REPOSITORY) -> Iterator[ProcessStarter]:
    made = ProcessStarter(tree)
    try:
        yield made
    finally:
        made.close()


# The other end of the pipe ------------------------------------------------------------------


class _Striker:
    def __init__(self, strike: Strike | None) -> None:
        self._strike = strike
        self._seen = 0

    def at(self, place: str, *, after: bool) -> None:
        strike = self._strike
        if strike is None or (strike.at, strike.after) != (place, after):
            return
        self._seen += 1
        if self._seen == strike.nth:
            os.kill(os.getpid(), strike.signal)

    def watch_edits(self) -> None:
        make = EditMaker._make

        def watched(maker: EditMaker, wanted: WantedEdit) -> EditedFile:
            self.at("edit", after=False)
            made = make(maker, wanted)
            self.at("edit", after=True)
            return made

        patch.object(EditMaker, "_make", watched).start()

    def watch_disk(self, root: str) -> None:
        """Count what makes a file appear or vanish below the table."""
        for name in ("link", "rename", "unlink"):
            self._watch(name, root)

    def _watch(self, name: str, root: str) -> None:
        real: Callable[..., None] = getattr(os, name)

        def watched(path: str, *more: Any, **options: Any) -> None:
            ours = os.fspath(path).startswith(root)
            if ours:
                self.at("disk", after=False)
            real(path, *more, **options)
            if ours:
                self.at("disk", after=True)

        setattr(os, name, watched)


def _operate(order: Order, foreign: _Foreign | None) -> dict[str, Any]:
    store = open_store(order.location)
    striker = _Striker(order.strike)
    striker.watch_disk(order.location.removeprefix("file://"))
    striker.watch_edits()
    if order.edited_by_job:
        for module, most in ((carry_out, "MOST_HERE"), (rewrite, "SMALL_BYTES")):
            patch.object(module, most, 0).start()
    if order.resource["kind"] == CLEANING:
        table = Table(store=store, log=DeltaLog(store), display="LakeTable/lake")
        cleaned = clean(table, CleaningRules(0, row_maps_ms=0, staging_ms=0, dead_ms=0))
        return {"status": {"phase": "Succeeded"}, "points": [g.file.path for g in cleaned.garbage]}
    resource = spec.parse(order.resource)
    assert isinstance(resource, Operation)
    if order.suspended:
        suspended = resource.spec.model_copy(update={"suspend": True})
        resource = resource.model_copy(update={"spec": suspended})
    locks = InProcessLocks()
    table = Table(store=store, log=DeltaLog(store), display="LakeTable/lake")
    location = table_of(resource, table).location
    if order.blocked:
        everything = LockRequest(location, OTHER, Mode.EXCLUSIVE, WHOLE_TABLE, OTHER, 100)
        locks.acquire(everything)
    points: list[str] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        striker.at(effect.point, after=False)
        if foreign is not None and effect.point is Point.RECONCILE and effect.point not in points:
            foreign.write()
        points.append(effect.point)
        event = call()
        striker.at(effect.point, after=True)
        if effect.point is Point.AWAIT_LOCKS:
            locks.release(location, OTHER, OTHER)
        if effect.point in order.lost_answers and points.count(effect.point) == 1:
            raise OutcomeUnknown("the answer was lost on its way", resource=order.location)
        return event

    jobs = QuickJobs(hook=lambda where: striker.at(f"job:{where}", after=False))
    # Every round is the job's, so that operations reach all points.
    ports = Ports(jobs=FileJobs(jobs), locks=locks, small_rounds=NoSmallRounds)
    execution = driver.ExecutionOptions(poll_ms=2, lock_wait_s=0.01, interceptor=interceptor)
    session = driver.open_session(resource, table, ports, execution)
    status = driver.finish(session, resource, ports)
    return {"status": status.manifest(), "points": points}


class _Foreign:
    """A foreign writer in a process of its own. It is forked before the one that lets it write,
    which has threads and locks of ours by then."""

    def __init__(self, order: Order) -> None:
        self._go, self._done = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                code = self._wait_and_write(order)
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)  # never back into what the starter was doing

    def _wait_and_write(self, order: Order) -> int:
        os.close(self._go[1])
        if not os.read(self._go[0], 1):
            return 0  # it never came to it
        foreign_writer.write(order.location, order.meanwhile)
        os.write(self._done[1], b"!")
        return 0

    def write(self) -> None:
        """Called in the other process: let it, and wait until it has."""
        os.close(self._done[1])
        os.write(self._go[1], b"!")
        if not os.read(self._done[0], 1):
            raise AssertionError("the foreign writer failed")

    def leave(self) -> None:
        """Called in the starter process, when both processes are there: it has no part in this."""
        for end in (*self._go, *self._done):
            os.close(end)

    def end(self) -> None:
        os.waitpid(self._pid, 0)


def _child(order: Order, foreign: _Foreign | None) -> int:
    try:
        answer = json.dumps(_operate(order, foreign))
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
        return 1
    Path(order.answer).write_text(answer)
    return 0


def _tell(**what: int) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fork a process for every order until there are no more."""
    import_kinds()
    for line in sys.stdin:
        read = json.loads(line)
        strike = read.pop("strike")
        order = Order(**read, strike=Strike(**strike) if strike else None)
        foreign = _Foreign(order) if order.meanwhile else None
        pid = os.fork()
        if pid == 0:
            os._exit(_child(order, foreign))
        if foreign is not None:
            foreign.leave()
        _tell(pid=pid)
        while True:
            _, how = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(how):
                break
            _tell(stopped=os.WSTOPSIG(how))
        if foreign is not None:
            foreign.end()
        # A process that failed without a signal reports its exit code; no test expects that.
        _tell(ended=os.WTERMSIG(how) if os.WIFSIGNALED(how) else -os.WEXITSTATUS(how))


if __name__ == "__main__":
    main()
