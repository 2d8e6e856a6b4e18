"""The process ends where kopf does not."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest

from tandem.kube import handlers, kopf_loop
from tandem.kube.runtime.kopf_internals import watch_tasks


class Forever:
    """In place of the leadership and of the TTL controller."""

    async def hold(self) -> None:
        await asyncio.Event().wait()

    run = hold


def test_a_kopf_that_hangs_after_the_death_of_a_watch_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does where watches wait to be authenticated again: it has cancelled all tasks, among
    them those of ours that would end it."""

    async def dies() -> None:
        raise RuntimeError("410 Gone")

    async def operator(**_: Any) -> None:
        watch = asyncio.create_task(dies(), name="watcher for things")
        assert watch in watch_tasks()
        await asyncio.wait([watch])
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if not task.get_name().startswith("Task-"):
                task.cancel()
        await asyncio.Event().wait()

    async def run() -> int:
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(os, "_exit", exited.set_result)
        forever = cast(Any, Forever())
        settings = cast(Any, SimpleNamespace(namespaces=("a",)))
        running = asyncio.create_task(
            kopf_loop.run_kopf(
                settings,
                kopf.OperatorRegistry(),
                forever,
                forever,
                asyncio.Event(),
                asyncio.Event(),
            )
        )
        code = await asyncio.wait_for(exited, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return code

    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(handlers, "kopf_settings", lambda _: None)
    monkeypatch.setattr(kopf_loop, "_END_S", 0.1)
    assert asyncio.run(run()) == 1
