"""What tests do to the operator's children. They see them through `recorded`, and have their
operations halt at a point (`Halts`): that is called in each child as it begins, and arrives there
by the name of this module."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.waiting import await_that
from tandem.cli.commands.operator import LogFormat, configure_logging
from tandem.kube import operator as operator_module
from tandem.kube.children import process, processes
from tandem.kube.children.process import ChildProcess
from tandem.kube.children.processes import ChildProcesses
from tandem.kube.controllers.operation import OperationController
from tandem.kube.runtime.controller_tasks import StopSignal
from tandem.operations import adopt as tables
from tandem.operations.machine.events import Effect, Event, Point, StopRequest
from tandem.operations.machine.state import OperationState
from tandem.operations.model import Table
from tandem.operations.session.performer import Performer
from tandem.operations.session.session import Session
from tandem.spark import in_process
from tandem.spark.jobs import apps

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tandem.spark.runtime.control import Control


def log_to(file: Path) -> None:
    """In the child: log as the command does, to a file."""
    sys.stderr = file.open("a", buffering=1)
    configure_logging(LogFormat.JSON, verbose=False)


@dataclass(frozen=True)
class Halts:
    """While `at` is in force, the first operation that comes to its point halts there, in whichever
    child it is."""

    folder: Path

    def at(self, point: Point) -> None:
        """Let the next one halt; to be called before it comes there."""
        for name in ("reached", "asked", "go"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "halt").write_text(point.value)

    def await_reached(self) -> None:
        await_that((self.folder / "reached").exists, "no operation has come there")

    def await_asked(self) -> None:
        """Until an operation is asked to stop."""
        await_that((self.folder / "asked").exists, "no operation is asked to stop")

    def go(self) -> None:
        (self.folder / "go").touch()

    def __call__(self) -> None:
        """In the child."""
        perform, request_stop = Performer.perform, Session.request_stop

        def performed(performer: Performer, effect: Effect, state: OperationState) -> Event:
            if self._halts(effect.point):
                await_that((self.folder / "go").exists, "the test does not go on")
            return perform(performer, effect, state)

        def asked(session: Session, request: StopRequest) -> None:
            request_stop(session, request)
            (self.folder / "asked").touch()

        patched = pytest.MonkeyPatch()
        patched.setattr(Performer, "perform", performed)
        patched.setattr(Session, "request_stop", asked)

    def _halts(self, point: Point) -> bool:
        halt = self.folder / "halt"
        try:
            if halt.read_text() != point.value:
                return False
            halt.rename(self.folder / "reached")
        except FileNotFoundError:  # another one was first
            return False
        return True


@dataclass(frozen=True)
class Ends:
    """While the file `bomb` is in the folder, a look at a table whose location has this text in it
    ends the child, as too large a table does."""

    folder: Path
    text: str = "bomb"

    @property
    def bomb(self) -> Path:
        return self.folder / "bomb"

    def __call__(self) -> None:
        """In the child."""
        adopt = tables.adopt

        def adopted(table: Table, *arguments: Any, **more: Any) -> Any:
            if self.text in table.location and self.bomb.exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return adopt(table, *arguments, **more)

        pytest.MonkeyPatch().setattr(tables, "adopt", adopted)


@dataclass(frozen=True)
class Raises:
    """From its first reconciliation on, all that operations do fails, as by a bug."""

    folder: Path

    def __call__(self) -> None:
        """In the child."""
        perform = Performer.perform

        def performed(performer: Performer, effect: Effect, state: OperationState) -> Event:
            if effect.point is Point.RECONCILE:
                (self.folder / "raises").touch()
            if (self.folder / "raises").exists():
                raise RuntimeError("the test")
            return perform(performer, effect, state)

        pytest.MonkeyPatch().setattr(Performer, "perform", performed)


@dataclass(frozen=True)
class Fails:
    """The first controller of an operation fails, as by a bug."""

    folder: Path

    def __call__(self) -> None:
        """In the child."""
        run = OperationController.run

        async def failing(controller: OperationController, stopped: StopSignal) -> None:
            try:
                (self.folder / "failed").touch(exist_ok=False)
            except FileExistsError:
                await run(controller, stopped)
                return
            raise RuntimeError("the test")

        pytest.MonkeyPatch().setattr(OperationController, "run", failing)


@dataclass(frozen=True)
class HarmsJvm:
    """While the file `harm` is in the folder, the next job that has Spark does this to its JVM."""

    folder: Path
    how: str

    def __call__(self) -> None:
        """In the child."""

        def harmed(control: Control, context: SparkContext, *more: Any) -> None:
            harm = self.folder / "harm"
            if harm.exists():
                harm.unlink()
                if self.how == "kill":
                    os.kill(jvm_of(os.getpid()), signal.SIGKILL)
                else:
                    _fill(context)
            apps.run(control, context, *more)

        pytest.MonkeyPatch().setattr(in_process, "run", harmed)


def _fill(context: Any) -> None:
    """Let it allocate twice its heap."""
    gateway = context._gateway
    kept = [gateway.new_array(gateway.jvm.long, 1 << 23) for _ in range(16)]
    raise AssertionError(f"it has memory for {len(kept)} arrays of 64 MiB")


def jvm_of(leader: int) -> int:
    """The process of a child's JVM; 0 without one."""
    for pid in process.session_processes(leader):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"java") and b"pyspark-shell" in command:
            return pid
    return 0


@dataclass
class Children:
    """Those of the operator that runs."""

    made: list[ChildProcesses]

    def living(self, namespace: str = "") -> list[ChildProcess]:
        """Those of a namespace, or all."""
        living = self.made[-1].living() if self.made else []
        return [child for child in living if namespace in ("", child.key.namespace)]

    def only(self, namespace: str = "") -> ChildProcess:
        """The only one, beside those of tables that have one to themselves."""
        [child] = [child for child in self.living(namespace) if not child.key.alone]
        return child


def recorded(monkeypatch: pytest.MonkeyPatch) -> Children:
    """The children of operators that begin from now on."""
    children = Children([])

    class Recorded(ChildProcesses):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            children.made.append(self)

    monkeypatch.setattr(operator_module, "ChildProcesses", Recorded)
    return children


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have children looked at often, and begun without pauses."""
    for name, value in (("_LOOK_S", 0.1), ("_PING_S", 0.1), ("_PAUSES_S", (0.0,))):
        monkeypatch.setattr(processes, name, value)


def kill(child: ChildProcess) -> None:
    """As the kernel does when memory runs short; until that is noticed."""
    os.kill(child.pid, signal.SIGKILL)
    await_that(lambda: child.end, "its end")
