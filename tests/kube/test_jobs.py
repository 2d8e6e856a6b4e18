"""SparkApplications through the real API server: created once, adopted, read, deleted whole."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube.applications import SETTINGS, Applications
from support.cluster.api_proxy import ApiProxy, CutAfter, CutBefore, Refuse
from support.cluster.api_server import ApiRefused, Cluster
from support.lake.memory_store import MemoryStore
from support.waiting import await_that
from tandem.errors import (
    AlreadyRunning,
    ClusterUnavailable,
    InvalidSpec,
    JobRefused,
    Reason,
)
from tandem.jobs.formats import JobSpec
from tandem.jobs.port import JobKey, RoundState
from tandem.jobs.runner import JobPhase, JobRequest
from tandem.kube.client.api import Api
from tandem.kube.controllers import spark_jobs
from tandem.kube.controllers.spark_jobs import ApplicationCache, ApplicationRunner, trimmed
from tandem.operations.session.job_control import FileJobs
from tandem.spark.application.manifest import GIB, KubeflowApplications, build
from tandem.spark.application.port import JobOwner, JobPlacement
from tandem.storage import Store
from tandem.storage.renewable import Vended, VendedStore, vended_for

Json = dict[str, Any]

REQUEST = JobRequest(
    name="tandem-0123456789abcdef-1",
    app="rewrite",
    location="s3://lake/flights",
    spec_path="_tandem/operations/0123456789abcdef/attempts/1/job.json",
    storage_options=(("region", "eu-central-1"),),
    operation_id="0123456789abcdef",
    attempt=1,
)
NAME = REQUEST.name
VENDED = (("AWS_ACCESS_KEY_ID", "vended-key"), ("AWS_SECRET_ACCESS_KEY", "vended-secret"))
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Applications:
    return Applications(cluster)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The operator's loop, in a thread of its own."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


Make = Callable[..., ApplicationRunner]


@pytest.fixture
def make(cluster: Cluster, loop: asyncio.AbstractEventLoop) -> Iterator[Make]:
    """Makes runners as the operator does, with the rights that it has."""
    apis: list[Api] = []

    def runner(
        space: Applications,
        owner: JobOwner,
        kubeconfig: Path | None = None,
        applications: ApplicationCache | None = None,
        patience_s: float = 1.0,
        **more: Any,
    ) -> ApplicationRunner:
        api = Api.from_kubeconfig(kubeconfig or cluster.operator_kubeconfig, patience_s=patience_s)
        apis.append(api)
        return ApplicationRunner(
            api=api,
            loop=loop,
            builder=KubeflowApplications(SETTINGS),
            placement=JobPlacement(owner, **{"namespace": space.namespace, **more}),
            applications=ApplicationCache() if applications is None else applications,
            stop_s=20.0,
        )

    yield runner
    for api in apis:
        asyncio.run_coroutine_threadsafe(api.close(), loop).result(100)


@pytest.fixture
def fresh(cluster: Cluster) -> Applications:
    return Applications(cluster)


# What we build is what the Spark operator's CRD takes


def accepted(space: Applications, body: Json) -> Json:
    """Validated by the API server, unknown fields refused; nothing is stored."""
    query = "dryRun=All&fieldValidation=Strict"
    found: Json = space.cluster.request("POST", f"{space.base}?{query}", body)
    return found


OWNER = JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "1-2-3")


@pytest.mark.parametrize("input_bytes", [0, 300 * GIB])
@pytest.mark.parametrize("credentials", ["none", "a Secret", "a catalog"])
def test_the_crd_accepts_the_applications_of_tandem(
    space: Applications, input_bytes: int, credentials: str
) -> None:
    vended = VENDED if credentials == "a catalog" else ()
    secret_name = "lake" if credentials == "a Secret" else None
    body = build(
        replace(REQUEST, input_bytes=input_bytes, environ=vended),
        JobPlacement(OWNER, space.namespace, secret_name=secret_name),
        SETTINGS,
    )
    # Nothing was pruned: what is stored is what was built.
    assert accepted(space, body)["spec"] == body["spec"]


def pods(kind: str) -> st.SearchStrategy[Json]:
    cores = {"cores": st.integers(1, 64), "memory": st.sampled_from(["512m", "4g"])}
    return st.fixed_dictionaries(
        {},
        optional={
            **cores,
            **({"instances": st.integers(1, 99)} if kind == "executor" else {}),
            "memoryOverhead": st.just("1g"),
            "coreLimit": st.sampled_from(["1", "1200m"]),
            "nodeSelector": st.just({"disk": "ssd"}),
            "tolerations": st.just([{"key": "spot", "operator": "Exists"}]),
            "labels": st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
            "envFrom": st.just([{"configMapRef": {"name": "proxies"}}]),
            "env": st.just([{"name": "A", "value": "1"}]),
            "volumeMounts": st.just([{"name": "scratch", "mountPath": "/scratch"}]),
            "securityContext": st.one_of(st.none(), st.just({"runAsUser": None})),
            "serviceAccount": st.just("lake-reader"),
            "template": st.sampled_from(
                [
                    None,
                    {"metadata": {"labels": {"a": "b"}}},
                    {"spec": {"containers": [{"name": "sidecar", "image": "x"}]}},
                    {"spec": {"priorityClassName": "batch", "containers": []}},
                ]
            ),
        },
    )


TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.just({"labels": {"team": "lake"}, "annotations": {"cost": "7"}}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "image": st.sampled_from(["x:1", None]),
                "imagePullSecrets": st.just(["registry"]),
                "driver": pods("driver"),
                "executor": pods("executor"),
                "volumes": st.just([{"name": "scratch", "emptyDir": {}}]),
                "dynamicAllocation": st.just({"enabled": True, "maxExecutors": 4}),
                "sparkConf": st.dictionaries(
                    st.sampled_from(["spark.executor.instances", "spark.ui.enabled", "spark.x"]),
                    st.one_of(st.integers(1, 9), st.booleans(), st.just("y")),
                ),
                "hadoopConf": st.just({"fs.s3a.threads.max": 20}),
                "timeToLiveSeconds": st.one_of(st.none(), st.integers(0, 10)),
                "batchScheduler": st.just("volcano"),
                "monitoring": st.just(
                    {"exposeDriverMetrics": True, "exposeExecutorMetrics": False}
                ),
            },
        ),
    },
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operators=TEMPLATES, resources=TEMPLATES, input_bytes=st.sampled_from([0, 7 * GIB]))
def test_the_crd_accepts_applications_with_templates(
    space: Applications, operators: Json, resources: Json, input_bytes: int
) -> None:
    body = build(
        replace(REQUEST, input_bytes=input_bytes),
        JobPlacement(OWNER, space.namespace, template=resources, secret_name="lake"),
        replace(SETTINGS, template=operators),
    )
    found = accepted(space, body)["spec"]
    assert found == body["spec"]
    # Whatever a template says, this stays.
    assert (found["type"], found["mode"], found["restartPolicy"]) == (
        "Python",
        "cluster",
        {"type": "Never"},
    )
    assert found["arguments"] == REQUEST.arguments()
    for part in ("driver", "executor"):
        assert {"secretRef": {"name": "lake"}} in found[part]["envFrom"]


# Starting


def test_a_job_that_is_started_again_is_created_once(fresh: Applications, make: Make) -> None:
    runner = make(fresh, fresh.owner(), labels={"tandem.dev/table": "flights"})
    runner.start(REQUEST)
    first = fresh.get(NAME)
    assert first is not None
    assert first["metadata"]["labels"]["tandem.dev/table"] == "flights"
    assert runner.status(NAME).phase is JobPhase.STARTING
    # Again, as by an operator that died in between, with other sizes even.
    runner.start(replace(REQUEST, input_bytes=7 * GIB))
    again = fresh.get(NAME)
    assert again is not None
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


class Vending:
    """The store of a table whose catalog vends numbered credentials, and the clock."""

    def __init__(self) -> None:
        self.count, self.time_ms = 0, 0
        self.opened: Store = self.open()

    def vend(self) -> Vended:
        self.count += 1
        environ = {**dict(VENDED), "AWS_SESSION_TOKEN": f"vended-{self.count}"}
        return Vended(environ, self.time_ms + HOUR_MS)

    def open(self) -> Store:
        """As by another process."""
        return VendedStore(self.vend, lambda _: MemoryStore(), lambda: self.time_ms)

    def poll(self, jobs: FileJobs, store: Store) -> RoundState:
        return jobs.poll(JobKey(NAME, REQUEST.operation_id, REQUEST.attempt, store), 0)


def secret_of(space: Applications, *, method: str = "GET") -> Json | None:
    url = f"/api/v1/namespaces/{space.namespace}/secrets"
    items = space.cluster.request("GET", url)["items"]
    if method != "GET":
        space.cluster.request(method, f"{url}/{NAME}")
    return next((each for each in items if each["metadata"]["name"] == NAME), None)


def file_of(space: Applications) -> Vended:
    """The credentials that pods of the job see."""
    secret = secret_of(space)
    assert secret is not None
    [(name, text)] = secret["data"].items()
    assert name == "credentials.json"
    return Vended(**json.loads(base64.b64decode(text)))


def test_credentials_that_a_catalog_vends_are_in_a_secret_of_the_job(
    fresh: Applications, make: Make
) -> None:
    runner, request = make(fresh, fresh.owner()), replace(REQUEST, environ=VENDED, expires_ms=7)
    runner.start(request)
    runner.start(request)  # its answer was lost
    assert file_of(fresh) == Vended(dict(VENDED), 7)
    application, secret = fresh.get(NAME), secret_of(fresh)
    assert application is not None
    assert secret is not None
    # The cluster deletes it with the application.
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("SparkApplication", application["metadata"]["uid"])
    assert "vended" not in json.dumps(application)
    assert "vended" not in repr(request)


def test_credentials_of_a_running_job_are_renewed_at_half_of_their_life(
    fresh: Applications, make: Make
) -> None:
    vending, owner = Vending(), fresh.owner()
    store, jobs = vending.opened, FileJobs(make(fresh, owner))
    vended = vended_for(store)
    assert vended is not None
    environ = tuple(vended.environ.items())
    request = replace(REQUEST, environ=environ, expires_ms=vended.expires_ms)
    key = JobKey(NAME, REQUEST.operation_id, REQUEST.attempt, store)
    jobs.start(key, request, cast(JobSpec, None))
    vending.time_ms = HOUR_MS // 2 - 1
    before = secret_of(fresh)
    assert vending.poll(jobs, store).status.phase is JobPhase.STARTING
    assert secret_of(fresh) == before
    vending.time_ms += 1
    vending.poll(jobs, store)
    assert file_of(fresh) == Vended(
        {**vended.environ, "AWS_SESSION_TOKEN": "vended-2"}, HOUR_MS * 3 // 2
    )
    # Another operator goes on with the job.
    store, jobs = vending.open(), FileJobs(make(fresh, owner))
    vending.poll(jobs, store)
    assert file_of(fresh).environ["AWS_SESSION_TOKEN"] == "vended-3"
    vending.time_ms += HOUR_MS // 2
    secret_of(fresh, method="DELETE")
    vending.poll(jobs, store)
    assert file_of(fresh).environ["AWS_SESSION_TOKEN"] == "vended-4"


def test_credentials_are_not_given_to_what_is_not_ours(
    fresh: Applications, make: Make, cluster: Cluster
) -> None:
    url = f"/api/v1/namespaces/{fresh.namespace}/secrets"
    theirs = cluster.request("POST", url, {"metadata": {"name": NAME}, "stringData": {"a": "b"}})
    runner = make(fresh, fresh.owner("first"))
    with pytest.raises(ClusterUnavailable):
        runner.start(replace(REQUEST, environ=VENDED))
    make(fresh, fresh.owner("second")).renew(NAME, Vended(dict(VENDED), None))
    assert cluster.request("GET", f"{url}/{NAME}") == theirs
    secret_of(fresh, method="DELETE")
    make(fresh, fresh.owner("third")).renew(NAME, Vended(dict(VENDED), None))
    fresh.delete(NAME)
    runner.renew(NAME, Vended(dict(VENDED), None))
    assert secret_of(fresh) is None


def test_a_child_gets_no_other_variable_into_a_secret(fresh: Applications, make: Make) -> None:
    runner = make(fresh, fresh.owner())
    with pytest.raises(InvalidSpec, match="not credentials that a catalog vends") as found:
        runner.start(replace(REQUEST, environ=(("LD_PRELOAD", "/tmp/vended.so"),)))
    assert "vended.so" not in str(found.value)
    assert fresh.get(NAME) is None
    runner.start(REQUEST)
    with pytest.raises(InvalidSpec, match="not credentials that a catalog vends"):
        runner.renew(NAME, Vended({"LD_PRELOAD": "/tmp/vended.so"}, None))
    assert secret_of(fresh) is None


def test_applications_of_another_owner_are_neither_adopted_nor_deleted(
    fresh: Applications, make: Make
) -> None:
    make(fresh, fresh.owner("first")).start(REQUEST)
    other = make(fresh, fresh.owner("second"))
    with pytest.raises(AlreadyRunning, match="ConfigMap/first") as raised:
        other.start(REQUEST)
    assert raised.value.resource == f"SparkApplication/{NAME}"
    # Nor waited for: its state says nothing about our job.
    assert other.status(NAME).phase is JobPhase.UNKNOWN
    other.stop(NAME)
    assert fresh.get(NAME) is not None


def test_an_application_of_another_kind_of_owner_is_not_deleted(
    fresh: Applications, make: Make
) -> None:
    """Whatever a child says of a resource that is gone."""
    owner = fresh.owner("first")
    make(fresh, owner).start(REQUEST)
    other = make(fresh, replace(owner, kind="TableUpdate"))
    assert other.status(NAME).phase is JobPhase.UNKNOWN
    other.stop(NAME)
    found = fresh.get(NAME)
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]


def test_an_earlier_one_that_is_on_its_way_out_is_waited_for(
    fresh: Applications, make: Make
) -> None:
    make(fresh, fresh.owner("first")).start(REQUEST)
    fresh.patch(NAME, {"metadata": {"finalizers": ["example.com/slow"]}})
    fresh.delete(NAME)
    runner = make(fresh, fresh.owner("second"))
    starting = threading.Thread(target=runner.start, args=(REQUEST,), daemon=True)
    starting.start()
    starting.join(0.3)
    assert starting.is_alive()
    fresh.patch(NAME, {"metadata": {"finalizers": None}})
    starting.join(100)
    found = fresh.get(NAME)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["name"] == "second"


def test_a_template_that_the_api_server_refuses(fresh: Applications, make: Make) -> None:
    template = {"spec": {"executor": {"instances": -3}}}
    runner = make(fresh, fresh.owner(), template=template)
    with pytest.raises(InvalidSpec, match="instances") as raised:
        runner.start(REQUEST)
    assert raised.value.field == "spec.sparkTemplate"


def test_a_request_that_the_api_server_forbids(
    fresh: Applications, make: Make, cluster: Cluster
) -> None:
    """By rights here; quotas and webhooks answer the same."""
    runner = make(fresh, fresh.owner(), cluster.dev_kubeconfig)
    with pytest.raises(JobRefused, match="cannot create resource") as raised:
        runner.start(REQUEST)
    assert raised.value.certain


def test_a_namespace_that_is_not_there(fresh: Applications, make: Make) -> None:
    runner = make(fresh, OWNER, namespace="nowhere")
    with pytest.raises(JobRefused, match="nowhere") as raised:
        runner.start(REQUEST)
    assert (raised.value.reason, raised.value.certain) == (Reason.SPARK_MISSING, True)


def test_a_job_that_was_made_although_its_answer_was_lost_is_found_behind_a_refusal(
    fresh: Applications,
    make: Make,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have used up the quota that refuses the next try. One that cannot be read
    may exist."""
    monkeypatch.setattr(spark_jobs, "CREATE_S", 60.0)
    applications: Json = {"verb": "create", "resource": "sparkapplications"}
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        runner = make(fresh, fresh.owner(), proxy.kubeconfig(tmp_path), patience_s=120.0)
        proxy.strike(CutAfter(), **applications)
        proxy.strike(Refuse(403), nth=2, **applications)
        runner.start(REQUEST)
        assert fresh.get(NAME) is not None
        other = replace(REQUEST, name="tandem-0123456789abcdef-2")
        proxy.strike(CutBefore(), **applications)
        proxy.strike(Refuse(403), nth=2, **applications)
        with (
            proxy.while_(Refuse(404), verb="get", resource="sparkapplications"),
            pytest.raises(JobRefused) as raised,
        ):
            runner.start(other)
        assert not raised.value.certain


@pytest.mark.parametrize("status", [401, 403])
def test_rights_that_are_missing_for_a_while_are_not_a_failed_job(
    fresh: Applications, make: Make, cluster: Cluster, tmp_path: Path, status: int
) -> None:
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        runner = make(fresh, fresh.owner(), proxy.kubeconfig(tmp_path))
        runner.start(REQUEST)
        other = make(fresh, fresh.owner("same"), proxy.kubeconfig(tmp_path))
        with (
            proxy.while_(Refuse(status), resource="sparkapplications"),
            pytest.raises(ClusterUnavailable, match="refuses the operator's request"),
        ):
            other.status(NAME)


def test_an_unavailable_api_server_is_not_a_failed_job(
    fresh: Applications, make: Make, cluster: Cluster, tmp_path: Path
) -> None:
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        runner = make(fresh, fresh.owner(), proxy.kubeconfig(tmp_path))
        with (
            proxy.while_(Refuse(503), verb="create", resource="sparkapplications"),
            pytest.raises(ClusterUnavailable),
        ):
            runner.start(REQUEST)
        runner.start(REQUEST)
        assert fresh.get(NAME) is not None


# Reading


def test_the_cache_answers_without_a_call(space: Applications, make: Make) -> None:
    cache = ApplicationCache()
    runner = make(space, OWNER, applications=cache)
    body = space.body("unheard-of", OWNER)
    body["metadata"] |= {"uid": "u1", "resourceVersion": "7"}

    def seen(state: str, version: int, kind: str | None = "MODIFIED") -> JobPhase:
        metadata = {**body["metadata"], "resourceVersion": str(version)}
        status = {"applicationState": {"state": state}}
        cache.observe(kind, {**body, "metadata": metadata, "status": status})
        return runner.status("unheard-of").phase

    assert seen("RUNNING", 9, None) is JobPhase.RUNNING
    # The server knows of no such object: all messages come from the watch.
    assert space.get("unheard-of") is None
    assert seen("COMPLETED", 11) is JobPhase.ENDED
    assert seen("RUNNING", 10) is JobPhase.ENDED  # an event that comes late
    assert seen("", 12, "DELETED") is JobPhase.UNKNOWN
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("namespace", "kept"), [(None, {"listed"}), ("n", {"listed"}), ("m", {"listed", "gone"})]
)
def test_what_a_list_does_not_have_is_forgotten(namespace: str | None, kept: set[str]) -> None:
    cache = ApplicationCache()
    for name in ("listed", "gone"):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"}
        cache.observe(None, {"metadata": metadata})
    cache.keep(namespace, {"listed"})
    assert {name for name in ("listed", "gone") if cache.get("n", name) is not None} == kept


def test_the_cached_part_of_an_application_is_small(space: Applications) -> None:
    body = space.body("a", OWNER)
    body["metadata"] |= {"uid": "u1", "resourceVersion": "7", "managedFields": [{"x": "y" * 5000}]}
    body["status"] = {"applicationState": {"state": "RUNNING"}, "executorState": {"e": "RUNNING"}}
    assert len(json.dumps(trimmed(body))) < 600


def test_the_latest_ended_applications_are_kept() -> None:
    cache = ApplicationCache(ended=2)

    def seen(name: str, state: str, version: int) -> None:
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
        cache.observe(
            None, {"metadata": metadata, "status": {"applicationState": {"state": state}}}
        )

    seen("runs", "RUNNING", 1)
    for number in range(5):
        seen(f"e{number}", "SUBMITTED", 2)
        seen(f"e{number}", "COMPLETED", 3)
        seen(f"e{number}", "COMPLETED", 4)
    assert cache.get("n", "runs") is not None
    assert [cache.get("n", f"e{number}") is not None for number in range(5)] == [
        *(False, False, False),
        *(True, True),
    ]
    cache.forget("n", "e4")
    seen("e5", "FAILED", 9)
    assert cache.get("n", "e3") is not None
    assert len(cache) == 3


def driver(space: Applications, application: Json, status: Json) -> None:
    """The pod that the Spark operator's spark-submit would have made."""
    owner = {
        "apiVersion": application["apiVersion"],
        "kind": application["kind"],
        "name": application["metadata"]["name"],
        "uid": application["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    name = f"{application['metadata']['name']}-driver"
    path = f"/api/v1/namespaces/{space.namespace}/pods"
    container = {"name": "spark-kubernetes-driver", "image": "x"}
    space.cluster.request(
        "POST",
        path,
        {
            "metadata": {
                "name": name,
                "ownerReferences": [owner],
                "labels": {"sparkoperator.k8s.io/app-name": application["metadata"]["name"]},
            },
            "spec": {"containers": [container], "automountServiceAccountToken": False},
        },
    )
    space.cluster.request(
        "PATCH",
        f"{path}/{name}/status",
        {"status": status},
        content_type="application/merge-patch+json",
    )


def submitted(space: Applications, make: Make, state: str, message: str, pod: Json) -> Any:
    runner = make(space, space.owner())
    runner.start(REQUEST)
    application = space.get(NAME)
    assert application is not None
    driver(space, application, pod)
    application_state = {"state": state, "errorMessage": message}
    status = {"applicationState": application_state, "driverInfo": {"podName": f"{NAME}-driver"}}
    space.patch(NAME, {"status": status}, "/status")
    # As after a restart of the operator: nothing is cached.
    return make(space, JobOwner("v1", "ConfigMap", "owner", runner._owner.uid)), runner


@pytest.fixture
def service_account(fresh: Applications) -> None:
    """Pods can be made once the namespace's default account is there."""
    path = f"/api/v1/namespaces/{fresh.namespace}/serviceaccounts"
    await_that(lambda: fresh.cluster.request("GET", path)["items"], lambda: "service account")


@pytest.mark.usefixtures("service_account")
def test_a_false_failure_of_the_spark_operator_is_recognized(
    fresh: Applications, make: Make
) -> None:
    message = "failed to submit spark application: driver pod already exist"
    runner, _ = submitted(fresh, make, "FAILED", message, {"phase": "Running"})
    status = runner.status(NAME)
    assert status.phase is JobPhase.RUNNING
    # It runs, so it is not left behind.
    runner.stop(NAME)
    assert fresh.get(NAME) is None
    pods_path = f"/api/v1/namespaces/{fresh.namespace}/pods"
    assert fresh.cluster.request("GET", pods_path)["items"] == []


@pytest.mark.usefixtures("service_account")
def test_a_failure_keeps_its_log(fresh: Applications, make: Make) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    container = {
        "name": "spark-kubernetes-driver",
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    pod = {"phase": "Failed", "containerStatuses": [container]}
    runner, _ = submitted(fresh, make, "FAILED", "driver container failed", pod)
    status = runner.status(NAME)
    assert (status.phase, status.reason) == (JobPhase.FAILED, Reason.OUT_OF_MEMORY)
    namespace = fresh.namespace
    assert status.log == (f"kubectl logs -n {namespace} {NAME}-driver -c spark-kubernetes-driver")
    runner.stop(NAME)
    # What ended stays, with the pod that has its log.
    assert fresh.get(NAME) is not None
    fresh.cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods/{NAME}-driver")


# Stopping


def test_stopping_deletes_an_application_that_has_not_ended(
    fresh: Applications, make: Make
) -> None:
    runner = make(fresh, fresh.owner())
    runner.start(REQUEST)
    runner.stop(NAME)
    assert fresh.get(NAME) is None
    assert runner.status(NAME).phase is JobPhase.UNKNOWN
    runner.stop(NAME)  # once more, as after a crash
    # Its name is free for another try.
    runner.start(REQUEST)
    assert runner.status(NAME).phase is JobPhase.STARTING


def test_it_is_deleted_with_its_resource(fresh: Applications, make: Make) -> None:
    make(fresh, fresh.owner()).start(REQUEST)
    fresh.cluster.request("DELETE", f"/api/v1/namespaces/{fresh.namespace}/configmaps/owner")
    fresh.await_state(NAME, "gone")


def test_applications_are_never_patched(fresh: Applications, make: Make) -> None:
    runner = make(fresh, fresh.owner())
    runner.start(REQUEST)
    runner.start(REQUEST)
    runner.status(NAME)
    runner.stop(NAME)
    about = [
        (entry["verb"], entry.get("objectRef", {}).get("resource"))
        for entry in fresh.cluster.writes(fresh.namespace)
        if entry.get("objectRef", {}).get("resource") == "sparkapplications"
        and "tandem-operator" in str(entry["user"])
    ]
    assert set(about) == {("create", "sparkapplications"), ("delete", "sparkapplications")}
    with pytest.raises(ApiRefused):
        fresh.cluster.operator.request("PATCH", f"{fresh.base}/{NAME}", {})
