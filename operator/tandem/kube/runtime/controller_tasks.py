"""The tasks that control resources: one for each, from the first event by which it needs work to
its end.

kopf's daemons would put a finalizer on each resource, at the cost of two writes and their events
(docs/decisions/0207).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import structlog

from tandem.kube.client.events import traceback_of

_log = structlog.get_logger("tandem.kube.controller_tasks")
_RETRY_S: Final = 10.0
"""After a bug in a controller."""
_LEAVE_S: Final = 10.0
"""How long controllers may take to leave their resources to the next process; then they are
cancelled."""
_CANCEL_S: Final = 5.0
"""How long a cancelled one may take to end; then it is left alone."""


class StopReason(StrEnum):
    """Why a controller has to end."""

    DELETED = "Deleted"
    """Its resource is being deleted, or is gone."""
    ENDED = "Ended"
    """Its operation has ended, by what this or another process has reported."""
    HANDED_OVER = "HandedOver"
    """It leaves everything as it is: the next process, or the next run of kopf, goes on."""


class StopSignal:
    """By which a controller learns that it has to end. To be used on one loop."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self._stopped = asyncio.Event()

    def stop(self, reason: StopReason) -> None:
        """The first reason holds: the controller ends by it, whatever comes later."""
        if self.reason is None:
            self.reason = reason
            self._stopped.set()

    async def wait(self) -> None:
        await self._stopped.wait()


@dataclass(slots=True)
class _Control:
    """`again`: work was asked for while the controller was at its end."""

    stop: StopSignal
    task: asyncio.Task[None] = field(init=False)
    again: bool = False


class ControllerTasks:
    """All of one run of kopf. To be used on the operator's loop."""

    def __init__(self) -> None:
        self._controls: dict[str, _Control] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        """Those that were stopped, by the uids of their resources."""
        self._closed = False

    def __len__(self) -> int:
        return sum(not control.task.done() for control in self._controls.values()) + len(
            self._ending
        )

    def control(
        self, uid: str, run: Callable[[StopSignal], Awaitable[None]], *, again: bool = False
    ) -> None:
        """Have a resource controlled by `run`, in a task with the context of the caller, unless it
        already is, or was: a controller that has returned, or returns, is begun another time only
        `again`, or after a `stop`."""
        known = self._controls.get(uid)
        if known is not None and not known.task.done():
            known.again = known.again or again
        elif not self._closed and (known is None or again):
            control = self._controls[uid] = _Control(StopSignal())
            controlling = self._control(uid, run, control, self._ending.get(uid))
            control.task = asyncio.create_task(controlling, name="control a resource")

    def stop(self, uid: str, reason: StopReason) -> None:
        """Have the controller of a resource end, if there is one."""
        control = self._controls.pop(uid, None)
        if control is None or control.task.done():
            return
        self._ending[uid] = control.task
        control.task.add_done_callback(lambda task: self._ended(uid, task))
        control.stop.stop(reason)

    async def close(self) -> None:
        """Have all of them end, and begin no more."""
        self._closed = True
        for uid in tuple(self._controls):
            self.stop(uid, StopReason.HANDED_OVER)
        ending = set(self._ending.values())
        if ending:
            _, ending = await asyncio.wait(ending, timeout=_LEAVE_S)
        for task in ending:
            task.cancel()
        if ending:
            _, ending = await asyncio.wait(ending, timeout=_CANCEL_S)
        if ending:
            _log.warning("controllers do not end", number=len(ending))

    async def _control(
        self,
        uid: str,
        run: Callable[[StopSignal], Awaitable[None]],
        control: _Control,
        before: asyncio.Task[None] | None,
    ) -> None:
        """`before`: the resource's last controller, which was stopped and has not ended yet."""
        stop = control.stop
        if before is not None:
            await asyncio.wait({before})
        while stop.reason is not StopReason.HANDED_OVER:
            try:
                await run(stop)
            except Exception as error:  # noqa: BLE001 - a bug, after which it is tried again
                _log.error("a bug: please report it", uid=uid, at=traceback_of(error))
            else:
                if stop.reason is None and control.again:
                    control.again = False
                    continue
                return
            if stop.reason is not None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await stop.wait()

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._ending.get(uid) is task:
            del self._ending[uid]


# The subject of every line of the log: kind, namespace, name, table, operation id and attempt of
# the resource that the work is done for.
#
# A `LogContext` is bound to the context of a resource's handler; its tasks, and the threads that
# work for it, inherit it. Fields that are set later (the operation id, the attempt) apply to all
# of them.


@dataclass(slots=True)
class LogContext:
    kind: str
    namespace: str
    name: str
    table: str = ""
    operation: str = ""
    attempt: int = 0


_LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("tandem_subject", default=None)


@contextmanager
def bound_log_context(log_context: LogContext) -> Iterator[LogContext]:
    """All lines logged in the block, and by tasks and threads started in it, have this subject."""
    token = _LOG_CONTEXT.set(log_context)
    try:
        yield log_context
    finally:
        _LOG_CONTEXT.reset(token)


def add_log_context(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that adds the subject. Fields of the line itself take precedence; a
    line of kopf gets those of its object."""
    record = line.get("_record")
    named = getattr(record, "k8s_ref", None)
    if isinstance(named, dict):
        for key in ("kind", "namespace", "name"):
            if named.get(key):
                line.setdefault(key, named[key])
    log_context = _LOG_CONTEXT.get()
    if log_context is None or line.get("name", log_context.name) != log_context.name:
        return line
    line.setdefault("kind", log_context.kind)
    line.setdefault("namespace", log_context.namespace)
    line.setdefault("name", log_context.name)
    if log_context.table:
        line.setdefault("table", log_context.table)
    if log_context.operation:
        line.setdefault("operation", log_context.operation)
    if log_context.attempt:
        line.setdefault("attempt", log_context.attempt)
    return line
