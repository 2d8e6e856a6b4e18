"""`tandem dev` in a thread of its own loop: the Spark operator of tests that need no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.cluster.loop_thread import loop_thread
from support.waiting import LIMIT_S
from tandem.jobs.runner import JobRunner
from tandem.kube.dev.controller import DevSettings, run_dev

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@contextmanager
def spark_operator(cluster: Cluster, namespace: str, jobs: JobRunner) -> Iterator[None]:
    """For the length of the block."""
    settings = DevSettings(namespaces=(namespace,), kubeconfig=cluster.dev_kubeconfig)

    async def main(stop: asyncio.Event, ready: asyncio.Event) -> None:
        await run_dev(settings, runner=jobs, stop=stop, ready=ready)

    with loop_thread("dev", main, LIMIT_S):
        yield
