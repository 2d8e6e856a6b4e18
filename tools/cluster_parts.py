"""The real parts of a Kubernetes cluster as processes of this machine: the API server and the
controller manager on top of etcd, as `tools/build-kubernetes.sh` builds them.

There is no kubelet and no scheduler: pods stay as they were created, and tests end a pod by a
write of its status. Everything else is real: schemas, RBAC, tokens of service
accounts, watches, garbage collection.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster_access import Access, ApiRefused, kubectl
from cluster_processes import (
    POLL_S,
    READY_WITHIN_S,
    REPOSITORY,
    Part,
    PartFailed,
    built,
    free_ports,
)

CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "serviceaccount-controller")


class ControlPlane:
    """An API server and a controller manager on top of an etcd that runs."""

    def __init__(self, folder: Path, etcd_endpoint: str) -> None:
        self.folder = folder
        self._bin = built("kubernetes") / "bin"
        [port] = free_ports(1)
        self.server = f"https://127.0.0.1:{port}"
        self.audit_log = folder / "audit.log"
        """One JSON object for every write with a response of the API server, and for every read
        by a service account."""
        self._secrets = folder / "secrets"
        self._secrets.mkdir(mode=0o700)
        self._token = secrets.token_hex(16)
        self.kubeconfig = folder / "admin.kubeconfig"
        self.apiserver = Part(
            "kube-apiserver", self._apiserver_command(port, etcd_endpoint), folder, self._ready
        )
        self.controllers = Part(
            "kube-controller-manager",
            [
                str(self._bin / "kube-controller-manager"),
                f"--kubeconfig={self.kubeconfig}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ],
            folder,
            lambda: True,
        )

    @property
    def access(self) -> Access:
        """The administrator's."""
        return Access.read(self.kubeconfig)

    def start(self, manifests: Sequence[Path] = ()) -> None:
        """Start both and apply these files and folders before the controllers start."""
        self.apiserver.start()
        if manifests:
            # Server-side apply, since the Spark operator's CRD is too large for an annotation.
            files = [word for path in manifests for word in ("-f", str(path))]
            self.kubectl("apply", "--server-side", "--validate=false", *files)
            self._wait_until_served()
        self.controllers.launch()

    def _wait_until_served(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        pause = threading.Event()
        for _ in range(int(READY_WITHIN_S / POLL_S)):
            conditions = [
                crd.get("status", {}).get("conditions") or ()
                for crd in self.access.request("GET", path)["items"]
            ]
            if all({("Established", "True")} <= _states(each) for each in conditions):
                return
            pause.wait(POLL_S)
        raise PartFailed(f"the API server does not serve all CRDs: {self.apiserver.tail()}")

    def kill(self) -> None:
        self.controllers.kill()
        self.apiserver.kill()

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator; see `cluster_access.kubectl`."""
        return kubectl(self.kubeconfig, *arguments, text=text)

    def _apiserver_command(self, port: int, etcd_endpoint: str) -> list[str]:
        key, tokens = self._secrets / "accounts.key", self._secrets / "tokens.csv"
        policy = self.folder / "audit-policy.json"
        key.write_text(_signing_key())
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        policy.write_text(json.dumps(_AUDIT_POLICY))
        return [
            str(self._bin / "kube-apiserver"),
            f"--etcd-servers=http://{etcd_endpoint}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            # The server creates its own certificate there; clients trust only this one.
            f"--cert-dir={self._secrets}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--profiling=false",
        ]

    def _ready(self) -> bool:
        certificate = self._secrets / "apiserver.crt"
        if not certificate.exists():
            return False
        try:
            access = Access(self.server, certificate.read_text(), self._token)
            access.request("GET", "/readyz", timeout_s=2)
        except (ApiRefused, OSError):
            return False
        access.write(self.kubeconfig)
        return True


def manifests() -> list[Path]:
    """What every cluster needs before the operator starts: the Spark operator's CRD, ours, and
    the roles."""
    spark = built("spark-operator-crds") / "crds" / "sparkoperator"
    return [
        spark / "sparkoperator.k8s.io_sparkapplications.yaml",
        *sorted((REPOSITORY / "crds").glob("*.yaml")),
        REPOSITORY / "examples" / "cluster" / "rbac.yaml",
    ]


def _states(conditions: Sequence[Mapping[str, str]]) -> set[tuple[str, str]]:
    return {(condition["type"], condition["status"]) for condition in conditions}


_AUDIT_POLICY: Mapping[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        # Only reads of our service accounts; users and the cluster's own parts read too much.
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["get", "list", "watch"],
        },
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Metadata"},
    ],
}


def _signing_key() -> str:
    """A fresh private key on P-256 in PEM: RFC 5915's structure without the public key, which
    is optional there (and Go computes it)."""
    private = (1 + secrets.randbelow(2**255)).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + private + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n"
