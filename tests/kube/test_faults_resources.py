"""What people and clusters do to resources and jobs while they are at work: delete and change
them at every step (here: at one of three; `make matrix`: at all), kill drivers, end jobs twice,
run two operators, apply many at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs, PointGate, PointGates
from kube.kube_scenarios import Applied, Table, World, unfinished
from kube.ledger import Ledger
from kube.many import many_at_once
from support.cluster.operator_process import Blow, ProcessStarter, starter
from support.crash.killed import STRAIGHT
from support.jobs import quick_lake
from support.lake.lake import result
from support.some import few, some
from support.waiting import await_that
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

COMMIT = STRAIGHT.index(Point.PUT_COMMIT)
BEFORE_COMMIT, AFTER_COMMIT = STRAIGHT[:COMMIT], STRAIGHT[COMMIT + 1 :]


@dataclass
class Stage:
    """An operator of this process whose effects can be held; jobs without Spark."""

    world: World
    points: PointGates
    jobs: GatedQuickJobs
    ledger: Ledger
    table: Table

    def done(self) -> None:
        self.ledger.assert_serial()
        self.world.assert_nothing_left_behind(self.table)


@pytest.fixture(scope="module")
def running(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
            ) -> Iterator[tuple[World, PointGates, GatedQuickJobs]]:  # fmt: skip
    world = World.make(cluster, tmp_path_factory.mktemp("world"))
    points, jobs = PointGates(), GatedQuickJobs()
    with world.dev(jobs), world.operator(points.interceptor):
        yield world, points, jobs


@pytest.fixture
def stage(running: tuple[World, PointGates, GatedQuickJobs], tmp_path: Path) -> Stage:
    world, points, jobs = running
    ledger = Ledger(quick_lake.make(tmp_path))
    return Stage(world, points, jobs, ledger, world.adopt(ledger.lake))


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


# Deleted and changed at each step ----------------------------------------------------------------


@pytest.mark.parametrize("part", some(range(3)))
def test_Z7_deleted_at_each_step(stage: Stage, part: int) -> None:
    """It goes, soon, without a trace or, if it was late, with its rows."""
    for point in STRAIGHT[part::3]:
        gate = stage.points.hold(point)
        operation = stage.ledger.make("ingest")
        applied = stage.table.apply(operation)
        gate.reached()
        applied.delete()
        gate.go()
        applied.gone()
        await_that(lambda: not unfinished(stage.ledger.lake), stage.world.story)
        if not stage.ledger.has_happened(operation):
            assert point not in AFTER_COMMIT, point
            stage.ledger.forget(operation)
    stage.done()


@pytest.mark.parametrize("part", some(range(3)))
def test_Z7_suspended_and_resumed_at_each_step(stage: Stage, part: int) -> None:
    """Before its commit (unless it was late) it releases everything, and starts again when it
    may."""
    for point in (*BEFORE_COMMIT, *AFTER_COMMIT)[part::3]:
        gate = stage.points.hold(point)
        applied = stage.table.apply(stage.ledger.make("ingest"))
        gate.reached()
        applied.set(suspend=True)
        gate.go()
        if point in BEFORE_COMMIT:
            applied.reaches("Suspended", "Succeeded")
            await_that(lambda: not stage.world.etcd.locks(), stage.world.story)
        applied.set(suspend=False)
        applied.succeeded()
    stage.done()


def test_Z7_what_is_applied_suspended_starts_once_it_is_resumed(stage: Stage) -> None:
    applied = stage.table.apply(stage.ledger.make("ingest"), suspend=True)
    applied.reaches("Suspended")
    assert stage.ledger.lake.version == stage.ledger.lake.first_version
    applied.set(suspend=False)
    applied.succeeded()
    stage.done()


def test_Z7_how_long_it_is_kept_is_changed_while_it_runs(stage: Stage) -> None:
    gate = stage.points.hold(Point.READ_RESULT)
    applied = stage.table.apply(stage.ledger.make("update"))
    gate.reached()
    applied.set(ttlSecondsAfterFinished=1, priority=9)
    gate.go()
    applied.gone()
    stage.done()


def test_Z7_its_table_is_created_late_and_deleted_early(stage: Stage) -> None:
    """The LakeTable is applied after the operation, and deleted while the job runs."""
    applied = stage.table.apply(stage.ledger.make("update"), tableRef={"name": "late"})
    applied.wait(lambda status: "late" in str(status.get("conditions")))
    gate = stage.points.hold(Point.POLL_JOB)
    late = stage.world.adopt(stage.ledger.lake, "late", wait=False)
    gate.reached()
    late.applied.delete()
    gate.go()
    applied.wait(lambda status: status.get("phase") in ("Succeeded", "Failed"))
    if applied.phase == "Failed":
        stage.ledger.effects.clear()
    late.applied.gone()
    stage.done()


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("update", Point.POLL_JOB),
        ("ingest", Point.PERSIST_PLAN),
        ("compaction", Point.RECONCILE),
        ("delete", Point.WRITE_SIDECARS),
    ],
)
def test_an_operation_stops_when_its_laketable_comes_back_elsewhere(
    stage: Stage, tmp_path: Path, kind: str, point: Point
) -> None:
    """It publishes nothing on the old table, and does not begin on the new one by itself."""
    name = f"moves-{kind}"
    gate = stage.points.hold(point)
    operation = stage.ledger.make(kind)
    applied, elsewhere, moved = _moves_while_held(stage, tmp_path, operation, name, gate)
    before = elsewhere.by_deltalake()
    gate.go()
    message = applied.failed("TableReplaced").conditions[0].message
    assert "made again at another location" in message
    stage.ledger.forget(operation)
    assert elsewhere.by_deltalake() == before
    applied.delete()
    applied.gone()
    if kind == "update":
        # The next one of this name works on the new table.
        stage.table.apply(operation, applied.name, tableRef={"name": name}).succeeded()
        assert elsewhere.by_deltalake() != before
    moved.applied.delete()
    moved.applied.gone()
    stage.done()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_suspended_operation_ends_when_its_laketable_comes_back_elsewhere(
    stage: Stage, tmp_path: Path, resumed: bool
) -> None:
    """It had begun on the old table; it may be resumed before the new one is there."""
    name = "rests-resumed" if resumed else "rests"
    old = stage.world.adopt(stage.ledger.lake, name)
    gate = stage.points.hold(Point.POLL_JOB)
    operation = stage.ledger.make("update")
    applied = stage.table.apply(operation, tableRef={"name": name})
    gate.reached()
    applied.set(suspend=True)
    gate.go()
    applied.reaches("Suspended")
    old.applied.delete()
    old.applied.gone()
    if resumed:
        applied.set(suspend=False)
        applied.wait(lambda status: f"waits for LakeTable/{name}" in str(status.get("conditions")))
    (tmp_path / "elsewhere").mkdir()
    elsewhere = quick_lake.make(tmp_path / "elsewhere", loads=1)
    before = elsewhere.by_deltalake()
    moved = stage.world.adopt(elsewhere, name)
    message = applied.failed("TableReplaced").conditions[0].message
    assert "made again at another location while the operation was suspended" in message
    stage.ledger.forget(operation)
    assert elsewhere.by_deltalake() == before
    moved.applied.delete()
    moved.applied.gone()


def test_an_operation_that_had_committed_says_where_its_laketable_is_now(
    stage: Stage, tmp_path: Path
) -> None:
    gate = stage.points.hold(Point.RECORD_RESULT)
    operation = stage.ledger.make("update")
    applied, elsewhere, moved = _moves_while_held(stage, tmp_path, operation, "leaves", gate)
    before = elsewhere.by_deltalake()
    gate.go()
    applied.wait(lambda status: "its LakeTable is now at" in str(status.get("conditions")))
    message = applied.succeeded().conditions[0].message
    assert stage.ledger.lake.location in message
    assert elsewhere.location in message
    assert elsewhere.by_deltalake() == before
    moved.applied.delete()
    moved.applied.gone()
    stage.done()


def _moves_while_held(
    stage: Stage, folder: Path, operation: Operation, name: str, gate: PointGate
) -> tuple[Applied, quick_lake.QuickLake, Table]:
    """The operation at the gate; another table, where a LakeTable of the same name is now."""
    old = stage.world.adopt(stage.ledger.lake, name)
    applied = stage.table.apply(operation, tableRef={"name": name})
    gate.reached()
    old.applied.delete()
    old.applied.gone()
    (folder / "elsewhere").mkdir()
    elsewhere = quick_lake.make(folder / "elsewhere", loads=1)
    return applied, elsewhere, stage.world.adopt(elsewhere, name)


def test_a_laketable_that_comes_back_at_the_same_location_stops_nothing(stage: Stage) -> None:
    gate = stage.points.hold(Point.POLL_JOB)
    late = stage.world.adopt(stage.ledger.lake, "back")
    applied = stage.table.apply(stage.ledger.make("update"), tableRef={"name": "back"})
    gate.reached()
    late.applied.delete()
    late.applied.gone()
    again = stage.world.adopt(stage.ledger.lake, "back")
    gate.go()
    applied.succeeded()
    again.applied.delete()
    again.applied.gone()
    stage.done()


def test_operations_can_be_deleted_when_the_table_is_gone(stage: Stage) -> None:
    gate = stage.points.hold(Point.READ_RESULT)
    applied = stage.table.apply(stage.ledger.make("update"))
    gate.reached()
    shutil.rmtree(stage.ledger.lake.path)
    applied.delete()
    gate.go()
    applied.gone()
    stage.table.applied.delete()
    stage.table.applied.gone()
    await_that(lambda: not stage.world.etcd.locks(), stage.world.story)


@pytest.mark.matrix
def test_the_namespace_is_deleted_while_work_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
    ledger = Ledger(quick_lake.make(tmp_path))
    with world.dev(jobs), world.operator():
        table = world.adopt(ledger.lake)
        gate = jobs.hold("statement")
        operation = ledger.make("update")
        applied = table.apply(operation)
        gate.reached()
        world.space.client.request("DELETE", f"/api/v1/namespaces/{world.space.name}")
        applied.gone()
        table.applied.gone()
        ledger.forget(operation)
        ledger.assert_serial()
        await_that(lambda: not world.etcd.locks(), lambda: str(world.etcd.keys()))
        assert not ledger.lake.unreachable()


# Jobs --------------------------------------------------------------------------------------------


def test_the_driver_is_killed_and_the_job_tried_again(stage: Stage) -> None:
    gate = stage.jobs.hold("statement")
    applied = stage.table.apply(stage.ledger.make("update", backoffLimit=1))
    gate.reached()
    gate.die()
    assert applied.succeeded().attempt == 2
    stage.done()


def test_a_final_failure_is_retried_by_annotation(stage: Stage) -> None:
    gate = stage.jobs.hold("statement")
    applied = stage.table.apply(stage.ledger.make("update", backoffLimit=0))
    gate.reached()
    gate.die()
    applied.failed("JobFailed")
    stage.world.assert_nothing_left_behind(stage.table)
    annotation = {"metadata": {"annotations": {"tandem.dev/retry": "1"}}}
    stage.world.space.patch(applied.kind, applied.name, annotation)
    applied.wait(lambda status: status.get("phase") == "Succeeded")
    stage.done()


@pytest.mark.matrix
@pytest.mark.parametrize("where", ["job:written", "job:published"])
def test_the_machine_that_runs_the_drivers_dies(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path, where: str
) -> None:
    """`tandem dev` is killed in the middle of a job, with it all drivers; another one comes."""
    world, ledger = World.make(cluster, tmp_path), Ledger(quick_lake.make(tmp_path))
    order = world.order(role="dev", kubeconfig=str(cluster.dev_kubeconfig))
    with world.operator():
        dying = operators.start(world.order(
            role="dev", kubeconfig=str(cluster.dev_kubeconfig), blows=(Blow(where),)
        )).ready()  # fmt: skip
        table = world.adopt(ledger.lake)
        applied = table.apply(ledger.make("update", backoffLimit=3))
        assert dying.ended() == -9
        child = operators.start(order).ready()
        applied.succeeded()
        ledger.assert_serial()
        world.assert_nothing_left_behind(table)
        child.stop()


def _application(stage: Stage) -> str:
    """The name of the table's only Spark application."""
    found = [
        body["metadata"]["name"]
        for body in stage.world.space.all("SparkApplication")
        if body["metadata"]["labels"]["tandem.dev/table"] == stage.table.name
    ]
    assert len(found) == 1, found
    return str(found[0])


def _say(stage: Stage, state: str) -> None:
    """What a Spark operator might write, after `tandem dev` wrote that the job runs."""
    path = ("SparkApplication", _application(stage))

    def runs() -> bool:
        found = stage.world.space.get(*path) or {}
        begun = found.get("status", {}).get("applicationState", {}).get("state")
        return begun in ("RUNNING", "COMPLETED", "FAILED")

    await_that(runs, lambda: stage.world.space.get(*path))
    status = {"applicationState": {"state": state, "errorMessage": "said by a test"}}
    stage.world.space.patch_status(*path, status)


def test_a_job_ends_twice_after_its_result_is_there(stage: Stage) -> None:
    """COMPLETED, FAILED, COMPLETED: what counts is the result."""
    gate = stage.points.hold(Point.READ_RESULT)
    applied = stage.table.apply(stage.ledger.make("ingest", backoffLimit=0))
    gate.reached()
    for state in ("COMPLETED", "FAILED", "COMPLETED"):
        _say(stage, state)
    gate.go()
    assert applied.succeeded().attempt == 1
    stage.done()


def test_a_job_ends_twice_before_its_result_is_there(stage: Stage) -> None:
    """It is reported to have failed and tried again; then its driver, which lived, answers after
    all. Its rows are there once."""
    gate = stage.jobs.hold("ingest")
    applied = stage.table.apply(stage.ledger.make("ingest", backoffLimit=3))
    gate.reached()
    _say(stage, "FAILED")
    done = applied.succeeded()
    assert done.attempt == 2
    stage.done()
    gate.go()
    stage.table.apply(stage.ledger.make("update")).succeeded()
    stage.ledger.assert_serial()


def test_a_job_is_deleted_by_another_client(stage: Stage) -> None:
    """Its time to live is over, or an administrator tidies up."""
    gate = stage.jobs.hold("ingest")
    applied = stage.table.apply(stage.ledger.make("ingest", backoffLimit=3))
    gate.reached()
    stage.world.space.delete("SparkApplication", _application(stage))
    assert applied.succeeded().attempt == 2
    stage.done()


# Many --------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_Z6_two_operators_and_many_resources(cluster: Cluster, tmp_path: Path) -> None:
    """Both believe that they lead, all the time."""
    world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
    ledgers = [Ledger(quick_lake.make(tmp_path / str(n))) for n in range(3)]
    with ExitStack() as both:
        both.enter_context(world.dev(jobs))
        both.enter_context(world.operator(election="left", instance="left"))
        both.enter_context(world.operator(election="right", instance="right"))
        tables = [world.adopt(ledger.lake) for ledger in ledgers]
        applied = [
            table.apply(ledger.make(kind, backoffLimit=20))
            for kind in ("update", "ingest", "compaction", "delete")
            for table, ledger in zip(tables, ledgers, strict=True)
        ]
        for each in applied:
            each.reaches("Succeeded", "Superseded")
        for ledger in ledgers:
            ledger.assert_serial()
        world.assert_nothing_left_behind(*tables)


@pytest.mark.matrix
def test_many_resources_at_once(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path
) -> None:
    world = World.make(cluster, tmp_path)
    with world.dev(GatedQuickJobs()):
        child = operators.start(world.order()).ready()
        many_at_once(world, tmp_path, few(40, 100))
        child.stop()


def test_results_of_many_resources_have_versions_of_their_own(stage: Stage) -> None:
    """What a status says is what the log says."""
    applied = [stage.table.apply(stage.ledger.make("ingest", backoffLimit=9)) for _ in range(4)]
    versions = [result(each.succeeded()).version for each in applied]
    assert len(set(versions)) == 4
    stage.done()
