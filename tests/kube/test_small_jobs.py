"""Small jobs under a real API server: no SparkApplication, no slot, and no Spark operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster.child_hooks import Raises, recorded
from support.cluster.operator_thread import (
    HeldJobs,
    Operator,
    Resources,
    operating,
    quick_settings,
)
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.waiting import await_that
from tandem.jobs.runner import SMALL_BYTES
from tandem.kube import operator as operator_module
from tandem.kube.client.api import Api
from tandem.kube.runtime.slots import JobLimits
from tandem.operations.machine.events import Effect, Event, Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@dataclass
class Stage:
    space: Resources
    operator: Operator
    folder: Path
    _made: int = 0

    def lake(self) -> tuple[str, QuickLake]:
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name)
        self.space.table(name, lake.location)
        self.space.await_reason("LakeTable", name, "Adopted")
        return name, lake

    def applications(self) -> list[str]:
        group = "/apis/sparkoperator.k8s.io/v1beta2"
        path = f"{group}/namespaces/{self.space.namespace}/sparkapplications"
        found = self.space.cluster.request("GET", path)
        return [item["metadata"]["name"] for item in found["items"]]


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One job slot, which nothing here takes but what needs Spark."""
    space = Resources(cluster, cluster.namespace("small"))
    settings = quick_settings(
        cluster,
        space.namespace,
        small_job_bytes=SMALL_BYTES,
        poll_ms=60_000,  # no result is found by polling
        job_limits=JobLimits(1),
    )
    with operating(settings, HeldJobs(), spark=True) as operator:
        yield Stage(space, operator, tmp_path_factory.mktemp("small"))


def test_small_operations_need_no_application(stage: Stage) -> None:
    name, lake = stage.lake()
    rows = lake.by_tandem()
    stage.space.compaction("c", name, type="Major")
    status = stage.space.await_phase("TableCompaction", "c", "Succeeded")
    assert "application" not in status
    assert lake.by_tandem() == rows
    assert len(lake.live) == 1
    table = {"tableRef": {"name": name}}
    stage.space.create("TableUpdate", "d", {**table, "delete": {"where": "k = 1"}})
    stage.space.await_phase("TableUpdate", "d", "Succeeded")
    source = {"format": "Parquet", "location": lake.source(batch(70)).as_uri()}
    stage.space.create("TableIngest", "i", {**table, "source": source})
    stage.space.await_phase("TableIngest", "i", "Succeeded")
    lake.assert_rows(tuple(sorted((*(row for row in rows if row[1] != 1), *batch(70)))))
    assert stage.applications() == []


def test_what_needs_spark_waits_for_a_slot_and_has_an_application(stage: Stage) -> None:
    """The only slot is taken by the first one, whose application does not run here; the second one
    waits, and small jobs go on."""
    name, lake = stage.lake()
    table = {"tableRef": {"name": name}}
    spark = {**table, "delete": {"where": "ln(v + 1) > 8"}, "isolation": "WriteSerializable"}
    stage.space.create("TableUpdate", "first", spark)
    await_that(lambda: len(stage.applications()) == 1, stage.applications)
    other, _ = stage.lake()
    stage.space.create("TableUpdate", "second", {**spark, "tableRef": {"name": other}})
    status = stage.space.await_status(
        "TableUpdate", "second", lambda s: "waits until fewer" in str(s.get("conditions"))
    )
    assert status["attempt"] == 1
    third, _ = stage.lake()
    stage.space.compaction("third", third, type="Major")
    stage.space.await_phase("TableCompaction", "third", "Succeeded")
    assert len(stage.applications()) == 1
    stage.space.delete("TableUpdate", "first")
    stage.space.await_gone("TableUpdate", "first")
    stage.space.delete("TableUpdate", "second")
    stage.space.await_gone("TableUpdate", "second")
    lake.assert_clean()


def test_without_a_spark_operator_small_work_succeeds(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And large work says what to install; once that is there, it is watched."""
    served, hidden = operator_module._served, [True]

    async def without(api: Api, group: str) -> set[str]:
        if hidden and group.startswith("sparkoperator"):
            return set()
        return await served(api, group)

    monkeypatch.setattr(operator_module, "_served", without)
    monkeypatch.setattr(operator_module, "_SPARK_S", 0.2)
    space = Resources(cluster, cluster.namespace("sparkless"))
    settings = quick_settings(cluster, space.namespace, small_job_bytes=SMALL_BYTES)
    with operating(settings, HeldJobs(), spark=True) as operator:
        lake = quick_lake.make(tmp_path)
        space.table("t", lake.location)
        space.await_reason("LakeTable", "t", "Adopted")
        space.compaction("small", "t", type="Major")
        space.await_phase("TableCompaction", "small", "Succeeded")

        def watches() -> bool:
            return any("sparkapplications" in task.get_name() for task in operator.tasks())

        assert not watches()
        hidden.clear()
        await_that(watches, "a watch of SparkApplications")
        space.compaction("again", "t", type="Major")
        space.await_phase("TableCompaction", "again", "Succeeded")


def _fails(effect: Effect, perform: Callable[[], Event]) -> Event:
    if effect.point is Point.RECONCILE:
        raise RuntimeError("the test")
    return perform()


def test_what_an_earlier_operator_reported_of_an_application_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The next one finds the result, and never asks for the job."""
    space = Resources(cluster, cluster.namespace("earlier"))
    settings = quick_settings(cluster, space.namespace, small_job_bytes=1)
    jobs, lake = HeldJobs(), quick_lake.make(tmp_path)
    with operating(settings, jobs, _fails):
        space.table("t", lake.location)
        space.await_reason("LakeTable", "t", "Adopted")
        space.compaction("c", "t", type="Major")
        before = space.await_reason("TableCompaction", "c", "InternalError")
    assert before["application"] == jobs.started[0]
    with operating(settings, jobs):
        status = space.await_phase("TableCompaction", "c", "Succeeded")
    assert status["application"] == jobs.started[0]
    assert len(jobs.started) == 1


def test_a_job_whose_operation_is_given_up_leaves_its_child(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up of a deleted operation is tried once. A child that kept its job would keep its
    rows, and a thread."""
    children = recorded(monkeypatch)
    space = Resources(cluster, cluster.namespace("gives-up"))
    settings = quick_settings(cluster, space.namespace, small_job_bytes=SMALL_BYTES)
    lake = quick_lake.make(tmp_path)
    with operating(settings, HeldJobs(), configure_child=Raises(tmp_path)):
        space.table("t", lake.location)
        space.await_reason("LakeTable", "t", "Adopted")
        space.update("u", "t", "id < 12", {"v": "v + 1"})
        space.await_reason("TableUpdate", "u", "InternalError")
        child = children.only()
        assert child.services.at_work
        space.delete("TableUpdate", "u")
        space.await_gone("TableUpdate", "u")
        await_that(lambda: not child.services.at_work, "its job stays")
        assert children.only() is child
