"""Asks the cluster about a caller's token: whose it is, and whether it has the right. The only
module here that calls an API server, with the two calls that it may make.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from tandem.errors import AccessDenied, Unreachable
from tandem.index.server.access import AUDIENCE, TokenOwner

RIGHT: Final = {"group": "tandem.dev", "resource": "laketables", "subresource": "splits"}
"""What a caller must be allowed to `get`: all of the namespace, or by the name of a LakeTable."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 1.5
"""A client waits two seconds."""


class ClusterReviews:
    """The reviewer of one namespace.

    Args:
        server: the API server's URL.
        token: the file with our own token, which is read again each time: it rotates.
        authority: the file with the certificates that the API server's is checked by.
    """

    def __init__(self, namespace: str, server: str, token: Path, authority: Path) -> None:
        self._namespace, self._server, self._token = namespace, server.rstrip("/"), token
        # Never through a proxy: what is sent are tokens.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authority))),
        )

    @classmethod
    def in_cluster(cls, namespace: str) -> ClusterReviews:
        """By the pod's own account. Raises: AccessDenied if there is none."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        token, authority = _ACCOUNT / "token", _ACCOUNT / "ca.crt"
        if not host or not token.is_file():
            raise AccessDenied(
                "there is no service account to review callers' tokens with",
                resource=str(_ACCOUNT),
                found="none" if host else "no KUBERNETES_SERVICE_HOST",
                expected="a pod with its account's token",
                remedy="Outside of a cluster use access.mode SharedToken",
            )
        address = f"[{host}]" if ":" in host else host
        return cls(namespace, f"https://{address}:{port}", token, authority)

    def owner(self, token: str) -> TokenOwner | None:
        """Raises: Unreachable."""
        found = self._ask(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "authentication.k8s.io/v1",
            "TokenReview",
            {"token": token, "audiences": [AUDIENCE]},
        )
        user = found.get("user") or {}
        # A server that does not know audiences has not checked them.
        if not found.get("authenticated") or AUDIENCE not in (found.get("audiences") or ()):
            return None
        about = {key: user[key] for key in ("groups", "uid", "extra") if user.get(key)}
        return TokenOwner(str(user.get("username", "")), about)

    def may_ask(self, owner: TokenOwner, table: str) -> bool:
        """Raises: Unreachable."""
        wanted = {**RIGHT, "namespace": self._namespace, "verb": "get"}
        if table:
            # By the name, rules with `resourceNames` count, too.
            wanted["name"] = table
        found = self._ask(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "authorization.k8s.io/v1",
            "SubjectAccessReview",
            {"user": owner.user, "resourceAttributes": wanted, **owner.about},
        )
        return found.get("allowed") is True

    def _ask(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            request = urllib.request.Request(
                self._server + path,
                data=json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {self._token.read_text().strip()}",
                    "Content-Type": "application/json",
                },
            )
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                status = json.load(answer).get("status")
        except (OSError, ValueError) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            raise Unreachable(
                "the cluster does not say who the caller is", resource=kind, found=code
            ) from error
        return status if isinstance(status, dict) else {}
