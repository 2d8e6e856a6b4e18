"""IndexServers under a real API server: what is made of one, what it serves, and that it goes with
its resource. The program is the real one, in a thread; `tandem dev` stands for the Spark operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import Resources, condition, operating, quick_settings
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.jobs.serving_jobs import ServingJobs
from support.lake.lake import batch
from support.waiting import await_that
from tandem.errors import AccessDenied, Unreachable
from tandem.index import EVERYTHING
from tandem.index.server.client import RemoteIndex
from tandem.index.server.transport import Connection, Tls
from tandem.spark.local_spark import LocalRunner
from tandem.spec.common import plural

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
KIND = "IndexServer"
PLAIN = {"access": {"mode": "Plaintext"}}
LIMIT_S = 120.0


@dataclass
class Stage:
    space: Resources
    jobs: ServingJobs
    folder: Path

    def lake(self, name: str, loads: int = 2, labels: dict[str, str] | None = None,
             **spec: Any) -> QuickLake:  # fmt: skip
        lake = quick_lake.make(self.folder / name, loads)
        body = {"location": lake.location, **spec}
        self.space.create("LakeTable", name, body, labels=labels or {})
        self.space.await_reason("LakeTable", name, "Adopted")
        return lake

    def server(self, name: str, **spec: Any) -> None:
        self.space.create(KIND, name, {**PLAIN, **spec})

    def serving(self, name: str, *tables: str) -> Json:
        """The status once it answers and serves just these."""

        def serves(status: Json) -> bool:
            ready = condition(status, "Ready")
            held = {t["name"] for t in status.get("tables", ()) if t.get("version") is not None}
            return ready.get("status") == "True" and held == set(tables)

        return self.space.await_status(KIND, name, serves, LIMIT_S)

    def reason(self, name: str, reason: str) -> Json:
        return self.space.await_status(
            KIND,
            name,
            lambda s: (
                condition(s, "Ready").get("reason") == reason
                or condition(s, "Reconciling").get("reason") == reason
            ),
            LIMIT_S,
        )

    def applications(self, name: str) -> list[Json]:
        url = (
            f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{self.space.namespace}"
            f"/sparkapplications?labelSelector=tandem.dev/index-server={name}"
        )
        found: list[Json] = self.space.cluster.request("GET", url)["items"]
        return found

    def services(self) -> dict[str, Json]:
        url = f"/api/v1/namespaces/{self.space.namespace}/services"
        return {s["metadata"]["name"]: s for s in self.space.cluster.request("GET", url)["items"]}

    def secret(self, name: str, **values: str) -> None:
        url = f"/api/v1/namespaces/{self.space.namespace}/secrets"
        body = {"metadata": {"name": name}, "stringData": values}
        self.space.cluster.request("POST", url, body)

    def remove(self, name: str) -> None:
        """And see that it leaves nothing."""
        self.space.delete(KIND, name)
        self.space.await_gone(KIND, name, limit_s=LIMIT_S)
        await_that(lambda: not self.applications(name), lambda: self.applications(name), LIMIT_S)
        await_that(lambda: f"{name}-index" not in self.services(), self.services, LIMIT_S)


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("servers")
    space = Resources(cluster, cluster.namespace("servers"))
    jobs = ServingJobs()
    settings = quick_settings(
        cluster, space.namespace, index_poll_s=0.3, index_calm_s=0.5, progress_s=0.5
    )
    with (
        spark_operator(cluster, space.namespace, jobs),
        operating(settings, jobs, spark=True),
    ):
        yield Stage(space, jobs, folder)
    jobs.close()


def test_it_serves_the_tables_of_its_namespace_and_says_so(stage: Stage) -> None:
    lake = stage.lake("orders")
    stage.server("all", tables={"names": ["orders"]})
    status = stage.serving("all", "orders")
    assert status["observedGeneration"] == 1
    assert "phase" not in status
    assert condition(status, "Stalled")["status"] == "False"
    assert condition(status, "Reconciling")["status"] == "False"
    assert condition(status, "Ready")["reason"] == "Serving"
    [table] = status["tables"]
    assert table["latest"] == table["version"] == lake.version
    assert table["files"] == 2
    assert 0 < table["bytes"] == status["cache"]["bytes"] < status["cache"]["limitBytes"]
    assert status["executors"] == {"desired": 0, "ready": 0}
    index = RemoteIndex(Connection(status["endpoint"]), "orders", lake.store)
    assert index.count(EVERYTHING) == 20
    lake.append(batch(7))
    assert index.count(EVERYTHING) == 30
    [application] = stage.applications("all")
    assert status["application"] == application["metadata"]["name"]
    assert application["spec"]["restartPolicy"]["type"] == "Always"
    assert "timeToLiveSeconds" not in application["spec"]
    service = stage.services()["all-index"]
    label = {"tandem.dev/index-server": "all"}
    assert service["spec"]["selector"] == {**label, "spark-role": "driver"}
    assert application["spec"]["driver"]["labels"] == label
    assert service["spec"]["ports"][0]["port"] == 8815
    assert "Serving" in stage.space.events("all")
    stage.remove("all")


def test_another_spec_and_another_set_of_tables_are_another_application(stage: Stage) -> None:
    stage.lake("first", labels={"index": "yes"})
    stage.server("moving", tables={"selector": {"matchLabels": {"index": "yes"}}})
    first = stage.serving("moving", "first")["application"]
    stage.lake("second", labels={"index": "yes"})
    second = stage.serving("moving", "first", "second")["application"]
    stage.space.patch(KIND, "moving", {"spec": {"memory": "1Gi"}})
    status = stage.space.await_status(
        KIND, "moving", lambda s: s.get("cache", {}).get("limitBytes") == 1 << 30, LIMIT_S
    )
    assert len({first, second, status["application"]}) == 3
    assert [a["metadata"]["name"] for a in stage.applications("moving")] == [status["application"]]
    stage.remove("moving")


def test_a_suspended_server_has_no_application_and_is_as_its_owner_wants_it(stage: Stage) -> None:
    stage.lake("paused")
    stage.server("paused", tables={"names": ["paused"]})
    stage.serving("paused", "paused")
    stage.space.patch(KIND, "paused", {"spec": {"suspend": True}})
    status = stage.reason("paused", "Suspended")
    assert condition(status, "Ready") == {}
    assert condition(status, "Stalled")["status"] == "False"
    assert "application" not in status
    await_that(lambda: not stage.applications("paused"), lambda: stage.applications("paused"))
    stage.space.patch(KIND, "paused", {"spec": {"suspend": False}})
    stage.serving("paused", "paused")
    stage.remove("paused")


def test_a_server_that_dies_is_started_again(stage: Stage) -> None:
    stage.lake("mortal")
    stage.server("mortal", tables={"names": ["mortal"]})
    name = stage.serving("mortal", "mortal")["application"]
    [job] = [job for job in stage.jobs.servers if job.startswith(name)]
    stage.jobs.end(job)
    again = f"{job[:-1]}2"
    await_that(lambda: again in stage.jobs.servers, lambda: list(stage.jobs.servers), LIMIT_S)
    assert stage.serving("mortal", "mortal")["application"] == name
    stage.remove("mortal")


def test_tables_that_are_not_served_are_listed_with_their_reason(stage: Stage) -> None:
    stage.lake("served")
    stage.lake("elsewhere", index={"server": "another"})
    stage.lake("identity", storage={"serviceAccountName": "other-cloud"})
    stage.lake("logged", mergeOnRead={"keys": ["k"]}, enableDeletionVectors=True)
    empty = (stage.folder / "empty").as_uri()
    stage.space.table("empty", empty)
    late = quick_lake.make(stage.folder / "late", 1)
    stage.space.table("late", late.location, storage={"secretRef": {"name": "comes-later"}})
    names = ["served", "elsewhere", "identity", "logged", "empty", "late", "unknown"]
    stage.server("picky", tables={"names": names})
    stage.serving("picky", "served")
    # `late` has a child of its own, for its Secret, which may begin after the server is asked.
    status = stage.space.await_status(
        KIND,
        "picky",
        lambda s: len(s.get("notServed", ())) == 6 and "comes-later" in str(s["notServed"]),
        LIMIT_S,
    )
    reasons = {each["name"]: each["reason"] for each in status["notServed"]}
    assert "its spec.index.server is another" in reasons["elsewhere"]
    assert "service account other-cloud" in reasons["identity"]
    assert "merge-on-read" in reasons["logged"]
    assert "no Delta table" in reasons["empty"]
    assert "comes-later" in reasons["late"]
    assert "no LakeTable of this name" in reasons["unknown"]
    # A Secret that came later.
    stage.secret("comes-later", AWS_ACCESS_KEY_ID="hunter2")
    stage.serving("picky", "served", "late")
    text = json.dumps([stage.applications("picky"), stage.space.get(KIND, "picky")])
    assert "hunter2" not in text
    stage.remove("picky")


def test_a_server_without_its_certificate_is_stalled_until_it_is_there(stage: Stage) -> None:
    stage.lake("waiting")
    stage.space.create(
        KIND, "secure", {"tables": {"names": ["waiting"]}, "access": {"mode": "SharedToken"}}
    )
    status = stage.reason("secure", "ReferenceNotFound")
    assert condition(status, "Stalled")["status"] == "True"
    message = condition(status, "Ready")["message"]
    assert "secure-index-tls" in message
    assert "secure-index-token" in message
    assert stage.applications("secure") == []
    stage.remove("secure")


def test_with_a_certificate_and_a_token_it_is_asked_as_readers_ask(stage: Stage) -> None:
    """By the operator, too; a new certificate is another application."""
    lake, token = stage.lake("sealed"), "a token that callers present"
    authority = trustme.CA()
    stage.secret("seal-index-token", token=token)
    stage.secret("seal-index-tls", **pem(authority))
    access = {"access": {"mode": "SharedToken"}}
    stage.space.create(KIND, "seal", {"tables": {"names": ["sealed"]}, **access})
    status = stage.serving("seal", "sealed")
    assert status["endpoint"].startswith("grpc+tls://")
    trusted = Tls(authority.cert_pem.bytes())
    connection = Connection(status["endpoint"], token=token, tls=trusted)
    assert RemoteIndex(connection, "sealed", lake.store).count(EVERYTHING) == 20
    other = Connection(status["endpoint"], token="another one of callers", tls=trusted)
    with pytest.raises(AccessDenied):
        RemoteIndex(other, "sealed", lake.store).count(EVERYTHING)
    known = json.dumps([stage.applications("seal"), stage.space.get(KIND, "seal")])
    assert token not in known
    assert "PRIVATE KEY" not in known
    url = f"/api/v1/namespaces/{stage.space.namespace}/secrets/seal-index-tls"
    newer = trustme.CA()
    stage.space.cluster.request(
        "PATCH", url, {"stringData": pem(newer)}, content_type="application/merge-patch+json"
    )
    stage.space.await_status(
        KIND, "seal", lambda s: s.get("application") not in (None, status["application"]), LIMIT_S
    )
    status = stage.serving("seal", "sealed")
    trusted = Tls(newer.cert_pem.bytes())
    connection = Connection(status["endpoint"], token=token, tls=trusted)
    assert RemoteIndex(connection, "sealed", lake.store).count(EVERYTHING) == 20
    stage.remove("seal")


def pem(authority: trustme.CA) -> dict[str, str]:
    """A certificate for this machine, as a Secret holds it."""
    made = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
    return {
        "tls.crt": chain.decode(),
        "tls.key": made.private_key_pem.bytes().decode(),
        "ca.crt": authority.cert_pem.bytes().decode(),
    }


def test_a_service_of_that_name_is_not_taken(stage: Stage) -> None:
    url = f"/api/v1/namespaces/{stage.space.namespace}/services"
    body = {"metadata": {"name": "taken-index"}, "spec": {"ports": [{"port": 1}]}}
    stage.space.cluster.request("POST", url, body)
    stage.lake("any")
    stage.server("taken", tables={"names": ["any"]})
    status = stage.reason("taken", "InvalidSpec")
    assert "Service/taken-index" in condition(status, "Ready")["message"]
    assert stage.services()["taken-index"]["spec"]["ports"][0]["port"] == 1
    stage.space.delete(KIND, "taken")


def test_a_template_is_checked_as_that_of_a_job(stage: Stage) -> None:
    template = {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}
    stage.server("hostile", sparkTemplate=template)
    status = stage.reason("hostile", "InvalidSpec")
    assert "spec.sparkTemplate.spec.volumes.h.hostPath" in condition(status, "Ready")["message"]
    assert stage.applications("hostile") == []
    stage.remove("hostile")


def test_Xf_no_operation_waits_for_a_server_that_hangs(stage: Stage) -> None:
    """Its program does not even answer; operations commit all the same."""
    lake = stage.lake("busy", loads=4)
    stage.server("hangs", tables={"names": ["busy"]})
    stage.serving("hangs", "busy")
    [job] = [job for job in stage.jobs.servers if job.startswith("ixs-hangs-")]
    stage.jobs.end(job)
    stage.space.compaction("beside", "busy")
    assert stage.space.await_end("TableCompaction", "beside", LIMIT_S)["phase"] == "Succeeded"
    assert len(lake.log.snapshot().files) == 1
    stage.remove("hangs")


def test_the_kind_is_listed_with_its_columns(stage: Stage) -> None:
    stage.lake("shown")
    stage.server("shown", tables={"names": ["shown"]})
    stage.serving("shown", "shown")
    text = stage.space.cluster.kubectl("-n", stage.space.namespace, "get", "ixs", "shown")
    header, row = text.splitlines()
    assert header.split() == ["NAME", "TABLES", "BYTES", "READY", "REASON", "AGE"]
    assert row.split()[1] == "1"
    assert row.split()[3:5] == ["True", "Serving"]
    assert plural(KIND) == "indexservers"
    stage.remove("shown")


@pytest.mark.matrix
def test_tandem_dev_runs_the_program_under_spark(cluster: Cluster, tmp_path: Path) -> None:
    """As `tandem dev` does on a laptop: a process of `spark-submit`, which ends with it."""
    space = Resources(cluster, cluster.namespace("devserver"))
    lake = quick_lake.make(tmp_path, 2)
    runner = LocalRunner(logs=tmp_path / "logs")
    settings = quick_settings(cluster, space.namespace, index_poll_s=0.3, progress_s=0.5)
    stage = Stage(space, ServingJobs(), tmp_path)
    try:
        with (
            spark_operator(cluster, space.namespace, runner),
            operating(settings, stage.jobs, spark=True),
        ):
            space.table("t", lake.location)
            stage.server("lake", executors=1)
            stage.serving("lake", "t")
            status = space.await_status(
                KIND, "lake", lambda s: s["executors"]["ready"] == 1, LIMIT_S
            )
            index = RemoteIndex(Connection(status["endpoint"]), "t", lake.store)
            assert index.count(EVERYTHING) == 20
            stage.remove("lake")
            with pytest.raises(Unreachable):
                RemoteIndex(Connection(status["endpoint"]), "t", lake.store).count(EVERYTHING)
    finally:
        runner.close()
