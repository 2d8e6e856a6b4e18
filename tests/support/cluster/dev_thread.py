"""`tandem dev` in a thread of its own loop: the Spark operator of tests that need no Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.cluster.operator_thread import LIMIT_S, HeldJobs
from tandem.kube.dev.controller import DevSettings, run_dev

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@contextmanager
def spark_operator(cluster: Cluster, namespace: str, jobs: HeldJobs) -> Iterator[None]:
    """For the length of the block."""
    settings = DevSettings(namespaces=(namespace,), kubeconfig=cluster.dev_kubeconfig)
    is_ready = threading.Event()
    ends: list[Any] = []

    async def run() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        running = asyncio.create_task(run_dev(settings, runner=jobs, stop=stop, ready=ready))
        await asyncio.wait({running, asyncio.ensure_future(ready.wait())},
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        is_ready.set()
        await running

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="dev", daemon=True)
    thread.start()
    assert is_ready.wait(LIMIT_S)
    try:
        yield
    finally:
        ends[0]()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
