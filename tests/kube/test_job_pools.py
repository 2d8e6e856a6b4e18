"""Job pools under a real API server: one application does the jobs of many operations. The driver's
loop is the real one; `tandem dev` stands for the Spark operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster_processes import REPOSITORY
from support.cluster.api_proxy import ApiProxy, Refuse
from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import (
    Resources,
    operating,
    quick_settings,
)
from support.jobs import quick_lake
from support.jobs.pooling_jobs import PoolingJobs
from support.waiting import await_that
from tandem.jobs.pool import PoolRules

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from tandem.kube.runtime.context import OperatorSettings

Json = dict[str, Any]
KIND = "TableCompaction"
RULES = PoolRules(slots=2, idle_s=3_600.0)


def grant(cluster: Cluster, namespace: str, role: str, account: str) -> None:
    """Bind a role of `examples/cluster/rbac-job-pools.yaml` in a namespace."""
    bodies = yaml.safe_load_all((REPOSITORY / "examples/cluster/rbac-job-pools.yaml").read_text())
    (rules,) = [body["rules"] for body in bodies if body["metadata"]["name"] == role]
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    cluster.request("POST", f"{base}/roles", {"metadata": {"name": role}, "rules": rules})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "tandem-system"}],
    }
    cluster.request("POST", f"{base}/rolebindings", binding)


class Stage:
    def __init__(self, cluster: Cluster, folder: Path, *, granted: bool = True) -> None:
        self.cluster, self.folder = cluster, folder
        self.space = Resources(cluster, cluster.namespace("pools"))
        self.jobs = PoolingJobs()
        self.lakes: dict[str, quick_lake.QuickLake] = {}
        if granted:
            namespace = self.space.namespace
            grant(cluster, namespace, "tandem-operator-job-pools", "tandem-operator")
            # The driver of a pool has the rights of `tandem dev` here.
            grant(cluster, namespace, "tandem-job-pool", "tandem-dev")

    def table(self, name: str, **spec: Any) -> None:
        self.lakes[name] = quick_lake.make(self.folder / name)
        self.space.table(name, self.lakes[name].location, **spec)

    def settings(self, rules: PoolRules = RULES) -> OperatorSettings:
        # Time to wait for the end of a job.
        return quick_settings(self.cluster, self.space.namespace, job_pools=rules, cancel_s=120.0)

    def secret(self, name: str, value: str) -> None:
        url = f"/api/v1/namespaces/{self.space.namespace}/secrets"
        body = {"metadata": {"name": name}, "stringData": {"AWS_ACCESS_KEY_ID": value}}
        self.cluster.request("POST", url, body)

    def applications(self) -> list[Json]:
        url = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/"
        url += f"{self.space.namespace}/sparkapplications"
        found: list[Json] = self.cluster.request("GET", url)["items"]
        return found

    def delete_application(self, name: str) -> None:
        url = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/"
        url += f"{self.space.namespace}/sparkapplications/{name}"
        self.cluster.request("DELETE", url)

    def pool_maps(self) -> list[Json]:
        url = f"/api/v1/namespaces/{self.space.namespace}/configmaps"
        found: list[Json] = self.cluster.request("GET", f"{url}?labelSelector=tandem.dev/job-pool")[
            "items"
        ]
        return found

    def jobs_left(self) -> list[str]:
        return [key for body in self.pool_maps() for key in body["data"] if key != "state"]

    def leave_running(self) -> None:
        """An operator ends while a job of compaction `m` on table `t` runs in a pool."""
        self.jobs.opened.clear()
        with operating(self.settings(), self.jobs, spark=True):
            self.space.compaction("m", "t")
            await_that(lambda: len(self.jobs.pooled) == 1, lambda: self.jobs.pooled)
            self.space.await_phase(KIND, "m", "Running")

    def succeed(self, *names: str) -> None:
        for name in names:
            assert self.space.await_end(KIND, name)["phase"] == "Succeeded"


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(cluster, tmp_path)
    with (
        spark_operator(cluster, made.space.namespace, made.jobs),
        operating(made.settings(), made.jobs, spark=True),
    ):
        yield made
    made.jobs.close()


def test_one_application_does_the_jobs_of_many_operations(stage: Stage) -> None:
    for name in ("a", "b", "c", "d"):
        stage.table(name)
    for name in ("a", "b", "c"):
        stage.space.compaction(name, name)
    deleted = {"tableRef": {"name": "d"}, "delete": {"where": "id = 1"}}
    stage.space.create("TableUpdate", "u", deleted)
    stage.succeed("a", "b", "c")
    assert stage.space.await_end("TableUpdate", "u")["phase"] == "Succeeded"
    (application,) = stage.applications()
    name = application["metadata"]["name"]
    (record,) = [each for each in stage.pool_maps() if each["metadata"]["name"] == name]
    assert application["metadata"]["labels"]["tandem.dev/job-pool"] in name
    (owner,) = application["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", record["metadata"]["uid"])
    pod = application["spec"]["driver"]["template"]["spec"]
    assert "automountServiceAccountToken" not in pod
    assert len(stage.jobs.pooled) == 4
    assert not stage.jobs.started
    # What has ended leaves nothing in it.
    await_that(lambda: not stage.jobs_left(), stage.jobs_left)
    for lake in stage.lakes.values():
        lake.assert_clean()


def test_tables_with_other_credentials_and_templates_have_other_pools(stage: Stage) -> None:
    for name in ("one", "two"):
        stage.secret(name, name)
        stage.table(name, storage={"secretRef": {"name": name}})
        stage.space.compaction(name, name)
    stage.table("open")
    stage.space.compaction("open", "open")
    stage.table("templated")
    template = {"spec": {"driver": {"cores": 1}}}
    stage.space.compaction("templated", "templated", sparkTemplate=template)
    stage.table("alone", jobs={"pool": "Never"})
    stage.space.compaction("alone", "alone")
    stage.succeed("one", "two", "open", "templated", "alone")
    assert len(stage.jobs.started) == 1
    found = {
        (
            str(
                (each["spec"]["driver"].get("envFrom") or [{}])[0].get("secretRef", {}).get("name")
            ),
            each["spec"]["driver"]["cores"],
        )
        for each in stage.applications()
        if each["metadata"]["name"].startswith("tandem-pool-")
    }
    assert found == {("one", 2), ("two", 2), ("None", 2), ("None", 1)}
    begun = [pool.jobs.begun for pool in stage.jobs.pools.values()]
    assert [len(names) for names in begun if names] == [1, 1, 1, 1]


@pytest.mark.parametrize("how", ["killed", "deleted", "application deleted"])
def test_the_jobs_of_a_dead_pool_start_again_by_themselves(stage: Stage, how: str) -> None:
    stage.table("t")
    stage.jobs.opened.clear()
    stage.space.compaction("m", "t")
    await_that(lambda: len(stage.jobs.pooled) == 1, lambda: stage.jobs.pooled)
    if how == "killed":
        (pool,) = stage.jobs.pools.values()
        pool.kill()
    elif how == "application deleted":
        for application in stage.applications():
            stage.delete_application(application["metadata"]["name"])
    else:
        for record in stage.pool_maps():
            name = record["metadata"]["name"]
            url = f"/api/v1/namespaces/{stage.space.namespace}/configmaps/{name}"
            stage.cluster.request("DELETE", url)
    stage.succeed("m")
    assert len(stage.jobs.started) == 1
    assert len(stage.jobs.pools) == 1
    stage.lakes["t"].assert_clean()


def test_a_deleted_operation_takes_its_job_along_and_leaves_the_others(stage: Stage) -> None:
    stage.table("t")
    stage.table("other")
    stage.jobs.opened.clear()
    stage.space.compaction("m", "t")
    stage.space.compaction("n", "other")
    await_that(lambda: len(stage.jobs.pooled) == 2, lambda: stage.jobs.pooled)
    stage.space.delete(KIND, "m")
    stage.space.await_gone(KIND, "m")
    (pool,) = stage.jobs.pools.values()
    withdrawn = [event for event in pool.jobs.withdrawn.values() if event.is_set()]
    assert len(withdrawn) == 1
    stage.jobs.opened.set()
    stage.succeed("n")
    await_that(lambda: not stage.jobs_left(), stage.jobs_left)
    for lake in stage.lakes.values():
        lake.assert_clean()


def test_a_table_deleted_while_its_job_waits_leaves_no_job(stage: Stage) -> None:
    """Both slots are taken: the third job waits in the pool. Its operation goes on without the
    LakeTable."""
    stage.jobs.opened.clear()
    for name in ("a", "b"):
        stage.table(name)
        stage.space.compaction(name, name)
    await_that(lambda: len(stage.jobs.pooled) == 2, lambda: stage.jobs.pooled)
    stage.table("t")
    stage.space.compaction("late", "t")

    def posted() -> bool:
        return len([key for key in stage.jobs_left() if key.startswith("job.")]) == 3

    await_that(posted, stage.jobs_left)
    stage.space.delete("LakeTable", "t")
    stage.space.await_gone("LakeTable", "t")
    assert len(stage.jobs.pooled) == 2
    stage.jobs.opened.set()
    stage.succeed("a", "b", "late")
    await_that(lambda: not stage.jobs_left(), stage.jobs_left)
    stage.lakes["t"].assert_clean()


def test_a_new_operator_finds_the_jobs_of_the_last_one(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(cluster, tmp_path)
    stage.table("t")
    with spark_operator(cluster, stage.space.namespace, stage.jobs):
        stage.leave_running()
        with operating(stage.settings(), stage.jobs, spark=True):
            stage.jobs.opened.set()
            stage.succeed("m")
        assert len(stage.jobs.pooled) == 1
        assert not stage.jobs.started
    stage.jobs.close()
    stage.lakes["t"].assert_clean()


@pytest.mark.parametrize("status", [401, 403])
def test_a_new_operator_that_may_not_read_pools_for_a_while_starts_no_job_twice(
    cluster: Cluster, tmp_path: Path, status: int
) -> None:
    stage = Stage(cluster, tmp_path)
    stage.table("t")

    with spark_operator(cluster, stage.space.namespace, stage.jobs):
        stage.leave_running()
        with ApiProxy(cluster.operator_kubeconfig) as proxy:
            settings = replace(stage.settings(), kubeconfig=proxy.kubeconfig(tmp_path))
            refusals = proxy.strike(Refuse(status), times=None, verb="list", resource="configmaps")
            with operating(settings, stage.jobs, spark=True):
                refusals.wait(2)
                refusals.end()
                stage.jobs.opened.set()
                stage.succeed("m")
        assert len(stage.jobs.pooled) == 1
        assert not stage.jobs.started
    stage.jobs.close()
    stage.lakes["t"].assert_clean()


@pytest.mark.matrix
def test_an_idle_pool_ends_and_the_next_job_has_another(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(cluster, tmp_path)
    for name in ("a", "b"):
        stage.table(name)
    rules = PoolRules(slots=1, idle_s=5.0)

    def ended() -> list[str]:
        return [
            each["metadata"]["name"]
            for each in stage.applications()
            if (each.get("status") or {}).get("applicationState", {}).get("state") == "COMPLETED"
        ]

    with (
        spark_operator(cluster, stage.space.namespace, stage.jobs),
        operating(stage.settings(rules), stage.jobs, spark=True),
    ):
        stage.space.compaction("a", "a")
        stage.succeed("a")
        await_that(lambda: len(ended()) == len(stage.jobs.pools), stage.applications)
        assert {record["data"]["state"] for record in stage.pool_maps()} == {"closed"}
        (first,) = {name for name, pool in stage.jobs.pools.items() if pool.jobs.begun}
        stage.space.compaction("b", "b")
        stage.succeed("b")
    assert not stage.jobs.started
    (second,) = {
        name for name, pool in stage.jobs.pools.items() if pool.jobs.begun and name != first
    }
    assert len(stage.jobs.pools[second].jobs.begun) == 1
    stage.jobs.close()


def test_without_the_rights_each_job_has_an_application(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(cluster, tmp_path, granted=False)
    stage.table("t")
    with (
        spark_operator(cluster, stage.space.namespace, stage.jobs),
        operating(stage.settings(), stage.jobs, spark=True),
    ):
        stage.space.compaction("m", "t")
        stage.succeed("m")
    assert len(stage.jobs.started) == 1
    assert not stage.jobs.pools
