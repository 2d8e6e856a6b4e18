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


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", ["update", "compaction"])
def test_an_operation_that_had_ended_runs_again(tmp_path: Path, kind: str) -> None:
    """It finds its own commit in the log, reports it, and does nothing a second time. What was
    applied after the backup is unknown to the cluster, and its rows stay."""
    jobs = GatedQuickJobs()
    ledger = Ledger(quick_lake.make(tmp_path / "t"))
    with restorable(tmp_path) as world:
        with world.operator(in_pod=True):
            with world.dev(jobs):
                table = world.adopt(ledger.lake)
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
            go_far_beyond(world)
            restore(world.cluster, tmp_path / "backup")
            with world.dev(jobs):
                assert later.body() is None
                again = before.succeeded()
                assert first.result is not None
                assert again.result is not None
                assert again.result.version == first.result.version
                assert ledger.lake.version == version
                table.apply(ledger.make("delete")).succeeded()
                ledger.assert_serial()
                world.assert_nothing_left_behind(table)
        assert "restored from a backup" in str(world.restarts)


def test_an_operation_of_which_the_cluster_knows_no_more(tmp_path: Path) -> None:
    """It was applied after the backup, and its object is gone without an event while its job runs.
    It publishes nothing, and keeps no lock from others."""
    jobs = GatedQuickJobs()
    ledger = Ledger(quick_lake.make(tmp_path / "t"))
    with restorable(tmp_path) as world:
        with world.operator(in_pod=True):
            with world.dev(jobs):
                table = world.adopt(ledger.lake)
                back_up(world.cluster, tmp_path / "backup")
                gate = jobs.hold("statement")
                operation = ledger.make("update")
                lost = table.apply(operation)
                gate.reached()
                assert world.etcd.locks(table.lake.location)
                go_far_beyond(world)
                restore(world.cluster, tmp_path / "backup")
                gate.go()
            ledger.forget(operation)
            assert lost.body() is None
            with world.dev(jobs):
                table.apply(ledger.make("delete")).succeeded()
            ledger.assert_serial()
            await_that(lambda: not world.etcd.locks(table.lake.location), world.story)
        assert "restored from a backup" in str(world.restarts)
