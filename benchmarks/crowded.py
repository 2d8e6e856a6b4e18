"""The lag of the operator's event loop beside two thousand tables: while it adopts them, at rest,
and while their operations run.

The loop answers `/readyz` and renews the lease of the leader: what holds it up holds up both. The
job is a quick one; API server, etcd, kopf and the engine are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.hanging import settings_of
from benchmarks.harness import (
    Figure,
    Report,
    Table,
    WrongResult,
    await_child,
    progress,
    resident_bytes,
    start_child,
)

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

TABLES = {"toy": 5, "small": 100, "full": 2_000}
OPERATIONS = {"toy": 2, "small": 20, "full": 200}
AT_REST_S = {"toy": 1.0, "small": 5.0, "full": 60.0}
AT_ONCE = 32
AIM_S = 0.05
LIMIT_S = 900.0
TICK_S = 0.01
"""The loop is looked at this often: the metric of the operator does so once a second."""
LOOK_S = 0.5
STAGES = ("adopts the tables", "is at rest", "runs compactions")


def operator(
    kubeconfig: str, namespace: str, endpoint: str, prefix: str, folder: str
) -> dict[str, list[float]]:
    """Serve until the last stage ends. A stage ends when a file of its number exists in `folder`.

    Returns: the lags in seconds by stage, and the resident bytes after each.
    """
    from support.jobs.quick_jobs import QuickJobs
    from tandem.kube.operator import run_operator

    jobs = QuickJobs()
    settings = settings_of(kubeconfig, [namespace], endpoint, prefix)
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    memory: list[float] = []

    async def serve() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(
            run_operator(settings, stop=stop, working=ready, runner_factory=lambda *_: jobs)
        )
        await ready.wait()
        loop = asyncio.get_running_loop()
        await asyncio.to_thread((Path(folder) / "ready").touch)
        for number, stage in enumerate(STAGES):
            ended = Path(folder) / str(number)
            look = loop.time() + LOOK_S
            while True:
                due = loop.time() + TICK_S
                await asyncio.sleep(TICK_S)
                found[stage].append(max(0.0, loop.time() - due))
                if loop.time() > look:
                    if await asyncio.to_thread(ended.exists):
                        break
                    look = loop.time() + LOOK_S
            memory.append(resident_bytes())
        stop.set()
        await running

    asyncio.run(serve())
    return {**found, "memory": memory}


async def _create(
    kubeconfig: Path, kind: str, namespace: str, specs: list[dict[str, object]]
) -> None:
    from tandem.kube.client.api import Api
    from tandem.kube.client.resources import path

    async with Api.from_kubeconfig(kubeconfig) as api:
        room = asyncio.Semaphore(AT_ONCE)

        async def create(number: int, spec: dict[str, object]) -> None:
            body = {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": f"t{number}"},
                "spec": spec,
            }
            async with room:
                await api.create(path(kind, namespace), body)

        await asyncio.gather(*(create(number, spec) for number, spec in enumerate(specs)))


async def _await_all(kubeconfig: Path, kind: str, namespace: str, count: int) -> None:
    """Until so many have succeeded. Raises: WrongResult."""
    from tandem.kube.client.api import Api
    from tandem.kube.client.resources import path

    begun = time.perf_counter()
    async with Api.from_kubeconfig(kubeconfig) as api:
        while True:
            found = await api.list(path(kind, namespace))
            phases = [(item.get("status") or {}).get("phase") for item in found["items"]]
            if phases.count("Succeeded") >= count:
                return
            if "Failed" in phases or time.perf_counter() - begun > LIMIT_S:
                raise WrongResult(f"{kind}: {phases.count('Succeeded')} of {count} succeeded")
            await asyncio.sleep(LOOK_S)


def _tables(folder: Path, count: int) -> list[str]:
    """The locations of tables of four files each, with identities of their own."""
    from support.jobs import quick_lake

    first = quick_lake.make(folder / "first")
    own_id = first.log.snapshot().metadata.id
    locations = []
    for number in range(count):
        table = folder / f"t{number}"
        shutil.copytree(first.path, table)
        commit = table / "_delta_log" / f"{0:020d}.json"
        commit.write_text(commit.read_text().replace(own_id, str(uuid.uuid4())))
        locations.append(table.as_uri())
    return locations


def _measure(cluster: Cluster, size: str, work: Path) -> dict[str, list[float]]:
    namespace = cluster.namespace("crowded")
    locations = _tables(work, TABLES[size])
    signals, answer = work / "signals", work / "answer.json"
    signals.mkdir()
    child = start_child(
        operator,
        answer,
        kubeconfig=str(cluster.operator_kubeconfig),
        namespace=namespace,
        endpoint=cluster.etcd_endpoint,
        prefix=cluster.lock_prefix(),
        folder=str(signals),
    )
    try:
        while not (signals / "ready").exists():
            if child.poll() is not None:
                await_child(child, answer, 10)
            time.sleep(0.05)

        def apply_and_wait(kind: str, specs: list[dict[str, object]]) -> None:
            asyncio.run(_create(cluster.kubeconfig, kind, namespace, specs))
            asyncio.run(_await_all(cluster.kubeconfig, kind, namespace, len(specs)))

        apply_and_wait("LakeTable", [{"location": each} for each in locations])
        (signals / "0").touch()
        time.sleep(AT_REST_S[size])  # this is the stage
        (signals / "1").touch()
        compactions: list[dict[str, object]] = [
            {"tableRef": {"name": f"t{number}"}, "type": "Minor"}
            for number in range(OPERATIONS[size])
        ]
        apply_and_wait("TableCompaction", compactions)
        (signals / "2").touch()
        found: dict[str, list[float]] = await_child(child, answer, 120)
    finally:
        if child.poll() is None:
            child.kill()
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    from support.cluster.api_server import own_cluster

    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(own_cluster())
        progress(f"crowded: {TABLES[size]:,} tables")
        found = _measure(cluster, size, work)
    rows, figures, raw = [], [], {}
    for stage, memory in zip(STAGES, found["memory"], strict=True):
        lags = sorted(found[stage])
        p99 = statistics.quantiles(lags, n=100, method="inclusive")[98]
        rows.append(
            (
                stage,
                f"{len(lags):,}",
                _ms(statistics.median(lags)),
                _ms(p99),
                _ms(lags[-1]),
                f"{memory / 1e6:,.0f}",
            )
        )
        raw[stage] = {"median": statistics.median(lags), "p99": p99, "most": lags[-1]}
        name = f"{TABLES[size]:,} tables, while the operator {stage}: lag of its loop (p99)"
        figures.append(Figure(name, f"{_ms(p99)} ms", f"≤ {_ms(AIM_S)} ms", p99 <= AIM_S))
    return Report(
        name="crowded",
        title="The operator's event loop beside many tables",
        setting=f"{TABLES[size]:,} LakeTables of four files each are created at once; after "
        f"{AT_REST_S[size]:.0f} s, {OPERATIONS[size]} minor compactions of as many tables. The "
        "test's client, the API server and etcd share the two cores with the operator.",
        tables=(
            Table(
                "",
                (
                    "while it",
                    "samples",
                    "median lag (ms)",
                    "p99 (ms)",
                    "most (ms)",
                    "memory after it (MB)",
                ),
                tuple(rows),
            ),
        ),
        checks=("Every table became Ready, and every compaction succeeded.",),
        raw=raw,
        figures=tuple(figures),
    )
