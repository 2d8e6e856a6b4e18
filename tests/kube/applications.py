"""SparkApplications on the real API server, `tandem dev` beside them, and jobs that tests end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.cluster.loop_thread import loop_thread
from support.waiting import LIMIT_S, await_that
from tandem.jobs.runner import JobPhase, JobRequest, JobRunner, JobStatus
from tandem.kube.client.api import SYNCED, Api, ResourcePath, follow
from tandem.kube.dev.controller import DevSettings, run_dev
from tandem.spark.application.manifest import build
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement, state_of

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
SETTINGS = ApplicationSettings(image="registry.example/tandem-spark:1", ttl_s=None)


@dataclass
class ScriptedJobs:
    """A `JobRunner` whose jobs run until the test ends them."""

    requests: list[JobRequest] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    ends: dict[str, JobStatus] = field(default_factory=dict)

    def start(self, request: JobRequest) -> None:
        self.requests.append(request)

    def status(self, name: str) -> JobStatus:
        return self.ends.get(name) or JobStatus(JobPhase.RUNNING, log=f"/logs/{name}.log")

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def end(self, phase: JobPhase = JobPhase.ENDED, message: str = "", only: str = "") -> None:
        """All jobs that were started, or those of one application."""
        for request in self.requests:
            if request.name.startswith(f"{only}-" if only else ""):
                self.ends.setdefault(request.name, JobStatus(phase, message))


class Applications:
    """A namespace for SparkApplications, and all states that they were seen in, in order."""

    def __init__(self, cluster: Cluster, namespace: str = "") -> None:
        self.cluster = cluster
        self.namespace = namespace or cluster.namespace("spark")
        self.base = (
            f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{self.namespace}/sparkapplications"
        )
        self.states: dict[str, list[str]] = {}

    def owner(self, name: str = "owner") -> JobOwner:
        """Something that owns applications: what has no owner is collected."""
        found = self.cluster.request(
            "POST",
            f"/api/v1/namespaces/{self.namespace}/configmaps",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}},
        )
        return JobOwner("v1", "ConfigMap", name, found["metadata"]["uid"])

    def body(self, name: str, owner: JobOwner, **spec: Any) -> Json:
        request = JobRequest(
            name, "rewrite", "memory:///lake", "job.json", operation_id="op", attempt=1
        )
        body = build(request, JobPlacement(owner, self.namespace), SETTINGS)
        body["spec"].update(spec)
        return body

    def create(self, body: Mapping[str, Any]) -> Json:
        found: Json = self.cluster.request("POST", self.base, body)
        return found

    def get(self, name: str) -> Json | None:
        items = self.cluster.request("GET", self.base)["items"]
        return next((item for item in items if item["metadata"]["name"] == name), None)

    def state(self, name: str) -> str:
        body = self.get(name)
        return "gone" if body is None else state_of(body)

    def await_state(self, name: str, state: str, limit_s: float = LIMIT_S) -> Json | None:
        await_that(
            lambda: self.state(name) == state, lambda: (self.get(name), self.states), limit_s
        )
        return self.get(name)

    def patch(self, name: str, patch: Mapping[str, Any], subresource: str = "") -> None:
        self.cluster.request(
            "PATCH",
            f"{self.base}/{name}{subresource}",
            patch,
            content_type="application/merge-patch+json",
        )

    def delete(self, name: str) -> None:
        self.cluster.request("DELETE", f"{self.base}/{name}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note all states from here on."""

        async def watch(stop: asyncio.Event, ready: asyncio.Event) -> None:
            path = ResourcePath("sparkoperator.k8s.io", "v1beta2", "sparkapplications")
            async with Api.from_kubeconfig(self.cluster.kubeconfig) as api:

                async def note() -> None:
                    async for kind, body in follow(api, path.at(self.namespace)):
                        if kind == SYNCED:
                            ready.set()
                            continue
                        seen = self.states.setdefault(body["metadata"]["name"], [])
                        state = "gone" if kind == "DELETED" else state_of(body)
                        if not seen or seen[-1] != state:
                            seen.append(state)

                noting = asyncio.create_task(note())
                await stop.wait()
                noting.cancel()
                await asyncio.gather(noting, return_exceptions=True)

        with loop_thread("watch", watch, LIMIT_S):
            yield

    @contextmanager
    def dev(
        self, jobs: JobRunner, *, kubeconfig: Path | None = None, **settings: Any
    ) -> Iterator[None]:
        """`tandem dev` in a thread, as its service account."""
        chosen = DevSettings(
            namespaces=(self.namespace,),
            kubeconfig=kubeconfig or self.cluster.dev_kubeconfig,
            poll_s=0.02,
            **settings,
        )

        async def main(stop: asyncio.Event, ready: asyncio.Event) -> None:
            await run_dev(chosen, jobs, stop, ready)

        with loop_thread("dev", main, LIMIT_S):
            yield
