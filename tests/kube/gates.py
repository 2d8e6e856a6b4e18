"""Job runners whose jobs stop where a test says: how scenarios in a cluster get their order.

    gate = jobs.hold("rewrite")         # the next rewrite does its work and publishes nothing yet
    ... apply the compaction; gate.reached(); let others commit ...
    gate.go()                           # or gate.die(): all files written, no result

Nothing sleeps; a wait that takes too long fails the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from support.jobs.inline_runner import DriverDied, InlineRunner
from support.jobs.quick_jobs import Hook, QuickJobs, unwatched
from tandem.jobs.results import JobResult
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spark.runtime.control import Control

LIMIT_S = 120.0


@dataclass
class Gate:
    """Where one job stands."""

    app: str
    request: JobRequest | None = None
    _arrived: threading.Event = field(default_factory=threading.Event)
    _open: threading.Event = field(default_factory=threading.Event)
    _dies: bool = False

    def reached(self) -> JobRequest:
        """Once a job stands here: which."""
        assert self._arrived.wait(LIMIT_S), f"no {self.app} job came"
        assert self.request is not None
        return self.request

    @property
    def is_reached(self) -> bool:
        return self._arrived.is_set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def dies(self) -> bool:
        return self._dies

    def go(self) -> None:
        self._open.set()

    def die(self) -> None:
        """The driver is killed where it stands."""
        self._dies = True
        self._open.set()

    def arrive(self, request: JobRequest) -> None:
        self.request = request
        self._arrived.set()

    def stand(self) -> None:
        """In the job's thread."""
        assert self._open.wait(LIMIT_S), f"{self.request} was never released"
        if self._dies:
            raise DriverDied(str(self.request))


class _Gates:
    def __init__(self) -> None:
        self._waiting: list[Gate] = []
        self._lock = threading.Lock()
        self.started: list[JobRequest] = []

    def hold(self, app: str = "") -> Gate:
        """The next job of this application (any by default)."""
        gate = Gate(app)
        with self._lock:
            self._waiting.append(gate)
        return gate

    def take(self, request: JobRequest) -> Gate | None:
        with self._lock:
            self.started.append(request)
            for gate in self._waiting:
                if gate.app in ("", request.app):
                    self._waiting.remove(gate)
                    return gate
        return None


class GatedSpark(InlineRunner):
    """Real Spark on the session that tests share, or none. A held job stands between its work and
    its first result."""

    def __init__(self, spark: SparkSession | None) -> None:
        super().__init__(spark, self._open_held)
        self._gates = _Gates()
        self._held: dict[str, Gate] = {}
        self.hold = self._gates.hold

    @property
    def started(self) -> list[JobRequest]:
        return self._gates.started

    def start(self, request: JobRequest) -> None:
        if request.name not in self._threads:
            gate = self._gates.take(request)
            if gate is not None:
                self._held[request.name] = gate
        super().start(request)

    def stop(self, name: str) -> None:
        gate = self._held.get(name)
        if gate is not None and not gate.is_open:
            gate.die()
        super().stop(name)

    def _open_held(self, request: JobRequest, opened: Control) -> Control:
        gate = self._held.get(request.name)
        if gate is None:
            return opened
        return _HeldControl(opened.spec, opened.store, gate, request)


@dataclass(frozen=True)
class _HeldControl(Control):
    gate: Gate
    request_: JobRequest

    def publish(self, result: JobResult) -> bool:
        if not self.gate.is_open:
            self.gate.arrive(self.request_)
            self.gate.stand()
        return super().publish(result)


class GatedQuickJobs(QuickJobs):
    """Jobs without Spark. A held job stands before its work; those that have died stay dead."""

    def __init__(self, hook: Hook = unwatched) -> None:
        super().__init__(hook)
        self._gates = _Gates()
        self._held: dict[str, Gate] = {}
        self._dead: set[str] = set()
        self._mutex = threading.RLock()
        self.hold = self._gates.hold

    def start(self, request: JobRequest) -> None:
        with self._mutex:
            if request.name in self._held or request.name in self._codes:
                return
            gate = self._gates.take(request)
            if gate is None:
                super().start(request)
            else:
                self._held[request.name] = gate
                gate.arrive(request)

    def status(self, name: str) -> JobStatus:
        with self._mutex:
            if name in self._dead:
                return JobStatus(JobPhase.FAILED, "exit code 137")
            gate = self._held.get(name)
            if gate is not None and not gate.is_open:
                return JobStatus(JobPhase.RUNNING)
            if gate is not None:
                del self._held[name]
                if gate.dies:
                    self._dead.add(name)
                    return self.status(name)
                assert gate.request is not None
                super().start(gate.request)
            return super().status(name)

    def stop(self, name: str) -> None:
        with self._mutex:
            if self._held.pop(name, None) is not None:
                self._dead.add(name)


class PointGates:
    """An `interceptor` for operators of this process: the next effect of a point stands still, of
    whichever operation it is."""

    def __init__(self) -> None:
        self._armed: list[PointGate] = []
        self._lock = threading.Lock()

    def hold(self, point: Point, *, after: bool = False) -> PointGate:
        gate = PointGate(point, after)
        with self._lock:
            self._armed.append(gate)
        return gate

    def interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        self._stand(effect.point, after=False)
        event = call()
        self._stand(effect.point, after=True)
        return event

    def _stand(self, point: Point, *, after: bool) -> None:
        with self._lock:
            found = next((g for g in self._armed if (g.point, g.after) == (point, after)), None)
            if found is None:
                return
            self._armed.remove(found)
        found.stand()

    def open(self) -> None:
        """Releases every held job or point."""
        with self._lock:
            self._armed.clear()


@dataclass
class PointGate:
    point: Point
    after: bool
    _arrived: threading.Event = field(default_factory=threading.Event)
    _open: threading.Event = field(default_factory=threading.Event)

    def reached(self) -> None:
        assert self._arrived.wait(LIMIT_S), f"{self.point} was never reached"

    def go(self) -> None:
        self._open.set()

    def stand(self) -> None:
        self._arrived.set()
        assert self._open.wait(LIMIT_S), f"{self.point} was never released"
