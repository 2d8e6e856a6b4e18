"""Callers of an index server, reviewed by a real API server: the token's audience, its namespace's
right, and what the server itself may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from cluster_access import Access
from support.cluster.helm import of_kind, template
from support.cluster.rights import allowed
from support.waiting import await_that
from tandem.errors import AccessDenied, ReferenceNotFound, Unreachable
from tandem.index import EVERYTHING, open_index
from tandem.index.server.access import AUDIENCE, ClusterReviews, ReviewedTokens
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

READER = {"apiGroups": ["tandem.dev"], "resources": ["laketables/splits"], "verbs": ["get"]}


@dataclass
class Stage:
    cluster: Cluster
    namespace: str
    other: str
    folder: Path
    server: Access
    """As the server's own account."""

    def account(self, name: str, namespace: str = "", rule: dict[str, Any] | None = None) -> None:
        namespace = namespace or self.namespace
        core = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.cluster.request("POST", core, {"metadata": {"name": name}})
        if rule is None:
            return
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        role = {"metadata": {"name": f"{name}-{namespace}"}, "rules": [rule]}
        self.cluster.request("POST", f"{rbac}/roles", role)
        binding = {
            "metadata": role["metadata"],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": f"{name}-{namespace}",
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        self.cluster.request("POST", f"{rbac}/rolebindings", binding)

    def token(self, name: str, namespace: str = "", audience: str | None = AUDIENCE) -> str:
        url = f"/api/v1/namespaces/{namespace or self.namespace}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"expirationSeconds": 3_600}
        if audience is not None:
            spec["audiences"] = [audience]
        answer = self.cluster.request("POST", url, {"spec": spec})
        return str(answer["status"]["token"])

    def reviews(self, access: Access | None = None) -> ClusterReviews:
        access = access or self.server
        token, authority = self.folder / "token", self.folder / "ca.crt"
        token.write_text(access.token)
        authority.write_text(access.authority)
        return ClusterReviews(self.namespace, access.server, token, authority)


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    folder = tmp_path_factory.mktemp("reviews")
    namespace, other = cluster.namespace("reviews"), cluster.namespace("others")
    values = {
        "etcd": {"endpoints": ["e:2379"]},
        "jobs": {"namespaces": [namespace]},
        "indexServers": {"enabled": True},
    }
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    for each in of_kind(template(values), *kinds):
        if "index" in each["metadata"]["name"]:
            cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(each))
    server = cluster.admin.of_service_account(namespace, "tandem-index")
    stage = Stage(cluster, namespace, other, folder, server)
    stage.account("reader", rule=READER)
    stage.account("nobody")
    stage.account("viewer", rule={**READER, "resources": ["laketables"]})
    stage.account("lister", rule={**READER, "verbs": ["list"]})
    stage.account("nobody", namespace=other)
    stage.account("guest", namespace=other, rule=READER)
    stage.account("one", rule={**READER, "resourceNames": ["t", "not-there"]})
    stage.account("elsewhere", rule={**READER, "resourceNames": ["u"]})
    return stage


@contextmanager
def served(stage: Stage, root: Path) -> Iterator[str]:
    service = IndexService({"t": lambda: open_index(str(root))}, AnswerFiles(None))
    access = ReviewedTokens(stage.reviews())
    with FlightServer(service, "127.0.0.1", 0, access=access) as server:
        yield f"grpc://127.0.0.1:{server.port}"


def test_only_who_may_get_splits_of_the_namespace_is_answered(stage: Stage, tmp_path: Path) -> None:
    root = tmp_path / "t"
    write_deltalake(root, pa.table({"id": range(10)}))
    store = open_store(root.as_uri())
    refused = {
        "without rights": stage.token("nobody"),
        "with the right on tables, not on splits": stage.token("viewer"),
        "with another verb": stage.token("lister"),
        "with the right on another table": stage.token("elsewhere"),
        "of another namespace": stage.token("nobody", stage.other),
        "for the API server": stage.token("reader", audience=None),
        "for another service": stage.token("reader", audience="vault"),
        "made up": "eyJhbGciOiJub25lIn0.e30.",
    }
    with served(stage, root) as endpoint:

        def count(token: str, table: str = "t") -> int:
            connection = Connection(endpoint, token=token, timeout_s=60)
            return RemoteIndex(connection, table, store).count(EVERYTHING)

        assert count(stage.token("reader")) == 10
        # An account of another namespace that was given the right here.
        assert count(stage.token("guest", stage.other)) == 10
        said = set()
        for token in refused.values():
            for table in ("t", "none"):
                with pytest.raises(AccessDenied) as caught:
                    count(token, table)
                said.add(str(caught.value))
        assert len(said) == 1


def test_a_role_with_resource_names_opens_those_tables(stage: Stage, tmp_path: Path) -> None:
    root = tmp_path / "t"
    write_deltalake(root, pa.table({"id": range(10)}))
    with served(stage, root) as endpoint:
        connection = Connection(endpoint, token=stage.token("one"), timeout_s=60)
        assert RemoteIndex(connection, "t", open_store(root.as_uri())).count(EVERYTHING) == 10
        message, _ = connection.ask("ShowCache", b'{"table": "t"}')
        assert [each["table"] for each in message["tables"]] == ["t"]
        with pytest.raises(ReferenceNotFound):
            connection.ask("GetCount", b'{"table": "not-there"}')
        for call, body in (("GetCount", b'{"table": "u"}'), ("ShowCache", b"{}")):
            with pytest.raises(AccessDenied):
                connection.ask(call, body)


def test_a_right_that_is_taken_away_is_noticed(stage: Stage) -> None:
    stage.account("leaver", rule=READER)
    reviews, token = stage.reviews(), stage.token("leaver")
    leaver = reviews.owner(token)
    assert leaver is not None
    assert leaver.user == f"system:serviceaccount:{stage.namespace}:leaver"
    assert reviews.may_ask(leaver, "")
    name = f"leaver-{stage.namespace}"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{stage.namespace}"
    stage.cluster.request("DELETE", f"{rbac}/rolebindings/{name}")
    await_that(lambda: not reviews.may_ask(leaver, "t"), lambda: "still allowed", 120)
    assert not reviews.may_ask(leaver, "")


def test_a_server_that_may_not_review_lets_no_caller_in(stage: Stage) -> None:
    weak = stage.cluster.admin.of_service_account(stage.namespace, "nobody")
    with pytest.raises(Unreachable, match="403"):
        stage.reviews(weak).owner(stage.token("reader"))


def test_the_servers_account_has_a_jobs_rights_and_the_two_reviews(stage: Stage) -> None:
    namespace = stage.namespace
    core = f"/api/v1/namespaces/{namespace}"
    ours = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}"
    tries: list[tuple[str, str, Any]] = [
        ("GET", f"{core}/secrets", None),
        ("GET", f"{core}/secrets/x", None),
        ("POST", f"{core}/serviceaccounts/tandem-index/token", {}),
        ("POST", f"{core}/services", {}),
        ("GET", f"{ours}/laketables", None),
        ("GET", f"{ours}/indexservers", None),
        ("PATCH", f"{ours}/indexservers/x/status", {}),
        ("GET", "/apis/sparkoperator.k8s.io/v1beta2/sparkapplications", None),
        ("GET", "/api/v1/namespaces", None),
        ("GET", "/api/v1/pods", None),
    ]
    assert allowed(stage.server, tries) == []
    assert stage.server.request("GET", f"{core}/pods")["items"] == []
