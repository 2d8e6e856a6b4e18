"""Controllers in child processes of the operator, under a real API server: what ends a child costs
its operations one attempt, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.child_stage import Stage, settings_of
from support.cluster.child_hooks import Halts, kill, recorded
from support.cluster.operator_thread import Resources, operating
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.waiting import await_that
from tandem.kube.children import processes
from tandem.operations.machine.events import Point
from tandem.spec.common import Operation

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One operator, whose children begin without pauses however many have ended."""
    folder = tmp_path_factory.mktemp("children")
    space = Resources(cluster, cluster.namespace("children"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "_PAUSES_S", (0.0,))
        stage = Stage(space, folder, Halts(folder), recorded(patched))
        settings = settings_of(cluster, space.namespace)
        with operating(settings, stage.jobs, configure_child=stage.halts):
            yield stage


# What is done in a child

KINDS: dict[str, Callable[[QuickLake], Operation]] = {
    "compaction": lambda lake: lake.compaction("Major"),
    "sort": lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}),
    "update": lambda lake: lake.update("id < 12", v="v + 1"),
    "delete": lambda lake: lake.delete("k = 3"),
    "merge": lambda lake: lake.merge(batch(1) + batch(90)),
    "ingest": lambda lake: lake.ingest(batch(70)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_operation_needs_no_application(stage: Stage, kind: str, tmp_path: Path) -> None:
    before = len(stage.jobs.started)
    table, lake = stage.lake()
    status = stage.space.await_end(*stage.apply(table, KINDS[kind](lake)))
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1), status
    assert len(stage.jobs.started) == before
    assert_like_twin(lake, kind, tmp_path)


def assert_like_twin(lake: QuickLake, kind: str, folder: Path) -> None:
    """The table has the rows that the operation leads to elsewhere, and no garbage."""
    twin = quick_lake.make(folder / "twin")
    twin.do(KINDS[kind](twin))
    lake.assert_rows(twin.by_tandem())
    lake.assert_clean()


# Deaths

POINTS = (
    Point.READ_TABLE,
    Point.CLAIM_ATTEMPT,
    Point.PERSIST_PLAN,
    Point.START_JOB,
    Point.POLL_JOB,
    Point.RECONCILE,
    Point.PUT_COMMIT,
    Point.RECORD_RESULT,
    Point.RELEASE_LOCKS,
)
_LOSES_A_JOB = (Point.POLL_JOB, Point.RECONCILE, Point.PUT_COMMIT)


@pytest.mark.part(5)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_is_killed_costs_one_attempt(
    stage: Stage, kind: str, point: Point, tmp_path: Path
) -> None:
    """And what had begun in it has an application next."""
    before = len(stage.jobs.started)
    table, lake = stage.lake()
    stage.halts.at(point)
    operation = stage.apply(table, KINDS[kind](lake))
    stage.halts.await_reached()
    kill(stage.children.only())
    status = stage.space.await_end(*operation)
    lost = point in _LOSES_A_JOB
    assert status["phase"] == "Succeeded", status
    assert status["attempt"] <= 2
    assert len(stage.jobs.started) - before == lost
    if lost:
        assert status["attempt"] == 2
        assert status["application"] == stage.jobs.started[-1]
    assert_like_twin(lake, kind, tmp_path)


def test_an_operation_that_may_not_try_again_fails_with_its_child(stage: Stage) -> None:
    table, lake = stage.lake()
    rows = lake.by_tandem()
    stage.halts.at(Point.RECONCILE)
    operation = stage.apply(table, lake.delete("k = 3"), backoffLimit=0)
    stage.halts.await_reached()
    kill(stage.children.only())
    assert stage.space.await_end(*operation)["phase"] == "Failed"
    lake.assert_rows(rows)
    lake.assert_clean()


def test_operations_of_other_tables_go_on_in_the_next_child(stage: Stage, tmp_path: Path) -> None:
    """One is halted where its child dies, the other one waits for a job of a cluster meanwhile."""
    (one, first), (two, second) = stage.lake(), stage.lake()
    with stage.jobs.held():
        spark = second.delete("ln(v + 1) > 8")
        before = len(stage.jobs.started)
        waits = stage.apply(two, spark, backoffLimit=0)
        await_that(lambda: len(stage.jobs.started) > before, "its job is not started")
        stage.halts.at(Point.RECONCILE)
        operation = stage.apply(one, KINDS["update"](first))
        stage.halts.await_reached()
        kill(stage.children.only())
    assert stage.space.await_end(*operation)["attempt"] == 2
    assert stage.space.await_end(*waits)["phase"] == "Succeeded"
    assert len(stage.jobs.started) == before + 2
    assert_like_twin(first, "update", tmp_path)
    second.assert_clean()


def test_a_deleted_operation_is_cancelled_in_the_child(stage: Stage) -> None:
    table, lake = stage.lake()
    rows = lake.by_tandem()
    stage.halts.at(Point.RECONCILE)
    kind, name = stage.apply(table, KINDS["update"](lake))
    stage.halts.await_reached()
    stage.space.delete(kind, name)
    stage.halts.await_asked()
    stage.halts.go()
    await_that(lambda: not lake.unreachable(), lake.unreachable)
    lake.assert_rows(rows)
    lake.assert_clean()
    assert_unlocked(stage, table, lake)


def test_a_clean_up_goes_on_when_its_child_has_died(stage: Stage) -> None:
    table, lake = stage.lake()
    rows = lake.by_tandem()
    with stage.jobs.held():
        before = len(stage.jobs.started)
        kind, name = stage.apply(table, lake.delete("ln(v + 1) > 8"))
        await_that(lambda: len(stage.jobs.started) > before, "its job is not started")
        stage.halts.at(Point.STOP_JOB)
        stage.space.delete(kind, name)
        stage.halts.await_reached()
        kill(stage.children.only())
        await_that(
            lambda: stage.jobs.stopped[-1:] == stage.jobs.started[-1:], "its job is not stopped"
        )
        await_that(lambda: not lake.unreachable(), lake.unreachable)
    lake.assert_rows(rows)
    lake.assert_clean()
    assert_unlocked(stage, table, lake)


def test_a_suspended_operation_is_resumed(stage: Stage, tmp_path: Path) -> None:
    table, lake = stage.lake()
    stage.halts.at(Point.START_JOB)
    kind, name = stage.apply(table, KINDS["update"](lake))
    stage.halts.await_reached()
    stage.space.patch(kind, name, {"spec": {"suspend": True}})
    stage.halts.await_asked()
    stage.halts.go()
    stage.space.await_phase(kind, name, "Suspended")
    stage.space.patch(kind, name, {"spec": {"suspend": False}})
    assert stage.space.await_end(kind, name)["phase"] == "Succeeded"
    assert_like_twin(lake, "update", tmp_path)


def assert_unlocked(stage: Stage, table: str, lake: QuickLake) -> None:
    """Nothing holds a lock that the whole table needs."""
    operation = stage.apply(table, lake.update("id >= 0", v="v + 2"))
    assert stage.space.await_end(*operation)["phase"] == "Succeeded"
