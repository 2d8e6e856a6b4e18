"""Scenarios of RFC-48 in a cluster: LogCompaction and LogMerge through API server and etcd, by an
operator with its own service account. Jobs run without Spark; `test_scenarios` has both kinds of
jobs on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs, PointGates
from kube.kube_scenarios import Applied, Table, World
from support.jobs import quick_lake
from support.lake.lake import result
from support.lake.log_blocks import LogBlocks
from support.lake.rows import Rows, id_in, join, rows, without
from tandem.operations.machine.events import Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

LOADED = rows(range(20))
UPSERTED = tuple((n, 0, -n) for n in range(5, 25))
VIEW = join(without(LOADED, id_in([*range(5, 25), 1])), UPSERTED[2:])
"""After three appends: upserts of 5 to 14 and 10 to 24, deletes of 1, 5 and 6."""


class Stage:
    """A table of two loads with a log of three blocks, made by its LakeTable."""

    def __init__(self, world: World, points: PointGates, jobs: GatedQuickJobs, folder: Path):
        self.world, self.points, self.jobs = world, points, jobs
        self.lake = quick_lake.make(folder, loads=2)
        self.table = world.adopt(self.lake, mergeOnRead={"keys": ["id"]})
        self.log = LogBlocks(self.lake.location, "shop")
        self.log.upsert(UPSERTED[:10])
        self.log.upsert(UPSERTED[5:])
        self.log.delete(1, 5, 6)

    def compact(self, name: str = "stitch") -> Applied:
        return apply(self.table, "LogCompaction", name)

    def merge(self) -> Applied:
        return apply(self.table, "LogMerge")

    def done(self, view: Rows = VIEW) -> None:
        """The merged view is this one, and nothing is left behind."""
        assert self.log.view() == view
        self.world.assert_nothing_left_behind(self.table)


def apply(table: Table, what: str, name: str = "") -> Applied:
    lake = table.lake
    if what == "LogMerge":
        return table.apply(lake.compaction("LogMerge"), name)
    operation = lake.resource("LogCompaction", {"strategy": "AllBlocks"})
    return table.apply(operation, f"{table.name}-{name}" if name else "")


@pytest.fixture(scope="module")
def running(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, PointGates, GatedQuickJobs]]:
    world = World.make(cluster, tmp_path_factory.mktemp("world"))
    points, jobs = PointGates(), GatedQuickJobs()
    with world.dev(jobs), world.operator(points.interceptor):
        yield world, points, jobs


@pytest.fixture
def stage(running: tuple[World, PointGates, GatedQuickJobs], tmp_path: Path) -> Stage:
    return Stage(*running, tmp_path)


def test_L0_blocks_go_three_one_none_and_no_view_changes(stage: Stage, cluster: Cluster) -> None:
    assert stage.log.blocks() == [(1, 1), (2, 2), (3, 3)]
    compaction = stage.compact()
    found = result(compaction.succeeded())
    assert (found.blocks_in, found.blocks_out, found.instants) == (3, 1, ("1-3",))
    shown = cluster.kubectl("get", "lcomp", compaction.name, "-n", stage.world.space.name)
    names, values = (line.split()[1:6] for line in shown.splitlines())
    assert names == ["TABLE", "STRATEGY", "PHASE", "BLOCKS-IN", "BLOCKS-OUT"]
    assert values == [stage.table.name, "AllBlocks", "Succeeded", "3", "1"]
    assert (stage.log.blocks(), stage.log.view()) == ([(1, 3)], VIEW)
    assert stage.lake.by_deltalake() == LOADED
    stage.merge().succeeded()
    assert (stage.log.blocks(), stage.lake.by_deltalake()) == ([], VIEW)
    stage.done()


def test_L1_a_block_that_is_appended_meanwhile_comes_after_the_stitched_one(stage: Stage) -> None:
    gate = stage.jobs.hold("stitch")
    compaction = stage.compact()
    gate.reached()
    stage.log.delete(7)
    gate.go()
    compaction.succeeded()
    assert stage.log.blocks() == [(1, 3), (4, 4)]
    stage.done(without(VIEW, id_in([7])))


def test_L2_a_log_compaction_that_fails_leaves_the_originals(stage: Stage) -> None:
    gate = stage.jobs.hold("stitch")
    compaction = stage.compact()
    gate.reached()
    gate.die()
    compaction.failed("JobFailed")
    stage.log.delete(7)
    # Its attempt was abandoned by a commit of the log, which is no block.
    assert [first for first, _ in stage.log.blocks()][:3] == [1, 2, 3]
    assert len(stage.log.blocks()) == 4
    stage.done(without(VIEW, id_in([7])))


@pytest.mark.parametrize("point", [Point.START_JOB, Point.PUT_COMMIT, None])
def test_L4_a_merge_beside_a_log_compaction_changes_no_view(
    stage: Stage, point: Point | None
) -> None:
    """The merge is planned, or about to commit, or has committed when the log compaction does."""
    gate = stage.jobs.hold("stitch")
    compaction = stage.compact()
    gate.reached()
    held = None if point is None else stage.points.hold(point)
    merge = stage.merge()
    if held is not None:
        held.reached()
    else:
        merge.succeeded()
    gate.go()
    compaction.succeeded()
    assert stage.log.view() == VIEW
    if held is not None:
        held.go()
        merge.succeeded()
    assert (stage.log.blocks(), stage.lake.by_deltalake()) == ([], VIEW)
    stage.done()


def test_L9_blocks_that_a_merge_reads_are_left_alone_and_newer_ones_are_not(stage: Stage) -> None:
    gate = stage.jobs.hold("log_merge")
    merge = stage.merge()
    gate.reached()
    stage.log.delete(7)
    stage.log.delete(8)
    assert result(stage.compact().succeeded()).instants == ("4-5",)
    gate.go()
    merge.succeeded()
    assert stage.log.blocks() == [(4, 5)]
    assert stage.lake.by_deltalake() == VIEW
    stage.done(without(VIEW, id_in([7, 8])))


def test_L10_of_two_log_compactions_one_takes_the_blocks(stage: Stage) -> None:
    gate = stage.jobs.hold("stitch")
    first = stage.compact("first")
    gate.reached()
    second = stage.compact("second")
    second.succeeded()
    assert second.reason == "NothingToDo"
    gate.go()
    assert result(first.succeeded()).blocks_in == 3
    assert stage.log.blocks() == [(1, 3)]
    stage.done()


def test_L12_an_append_that_began_before_a_log_compaction_does_not_abort(stage: Stage) -> None:
    slow = LogBlocks(stage.lake.location, "slow")
    slow.begin()
    stage.compact().succeeded()
    slow.delete(7)
    assert stage.log.blocks() == [(1, 3), (5, 5)]
    stage.done(without(VIEW, id_in([7])))


@pytest.mark.parametrize("what", ["LogCompaction", "LogMerge"])
def test_a_table_without_a_log_is_refused_by_name(
    running: tuple[World, PointGates, GatedQuickJobs], tmp_path: Path, what: str
) -> None:
    lake = quick_lake.make(tmp_path, loads=1)
    table = running[0].adopt(lake)
    status = apply(table, what).failed("NotMergeOnRead")
    assert "Set spec.mergeOnRead of its LakeTable" in status.conditions[0].message
    assert lake.version == lake.first_version


def test_other_operations_are_refused_at_the_location_of_a_log(stage: Stage) -> None:
    """A LakeTable there is not adopted, so that no operation begins."""
    version = stage.log.version
    at_log = quick_lake.at(f"{stage.lake.location}/_tandem/log")
    table = stage.world.adopt(at_log, wait=False)
    table.applied.wait(lambda status: status.get("phase") == "Failed")
    assert "tandem.mergeLog" in str(table.applied.condition("Ready"))
    update = table.apply(at_log.delete("id = 1"))
    update.wait(lambda status: "WaitingForDependency" in str(status.get("conditions")))
    update.delete()
    update.gone()
    assert stage.log.version == version
    stage.done()
