"""The operator's bookkeeping of its children: which one a resource has, when the largest one is
killed, and how their ends are named."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandem.kube.children.processes import (
    ChildEnded,
    ChildProcess,
    ChildProcesses,
    PodMemory,
    _how,
)
from tandem.kube.client.resources import Body, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.tenants import STORES, TenantKey, tenant_of


def table(location: str, **storage: Any) -> Body:
    return {"spec": {"location": location, "storage": storage}}


def test_tenants_share_no_child() -> None:
    keys = [
        tenant_of(table("s3://b/t"), "a"),
        tenant_of(table("s3://b/t"), "b"),
        tenant_of(table("s3://b/t", serviceAccountName="account"), "a"),
        tenant_of(table("s3://b/t", secretRef={"name": "keys"}), "a"),
        tenant_of(table("s3://b/t", secretRef={"name": "account"}), "a"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == tenant_of(table("s3://b/another"), "a")


def test_tables_of_one_store_share_a_child() -> None:
    """And those of others have few: not one for each bucket."""
    buckets = {tenant_of(table(f"s3://bucket-{number}/t"), "a").store for number in range(200)}
    assert buckets == set(range(STORES))
    options = {"endpoint": "https://minio.example"}
    assert tenant_of(table("s3://b/t", options=options), "a") in {
        TenantKey("a", store=number) for number in range(STORES)
    }
    one, other = (tenant_of(table(location), "a") for location in ("file:///x/t", "/y/t"))
    assert one == other == tenant_of(None, "a")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (None, "its process ended"),
        (255, "its process ended"),
        (1, "its process ended with exit code 1"),
        (-signal.SIGSEGV, "its process was killed by SIGSEGV"),
        (-(signal.SIGRTMIN + 1), f"its process was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_how_a_child_ended(code: int | None, how: str) -> None:
    assert _how(code) == how


def pod(root: Path, limit: str | None, used: int, cached: int) -> PodMemory:
    if limit is not None:
        (root / "memory.max").write_text(f"{limit}\n")
        (root / "memory.current").write_text(f"{used}\n")
        (root / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    return PodMemory(root)


class Child:
    def __init__(self, memory: int) -> None:
        self.key = TenantKey(f"of {memory}")
        self.memory = memory
        self.end = ""

    def kill(self, why: str) -> None:
        self.end = why


@pytest.mark.parametrize(
    ("limit", "used", "cached", "ends"),
    [
        ("1000", 950, 0, True),
        ("1000", 950, 100, False),
        ("max", 950, 0, False),
        (None, 0, 0, False),
    ],
)
def test_the_largest_child_ends_when_memory_runs_short(
    tmp_path: Path, limit: str | None, used: int, cached: int, ends: bool
) -> None:
    made = [Child(5), Child(9), Child(7)]

    async def run() -> None:
        context = cast(Any, SimpleNamespace())
        children = ChildProcesses(context, memory=None, pod=pod(tmp_path, limit, used, cached))
        vars(children)["_children"].update({child.key: child for child in made})
        await children._relieve()

    asyncio.run(run())
    assert [child.memory for child in made if child.end] == ([9] if ends else [])
    assert all("memory" in child.end for child in made if child.end)


# Runs


class Services:
    """What a child was asked, and how it answers."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.link = SimpleNamespace(notify=lambda *message: self.said.append(message))
        self.on_done: Any = None

    def forget(self, uid: str) -> None:
        self.said.append(("forget", uid))


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services()
    yield made
    assert made.said[-1] == ("forget", "uid")


def child_of(services: Services) -> ChildProcess:
    return ChildProcess(
        TenantKey("a"), cast(Any, SimpleNamespace(pid=0)), cast(Any, services), cast(Any, None)
    )


@pytest.mark.parametrize(("how", "left"), [("over", False), ("left", True)])
def test_a_run_ends_as_its_child_says(services: Services, how: str, left: bool) -> None:
    async def run() -> None:
        child = child_of(services)
        running = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=True))
        await asyncio.sleep(0)
        assert services.said == [("run", 0, "TableUpdate", "uid", True)]
        services.on_done(0, how)
        assert await running is left
        assert not child.runs

    asyncio.run(run())


def test_a_run_that_failed_is_an_error(services: Services) -> None:
    """After which kopf begins another one."""

    async def run() -> None:
        child = child_of(services)
        running = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=False))
        await asyncio.sleep(0)
        services.on_done(0, "failed")
        with pytest.raises(RuntimeError, match="its controller failed"):
            await running

    asyncio.run(run())


def test_the_end_of_an_earlier_run_ends_no_later_one(services: Services) -> None:
    async def run() -> None:
        child = child_of(services)
        first = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=False))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert ("leave", "uid") in services.said
        second = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=False))
        await asyncio.sleep(0)
        services.on_done(0, "over")
        await asyncio.sleep(0)
        assert not second.done()
        services.on_done(1, "over")
        assert await second is False

    asyncio.run(run())


def test_a_child_that_has_ended_takes_no_run() -> None:
    async def run() -> None:
        child = child_of(Services())
        child.end = "in a test"
        with pytest.raises(ChildEnded, match="in a test"):
            await child.run("TableUpdate", "uid", on_spark=False)
        with pytest.raises(ChildEnded, match="in a test"):
            await child.clean_up({"metadata": {"uid": "uid"}})

    asyncio.run(run())


class Ending:
    """A child that ends when it is to, and what it was worked on then."""

    def __init__(self, key: TenantKey, runs: dict[str, Any], at_work: set[str]) -> None:
        self.key, self.runs, self.end = key, runs, ""
        self.begun_s, self.spared = 0.0, False
        self.may_end = asyncio.Event()
        self.services = SimpleNamespace(unsuited={"one"}, at_work={"two"}, locks=set())
        self.at_work = SimpleNamespace(tables=lambda: at_work, close=lambda: None)

    async def serve(self) -> None:
        await self.may_end.wait()
        self.end = "in a test"


@pytest.mark.parametrize("at_work", [True, False])
def test_what_is_kept_of_a_child_that_has_ended(at_work: bool) -> None:
    """Its attempts are claimed until then. Without anything to control, its end is no loss."""
    left: list[str] = []

    async def run() -> None:
        metrics = Metrics()
        context = SimpleNamespace(metrics=metrics, resource_cache=ResourceCache())
        children = ChildProcesses(cast(Any, context), memory=None)
        child: Any = Ending(TenantKey("a"), {"uid": None} if at_work else {}, {"a table"})
        vars(children)["_children"][child.key] = child
        members = SimpleNamespace(leave=lambda: left.append("its claims"))
        serving = asyncio.create_task(children._serve(child, cast(Any, members)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not left
        assert children.living() == [child]
        child.may_end.set()
        await serving
        assert left == ["its claims"]
        assert children.living() == []
        known = vars(children)
        assert known["_unsuited"] == {"one", "two"}
        assert known["_killers"]["a table"] == at_work
        assert (child.key in known["_deaths"]) is at_work
        text = (await metrics.exposition()).decode()
        assert f"tandem_child_processes_lost_total {at_work:d}.0" in text
        assert "tandem_small_jobs_lost_total 1.0" in text
        await children.close()

    asyncio.run(run())
