"""The whole way but Spark itself: the operator makes SparkApplications, `tandem dev` runs them,
each as a service account of its own; the Spark operator's CRD validates what is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.jobs import quick_lake
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"


class Stage:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.space = Resources(cluster, cluster.namespace("spark"))
        self.jobs = HeldJobs()
        self.lake = quick_lake.make(folder)
        self.space.table("t", self.lake.location)
        self.settings = quick_settings(cluster, self.space.namespace)

    def applications(self) -> list[dict[str, Any]]:
        url = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/"
        url += f"{self.space.namespace}/sparkapplications"
        found: list[dict[str, Any]] = self.space.cluster.request("GET", url)["items"]
        return found


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(cluster, tmp_path)
    with (
        spark_operator(cluster, made.space.namespace, made.jobs),
        operating(made.settings, made.jobs, spark=True),
    ):
        yield made


def test_an_operation_makes_one_application_and_ends(stage: Stage) -> None:
    with stage.jobs.held():
        made = stage.space.compaction("m", "t", sparkTemplate={"spec": {"driver": {"cores": 1}}})
        stage.space.await_phase(KIND, "m", "Running")
        await_that(lambda: len(stage.applications()) == 1, lambda: stage.applications())
        (application,) = stage.applications()
        (owner,) = application["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == (KIND, "m", made["metadata"]["uid"])
        labels = application["metadata"]["labels"]
        assert labels["tandem.dev/table"] == "t"
        assert labels["app.kubernetes.io/managed-by"] == "tandem"
    status = stage.space.await_end(KIND, "m")
    assert status["phase"] == "Succeeded"
    assert len(stage.jobs.started) == 1
    stage.lake.assert_clean()


def test_its_whole_life_costs_few_writes(stage: Stage) -> None:
    stage.space.compaction("m", "t")
    stage.space.await_end(KIND, "m")
    url = f"/api/v1/namespaces/{stage.space.namespace}/events"
    await_that(
        lambda: len(stage.space.cluster.request("GET", url)["items"]) >= 3,
        lambda: stage.space.cluster.request("GET", url)["items"],
    )
    writes = [
        (entry["verb"], entry["objectRef"]["resource"], entry["objectRef"].get("subresource"))
        for entry in stage.space.cluster.writes(stage.space.namespace)
        if "tandem-operator" in str(entry["user"])
        and entry["objectRef"]["resource"] != "laketables"
    ]
    # One of the events is the table's.
    assert len(writes) - 1 <= 12, writes


def test_a_deleted_operation_takes_its_application_along(stage: Stage) -> None:
    with stage.jobs.held():
        stage.space.compaction("m", "t")
        stage.space.await_phase(KIND, "m", "Running")
        stage.space.delete(KIND, "m")
        stage.space.await_gone(KIND, "m")
        await_that(lambda: not stage.applications(), lambda: stage.applications())
    stage.lake.assert_clean()


def test_a_template_that_sets_reserved_fields_is_refused(stage: Stage) -> None:
    template = {"spec": {"restartPolicy": {"type": "Always"}}}
    stage.space.compaction("m", "t", sparkTemplate=template)
    status = stage.space.await_end(KIND, "m")
    assert status["phase"] == "Failed"
    assert "restartPolicy" in str(status["conditions"])
