"""Links between an operator and a child, in one loop, and what of the operator's context the
services of a child use."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from support.lock_requests import TABLE
from tandem.kube.children.link import Link
from tandem.kube.children.services import ChildServices
from tandem.kube.client.resources import Body, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.context import OperatorSettings
from tandem.kube.runtime.slots import AutomaticSlots, JobLimits, JobSlots
from tandem.kube.runtime.tenants import Tenant
from tandem.kube.runtime.threads import AtWork
from tandem.locks.store import InProcessLocks


@asynccontextmanager
async def connected(*links: Link) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Both serve; the tasks say what was wrong."""
    for link, own in zip(links, socket.socketpair(), strict=True):
        await link.connect(own)
    serving = [asyncio.create_task(link.serve()) for link in links]
    try:
        yield serving
    finally:
        for link in links:
            link.close()
        await asyncio.gather(*serving)


async def turns(count: int) -> None:
    """So many turns of the loop, for what may come between any two of them. What is awaited has a
    condition: `until`."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


class Stub:
    """What of the operator's context the services of children use."""

    def __init__(self) -> None:
        self.slots = JobSlots(JobLimits(2, per_table=1))
        self.resource_cache = ResourceCache()
        self.automatic_slots = AutomaticSlots(1, self.resource_cache)
        self.locks = InProcessLocks()
        self.metrics = Metrics()
        self.figures: dict[tuple[str, str], Any] = {}
        self.leads = True
        self.settings = OperatorSettings(allowed_locations=("a=file:///a",))
        self.requests: list[str] = []
        self.api = SimpleNamespace(request=self._request)
        self.events = contextvars.copy_context()

    def removed(self, uid: str) -> None:
        self.resource_cache.remove(uid)

    def may_write(self) -> bool:
        return self.leads

    async def _request(self, method: str, url: str, **_: Any) -> Body:
        self.requests.append(f"{method} {url}")
        return {"found": url}


@asynccontextmanager
async def child_of(stub: Stub, child: Link) -> AsyncIterator[ChildServices]:
    """The services of a child of the namespace `a`. At the end, it has ended."""
    with ThreadPoolExecutor(2) as threads:
        services = ChildServices(
            cast(Any, stub),
            Tenant("a"),
            ("keys",),
            threads,
            threads,
            lambda uid: stub.events if uid == "controlled" else None,
            {TABLE},
        )
        async with connected(services.link, child):
            yield services
        services.close()


def with_child(test: Callable[[Stub, Link, ChildServices], Coroutine[Any, Any, object]]) -> Stub:
    async def run() -> Stub:
        stub, child = Stub(), Link({})
        async with child_of(stub, child) as services:
            await test(stub, child, services)
        return stub

    return asyncio.run(run())


def works(own: socket.socket) -> None:
    """In another process, until it is killed."""
    at_work = AtWork.received(own)
    with at_work.on("one"), at_work.on("two"):
        with at_work.on("past"):
            pass
        own.send(b"!")
        signal.pause()
