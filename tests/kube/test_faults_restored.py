"""The API server is restored from an older backup: objects that had ended run again, and those made
since are gone. The table's log and the locks in another etcd are not restored with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs
from kube.kube_scenarios import World
from kube.ledger import Ledger
from support.cluster.api_server import own_cluster
from support.cluster.etcd import start_etcd
from support.jobs import quick_lake
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

WRITES = 1_000
PARTS = ("kube-controller-manager", "kube-apiserver", "etcd")


@contextmanager
def at_rest(cluster: Cluster) -> Iterator[Path]:
    """The API server's data while nothing of the cluster runs."""
    for name in PARTS:
        cluster.part(name).kill()
    (data,) = cluster.folder.glob("etcd*.data")
    yield data
    for name in reversed(PARTS):
        cluster.part(name).start()


def back_up(cluster: Cluster, to: Path) -> None:
    with at_rest(cluster) as data:
        shutil.copytree(data, to)


def restore(cluster: Cluster, backup: Path) -> None:
    with at_rest(cluster) as data:
        shutil.rmtree(data)
        shutil.copytree(backup, data)


@contextmanager
def restorable(folder: Path) -> Iterator[World]:
    """A cluster of the test's own, with locks in another etcd."""
    with own_cluster() as cluster, start_etcd() as etcd:
        yield World.make(cluster, folder, etcd.endpoints)


def go_far_beyond(world: World) -> None:
    """Write more often than a start of the API server does, as in the hours since a backup, until
    the operator has seen a version after that."""
    path = f"/api/v1/namespaces/{world.space.name}/configmaps"
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "counter"}}
    world.cluster.request("POST", path, named)
    for number in range(WRITES):
        world.cluster.request("PUT", f"{path}/counter", {**named, "data": {"n": str(number)}})

    def looks() -> int:
        return sum(
            entry["verb"] == "list" and entry["objectRef"]["resource"] == "laketables"
            for entry in world.cluster.calls(world.space.name)
        )

    before = looks()
    await_that(lambda: looks() > before, "the operator does not look at the version")


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["update", "compaction"])
def test_operations_that_run_again_and_that_are_forgotten(tmp_path: Path, kind: str) -> None:
    """One had ended: it finds its own commit in the log, reports it, and does nothing a second
    time. One was applied after the backup and has ended, too: its rows stay. The object of a third
    is gone without an event while its job runs: it publishes nothing, and keeps no lock."""
    jobs = GatedQuickJobs()
    ledger, other = (Ledger(quick_lake.make(tmp_path / name)) for name in ("t", "other"))
    with restorable(tmp_path) as world:
        with world.operator(in_pod=True):
            with world.dev(jobs):
                table, beside = world.adopt(ledger.lake), world.adopt(other.lake)
                gate = jobs.hold("statement" if kind == "update" else "rewrite")
                ledger.append()
                before = table.apply(ledger.make(kind))
                gate.reached()
                back_up(world.cluster, tmp_path / "backup")
                gate.go()
                first = before.succeeded()
                later = table.apply(ledger.make("ingest"))
                later.succeeded()
                version = ledger.lake.version
                gate = jobs.hold("statement")
                operation = other.make("update")
                lost = beside.apply(operation)
                gate.reached()
                assert world.etcd.locks(beside.lake.location)
                go_far_beyond(world)
                restore(world.cluster, tmp_path / "backup")
                gate.go()
            other.forget(operation)
            assert later.body() is None
            assert lost.body() is None
            with world.dev(jobs):
                again = before.succeeded()
                assert first.result is not None
                assert again.result is not None
                assert again.result.version == first.result.version
                assert ledger.lake.version == version
                for each, records in ((table, ledger), (beside, other)):
                    each.apply(records.make("delete")).succeeded()
                    records.assert_serial()
                held = [table.lake.location, beside.lake.location]
                await_that(lambda: not any(map(world.etcd.locks, held)), world.story)
                world.assert_nothing_left_behind(table)
        assert "restored from a backup" in str(world.restarts)
