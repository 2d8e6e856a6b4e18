"""A healthy table beside two hundred whose store never answers: the time until it is Ready, and
until its compaction has succeeded, compared with the same operator without the others.

The store is a socket that accepts connections and never answers. The job is a quick one; API
server, etcd, kopf and the engine are real. All settings are those of a new installation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    await_child,
    progress,
    start_child,
)

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from support.hanging_server import HangingServer
    from tandem.kube.runtime.context import OperatorSettings

HANGING = {"toy": 4, "small": 40, "full": 200}
HEALTHY = {"toy": 1, "small": 2, "full": 5}
"""Healthy tables, one after the other."""
MANY_NAMESPACES = 50
AIM = 1.5
LIMIT_S = 600.0
LOOK_S = 0.02
URL = "/apis/tandem.dev/v1alpha1/namespaces"
CASES = {
    "in a namespace of their own": "one",
    "in fifty namespaces": "many",
    "in the namespace of the healthy one": "same",
}


def settings_of(
    kubeconfig: str, namespaces: Sequence[str], endpoint: str, prefix: str
) -> OperatorSettings:
    """Those of a new installation, but for small jobs."""
    from tandem.kube.runtime.context import OperatorSettings
    from tandem.locks.etcd.store import EtcdSettings

    return OperatorSettings(
        namespaces=tuple(namespaces),
        kubeconfig=Path(kubeconfig),
        etcd=EtcdSettings((endpoint,), prefix),
        small_job_bytes=0,  # jobs are the benchmark's own
    )


def operator(kubeconfig: str, namespaces: list[str], endpoint: str, prefix: str, flag: str) -> None:
    """Serve until `flag` exists."""
    from support.jobs.quick_jobs import QuickJobs
    from tandem.kube.operator import run_operator

    jobs = QuickJobs()
    settings = settings_of(kubeconfig, namespaces, endpoint, prefix)

    async def serve() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(
            run_operator(settings, stop=stop, working=ready, runner_factory=lambda *_: jobs)
        )
        await ready.wait()
        await asyncio.to_thread(Path(flag).with_suffix(".ready").touch)
        while True:
            if await asyncio.to_thread(Path(flag).exists):
                break
            await asyncio.sleep(0.05)
        stop.set()
        await running

    asyncio.run(serve())


def _create(cluster: Cluster, kind: str, namespace: str, name: str, spec: dict[str, Any]) -> None:
    from tandem.spec.common import plural

    body = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    cluster.request("POST", f"{URL}/{namespace}/{plural(kind)}", body)


def _await_phase(cluster: Cluster, kind: str, namespace: str, name: str) -> float:
    """Seconds until it has succeeded. Raises: WrongResult."""
    from tandem.spec.common import plural

    begun = time.perf_counter()
    while True:
        found = cluster.request("GET", f"{URL}/{namespace}/{plural(kind)}/{name}")
        phase = (found.get("status") or {}).get("phase")
        seconds = time.perf_counter() - begun
        if phase == "Succeeded":
            return seconds
        if phase == "Failed" or seconds > LIMIT_S:
            raise WrongResult(f"{kind}/{name} after {seconds:.0f} s: {found.get('status')}")
        time.sleep(LOOK_S)


def _healthy(cluster: Cluster, namespace: str, name: str, folder: Path) -> tuple[float, float]:
    """Seconds until a new table is Ready, and until its compaction has succeeded after that."""
    from support.jobs import quick_lake

    lake = quick_lake.make(folder / name)
    _create(cluster, "LakeTable", namespace, name, {"location": lake.location})
    ready = _await_phase(cluster, "LakeTable", namespace, name)
    _create(
        cluster,
        "TableCompaction",
        namespace,
        name,
        {"tableRef": {"name": name}, "type": "Minor"},
    )
    return ready, _await_phase(cluster, "TableCompaction", namespace, name)


def _measure(
    cluster: Cluster, server: HangingServer, where: str, size: str, work: Path
) -> dict[str, list[tuple[float, float]]]:
    """Times of healthy tables alone, and beside those that hang."""
    healthy = cluster.namespace("healthy")
    wrong = {
        "one": [cluster.namespace("hangs")],
        "many": [cluster.namespace("hangs") for _ in range(MANY_NAMESPACES)],
        "same": [healthy],
    }[where]
    folder = work / where
    folder.mkdir()
    flag, answer = folder / "flag", folder / "answer.json"
    child = start_child(
        operator,
        answer,
        kubeconfig=str(cluster.operator_kubeconfig),
        namespaces=sorted({healthy, *wrong}),
        endpoint=cluster.etcd_endpoint,
        prefix=cluster.lock_prefix(),
        flag=str(flag),
    )
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    try:
        while not flag.with_suffix(".ready").exists():
            if child.poll() is not None:
                await_child(child, answer, 10)
            time.sleep(0.05)
        _healthy(cluster, healthy, "first", folder)  # what is imported late is imported now
        for number in range(HEALTHY[size]):
            found["alone"].append(_healthy(cluster, healthy, f"alone-{number}", folder))
        before = len(server.connections)
        for number in range(HANGING[size]):
            spec = {
                "location": f"s3://bucket/{where}/t{number}",
                "storage": {"options": server.options},
            }
            _create(cluster, "LakeTable", wrong[number % len(wrong)], f"hangs-{number}", spec)
        while len(server.connections) == before:
            time.sleep(LOOK_S)
        for number in range(HEALTHY[size]):
            found["beside"].append(_healthy(cluster, healthy, f"beside-{number}", folder))
        flag.touch()
        server.close()
        await_child(child, answer, 120)
    finally:
        if child.poll() is None:
            child.kill()
    return found


def _ratios(found: dict[str, list[tuple[float, float]]], which: int) -> tuple[float, float]:
    """Of the medians, and of the slowest one beside the others to the median alone."""
    alone, beside = (Samples.of(each[which] for each in found[k]) for k in ("alone", "beside"))
    return beside.median / alone.median, max(beside.values) / alone.median


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    from support.cluster.api_server import own_cluster
    from support.hanging_server import hanging_server

    raw: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(own_cluster())
        for case, where in CASES.items():
            progress(f"hanging: {HANGING[size]} {case}")
            with hanging_server() as server:
                raw[case] = _measure(cluster, server, where, size, work)
    rows, figures = [], []
    for case, found in raw.items():
        cells = [case]
        for which, what in enumerate(("Ready", "Succeeded")):
            ratio, slowest = _ratios(found, which)
            cells += [
                *(Samples.of(each[which] for each in found[k]).text() for k in ("alone", "beside")),
                f"{ratio:.2f} / {slowest:.2f}",
            ]
            name = f"{what} beside {HANGING[size]} tables that hang {case} ÷ alone"
            figures.append(Figure(name, f"{ratio:.2f}", f"≤ {AIM}", ratio <= AIM))
        rows.append(tuple(cells))
    return Report(
        name="hanging",
        title="A table beside others whose store never answers",
        setting=f"{HEALTHY[size]} new tables of four files, one after the other, each with a minor "
        f"compaction, before and after {HANGING[size]} LakeTables are created whose store accepts "
        "connections and never answers. 16 threads in each child process, and a limit of 60 s for "
        "a request of a store. "
        "The first of them is created while all of those that hang are new.",
        tables=(
            Table(
                "",
                (
                    "the others lie",
                    *("Ready alone (s)", "beside (s)", "ratio of medians / of the slowest"),
                    *("then Succeeded alone (s)", "beside (s)", "ratio"),
                ),
                tuple(rows),
            ),
        ),
        checks=("Every table became Ready, and every compaction succeeded.",),
        raw=raw,
        figures=tuple(figures),
    )
