"""Who reaches whom under the chart's NetworkPolicies of index servers, by the labels and ports of
their pods. The policies are evaluated here, as Kubernetes defines them: no network plugin runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from chart.chart_values import MATRIX
from spark.test_application_service import made
from support.cluster.helm import NAMESPACE, of_kind, one, template
from tandem.index.server.messages import PORT

Json = dict[str, Any]
SPARK_RPC, BLOCKS, REGISTRY = 7078, 7079, 41_234
"""Spark's own ports of a driver's pod; that of the registry of executors is any free one."""
WITH_EGRESS = MATRIX["index-servers"]
TEAM = WITH_EGRESS["jobs"]["namespaces"][0]


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: Mapping[str, str]


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "Exists", each
        if each["key"] not in labels:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(peer: Json, other: Pod, own_namespace: str) -> bool:
    assert peer.keys() <= {"podSelector", "namespaceSelector"}, peer
    if "namespaceSelector" in peer:
        named = {"kubernetes.io/metadata.name": other.namespace}
        if not selects(peer["namespaceSelector"], named):
            return False
    elif other.namespace != own_namespace:
        return False
    return selects(peer.get("podSelector", {}), other.labels)


def rules(policies: Sequence[Json], pod: Pod, direction: str) -> Iterator[list[Json]]:
    """The rules of each policy that restricts a pod in a direction."""
    for policy in policies:
        spec = policy["spec"]
        here = policy["metadata"]["namespace"] == pod.namespace
        if here and direction in spec["policyTypes"] and selects(spec["podSelector"], pod.labels):
            yield spec.get(direction.lower(), [])


def passes(policies: Sequence[Json], pod: Pod, other: Pod, port: int, direction: str) -> bool:
    """Whether the policies of a pod let a connection through: one that restricts nothing does, of
    several any one."""
    restricting = list(rules(policies, pod, direction))
    side = "from" if direction == "Ingress" else "to"
    return not restricting or any(
        (not rule.get(side) or any(is_peer(peer, other, pod.namespace) for peer in rule[side]))
        and (not rule.get("ports") or port in [each["port"] for each in rule["ports"]])
        for found in restricting
        for rule in found
    )


@dataclass
class Network:
    policies: Sequence[Json]

    def reaches(self, source: Pod, target: Pod, port: int) -> bool:
        out = passes(self.policies, source, target, port, "Egress")
        return out and passes(self.policies, target, source, port, "Ingress")


def network(values: Json) -> tuple[Network, Pod]:
    """And the operator's pod."""
    objects = template(values)
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    return Network(of_kind(objects, "NetworkPolicy")), Pod(NAMESPACE, labels)


SERVER = made()
DRIVER = Pod(TEAM, {**SERVER["spec"]["driver"]["labels"], "spark-role": "driver"})
EXECUTOR = Pod(TEAM, {**SERVER["metadata"]["labels"], "spark-role": "executor"})
READER = Pod(TEAM, {"reads": "index"})
BYSTANDER = Pod(TEAM, {"app": "web"})
STRANGER = Pod("elsewhere", {"reads": "index"})
JOB = Pod(TEAM, {"spark-role": "driver"})


def test_readers_executors_and_the_operator_reach_a_driver_and_no_one_else() -> None:
    found, operator = network(WITH_EGRESS)
    assert found.reaches(READER, DRIVER, PORT)
    assert found.reaches(operator, DRIVER, PORT)
    for port in (PORT, SPARK_RPC, BLOCKS, REGISTRY):
        assert found.reaches(EXECUTOR, DRIVER, port)
        assert found.reaches(DRIVER, EXECUTOR, port)
    for other in (BYSTANDER, STRANGER, Pod(NAMESPACE, {"app": "web"})):
        assert not found.reaches(other, DRIVER, PORT)
    for other in (READER, operator, BYSTANDER, STRANGER):
        for port in (SPARK_RPC, BLOCKS, REGISTRY):
            assert not found.reaches(other, DRIVER, port)


def test_without_a_list_of_readers_all_reach_the_port_and_no_other_one() -> None:
    found, _ = network({**WITH_EGRESS, "indexServers": {"enabled": True}})
    for other in (READER, BYSTANDER, STRANGER):
        assert found.reaches(other, DRIVER, PORT)
        assert not found.reaches(other, DRIVER, REGISTRY)


def test_drivers_of_jobs_are_as_reachable_as_before() -> None:
    found, _ = network(WITH_EGRESS)
    assert found.reaches(BYSTANDER, JOB, SPARK_RPC)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_operator_asks_servers_only_where_they_may_be(enabled: bool) -> None:
    found, operator = network({**WITH_EGRESS, "indexServers": {"enabled": enabled}})
    assert found.reaches(operator, DRIVER, PORT) == enabled
