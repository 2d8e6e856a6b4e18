"""`kubectl tandem report` against a real API server: what is in the bundle, and that no secret is,
wherever a user may have put one by mistake."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import Result

from kube.plugin import Stage, plugin_stage
from support.jobs.quick_lake import QuickLake
from tandem.spec.common import MANAGED_BY, TABLE_LABEL, label_value

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

CANARY = "canary-5f1e9b"


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with plugin_stage(cluster, tmp_path_factory.mktemp("report"), "report") as stage:
        yield stage


def test_a_report_holds_diagnostics_and_no_secret(stage: Stage) -> None:
    lake = stage.lake("reported")
    _plant(stage, lake)
    planted = json.dumps([stage.cluster.request("GET", url) for url in _places(stage)])
    assert {n for n in range(1, 20) if f"{CANARY}-{n}" not in planted} == {18}
    admin = _bundle(stage.type("report"))
    viewer = _bundle(stage.type("report", "reported", viewer=True))
    for files in (admin, viewer):
        everything = "\n".join(files.values())
        assert CANARY not in everything, [n for n, t in files.items() if CANARY in t]
        manifest = json.loads(files["tandem-report/manifest.json"])
        assert "Secrets: never read." in manifest["never"]
        resources = f"tandem-report/resources/{stage.namespace}"
        assert f"{resources}/LakeTable/reported.yaml" in files
        update = yaml.safe_load(files[f"{resources}/TableUpdate/planted.yaml"])
        assert update["spec"]["update"]["where"] == "k = 1"
        assert update["status"]["phase"] == "Suspended"
        driver = update["spec"]["sparkTemplate"]["spec"]["driver"]
        assert driver["env"][0] == {"name": "PASSWORD", "value": "(removed)"}
        assert driver["memory"] == "2g"
        assert "sparkapplications" in everything
        pod = yaml.safe_load(files["tandem-report/pods.yaml"])[0]
        assert pod["name"] == "tandem-planted-driver"
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
        assert set(manifest["included"]) == {
            name.removeprefix("tandem-report/") for name in files
        } - {"manifest.json"}
    missing = {item["what"]: item["why"] for item in
               json.loads(viewer["tandem-report/manifest.json"])["missing"]}  # fmt: skip
    assert "you may not" in missing["CRD laketables.tandem.dev"]
    definitions = yaml.safe_load(admin["tandem-report/versions.yaml"])["definitions"]
    assert {d["name"] for d in definitions} >= {"laketables.tandem.dev"}
    silent = _bundle(stage.type("report", "reported", "--redact-statements"))
    assert "k = 1" not in "\n".join(silent.values())


def test_a_report_finds_the_jobs_of_a_table_with_a_long_name(stage: Stage) -> None:
    name = "a-lake-of-many-departments.a-table-whose-name-exceeds-the-value-of-a-label"
    stage.lake(name)
    _create_job(stage, "tandem-long", {TABLE_LABEL: label_value(name)})
    files = _bundle(stage.type("report", name))
    assert f"tandem-report/sparkapplications/{stage.namespace}/tandem-long.yaml" in files


def _places(stage: Stage) -> list[str]:
    core = f"/api/v1/namespaces/{stage.namespace}"
    spark = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{stage.namespace}"
    kinds = [stage.space.url(kind) for kind in ("LakeTable", "TableUpdate", "TableIngest")]
    return [*kinds, f"{core}/pods", f"{core}/events", f"{spark}/sparkapplications"]


def _bundle(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.stderr
    with tarfile.open(fileobj=io.BytesIO(result.stdout_bytes), mode="r:gz") as archive:
        found = {}
        for entry in archive.getmembers():
            opened = archive.extractfile(entry)
            assert opened is not None
            found[entry.name] = opened.read().decode()
        return found


def _plant(stage: Stage, lake: QuickLake) -> None:
    """A secret of its own wherever a user may have put one by mistake."""
    space, request = stage.space, stage.cluster.request
    template = {
        "metadata": {"annotations": {"note": f"{CANARY}-1"}, "labels": {"x": f"{CANARY}-2"}},
        "spec": {
            "sparkConf": {
                "spark.hadoop.fs.s3a.secret.key": f"{CANARY}-3",
                "spark.ssl.keyPassword": f"{CANARY}-4",
                "spark.executorEnv.ANY": f"{CANARY}-5",
            },
            "driver": {
                "memory": "2g",
                "env": [{"name": "PASSWORD", "value": f"{CANARY}-6"}],
                "javaOptions": f"-Dpassword={CANARY}-7",
            },
        },
    }
    space.create(
        "TableUpdate",
        "planted",
        {
            "tableRef": {"name": "reported"},
            "update": {"where": "k = 1", "set": {"v": "0"}},
            "suspend": True,
            "sparkTemplate": template,
        },
        annotations={
            "kubectl.kubernetes.io/last-applied-configuration": f'{{"a": "{CANARY}-8"}}',
            "owner": f"{CANARY}-9",
            "tandem.dev/retry": f"{CANARY}-10",
        },
    )
    space.await_phase("TableUpdate", "planted", "Suspended")
    space.create(
        "TableIngest",
        "planted",
        {
            "tableRef": {"name": "reported"},
            "suspend": True,
            "source": {
                "format": "Csv",
                "location": lake.location,
                "options": {"header": "true", "anything": f"{CANARY}-11"},
            },
        },
    )
    space.patch(
        "LakeTable", "reported", {"spec": {"storage": {"options": {"key_hint": f"{CANARY}-12"}}}}
    )
    labels = {TABLE_LABEL: "reported", "sparkoperator.k8s.io/app-name": "tandem-planted"}
    _create_job(stage, "tandem-planted", labels)
    core = f"/api/v1/namespaces/{stage.namespace}"
    request("POST", f"{core}/pods", {
        "metadata": {"name": "tandem-planted-driver", "labels": labels},
        "spec": {"containers": [{
            "name": "spark-kubernetes-driver",
            "image": "tandem:1",
            "args": [f"--password={CANARY}-15"],
            "env": [{"name": "ANY", "value": f"{CANARY}-16"}],
        }]},
    })  # fmt: skip
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": f"token={CANARY}-17"}
    request(
        "PATCH",
        f"{core}/pods/tandem-planted-driver/status",
        {"status": {"phase": "Failed", "containerStatuses": [{
            "name": "spark-kubernetes-driver", "image": "tandem:1", "imageID": "",
            "ready": False, "restartCount": 0, "state": {"terminated": ended},
        }]}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    request("POST", f"{core}/secrets", {
        "metadata": {"name": "lake"}, "stringData": {"AWS_SECRET_ACCESS_KEY": f"{CANARY}-18"},
    })  # fmt: skip
    request("POST", f"{core}/events", {
        "metadata": {"name": "planted"},
        "involvedObject": {
            "apiVersion": "tandem.dev/v1alpha1", "kind": "TableUpdate", "name": "planted",
            "namespace": stage.namespace,
        },
        "reason": "JobFailed",
        # Taken out since it stood where a secret may stand.
        "message": f"the job printed {CANARY}-6 and s3://user:{CANARY}-19@host/x",
        "type": "Warning",
    })  # fmt: skip


def _create_job(stage: Stage, name: str, labels: Mapping[str, str]) -> None:
    managed_by, tandem = MANAGED_BY
    stage.cluster.request(
        "POST",
        f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{stage.namespace}/sparkapplications",
        {
            "apiVersion": "sparkoperator.k8s.io/v1beta2",
            "kind": "SparkApplication",
            "metadata": {"name": name, "labels": {managed_by: tandem, **labels}},
            "spec": {
                "type": "Python",
                "mode": "cluster",
                "sparkVersion": "4.2.0",
                "mainApplicationFile": "local:///x.py",
                "sparkConf": {"spark.x": f"{CANARY}-13"},
                "driver": {"envVars": {"TOKEN": f"{CANARY}-14"}},
                "executor": {},
            },
        },
    )
