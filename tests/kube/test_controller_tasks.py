"""When a resource is controlled, by what is seen of it: `ControllerTasks` on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from support.waiting import until
from tandem.kube.runtime import controller_tasks
from tandem.kube.runtime.controller_tasks import ControllerTasks, StopReason, StopSignal


class Controller:
    """Notes its runs, and ends when it has to; `busy` keeps it longer."""

    def __init__(self, *, fails: int = 0) -> None:
        self.begun = 0
        self.reasons: list[StopReason | None] = []
        self.busy = asyncio.Event()
        self.busy.set()
        self.over = asyncio.Event()
        self.fails = fails

    async def __call__(self, stopped: StopSignal) -> None:
        self.begun += 1
        if self.fails:
            self.fails -= 1
            raise RuntimeError("in a test")
        stop, over = (asyncio.ensure_future(each.wait()) for each in (stopped, self.over))
        await asyncio.wait({stop, over}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        over.cancel()
        await self.busy.wait()
        self.reasons.append(stopped.reason)


Scene = Callable[[ControllerTasks, Controller], Coroutine[Any, Any, None]]


def play(scene: Scene, *, fails: int = 0) -> Controller:
    async def run() -> Controller:
        tasks, controller = ControllerTasks(), Controller(fails=fails)
        await scene(tasks, controller)
        await tasks.close()
        assert len(tasks) == 0
        return controller

    return asyncio.run(run())


def test_many_events_begin_one_controller() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        for again in (False, True, False):
            tasks.control("uid", controller, again=again)
        await until(lambda: controller.begun == 1)
        assert len(tasks) == 1

    assert play(scene).reasons == [StopReason.HANDED_OVER]


@pytest.mark.parametrize("again", [True, False])
def test_one_that_has_returned_begins_another_time_only_where_work_is_asked_for(
    again: bool,
) -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        tasks.control("uid", controller)
        controller.over.set()
        await until(lambda: len(tasks) == 0)
        controller.over.clear()
        tasks.control("uid", controller, again=again)
        assert len(tasks) == again
        await until(lambda: controller.begun == 1 + again)

    assert play(scene).begun == 1 + again


def test_after_its_end_was_seen_it_begins_again() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        tasks.control("uid", controller)
        controller.over.set()
        await until(lambda: len(tasks) == 0)
        tasks.stop("uid", StopReason.ENDED)
        controller.over.clear()
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 2)

    assert play(scene).reasons == [None, StopReason.HANDED_OVER]


def test_the_next_one_waits_for_the_last_one() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        controller.busy.clear()
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)
        tasks.stop("uid", StopReason.ENDED)
        tasks.control("uid", controller)
        other = Controller()
        tasks.control("other", other)
        await until(lambda: other.begun == 1)
        assert controller.begun == 1
        controller.busy.set()
        await until(lambda: controller.begun == 2)

    assert play(scene).reasons == [StopReason.ENDED, StopReason.HANDED_OVER]


def test_the_first_reason_holds() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)
        tasks.stop("uid", StopReason.DELETED)
        tasks.stop("uid", StopReason.ENDED)

    assert play(scene).reasons == [StopReason.DELETED]


def test_one_that_was_to_begin_is_handed_over_instead() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        controller.busy.clear()
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)
        tasks.stop("uid", StopReason.ENDED)
        tasks.control("uid", controller)
        closing = asyncio.create_task(tasks.close())
        controller.busy.set()
        await closing
        tasks.control("late", controller)

    assert play(scene).begun == 1


def test_one_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_tasks, "_RETRY_S", 0.01)

    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 3)

    assert play(scene, fails=2).reasons == [StopReason.HANDED_OVER]


def test_one_that_fails_as_it_has_to_end_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_tasks, "_RETRY_S", 100.0)

    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)
        tasks.stop("uid", StopReason.DELETED)
        await until(lambda: len(tasks) == 0)

    assert play(scene, fails=5).begun <= 2


def test_those_that_do_not_end_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_tasks, "_LEAVE_S", 0.05)

    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        controller.busy.clear()
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)

    assert play(scene).reasons == []
