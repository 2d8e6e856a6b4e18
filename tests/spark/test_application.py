"""What is built for a job, and what templates may make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import InvalidSpec
from tandem.jobs.runner import JobRequest
from tandem.spark.application.manifest import GIB, MIB, KubeflowApplications, build, job_sizes
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement
from tandem.spark.application.template import OURS, merge
from tandem.spark.runtime import session
from tandem.spark.runtime.session import session_conf
from tandem.spec.common import label_value
from tandem.storage.renewable import CREDENTIALS_VARIABLE

Json = dict[str, Any]

REQUEST = JobRequest(
    name="tandem-0123456789abcdef-2",
    app="rewrite",
    location="s3://lake/flights",
    spec_path="_tandem/operations/0123456789abcdef/attempts/2/job.json",
    storage_options=(("endpoint", "https://s3.example"), ("region", "eu-central-1")),
    input_bytes=10 * MIB,
    tasks=3,
    operation_id="0123456789abcdef",
    attempt=2,
)
OWNER = JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "uid-1")
SETTINGS = ApplicationSettings(image="registry.example/tandem-spark@sha256:0")


def built(
    template: Json | None = None,
    *,
    request: JobRequest = REQUEST,
    settings: ApplicationSettings = SETTINGS,
    **more: Any,
) -> Json:
    return build(request, JobPlacement(OWNER, "lake", template=template, **more), settings)


def spec(template: Json | None = None, **more: Any) -> Json:
    found: Json = built(template, **more)["spec"]
    return found


def container(pod: Json, name: str) -> Json:
    [found] = [c for c in pod["template"]["spec"]["containers"] if c["name"] == name]
    return dict(found)


# What it is


def test_the_application_of_an_attempt() -> None:
    application = built(labels={"tandem.dev/table": "flights"})
    assert application["metadata"] == {
        "name": "tandem-0123456789abcdef-2",
        "namespace": "lake",
        "ownerReferences": [
            {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": "TableCompaction",
                "name": "nightly",
                "uid": "uid-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "labels": {
            "app.kubernetes.io/managed-by": "tandem",
            "tandem.dev/kind": "TableCompaction",
            "tandem.dev/operation": "0123456789abcdef",
            "tandem.dev/attempt": "2",
            "tandem.dev/table": "flights",
        },
        "annotations": {"tandem.dev/input-bytes": str(10 * MIB)},
    }
    actual = application["spec"]
    assert (actual["type"], actual["mode"], actual["pythonVersion"]) == ("Python", "cluster", "3")
    assert actual["mainApplicationFile"] == "local:///opt/tandem/spark_apps/rewrite.py"
    assert actual["restartPolicy"] == {"type": "Never"}
    assert actual["timeToLiveSeconds"] == 86_400
    assert session_conf().items() <= actual["sparkConf"].items()
    # Else each submission needs a right that the Spark operator's chart does not give it.
    excluded = actual["sparkConf"]["spark.kubernetes.driver.pod.excludedFeatureSteps"]
    assert excluded.endswith(".NetworkPolicyFeatureStep")
    assert int(actual["sparkConf"]["spark.executor.maxNumFailures"]) > 4  # spark.task.maxFailures
    assert actual["driver"]["serviceAccount"] == "tandem-spark"


def test_it_is_called_as_a_local_job_is() -> None:
    called = REQUEST.arguments()
    assert spec()["arguments"] == called
    assert called[:2] == ["--location", "s3://lake/flights"]
    assert called[4:] == [
        *("--option", "endpoint=https://s3.example"),
        *("--option", "region=eu-central-1"),
    ]


def test_the_same_request_gives_the_same_object() -> None:
    assert json.dumps(built(secret_name="lake")) == json.dumps(built(secret_name="lake"))


def test_credentials_come_from_the_secret_alone() -> None:
    request = replace(REQUEST, environ=(("AWS_SECRET_ACCESS_KEY", "hush"),))
    application = built(request=request, secret_name="lake")
    assert "hush" not in json.dumps(application)
    assert "hush" not in repr(request)
    wanted = [{"secretRef": {"name": "lake"}}]
    for part, name in (
        ("driver", "spark-kubernetes-driver"),
        ("executor", "spark-kubernetes-executor"),
    ):
        pod = application["spec"][part]
        # By the webhook, and where there is none by the template.
        assert pod["envFrom"] == wanted
        assert container(pod, name)["envFrom"] == wanted
    assert "envFrom" not in spec()["driver"]


def test_credentials_that_a_catalog_vends_are_a_file() -> None:
    """Of the job's own Secret, and not of a part of it: a `subPath` is never renewed."""
    request = replace(REQUEST, environ=(("AWS_SECRET_ACCESS_KEY", "hush"),), input_bytes=300 * GIB)
    mine: Json = {"volumes": [{"name": "a"}], "containers": [{"name": "spark-kubernetes-driver"}]}
    template = {"spec": {"driver": {"template": {"spec": mine}}}}
    application = built(request=request, template=template, service_account="lake-reader")
    assert "hush" not in json.dumps(application)
    for part in ("driver", "executor"):
        pod = application["spec"][part]
        assert pod["serviceAccount"] == "tandem-spark"
        main = container(pod, f"spark-kubernetes-{part}")
        volumes = {each["name"]: each for each in pod["template"]["spec"]["volumes"]}
        mounts = {each["name"]: each for each in main["volumeMounts"]}
        assert volumes["tandem-credentials"]["secret"] == {"secretName": REQUEST.name}
        mount = mounts["tandem-credentials"]
        assert mount.keys() == {"name", "mountPath", "readOnly"}
        file = f"{mount['mountPath']}/credentials.json"
        assert {"name": CREDENTIALS_VARIABLE, "value": file} in main["env"]
        assert "envFrom" not in main
    assert {"name": "a"} in application["spec"]["driver"]["template"]["spec"]["volumes"]
    mine["volumes"] = 5  # the API server refuses it
    assert built(request=request, template=template)


def test_the_tables_service_account_stands_in_for_a_secret() -> None:
    def account(**more: Any) -> Any:
        actual = spec(service_account="lake-reader", **more)
        assert actual["driver"]["serviceAccount"] == actual["executor"]["serviceAccount"]
        return actual["driver"]["serviceAccount"]

    assert account() == "lake-reader"
    assert account(secret_name="lake") == "tandem-spark"


def test_a_templates_sources_of_the_environment_stay_and_the_tables_come_last() -> None:
    own = {"configMapRef": {"name": "proxies"}}
    driver = spec({"spec": {"driver": {"envFrom": [own]}}}, secret_name="lake")["driver"]
    assert driver["envFrom"] == [own, {"secretRef": {"name": "lake"}}]


@pytest.mark.parametrize("name", ["7up", "a" * 51, "tandem_1", "Tandem-1", "tandem-"])
def test_a_name_that_kubernetes_would_refuse(name: str) -> None:
    with pytest.raises(InvalidSpec, match="DNS-1035"):
        built(request=replace(REQUEST, name=name))


def test_long_names_as_labels() -> None:
    name = "x" * 53 + "." + "y" * 100
    short = label_value(name)
    assert len(short) <= 63
    assert short != label_value(name + "z")
    assert short.startswith("x" * 53 + "-")
    assert label_value("flights") == "flights"


# Sizes


def test_a_small_job_runs_in_its_driver_alone() -> None:
    actual = spec()
    assert actual["driver"]["kubernetesMaster"] == "local[2]"
    assert actual["driver"]["cores"] == 2
    assert (actual["driver"]["memory"], actual["driver"]["memoryOverhead"]) == ("1024m", "2048m")
    assert actual["executor"]["instances"] == 1
    assert "TieredStopAtLevel" in actual["sparkConf"]["spark.driver.extraJavaOptions"]


def test_the_answers_of_tasks_have_no_limit_of_spark() -> None:
    assert spec()["sparkConf"]["spark.driver.maxResultSize"] == "0"
    assert session.build_conf()["spark.driver.maxResultSize"] == "0"
    template = {"spec": {"sparkConf": {"spark.driver.maxResultSize": "2g"}}}
    assert spec(template)["sparkConf"]["spark.driver.maxResultSize"] == "2g"


def test_a_large_job_has_executors() -> None:
    actual = spec(request=replace(REQUEST, input_bytes=3 * GIB, tasks=40))
    assert "kubernetesMaster" not in actual["driver"]
    assert actual["executor"]["instances"] == 3
    assert actual["executor"]["cores"] == 2
    assert actual["sparkConf"]["spark.default.parallelism"] == "6"
    assert "TieredStopAtLevel" not in actual["sparkConf"]["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    ("input_bytes", "tasks", "executors", "heap_gib"),
    [
        (0, 0, 0, 1),
        (GIB - 1, 100, 0, 1),
        (GIB, 100, 1, 2),
        (50 * GIB, 1, 0, 1),  # one task: nothing to share
        (50 * GIB, 4, 2, 2),  # no more slots than tasks
        (50 * GIB, 0, 8, 2),  # never more than the settings allow
        (200 * GIB, 10_000, 8, 4),
    ],
)
def test_sizes(input_bytes: int, tasks: int, executors: int, heap_gib: int) -> None:
    found = job_sizes(input_bytes, tasks=tasks)
    assert (found.executors, found.driver.heap) == (executors, heap_gib * GIB)
    alone = found.executors == 0
    assert found.slots == (found.driver.cores if alone else executors * 2)


@pytest.mark.parametrize(
    "asked",
    [
        {"executor": {"instances": 3}},
        {"dynamicAllocation": {"enabled": True, "maxExecutors": 4}},
        {"sparkConf": {"spark.executor.instances": 3}},
    ],
)
def test_requested_executors_are_granted(asked: Json) -> None:
    actual = spec({"spec": asked})
    assert "kubernetesMaster" not in actual["driver"]
    expected = 3 if "executor" in asked else None
    assert actual["executor"].get("instances") == expected


def test_cores_of_a_driver_that_is_alone_are_its_slots() -> None:
    driver = spec({"spec": {"driver": {"cores": 4}}})["driver"]
    assert driver["kubernetesMaster"] == "local[4]"
    assert driver["memoryOverhead"] == "4096m"


def test_sizes_given_as_spark_settings_are_not_overruled_by_fields() -> None:
    actual = spec({"spec": {"sparkConf": {"spark.driver.memory": "6g"}}})
    assert "memory" not in actual["driver"]
    assert actual["sparkConf"]["spark.driver.memory"] == "6g"


# Templates


def test_fields_that_a_template_may_set() -> None:
    template = {
        "metadata": {"labels": {"team": "lake"}, "annotations": {"cost-centre": 7}},
        "spec": {
            "image": "mine:1",
            "imagePullSecrets": ["registry"],
            "timeToLiveSeconds": 60,
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "sparkConf": {"spark.ui.enabled": False, "spark.task.maxFailures": 2},
            "driver": {
                "memory": "3g",
                "nodeSelector": {"disk": "ssd"},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "template": {
                    "spec": {
                        "containers": [
                            {"name": "spark-kubernetes-driver", "tty": True},
                            {"name": "sidecar", "image": "proxy"},
                        ]
                    }
                },
            },
        },
    }
    application = built(template)
    assert application["metadata"]["labels"]["team"] == "lake"
    assert application["metadata"]["annotations"]["cost-centre"] == "7"
    actual = application["spec"]
    assert (actual["image"], actual["timeToLiveSeconds"]) == ("mine:1", 60)
    assert actual["sparkConf"]["spark.ui.enabled"] == "false"
    assert actual["sparkConf"]["spark.task.maxFailures"] == "2"
    driver = actual["driver"]
    assert driver["memory"] == "3g"
    assert driver["nodeSelector"] == {"disk": "ssd"}
    main = container(driver, "spark-kubernetes-driver")
    assert main["tty"] is True
    assert main["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container(driver, "sidecar") == {"name": "sidecar", "image": "proxy"}


def test_the_resources_template_overrides_the_operators() -> None:
    operators = {"spec": {"image": "theirs:1", "driver": {"memory": "8g", "labels": {"a": "1"}}}}
    settings = replace(SETTINGS, template=operators)
    actual = spec({"spec": {"driver": {"memory": "2g"}}}, settings=settings)
    assert actual["image"] == "theirs:1"
    assert actual["driver"]["memory"] == "2g"
    assert actual["driver"]["labels"] == {"a": "1"}


def test_null_removes_a_default() -> None:
    context = {"runAsUser": None, "runAsGroup": None}
    driver = spec({"spec": {"driver": {"securityContext": context}}})["driver"]
    for found in (driver["securityContext"], container(driver, "spark-kubernetes-driver")):
        assert "runAsUser" not in found
    assert driver["securityContext"]["runAsNonRoot"] is True
    assert "timeToLiveSeconds" not in spec({"spec": {"timeToLiveSeconds": None}})
    removals: tuple[Json, ...] = (
        {"spec": None},
        {"spec": {"driver": None, "executor": None, "sparkConf": None}},
        {"spec": {"driver": {"template": {"spec": None}}}},
        {"spec": {"driver": {"template": {"spec": {"containers": []}}}}},
        {"spec": {"driver": {"securityContext": None}}},
    )
    for nothing in removals:
        actual = spec(nothing, secret_name="lake")
        main = container(actual["driver"], "spark-kubernetes-driver")
        assert main["envFrom"] == [{"secretRef": {"name": "lake"}}]


def template_setting(path: str) -> Json:
    """A template that sets one of the paths of `OURS`; keys of conf and labels have dots."""
    path = path.replace("*", "x")
    for parent in ("metadata.labels", "metadata.annotations", "spec.sparkConf", "spec.driver"):
        if path.startswith(parent + "."):
            outer, inner = parent.split(".")
            return {outer: {inner: {path.removeprefix(parent + "."): "x"}}}
    outer, _, inner = path.partition(".")
    return {outer: {inner: "x"}} if inner else {outer: "x"}


@pytest.mark.parametrize("path", OURS)
def test_reserved_fields_are_refused_by_name(path: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        built(template_setting(path))
    error = raised.value
    assert error.resource == "TableCompaction/nightly"
    assert error.field == f"spec.sparkTemplate.{path.replace('*', 'x')}"
    assert "is set by Tandem" in error.message
    # The operator's own template is held to the same.
    with pytest.raises(InvalidSpec, match="the operator's sparkTemplate"):
        KubeflowApplications(replace(SETTINGS, template=template_setting(path)))


@pytest.mark.parametrize(
    ("template", "field", "hint"),
    [
        ({"driver": {}}, "driver", "Did you mean spec.driver?"),
        ({"spec": []}, "spec", "mapping"),
        ({"spec": {"driver": "large"}}, "spec.driver", "mapping"),
        ({"spec": {"sparkConf": ["a=b"]}}, "spec.sparkConf", "mapping"),
        ({"spec": {"driver": {"envFrom": "x"}}}, "spec.driver.envFrom", "list"),
        ({"metadata": {"uid": "x"}}, "metadata.uid", "labels"),
        ({"metadata": {"labels": "x"}}, "metadata.labels", "mapping"),
        (
            {"spec": {"driver": {"template": {"spec": {"containers": [{"image": "x"}]}}}}},
            "spec.driver.template.spec.containers",
            "name",
        ),
        (
            {"spec": {"nodeSelector": {"a": "b"}, "driver": {"nodeSelector": {"a": "b"}}}},
            "spec.nodeSelector",
            "twice",
        ),
    ],
)
def test_templates_of_another_shape(template: Json, field: str, hint: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        built(template)
    assert raised.value.field == f"spec.sparkTemplate.{field}"
    assert hint in str(raised.value)


def test_merging_templates_changes_neither_input() -> None:
    below: Json = {"a": {"b": [{"name": "x", "v": 1}]}, "c": [1]}
    above: Json = {"a": {"b": [{"name": "x", "w": 2}, {"name": "y"}]}, "c": [2, 3]}
    before = json.dumps([below, above])
    assert merge(below, above) == {
        "a": {"b": [{"name": "x", "v": 1, "w": 2}, {"name": "y"}]},
        "c": [2, 3],
    }
    assert json.dumps([below, above]) == before
