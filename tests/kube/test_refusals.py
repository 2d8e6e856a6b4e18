"""An API server that takes no job for now: a quota, rights, a webhook, a token, a missing kind, too
many requests. Operations wait without locks, say why, and go on; a real server refuses, and where
that would hurt other tests a proxy before it does. And resources that it admits although they are
wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from crds.wrong_resources import ONLY_THE_VALIDATOR, manifest
from kube.gates import GatedQuickJobs
from kube.kube_scenarios import Applied, Refused, Table, World
from kube.ledger import Ledger
from support.cluster.api_proxy import ApiProxy, Refuse
from support.jobs import quick_lake
from support.waiting import await_that
from tandem.errors import TandemError
from tandem.spec.loader import check_references, parse

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
JOBS = "sparkapplications.sparkoperator.k8s.io"
ACCOUNT = "tandem"
MAY_CREATE = "tandem-may-create-jobs"


@dataclass
class Stage:
    """An operator with an account of its own behind a proxy; a table; jobs without Spark."""

    world: World
    proxy: ApiProxy
    table: Table
    ledger: Ledger
    jobs: GatedQuickJobs

    def apply(self, name: str = "", **spec: Any) -> Applied:
        return self.table.apply(self.ledger.make("update", **spec), name)

    def request(self, method: str, path: str, body: object = None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self.world.space.client.request(method, path, body, content_type=kind)

    def namespaced(self, rest: str, root: str = "/api/v1") -> str:
        return f"{root}/namespaces/{self.world.space.name}/{rest}"

    def warnings(self, applied: Applied) -> list[str]:
        """Messages of the events that say so; the first may still be on its way."""
        found: list[str] = []

        def told() -> bool:
            found[:] = [
                event["message"]
                for event in self.world.space.all("Event")
                if event["involvedObject"]["name"] == applied.name
                and event["reason"] == "JobRefused"
            ]
            return bool(found)

        await_that(told, self.world.story)
        return found

    def await_refusal(self) -> None:
        """Until the server refuses the applications of an administrator, too."""
        seen: list[str] = []

        def refused() -> bool:
            name = f"try-{len(seen)}"
            spec = {"type": "Python", "sparkVersion": "4", "driver": {}, "executor": {}}
            spec["mainApplicationFile"] = "local:///none.py"
            body = {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "metadata": {"name": name},
                "spec": spec,
            }
            try:
                self.world.space.create(body)
            except Refused as error:
                seen.append(error.message)
                return error.status in (403, 500)
            seen.append("")
            self.world.space.delete("SparkApplication", name)
            return False

        await_that(refused, lambda: str(seen[-3:]))


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One operator, and one table, for all tests."""
    folder = tmp_path_factory.mktemp("world")
    world, jobs = World.make(cluster, folder), GatedQuickJobs()
    ledger = Ledger(quick_lake.make(folder))
    with (
        ApiProxy(_own_account(cluster, world, folder)) as proxy,
        world.dev(jobs),
        world.operator(in_pod=True, kubeconfig=str(proxy.kubeconfig(folder))),
    ):
        yield Stage(world, proxy, world.adopt(ledger.lake), ledger, jobs)


def _own_account(cluster: Cluster, world: World, folder: Path) -> Path:
    """The kubeconfig of an account with the operator's rights, of which that to create jobs can be
    taken away. All of them are of this namespace or named after it."""
    namespace = world.space.name
    role = cluster.request("GET", f"{RBAC}/clusterroles/tandem-operator")
    rules = []
    for rule in role["rules"]:
        if rule["resources"] == ["sparkapplications"]:
            rule = {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]}
        rules.append(rule)
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    meta = {"name": f"{ACCOUNT}-{namespace}"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **meta}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.request("POST", accounts, {"metadata": {"name": ACCOUNT}})
    cluster.request("POST", f"{RBAC}/clusterroles", {"metadata": meta, "rules": rules})
    binding = {"metadata": meta, "roleRef": reference, "subjects": [account]}
    cluster.request("POST", f"{RBAC}/clusterrolebindings", binding)
    named = {"metadata": {"name": MAY_CREATE}}
    create = {"apiGroups": ["sparkoperator.k8s.io"], "resources": ["sparkapplications"]}
    url = f"{RBAC}/namespaces/{namespace}"
    cluster.request("POST", f"{url}/roles", {**named, "rules": [{**create, "verbs": ["create"]}]})
    cluster.request("POST", f"{url}/rolebindings", _binding(namespace))
    token = cluster.request("POST", f"{accounts}/{ACCOUNT}/token", {"spec": {}})["status"]["token"]
    config = yaml.safe_load(cluster.operator_kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "own.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _binding(namespace: str) -> dict[str, Any]:
    return {
        "metadata": {"name": MAY_CREATE},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": MAY_CREATE,
        },
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    }


# What refuses


@contextmanager
def quota(stage: Stage) -> Iterator[None]:
    quotas = stage.namespaced("resourcequotas")
    hard = {f"count/{JOBS}": "0"}
    body = {"metadata": {"name": "no-jobs"}, "spec": {"hard": hard}}
    stage.request("POST", quotas, body)
    # The quota controller, which would write this, does not run here.
    status = {"status": {"hard": hard, "used": hard}}
    stage.request("PATCH", f"{quotas}/no-jobs/status", status)
    stage.await_refusal()
    yield
    stage.request("DELETE", f"{quotas}/no-jobs")


@contextmanager
def rights(stage: Stage) -> Iterator[None]:
    bindings = stage.namespaced("rolebindings", RBAC)
    stage.request("DELETE", f"{bindings}/{MAY_CREATE}")
    yield
    stage.request("POST", bindings, _binding(stage.world.space.name))


@contextmanager
def webhook(stage: Stage) -> Iterator[None]:
    """Nothing listens where it is said to be."""
    namespace = stage.world.space.name
    rule = {
        "apiGroups": ["sparkoperator.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["sparkapplications"],
    }
    hook = {
        "name": "down.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    body = {"metadata": {"name": f"down-{namespace}"}, "webhooks": [hook]}
    stage.request("POST", WEBHOOKS, body)
    stage.await_refusal()
    yield
    stage.request("DELETE", f"{WEBHOOKS}/down-{namespace}")


def proxied(status: int) -> Callable[[Stage], Any]:
    def refuses(stage: Stage) -> Any:
        return stage.proxy.while_(Refuse(status), verb="create", resource="sparkapplications")

    return refuses


REFUSALS: dict[str, tuple[Callable[[Stage], Any], str, str]] = {
    "quota": (quota, "JobRefused", "exceeded quota: no-jobs"),
    "rights": (rights, "JobRefused", "cannot create resource"),
    "webhook": (webhook, "JobRefused", "failed calling webhook"),
    "token": (proxied(401), "JobRefused", "401"),
    "kind": (proxied(404), "SparkMissing", "no SparkApplication resource"),
    "queue": (proxied(429), "JobRefused", "429"),
}


def refused(applied: Applied, reason: str, words: str) -> None:
    """Until it waits, and says why, since when, and when it is tried again."""

    def waits(status: dict[str, Any]) -> bool:
        assert status.get("phase") != "Failed", status
        condition = (status.get("conditions") or [{}])[0]
        message = condition.get("message", "")
        told = words in message and "(since 2" in message and "tried again at 2" in message
        return (status.get("phase"), condition.get("reason")) == ("Pending", reason) and told

    applied.wait(waits)


def no_locks(stage: Stage) -> None:
    """For a moment of each try there are some."""
    await_that(
        lambda: not stage.world.etcd.locks(stage.ledger.lake.location), lambda: stage.world.story()
    )


@pytest.mark.part(4)
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_job_is_waited_for_without_locks(stage: Stage, name: str) -> None:
    refuse, reason, words = REFUSALS[name]
    started, version = len(stage.jobs.started), stage.ledger.lake.version
    with refuse(stage):
        update = stage.apply()
        refused(update, reason, words)
        no_locks(stage)
        assert len(stage.jobs.started) == started
        assert len(stage.warnings(update)) == 1
    assert update.succeeded().attempt == 1
    stage.ledger.assert_serial()
    # Of all the tries the table's log holds nothing but the commit.
    assert stage.ledger.lake.version == version + 1


def test_a_refused_operation_ends_by_its_deadline_and_can_be_applied_again(stage: Stage) -> None:
    version = stage.ledger.lake.version
    operation = stage.ledger.make("update", activeDeadlineSeconds=30)
    with quota(stage):
        update = stage.table.apply(operation, "again")
        message = update.failed("DeadlineExceeded").conditions[0].message
        assert "activeDeadlineSeconds" in message
        assert "exceeded quota" in message
        assert stage.ledger.lake.version == version
        update.delete()
        update.gone()
    # The same again, which is the same operation by name and spec.
    stage.table.apply(operation, "again", activeDeadlineSeconds=3600).succeeded()
    stage.ledger.assert_serial()


def test_a_refused_operation_is_suspended_and_resumed(stage: Stage) -> None:
    """Others commit meanwhile; it plans again on what they have committed."""
    with quota(stage):
        update = stage.apply()
        refused(update, "JobRefused", "exceeded quota")
        stage.ledger.append()
        update.set(suspend=True)
        update.reaches("Suspended")
        no_locks(stage)
        update.set(suspend=False)
        refused(update, "JobRefused", "exceeded quota")
    update.succeeded()
    stage.ledger.assert_serial()
    stage.world.assert_nothing_left_behind(stage.table)


# What only the operator can refuse


def in_circles() -> list[dict[str, Any]]:
    """Operations that wait for themselves and for each other."""

    def waits(name: str, *others: str) -> dict[str, Any]:
        spec = {"dependsOn": [{"kind": "TableUpdate", "name": other} for other in others]}
        return manifest("TableUpdate", spec, name)

    return [
        waits("alone", "alone"),
        waits("one", "two", "free"),
        waits("two", "three"),
        waits("three", "one"),
        waits("free"),
    ]


def words_of(*manifests: dict[str, Any]) -> str:
    """What `tandem run` says."""
    with pytest.raises(TandemError) as raised:
        check_references([parse(each) for each in manifests])
    return str(raised.value)


def test_the_operator_refuses_the_same_mistakes_with_the_same_words(stage: Stage) -> None:
    """Those that the API server refuses are tried by `tests/crds/test_admission.py`."""
    space = stage.world.space
    expected: dict[Applied, str] = {}
    for number, wrong in enumerate(ONLY_THE_VALIDATOR):
        body = {**wrong.manifest(), "metadata": {"name": f"wrong-{number}"}}
        said = words_of(body)
        assert wrong.words in said
        space.create(body)
        expected[Applied(space, wrong.kind, f"wrong-{number}")] = said
    lake = manifest("LakeTable", {}, "flights")
    first, *circle = in_circles()
    for body in (first, *circle):
        space.create(body)
    expected[Applied(space, "TableUpdate", "alone")] = words_of(lake, first)
    expected[Applied(space, "TableUpdate", "one")] = words_of(lake, *circle)
    for applied, said in expected.items():

        def told(status: dict[str, Any], said: str = said) -> bool:
            conditions = status.get("conditions") or [{}]
            return any(
                said in each.get("message", "") and each["reason"] == "InvalidSpec"
                for each in conditions
            )

        applied.wait(told)
    # A circle is open once one of them is gone, and who waits for it is no part of it.
    space.delete("TableUpdate", "three")
    two = Applied(space, "TableUpdate", "two")
    two.wait(lambda status: "which does not exist" in str(status.get("conditions")))
    Applied(space, "TableUpdate", "one").wait(
        lambda status: "waits for TableUpdate/two" in str(status.get("conditions"))
    )
