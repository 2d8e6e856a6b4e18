"""Resources that a GitOps tool applies again and again, on a real API server with an operator at
work: nothing changes, nothing starts, nothing shows as drift. And what the tools see meanwhile."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster_access import KubectlFailed
from cluster_processes import REPOSITORY
from gitops.health_tools import HealthTools
from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.cluster.recorder import Recorder, recording
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.waiting import await_that
from tandem.spec.resources import KINDS

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
TABLE = "LakeTable"
COMPACTION = "TableCompaction"
UPDATE = "TableUpdate"
RETRY = "tandem.dev/retry"
FLUX = "kustomize-controller"
FLUX_LABELS = {"kustomize.toolkit.fluxcd.io/name": "lake"}
ARGO_TRACKING = {"argocd.argoproj.io/tracking-id": "lake:tandem.dev/TableUpdate:lake/x"}


@dataclass
class Stage:
    """A namespace whose manifests are in Git, so to say: applied by kubectl, never patched."""

    space: Resources
    jobs: HeldJobs
    folder: Path
    recorder: Recorder
    _made: Iterator[int] = field(default_factory=itertools.count)

    def manifest(self, kind: str, name: str, spec: Json, **metadata: Any) -> Json:
        return {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.space.namespace, **metadata},
            "spec": spec,
        }

    def lake(self, loads: int = 4, **spec: Any) -> tuple[Json, QuickLake]:
        """A table, and the manifest of its LakeTable."""
        name = f"t{next(self._made)}"
        lake = quick_lake.make(self.folder / name, loads)
        return self.manifest(TABLE, name, {"location": lake.location, **spec}), lake

    def apply(self, *manifests: Json, manager: str = "") -> list[str]:
        """As `kubectl apply` does, or (with the name of a manager) a server-side apply; what it
        says became of each."""
        options = ["--server-side", "--force-conflicts", f"--field-manager={manager}"]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        output = self.space.cluster.kubectl(
            "apply", *(options if manager else ()), "-f", "-", input=text
        )
        return [line.rsplit(" ", 1)[1] for line in output.splitlines()]

    def live(self, manifest: Json) -> Json:
        found = self.space.get(manifest["kind"], manifest["metadata"]["name"])
        assert found is not None
        return {"apiVersion": "tandem.dev/v1alpha1", **found}

    def end(self, manifest: Json) -> Json:
        return self.space.await_end(manifest["kind"], manifest["metadata"]["name"])

    def await_summary(self, table: str, lake: QuickLake, *ended: str) -> None:
        """Until a table's status has the version, the end of these operations, and no lock: they
        are reported after the operations' own status."""

        def complete(status: Json) -> bool:
            last = {operation["name"] for operation in status.get("lastOperations") or ()}
            running = {*(status.get("runningOperations") or ()), *(status.get("heldLocks") or ())}
            mentioned = any(name in each for name in ended for each in running)
            return status.get("version") == lake.version and last >= set(ended) and not mentioned

        self.space.await_status(TABLE, table, complete)

    def settle(self) -> None:
        """Until the operator has dealt with all that was done before: it has ended an operation
        that came after it."""
        last = self.manifest(
            COMPACTION,
            f"sentinel-{next(self._made)}",
            {"tableRef": {"name": "sentinel"}, "type": "Minor", "dryRun": True},
        )
        self.space.create(COMPACTION, last["metadata"]["name"], last["spec"])
        self.end(last)

    def assert_started(self, jobs: list[str]) -> None:
        """These jobs ran, and no SparkApplication was made for any other."""
        assert self.jobs.started == jobs

        def made() -> list[Json]:
            return [
                entry["objectRef"]
                for entry in self.space.cluster.writes(self.space.namespace)
                if (entry["verb"], entry["objectRef"]["resource"])
                == ("create", "sparkapplications")
            ]

        # The audit log may lag behind.
        await_that(lambda: len(made()) == len(jobs), made)


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("gitops")
    space = Resources(cluster, cluster.namespace("gitops"))
    jobs = HeldJobs()
    with (
        recording(cluster, space.namespace) as recorder,
        spark_operator(cluster, space.namespace, jobs),
        operating(quick_settings(cluster, space.namespace), jobs, spark=True),
    ):
        space.table("sentinel", quick_lake.make(folder / "sentinel").location)
        space.await_reason(TABLE, "sentinel", "Adopted")
        yield Stage(space, jobs, folder, recorder)


def annotated(manifest: Json, key: str = "annotations", **values: str) -> Json:
    changed = copy.deepcopy(manifest)
    changed["metadata"].setdefault(key, {}).update(values)
    return changed


def revision(body: Json) -> tuple[str, int]:
    return body["metadata"]["resourceVersion"], body["metadata"]["generation"]


def test_applied_again_nothing_changes_and_nothing_starts(
    stage: Stage, health_tools: HealthTools
) -> None:
    table, lake = stage.lake()
    name = table["metadata"]["name"]
    spec = {"tableRef": {"name": name}}
    tidy = stage.manifest(COMPACTION, "tidy", {**spec, "type": "Minor", "minor": {"preserve": 0}})
    wrong = stage.manifest(
        UPDATE, "wrong", {**spec, "update": {"where": "nothing = 1", "set": {"v": "0"}}}
    )
    asleep = stage.manifest(
        COMPACTION, "asleep", {**spec, "type": "Major", "suspend": True, "layout": {}}
    )
    manifests = [table, tidy, wrong, asleep]

    # While the job runs.
    with stage.jobs.held():
        assert set(stage.apply(*manifests)) == {"created"}
        stage.space.await_phase(COMPACTION, "tidy", "Running")
        before = stage.space.await_phase(COMPACTION, "asleep", "Suspended")
        assert set(stage.apply(*manifests)) == {"unchanged"}
        assert stage.space.status(COMPACTION, "asleep") == before
        assert {v.status for v in health_tools.drift((stage.live(m), m) for m in manifests)} == {
            "Synced"
        }
    stage.end(tidy)
    stage.end(wrong)
    stage.await_summary(name, lake, f"{COMPACTION}/tidy", f"{UPDATE}/wrong")
    stage.settle()
    started, version = list(stage.jobs.started), lake.version
    statuses = [stage.live(manifest)["status"] for manifest in manifests[1:]]

    # By kubectl, as Argo CD does; by a second manager, as Flux does, whose first time is noted in
    # managedFields; and with what both write into the metadata of what is theirs.
    before_it = [revision(stage.live(manifest)) for manifest in manifests]
    assert set(stage.apply(*manifests)) == {"unchanged"}
    assert [revision(stage.live(manifest)) for manifest in manifests] == before_it
    stage.apply(*manifests, manager=FLUX)
    before_it = [revision(stage.live(manifest)) for manifest in manifests]
    stage.apply(*manifests, manager=FLUX)
    assert [revision(stage.live(manifest)) for manifest in manifests] == before_it
    marked = [annotated(annotated(m, **ARGO_TRACKING), "labels", **FLUX_LABELS) for m in manifests]
    stage.apply(*marked)
    stage.apply(*marked, manager=FLUX)
    found = [stage.live(manifest) for manifest in manifests]
    assert {v.status for v in health_tools.drift(zip(found, marked, strict=True))} == {"Synced"}
    assert {body["metadata"]["generation"] for body in found} == {1}

    stage.settle()
    assert [stage.live(manifest)["status"] for manifest in manifests[1:]] == statuses
    stage.assert_started(started)
    assert lake.version == version
    lake.assert_clean()
    assert_lives(
        stage,
        health_tools,
        {
            (COMPACTION, "tidy"): "InProgress/Progressing Current/Healthy",
            (UPDATE, "wrong"): "InProgress/Progressing Failed/Degraded",
            (COMPACTION, "asleep"): "InProgress/Progressing Current/Suspended",
        },
    )


def test_an_empty_block_is_refused_to_a_second_manager(stage: Stage) -> None:
    """Kubernetes' own doing (a block all of whose fields are defaults becomes null), and why
    docs/gitops.md says to name a field: it fails loudly, and what is there stays as it is."""
    spec = {"tableRef": {"name": "sentinel"}, "type": "Minor", "minor": {}, "suspend": True}
    empty = stage.manifest(COMPACTION, "empty", spec)
    stage.apply(empty)
    stage.apply(empty, manager=FLUX)
    before = stage.live(empty)["spec"]
    with pytest.raises(KubectlFailed, match=r"spec\.minor in body must be of type object"):
        stage.apply(empty, manager=FLUX)
    assert stage.live(empty)["spec"] == before


@pytest.mark.matrix
def test_created_again_it_reports_what_it_did(stage: Stage, health_tools: HealthTools) -> None:
    """Deleted by hand, and Argo CD heals it; or deleted after its time, again and again."""
    table, lake = stage.lake()
    spec = {"tableRef": {"name": table["metadata"]["name"]}}
    once = stage.manifest(
        UPDATE, "once", {**spec, "update": {"where": "k = 1", "set": {"v": "v + 1"}}}
    )
    brief = stage.manifest(
        COMPACTION, "brief", {**spec, "type": "Minor", "ttlSecondsAfterFinished": 0}
    )
    stage.apply(table, once)
    first = stage.end(once)
    assert first["result"]["version"] == lake.version
    assert stage.apply(brief) == ["created"]
    stage.space.await_gone(COMPACTION, "brief")
    started, version = list(stage.jobs.started), lake.version

    stage.space.delete(UPDATE, "once")
    stage.space.await_gone(UPDATE, "once")
    assert stage.apply(once, brief) == ["created", "created"]
    second = stage.end(once)
    assert second["result"]["version"] == first["result"]["version"]
    stage.space.await_gone(COMPACTION, "brief")
    assert stage.apply(once, brief) == ["unchanged", "created"]
    stage.space.await_gone(COMPACTION, "brief")

    stage.settle()
    stage.assert_started(started)
    assert lake.version == version
    life = "InProgress/Progressing Current/Healthy"
    assert_lives(stage, health_tools, {(UPDATE, "once"): f"{life} {life}"})


def test_automatic_compactions_are_ignored_by_gitops_tools(
    stage: Stage, health_tools: HealthTools
) -> None:
    """They are not in Git: neither tool takes them for its own, and none is made twice."""
    minor = {"thresholds": [4, 3]}
    table, lake = stage.lake(compaction={"minor": minor, "schedules": [], "minInterval": "10m"})
    marked = annotated(annotated(table, **ARGO_TRACKING), "labels", **FLUX_LABELS)
    stage.apply(marked)
    name = table["metadata"]["name"]
    url = f"{stage.space.url(COMPACTION)}?labelSelector=tandem.dev/automatic"

    def children() -> list[Json]:
        found = stage.space.cluster.request("GET", url)["items"]
        return [item for item in found if item["status"].get("phase") == "Succeeded"]

    await_that(lambda: len(children()) == 1, children)
    stage.space.await_status(TABLE, name, lambda s: s.get("version") == lake.version)
    stage.apply(marked)
    stage.apply(marked, manager=FLUX)
    stage.settle()

    (child,) = children()
    # Argo CD prunes nothing that has an owner, Flux nothing that it did not apply.
    (owner,) = child["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == (TABLE, name, True)
    assert not set(child["metadata"].get("annotations", {})) & set(ARGO_TRACKING)
    assert not set(child["metadata"]["labels"]) & set(FLUX_LABELS)
    live = stage.live(table)
    assert live["metadata"]["generation"] == 1
    assert health_tools.drift([(live, marked)])[0].status == "Synced"


@pytest.mark.matrix
def test_a_change_in_git_is_observed(stage: Stage, health_tools: HealthTools) -> None:
    """Suspended by Git, resumed by Git, tried again by an annotation in Git; a table whose spec
    changes faster than any controller reads it."""
    table, lake = stage.lake()
    spec = {"tableRef": {"name": table["metadata"]["name"]}}
    long = stage.manifest(COMPACTION, "long", {**spec, "type": "Minor"})
    paused = copy.deepcopy(long)
    paused["spec"]["suspend"] = True
    with stage.jobs.held():
        stage.apply(table, long)
        stage.space.await_phase(COMPACTION, "long", "Running")
        assert stage.apply(paused) == ["configured"]
        stage.space.await_phase(COMPACTION, "long", "Suspended")
    stage.apply(long)
    stage.end(long)

    stage.jobs.fail = 1
    weak = stage.manifest(
        UPDATE,
        "weak",
        {**spec, "update": {"where": "k = 2", "set": {"v": "0"}}, "backoffLimit": 0},
    )
    stage.apply(weak)
    assert stage.end(weak)["phase"] == "Failed"
    again = annotated(weak, **{RETRY: "1"})
    with stage.jobs.held():
        stage.apply(again)
        stage.space.await_phase(UPDATE, "weak", "Running")
    stage.space.await_end_of(UPDATE, "weak", "Succeeded")
    started = list(stage.jobs.started)
    stage.apply(again)

    for number in range(12):
        retention = {"retention": {"files": f"{number + 200}h"}}
        stage.space.patch(TABLE, table["metadata"]["name"], {"spec": retention})
    last = stage.live(table)["metadata"]["generation"]
    stage.space.await_status(
        TABLE, table["metadata"]["name"], lambda s: s["observedGeneration"] == last
    )
    stage.settle()
    stage.assert_started(started)
    lake.assert_clean()

    # A failure that is to be tried again is one to kstatus until the operator has answered.
    asked = "InProgress/Progressing Failed/Degraded Failed/Progressing "
    life = "InProgress/Progressing Current/Healthy"
    assert_lives(
        stage,
        health_tools,
        {
            (COMPACTION, "long"): f"InProgress/Progressing Current/Suspended {life}",
            (UPDATE, "weak"): asked + life,
        },
    )
    tables = stage.recorder.of(TABLE, table["metadata"]["name"])
    for body, verdict in zip(tables, health_tools.kstatus(tables), strict=True):
        seen = condition(body["status"], "Ready").get("observedGeneration")
        is_current = seen == body["metadata"]["generation"]
        assert verdict.status == ("Current" if is_current else "InProgress")


def assert_lives(
    stage: Stage, health_tools: HealthTools, lives: dict[tuple[str, str], str]
) -> None:
    """What kstatus and Argo CD report over time, version by version, without repetitions; Flux with
    our expressions says what kstatus says."""
    for key, expected in lives.items():
        versions = [v for v in stage.recorder.of(*key) if "deletionTimestamp" not in v["metadata"]]
        verdicts = zip(health_tools.kstatus(versions), health_tools.argo(versions), strict=True)
        pairs = [f"{kstatus.status}/{argo.status}" for kstatus, argo in verdicts]
        assert " ".join(word for word, _ in itertools.groupby(pairs)) == expected, key
        words = [verdict.status for verdict in health_tools.flux(versions)]
        flux = [word for word, _ in itertools.groupby(words)]
        halves = (pair.split("/")[0] for pair in expected.split())
        assert flux == [word for word, _ in itertools.groupby(halves)], key
        for version in versions:
            generations = {c["observedGeneration"] for c in version["status"].get("conditions", ())}
            assert generations <= {version["status"]["observedGeneration"]}


def test_defaults_are_not_drift(cluster: Cluster, health_tools: HealthTools) -> None:
    """What the schema fills in shows neither in Argo CD nor with Flux, of any manifest of ours."""
    files = [*(REPOSITORY / "examples").rglob("*.yaml"), REPOSITORY / "tests/crds/contract.yaml"]
    namespace = cluster.namespace("drift")
    found = [doc for file in files for doc in yaml.safe_load_all(file.read_text()) if doc]
    manifests = [
        {**doc, "metadata": {**doc["metadata"], "name": f"m{number}", "namespace": namespace}}
        for number, doc in enumerate(found)
        if doc["kind"] in KINDS
    ]
    assert {manifest["kind"] for manifest in manifests} == set(KINDS)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})

    created = json.loads(
        cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", input=text)
    )["items"]
    assert any(live["spec"] != m["spec"] for live, m in zip(created, manifests, strict=True))
    verdicts = health_tools.drift(zip(created, manifests, strict=True))
    assert {verdict.status for verdict in verdicts} == {"Synced"}, verdicts

    # Flux compares a dry run of its apply with what is there.
    server_side = ("apply", "--server-side", f"--field-manager={FLUX}", "-o", "json", "-f", "-")
    there = json.loads(cluster.kubectl(*server_side, input=text))["items"]
    planned = json.loads(cluster.kubectl(*server_side, "--dry-run=server", input=text))["items"]
    for one, other in zip(there, planned, strict=True):
        assert {**one, "metadata": bare(one)} == {**other, "metadata": bare(other)}


def bare(body: Json) -> Json:
    return {key: value for key, value in body["metadata"].items() if key != "managedFields"}
