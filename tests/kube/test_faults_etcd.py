"""What becomes of locks, leases and etcd itself. Locks are for efficiency: whatever is lost of
them, no row is, none comes twice, and in the end nothing holds a lock that does no work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs
from kube.kube_scenarios import Applied, Table, World
from kube.ledger import Ledger
from support.cluster.etcd import start_etcd
from support.cluster.operator_process import Blow, ProcessStarter, starter
from support.jobs import quick_lake
from support.some import some
from support.waiting import await_that
from tandem.operations.machine.events import Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


def _all_end_well(world: World, ledger: Ledger, table: Table, *applied: Applied) -> None:
    for each in applied:
        each.reaches("Succeeded", "Superseded")
    ledger.assert_serial()
    world.assert_nothing_left_behind(table)


@pytest.mark.matrix
def test_a_member_of_three_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """One after the other, the leader among them, while operations hold and wait for locks."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    with start_etcd(members=3) as etcd:
        world = World.make(cluster, tmp_path, etcd.endpoints)
        with world.dev(jobs), world.operator(in_pod=True):
            table = world.adopt(ledger.lake)
            applied = []
            for member in etcd.members:
                gate = jobs.hold("rewrite")
                ledger.append()
                applied.append(table.apply(ledger.make("compaction", backoffLimit=3)))
                gate.reached()
                waiting = table.apply(ledger.make("compaction", backoffLimit=3))
                waiting.wait(lambda status: "WaitingForLock" in str(status))
                member.kill()
                gate.go()
                applied += [waiting, table.apply(ledger.make("update", backoffLimit=3))]
                for each in applied:
                    each.reaches("Succeeded", "Superseded")
                member.restart()
            _all_end_well(world, ledger, table, *applied)


def test_all_members_are_away_for_a_while(cluster: Cluster, tmp_path: Path) -> None:
    """Work goes on as far as it needs no lock; the rest waits without using up its tries."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    with start_etcd() as etcd:
        world = World.make(cluster, tmp_path, etcd.endpoints)
        with world.dev(jobs), world.operator(in_pod=True):
            table = world.adopt(ledger.lake)
            gate = jobs.hold("statement")
            update = table.apply(ledger.make("update", backoffLimit=0))
            gate.reached()
            etcd.members[0].kill()
            gate.go()
            ingest = table.apply(ledger.make("ingest", backoffLimit=0))
            etcd.members[0].start()
            _all_end_well(world, ledger, table, update, ingest)


def test_the_data_of_etcd_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """All locks, the leader's own among them, and the heads of all tables."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    with start_etcd() as etcd:
        world = World.make(cluster, tmp_path, etcd.endpoints)
        with world.dev(jobs), world.operator(in_pod=True):
            table = world.adopt(ledger.lake)
            gate = jobs.hold("statement")
            update = table.apply(ledger.make("update", backoffLimit=3))
            gate.reached()
            etcd.members[0].wipe()
            etcd.members[0].start()
            assert not world.etcd.locks()
            gate.go()
            ledger.append()
            compaction = table.apply(ledger.make("compaction", backoffLimit=3))
            _all_end_well(world, ledger, table, update, compaction)


@pytest.mark.parametrize("point", some([Point.PUT_COMMIT, Point.POLL_JOB], every=2))
def test_the_lease_runs_out_while_the_operator_stands_still(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path, point: Point
) -> None:
    """SIGSTOP for longer than the lease; another update commits in between; then it goes on
    where it stood, without a lock."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    world = World.make(cluster, tmp_path)
    with world.dev(jobs):
        stop = Blow(point, signal=int(signal.SIGSTOP))
        child = operators.start(world.order(blows=(stop,), ttl_s=6)).ready()
        table = world.adopt(ledger.lake)
        ledger.append()
        compaction = table.apply(ledger.make("compaction", backoffLimit=3))
        child.stopped()
        await_that(lambda: not world.etcd.keys_with_lease(), lambda: str(world.etcd.keys()))
        ledger.append()
        child.go_on()
        # It may end itself and be restarted, as in a pod, or lead again.
        successor = operators.start(world.order()).started()
        _all_end_well(world, ledger, table, compaction)
        for each in (child, successor):
            each.kill()


def test_a_lost_lock_stops_the_work_before_its_commit(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path
) -> None:
    """Its lease ran out, and another operation took the segments: the first one plans again or
    reconciles, and hides nothing of what the other one did."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    world = World.make(cluster, tmp_path)
    with world.dev(jobs):
        stop = Blow(Point.ENTER_COMMIT, signal=int(signal.SIGSTOP))
        first = operators.start(
            world.order(blows=(stop,), ttl_s=6, election="first", instance="first")
        ).ready()
        table = world.adopt(ledger.lake)
        ledger.append()
        slow = table.apply(ledger.make("compaction", backoffLimit=3))
        first.stopped()
        await_that(lambda: not world.etcd.keys_with_lease(), lambda: str(world.etcd.keys()))
        second = operators.start(world.order(election="second", instance="second")).ready()
        quick = table.apply(ledger.make("compaction", backoffLimit=3))
        for each in (slow, quick):
            each.reaches("Succeeded", "Superseded")
        first.go_on()
        second.stop()
        third = operators.start(world.order(election="third", instance="third")).ready()
        _all_end_well(world, ledger, table, slow, quick)
        for child in (first, third):
            child.kill()


def test_another_client_of_the_prefix_tampers_with_the_keys_of_a_table(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It removes the lock of a running operation, and writes an entry that no version can read.
    What needs locks waits and names the key; rows are safe without locks; other tables go on."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path / "t"))
    other = Ledger(quick_lake.make(tmp_path / "other"))
    world = World.make(cluster, tmp_path)
    with world.dev(jobs), world.operator(in_pod=True):
        table, neighbour = world.adopt(ledger.lake), world.adopt(other.lake)
        gate = jobs.hold("statement")
        update = table.apply(ledger.make("update", backoffLimit=3))
        gate.reached()
        (own,) = world.etcd.locks(table.lake.location)
        of_table, _, _ = own.partition("operations/")
        forged = f"{of_table}operations/forged"
        world.etcd.remove(own)
        world.etcd.put(forged, b"not an entry")
        world.etcd.put(f"{of_table}head", b"not a head")
        gate.go()
        compaction = table.apply(ledger.make("compaction", backoffLimit=3))
        compaction.wait(lambda status: "forged" in str(status))
        neighbour.apply(other.make("update")).succeeded()
        world.etcd.remove(forged)
        _all_end_well(world, ledger, table, update, compaction)
        other.assert_serial()
