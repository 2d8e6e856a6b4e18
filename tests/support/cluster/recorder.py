"""Writes down every version of every resource of ours in a namespace, as a watch shows them."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tandem.kube.client.api import SYNCED, Api, follow
from tandem.kube.client.resources import path
from tandem.spec.resources import KINDS

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
_LIMIT_S = 120.0


class Recorder:
    """Has them by kind and name, oldest first; those of a deleted object, and of one that was
    recreated under its name, too."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._versions: dict[tuple[str, str], list[Json]] = defaultdict(list)
        self._synced: set[str] = set()
        self._is_ready = threading.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def of(self, kind: str, name: str) -> list[Json]:
        return list(self._versions[kind, name])

    def all(self) -> list[Json]:
        return [body for versions in self._versions.values() for body in versions]

    def start(self) -> None:
        """Returns when nothing that happens from now on is missed."""
        self._thread.start()
        assert self._is_ready.wait(_LIMIT_S)

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Api.from_kubeconfig(self._cluster.kubeconfig) as api:
            following = [asyncio.create_task(self._follow(api, kind)) for kind in KINDS]
            await self._stop.wait()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, api: Api, kind: str) -> None:
        async for event, body in follow(api, path(kind, self._namespace)):
            if event == SYNCED:
                self._synced.add(kind)
                if self._synced == set(KINDS):
                    self._is_ready.set()
            elif event != "DELETED":
                self._versions[kind, body["metadata"]["name"]].append(dict(body))


@contextmanager
def recording(cluster: Cluster, namespace: str) -> Iterator[Recorder]:
    """From the first line of the block to its end."""
    recorder = Recorder(cluster, namespace)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()
