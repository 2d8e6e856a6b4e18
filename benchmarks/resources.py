"""The operator's cost in addition to kopf and the API server: resources per second from apply to
`Succeeded`, compared with a kopf daemon that only makes the same writes; and the cost of ten
thousand ended resources.

The job is empty: it publishes a result without rows, at once. Everything else is real: API
server, etcd for the locks, claims, plan, commit, status, events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import (
    Report,
    Samples,
    Table,
    WrongResult,
    await_child,
    cpu_s,
    peak_bytes,
    progress,
    resident_bytes,
    start_child,
)

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

COUNT = {"toy": 5, "small": 40, "full": 200}
TABLES = {"toy": 1, "small": 4, "full": 16}
ROUNDS = {"toy": 1, "small": 1, "full": 3}
AT_REST = {"toy": 20, "small": 500, "full": 10_000}
KIND = "TableIngest"
LIMIT_S = 600.0
LOOK_S = 0.2
"""Seconds between two checks for success: each list is work for the API server, too."""
AT_ONCE = 32


# Operators, in separate processes ---------------------------------------------------------------


class _Without:
    """Finds no module of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _as_installed() -> None:
    """Without pandas, which is not a dependency of the product. Pyarrow would import it if this
    machine has it for other reasons."""
    sys.meta_path.insert(0, _Without("pandas"))


def with_tandem(kubeconfig: str, namespace: str, endpoint: str, prefix: str, flag: str) -> float:
    """Serve until `flag` exists; returns the CPU time used after the start, in all processes."""
    _as_installed()
    from benchmarks.nothing_jobs import NothingJobs
    from tandem.kube.operator import run_operator
    from tandem.kube.runtime.context import OperatorSettings
    from tandem.kube.runtime.slots import JobLimits
    from tandem.locks.etcd.store import EtcdSettings

    jobs = NothingJobs()
    settings = OperatorSettings(
        namespaces=(namespace,),
        kubeconfig=Path(kubeconfig),
        etcd=EtcdSettings((endpoint,), prefix),
        job_limits=JobLimits(),
        small_job_bytes=0,
        poll_ms=20,
    )

    async def serve() -> float:
        stop, ready = asyncio.Event(), asyncio.Event()
        ending = asyncio.create_task(_until(Path(flag), stop, ready))
        await run_operator(settings, stop=stop, working=ready, runner_factory=lambda *_: jobs)
        return await ending

    return asyncio.run(serve())


def with_kopf(kubeconfig: str, namespace: str, statuses: int, events: int, flag: str) -> float:
    """A daemon for each resource that writes this number of statuses and events."""
    import kopf

    from tandem.kube.client.api import Api
    from tandem.kube.client.credentials import Credentials, login_handler
    from tandem.kube.client.resources import path
    from tandem.spec.common import GROUP, VERSION, plural

    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = "bench/finalizer"
    settings.scanning.disabled = True
    settings.queueing.idle_timeout = 0.5

    credentials = Credentials([Path(kubeconfig)])
    kopf.on.login(registry=registry)(login_handler(credentials.log_in))

    async def serve() -> float:
        stop, ready = asyncio.Event(), asyncio.Event()
        ending = asyncio.create_task(_until(Path(flag), stop, ready))
        async with Api(credentials.log_in) as api:

            @kopf.daemon(
                GROUP,
                VERSION,
                plural(KIND),
                registry=registry,
                when=lambda status, **_: status.get("phase") != "Succeeded",
            )
            async def live(body: Any, name: str, uid: str, stopped: Any, **_: Any) -> None:
                where = path(KIND, namespace, name)
                for number in range(statuses):
                    last = number == statuses - 1
                    phase = "Succeeded" if last else "Running"
                    await api.patch_status(where, {"phase": phase, "attempt": number}, uid=uid)
                for _number in range(events):
                    kopf.event(body, type="Normal", reason="Bench", message="bench")
                await stopped.wait()

            await kopf.operator(
                registry=registry,
                settings=settings,
                namespaces=[namespace],
                standalone=True,
                stop_flag=stop,
                ready_flag=ready,
            )
        return await ending

    return asyncio.run(serve())


def at_rest(kubeconfig: str, namespace: str, count: int) -> dict[str, float]:
    """Memory, and the time from its start until an operator knows `count` resources."""
    _as_installed()
    started = time.perf_counter()
    from tandem.kube import operator
    from tandem.kube.client.resources import ResourceCache
    from tandem.kube.runtime.context import OperatorSettings

    imported = resident_bytes()
    made: list[ResourceCache] = []

    class Watched(ResourceCache):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    operator.ResourceCache = Watched  # type: ignore[attr-defined]
    settings = OperatorSettings(namespaces=(namespace,), kubeconfig=Path(kubeconfig))

    async def serve() -> float:
        stop, ready = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(operator.run_operator(settings, stop=stop, working=ready))
        await ready.wait()
        while True:
            if len(made[0]) >= count:
                break
            await asyncio.sleep(0.05)
        known = time.perf_counter() - started
        await asyncio.sleep(20)  # workers end, and what they held is given back
        stop.set()
        await serving
        return known

    known = asyncio.run(serve())
    return {
        "start_s": known,
        "imported_bytes": imported,
        "rest_bytes": resident_bytes(),
        "peak_bytes": peak_bytes(),
    }


async def _until(flag: Path, stop: asyncio.Event, ready: asyncio.Event) -> float:
    """Stop when `flag` exists; returns the CPU time used since its tables were."""
    await ready.wait()
    await asyncio.to_thread(flag.with_suffix(".ready").touch)
    await _exists(flag.with_suffix(".begun"))
    begun_s = await asyncio.to_thread(cpu_s)
    await _exists(flag)
    used_s = await asyncio.to_thread(cpu_s) - begun_s
    stop.set()
    return used_s


async def _exists(flag: Path) -> None:
    while True:
        if await asyncio.to_thread(flag.exists):
            return
        await asyncio.sleep(0.05)


# Measurements -----------------------------------------------------------------------------------


async def apply_and_wait(kubeconfig: Path, namespace: str, count: int, tables: int) -> float:
    """Seconds from the first apply until all have succeeded."""
    from tandem.kube.client.api import Api
    from tandem.kube.client.resources import path

    async with Api.from_kubeconfig(kubeconfig) as api:
        room = asyncio.Semaphore(AT_ONCE)

        async def apply(number: int) -> None:
            spec = {
                "tableRef": {"name": f"t{number % tables}"},
                "source": {"format": "Parquet", "location": "file:///nothing"},
            }
            body = {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": KIND,
                "metadata": {"name": f"r{number}"},
                "spec": spec,
            }
            async with room:
                await api.create(path(KIND, namespace), body)

        started = time.perf_counter()
        await asyncio.gather(*map(apply, range(count)))
        while True:
            found = await api.list(path(KIND, namespace))
            phases = [item["status"].get("phase") for item in found["items"]]
            if any(phase in ("Failed", "Superseded") for phase in phases):
                raise WrongResult(str(found["items"][0]["status"]))
            if len(phases) == count and all(phase == "Succeeded" for phase in phases):
                return time.perf_counter() - started
            if time.perf_counter() - started > LIMIT_S:
                raise WrongResult(f"not all have ended: {phases}")
            await asyncio.sleep(LOOK_S)


def measure(
    cluster: Cluster,
    engine: str,
    size: str,
    work: Path,
    writes: dict[str, int],
    cpu: dict[str, list[float]],
) -> float:
    """Resources per second; stores the writes of `tandem` in `writes`, and the CPU time of the
    operator's process and its peer's in `cpu`."""
    from support.jobs import quick_lake

    namespace = cluster.namespace("bench")
    folder = work / namespace
    folder.mkdir(parents=True)
    flag, answer = folder / "flag", folder / "answer.json"
    tables = TABLES[size]
    if engine == "tandem":
        arguments: dict[str, Any] = {
            "endpoint": cluster.etcd_endpoint,
            "prefix": cluster.lock_prefix(),
        }
        function: Any = with_tandem
        for number in range(tables):
            lake = quick_lake.make(folder / f"t{number}", loads=1)
            body = {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": "LakeTable",
                "metadata": {"name": f"t{number}"},
                "spec": {"location": lake.location},
            }
            url = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/laketables"
            cluster.request("POST", url, body)
    else:
        arguments, function = dict(writes), with_kopf
    child = start_child(
        function,
        answer,
        kubeconfig=str(cluster.operator_kubeconfig),
        namespace=namespace,
        flag=str(flag),
        **arguments,
    )
    try:
        while not flag.with_suffix(".ready").exists():
            if child.poll() is not None:
                await_child(child, answer, 10)
            time.sleep(0.05)
        _await_tables(cluster, namespace, tables if engine == "tandem" else 0)
        flag.with_suffix(".begun").touch()
        count = COUNT[size]
        seconds = asyncio.run(apply_and_wait(cluster.kubeconfig, namespace, count, tables))
        flag.touch()
        used = await_child(child, answer, 60)
        cpu[engine].append(used / count)
    finally:
        if child.poll() is None:
            child.kill()
    if engine == "tandem":
        writes.update(_writes(cluster, namespace, count))
    return count / seconds


def _await_tables(cluster: Cluster, namespace: str, tables: int) -> None:
    url = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/laketables"
    while True:
        found = cluster.request("GET", url)["items"]
        if sum(item["status"].get("phase") == "Succeeded" for item in found) >= tables:
            return
        time.sleep(0.05)


def _writes(cluster: Cluster, namespace: str, count: int) -> dict[str, int]:
    """Statuses and events per resource, rounded."""
    statuses = events = 0
    for entry in cluster.writes(namespace):
        what = entry["objectRef"]
        if "tandem-operator" not in str(entry["user"]):
            continue
        events += what["resource"] == "events"
        statuses += what["resource"] == "tableingests" and what.get("subresource") == "status"
    return {"statuses": round(statuses / count), "events": round(events / count)}


def _ms(seconds: float) -> float:
    return seconds * 1000


async def _fill(kubeconfig: Path, namespace: str, count: int) -> None:
    """Resources that ended long ago."""
    from tandem.kube.client.api import Api
    from tandem.kube.client.resources import path

    status = json.loads(Path(__file__).with_name("ended_status.json").read_text())
    async with Api.from_kubeconfig(kubeconfig) as api:
        room = asyncio.Semaphore(AT_ONCE)

        async def make(number: int) -> None:
            body = {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": "TableCompaction",
                "metadata": {"name": f"r{number}"},
                "spec": {"tableRef": {"name": "t"}, "type": "Minor"},
            }
            async with room:
                made = await api.create(path("TableCompaction", namespace), body)
                where = path("TableCompaction", namespace, f"r{number}")
                await api.patch_status(where, status, uid=made["metadata"]["uid"])

        await asyncio.gather(*map(make, range(count)))


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    from benchmarks.harness import in_child
    from support.cluster.api_server import own_cluster

    rates: dict[str, list[float]] = {"tandem": [], "kopf": []}
    cpu: dict[str, list[float]] = {"tandem": [], "kopf": []}
    writes = {"statuses": 3, "events": 2}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(own_cluster())
        for turn in range(ROUNDS[size]):
            for engine in ("tandem", "kopf"):
                progress(f"resources: round {turn + 1} of {ROUNDS[size]}, {engine}")
                rates[engine].append(measure(cluster, engine, size, work, writes, cpu))
        progress(f"resources: {AT_REST[size]:,} that have ended")
        namespace = cluster.namespace("rest")
        asyncio.run(_fill(cluster.kubeconfig, namespace, AT_REST[size]))
        rest = in_child(
            at_rest,
            kubeconfig=str(cluster.operator_kubeconfig),
            namespace=namespace,
            count=AT_REST[size],
        )
    ours, theirs = (Samples.of(rates[engine]) for engine in ("tandem", "kopf"))
    shares = Samples.of(a / b for a, b in zip(ours.values, theirs.values, strict=True))
    per_life = writes["statuses"] + writes["events"]
    return Report(
        name="resources",
        title="Resources in the operator",
        setting=f"{COUNT[size]} TableIngests on {TABLES[size]} tables, applied at once; the job "
        "is empty. The other operator is a kopf daemon that makes as many writes, and a finalizer "
        "for each resource as daemons do, and nothing else. Measured without pandas, which the "
        "product does not include. CPU time is that of all processes of an operator: ours has one "
        "for its tenant, in which the engine works (twenty steps, eight small files that are "
        "synced to the disk, a commit).",
        tables=(
            Table(
                "From apply to Succeeded",
                (
                    "resources per second",
                    "kopf alone",
                    "share (aim: 0.8)",
                    "ms of CPU per resource: tandem (aim: 35) / kopf alone",
                    "API writes per resource (aim: 12)",
                ),
                (
                    (
                        ours.text(1),
                        theirs.text(1),
                        shares.text(),
                        " / ".join(Samples.of(cpu[e]).map(_ms).text(1) for e in rates),
                        str(per_life),
                    ),
                ),
            ),
            Table(
                f"{AT_REST[size]:,} resources that have ended",
                ("memory (MB, aim: 125)", "of it after imports (MB)", "cold start (s, aim: 20)"),
                (
                    (
                        f"{rest['rest_bytes'] / 1e6:,.0f}",
                        f"{rest['imported_bytes'] / 1e6:,.0f}",
                        f"{rest['start_s']:,.1f}",
                    ),
                ),
            ),
        ),
        checks=("Every resource succeeded.", "The operator knew every resource that has ended."),
        raw={"rates": rates, "cpu": cpu, "writes": writes, "rest": rest},
    )
