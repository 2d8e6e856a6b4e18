"""Under a real API server and etcd: the operator of one release is killed with operations
half-way, and that of the other one takes over. Definitions and roles are replaced in between.

Jobs need no Spark. Those of a release run its code: an operator starts none of the other's image.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kube.kube_scenarios import World
from kube.ledger import Ledger
from support.cluster.api_server import Cluster, own_cluster
from support.cluster.operator_process import REPOSITORY, Blow, Child, ProcessStarter, starter
from support.jobs import quick_lake
from tandem.operations.machine.events import Point

STRIKES = (
    Blow(Point.PERSIST_PLAN, after=True),
    Blow(Point.START_JOB, after=True),
    Blow(Point.PUT_COMMIT),
    Blow(Point.PUT_COMMIT, after=True),
)
"""Where the operator dies: its locks are held; the job exists; all is written; it has committed."""


@dataclass(frozen=True)
class Release:
    """The tree of a release, and processes that run its code."""

    tree: Path
    processes: ProcessStarter

    @property
    def definitions(self) -> list[Path]:
        return sorted((self.tree / "crds").glob("*.yaml"))

    def install(self, cluster: Cluster) -> None:
        """Its definitions and roles, over those of another release."""
        files = [*self.definitions, self.tree / "examples/cluster/rbac.yaml"]
        words = [word for file in files for word in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", "--force-conflicts", *words)

    def dev(self, *worlds: World, blows: tuple[Blow, ...] = ()) -> Child:
        """Runs the jobs of these namespaces."""
        namespaces = tuple(world.space.name for world in worlds)
        kubeconfig = str(worlds[0].cluster.dev_kubeconfig)
        order = worlds[0].order(
            role="dev", kubeconfig=kubeconfig, namespaces=namespaces, blows=blows
        )
        return self.processes.start(order).ready()


@pytest.fixture(scope="module")
def before(previous_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with starter(tmp_path_factory.mktemp("before"), previous_tree) as processes:
        yield Release(previous_tree, processes)


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with starter(tmp_path_factory.mktemp("now")) as processes:
        yield Release(REPOSITORY, processes)


@pytest.fixture(scope="module")
def cluster(before: Release, now: Release) -> Iterator[Cluster]:
    """With no definition that the release before lacks."""
    known = {file.name for file in before.definitions}
    with own_cluster() as made:
        for file in now.definitions:
            if file.name not in known:
                made.kubectl("delete", "-f", str(file))
        yield made


@pytest.fixture(autouse=True)
def _no_operator_is_left(before: Release, now: Release) -> Iterator[None]:
    yield
    before.processes.kill_all()
    now.processes.kill_all()


@pytest.mark.parametrize("blow", STRIKES, ids=str)
def test_ours_ends_once_what_an_operator_of_the_release_before_left_half_way(
    cluster: Cluster, before: Release, now: Release, tmp_path: Path, blow: Blow
) -> None:
    change(cluster, before, now, tmp_path, blow)


@pytest.mark.parametrize("blow", [STRIKES[1], STRIKES[3]], ids=str)
def test_an_operator_of_the_release_before_ends_once_what_ours_left_half_way(
    cluster: Cluster, before: Release, now: Release, tmp_path: Path, blow: Blow
) -> None:
    change(cluster, now, before, tmp_path, blow)


def change(cluster: Cluster, one: Release, other: Release, folder: Path, blow: Blow) -> None:
    """Operations that run, wait for locks, wait for another operation, and are at the blow, when
    the operator of `one` dies. Each must end once with that of `other`."""
    one.install(cluster)
    calm, struck = (World.make(cluster, folder) for _ in range(2))
    order = calm.order(namespaces=(calm.space.name, struck.space.name))
    struck.prefix = calm.prefix
    ledger = Ledger(quick_lake.make(folder / "calm"))
    # Its files are written, but not its result; and it runs no other job afterwards.
    halves = (Blow("job:written", signal=signal.SIGSTOP), Blow("job:published"))
    running_job = one.dev(calm, blows=halves)
    jobs = one.dev(struck)
    operator = one.processes.start(order).ready()
    table = calm.adopt(ledger.lake)
    running = table.apply(ledger.make("compaction"))
    running_job.stopped()
    ledger.append()
    blocked = table.apply(ledger.make("compaction"))
    blocked.wait(lambda status: "WaitingForLock" in str(status))
    needs = [{"kind": running.kind, "name": running.name}]
    pending = table.apply(ledger.make("ingest", dependsOn=needs))
    pending.wait(lambda status: "WaitingForDependency" in str(status))
    begun = running.status["startTime"]
    operator.kill()

    # Definitions come first, as Helm applies them: for a while the old operator lives with them.
    other.install(cluster)
    dying = one.processes.start(replace(order, blows=(blow,))).ready()
    second = Ledger(quick_lake.make(folder / "struck"))
    half_way = struck.adopt(second.lake)
    # The jobs stop with the operator; one that is lost is an attempt.
    last = half_way.apply(second.make("update", backoffLimit=2))
    assert dying.ended() == -signal.SIGKILL, dying.text()
    jobs.stop()

    successor = other.processes.start(order).ready()
    running_job.go_on()
    assert running_job.ended() == -signal.SIGKILL
    jobs = other.dev(calm, struck)
    found = running.succeeded()
    assert (found.attempt, found.start_time) == (1, begun)
    for applied in (blocked, pending, last):
        applied.succeeded()
    for of, on, world in ((ledger, table, calm), (second, half_way, struck)):
        of.assert_serial()
        world.assert_nothing_left_behind(on)
    successor.stop()
    jobs.stop()
    assert not calm.etcd.locks()
