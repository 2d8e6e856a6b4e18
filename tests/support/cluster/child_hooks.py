"""What tests do to the operator's children. They see them through `recorded`, and have their
operations halt at a point (`Halts`): that is called in each child as it begins, and arrives there
by the name of this module."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.waiting import await_that
from tandem.kube import operator as operator_module
from tandem.kube.children.processes import ChildProcess, ChildProcesses
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.machine.state import OperationState
from tandem.operations.session.performer import Performer


@dataclass(frozen=True)
class Halts:
    """While `at` is in force, the first operation that comes to its point halts there, in whichever
    child it is."""

    folder: Path

    def at(self, point: Point) -> None:
        """Let the next one halt; to be called before it comes there."""
        for name in ("reached", "go"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "halt").write_text(point.value)

    def await_reached(self) -> None:
        await_that((self.folder / "reached").exists, "no operation has come there")

    def go(self) -> None:
        (self.folder / "go").touch()

    def __call__(self) -> None:
        """In the child."""
        perform = Performer.perform

        def performed(performer: Performer, effect: Effect, state: OperationState) -> Event:
            if self._halts(effect.point):
                await_that((self.folder / "go").exists, "the test does not go on")
            return perform(performer, effect, state)

        Performer.perform = performed  # type: ignore[method-assign]

    def _halts(self, point: Point) -> bool:
        halt = self.folder / "halt"
        try:
            if halt.read_text() != point.value:
                return False
            halt.rename(self.folder / "reached")
        except FileNotFoundError:  # another one was first
            return False
        return True


@dataclass
class Children:
    """Those of the operator that runs."""

    made: list[ChildProcesses]

    def living(self, namespace: str = "") -> list[ChildProcess]:
        """Those of a namespace, or all."""
        living = self.made[-1].living() if self.made else []
        return [child for child in living if namespace in ("", child.key.namespace)]

    def only(self, namespace: str = "") -> ChildProcess:
        [child] = self.living(namespace)
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


def kill(child: ChildProcess) -> None:
    """As the kernel does when memory runs short; until that is noticed."""
    os.kill(child.pid, signal.SIGKILL)
    await_that(lambda: child.end, "its end")
