"""What the operator may do, beside what it does: the API server's audit log of a run in which
everything happens once says which rights were used. The others are listed here, with why they are
given; and what a job's account may do is tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster_access import Access, ApiRefused
from cluster_processes import REPOSITORY
from support.cluster.dev_thread import spark_operator
from support.cluster.helm import of_kind, template
from support.cluster.operator_thread import Resources, condition, operating, quick_settings
from support.cluster.rights import allowed
from support.jobs import quick_lake
from support.jobs.serving_jobs import ServingJobs
from support.lake import timed
from support.lake.log_blocks import LogBlocks
from support.lake.rows import rows
from support.lake.timed import TimedLake
from support.waiting import await_that
from tandem.spec.common import FINALIZER, OPERATIONS, plural
from tandem.spec.resources import KINDS

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Right = tuple[str, str, str]
"""API group, resource, verb."""
KIND = "TableCompaction"
OURS = tuple(map(plural, KINDS))
NOT_APPLIED = ("segmentrewrites",)

SOMETIMES: Mapping[Right, str] = {
    (
        "tandem.dev",
        kind,
        "get",
    ): "one object is read again where a write met another's, where a "
    "finished one was changed, and where what a deleted one left is cleaned"
    for kind in OURS
}
"""Used in this run only if two writes met, and why it is given all the same."""

UNUSED: Mapping[Right, str] = {
    **{
        ("tandem.dev", f"{kind}/finalizers", "update"): "asked for where the admission plugin "
        "OwnerReferencesPermissionEnforcement is on (OpenShift), by blockOwnerDeletion"
        for kind in OURS
    },
    **{
        ("tandem.dev", right, verb): "a kind of operation as those that this run applies"
        for kind in NOT_APPLIED
        for right, verb in ((f"{kind}/status", "patch"), (kind, "delete"))
    },
    **{
        ("tandem.dev", plural(kind), "patch"): "to take off the finalizer of an earlier release"
        for kind in OPERATIONS
    },
    **{
        ("", "secrets", verb): "for what a catalog vends to the pods of a job "
        "(tests/kube/test_jobs.py)"
        for verb in ("create", "patch")
    },
}
"""Not used in this run, and why it is given all the same."""


def granted(role: str) -> set[Right]:
    """By `examples/cluster/rbac.yaml`, which says what the chart says (tests/chart)."""
    found = set()
    for body in yaml.safe_load_all((REPOSITORY / "examples/cluster/rbac.yaml").read_text()):
        if body["kind"] == "ClusterRole" and body["metadata"]["name"] == role:
            for rule in body["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        found |= {(group, resource, verb) for verb in rule["verbs"]}
    return found


class Run:
    """A namespace in which all happened."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.space = Resources(cluster, cluster.namespace("rights"))
        self.jobs = ServingJobs()
        self.lake = quick_lake.make(folder / "t")
        self.automatic = quick_lake.make(folder / "a")
        self.logged = quick_lake.make(folder / "l", loads=1)
        self.old = TimedLake(quick_lake.make(folder / "o", 0, schema=timed.SCHEMA))
        self.hostile: dict[str, Any] = {}
        self.secrets = [f"keys-{number}" for number in range(2)]

    def secret(self, name: str, namespace: str = "") -> None:
        url = f"/api/v1/namespaces/{namespace or self.space.namespace}/secrets"
        body = {"metadata": {"name": name}, "stringData": {"AWS_ACCESS_KEY_ID": "x"}}
        self.cluster.request("POST", url, body)

    def do_all(self) -> None:
        """Compaction, update, ingest, automatic children and their history, deletion by TTL,
        cancellation, a job that fails, credentials."""
        space, jobs = self.space, self.jobs
        for name in [*self.secrets, "decoy"]:
            self.secret(name)
        secret = {"storage": {"secretRef": {"name": self.secrets[0]}}}
        space.table("t", self.lake.location, **secret)
        space.table("missing", self.lake.location, storage={"secretRef": {"name": self.secrets[1]}})
        policy = {"minor": {"enabled": True}, "history": {"succeeded": 0, "failed": 0}}
        # As an earlier release has left it.
        automatic = {"location": self.automatic.location, "compaction": policy}
        space.create("LakeTable", "a", automatic, finalizers=[FINALIZER])
        space.compaction("c", "t")
        space.await_end(KIND, "c")
        ttl = {"ttlSecondsAfterFinished": 0}
        source = self.lake.sources / "in.parquet"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes((self.lake.path / self.lake.first_add.logged_path).read_bytes())
        ingest = {"source": {"format": "Parquet", "location": source.as_uri()}}
        space.create("TableIngest", "i", {"tableRef": {"name": "t"}, **ingest, **ttl})
        space.await_gone("TableIngest", "i")
        replaced = {"replace": {"intervals": ["all"]}, "startVersion": 0, **ingest, **ttl}
        space.create("TableReplace", "r", {"tableRef": {"name": "t"}, **replaced})
        space.await_gone("TableReplace", "r")
        space.update("u", "t", "k = 1", {"v": "v + 1"}, **ttl)
        space.await_gone("TableUpdate", "u")
        jobs.fail = 1
        space.update("failing", "t", "k = 2", {"v": "v + 1"}, backoffLimit=0)
        assert space.await_end("TableUpdate", "failing")["phase"] == "Failed"
        with jobs.held():
            space.compaction("stopped", "t", type="Major")
            space.await_phase(KIND, "stopped", "Running")
            space.delete(KIND, "stopped")
            space.await_gone(KIND, "stopped")
        space.compaction("gone", "t", type="Major", **ttl)
        space.await_gone(KIND, "gone")
        await_that(lambda: len(self.automatic.names) == 1, lambda: self.automatic.names)
        self.do_index_server()
        self.do_log()
        self.do_old_rows()
        host = {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}
        space.compaction("hostile", "t", type="Major", sparkTemplate=host)
        self.hostile = space.await_end(KIND, "hostile")
        space.delete("LakeTable", "t")
        space.await_gone("LakeTable", "t")

    def do_index_server(self) -> None:
        """One that serves a table, and whose Service was changed."""
        plain = {"access": {"mode": "Plaintext"}, "tables": {"names": ["a"]}}
        self.space.create("IndexServer", "x", plain)
        self.space.await_reason("IndexServer", "x", "Serving")
        url = f"/api/v1/namespaces/{self.space.namespace}/services/x-index"
        merge = "application/merge-patch+json"
        changed = {"spec": {"selector": {"app": "another"}}}
        self.cluster.request("PATCH", url, changed, content_type=merge)
        await_that(
            lambda: "app" not in self.cluster.request("GET", url)["spec"]["selector"],
            lambda: self.cluster.request("GET", url),
        )
        self.space.delete("IndexServer", "x")
        self.space.await_gone("IndexServer", "x")

    def do_log(self) -> None:
        """An automatic log compaction, and one that is deleted by its TTL."""
        log = LogBlocks(self.logged.location, "w")
        automatic = {"keys": ["id"], "logCompaction": {"minBlocks": 2}}
        self.space.table("l", self.logged.location, mergeOnRead=automatic)
        self.space.await_reason("LakeTable", "l", "Adopted")
        for number in range(2):
            log.upsert(rows([number]))
        await_that(lambda: log.blocks() == [(1, 2)], log.blocks)
        log.upsert(rows([2]))
        everything = {"strategy": "AllBlocks", "ttlSecondsAfterFinished": 0}
        self.space.create("LogCompaction", "s", {"tableRef": {"name": "l"}, **everything})
        self.space.await_gone("LogCompaction", "s")

    def do_old_rows(self) -> None:
        """An automatic drop."""
        self.old.append(timed.hours(timed.day(1), first=0))
        kept = {"time": timed.DAYS, "retention": {"rows": "24h"}}
        self.space.table("o", self.old.lake.location, **kept)
        await_that(lambda: not self.old.rows(), self.old.rows)

    def calls(self) -> list[dict[str, Any]]:
        """All that the operator asked the API server for, of this namespace or of the cluster."""
        text = self.cluster.audit_log.read_text().splitlines()
        found = []

        for line in text:
            if "tandem-system:tandem-operator" not in line:
                continue
            entry = json.loads(line)
            whose = entry.get("objectRef", {}).get("namespace", "")
            if whose in ("", self.space.namespace):
                found.append(entry)
        return found


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = Run(cluster, tmp_path_factory.mktemp("rights"))
    settings = quick_settings(cluster, found.space.namespace, index_poll_s=0.3)
    with (
        spark_operator(cluster, found.space.namespace, found.jobs),
        operating(settings, found.jobs, spark=True),
    ):
        found.do_all()
    found.jobs.close()
    return found


def used(calls: list[dict[str, Any]]) -> set[Right]:
    found = set()
    for entry in calls:
        about = entry.get("objectRef")
        if about is None or "resource" not in about:
            continue  # discovery, which every user may
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        found.add((about.get("apiGroup", ""), resource, entry["verb"]))
    return found


def test_every_right_is_used_or_documented(run: Run) -> None:
    rights, needed = granted("tandem-operator"), used(run.calls())
    assert needed - rights == set(), "asked for, and not granted"
    assert rights - needed - set(SOMETIMES) == set(UNUSED)


def test_no_request_was_forbidden(run: Run) -> None:
    refused = [
        (entry["verb"], entry["requestURI"])
        for entry in run.calls()
        if entry["responseStatus"].get("code") == 403
    ]
    assert refused == []


def test_only_secrets_that_tables_name_are_read_and_one_by_one(run: Run) -> None:
    read = [
        (entry["verb"], entry["objectRef"].get("namespace"), entry["objectRef"].get("name"))
        for entry in run.calls()
        if entry.get("objectRef", {}).get("resource") == "secrets"
    ]
    assert set(read) == {("get", run.space.namespace, name) for name in run.secrets}


def test_a_hostile_template_is_reported_by_its_path_and_creates_nothing(run: Run) -> None:
    succeeded = condition(run.hostile)
    assert (run.hostile["phase"], succeeded["reason"]) == ("Failed", "InvalidSpec")
    assert "spec.sparkTemplate.spec.volumes.h.hostPath" in succeeded["message"]
    made = [
        entry["requestURI"]
        for entry in run.calls()
        if entry["verb"] == "create"
        and entry.get("objectRef", {}).get("resource") == "sparkapplications"
    ]
    assert len(made) == len(run.jobs.started) + len(run.jobs.servers)


@pytest.fixture(scope="module")
def job(run: Run) -> Access:
    """The job's account with the role that the chart gives it there."""
    values = {
        "etcd": {"endpoints": ["e:2379"]},
        "jobs": {"namespaces": [run.space.namespace]},
    }
    objects = template(values)
    for each in of_kind(objects, "ServiceAccount", "Role", "RoleBinding"):
        if each["metadata"].get("namespace") == run.space.namespace:
            run.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(each))
    return run.cluster.admin.of_service_account(run.space.namespace, "tandem-spark")


def test_a_job_cannot_touch_resources_of_tandem(run: Run, job: Access) -> None:
    namespace = run.space.namespace
    base = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}"
    tries: list[tuple[str, str, Any]] = []
    for kind in OURS:
        tries += [
            ("GET", f"{base}/{kind}", None),
            ("GET", f"{base}/{kind}?watch=1&timeoutSeconds=1", None),
            ("GET", f"{base}/{kind}/a", None),
            ("POST", f"{base}/{kind}", {}),
            ("PATCH", f"{base}/{kind}/a", {}),
            ("PATCH", f"{base}/{kind}/a/status", {}),
            ("DELETE", f"{base}/{kind}/a", None),
            ("DELETE", f"{base}/{kind}", None),
        ]
    spark = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications"
    core = f"/api/v1/namespaces/{namespace}"
    tries += [
        ("GET", spark, None),
        ("POST", spark, {}),
        ("GET", f"{core}/secrets", None),
        ("GET", f"{core}/secrets/{run.secrets[0]}", None),
        ("PATCH", f"{core}/secrets/{run.secrets[0]}", {}),
        ("POST", f"{core}/serviceaccounts/default/token", {}),
        ("POST", f"{core}/serviceaccounts/tandem-spark/token", {}),
        ("GET", f"{core}/pods/x/log", None),
        ("POST", f"{core}/pods/x/exec?command=sh", None),
        ("POST", f"{core}/services", {}),
        ("GET", f"{core}/events", None),
        ("GET", "/api/v1/namespaces", None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/pods", None),
        ("GET", "/api/v1/namespaces/tandem-system/pods", None),
        ("GET", "/api/v1/namespaces/tandem-system/secrets", None),
        ("GET", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles", None),
        ("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", {}),
    ]
    assert allowed(job, tries) == []
    # It is no account without any right: this is what executors are made by.
    assert job.request("GET", f"{core}/pods")["items"] == []


def test_only_the_operator_has_its_rights(run: Run) -> None:
    """The Spark operator's stand-in cannot touch our kinds, either."""
    base = f"/apis/tandem.dev/v1alpha1/namespaces/{run.space.namespace}/laketables"
    with pytest.raises(ApiRefused, match="403"):
        run.cluster.dev.request("GET", base)
    default = run.cluster.admin.of_service_account(run.space.namespace, "default")
    for path in (base, f"/api/v1/namespaces/{run.space.namespace}/secrets"):
        with pytest.raises(ApiRefused, match="403"):
            default.request("GET", path)
