"""`kubectl tandem` against a real API server and a real operator, jobs being quick ones.

Most commands run in this process; some as people type them, through kubectl, which finds the
plugin by its name on PATH. Who only looks is a service account with the cluster role `view`.
"""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import yaml
from typer.testing import CliRunner, Result

from cluster_processes import built
from support import quick_lake
from support.operator_thread import (
    HeldJobs,
    Resources,
    await_that,
    operating,
    quick_settings,
)
from support.quick_lake import QuickLake
from tandem.cli.kubectl.main import app

if TYPE_CHECKING:
    from support.cluster import Cluster

KIND = "TableCompaction"
CANARY = "canary-5f1e9b"
_RULES = [
    {
        "apiGroups": ["tandem.dev"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["sparkoperator.k8s.io"],
        "resources": ["sparkapplications"],
        "verbs": ["get", "list", "watch"],
    },
]


@dataclass
class Stage:
    cluster: Cluster
    space: Resources
    jobs: HeldJobs
    folder: Path
    viewer: Path
    """kubeconfig of who may only look."""

    @property
    def namespace(self) -> str:
        return self.space.namespace

    def lake(self, name: str, loads: int = 4) -> QuickLake:
        lake = quick_lake.make(self.folder / name, loads)
        self.space.table(name, lake.location)
        self.space.await_reason("LakeTable", name, "Adopted")
        return lake

    def type(self, *words: str, viewer: bool = False, input_: str | None = None) -> Result:
        """A command in this process."""
        kubeconfig = self.viewer if viewer else self.cluster.kubeconfig
        typed = [words[0], "-n", self.namespace, "--kubeconfig", str(kubeconfig), *words[1:]]
        result = CliRunner().invoke(app, typed, input=input_, env={"COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *words: str, viewer: bool = False) -> Any:
        result = self.type(*words, "-o", "json", viewer=viewer)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def kubectl(self, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """As people type it: `kubectl tandem …`, in this namespace, who may only look."""
        found = [str(Path(sys.executable).parent), str(built("kubernetes") / "bin")]
        environ = {
            "PATH": os.pathsep.join([*found, os.environ["PATH"]]),
            "KUBECONFIG": os.pathsep.join([str(self.folder / "none"), str(self.viewer)]),
            "HOME": str(self.folder),
            "TERM": "xterm-256color",
        }
        return subprocess.Popen(
            ["kubectl", "tandem", *words],
            env=environ,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    space = Resources(cluster, cluster.namespace("plugin"))
    folder = tmp_path_factory.mktemp("plugin")
    jobs = HeldJobs()
    before = structlog.get_config()
    with (folder / "operator.log").open("w") as log:
        # It runs in this process, and must not talk into what commands print.
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        with operating(quick_settings(cluster, space.namespace), jobs):
            yield Stage(cluster, space, jobs, folder, _viewer(cluster, space.namespace, folder))
        structlog.configure(**before)


def _viewer(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """Kubernetes' own role for looking, and ours that the chart aggregates to it."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.request("POST", accounts, {"metadata": {"name": "viewer"}})
    cluster.request("POST", f"{rbac}/roles", {"metadata": {"name": "look"}, "rules": _RULES})
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    for kind, name in (("Role", "look"), ("ClusterRole", "system:aggregate-to-view")):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {
            "metadata": {"name": kind.lower()},
            "roleRef": reference,
            "subjects": [subject],
        }
        cluster.request("POST", f"{rbac}/rolebindings", binding)
    access = cluster.admin.of_service_account(namespace, "viewer")
    path = access.write(folder / "viewer.kubeconfig")
    config = json.loads(path.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    path.write_text(json.dumps(config))
    return path


def twins(stage: Stage) -> list[str]:
    found = stage.cluster.request("GET", stage.space.url(KIND) + "?labelSelector=tandem.dev/plan")
    return [item["metadata"]["name"] for item in found["items"]]


def test_status_locks_and_plan_while_one_runs_and_one_waits(stage: Stage) -> None:
    lake = stage.lake("busy")
    with stage.jobs.held():
        stage.space.compaction("first", "busy")
        stage.space.await_phase(KIND, "first", "Running")
        stage.space.compaction("second", "busy", targetFileSize="64Mi")
        stage.space.await_reason(KIND, "second", "WaitingForLock")
        stage.space.await_status(
            "LakeTable", "busy", lambda s: {k["state"] for k in s.get("locks", ())}
            >= {"Held", "Waiting"},
        )  # fmt: skip
        screen, terminal = pty.openpty()
        watching = stage.kubectl("status", "busy", "--watch", stdout=terminal)
        lines = stage.kubectl("status", "-w", "-o", "json")
        typed = stage.kubectl("status", "busy")
        shown, errors = typed.communicate(timeout=60)
        assert typed.returncode == 0, errors
        for words in ("Ready", "runs   TableCompaction/first", "waits  TableCompaction/second",
                      "waits for TableCompaction/first on segment f-"):  # fmt: skip
            assert words in shown, shown
        assert "\x1b[" not in shown
        # On a terminal it is shown in colours, and anew.
        seen = b""
        while b"Ready" not in seen or b"\x1b[" not in seen:
            seen += os.read(screen, 65536)
        assert lines.stdout is not None
        assert json.loads(lines.stdout.readline())["tables"][0]["name"] == "busy"
        for process in (watching, lines):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 130
        os.close(screen)
        os.close(terminal)

        found = stage.json("status", viewer=True)
        assert found["problems"] == []
        (table,) = [t for t in found["tables"] if t["name"] == "busy"]
        facts = {name: table[name] for name in ("health", "version", "segments", "deletedRows")}
        assert facts == {"health": "Ready", "version": lake.version, "segments": 4,
                         "deletedRows": 0}  # fmt: skip
        assert [o["operation"] for o in table["running"]] == ["TableCompaction/first"]
        (waiting,) = table["waiting"]
        assert waiting["reason"] == "WaitingForLock"
        assert waiting["behind"][0].startswith("TableCompaction/first on segment f-")

        held, queued = stage.json("locks", "ltbl/busy", viewer=True)
        assert (held["operation"], held["mode"]) == ("TableCompaction/first", "Rewrite")
        assert (held["state"], queued["state"]) == ("Held", "Waiting")
        assert held["since"] <= queued["since"]
        assert len(held["segments"]) == 4

        plan = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": KIND,
            "metadata": {"name": "third"},
            "spec": {"tableRef": {"name": "busy"}, "type": "Major", "priority": 7},
        }
        text = yaml.safe_dump(plan)
        (planned,) = json.loads(stage.type("plan", "-f", "-", "-o", "json", input_=text).stdout)
        assert planned["status"]["plan"]["inputs"] == 4
        assert {c["operation"]: c["means"] for c in planned["conflicts"]} == {
            "TableCompaction/first": "waits",
            "TableCompaction/second": "waits",
        }
        shown = stage.type("plan", "tcomp/first").stdout
        assert "4 files" in shown
        # An operation does not wait for itself.
        assert "TableCompaction/first on" not in shown
        await_that(lambda: twins(stage) == [], lambda: twins(stage))
    stage.space.await_end(KIND, "first")
    stage.space.await_end(KIND, "second")
    rows = stage.json("history", "busy", viewer=True)
    ended = [row for row in rows if row["what"].startswith(("Succeeded", "Superseded"))]
    assert {row["resource"] for row in ended} == {"TableCompaction/first", "TableCompaction/second"}
    assert [row["time"] for row in rows] == sorted((row["time"] for row in rows), reverse=True)
    first = next(row for row in ended if row["resource"] == "TableCompaction/first")
    assert first["did"].startswith("4 files (")
    assert not any("-plan-" in row["resource"] for row in rows)


def test_a_plan_of_what_cannot_be_says_why_and_leaves_nothing(stage: Stage) -> None:
    stage.lake("plain", loads=1)
    update = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "TableUpdate",
        "metadata": {"name": "typo"},
        "spec": {"tableRef": {"name": "plain"}, "delete": {"where": "no_such_column = 1"}},
    }
    failed = stage.type("plan", "-f", "-", input_=yaml.safe_dump(update))
    assert failed.exit_code == 1
    assert "would fail: InvalidStatement" in failed.stdout
    assert "no_such_column" in failed.stdout
    wrong = stage.type("plan", "-f", "-", input_="kind: TableUpdate\n")
    assert wrong.exit_code == 2
    nothing = stage.type("plan", "LakeTable/plain")
    assert nothing.exit_code == 0
    assert "next" in nothing.stdout
    url = stage.space.url("TableUpdate") + "?labelSelector=tandem.dev/plan"
    await_that(lambda: not stage.cluster.request("GET", url)["items"], lambda: "a twin is left")


def test_what_is_not_allowed_is_named_by_verb_and_resource(stage: Stage) -> None:
    stage.lake("locked", loads=1)
    stage.space.compaction("idle", "locked", suspend=True)
    refused = stage.type("suspend", "tcomp/idle", viewer=True)
    assert refused.exit_code == 0  # it is already: nothing to change
    refused = stage.type("resume", "tcomp/idle", viewer=True)
    assert refused.exit_code == 1
    assert (
        f"you may not patch tablecompactions.tandem.dev in namespace {stage.namespace}"
        in refused.stderr
    )
    assert "kubectl auth can-i patch tablecompactions.tandem.dev" in refused.stderr
    refused = stage.type("plan", "tcomp/idle", viewer=True)
    assert "you may not create tablecompactions.tandem.dev" in refused.stderr
    everywhere = stage.type("locks", "-A", viewer=True)
    assert "you may not list laketables.tandem.dev in all namespaces" in everywhere.stderr
    missing = stage.type("wait", "tcomp/nobody")
    assert missing.exit_code == 2
    assert "there is none" in missing.stderr


def test_suspend_resume_wait_and_retry(stage: Stage) -> None:
    stage.lake("tried")
    stage.jobs.fail = 1
    stage.space.compaction("weak", "tried", backoffLimit=0)
    waited = stage.type("wait", "tcomp/weak", "--timeout", "30s", viewer=True)
    assert waited.exit_code == 1
    assert "it was told to fail" in waited.stderr
    found = stage.json("status", "tried", viewer=True)
    (problem,) = found["problems"]
    assert (problem["resource"], problem["reason"]) == ("TableCompaction/weak", "JobFailed")
    assert "retry" in problem["remedy"]
    shown = stage.type("status", "tried", viewer=True).stdout
    assert shown.index("1 problem") < shown.index("health")
    again = stage.type("retry", "tablecompaction/weak", "--wait", "--timeout", "30s")
    assert again.exit_code == 0, again.stderr
    stage.space.await_end_of(KIND, "weak", "Succeeded")
    refused = stage.type("retry", "tcomp/weak")
    assert refused.exit_code == 2
    assert "only what failed can be tried again" in refused.stderr

    stage.lake("paused")
    with stage.jobs.held():
        stage.space.compaction("long", "paused")
        stage.space.await_phase(KIND, "long", "Running")
        assert stage.type("suspend", "tcomp/long").exit_code == 0
        stage.space.await_phase(KIND, "long", "Suspended")
        late = stage.type("wait", "tcomp/long", "--timeout", "10ms")
        assert late.exit_code == 1
        assert "not ended in time" in late.stderr
    assert stage.type("resume", "tcomp/long").exit_code == 0
    assert stage.type("wait", "tcomp/long", "--timeout", "30s").exit_code == 0
    refused = stage.type("suspend", "tcomp/long")
    assert refused.exit_code == 2
    assert "it has ended" in refused.stderr


def test_ctrl_c_deletes_what_a_plan_has_made(stage: Stage) -> None:
    alone = stage.cluster.namespace("alone")  # nobody serves it: no plan ever comes
    file = stage.folder / "compaction.yaml"
    body = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": KIND,
        "metadata": {"name": "long"},
        "spec": {"tableRef": {"name": "t"}, "type": "Minor"},
    }
    file.write_text(yaml.safe_dump(body))
    admin = str(stage.cluster.kubeconfig)
    typed = stage.kubectl("plan", "-f", str(file), "-n", alone, "--kubeconfig", admin)
    assert typed.stderr is not None
    assert "planning" in typed.stderr.readline()
    url = f"/apis/tandem.dev/v1alpha1/namespaces/{alone}/tablecompactions"
    (twin,) = stage.cluster.request("GET", url)["items"]
    assert twin["spec"]["dryRun"] is True
    assert twin["spec"]["ttlSecondsAfterFinished"] > 0
    typed.send_signal(signal.SIGINT)
    typed.communicate(timeout=60)
    assert typed.returncode == 130
    assert stage.cluster.request("GET", url)["items"] == []


def test_a_report_holds_what_helps_and_no_secret(stage: Stage) -> None:
    lake = stage.lake("told")
    _plant(stage, lake)
    planted = json.dumps([stage.cluster.request("GET", url) for url in _places(stage)])
    assert {n for n in range(1, 20) if f"{CANARY}-{n}" not in planted} == {18}
    admin = _bundle(stage.type("report"))
    viewer = _bundle(stage.type("report", "told", viewer=True))
    for files in (admin, viewer):
        everything = "\n".join(files.values())
        assert CANARY not in everything, [n for n, t in files.items() if CANARY in t]
        manifest = json.loads(files["tandem-report/manifest.json"])
        assert "Secrets: never read." in manifest["never"]
        resources = f"tandem-report/resources/{stage.namespace}"
        assert f"{resources}/LakeTable/told.yaml" in files
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
    silent = _bundle(stage.type("report", "told", "--redact-statements"))
    assert "k = 1" not in "\n".join(silent.values())


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
    """A secret of its own wherever somebody may have put one by mistake."""
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
            "tableRef": {"name": "told"},
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
            "tableRef": {"name": "told"},
            "suspend": True,
            "source": {
                "format": "Csv",
                "location": lake.location,
                "options": {"header": "true", "anything": f"{CANARY}-11"},
            },
        },
    )
    space.patch(
        "LakeTable", "told", {"spec": {"storage": {"options": {"key_hint": f"{CANARY}-12"}}}}
    )
    labels = {
        "app.kubernetes.io/managed-by": "tandem",
        "tandem.dev/table": "told",
        "sparkoperator.k8s.io/app-name": "tandem-planted",
    }
    core = f"/api/v1/namespaces/{stage.namespace}"
    applications = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{stage.namespace}"
    request(
        "POST",
        f"{applications}/sparkapplications",
        {
            "apiVersion": "sparkoperator.k8s.io/v1beta2",
            "kind": "SparkApplication",
            "metadata": {"name": "tandem-planted", "labels": labels},
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


def test_versions_and_the_operators_pods(stage: Stage) -> None:
    pod = {
        "metadata": {
            "name": "tandem-operator-0",
            "labels": {
                "app.kubernetes.io/part-of": "tandem",
                "app.kubernetes.io/component": "operator",
                "app.kubernetes.io/version": "9.8.7",
            },
        },
        "spec": {"containers": [{"name": "operator", "image": "tandem:9.8.7"}]},
    }
    url = f"/api/v1/namespaces/{stage.namespace}/pods"
    stage.cluster.request("POST", url, pod)
    found = stage.json("version")
    assert found["kinds"] == ["v1alpha1"]
    assert found["kubernetes"].startswith("v1.")
    assert found["operator"]["summary"] == f"0 of 1 pods ready in {stage.namespace}, version 9.8.7"
    unseen = stage.json("version", viewer=True)
    assert "you may not list pods" in unseen["operator"]["summary"]
    assert "pods" not in unseen["operator"]
    stage.cluster.request("DELETE", f"{url}/tandem-operator-0?gracePeriodSeconds=0")
