"""Faults at the engine's named points: what crash tests wrap around a `Performer`.

`interceptor(effect, call)` is the engine's own hook. Here are the four things that can happen to an
effect: the process dies before it, dies after it, its answer is lost, it happens twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.errors import OutcomeUnknown
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.options import Interceptor

Call = Callable[[], Event]


class Fault(StrEnum):
    DIE_BEFORE = "dies before"
    DIE_AFTER = "dies after"
    LOSE_ANSWER = "loses the answer of"
    REPEAT = "does twice"


class ProcessDied(BaseException):
    """The process is gone: nothing may catch this but who started the operation."""


def strike(fault: Fault | None, effect: Effect, call: Call) -> Event:
    """Perform an effect with a fault."""
    if fault is Fault.DIE_BEFORE:
        raise ProcessDied(f"before {effect}")
    event = call()
    if fault is Fault.DIE_AFTER:
        raise ProcessDied(f"after {effect}")
    if fault is Fault.LOSE_ANSWER:
        raise OutcomeUnknown(f"the answer of {effect} was lost")
    if fault is Fault.REPEAT:
        return call()
    return event


@dataclass
class StrikeOnce:
    """An `interceptor` that strikes the n-th time (from 1) that a point is reached, then never
    again. `struck` says whether it came to that."""

    point: Point
    fault: Fault
    nth: int = 1
    struck: bool = False
    seen: list[Effect] = field(default_factory=list)

    def __call__(self, effect: Effect, call: Call) -> Event:
        self.seen.append(effect)
        times = sum(1 for e in self.seen if e.point is self.point)
        now = effect.point is self.point and times == self.nth and not self.struck
        self.struck = self.struck or now
        return strike(self.fault if now else None, effect, call)


def hooked(interceptor: Interceptor) -> Interceptor:
    """For type checkers: any callable of the right shape is an `interceptor`."""
    return interceptor
