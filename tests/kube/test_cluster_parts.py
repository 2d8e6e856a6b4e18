"""The parts that other tests stand on are the real ones, and are cleared away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_access import once_served
from cluster_processes import REPOSITORY
from support.cluster.api_server import ApiRefused, Cluster, KubectlFailed, own_cluster

WITHIN_S = 120.0


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WITHIN_S / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail(f"not after {WITHIN_S} s")


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def application(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "pi"},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": "4.2.0",
            "mainApplicationFile": "local:///pi.py",
            "driver": {"cores": 1},
            "executor": {"instances": 1},
            **spec,
        },
    }


def test_version_is_the_pinned_one(cluster: Cluster) -> None:
    pins = (REPOSITORY / "tools" / "kubernetes" / "go.mod").read_text()
    found = cluster.request("GET", "/version")["gitVersion"]
    assert f"k8s.io/kubernetes {found} " in pins


def test_operator_may_do_its_work_and_nothing_else(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    applications = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications"
    cluster.operator.request("POST", applications, application())
    assert len(cluster.operator.request("GET", applications)["items"]) == 1
    for method, path, body in (
        # Jobs are written once.
        ("PATCH", f"{applications}/pi", {"spec": {"mode": "client"}}),
        ("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map("some")),
        # It reads the secret that a table names, and cannot look around for others.
        ("GET", f"/api/v1/namespaces/{namespace}/secrets", None),
        ("DELETE", f"/api/v1/namespaces/{namespace}", None),
    ):
        with pytest.raises(ApiRefused) as refused:
            cluster.operator.request(
                method, path, body, content_type="application/merge-patch+json"
            )
        assert refused.value.status == 403, (method, path)
        assert "system:serviceaccount:tandem-system:tandem-operator" in refused.value.message


def test_dev_may_not_make_jobs(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    applications = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications"
    with pytest.raises(ApiRefused) as refused:
        cluster.dev.request("POST", applications, application())
    assert refused.value.status == 403
    cluster.request("POST", applications, application())
    status = {"status": {"applicationState": {"state": "RUNNING"}, "driverInfo": {}}}
    cluster.dev.request(
        "PATCH",
        f"{applications}/pi/status",
        status,
        content_type="application/merge-patch+json",
    )
    found = cluster.request("GET", f"{applications}/pi")
    assert found["status"]["applicationState"]["state"] == "RUNNING"


def test_owned_objects_are_deleted_with_their_owner(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = cluster.request("POST", path, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    reference["uid"] = owner["metadata"]["uid"]
    cluster.request("POST", path, config_map("owned", ownerReferences=[reference]))
    cluster.request("POST", path, config_map("other"))
    cluster.request("DELETE", f"{path}/owner")

    def names() -> set[str]:
        return {item["metadata"]["name"] for item in cluster.request("GET", path)["items"]}

    until(lambda: "owned" not in names())
    assert "other" in names()


def test_a_kind_whose_cache_is_not_loaded_is_asked_again() -> None:
    answers = [(429, b"storage is (re)initializing")] * 2 + [(201, b"{}"), (500, b"")]
    assert once_served(lambda: answers.pop(0)) == (201, b"{}")
    assert answers == [(500, b"")]


def test_their_crd_refuses_a_bad_application(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    path = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications"
    for spec, complaint in (
        ({"type": "Perl"}, "spec.type: Unsupported value"),
        ({"driver": {"cores": "many"}}, "spec.driver.cores"),
        ({"restartPolicy": {"type": "Sometimes"}}, "spec.restartPolicy.type: Unsupported value"),
    ):
        with pytest.raises(ApiRefused) as refused:
            cluster.request("POST", path, application(**spec))
        assert refused.value.status == 422
        assert complaint in refused.value.message


def test_kubectl_reports_errors(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: some}, data: {a: b}}"
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=manifest)
    assert cluster.kubectl("get", "cm", "some", "-n", namespace, "-o", "jsonpath={.data}") == (
        '{"a":"b"}'
    )
    with pytest.raises(KubectlFailed) as failed:
        cluster.kubectl("get", "configmap", "none", "-n", namespace)
    assert 'configmaps "none" not found' in failed.value.stderr


def test_audit_log_counts_writes(cluster: Cluster) -> None:
    namespace = cluster.namespace()
    path = f"/api/v1/namespaces/{namespace}/events"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "some"},
        "involvedObject": {"kind": "ConfigMap", "name": "x", "namespace": namespace},
    }
    cluster.operator.request("POST", path, event)
    [write] = [entry for entry in cluster.writes(namespace) if "operator" in str(entry["user"])]
    assert (write["verb"], write["objectRef"]["resource"]) == ("create", "events")


@pytest.mark.matrix
def test_a_private_cluster_survives_what_a_test_does_to_it() -> None:
    with own_cluster() as cluster:
        namespace = cluster.namespace()
        cluster.restart_apiserver()
        etcd = cluster.part("etcd")
        etcd.kill()
        etcd.start()
        etcd.stop()
        etcd.resume()
        assert cluster.request("GET", f"/api/v1/namespaces/{namespace}")["kind"] == "Namespace"


# What a run does that is killed: it starts a cluster, and has no time to end it.
_KILLED = """
import os, pathlib, sys
from support.cluster.api_server import shared_cluster
cluster = shared_cluster(pathlib.Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


@pytest.mark.matrix
def test_nothing_outlives_a_killed_run(tmp_path: Path) -> None:
    paths = [str(REPOSITORY / folder) for folder in ("tools", "tests", "operator")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environ.pop("PYTEST_XDIST_WORKER", None)
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], env=environ)
    assert killed.returncode == -9
    assert (tmp_path / "cluster" / "state.json").exists()

    def at_work() -> list[str]:
        """Command lines of processes that have to do with this cluster."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(tmp_path) in command:
                found.append(command)
        return found

    until(lambda: not at_work())
    assert "kube-apiserver.log" in os.listdir(tmp_path / "cluster")
    assert not (tmp_path / "cluster" / "etcd.data").exists()
