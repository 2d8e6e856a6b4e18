"""`kubectl tandem` against a real API server and a real operator, jobs being quick ones.

Most commands run in this process; some as people type them, through kubectl, which finds the
plugin by its name on PATH. Who only looks is a service account with the cluster role `view`.
"""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import yaml

from kube.plugin import Stage, plugin_stage
from support.waiting import await_that
from tandem.cli.kubectl.complete import candidates

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with plugin_stage(cluster, tmp_path_factory.mktemp("plugin"), "plugin") as stage:
        yield stage


def plan_copies(stage: Stage) -> list[str]:
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
        # On a terminal it is shown in colours, and refreshed.
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
        await_that(lambda: plan_copies(stage) == [], lambda: plan_copies(stage))
    stage.space.await_end(KIND, "first")
    stage.space.await_end(KIND, "second")
    rows = stage.json("history", "busy", viewer=True)
    ended = [row for row in rows if row["what"].startswith(("Succeeded", "Superseded"))]
    assert {row["resource"] for row in ended} == {"TableCompaction/first", "TableCompaction/second"}
    assert [row["time"] for row in rows] == sorted((row["time"] for row in rows), reverse=True)
    first = next(row for row in ended if row["resource"] == "TableCompaction/first")
    assert first["did"].startswith("4 files (")
    assert not any("-plan-" in row["resource"] for row in rows)


def test_a_plan_that_cannot_be_made_says_why_and_leaves_nothing(stage: Stage) -> None:
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


def test_forbidden_requests_are_named_by_verb_and_resource(stage: Stage) -> None:
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
    missing = stage.type("wait", "tcomp/absent")
    assert missing.exit_code == 2
    assert "there is none" in missing.stderr


def test_suspend_resume_wait_and_retry(stage: Stage) -> None:
    stage.lake("tried")
    stage.jobs.fail = 1
    stage.space.compaction("weak", "tried", backoffLimit=0)
    waited = stage.type("wait", "tcomp/weak", "--timeout", "30s", viewer=True)
    assert waited.exit_code == 1
    assert "the test made it fail" in waited.stderr
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
    assert "only a failed operation can be retried" in refused.stderr

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
    where = ["-n", stage.namespace, "--kubeconfig", str(stage.cluster.kubeconfig)]
    assert candidates(["status", *where, "pau"]) == ["paused"]
    assert candidates(["wait", *where, "Tab"]) == [
        *("TableCompaction/", "TableIngest/", "TableReplace/", "TableUpdate/")
    ]
    assert candidates(["wait", *where, "tcomp/lo"]) == ["tcomp/long"]
    no_cluster = ["--kubeconfig", str(stage.folder / "none")]
    assert candidates(["wait", *no_cluster, "tcomp/lo"]) == []
    refused = stage.type("suspend", "tcomp/long")
    assert refused.exit_code == 2
    assert "it has ended" in refused.stderr


def test_ctrl_c_deletes_what_a_plan_has_made(stage: Stage) -> None:
    alone = stage.cluster.namespace("alone")  # no operator watches it: no plan ever comes
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
