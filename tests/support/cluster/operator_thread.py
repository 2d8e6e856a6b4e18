"""An operator in a thread of its own loop, with jobs that need no Spark and can be held.

    jobs = HeldJobs()
    with operating(cluster, namespace, jobs) as operator:
        space = Resources(cluster, namespace)
        space.table("t", location)
        with jobs.held():
            space.compaction("m", "t")
            jobs.await_started("…")
        space.await_phase("TableCompaction", "m", "Succeeded")

Everything but the jobs is real: API server, RBAC, kopf, the engine. Waiting polls a condition
until a deadline, and then says what it saw.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from support.cluster.controllers_here import control_of
from support.jobs.quick_jobs import QuickJobs
from support.waiting import LIMIT_S, await_that
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.operator import run_operator
from tandem.kube.runtime.context import OperatorSettings
from tandem.locks.etcd.store import EtcdSettings
from tandem.operations.ports import Clock
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.common import plural

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
ENDED = frozenset({"Succeeded", "Superseded", "Failed"})


async def _sockets_closed(limit_s: float = 5.0) -> None:
    """kopf does not wait until TLS has closed its connections; a process ends then, but a thread's
    loop would leave them to the garbage collector, which blames whatever test runs next."""
    transports = vars(asyncio.get_running_loop())["_transports"]
    deadline = time.monotonic() + limit_s
    for _ in iter(lambda: all(t.is_closing() for t in transports.values()), True):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)


class HeldJobs:
    """`QuickJobs` that can be held: jobs that are started while `held` run when
    that ends. `fail` makes the next so many jobs fail. Outlives operators, as a cluster does."""

    def __init__(self) -> None:
        self._quick = QuickJobs()
        self._open = threading.Event()
        self._open.set()
        self._waiting: dict[str, JobRequest] = {}
        self._failed: set[str] = set()
        self._lock = threading.Lock()
        self.fail = 0
        self.started: list[str] = []
        self.stopped: list[str] = []

    def release(self) -> None:
        """Let go on before the block of `held` ends."""
        self._open.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def start(self, request: JobRequest) -> None:
        with self._lock:
            if request.name in self.started:
                return
            self.started.append(request.name)
            if self.fail:
                self.fail -= 1
                self._failed.add(request.name)
                return
            if not self._open.is_set():
                self._waiting[request.name] = request
                return
            self._quick.start(request)

    def status(self, name: str) -> JobStatus:
        with self._lock:
            if name in self._failed:
                return JobStatus(JobPhase.FAILED, "the test made it fail")
            request = self._waiting.get(name)
            if request is not None:
                if not self._open.is_set():
                    return JobStatus(JobPhase.RUNNING)
                del self._waiting[name]
                self._quick.start(request)
            return self._quick.status(name)

    def stop(self, name: str) -> None:
        with self._lock:
            self.stopped.append(name)
            self._waiting.pop(name, None)
            self._quick.stop(name)


class Resources:
    """One namespace of ours, as its administrator sees it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def url(self, kind: str, name: str = "") -> str:
        base = f"/apis/tandem.dev/v1alpha1/namespaces/{self.namespace}/{plural(kind)}"
        return f"{base}/{name}" if name else base

    def create(self, kind: str, name: str, spec: Json, **metadata: Any) -> Json:
        body = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        made: Json = self.cluster.request("POST", self.url(kind), body)
        return made

    def table(self, name: str, location: str, **spec: Any) -> Json:
        return self.create("LakeTable", name, {"location": location, **spec})

    def compaction(self, name: str, table: str, **spec: Any) -> Json:
        spec = {"tableRef": {"name": table}, "type": "Minor", **spec}
        return self.create("TableCompaction", name, spec)

    def update(self, name: str, table: str, where: str, set_: Json, **spec: Any) -> Json:
        spec = {"tableRef": {"name": table}, "update": {"where": where, "set": set_}, **spec}
        return self.create("TableUpdate", name, spec)

    def get(self, kind: str, name: str) -> Json | None:
        """None if there is none."""
        found: Json = self.cluster.request("GET", self.url(kind))
        for item in found["items"]:
            if item["metadata"]["name"] == name:
                return {"kind": kind, **item}
        return None

    def patch(self, kind: str, name: str, body: Json) -> Json:
        made: Json = self.cluster.request(
            "PATCH", self.url(kind, name), body, content_type="application/merge-patch+json"
        )
        return made

    def delete(self, kind: str, name: str) -> None:
        self.cluster.request("DELETE", self.url(kind, name))

    def status(self, kind: str, name: str) -> Json:
        found = self.get(kind, name)
        return {} if found is None else dict(found.get("status") or {})

    def children(self, kind: str, table: str, line: str = "") -> list[Json]:
        """The automatic children of a table, of one kind and perhaps one line, by name."""
        selector = f"labelSelector=tandem.dev/table={table},tandem.dev/automatic"
        url = f"{self.url(kind)}?{selector}{line and '='}{line}"
        items: list[Json] = self.cluster.request("GET", url)["items"]
        return items

    def await_next(self, table: str, about: str, **wanted: str) -> Json:
        """Until a field of the LakeTable's status says this, each text in one of its own."""

        def says(status: Json) -> bool:
            found = status.get(about) or {}
            return all(text in str(found.get(key, "")) for key, text in wanted.items())

        found: Json = self.await_status("LakeTable", table, says)[about]
        return found

    def await_status(
        self, kind: str, name: str, test: Callable[[Json], bool], limit_s: float = LIMIT_S
    ) -> Json:
        """The first status seen for which `test` holds."""
        seen: list[Json] = [{}]

        def look() -> bool:
            seen[0] = self.status(kind, name)
            return test(seen[0])

        await_that(look, lambda: f"{kind}/{name}: {seen[0]}", limit_s)
        return seen[0]

    def await_phase(self, kind: str, name: str, *phases: str, limit_s: float = LIMIT_S) -> Json:
        return self.await_status(kind, name, lambda s: s.get("phase") in phases, limit_s)

    def await_end(self, kind: str, name: str, limit_s: float = LIMIT_S) -> Json:
        """Its terminal status."""
        return self.await_phase(kind, name, *ENDED, limit_s=limit_s)

    def await_end_of(self, kind: str, name: str, phase: str) -> Json:
        """Likewise, where it may have ended otherwise before."""
        return self.await_phase(kind, name, phase)

    def await_reason(self, kind: str, name: str, reason: str) -> Json:
        return self.await_status(kind, name, lambda s: reason_of(s) == reason)

    def await_gone(self, kind: str, name: str, uid: str = "", limit_s: float = LIMIT_S) -> None:
        def gone() -> bool:
            found = self.get(kind, name)
            return found is None or bool(uid and found["metadata"]["uid"] != uid)

        await_that(gone, lambda: f"{kind}/{name} is still there: {self.get(kind, name)}", limit_s)

    def events(self, name: str) -> list[str]:
        """Reasons of the events about an object, oldest first."""
        found = self.cluster.request("GET", f"/api/v1/namespaces/{self.namespace}/events")
        items = [i for i in found["items"] if i["involvedObject"]["name"] == name]
        items.sort(key=lambda i: int(i["metadata"]["resourceVersion"]))
        return [item["reason"] for item in items]


def condition(status: Json, type_: str = "Succeeded") -> Json:
    """A condition of a status, {} if there is none."""
    return next((c for c in status.get("conditions", ()) if c["type"] == type_), {})


def reason_of(status: Json) -> str:
    """The reason of the condition that says most."""
    found = condition(status) or condition(status, "Ready")
    return str(found.get("reason", ""))


class Operator:
    """One operator in a thread."""

    def __init__(
        self,
        settings: OperatorSettings,
        jobs: HeldJobs,
        interceptor: Interceptor,
        clock: Clock | None = None,
        *,
        here: bool = False,
        spark: bool = False,
        configure_child: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self._spark = spark
        self._configure_child = configure_child
        self._clock = clock
        self._jobs = jobs
        self._control = control_of(interceptor, here=here or clock is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._launched = threading.Event()
        self._is_ready = threading.Event()
        self._worked = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._body, name="operator", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether it leads and works."""
        return self._worked

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def tasks(self) -> set[asyncio.Task[Any]]:
        """What its loop has under way."""
        return set() if self._loop is None else asyncio.all_tasks(self._loop)

    def launch(self) -> None:
        """Start it, and do not wait until it leads."""
        self._thread.start()
        self._launched.wait(LIMIT_S)

    def start(self) -> Operator:
        """Start it if it is not running, and wait until it leads and works."""
        if not self._thread.is_alive():
            self.launch()
        if not self._is_ready.wait(LIMIT_S):
            raise AssertionError(f"the operator is not ready: {self.error}")
        return self

    def stop(self) -> None:
        """As SIGTERM does. Raises what it ended with."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # it ends at this very moment
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the operator does not end"
        if self.error is not None:
            raise self.error

    def _body(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - shown by the waiting test
            self.error = error
        finally:
            self._is_ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._launched.set()
        ready = asyncio.Event()
        saying = asyncio.create_task(self._say(ready))
        try:
            await run_operator(
                self.settings,
                control_factory=self._control,
                stop=self._stop,
                working=ready,
                runner_factory=None if self._spark else lambda *_: self._jobs,
                clock=self._clock,
                configure_child=self._configure_child,
            )
        finally:
            saying.cancel()
            await _sockets_closed()

    async def _say(self, ready: asyncio.Event) -> None:
        await ready.wait()
        self._worked = True
        self._is_ready.set()


def quick_settings(cluster: Cluster, *namespaces: str, **changes: Any) -> OperatorSettings:
    """Settings under which nothing takes long."""
    chosen: Json = {
        "namespaces": namespaces,
        "kubeconfig": cluster.operator_kubeconfig,
        "table_poll_s": 0.3,
        "poll_ms": 30,
        "status_s": 0.3,
        # Jobs of tests are what the test says.
        "small_job_bytes": 0,
        **changes,
    }
    return OperatorSettings(**chosen)


@contextmanager
def operating(
    settings: OperatorSettings,
    jobs: HeldJobs,
    interceptor: Interceptor = passthrough,
    clock: Clock | None = None,
    *,
    here: bool = False,
    spark: bool = False,
    configure_child: Callable[[], None] | None = None,
) -> Iterator[Operator]:
    """An operator for the length of the block. With an interceptor or a clock, or `here`, its
    controllers are in this process. With `spark`, its jobs are SparkApplications.
    `configure_child`: called in each child as it begins; to be pickled."""
    operator = Operator(
        settings,
        jobs,
        interceptor,
        clock,
        here=here,
        spark=spark,
        configure_child=configure_child,
    ).start()
    try:
        yield operator
    finally:
        operator.stop()


@contextmanager
def two_leaders(space: Resources, jobs: HeldJobs, clock: Clock) -> Iterator[None]:
    """Two operators of one namespace: both lead, since they do not stand for the same election, and
    share nothing but the store of locks."""
    etcd = EtcdSettings((space.cluster.etcd_endpoint,), space.cluster.lock_prefix())

    def settings(name: str) -> OperatorSettings:
        return quick_settings(
            space.cluster,
            space.namespace,
            election_id=name,
            instance=name,
            progress_s=0.3,
            etcd=etcd,
        )

    with (
        operating(settings("one"), jobs, clock=clock),
        operating(settings("other"), jobs, clock=clock),
    ):
        yield
