"""charts/tandem as it renders with all sorts of values: safe pods, right options."""

from __future__ import annotations

import base64
import json
import re
import shlex
from typing import Any

import pytest
import typer
import yaml

import chart_docs
from chart.chart_values import BUNDLED, EXTERNAL, MATRIX
from chart.pod_security import beyond, restricted
from support.cluster.helm import (
    CHART,
    NAMESPACE,
    HelmFailed,
    containers,
    helm,
    of_kind,
    one,
    pods,
    template,
)
from tandem.cli.app import app
from tandem.spec import KINDS
from tandem.spec.common import INDEX_SERVER_LABEL

Json = dict[str, Any]
POLICY = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
CLUSTER_SCOPED = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"),
    *POLICY,
}
every_combination = pytest.mark.parametrize("name", MATRIX)


def arguments(objects: list[Json]) -> list[str]:
    """The operator's."""
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    found: list[str] = pod["containers"][0]["args"]
    return found


# Helm


def test_helm_lints_the_chart_without_warnings() -> None:
    """With its defaults and with much switched on; strictly: warnings count."""
    for name in ("namespaced", "external-tls-user", "monitoring", "jobs", "by-others"):
        values = MATRIX[name]
        message = helm(
            "lint", "--strict", "--quiet", str(CHART), "--values=-", text=yaml.dump(values)
        )
        assert not message.strip()
    message = helm("lint", "--strict", str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in message


WRONG: dict[str, tuple[Json, str]] = {
    "unknown at the top": ({"replicas": 2}, "additional properties 'replicas' not allowed"),
    "unknown within": ({"etcd": {"endpoint": ["a:1"]}}, "at '/etcd': additional properties"),
    "text for a number": ({"replicaCount": "2"}, "at '/replicaCount': got string, want integer"),
    "null for a list": ({"jobs": {"namespaces": "a"}}, "at '/jobs/namespaces': got string"),
    "too small": ({"etcd": {"ttlSeconds": 1}}, "at '/etcd/ttlSeconds': minimum: got 1, want 2"),
    "no word of it": ({"templatePolicy": "none"}, "at '/templatePolicy': value must be one of"),
    "no setting": ({"templateAllow": ["extraListeners"]}, "at '/templateAllow/0'"),
    "no port": ({"etcd": {"endpoints": ["etcd"]}}, "at '/etcd/endpoints/0': 'etcd' does not match"),
    "no namespace": ({"watch": {"namespaces": ["A_B"]}}, "at '/watch/namespaces/0'"),
    "no pattern for jobs": ({"jobs": {"namespaces": ["t-*"]}}, "at '/jobs/namespaces/0'"),
    "no scheme": ({"allowedLocations": {"*": ["lake"]}}, "at '/allowedLocations/*/0'"),
    "no location": ({"allowedLocations": {"a": []}}, "at '/allowedLocations/a'"),
    "a tag with a digest": ({"image": {"tag": "a@b"}}, "at '/image/tag'"),
    "a short digest": ({"image": {"digest": "sha256:0"}}, "at '/image/digest'"),
    "no secret": ({"rbac": {"secrets": {"a": []}}}, "at '/rbac/secrets/a'"),
    "no option": ({"settings": {"extraArgs": ["x; y"]}}, "at '/settings/extraArgs/0'"),
    "no quantity": ({"resources": {"limits": {"memory": "much"}}}, "at '/resources/limits/memory'"),
    "a piece of no SparkApplication": (
        {"jobs": {"sparkTemplate": {"driver": {}}}},
        "sparkTemplate",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_are_refused_by_their_path(wrong: str) -> None:
    values, message = WRONG[wrong]
    with pytest.raises(HelmFailed, match=re.escape(message)):
        template({**BUNDLED, **values})


CONTRADICTIONS: dict[str, tuple[Json, str]] = {
    "no etcd": ({}, "set etcd.endpoints to yours, or etcd.bundled.enabled=true"),
    "two": ({"etcd": {"endpoints": ["a:1"], "bundled": {"enabled": True}}}, "exclude each other"),
    "no password": ({"etcd": {"endpoints": ["a:1"], "auth": {"user": "a"}}}, "passwordSecret.name"),
    "needless": ({"locks": "in-process", **BUNDLED}, "needs no etcd"),
    "unsafe": ({"locks": "in-process", "replicaCount": 2}, "safe with replicaCount: 1 only"),
    "no-account": (
        {**EXTERNAL, "serviceAccount": {"create": False}},
        "serviceAccount.name is required",
    ),
    "memory": ({**EXTERNAL, "workers": {"spark": True}}, "limits.memory of at least 2Gi"),
    "no-jobs": ({**MATRIX["jobs"], "jobs": {"small": "0"}}, "workers.spark is for small jobs"),
}


@pytest.mark.parametrize("wrong", CONTRADICTIONS)
def test_contradictions_are_refused_with_a_remedy(wrong: str) -> None:
    values, message = CONTRADICTIONS[wrong]
    with pytest.raises(HelmFailed, match=re.escape(message)):
        template(values)


@pytest.mark.part(4)
@every_combination
def test_every_object_is_labelled_and_named_once(name: str) -> None:
    objects = template(MATRIX[name])
    seen = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(seen) == len(set(seen))
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "tandem"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        for key, value in MATRIX[name].get("commonLabels", {}).items():
            assert labels[key] == value
        assert ("namespace" in each["metadata"]) is (each["kind"] not in CLUSTER_SCOPED)


def test_the_command_of_the_readme_installs_an_operator() -> None:
    readme = (CHART / "README.md").read_text()
    [command] = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:4] == ["helm", "install", "tandem", "charts/tandem"]
    flags = [word for word in words[4:] if word != "--create-namespace"]
    objects = list(yaml.safe_load_all(helm("template", "tandem", str(CHART), *flags)))
    assert (
        one([each for each in objects if each], "Deployment")["metadata"]["namespace"] == NAMESPACE
    )


def test_the_readme_names_values_that_there_are() -> None:
    readme = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"rbac.secrets", "allowedLocations"}
    named = re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:=[^`]*)?`", readme.partition("## Values")[0])
    assert len(named) >= 15
    for path in named:
        inner = values
        for name in path.split("."):
            if inner == {} and path.rpartition(".")[0] in free:
                break
            assert name in inner, path
            inner = inner[name]


# Pods


@every_combination
def test_pods_are_restricted(name: str) -> None:
    found = pods(template(MATRIX[name]))
    assert found
    for where, pod in found:
        assert (where, restricted(pod), beyond(pod)) == (where, [], [])
        assert pod["securityContext"]["runAsUser"] == 185


@every_combination
def test_only_the_operator_has_a_token(name: str) -> None:
    objects = template(MATRIX[name])
    for where, pod in pods(objects):
        assert pod["automountServiceAccountToken"] is where.startswith("Deployment/")
    for account in of_kind(objects, "ServiceAccount"):
        if account["metadata"]["labels"]["app.kubernetes.io/component"] == "operator":
            assert account["automountServiceAccountToken"] is False


@pytest.mark.part(12)
@every_combination
def test_nothing_secret_stands_in_arguments_environment_or_annotations(name: str) -> None:
    objects = template(MATRIX[name])
    secret = [
        base64.b64decode(value).decode()
        for each in of_kind(objects, "Secret")
        for key, value in each["data"].items()
        if key != "ca.crt"
    ]
    shown = yaml.dump([each for each in objects if each["kind"] != "Secret"])
    assert not [text for text in secret if text in shown]
    for _, pod in pods(objects):
        for container in containers(pod):
            for variable in container.get("env", ()):
                assert not re.search("(?i)password|secret|key", variable["name"])


def test_only_the_init_container_has_the_password_of_root() -> None:
    pod = one(template(BUNDLED), "Deployment")["spec"]["template"]["spec"]
    with_root = [
        container["name"]
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] == "etcd-root"
    ]
    assert with_root == ["etcd-user"]
    [authority] = [volume for volume in pod["volumes"] if volume["name"] == "etcd-ca"]
    assert authority["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


@every_combination
def test_servers_are_probed_and_services_lead_to_them(name: str) -> None:
    objects = template(MATRIX[name])
    templates = [each["spec"]["template"] for each in of_kind(objects, "Deployment", "StatefulSet")]
    for each in templates:
        container = each["spec"]["containers"][0]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
    for service in of_kind(objects, "Service"):
        selected = [
            each
            for each in templates
            if service["spec"]["selector"].items() <= each["metadata"]["labels"].items()
        ]
        [chosen] = selected
        ports = {port["name"] for port in chosen["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for each in of_kind(objects, "Deployment", "StatefulSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_replicas_are_rolled_spread_and_kept() -> None:
    alone, more = template(EXTERNAL), template(MATRIX["three-replicas"])
    assert one(alone, "Deployment")["spec"]["strategy"]["type"] == "Recreate"
    assert not of_kind(alone, "PodDisruptionBudget")
    assert one(more, "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    assert one(more, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    pod = one(more, "Deployment")["spec"]["template"]["spec"]
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


# Options


@pytest.mark.part(4)
@every_combination
def test_the_command_line_knows_every_option(name: str) -> None:
    commands: Any = typer.main.get_command(app)
    pod = one(template(MATRIX[name]), "Deployment")["spec"]["template"]["spec"]
    for container in containers(pod):
        assert container["command"] == ["tandem"]
        command = commands.commands[container["args"][0]]
        with command.make_context("tandem", [], resilient_parsing=True) as context:
            _, rest, _ = command.make_parser(context).parse_args(container["args"][1:])
        assert rest == []
    paths = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for option in arguments(template(MATRIX[name])):
        file = option.partition("=")[2]
        if file.startswith("/etc/"):
            assert file.rpartition("/")[0] in paths, option


def test_small_jobs_have_spark_in_the_operators_pod_only_where_that_is_chosen() -> None:
    with_spark = [
        name for name in MATRIX if "--small-jobs-on-spark" in arguments(template(MATRIX[name]))
    ]
    assert with_spark == ["jobs"]


def test_an_external_etcd_is_reached_as_configured() -> None:
    assert {
        "--etcd-endpoint=https://etcd.example:2379",
        "--etcd-prefix=/lakes/one",
        "--etcd-ca=/etc/tandem/etcd-ca/ca.crt",
        "--etcd-certificate=/etc/tandem/etcd-client/tls.crt",
        "--etcd-key=/etc/tandem/etcd-client/tls.key",
        "--etcd-user=lake",
        "--etcd-password-file=/etc/tandem/etcd-user/password",
    } <= set(arguments(template(MATRIX["external-tls-user"])))


def test_files_are_allowed_only_where_asked_for() -> None:
    def allowed(values: Json) -> list[str]:
        return [each for each in arguments(template(values)) if "--allowed-location" in each]

    start = "--allowed-location="
    assert allowed(BUNDLED) == [f"{start}*={scheme}://" for scheme in ("s3", "gs", "abfss")]
    assert allowed(MATRIX["jobs"]) == [
        f"{start}*=gs://shared/",
        f"{start}team-a=s3://lake/a/",
        f"{start}team-a=file:///data/",
    ]


# Definitions


def test_definitions_are_those_of_the_repository() -> None:
    for name, kept in (("external", "keep"), ("crds-go-too", None)):
        rendered = of_kind(template(MATRIX[name]), "CustomResourceDefinition")
        assert len(rendered) == len(KINDS)
        for each in rendered:
            file = chart_docs.ROOT / "crds" / f"tandem.dev_{each['spec']['names']['plural']}.yaml"
            original = yaml.safe_load(file.read_text())
            assert each["spec"] == original["spec"]
            assert each["metadata"]["name"] == original["metadata"]["name"]
            found = each["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
            assert found == kept
    assert not of_kind(template(MATRIX["no-crds"]), "CustomResourceDefinition")


# The bundled etcd, monitoring, notes


def test_the_generated_certificate_is_for_the_service_and_signed() -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtensionOID

    secret = one(template(BUNDLED), "Secret", "-tls")
    authority, certificate = (
        x509.load_pem_x509_certificate(base64.b64decode(secret["data"][key]))
        for key in ("ca.crt", "tls.crt")
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
    value: Any = names.value
    service = f"tandem-etcd.{NAMESPACE}.svc"
    assert service in value.get_values_for_type(x509.DNSName)
    assert f"--etcd-endpoint=https://{service}:2379" in arguments(template(BUNDLED))


def test_secrets_made_by_others_are_used_and_none_is_made() -> None:
    objects = template(MATRIX["own-secrets"])
    assert not of_kind(objects, "Secret")
    used = {
        volume["secret"]["secretName"]
        for _, pod in pods(objects)
        for volume in pod.get("volumes", ())
        if "secret" in volume
    }
    assert used == {"made-tls", "made-root", "made-user"}


def test_the_scrape_path_and_port_are_served() -> None:
    objects = template(MATRIX["monitoring"])
    monitor, service = one(objects, "ServiceMonitor"), one(objects, "Service", "-operator")
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prom"
    rendered = one(objects, "PrometheusRule")["spec"]
    alerts = (CHART / "files" / "alerts.yaml").read_text()
    assert rendered == yaml.safe_load(alerts.replace("RUNBOOKS", "https://docs.example/runbooks"))
    assert "RUNBOOKS" not in json.dumps(rendered)
    dashboard = one(objects, "ConfigMap", "-dashboard")
    original = (CHART / "files" / "dashboard.json").read_text()
    assert dashboard["data"]["tandem.json"].strip() == original.strip()


def test_only_drivers_of_index_servers_are_closed_to_others_than_readers() -> None:
    """Executors have the label, too, and their driver asks them on any port."""
    selectors = [
        each["spec"]["podSelector"]
        for each in template(MATRIX["index-servers"])
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-index-server")
    ]
    assert selectors
    for selector in selectors:
        assert selector["matchLabels"] == {"spark-role": "driver"}
        assert [each["key"] for each in selector["matchExpressions"]] == [INDEX_SERVER_LABEL]


def test_egress_is_closed_except_for_listed_destinations() -> None:
    bundled = one(template(MATRIX["closed-network"]), "NetworkPolicy", "-operator")["spec"]
    assert bundled["policyTypes"] == ["Ingress", "Egress"]
    ports = [port["port"] for rule in bundled["egress"] for port in rule.get("ports", ())]
    assert ports == [53, 53, 443, "client"]
    external = one(template(MATRIX["closed-network-external"]), "NetworkPolicy")["spec"]
    ports = [port["port"] for rule in external["egress"] for port in rule.get("ports", ())]
    assert ports == [53, 53, 443, 6443, 12379]
    etcd = one(template(BUNDLED), "NetworkPolicy", "-etcd")["spec"]
    [rule] = etcd["ingress"]
    selected = rule["from"][0]["podSelector"]["matchLabels"]
    operator = one(template(BUNDLED), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert selected.items() <= operator.items()
