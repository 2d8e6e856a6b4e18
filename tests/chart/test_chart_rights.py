"""Who may do what with charts/tandem: the operator, jobs and people, each no more than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import chart_docs
from chart.chart_values import EXTERNAL, MATRIX, NAMESPACES
from cluster_access import ApiRefused
from support.cluster.helm import of_kind, one, template
from support.waiting import await_that
from tandem.spec import KINDS
from tandem.spec.common import plural

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
ROLES = ("Role", "ClusterRole")
every_combination = pytest.mark.parametrize("name", MATRIX)


def rules(objects: list[Json], *kinds: str) -> Iterator[tuple[Json, Json]]:
    """(role, rule)."""
    for role in of_kind(objects, *kinds):
        for rule in role["rules"]:
            yield role, rule


def of_operator(objects: list[Json]) -> list[Json]:
    """Its roles, not those of people or of jobs."""
    bindings = of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    account = one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    bound = {
        (each["metadata"].get("namespace"), each["roleRef"]["name"])
        for each in bindings
        if [account] == [subject["name"] for subject in each["subjects"]]
    }
    return [
        role
        for role in of_kind(objects, *ROLES)
        if (role["metadata"].get("namespace"), role["metadata"]["name"]) in bound
    ]


@pytest.mark.part(4)
@every_combination
def test_no_rule_uses_a_wildcard(name: str) -> None:
    for role, rule in rules(template(MATRIX[name]), *ROLES):
        for part in ("apiGroups", "resources", "verbs"):
            assert not [word for word in rule[part] if "*" in word], role["metadata"]["name"]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@every_combination
def test_secrets_are_only_read_one_by_one_and_kept_for_jobs(name: str) -> None:
    for _, rule in rules(template(MATRIX[name]), *ROLES):
        if "secrets" in rule["resources"]:
            assert rule["verbs"] in (["get"], ["create", "patch"])
            assert rule["resources"] == ["secrets"]


def test_the_operator_changes_no_secret_but_those_of_jobs(cluster: Cluster) -> None:
    objects = template(EXTERNAL)
    for each in of_kind(objects, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(each))
    url = f"/api/v1/namespaces/{cluster.namespace('policy')}/secrets"
    # Of a group that is not there: else what belongs to an application that is not is deleted.
    owner = {"apiVersion": "example.dev/v1", "kind": "SparkApplication", "uid": "1"}
    for name, whose in (("job", "job"), ("of-another", "job"), ("plain", "")):
        owners = [{**owner, "name": whose}] if whose else []
        metadata = {"name": name, "ownerReferences": owners}
        cluster.operator.request("POST", url, {"metadata": metadata, "stringData": {"a": "b"}})

    def refusal(name: str, **metadata: Any) -> str:
        change = {"stringData": {"a": "c"}, "metadata": metadata}
        kind = "application/merge-patch+json"
        try:
            cluster.operator.request("PATCH", f"{url}/{name}", change, content_type=kind)
        except ApiRefused as error:
            return str(error)
        return ""

    # The API server takes up a new policy after a while.
    await_that(lambda: refusal("plain") != "", lambda: cluster.admin.request("GET", url))
    why = "only the Secrets of its jobs"
    assert why in refusal("plain")
    assert why in refusal("of-another")
    assert why in refusal("of-another", ownerReferences=[{**owner, "name": "of-another"}])
    assert refusal("job") == ""


def test_named_secrets_are_all_that_can_be_read() -> None:
    for name in ("named-secrets", "named-secrets-namespaced"):
        objects = template(MATRIX[name])
        named = MATRIX[name]["rbac"]["secrets"]
        reading = [
            (r, rule)
            for r, rule in rules(objects, *ROLES)
            if "secrets" in rule["resources"] and rule["verbs"] == ["get"]
        ]
        assert {r["metadata"]["namespace"]: rule["resourceNames"] for r, rule in reading} == named


@pytest.mark.parametrize(
    "name", ["namespaced", "nothing-of-the-cluster", "named-secrets-namespaced"]
)
def test_listed_namespaces_give_no_right_beyond_them(name: str) -> None:
    objects = template(MATRIX[name])
    assert not of_kind(objects, "ClusterRoleBinding")
    assert {role["metadata"]["namespace"] for role in of_operator(objects)} == set(NAMESPACES)
    assert {o["metadata"]["namespace"] for o in of_kind(objects, "Role", "RoleBinding")} == set(
        NAMESPACES
    )


def test_a_release_can_be_installed_without_cluster_scoped_objects() -> None:
    objects = template(MATRIX["nothing-of-the-cluster"])
    assert not [each["kind"] for each in objects if "namespace" not in each["metadata"]]


def test_the_examples_give_the_same_rights() -> None:
    example = yaml.safe_load_all((chart_docs.ROOT / "examples/cluster/rbac.yaml").read_text())
    theirs = one([each for each in example if each], "ClusterRole", "tandem-operator")
    [ours] = of_operator(template(EXTERNAL))
    assert ours["rules"] == theirs["rules"]
    assert ours["metadata"]["name"] == theirs["metadata"]["name"]


def test_a_namespaced_role_grants_what_the_cluster_role_grants() -> None:
    [cluster] = of_operator(template(EXTERNAL))
    for role in of_operator(template(MATRIX["namespaced"])):
        assert role["rules"] == cluster["rules"]


def test_jobs_have_no_rights_on_resources_of_tandem() -> None:
    objects = template(MATRIX["namespaced"])
    jobs = [role for role in of_kind(objects, "Role") if role["metadata"]["name"] == "tandem-spark"]
    assert {role["metadata"]["namespace"] for role in jobs} == set(NAMESPACES)
    for _, rule in rules(jobs, "Role"):
        assert rule["apiGroups"] == [""]
        assert not {"secrets", "pods/exec", "serviceaccounts", "events"} & set(rule["resources"])
    for namespace in NAMESPACES:
        assert [
            account
            for account in of_kind(objects, "ServiceAccount")
            if account["metadata"]["name"] == "tandem-spark"
            and account["metadata"]["namespace"] == namespace
        ]


def test_the_view_and_edit_roles_cover_the_kinds_of_tandem() -> None:
    objects = template(EXTERNAL)
    all_kinds = {plural(kind) for kind in KINDS}
    for suffix, verbs in (
        ("-view", {"get", "list", "watch"}),
        ("-edit", {"create", "update", "patch", "delete", "deletecollection"}),
    ):
        role = one(objects, "ClusterRole", suffix)
        [rule] = role["rules"]
        assert (set(rule["resources"]), set(rule["verbs"])) == (all_kinds, verbs)
        label = f"rbac.authorization.k8s.io/aggregate-to{suffix}"
        assert role["metadata"]["labels"][label] == "true"
