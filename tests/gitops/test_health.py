"""What kstatus, Argo CD and Flux make of every situation, by their own code; the same table is in
docs/gitops.md. And over a real life: see `test_life_of_objects.py`."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster_processes import REPOSITORY
from gitops.health_tools import EXAMPLES, HEALTH_LUA, HealthTools
from gitops.situations import OPERATIONS, SERVERS, TABLES, play
from tandem.kube.client.api import Api
from tandem.kube.client.resources import TABLE_KIND
from tandem.spec.common import OPERATIONS as OPERATION_KINDS
from tandem.spec.resources import KINDS

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
AT_WORK = ("InProgress", "Progressing", "InProgress")
DONE = ("Current", "Healthy", "Current")
FAILED = ("Failed", "Degraded", "Failed")
SUSPENDED = ("Current", "Suspended", "Current")
GOING = ("Terminating", "Progressing", "InProgress")
# kstatus knows nothing of annotations, so a failure stays one until the operator has answered.
TO_BE_RETRIED = ("Failed", "Progressing", "InProgress")

OF_OPERATIONS = {
    "just created, not seen by the operator yet": AT_WORK,
    "waits for its table, or for another operation": AT_WORK,
    "begins": AT_WORK,
    "planned": AT_WORK,
    "waits for locks": AT_WORK,
    "holds its locks": AT_WORK,
    "its job runs": AT_WORK,
    "an attempt failed, another one follows": AT_WORK,
    "etcd, the store or the API server is unreachable": AT_WORK,
    "its result is reconciled and committed": AT_WORK,
    "committed": DONE,
    "there was nothing to do": DONE,
    "a dry run, planned": DONE,
    "superseded by what others committed": DONE,
    "failed permanently": FAILED,
    "its spec is invalid": FAILED,
    "failed, and `tandem.dev/retry` is new": TO_BE_RETRIED,
    "is retried": AT_WORK,
    "failed again after that": FAILED,
    "suspended": SUSPENDED,
    "in progress, `suspend` just set in Git": AT_WORK,
    "suspended, `suspend` just removed in Git": AT_WORK,
    "committed, and then its spec was changed": AT_WORK,
    "deleted while its job ran, kept by a foreign finalizer": GOING,
    "deleted after its end, kept by a foreign finalizer": GOING,
}
OF_TABLES = {
    "just created, not seen by the operator yet": AT_WORK,
    "ready: adopted or created": DONE,
    "the store is unreachable for now": AT_WORK,
    "there is no table, or no access": FAILED,
    "its spec is invalid": FAILED,
    "its spec has just changed": AT_WORK,
    "being deleted": GOING,
}

OF_SERVERS = {
    "just created, not seen by the operator yet": AT_WORK,
    "its driver starts": AT_WORK,
    "answers": DONE,
    "its driver has died, and is started again": AT_WORK,
    "its certificate is missing, or its spec is invalid": FAILED,
    "suspended": SUSPENDED,
    "its spec has just changed": AT_WORK,
    "being deleted": GOING,
}


@dataclass(frozen=True)
class Assessed:
    """An object, and what kstatus, Argo CD and Flux say of it."""

    body: Json
    verdict: tuple[str, str, str]
    message: str

    @property
    def phase(self) -> str:
        return str(self.body["status"].get("phase", ""))


@pytest.fixture(scope="module")
def assessed(cluster: Cluster, health_tools: HealthTools) -> dict[tuple[str, str], Assessed]:
    """All situations of all kinds."""
    namespace = cluster.namespace("health")

    async def all_of_them() -> dict[tuple[str, str], Json]:
        async with Api.from_kubeconfig(cluster.kubeconfig) as api:
            return await play(api, namespace)

    bodies = asyncio.run(all_of_them())
    listed = list(bodies.values())
    found = zip(
        bodies,
        listed,
        health_tools.kstatus(listed),
        health_tools.argo(listed),
        health_tools.flux(listed),
        strict=True,
    )
    assessed = {}
    for key, body, *verdicts in found:
        assert [verdict.error for verdict in verdicts] == ["", "", ""], key
        words = (verdicts[0].status, verdicts[1].status, verdicts[2].status)
        assessed[key] = Assessed(body, words, verdicts[1].message)
    return assessed


def test_every_situation_has_a_health_status() -> None:
    assert [situation.name for situation in OPERATIONS] == list(OF_OPERATIONS)
    assert [situation.name for situation in TABLES] == list(OF_TABLES)
    assert [situation.name for situation in SERVERS] == list(OF_SERVERS)


@pytest.mark.part(8)
@pytest.mark.parametrize("kind", OPERATION_KINDS)
def test_health_of_operations(assessed: dict[tuple[str, str], Assessed], kind: str) -> None:
    assert {name: assessed[kind, name].verdict for name in OF_OPERATIONS} == OF_OPERATIONS


def test_health_of_tables(assessed: dict[tuple[str, str], Assessed]) -> None:
    assert {name: assessed[TABLE_KIND, name].verdict for name in OF_TABLES} == OF_TABLES


def test_health_of_index_servers(assessed: dict[tuple[str, str], Assessed]) -> None:
    assert {name: assessed["IndexServer", name].verdict for name in OF_SERVERS} == OF_SERVERS


def test_argo_shows_the_reason_and_the_message(assessed: dict[tuple[str, str], Assessed]) -> None:
    def of(name: str, kind: str = "TableCompaction") -> str:
        return assessed[kind, name].message

    assert of("just created, not seen by the operator yet") == "The operator has not seen it yet"
    assert of("waits for locks").startswith(
        "WaitingForLock: waits for TableCompaction/nightly on segment 0.1, "
    )
    assert of("committed") == "Committed"
    assert of("failed permanently") == "BackoffLimitExceeded: JobFailed: exit code 1"
    assert of("suspended") == "Suspended: spec.suspend is true"
    assert of("suspended", "IndexServer") == "Suspended: spec.suspend is true"
    assert of("there is no table, or no access", TABLE_KIND) == (
        "TableNotFound: there is no Delta table at the location"
    )


def test_the_documentation_has_the_same_table(assessed: dict[tuple[str, str], Assessed]) -> None:
    text = (REPOSITORY / "docs" / "gitops.md").read_text()
    tables = re.findall(r"<!-- of (\w+): tests/gitops -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert dict(tables) == {
        "operations": written(assessed, "TableCompaction", OF_OPERATIONS),
        "tables": written(assessed, TABLE_KIND, OF_TABLES),
        "servers": written(assessed, "IndexServer", OF_SERVERS),
    }


def written(
    assessed: dict[tuple[str, str], Assessed], kind: str, names: dict[str, tuple[str, str, str]]
) -> str:
    """As Markdown."""
    lines = ["| situation | phase | kstatus | Argo CD | Flux, by our expressions |"]
    lines.append("|---|---|---|---|---|")
    for name in names:
        found = assessed[kind, name]
        lines.append(f"| {name} | {found.phase} | {' | '.join(found.verdict)} |")
    return "\n".join(lines)


def test_without_our_script_argo_reports_no_health(
    assessed: dict[tuple[str, str], Assessed], health_tools: HealthTools
) -> None:
    """Which is why it has to be configured: the failure would leave the Application green."""
    failed = assessed["TableCompaction", "failed permanently"].body
    assert health_tools.argo([failed], script="")[0].status == ""


def test_the_script_names_no_phase(
    assessed: dict[tuple[str, str], Assessed], health_tools: HealthTools
) -> None:
    """Later versions may have more phases, so nothing may hang on them."""
    bodies = [dict(found.body) for found in assessed.values()]
    for body in bodies:
        body["status"] = {**body["status"], "phase": "SomethingNew"}
    expected = [found.verdict for found in assessed.values()]
    found = zip(
        health_tools.kstatus(bodies),
        health_tools.argo(bodies),
        health_tools.flux(bodies),
        strict=True,
    )
    assert [tuple(verdict.status for verdict in verdicts) for verdicts in found] == expected


def test_the_configuration_of_argo_has_the_script() -> None:
    config = yaml.safe_load((EXAMPLES / "argocd" / "argocd-cm.yaml").read_text())
    customizations = yaml.safe_load(config["data"]["resource.customizations"])
    assert customizations == {"tandem.dev/*": {"health.lua": HEALTH_LUA.read_text()}}


def test_flux_has_expressions_for_every_kind(health_tools: HealthTools) -> None:
    assert set(health_tools.expressions) == set(KINDS)
    expressions = [
        {key: item[key] for key in ("inProgress", "failed", "current")}
        for item in health_tools.expressions.values()
    ]
    assert all(item == expressions[0] for item in expressions)
    versions = {item["apiVersion"] for item in health_tools.expressions.values()}
    assert versions == {"tandem.dev/v1alpha1"}


def test_an_invalid_health_script_is_an_error(health_tools: HealthTools) -> None:
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "TableUpdate", "metadata": {"name": "x"}}
    answers = health_tools.ask(
        [
            {"engine": "argo", "object": body, "script": "return os.execute('true')"},
            {"engine": "argo", "object": body, "script": "return {status = 'Fine'}"},
            {"engine": "flux", "object": body, "expressions": {"current": "status.("}},
            {"engine": "guess", "object": body},
            {"engine": "kstatus"},
        ]
    )
    assert all(answer.error and not answer.status for answer in answers)
