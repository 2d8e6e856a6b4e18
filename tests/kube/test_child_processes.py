"""The operator's bookkeeping of its children: which one a resource has, when the largest one is
killed, and how their ends are named."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kube.child_links import connected, turns
from support.waiting import until
from tandem.errors import Reason
from tandem.kube.children import child as child_module
from tandem.kube.children.link import Link, LinkEnded
from tandem.kube.children.ports import LinkedMetrics
from tandem.kube.children.process import ChildEnded, ChildProcess, PodMemory, _how
from tandem.kube.children.processes import ChildProcesses
from tandem.kube.children.start import RunEnd
from tandem.kube.client.resources import Body, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.controller_tasks import StopReason, StopSignal
from tandem.kube.runtime.tenants import STORES, TenantKey, tenant_of


def named(**entry: Any) -> Body:
    return {"spec": {"catalog": {"unity": {"uri": "https://unity", "name": "a.b.c", **entry}}}}


def test_tables_of_a_catalog_share_a_child_that_has_its_token() -> None:
    plain, other = named(), named(name="a.b.d")
    assert tenant_of(plain, "a") == tenant_of(other, "a")
    with_token = tenant_of(named(tokenSecretRef={"name": "unity", "key": "token"}), "a")
    assert with_token == replace(tenant_of(plain, "a"), token="unity")


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
    def __init__(self, memory: int, namespace: str = "") -> None:
        self.key = TenantKey(namespace or f"of {memory}", str(memory))
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
    made = [Child(5, "many"), Child(9), Child(7, "many")]

    async def run() -> None:
        context = cast(Any, SimpleNamespace())
        children = ChildProcesses(context, memory=None, pod=pod(tmp_path, limit, used, cached))
        vars(children)["_children"].update({child.key: child for child in made})
        await children._kill_largest()

    asyncio.run(run())
    assert [child.memory for child in made if child.end] == ([7] if ends else [])
    assert all("memory" in child.end for child in made if child.end)


def test_a_namespace_gets_one_child_where_memory_is_short(tmp_path: Path) -> None:
    begun: list[TenantKey] = []
    reported: list[Any] = []

    async def begin(key: TenantKey) -> None:
        begun.append(key)

    async def report(*what: Any) -> None:
        reported.append(what)
        vars(context)["resource_cache"].clear()  # the run ends

    table = {"kind": "LakeTable", "metadata": {**OPERATION["metadata"], "namespace": "many"}}
    table["spec"] = {"location": "file:///t"}
    context: Any = SimpleNamespace(resource_cache=ResourceCache(), may_write=lambda: True)
    context.resource_cache.update(table)

    async def run() -> None:
        children = ChildProcesses(context, memory=None, pod=pod(tmp_path, "1000", 850, 0))
        vars(children).update(_begin=begin, _report=report)
        vars(children)["_children"][TenantKey("many", "5")] = Child(5, "many")
        await children._begin_in_turn(TenantKey("other"))
        await children.run(table, StopSignal())

    asyncio.run(run())
    assert begun == [TenantKey("other")]
    assert [reason for _, reason, _ in reported] == [Reason.PENDING]
    assert "the namespace has 1 of them" in reported[0][2]


# Runs

OPERATION: Body = {
    "kind": "TableUpdate",
    "metadata": {"namespace": "a", "name": "o", "uid": "uid", "resourceVersion": "1"},
    "spec": {"tableRef": {"name": "t"}},
}


class Answering:
    """A child that lives, and how its controllers end, one after the other."""

    def __init__(self, *ends: RunEnd) -> None:
        self.key, self.end, self.ends = TenantKey("a"), "", list(ends)

    async def run(self, _kind: str, _uid: str, *, on_spark: bool) -> RunEnd:
        assert not on_spark
        return self.ends.pop(0)


def known() -> ResourceCache:
    """A cache that has the operation."""
    cache = ResourceCache()
    cache.update(OPERATION)
    return cache


async def control(child: Answering) -> None:
    """Have the operation controlled by the child."""
    context: Any = SimpleNamespace(resource_cache=known(), may_write=lambda: True)
    children = ChildProcesses(context, memory=None)
    vars(children)["_children"][child.key] = child
    try:
        await children.run(OPERATION, StopSignal())
    finally:
        assert not child.ends
        child.end = "in a test"
        await children.close()


def test_a_run_goes_on_until_it_is_over() -> None:
    asyncio.run(control(Answering(RunEnd.LEFT, RunEnd.OVER)))


def test_a_child_leaves_what_it_does_not_know() -> None:
    """It may not know it yet."""

    async def run() -> RunEnd:
        child = object.__new__(child_module._Child)
        vars(child).update(
            _context=SimpleNamespace(resource_cache=ResourceCache()), _metrics=LinkedMetrics()
        )
        child.link = Link({})
        return await child._control("TableUpdate", "uid", StopSignal(), None)

    assert asyncio.run(run()) is RunEnd.LEFT


def test_nothing_runs_in_a_child_that_does_not_know_all_resources_yet() -> None:
    async def run() -> None:
        context: Any = SimpleNamespace(resource_cache=known(), may_write=lambda: True)
        children = ChildProcesses(context, memory=None)
        child = Answering(RunEnd.OVER)
        begun = asyncio.Event()

        async def begin() -> Answering:
            vars(children)["_children"][child.key] = child
            await begun.wait()
            del vars(children)["_beginning"][child.key]
            return child

        vars(children)["_beginning"][child.key] = asyncio.create_task(begin())
        running = asyncio.create_task(children.run(OPERATION, StopSignal()))
        await turns(20)
        assert child.ends
        begun.set()
        await running
        child.end = "in a test"
        await children.close()

    asyncio.run(run())


def test_a_run_that_failed_is_an_error() -> None:
    """After which another one is begun."""
    with pytest.raises(RuntimeError, match="its controller failed"):
        asyncio.run(control(Answering(RunEnd.FAILED)))


class Services:
    """What of the services of a child its runs use."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.forgotten: list[str] = []

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)


def child_of(services: Services) -> ChildProcess:
    return ChildProcess(
        TenantKey("a"), cast(Any, SimpleNamespace(pid=0)), cast(Any, services), cast(Any, None)
    )


class Controller:
    """One that takes its time to end when it is left."""

    begun: list[Controller]
    may_end: asyncio.Event

    def __init__(self, context: Any, _body: Body) -> None:
        self.context = context

    async def run(self, stopped: StopSignal) -> None:
        self.begun.append(self)
        try:
            await stopped.wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            raise


def test_the_end_of_an_earlier_run_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "OperationController", Controller)

    async def run() -> None:
        begun: list[Controller] = []
        monkeypatch.setattr(Controller, "begun", begun, raising=False)
        monkeypatch.setattr(Controller, "may_end", asyncio.Event(), raising=False)
        theirs = object.__new__(child_module._Child)
        theirs.link = Link({"run": theirs._run, "stop": theirs._stop, "leave": theirs._leave})
        cache = ResourceCache()
        cache.update(OPERATION)
        context = SimpleNamespace(resource_cache=cache)
        parts: dict[str, Any] = {
            "_small": None,
            "_runs": {},
            "_metrics": LinkedMetrics(),
            "_context": context,
        }
        vars(theirs).update(parts)
        services = Services(Link({}))
        child = child_of(services)
        async with connected(services.link, theirs.link):
            first = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=False))
            await until(lambda: len(begun) == 1)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert not child.runs
            second = asyncio.create_task(child.run("TableUpdate", "uid", on_spark=False))
            await until(lambda: child.runs == {"uid"})
            Controller.may_end.set()
            await until(lambda: len(begun) == 2)
            assert not second.done()
            assert "uid" in vars(theirs)["_runs"]
            services.link.notify("stop", "uid", StopReason.DELETED)
            await until(second.done)
            assert await second == RunEnd.OVER
        assert not child.runs
        assert not vars(theirs)["_runs"]
        assert services.forgotten == ["uid", "uid"]

    asyncio.run(run())


async def _gone(*_: object) -> None:
    raise LinkEnded("in a test")


def test_a_run_ends_with_its_child_once_the_claims_are_given_up() -> None:
    async def run() -> None:
        child = child_of(Services(SimpleNamespace(call=_gone)))
        calls = [
            asyncio.create_task(child.run("TableUpdate", "one", on_spark=False)),
            asyncio.create_task(child.clean_up({"metadata": {"uid": "two"}})),
        ]
        await until(lambda: child.runs == {"one", "two"})
        child.end = "in a test"
        await turns(20)
        assert not any(call.done() for call in calls)
        child.released.set()
        for call in calls:
            with pytest.raises(ChildEnded, match="in a test"):
                await call
        assert not child.runs

    asyncio.run(run())


class Ending:
    """A child that ends when it is to, and what it was worked on then."""

    def __init__(self, key: TenantKey, runs: set[str], at_work: set[str]) -> None:
        self.key, self.runs, self.end = key, runs, ""
        self.begun_s, self.killed_for_pod = 0.0, False
        self.may_end, self.released = asyncio.Event(), asyncio.Event()
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
        child: Any = Ending(TenantKey("a"), {"uid"} if at_work else set(), {"a table"})
        vars(children)["_children"][child.key] = child

        def leave() -> None:
            assert not child.released.is_set(), "the next one begins before"
            left.append("its claims")

        serving = asyncio.create_task(
            children._serve(child, cast(Any, SimpleNamespace(leave=leave)))
        )
        await turns(20)
        assert not left
        assert children.living() == [child]
        child.may_end.set()
        await serving
        assert left == ["its claims"]
        assert child.released.is_set()
        assert children.living() == []
        known = vars(children)
        assert known["_unsuited"] == {"one", "two"}
        assert known["_ended_on"]["a table"] == at_work
        assert (child.key in known["_deaths"]) is at_work
        text = (await metrics.exposition()).decode()
        assert f"tandem_child_processes_lost_total {at_work:d}.0" in text
        assert "tandem_small_jobs_lost_total 1.0" in text
        await children.close()

    asyncio.run(run())
