"""`tandem dev`: stands in for a Spark operator, on a laptop or in CI.

Watches the same `SparkApplication` objects, runs them by a `JobRunner` (local Spark by default),
and writes the states that Kubeflow's controller writes (`tandem.kube.dev.application`).
Everything else is as in a cluster.

There are no pods. A job's process is a child of this one and ends with it; an annotation has the
path of its log. Only one `tandem dev` may serve a namespace: each treats running applications that
it did not start as orphans, as the Spark operator treats those whose driver vanished.

Must not depend on operations or tables: all of its input is in the application.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import AccessDenied, ClusterUnavailable, SparkMissing
from tandem.jobs.runner import JobRunner
from tandem.json_types import Json
from tandem.kube.client.api import Api, Forbidden, NotFound, ResourcePath, Unavailable
from tandem.kube.client.watch import SYNCED, follow
from tandem.kube.dev.application import APPLICATIONS, ApplicationController, JobHost, ttl_s
from tandem.spark.application.port import FINISHED, state_of
from tandem.spark.launch.local import LocalRunner
from tandem.spec.labels import MANAGED_BY


@dataclass(frozen=True, slots=True)
class DevSettings:
    """Settings of one `tandem dev`.

    Args:
        namespaces: those served; none: all.
        kubeconfig: None for the pod's service account, or else the one that kubectl would use.
        max_jobs: how many jobs run at once; the others wait, as pods wait for a node.
        every: also serve applications without Tandem's label. Only Tandem's own applications can
            run, so all others then fail.
        poll_s: how often a job's process is polled.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    max_jobs: int = 8
    every: bool = False
    poll_s: float = 0.1


async def run_dev(
    settings: DevSettings,
    runner: JobRunner | None = None,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set; then end all jobs.

    Args:
        runner: runs the jobs; None for local `spark-submit` processes.
        ready: set once all namespaces are watched.

    Raises:
        SparkMissing: the Spark operator's CRDs are not installed.
        AccessDenied: we may not watch its resources.
        ClusterUnavailable: the API server does not answer at the start; later, calls are retried.
    """
    stop = stop or asyncio.Event()
    local = None
    if runner is None:
        runner = local = LocalRunner()
    async with Api.from_kubeconfig(settings.kubeconfig, user_agent="tandem-dev") as api:
        served = [APPLICATIONS.at(name) for name in settings.namespaces] or [APPLICATIONS]
        for path in served:
            await _check(api, path)
        dev = _Dev(settings, api, runner)
        synced = [asyncio.Event() for _ in served]
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(dev.watch(path, event))
            for path, event in zip(served, synced, strict=True)
        ]
        try:
            for event in synced:
                await event.wait()
            if ready is not None:
                ready.set()
            ending = asyncio.create_task(stop.wait())
            tasks.append(ending)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await dev.close()
            if local is not None:
                await asyncio.to_thread(local.close)


async def _check(api: Api, path: ResourcePath) -> None:
    """Check that the kind is installed and that we may watch it: `follow` would retry for ever."""
    try:
        await api.request("GET", path.url(), query={"limit": "1"})
    except NotFound as error:
        raise SparkMissing(
            "the cluster has no SparkApplication resource",
            found=error.message,
            expected="the CRDs of Kubeflow's Spark operator",
            remedy="Install its CRDs (crds/ of its Helm chart)",
        ) from error
    except Forbidden as error:
        raise AccessDenied(
            "SparkApplications cannot be watched",
            found=error.message,
            remedy="Bind the ClusterRole tandem-dev of examples/cluster/rbac.yaml",
        ) from error
    except Unavailable as error:
        raise ClusterUnavailable("the Kubernetes API does not answer", found=error) from error


class _Dev:
    """All applications that are served."""

    def __init__(self, settings: DevSettings, api: Api, runner: JobRunner) -> None:
        self._labels = "" if settings.every else "=".join(MANAGED_BY)
        self._api = api
        self._host = JobHost(api, runner, settings.max_jobs, settings.poll_s, settings.kubeconfig)
        self._served: dict[str, tuple[ApplicationController, asyncio.Task[None]]] = {}

    async def watch(self, path: ResourcePath, synced: asyncio.Event) -> None:
        async for kind, body in follow(self._api, path, labels=self._labels):
            if kind == SYNCED:
                synced.set()
            else:
                self._see(kind, body)

    def _see(self, kind: str, body: Json) -> None:
        uid = body["metadata"]["uid"]
        served = self._served.get(uid)
        if kind == "DELETED" or "deletionTimestamp" in body["metadata"]:
            if served is not None:
                served[1].cancel()
        elif served is not None:
            served[0].see(body)
        elif state_of(body) not in FINISHED or ttl_s(body) is not None:
            application = ApplicationController(self._host, body)
            task = asyncio.create_task(application.serve(), name=application.key)
            self._served[uid] = application, task
            task.add_done_callback(lambda _: self._served.pop(uid, None))

    async def close(self) -> None:
        tasks = [task for _, task in self._served.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._host.close()
