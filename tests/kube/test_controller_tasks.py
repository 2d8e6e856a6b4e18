"""When a resource is controlled, by what is seen of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from support.waiting import until
from tandem.kube import handlers
from tandem.kube.client.resources import Body, CachedResource, ResourceCache
from tandem.kube.controllers.ended import EndedController
from tandem.kube.runtime import controller_tasks
from tandem.kube.runtime.controller_tasks import ControllerTasks, StopReason, StopSignal
from tandem.kube.runtime.kopf_internals import Listed
from tandem.operations.ports import SystemClock
from tandem.spec.common import RETRY_ANNOTATION
from tandem.spec.status import rfc3339, unix_ms


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


def test_work_that_is_asked_for_as_it_ends_is_begun_at_once() -> None:
    async def scene(tasks: ControllerTasks, controller: Controller) -> None:
        controller.busy.clear()
        tasks.control("uid", controller)
        await until(lambda: controller.begun == 1)
        controller.over.set()
        tasks.control("uid", controller, again=True)
        tasks.control("uid", controller)
        controller.busy.set()
        await until(lambda: controller.begun == 2)
        await until(lambda: len(tasks) == 0)

    assert play(scene).reasons == [None, None]


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
        assert len(tasks) == 0

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


# Which events begin and end controllers


class Resource:
    """What an operator sees of one operation, and what it does about that."""

    def __init__(self) -> None:
        self.cache = ResourceCache()
        self.removed: list[str] = []
        self.noted: list[str] = []
        self.tasks = ControllerTasks()
        self.controller = Controller()
        self.bodies: list[Body] = []
        self.version = 0

    def put(self, summary: CachedResource) -> None:
        self.noted.append(summary.phase)

    def remove(self, uid: str, _namespace: str) -> None:
        self.removed.append(uid)

    def note(self, _summary: CachedResource) -> None:
        """As the controller of what has ended does."""

    async def run(self, body: Body, stopped: StopSignal) -> None:
        self.bodies.append(body)
        await self.controller(stopped)

    def sees(self, type_: str | None, phase: str = "", **metadata: Any) -> None:
        self.version += 1
        body = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableUpdate",
            "metadata": {
                "namespace": "a",
                "name": "o",
                "uid": "uid",
                "resourceVersion": str(self.version),
                **metadata,
            },
            "spec": {"tableRef": {"name": "t"}},
            "status": {"phase": phase} if phase else {},
        }
        context = SimpleNamespace(resource_cache=self.cache, removed=self.cache.remove)
        event = {"type": type_, "object": body}
        parts: Any = (context, self, self.tasks, self, {"TableUpdate": self.run})
        handlers.observed(event, *parts)


RETRY = {"annotations": {RETRY_ANNOTATION: "1"}}


def watch(scene: Callable[[Resource], Coroutine[Any, Any, None]]) -> Resource:
    async def run() -> Resource:
        resource = Resource()
        await scene(resource)
        await resource.tasks.close()
        return resource

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("type_", "phase", "metadata", "reason"),
    [
        ("DELETED", "Running", {}, StopReason.DELETED),
        ("MODIFIED", "Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, StopReason.DELETED),
        ("MODIFIED", "Succeeded", {}, StopReason.ENDED),
        ("MODIFIED", "Failed", {}, StopReason.ENDED),
        ("MODIFIED", "Failed", RETRY, None),
        ("MODIFIED", "Suspended", {}, None),
        (None, "Running", {}, None),
    ],
)
def test_a_controller_ends_with_what_is_seen(
    type_: str | None, phase: str, metadata: dict[str, Any], reason: StopReason | None
) -> None:
    async def scene(resource: Resource) -> None:
        resource.sees("ADDED")
        await until(lambda: resource.controller.begun == 1)
        resource.sees(type_, phase, **metadata)
        await until(lambda: len(resource.tasks) == (reason is None))

    resource = watch(scene)
    assert resource.controller.reasons == [reason or StopReason.HANDED_OVER]
    assert resource.removed == (["uid"] if type_ == "DELETED" else [])


@pytest.mark.parametrize(
    ("phase", "metadata", "begun"),
    [
        ("", {}, 1),
        ("Running", {}, 1),
        ("Succeeded", {}, 0),
        ("Failed", {}, 0),
        ("Failed", RETRY, 1),
        ("Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, 0),
    ],
)
def test_what_is_listed_is_controlled_if_it_needs_work(
    phase: str, metadata: dict[str, Any], begun: int
) -> None:
    async def scene(resource: Resource) -> None:
        resource.sees(None, phase, **metadata)
        assert len(resource.tasks) == begun
        await until(lambda: resource.controller.begun == begun)

    assert watch(scene).noted == [phase]


def test_a_retry_that_is_seen_together_with_the_failure_is_begun() -> None:
    """Events of one moment are one."""

    async def scene(resource: Resource) -> None:
        resource.sees("ADDED")
        resource.controller.over.set()
        await until(lambda: len(resource.tasks) == 0)
        resource.controller.over.clear()
        resource.sees("MODIFIED", "Running")
        assert len(resource.tasks) == 0
        resource.sees("MODIFIED", "Failed", **RETRY)
        await until(lambda: resource.controller.begun == 2)

    resource = watch(scene)
    assert resource.bodies[-1]["metadata"]["resourceVersion"] == "3"


@pytest.mark.parametrize(
    ("namespace", "uids", "version", "gone"),
    [
        (None, {"uid"}, "9", False),
        (None, set(), "9", True),
        (None, {"other"}, "9", True),
        ("a", set(), "9", True),
        ("b", set(), "9", False),
        (None, set(), "0", False),
    ],
    ids=["listed", "empty", "another", "of its namespace", "of another one", "older than it"],
)
def test_what_a_later_list_does_not_have_is_deleted(
    namespace: str | None, uids: set[str], version: str, gone: bool
) -> None:
    async def scene(resource: Resource) -> None:
        resource.sees("ADDED")
        await until(lambda: resource.controller.begun == 1)
        kinds = {"tableupdates": gone, "tablecompactions": False}
        for kind, found in kinds.items():
            listed = Listed(kind, namespace, frozenset(uids), version)
            events = handlers.not_listed(resource.cache, listed)
            assert [event["type"] for event in events] == ["DELETED"] * found
            assert all(event["object"]["metadata"]["uid"] == "uid" for event in events)

    watch(scene)


@pytest.mark.parametrize(
    "text",
    ["tomorrow", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99", "9999-12-31T23:59:59-23:59"],
)
def test_a_status_whose_time_is_none_ends_nothing(text: str) -> None:
    """Users may write anything into a status, also after it was noted."""
    cache, deleted = ResourceCache(), list[str]()

    async def delete(where: Any, **_: Any) -> None:
        deleted.append(where.name)

    async def scene() -> None:
        api: Any = SimpleNamespace(delete=delete)
        ended = EndedController(api, cache, SystemClock(), lambda: True)
        for name, times in (("forged", (0, 1)), ("other", (0,))):
            for nth in times:
                time = text if nth else rfc3339(SystemClock().now_ms())
                status = {"phase": "Succeeded", "completionTime": time, "observedGeneration": 1}
                metadata = {"namespace": "a", "name": name, "uid": name, "resourceVersion": "1"}
                spec = {"ttlSecondsAfterFinished": 0}
                body = {"kind": "TableUpdate", "metadata": metadata, "spec": spec, "status": status}
                ended.note(cache.update(body))
        tidying = asyncio.create_task(ended.run())
        await until(lambda: bool(deleted) or tidying.done())
        tidying.cancel()

    asyncio.run(scene())
    assert deleted == ["other"]
    assert unix_ms(text) is None
