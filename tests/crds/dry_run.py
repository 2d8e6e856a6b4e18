"""Ask an API server about many resources of ours without making them."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from cluster_access import once_served
from support.cluster.api_server import Cluster
from tandem.spec import common

_CONNECTIONS = 6


class Sender:
    """Many small requests at once, over few connections."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._access = cluster.admin
        self._namespace = namespace
        self._trusted = ssl.create_default_context(cadata=self._access.authority)

    def dry_run(self, resources: Sequence[dict[str, Any]]) -> list[str]:
        """What the API server says to each; "" if it would take it."""
        shares = [resources[first::_CONNECTIONS] for first in range(_CONNECTIONS)]
        answers = [""] * len(resources)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for first, share in enumerate(pool.map(self._send_all, shares)):
                answers[first::_CONNECTIONS] = share
        return answers

    def _send_all(self, resources: Sequence[dict[str, Any]]) -> list[str]:
        connection = http.client.HTTPSConnection(
            urlsplit(self._access.server).netloc, timeout=30, context=self._trusted
        )
        with closing(connection):
            return [self._send(connection, resource) for resource in resources]

    def _send(self, connection: http.client.HTTPConnection, resource: dict[str, Any]) -> str:
        path = (
            f"/apis/{common.GROUP}/{common.VERSION}/namespaces/{self._namespace}/"
            f"{common.plural(resource['kind'])}"
        )
        method = "POST"
        if "resourceVersion" in resource["metadata"]:
            method, path = "PUT", f"{path}/{resource['metadata']['name']}"
        headers = {
            "Authorization": f"Bearer {self._access.token}",
            "Content-Type": "application/json",
        }

        def ask() -> tuple[int, bytes]:
            connection.request(
                method,
                f"{path}?dryRun=All&fieldValidation=Strict",
                body=json.dumps(resource),
                headers=headers,
            )
            answer = connection.getresponse()
            return answer.status, answer.read()

        status, text = once_served(ask)
        return "" if status < 300 else str(json.loads(text)["message"])
