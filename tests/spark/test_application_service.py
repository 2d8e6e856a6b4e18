"""The application of an IndexServer: started again whenever it ends, Secrets as files, and the same
policy for its template as for that of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.errors import InvalidSpec
from tandem.index.server.messages import TableConfig, read
from tandem.kube.controllers.index_deployment import application, service, service_endpoint
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import ApplicationSettings
from tandem.spark.jobs.index_server import driver_address
from tandem.spec import IndexServer, parse

Json = dict[str, Any]
TABLES = {
    "flights": TableConfig(location="s3://lake/flights", options={"region": "x"}, secret="keys"),
    "orders": TableConfig(location="s3://lake/orders", secret="keys.of-orders"),
}
SECRETS = {"keys": "1", "keys.of-orders": "1", "lake-index-tls": "1"}
SETTINGS = ApplicationSettings(image="registry.example/tandem:1", ttl_s=600)


def server(name: str = "lake", **spec: Any) -> IndexServer:
    found = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "IndexServer",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": spec,
        }
    )
    assert isinstance(found, IndexServer)
    return found


def made(found: IndexServer | None = None, **changes: Any) -> Json:
    given = {"tables": TABLES, "secrets": SECRETS, "uid": "u1", **changes}
    return application(
        found or server(), given["uid"], given["tables"], given["secrets"],
        KubeflowApplications(SETTINGS),
    )  # fmt: skip


def pod_of(body: Json, part: str = "driver") -> tuple[Json, Json]:
    inner = body["spec"][part]["template"]["spec"]
    name = f"spark-kubernetes-{part}"
    return inner, next(each for each in inner["containers"] if each["name"] == name)


def test_it_is_started_again_whenever_it_ends_and_never_expires() -> None:
    body = made()
    assert body["spec"]["restartPolicy"]["type"] == "Always"
    assert "timeToLiveSeconds" not in body["spec"]
    [owner] = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("IndexServer", "lake", "u1")
    assert body["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "tandem",
        "tandem.dev/kind": "IndexServer",
        "tandem.dev/index-server": "lake",
    }


def test_each_secret_is_a_folder_of_files_and_no_variable() -> None:
    inner, container = pod_of(made())
    volumes = {v["name"]: v["secret"]["secretName"] for v in inner["volumes"] if "secret" in v}
    assert sorted(volumes.values()) == sorted(SECRETS)
    mounts = {m["name"]: m for m in container["volumeMounts"]}
    for name, secret in volumes.items():
        assert mounts[name]["mountPath"] == f"/etc/tandem/secrets/{secret}"
        assert mounts[name]["readOnly"] is True
    text = json.dumps(made())
    assert "envFrom" not in text
    assert "secretRef" not in text


def test_its_arguments_say_what_it_serves_and_nothing_secret() -> None:
    arguments = made()["spec"]["arguments"]
    assert arguments[::2] == ["--request"] * (len(arguments) // 2)
    config = read(arguments[1::2])
    assert config.tables == TABLES
    assert (config.access.mode, config.access.namespace) == ("ServiceAccount", "team-a")
    assert config.access.tls == "lake-index-tls"
    assert config.memory == 4 << 30
    assert config.poll_s == 5.0
    assert config.history_s == 900.0


def test_its_memory_lies_beside_the_jvm_and_its_answers_on_a_disk_with_a_limit() -> None:
    body = made(server(memory="2Gi", disk="3Gi"))
    assert body["spec"]["driver"]["memory"] == "512m"
    assert body["spec"]["driver"]["memoryOverhead"] == f"{2048 + 512}m"
    inner, _ = pod_of(body)
    [scratch] = [v for v in inner["volumes"] if "emptyDir" in v]
    assert scratch["emptyDir"] == {"sizeLimit": str(3 << 30)}


def test_only_a_server_that_reviews_tokens_has_one() -> None:
    inner, _ = pod_of(made())
    assert "automountServiceAccountToken" not in inner
    inner, _ = pod_of(made(server(access={"mode": "SharedToken"})))
    assert inner["automountServiceAccountToken"] is False
    assert made()["spec"]["driver"]["serviceAccount"] == "tandem-index"


def test_a_pod_is_ready_when_it_listens_and_the_service_selects_it() -> None:
    body, made_service = made(), service(server(), "u1")
    _, container = pod_of(body)
    port = made_service["spec"]["ports"][0]["port"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == port == 8815
    # Spark's own labels are on its pods only; those of the application the Spark operator gives to
    # executors, too.
    on_driver = {**body["spec"]["driver"]["labels"], "spark-role": "driver"}
    on_executor = {**body["metadata"]["labels"], "spark-role": "executor"}
    selector = made_service["spec"]["selector"].items()
    assert selector <= on_driver.items()
    assert not selector <= on_executor.items()
    assert service_endpoint(server()) == "grpc+tls://lake-index.team-a.svc:8815"
    plain = server(access={"mode": "Plaintext"})
    assert service_endpoint(plain) == "grpc://lake-index.team-a.svc:8815"


def test_what_it_depends_on_is_in_its_name_and_nothing_else() -> None:
    name = made()["metadata"]["name"]
    assert made()["metadata"]["name"] == name
    others = [
        made(server(memory="5Gi")),
        made(tables={"flights": TABLES["flights"]}),
        made(secrets={**SECRETS, "keys": "2"}),
        made(uid="u2"),
        made(server("lakes")),
        made(server(sparkTemplate={"spec": {"driver": {"cores": 3}}})),
    ]
    names = {name, *(each["metadata"]["name"] for each in others)}
    assert len(names) == len(others) + 1
    longest = made(server("a" * 40))["metadata"]["name"]
    assert len(longest) <= 50


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"restartPolicy": {"type": "Never"}}}, "spec.restartPolicy"),
        ({"spec": {"arguments": ["--request", "{}"]}}, "spec.arguments"),
        ({"spec": {"mainApplicationFile": "local:///x.py"}}, "spec.mainApplicationFile"),
        ({"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}, "volumes.h.hostPath"),
        ({"spec": {"driver": {"serviceAccount": "admin"}}}, "driver.serviceAccount"),
        (
            {"spec": {"driver": {"labels": {"tandem.dev/index-server": "other"}}}},
            "spec.driver.labels.tandem.dev/index-server",
        ),
        (
            {"spec": {"driver": {"securityContext": {"privileged": True}}}},
            "securityContext.privileged",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_its_template_is_checked_as_that_of_a_job(template: Json, path: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        made(server(sparkTemplate=template))
    assert path in caught.value.field
    assert caught.value.resource == "IndexServer/lake"


def test_its_template_sets_sizes_and_places() -> None:
    template = {"spec": {"driver": {"cores": 4, "memoryOverhead": "9g",
                                    "nodeSelector": {"disk": "ssd"}}}}  # fmt: skip
    driver = made(server(sparkTemplate=template))["spec"]["driver"]
    assert (driver["cores"], driver["memoryOverhead"]) == (4, "9g")
    assert driver["nodeSelector"] == {"disk": "ssd"}


def test_a_driver_serves_before_it_has_executors() -> None:
    """It is ready when it serves, and only then its Service has its name: it must not wait for
    executors that look for it by that name."""
    body = made(server(executors=1))
    conf = body["spec"]["sparkConf"]
    assert conf["spark.scheduler.minRegisteredResourcesRatio"] == "0"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "true"
    in_pod = {"spark.driver.host": "name.of.service.svc", "spark.driver.bindAddress": "10.0.0.7"}
    assert driver_address(in_pod.get) == "10.0.0.7"
    assert driver_address({**in_pod, "spark.driver.bindAddress": "fd00::7"}.get) == "[fd00::7]"
    assert driver_address({"spark.driver.host": "127.0.0.1"}.get) == "127.0.0.1"


def test_executors_outlive_failures_and_hold_what_the_spec_says() -> None:
    body = made(server(executors=3, memory="2Gi"))
    executor, conf = body["spec"]["executor"], body["spec"]["sparkConf"]
    assert executor["instances"] == 3
    assert executor["memoryOverhead"] == f"{2048 + 512}m"
    for setting in ("spark.task.maxFailures", "spark.executor.maxNumFailures"):
        assert int(conf[setting]) >= 1_000_000
    assert conf["spark.task.cpus"] == str(executor["cores"])
    assert conf["spark.speculation"] == conf["spark.dynamicAllocation.enabled"] == "false"
    _, container = pod_of(body, "executor")
    assert [m["mountPath"] for m in container["volumeMounts"] if "secrets" in m["mountPath"]]
