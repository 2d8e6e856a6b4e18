"""Controllers in child processes of the operator, under a real API server: what ends a child costs
its operations one attempt, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.child_hooks import Children, Halts, kill, recorded
from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from tandem.jobs.runner import SMALL_BYTES
from tandem.kube.children import processes
from tandem.operations.machine.events import Point
from tandem.spec.common import Operation

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from tandem.kube.runtime.context import OperatorSettings

Json = dict[str, Any]
TABLE = "LakeTable"


@dataclass
class Stage:
    """A namespace whose controllers run in a child, which may halt."""

    space: Resources
    folder: Path
    halts: Halts
    children: Children
    jobs: HeldJobs = field(default_factory=HeldJobs)
    _made: int = 0

    def lake(self) -> tuple[str, QuickLake]:
        """A table that is ready."""
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name)
        lake.count += 1000 * self._made  # its operations have names of their own
        lake.backoff_limit = 1
        self.space.table(name, lake.location)
        self.space.await_phase(TABLE, name, "Succeeded")
        return name, lake

    def apply(self, table: str, operation: Operation, **spec: Any) -> tuple[str, str]:
        """Create the operation; its kind and name."""
        body = {**operation.manifest()["spec"], "tableRef": {"name": table}, **spec}
        self.space.create(operation.kind_name, operation.name, body)
        return operation.kind_name, operation.name


def settings_of(cluster: Cluster, *namespaces: str, **changes: Any) -> OperatorSettings:
    more = {"small_job_bytes": SMALL_BYTES, "in_children": True, **changes}
    return quick_settings(cluster, *namespaces, **more)


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
