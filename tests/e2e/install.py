"""What stands in the cluster before a table does: an S3 server, the Spark operator, and Tandem.

Both operators are installed as people install them: by `helm install` of their own charts.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from dataclasses import dataclass, field
from typing import Any

from cluster_processes import REPOSITORY
from e2e.kube_api import Json, until
from e2e.target import TOOLS, Target

LAKE = "e2e-lake"
"""Namespace of the tables and their jobs; Pod Security enforces "restricted" in it."""
OTHER = "e2e-other"
"""Namespace of another team, which has no rights in the first one."""
STORE = "e2e-store"
SYSTEM = "tandem-system"
OTHERS = "tandem-other"
"""Namespace of a release for the other team alone."""
SPARK = "spark-operator"
BUCKET = "lake"
CHART = str(REPOSITORY / "charts" / "tandem")
PORT = 7070
ENDPOINT = f"http://s3.{STORE}.svc:{PORT}"
"""Where pods reach the S3 server."""
OPERATOR = "app.kubernetes.io/name=tandem,app.kubernetes.io/component=operator"

SMALL: Json = {
    "spec": {
        "driver": {"coreRequest": "100m", "memory": "1g", "memoryOverhead": "1g"},
        "executor": {"coreRequest": "100m", "memory": "1g", "memoryOverhead": "1g"},
    }
}
"""For a node with two cores, on which everything else runs, too."""


@dataclass(frozen=True)
class Keys:
    """The S3 server's credentials."""

    access: str = field(default_factory=lambda: f"key{secrets.token_hex(8)}")
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


def namespaces(target: Target) -> None:
    """Those of tables and the store, as locked down as namespaces can be."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (LAKE, OTHER, STORE, SYSTEM):
        target.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": restricted},
            }
        )


def clean(target: Target) -> None:
    """Remove all that a run creates in a foreign cluster, except definitions. Tables go
    first, while their operator can let them go."""
    for namespace in (LAKE, OTHER, STORE):
        target.kube("delete", "namespace", namespace, "--ignore-not-found", "--timeout=180s")
    for release, namespace in (("tandem", SYSTEM), (OTHERS, OTHERS), (SPARK, SPARK)):
        target.run_helm("uninstall", release, "-n", namespace, "--ignore-not-found", "--wait")
        target.kube("delete", "namespace", namespace, "--ignore-not-found", "--timeout=180s")


def s3_server(target: Target, keys: Keys) -> None:
    """An S3 server in the cluster, empty, and the tables' Secret for it."""
    labels = {"app": "s3"}
    container: Json = {
        "name": "s3",
        "image": target.images.s3,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/versitygw"],
        "args": [
            "--port", f"0.0.0.0:{PORT}", "--health", "/health",
            "posix", "--sidecar", "/data/attributes", "/data/buckets",
        ],
        "env": [
            {"name": "ROOT_ACCESS_KEY", "valueFrom": _from_secret("access")},
            {"name": "ROOT_SECRET_KEY", "valueFrom": _from_secret("secret")},
        ],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data/buckets", "subPath": "buckets"},
            {"name": "data", "mountPath": "/data/attributes", "subPath": "attributes"},
            # Makes the bucket: to the server it is a folder.
            {"name": "data", "mountPath": "/data/made", "subPath": f"buckets/{BUCKET}"},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    pod: Json = {
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "runAsGroup": 65534,
            "fsGroup": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
    }
    target.kube.apply(
        secret("s3", STORE, {"access": keys.access, "secret": keys.secret}),
        secret("lake", LAKE, {
            "AWS_ACCESS_KEY_ID": keys.access,
            "AWS_SECRET_ACCESS_KEY": keys.secret,
        }),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "s3", "namespace": STORE},
            "spec": {
                "selector": {"matchLabels": labels},
                "strategy": {"type": "Recreate"},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3", "namespace": STORE},
            "spec": {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]},
        },
    )  # fmt: skip
    target.kube.rolled_out(STORE, "deployment/s3")


def spark_operator(target: Target) -> None:
    """Kubeflow's, with its webhook, by its own chart; for the tables' namespace."""
    cache = subprocess.run(
        [str(TOOLS / "build-cluster.sh"), "spark-operator"],
        stdout=subprocess.PIPE, check=True, text=True,
    ).stdout.strip()  # fmt: skip
    values: Json = {
        "spark": {
            "jobNamespaces": [LAKE],
            "serviceAccount": {"create": False},
            "rbac": {"create": False},
        },
        # JAVA_HOME and a home in its own image; ours has a read-only one, too.
        "controller": {"env": [{"name": "HOME", "value": "/tmp"}]},
    }
    if target.images.spark_operator:
        registry, rest = target.images.spark_operator.split("/", 1)
        repository, tag = rest.rsplit(":", 1)
        values["image"] = {"registry": registry, "repository": repository, "tag": tag}
    install(target, SPARK, SPARK, f"{cache}/charts/spark-operator", values)
    for deployment in ("controller", "webhook"):
        target.kube.rolled_out(SPARK, f"deployment/spark-operator-{deployment}")
    # Until its certificate is known to the API server, the webhook refuses all pods of jobs.
    until(lambda: _has_authority(target), "the Spark operator's webhook has no certificate")


def tandem(target: Target, jobs: Json | None = None) -> None:
    """By its chart, with the bundled etcd, for the tables' namespace only. `jobs`: further values
    below `jobs`."""
    install(target, "tandem", SYSTEM, CHART, values_of(target, LAKE, jobs))


def second_release(target: Target, jobs: Json) -> None:
    """For the other team's namespace only; with the definitions of the first release."""
    only_once: Json = {"crds": {"enabled": False}, "rbac": {"userRoles": False}}
    install(target, OTHERS, OTHERS, CHART, {**values_of(target, OTHER, jobs), **only_once})


def values_of(target: Target, tenant: str, jobs: Json | None) -> Json:
    """A release's values that serves this namespace."""
    repository, tag = target.images.tandem.rsplit(":", 1)
    registry, etcd = target.images.etcd.split("/", 1)
    etcd_name, etcd_tag = etcd.rsplit(":", 1)
    return {
        "image": {"repository": repository, "tag": tag},
        "watch": {"namespaces": [tenant]},
        "jobs": {"sparkTemplate": SMALL, "small": "0", **(jobs or {})},
        "indexServers": {"enabled": True},
        "allowedLocations": {tenant: [f"s3://{BUCKET}/"]},
        "allowedEndpoints": [ENDPOINT.removeprefix("http://")],
        "etcd": {
            # As long as the operator's restart takes, so that a dead one is soon replaced.
            "ttlSeconds": 15,
            "bundled": {
                "enabled": True,
                "image": {"registry": registry, "repository": etcd_name, "tag": etcd_tag},
                "persistence": {"enabled": False},
            },
        },
    }


def remove_tandem(target: Target) -> None:
    """`helm uninstall`; definitions and resources stay."""
    target.run_helm("uninstall", "tandem", "--namespace", SYSTEM, "--wait")
    until(lambda: not target.kube.pods(SYSTEM), "pods of the release stay")


def install(target: Target, release: str, namespace: str, chart: str, values: Json) -> None:
    """`helm install`, as a person types it."""
    file = target.folder / f"{release}-values.json"
    file.write_text(json.dumps(values, indent=1))
    target.run_helm(
        "install", release, chart, "--namespace", namespace, "--create-namespace",
        "--values", str(file),
    )  # fmt: skip


def secret(name: str, namespace: str, data: dict[str, str]) -> Json:
    """A Secret of these texts."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def _from_secret(key: str) -> Json:
    return {"secretKeyRef": {"name": "s3", "key": key}}


def _has_authority(target: Target) -> bool:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    hooks: list[Any] = [
        hook
        for each in target.kube.items(path)
        if each["metadata"]["name"].startswith("spark-operator")
        for hook in each.get("webhooks", ())
    ]
    return bool(hooks) and all(hook["clientConfig"].get("caBundle") for hook in hooks)
