"""The SparkApplication and the Service of an IndexServer. Pure.

The application's name has a digest of all that it depends on, also of the versions of its Secrets:
what is different has another name, and replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from tandem.index.server.config import (
    PORT,
    SECRETS_FOLDER,
    AccessConfig,
    ServerConfig,
    TableConfig,
    written,
)
from tandem.jobs.formats import INDEX_SERVER_APP
from tandem.jobs.runner import JobRequest
from tandem.json_types import Json
from tandem.spark.application.port import (
    ApplicationBuilder,
    JobOwner,
    JobPlacement,
    ServicePlacement,
)
from tandem.spark.application.service import EXECUTOR_CORES
from tandem.spark.jobs.index.executors import slot_conf
from tandem.spec.index.server import AccessMode, IndexServer
from tandem.spec.labels import INDEX_SERVER_LABEL, KIND_LABEL, MANAGED_BY

_LONGEST_STEM: Final = 32
_ROLE, _DRIVER = "spark-role", "driver"
"""Spark's own label."""


def config_of(server: IndexServer, tables: Mapping[str, TableConfig]) -> ServerConfig:
    """What its program is asked to serve."""
    spec = server.spec
    return ServerConfig(
        tables=dict(tables),
        access=AccessConfig(
            mode=spec.access.mode.value,
            namespace=server.namespace,
            tls=server.tls_secret,
            token=server.token_secret,
        ),
        executors=spec.executors,
        service=host(server),
        memory=spec.memory,
        disk=spec.disk,
        shard_size=spec.shard_size,
        row_groups=spec.levels.row_groups,
        bloom_filters=spec.levels.row_groups and spec.levels.bloom_filters,
        pre_prime=spec.pre_prime,
        max_staleness_s=spec.freshness.max_staleness / 1000,
        poll_s=spec.freshness.poll / 1000,
        history_s=spec.history / 1000,
        inline_limit=spec.answers.inline_limit,
        ttl_s=spec.answers.ttl / 1000,
    )


def own_secrets(server: IndexServer) -> frozenset[str]:
    """The Secrets that the server itself needs."""
    return frozenset(filter(None, (server.tls_secret, server.token_secret)))


def application(
    server: IndexServer,
    uid: str,
    tables: Mapping[str, TableConfig],
    secrets: Mapping[str, str],
    builder: ApplicationBuilder,
) -> Json:
    """The application to create.

    Args:
        secrets: the versions of all Secrets that it mounts, by name.
    Raises: InvalidSpec if its template is refused.
    """
    request = JobRequest(
        "ixs", INDEX_SERVER_APP, "", "", request=tuple(written(config_of(server, tables)))
    )
    placement = JobPlacement(
        JobOwner(server.api_version, server.kind_name, server.name, uid),
        server.namespace,
        template=server.spec.spark_template,
        service_account=server.spec.service_account_name,
    )
    service = ServicePlacement(
        port=PORT,
        secrets=tuple(sorted(secrets)),
        folder=SECRETS_FOLDER,
        pod_label=(INDEX_SERVER_LABEL, server.name),
        memory=server.spec.memory,
        disk=server.spec.disk,
        executors=server.spec.executors,
        token=server.spec.access.mode is AccessMode.SERVICE_ACCOUNT,
        conf=slot_conf(EXECUTOR_CORES) if server.spec.executors else {},
    )
    body = builder.build_service(request, placement, service)
    # These are of attempts of operations.
    body["metadata"].pop("annotations", None)
    kept = (*MANAGED_BY[:1], KIND_LABEL, INDEX_SERVER_LABEL)
    labels = body["metadata"]["labels"]
    body["metadata"]["labels"] = {key: labels[key] for key in kept}
    whole = json.dumps([body, sorted(secrets.items())], sort_keys=True)
    digest = sha256(whole.encode()).hexdigest()[:8]
    body["metadata"]["name"] = f"ixs-{server.name[:_LONGEST_STEM].rstrip('-')}-{digest}"
    return body


def service(server: IndexServer, uid: str) -> Json:
    """The Service to create."""
    owner = JobOwner(server.api_version, server.kind_name, server.name, uid)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": server.service_name,
            "namespace": server.namespace,
            "ownerReferences": [owner.reference()],
            "labels": {MANAGED_BY[0]: MANAGED_BY[1], INDEX_SERVER_LABEL: server.name},
        },
        "spec": {
            # The Spark operator gives the application's labels to the pods of executors, too.
            "selector": {INDEX_SERVER_LABEL: server.name, _ROLE: _DRIVER},
            "ports": [{"name": "grpc", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def host(server: IndexServer) -> str:
    """The name of its Service, which its certificate is for."""
    return f"{server.service_name}.{server.namespace}.svc"


def endpoint(server: IndexServer) -> str:
    """Where it answers."""
    scheme = "grpc" if server.tls_secret is None else "grpc+tls"
    return f"{scheme}://{host(server)}:{PORT}"
