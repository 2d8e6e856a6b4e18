"""Where the API server is, and who we are to it: from a kubeconfig, or from the pod.

Gives kopf's `ConnectionInfo`, which kopf and our own client both understand, so that there is
one way to log in. Must not keep or log a credential.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import kopf
import yaml

from tandem.errors import AccessDenied, InvalidSpec

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_TIMEOUT_S = 30


def load(kubeconfig: Path | None = None, context: str | None = None) -> kopf.ConnectionInfo:
    """The credentials as they are now; call again when the API server refuses them, since
    tokens are rotated in their files.

    Args:
        kubeconfig: the file to use; None for the pod's service account, else what `kubectl`
            would use.
        context: of the kubeconfig; its current one by default.

    Raises: InvalidSpec.
    """
    if kubeconfig is None and context is None and (_IN_CLUSTER / "token").exists():
        return _in_cluster(_IN_CLUSTER)
    return _from_kubeconfig(kubeconfig or _usual_kubeconfig(), context)


def _in_cluster(folder: Path) -> kopf.ConnectionInfo:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = folder / "namespace"
    return kopf.ConnectionInfo(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_path=str(folder / "ca.crt"),
        token=(folder / "token").read_text().strip(),
        default_namespace=namespace.read_text().strip() if namespace.exists() else None,
    )


def _usual_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(named).expanduser() if named else Path.home() / ".kube" / "config"


def _from_kubeconfig(path: Path, context: str | None) -> kopf.ConnectionInfo:
    if not path.exists():
        raise InvalidSpec(
            "there is no kubeconfig here, and this is not a pod",
            resource=str(path),
            remedy="Name one with --kubeconfig or KUBECONFIG",
        )
    return from_config(yaml.safe_load(path.read_text()) or {}, path, context)


def from_config(
    config: Mapping[str, Any],
    path: Path,
    context: str | None = None,
    *,
    cluster_name: str | None = None,
    user_name: str | None = None,
) -> kopf.ConnectionInfo:
    """The credentials of a kubeconfig that has been read.

    Args:
        path: its file: for messages, and since files that it names are relative to it.
        cluster_name, user_name: instead of the context's.

    Raises: InvalidSpec, AccessDenied.
    """
    chosen = context or config.get("current-context")
    where = _named(path, config, "contexts", chosen).get("context") or {}
    cluster_name, user_name = cluster_name or where.get("cluster"), user_name or where.get("user")
    cluster = _named(path, config, "clusters", cluster_name).get("cluster") or {}
    user = _named(path, config, "users", user_name).get("user") or {}

    def file(value: str | None) -> str | None:
        # Relative to the kubeconfig, as kubectl takes them.
        return str(path.parent / value) if value else None

    token = user.get("token")
    if token is None and user.get("tokenFile"):
        token = (path.parent / user["tokenFile"]).read_text().strip()
    info = kopf.ConnectionInfo(
        server=cluster["server"],
        ca_path=file(cluster.get("certificate-authority")),
        ca_data=cluster.get("certificate-authority-data"),
        insecure=cluster.get("insecure-skip-tls-verify"),
        certificate_path=file(user.get("client-certificate")),
        certificate_data=user.get("client-certificate-data"),
        private_key_path=file(user.get("client-key")),
        private_key_data=user.get("client-key-data"),
        username=user.get("username"),
        password=user.get("password"),
        token=token,
        default_namespace=where.get("namespace"),
        proxy_url=cluster.get("proxy-url"),
    )
    return _by_plugin(info, user["exec"]) if "exec" in user else info


def _named(path: Path, config: Mapping[str, Any], kind: str, name: str | None) -> dict[str, Any]:
    for item in config.get(kind) or ():
        if item.get("name") == name:
            return dict(item)
    raise InvalidSpec(
        f"the kubeconfig has no entry of this name under {kind}",
        resource=str(path),
        found=name or "",
        expected=", ".join(str(item.get("name")) for item in config.get(kind) or ()),
    )


def _by_plugin(info: kopf.ConnectionInfo, plugin: dict[str, Any]) -> kopf.ConnectionInfo:
    """Credentials that a cloud's own command gives (`users[].user.exec`)."""
    environ = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    request = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {}}
    try:
        done = subprocess.run(
            [plugin["command"], *(plugin.get("args") or ())],
            env={**os.environ, **environ, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            capture_output=True,
            timeout=_EXEC_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AccessDenied(
            "the kubeconfig's credential plugin cannot be run",
            resource=plugin["command"],
            found=type(error).__name__,
        ) from error
    if done.returncode:
        raise AccessDenied(
            "the kubeconfig's credential plugin failed",
            resource=plugin["command"],
            found=f"exit code {done.returncode}",
        )
    status = json.loads(done.stdout)["status"]
    return replace(
        info,
        token=status.get("token"),
        certificate_data=status.get("clientCertificateData"),
        private_key_data=status.get("clientKeyData"),
    )
