"""The driver of a job pool beside an API server that fails, refuses or is late."""

from __future__ import annotations

import asyncio
import copy
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from support.waiting import until
from tandem.errors import AccessDenied
from tandem.jobs.pool import PoolConfig, PooledEnd, PooledJob, close, new_record, post
from tandem.kube.client.api import Forbidden, Invalid, NotFound, Unavailable
from tandem.kube.job_pool import driver
from tandem.kube.job_pool.driver import PoolDriver
from tandem.spark.launch.pooled import Outcome

Json = dict[str, Any]
CONFIG = PoolConfig(namespace="lake", name="pool", slots=2, idle_s=3_600)
JOB = PooledJob(app="rewrite", location="s3://lake/t", spec="job.json", posted_ms=0)


class Server:
    """One ConfigMap. `listed`: how often a watch has begun."""

    def __init__(self) -> None:
        self.there: Json | None = new_record("lake", "pool", "digest")
        self.there["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        self.may_patch = True
        self.listed = 0
        self.watch_fails: Exception | None = None
        self.changed = asyncio.Event()

    async def get(self, _: object) -> Json:
        if self.there is None:
            raise NotFound(404, "NotFound", "")
        return copy.deepcopy(self.there)

    async def list(self, _: object, **__: object) -> Json:
        self.listed += 1
        if self.watch_fails is not None:
            raise self.watch_fails
        items = [] if self.there is None else [copy.deepcopy(self.there)]
        version = {"resourceVersion": "1"}
        return {"items": items, "metadata": version, "apiVersion": "v1", "kind": "ConfigMapList"}

    async def watch(self, _: object, **__: object) -> AsyncIterator[tuple[str, Json]]:
        while True:
            await self.changed.wait()
            self.changed.clear()
            if self.there is None:
                yield "DELETED", {"metadata": {"uid": "u", "resourceVersion": "99"}}
            else:
                yield "MODIFIED", copy.deepcopy(self.there)

    async def patch(self, _: object, patch: Sequence[Json]) -> Json:
        if not self.may_patch:
            raise Forbidden(403, "Forbidden", "cannot patch configmaps")
        if self.there is None:
            raise NotFound(404, "NotFound", "")
        changed = copy.deepcopy(self.there)
        for step in patch:
            _, part, key = step["path"].split("/", 2)
            if step["op"] == "test":
                if changed[part].get(key) != step["value"]:
                    raise Invalid(422, "Invalid", "a test failed")
            else:
                changed[part][key] = step["value"]
        if changed != self.there:
            changed["metadata"]["resourceVersion"] = str(int(self.version) + 1)
            self.there = changed
            self.changed.set()
        return copy.deepcopy(self.there)

    @property
    def version(self) -> str:
        assert self.there is not None
        return str(self.there["metadata"]["resourceVersion"])

    @property
    def keys(self) -> set[str]:
        return set() if self.there is None else set(self.there["data"])


class Jobs:
    """Jobs that run until the test ends them."""

    def __init__(self) -> None:
        self.running: dict[str, Callable[[Outcome], None]] = {}
        self.withdrawn: set[str] = set()

    def begin(self, name: str, _: PooledJob, __: int, on_end: Callable[[Outcome], None]) -> None:
        self.running[name] = on_end

    def withdraw(self, name: str) -> None:
        self.withdrawn.add(name)

    def end(self, name: str) -> None:
        self.running.pop(name)(Outcome(PooledEnd(code=1, message="withdrawn")))


def serving(server: Server, jobs: Jobs) -> asyncio.Task[bool]:
    made = PoolDriver(CONFIG, server, jobs)  # type: ignore[arg-type]
    return asyncio.ensure_future(made.run())


@pytest.mark.parametrize(
    "failure",
    [Forbidden(403, "Forbidden", "cannot watch configmaps"), ValueError("an odd event")],
    ids=["refused", "a bug"],
)
def test_jobs_begin_although_the_watch_fails(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOOK_AGAIN_S", 0.02)

    async def run() -> None:
        server, jobs = Server(), Jobs()
        server.watch_fails = failure
        task = serving(server, jobs)
        await until(lambda: server.listed > 0)  # it has begun, and looks for changes
        await server.patch(None, post("a", JOB))
        await until(lambda: "begun.a" in server.keys)
        server.there = None
        await until(lambda: "a" in jobs.withdrawn)
        jobs.end("a")
        assert await asyncio.wait_for(task, 120)

    asyncio.run(run())


def test_a_driver_that_may_not_report_does_not_begin() -> None:
    async def run() -> None:
        server, jobs = Server(), Jobs()
        server.may_patch = False
        with pytest.raises(AccessDenied, match="report"):
            await asyncio.wait_for(serving(server, jobs), 120)
        assert not jobs.running

    asyncio.run(run())


def test_an_answer_that_comes_late_does_not_bring_a_deleted_pool_back() -> None:
    async def run() -> None:
        server, jobs = Server(), Jobs()
        held, answered = asyncio.Event(), asyncio.Event()
        patch = server.patch

        async def late(where: object, content: Sequence[Json]) -> Json:
            answer = await patch(where, content)
            if content[-1]["path"].endswith("begun.a"):
                await held.wait()
                asyncio.get_running_loop().call_soon(answered.set)
            return answer

        vars(server)["patch"] = late
        task = serving(server, jobs)
        await server.patch(None, post("a", JOB))
        await until(lambda: "begun.a" in server.keys)
        server.there = None
        server.changed.set()
        await until(lambda: "a" in jobs.withdrawn)
        held.set()
        await answered.wait()
        jobs.end("a")
        assert await asyncio.wait_for(task, 120)

    asyncio.run(run())


def test_another_config_map_of_its_name_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LOOK_AGAIN_S", 0.02)

    async def run() -> None:
        server, jobs = Server(), Jobs()
        server.watch_fails = Unavailable(0, "Unreachable", "")
        task = serving(server, jobs)
        await until(lambda: server.listed > 0)
        other = new_record("lake", "pool", "digest")
        other["metadata"] |= {"uid": "other", "resourceVersion": "50"}
        server.there = other
        await server.patch(None, post("a", JOB))
        assert await asyncio.wait_for(task, 120)
        assert not jobs.running

    asyncio.run(run())


def test_a_driver_that_is_cancelled_leaves_no_report_half_begun() -> None:
    """As by SIGTERM, at the moment at which a job ends: a coroutine that was never awaited fails
    the test."""

    async def run() -> None:
        server = Server()
        made = PoolDriver(CONFIG, server, Jobs())  # type: ignore[arg-type]
        task = asyncio.ensure_future(made.run())
        await until(lambda: server.listed > 0)
        task.cancel()
        made._patch(close(""))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "state" in server.keys

    asyncio.run(run())
    gc.collect()
