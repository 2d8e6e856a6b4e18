"""Runs kopf in our process: ends it when the process has to stop or is no longer the leader, and
restarts it after a watch of kopf has died. An end of kopf that takes too long ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

import kopf
import structlog

from tandem.kube.controllers.ended import EndedController
from tandem.kube.runtime.context import OperatorSettings
from tandem.kube.runtime.controller_tasks import ControllerTasks
from tandem.kube.runtime.kopf_internals import (
    NoMemories,
    NotOfKopf,
    is_expired_watch,
    starter_of_watches,
    watch_tasks,
)
from tandem.kube.runtime.leader import Leadership, Restoration

_log = structlog.get_logger("tandem.kube.kopf_loop")
_LOOK_S = 0.5
_END_S = 20.0
"""How long kopf may take to end. It can hang in its own clean-up."""
_SHOWN = 50
"""How many names of tasks a log line has at most."""


class LeadershipLost(Exception):
    """Another operator leads now, or may: this process has stopped working."""


class KopfPhase(StrEnum):
    """What kopf does."""

    WAITS = "waits"
    """It has not been started yet."""
    WORKS = "works"
    ENDS = "ends"
    """It has begun to end, for whatever reason, or a watch has died."""
    RESTARTS = "restarts"
    """It has ended, and runs again once our kinds are installed."""


class KopfState:
    """The phase of kopf, for the probes."""

    def __init__(self) -> None:
        self.phase = KopfPhase.WAITS

    @property
    def is_alive(self) -> bool:
        """Not while kopf ends, which can hang."""
        return self.phase is not KopfPhase.ENDS

    @property
    def is_ready(self) -> bool:
        """Not between the death of a watch and the next start of kopf. A standby is ready."""
        return self.phase in (KopfPhase.WAITS, KopfPhase.WORKS)


async def run_kopf(
    settings: OperatorSettings,
    kopf_settings: kopf.OperatorSettings,
    registry: kopf.OperatorRegistry,
    controller_tasks: ControllerTasks,
    leadership: Leadership,
    ended_controller: EndedController,
    restoration: Restoration,
    stop: asyncio.Event,
    working: asyncio.Event,
    state: KopfState,
    renewal: Coroutine[Any, Any, None] | None = None,
) -> bool:
    """Run kopf until the process has to stop or is no longer the leader (False), or until one of
    kopf's watches has died, which kopf does not restart, or `renewal` returns (True: run it again).

    Raises:
        LeadershipLost
        ApiServerRestored
    """
    over, left, up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    watches = _Watches(state, is_fixed=kopf_settings.scanning.disabled)
    deadline = _Deadline(state)

    def end(_: object) -> None:
        over.set()
        deadline.begin()

    holding = asyncio.create_task(leadership.hold(), name="hold leadership")
    tidying = asyncio.create_task(ended_controller.run(), name="tidy what has ended")
    stopping = asyncio.create_task(stop.wait(), name="await the stop")
    watching = asyncio.create_task(watches.watch(), name="watch the watches")
    restored = asyncio.create_task(restoration.detect(), name="detect a restoration")
    renewing = asyncio.create_task(renewal or _never(), name="await what needs a new start")
    for task in (holding, tidying, stopping, watching, restored, renewing):
        task.add_done_callback(end)
    starting = asyncio.create_task(_when_up(up, stop, working, state), name="await the start")
    leaving = asyncio.create_task(_leave(over, controller_tasks, left), name="end controllers")
    tasks = (holding, tidying, stopping, watching, restored, renewing, starting, leaving)
    lost = blind = False
    try:
        roots = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings,
            memories=NoMemories(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=left,
            ready_flag=up,
        )
        watches.start_with(starter_of_watches(roots))
        for root in roots:
            # kopf ends with the first of them, also when none of our tasks has ended.
            root.add_done_callback(deadline.begin)
        await kopf.run_tasks(roots, ignored=NotOfKopf())
        lost = holding.done() and not stop.is_set()
        blind = watching.done() or renewing.done()
        for task in (tidying, restored):
            if task.done():
                task.result()
    except Exception as error:
        # A response that it does not expect ends kopf as a whole.
        if not (watches.has_one_died() or is_expired_watch(error)):
            raise
        _log.error("a watch has died; restarting kopf", problem=repr(error))
        blind = True
        await asyncio.sleep(_LOOK_S)
    finally:
        # Leadership is held meanwhile.
        await controller_tasks.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        deadline.cancel()
    if lost:
        raise LeadershipLost("another operator leads now, or the lock store is unavailable")
    if not blind or stop.is_set():
        return False
    state.phase = KopfPhase.RESTARTS
    return True


async def _leave(
    over: asyncio.Event, controller_tasks: ControllerTasks, left: asyncio.Event
) -> None:
    """End the controllers before kopf, which posts their events."""
    await over.wait()
    await controller_tasks.close()
    left.set()


async def _never() -> None:
    await asyncio.Event().wait()


async def _when_up(
    up: asyncio.Event, stop: asyncio.Event, working: asyncio.Event, state: KopfState
) -> None:
    await up.wait()
    if threading.current_thread() is threading.main_thread():
        # kopf takes these signals, and then waits five seconds for a task of its own.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    if state.phase is not KopfPhase.ENDS:
        state.phase = KopfPhase.WORKS
    working.set()


class _Watches:
    """kopf's watches. When one dies, kopf ends, or continues without events of that kind.

    Args:
        is_fixed: whether kopf serves the same namespaces all the time. Otherwise it cancels the
            watches of those that are deleted.
    """

    def __init__(self, state: KopfState, *, is_fixed: bool) -> None:
        self._state = state
        self._is_fixed = is_fixed
        self._known: set[asyncio.Task[Any]] = set()

    def start_with(self, starter: asyncio.Task[Any]) -> None:
        """Take the task that starts the watches for one of them: it fails as soon as one has
        died, also one that died between two looks and was never known."""
        self._known.add(starter)

    async def watch(self) -> None:
        """Returns when one has died. Cancels the others: kopf, which ends by itself then, closes
        their connections, and five seconds later cancels all of its tasks at once. A watch whose
        helper tasks were cancelled before it had ended its workers never ends."""
        while True:
            if self.has_one_died() or self._is_one_missing():
                break
            await asyncio.sleep(_LOOK_S)
        for task in watch_tasks():
            task.cancel()

    def has_one_died(self) -> bool:
        """Whether one has ended without being cancelled."""
        self._known |= watch_tasks()
        return self._is_one_dead()

    def _is_one_dead(self) -> bool:
        return any(task.done() and not task.cancelled() for task in self._known)

    def _is_one_missing(self) -> bool:
        """Whether one was cancelled although kopf does not end: a timeout of its own can hit a
        whole watch, and kopf continues without it."""
        goes_on = self._state.phase is not KopfPhase.ENDS
        return goes_on and self._is_fixed and any(task.done() for task in self._known)


class _Deadline:
    """If kopf does not end in time, exit the process at once: the next one takes everything over.

    No task, which kopf could wait for or cancel.
    """

    def __init__(self, state: KopfState) -> None:
        self._state = state
        self._handle: asyncio.TimerHandle | None = None

    def begin(self, _: object = None) -> None:
        """kopf has begun to end, or has to."""
        if self._handle is None:
            self._state.phase = KopfPhase.ENDS
            self._handle = asyncio.get_running_loop().call_later(_END_S, self._exit)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _exit(self) -> None:
        left = sorted(task.get_name() for task in asyncio.all_tasks())
        _log.error("kopf does not end; ending the process", tasks=left[:_SHOWN])
        if threading.current_thread() is threading.main_thread():
            os._exit(1)
