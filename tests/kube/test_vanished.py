"""Resources have no finalizer of ours: deleted, they go at once, and what was done for them
ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster.api_proxy import ApiProxy
from support.cluster.operator_thread import HeldJobs, Operator, Resources, operating, quick_settings
from support.jobs import quick_lake
from support.waiting import await_that
from tandem.kube.controllers.table import TableController
from tandem.spec.common import FINALIZER

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

TABLE, COMPACTION = "LakeTable", "TableCompaction"


@dataclass
class Stage:
    space: Resources
    jobs: HeldJobs
    proxy: ApiProxy
    lives: set[TableController]
    folder: Path
    operator: Operator

    def controllers(self) -> int:
        """How many resources are controlled."""
        return sum(task.get_name() == "control a resource" for task in self.operator.tasks())


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """An operator behind a proxy; who tends a LakeTable is in `lives`."""
    space, jobs = Resources(cluster, cluster.namespace("vanished")), HeldJobs()
    folder, lives = tmp_path_factory.mktemp("vanished"), set[TableController]()
    really = TableController._live

    async def live(life: TableController) -> None:
        lives.add(life)
        try:
            await really(life)
        finally:
            lives.discard(life)

    with (
        pytest.MonkeyPatch.context() as patch,
        ApiProxy(cluster.operator_kubeconfig) as proxy,
    ):
        patch.setattr(TableController, "_live", live)
        settings = quick_settings(
            cluster,
            space.namespace,
            kubeconfig=proxy.kubeconfig(folder),
        )
        with operating(settings, jobs, here=True) as operator:
            yield Stage(space, jobs, proxy, lives, folder, operator)


def table(stage: Stage, name: str, folder: str = "") -> quick_lake.QuickLake:
    """A LakeTable that is adopted."""
    lake = quick_lake.make(stage.folder / (folder or name))
    stage.space.table(name, lake.location)
    stage.space.await_reason(TABLE, name, "Adopted")
    return lake


def finalizers(stage: Stage, kind: str, name: str) -> list[str]:
    found = stage.space.get(kind, name)
    assert found is not None
    names: list[str] = found["metadata"].get("finalizers", [])
    return names


def await_untended(stage: Stage) -> None:
    """No resource is controlled."""
    await_that(lambda: not stage.lives, lambda: stage.lives)
    await_that(lambda: not stage.controllers(), lambda: f"{stage.controllers()} controllers")


def test_a_laketable_goes_at_once_and_its_name_is_free(stage: Stage) -> None:
    table(stage, "t", "first")
    assert not finalizers(stage, TABLE, "t")
    assert (len(stage.lives), stage.controllers()) == (1, 1)
    stage.space.delete(TABLE, "t")
    assert stage.space.get(TABLE, "t") is None
    await_untended(stage)

    lake = table(stage, "t", "second")
    stage.space.compaction("m", "t")
    assert stage.space.await_end(COMPACTION, "m")["phase"] == "Succeeded"
    lake.assert_clean()
    # Made again in the same moment, it has another life.
    stage.space.delete(TABLE, "t")
    table(stage, "t", "third")
    await_that(lambda: len(stage.lives) == 1, lambda: stage.lives)
    stage.space.delete(TABLE, "t")
    await_untended(stage)


def test_a_laketable_whose_deletion_was_missed(stage: Stage) -> None:
    """The watch is frozen while it is deleted, and then lists what there is."""
    table(stage, "unseen")
    assert stage.proxy.freeze_watches("laketables") > 0
    stage.space.delete(TABLE, "unseen")
    assert stage.proxy.expire_watches("laketables") > 0
    await_that(lambda: not stage.lives, lambda: stage.lives)
    stage.space.compaction("orphan", "unseen")
    stage.space.await_reason(COMPACTION, "orphan", "WaitingForDependency")
    table(stage, "unseen", "again")
    assert stage.space.await_end(COMPACTION, "orphan")["phase"] == "Succeeded"
    stage.space.delete(TABLE, "unseen")
    await_untended(stage)


@pytest.mark.parametrize("suspended", [True, False])
def test_an_operation_whose_deletion_was_missed(stage: Stage, suspended: bool) -> None:
    """It waits, or is suspended, and nothing is written to it by which that could be found out.
    What it waits for comes then."""
    name = f"unseen-{'suspended' if suspended else 'waiting'}"
    lake = table(stage, name)
    behind = [{"kind": COMPACTION, "name": f"{name}-before"}]
    options = {"suspend": True} if suspended else {"dependsOn": behind}
    stage.space.update(name, name, "k >= 0", {"v": "v + 1"}, **options)
    reason = "Suspended" if suspended else "WaitingForDependency"
    stage.space.await_reason("TableUpdate", name, reason)
    rows, before = lake.by_tandem(), stage.controllers()
    assert stage.proxy.freeze_watches("tableupdates") > 0
    stage.space.delete("TableUpdate", name)
    assert stage.proxy.expire_watches("tableupdates") > 0
    await_that(lambda: stage.controllers() == before - 1, lambda: stage.controllers())
    stage.space.compaction(f"{name}-before", name)
    assert stage.space.await_end(COMPACTION, f"{name}-before")["phase"] == "Succeeded"
    lake.assert_rows(rows)
    stage.space.delete(TABLE, name)
    await_untended(stage)


def test_an_operation_that_vanishes_is_cancelled_and_releases_its_locks(stage: Stage) -> None:
    lake = table(stage, "busy")
    with stage.jobs.held():
        stage.space.compaction("doomed", "busy")
        stage.space.await_phase(COMPACTION, "doomed", "Running")
        assert not finalizers(stage, COMPACTION, "doomed")
        stage.space.compaction("waiting", "busy", targetFileSize="64Mi")
        stage.space.await_reason(COMPACTION, "waiting", "WaitingForLock")
        doomed = stage.jobs.started[-1]
        stage.space.delete(COMPACTION, "doomed")
        assert stage.space.get(COMPACTION, "doomed") is None
        # Its locks are free: the other one's job starts.
        stage.space.await_phase(COMPACTION, "waiting", "Running")
        assert stage.jobs.stopped[-1] == doomed
        # Created again, it starts again, and waits for the other one now.
        stage.space.compaction("doomed", "busy")
        stage.space.await_reason(COMPACTION, "doomed", "WaitingForLock")
    assert stage.space.await_end(COMPACTION, "waiting")["phase"] == "Succeeded"
    assert stage.space.await_end(COMPACTION, "doomed")["phase"] == "Succeeded"
    lake.assert_clean()
    stage.space.delete(TABLE, "busy")
    await_untended(stage)


def test_an_operation_goes_together_with_its_table(stage: Stage) -> None:
    lake = table(stage, "both")
    with stage.jobs.held():
        stage.space.compaction("both", "both")
        stage.space.await_phase(COMPACTION, "both", "Running")
        stage.space.delete(TABLE, "both")
        stage.space.delete(COMPACTION, "both")
        await_untended(stage)
        assert stage.jobs.stopped[-1] == stage.jobs.started[-1]
    lake.assert_clean()


def test_the_finalizer_of_an_earlier_release_is_taken_off(stage: Stage) -> None:
    lake, space = quick_lake.make(stage.folder / "older"), stage.space
    space.create(TABLE, "older", {"location": lake.location}, finalizers=[FINALIZER])
    with stage.jobs.held():
        spec = {"tableRef": {"name": "older"}, "type": "Minor"}
        space.create(COMPACTION, "older", spec, finalizers=[FINALIZER])
        space.await_phase(COMPACTION, "older", "Running")
        kinds = (TABLE, COMPACTION)
        await_that(
            lambda: not any(finalizers(stage, kind, "older") for kind in kinds),
            "a finalizer is kept",
        )
    space.await_end(COMPACTION, "older")
    lake.assert_clean()
