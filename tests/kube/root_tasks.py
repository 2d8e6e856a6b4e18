"""Stands in for kopf's root tasks. What runs them, and ends all with the first that ends, is kopf's
own `run_tasks`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest

from tandem.kube import handlers, kopf_loop
from tandem.kube.kopf_loop import KopfState
from tandem.kube.runtime.context import OperatorSettings
from tandem.kube.runtime.controller_tasks import ControllerTasks

STARTER = "multidimensional multitasker"
"""The task that starts kopf's watches, and fails with the first one that dies."""
Work = Callable[[], Awaitable[object]]


class Idle:
    """Leads for ever, and has nothing to tidy or to detect."""

    async def hold(self) -> None:
        await asyncio.Event().wait()

    run = detect = hold


async def endless() -> None:
    """Until it is cancelled."""
    await asyncio.Event().wait()


def failing(error: Exception) -> Work:
    async def fail() -> None:
        raise error

    return fail


class Deaf:
    """Ends by no cancellation, like a watch of kopf that waits to be authenticated again."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self) -> None:
        while not self.end.is_set():
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                continue


class Run:
    """One run of kopf with these root tasks: `starter`, and another one. It is up at once."""

    def __init__(
        self, starter: Work = endless, other: Work = endless, namespaces: tuple[str, ...] = ()
    ) -> None:
        self.stop, self.working, self.state = asyncio.Event(), asyncio.Event(), KopfState()
        self._settings = OperatorSettings(namespaces=namespaces)
        self._works = {STARTER: starter, "poster of events": other}

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        """What `run_kopf` returns."""
        monkeypatch.setattr(kopf, "spawn_tasks", self.spawn_tasks)
        return await self.run_kopf()

    async def run_kopf(self) -> bool:
        idle: Any = Idle()
        settings = self._settings, handlers.kopf_settings(self._settings, None)
        given = *settings, kopf.OperatorRegistry(), ControllerTasks(), idle, idle, idle
        return await kopf_loop.run_kopf(*given, self.stop, self.working, self.state)

    async def spawn_tasks(
        self, *, stop_flag: asyncio.Event, ready_flag: asyncio.Event, **_: object
    ) -> list[asyncio.Task[None]]:
        ready_flag.set()
        works = {**self._works, "stop-flag checker": stop_flag.wait}
        return [asyncio.create_task(_done(work), name=name) for name, work in works.items()]


async def _done(work: Work) -> None:
    await work()
