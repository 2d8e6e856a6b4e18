"""Runs kopf inside our process: ends it when the process has to stop or is no longer the leader,
and restarts it after a watch of kopf has died."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kopf
import structlog

from tandem.kube import handlers
from tandem.kube.client.api import ApiError
from tandem.kube.controllers.operation.ttl import TtlController
from tandem.kube.runtime.kopf_internals import MinimalMemories, is_expired_watch, watch_tasks
from tandem.kube.runtime.leader import Leadership
from tandem.kube.runtime.settings import OperatorSettings

_log = structlog.get_logger("tandem.kube.kopf_loop")
_LOOK_S = 0.5
_END_S = 20.0
"""How long kopf may take to end. It can hang in its own clean-up."""


class LeadershipLost(Exception):
    """Another operator leads now, or may: this process has stopped working."""


async def run_kopf(
    settings: OperatorSettings,
    registry: kopf.OperatorRegistry,
    leadership: Leadership,
    ttl_controller: TtlController,
    stop: asyncio.Event,
    ready: asyncio.Event,
) -> bool:
    """Run kopf until the process has to stop or is no longer the leader (False), or until one of
    kopf's watches has died, which kopf does not restart (True: run it again).

    Raises: LeadershipLost.
    """
    over = asyncio.Event()
    # kopf ends every task that was started after it, so ours are started first.
    holding = asyncio.create_task(leadership.hold(), name="hold leadership")
    holding.add_done_callback(lambda _: over.set())
    tidying = asyncio.create_task(ttl_controller.run(), name="delete what has expired")
    tidying.add_done_callback(lambda _: over.set())
    stopping = asyncio.create_task(stop.wait(), name="await the stop")
    stopping.add_done_callback(lambda _: over.set())
    watches = _Watches()
    watching = asyncio.create_task(watches.watch(), name="watch the watches")
    watching.add_done_callback(lambda _: over.set())
    up = asyncio.Event()
    starting = asyncio.create_task(_when_up(up, stop, ready), name="await the start")
    tasks = (holding, tidying, stopping, watching, starting)
    deadline = _Deadline(over, watches)
    lost = blind = False
    try:
        with _tolerate_refusals_at_the_end(over):
            await kopf.operator(
                registry=registry,
                settings=handlers.kopf_settings(settings),
                memories=MinimalMemories(),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=over,
                ready_flag=up,
            )
        lost = holding.done() and not stop.is_set()
        blind = watching.done()
        if tidying.done():
            tidying.result()
    except Exception as error:
        # A response that it does not expect ends kopf as a whole. A watch that dies at once may
        # not have been noticed.
        if not (watches.has_one_died() or is_expired_watch(error)):
            raise
        _log.error("a watch has died; restarting kopf", problem=repr(error))
        blind = True
        await asyncio.sleep(_LOOK_S)
    finally:
        deadline.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if lost:
        raise LeadershipLost("another operator leads now, or the lock store is unavailable")
    return blind and not stop.is_set()


@contextmanager
def _tolerate_refusals_at_the_end(over: asyncio.Event) -> Iterator[None]:
    """kopf treats every running task as its own, and raises the exceptions of our tasks when it
    ends. A refused call of ours must not make the process fail then."""
    try:
        yield
    except ApiError as error:
        if not over.is_set():
            raise
        _log.warning("refused at the end", problem=str(error))


async def _when_up(up: asyncio.Event, stop: asyncio.Event, ready: asyncio.Event) -> None:
    await up.wait()
    if threading.current_thread() is threading.main_thread():
        # kopf takes these signals, and then waits five seconds for a task of its own.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    ready.set()


class _Watches:
    """kopf's watches. When one dies, kopf ends, or continues without events of that kind."""

    def __init__(self) -> None:
        self._known: set[asyncio.Task[Any]] = set()

    async def watch(self) -> None:
        """Returns when one has died. Cancels the others: kopf, which ends by itself then, closes
        their connections, and five seconds later cancels all of its tasks at once. A watch whose
        helper tasks were cancelled before it had ended its workers never ends."""
        while True:
            if self.has_one_died():
                break
            await asyncio.sleep(_LOOK_S)
        for task in watch_tasks():
            task.cancel()

    def has_one_died(self) -> bool:
        """Whether one has ended without being cancelled."""
        self._known |= watch_tasks()
        return any(task.done() and not task.cancelled() for task in self._known)


class _Deadline:
    """If kopf does not end in time, exit the process at once: the next one takes everything over.

    No task: kopf cancels tasks of ours, too, where it dies by itself and waits for its watches.
    """

    def __init__(self, over: asyncio.Event, watches: _Watches) -> None:
        self._over, self._watches = over, watches
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        if self._over.is_set() or self._watches.has_one_died():
            self._handle = self._loop.call_later(_END_S, self._exit)
        else:
            self._handle = self._loop.call_later(_LOOK_S, self._look)

    def _exit(self) -> None:
        _log.error("kopf does not end; ending the process")
        if threading.current_thread() is threading.main_thread():
            os._exit(1)
