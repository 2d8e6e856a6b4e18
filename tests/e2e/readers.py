"""Pods that ask an index server, each with the token of its own account, and what they need: a
certificate for the server's name, its authority for them, and the right to ask.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cluster_processes import REPOSITORY
from e2e.install import BUCKET, ENDPOINT, LAKE, secret
from e2e.kube_api import Json
from e2e.lake import options
from e2e.target import Target
from single_node.certificates import Authority
from tandem.index.server.access import AUDIENCE
from tandem.index.server.client import ACCESS_FOLDER
from tandem.index.server.messages import PORT

ROLE = "tandem-index-reader"
"""The chart's, for callers."""
OWN_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
"""In every pod, for the API server."""
_USER = 185


def certificate(target: Target, server: str, folder: Path) -> None:
    """The Secret of a server's certificate, for the name of its Service."""
    authority = Authority(folder / "authority")
    names = [f"DNS:{server}-index.{LAKE}.svc"]
    signed, key = authority.sign("server", f"/CN={server}-index", names)
    target.kube.apply(
        secret(f"{server}-index-tls", LAKE, {
            "ca.crt": authority.certificate.read_text(),
            "tls.crt": signed.read_text(),
            "tls.key": key.read_text(),
        }),
    )  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A pod of a namespace, with an account of the same name that may read the index there."""

    target: Target
    namespace: str
    name: str
    server: str
    table: str

    def start(self) -> None:
        """Create account, right and pod; wait until it runs."""
        kube = self.target.kube
        found = kube.get(f"/api/v1/namespaces/{LAKE}/secrets/{self.server}-index-tls") or {}
        authority = f"{self.name}-authority"
        kube.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._metadata(self.name)},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": self._metadata(f"{self.name}-reads-index"),
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": ROLE,
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
                ],
            },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": self._metadata(authority),
                "data": {"ca.crt": found["data"]["ca.crt"]},
            },
            self._pod(authority),
        )
        kube("wait", "-n", self.namespace, "--for=condition=Ready", f"pod/{self.name}",
             "--timeout=300s")  # fmt: skip

    def remove(self) -> None:
        """Delete all that `start` has created."""
        kinds = {
            "pod": self.name,
            "rolebinding": f"{self.name}-reads-index",
            "secret": f"{self.name}-authority",
            "serviceaccount": self.name,
        }
        for kind, name in kinds.items():
            self.target.kube("delete", kind, name, "-n", self.namespace, "--timeout=120s")

    def ask(
        self,
        *conditions: str,
        table: str = "",
        held: bool = False,
        token: str = "",
        fallback: bool = False,
        brief: bool = False,
    ) -> Json:
        """What e2e/asker.py prints there.

        Args:
            table: the name that is asked for, if it is not that of the table.
            held: what the executors hold, too.
            token: a file in the pod; that for index servers by default.
            fallback: that process answers where the server does not, as readers do.
            brief: wait no longer than readers do.
        """
        program = (REPOSITORY / "tests" / "e2e" / "asker.py").read_text()
        arguments = [
            f"--endpoint=grpc+tls://{self.server}-index.{LAKE}.svc:{PORT}",
            f"--table={table or self.table}",
            f"--location=s3://{BUCKET}/{self.table}",
            f"--options={json.dumps(options(ENDPOINT))}",
            *(f"--where={condition}" for condition in conditions),
        ]
        arguments += ["--held"] if held else []
        arguments += [f"--token={token}"] if token else []
        arguments += ["--fallback"] if fallback else []
        arguments += ["--brief"] if brief else []
        words = ["exec", "-i", "-n", self.namespace, self.name, "--", "python", "-", *arguments]
        answered: Json = json.loads(self.target.kube(*words, text=program))
        return answered

    def refused(self, *, table: str = "", held: bool = False, token: str = "") -> str:
        """The words with which a question is refused: about a table, or about what is held."""
        conditions = [] if held else [""]
        answered = self.ask(*conditions, table=table, held=held, token=token)
        assert answered.get("error", {}).get("kind") == "AccessDenied", answered
        return str(answered["error"]["text"])

    def _metadata(self, name: str) -> Json:
        return {"name": name, "namespace": self.namespace}

    def _pod(self, authority: str) -> Json:
        """As docs/index.md tells readers, with the credentials of the table beside it."""
        sources: list[Json] = [
            {"serviceAccountToken": {"audience": AUDIENCE, "path": "token"}},
            {"secret": {"name": authority, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        container: Json = {
            "name": "reader",
            "image": self.target.images.tandem,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "infinity"],
            # In another namespace there is no such Secret: then it reads nothing.
            "envFrom": [{"secretRef": {"name": "lake", "optional": True}}],
            "volumeMounts": [
                {"name": "index", "mountPath": ACCESS_FOLDER, "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self._metadata(self.name),
            "spec": {
                "serviceAccountName": self.name,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [
                    {"name": "index", "projected": {"sources": sources}},
                    {"name": "tmp", "emptyDir": {}},
                ],
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": _USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        }
