"""How a session performs its effects: lock mode, maintenance, and a hook for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.delta.log.snapshot import Snapshot
from tandem.locks.rules import Mode
from tandem.operations.machine.events import Effect, Event
from tandem.operations.model import Table, Work

Interceptor = Callable[[Effect, Callable[[], Event]], Event]
"""Wraps every effect; calls its second argument to perform it."""

_LOCK_WAIT_S = 1.0


def passthrough(_effect: Effect, call: Callable[[], Event]) -> Event:
    """The default `interceptor`: perform the effect."""
    return call()


@dataclass(frozen=True, slots=True)
class PerformerOptions:
    """`mode` and `priority` are those of the locks. `maintain` runs after a commit and does what
    table properties require (checkpoint, log clean-up); it gets the version that was read
    last. `begun_elsewhere` says why an attempt with a plan must not go on, since another process
    works for the same operation on another table; "" if it may. `written` names the first commit
    by which another writer changed the chunks of an exclusive attempt since its read version; ""
    for none. `upgrade` enables deletion vectors on a table that waits for it: once
    a commit has been decided."""

    mode: Mode
    lock_wait_s: float = _LOCK_WAIT_S
    priority: int = 0
    maintain: Callable[[Table, Snapshot], None] | None = None
    begun_elsewhere: Callable[[], str] = lambda: ""
    written: Callable[[Work], str] = lambda _: ""
    upgrade: Callable[[], None] | None = None
