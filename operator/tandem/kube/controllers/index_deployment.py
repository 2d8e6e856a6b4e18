"""The Service and the application of one IndexServer in the cluster, as they should be.

An application is never changed: one that should be another is deleted, and its successor created.
Both belong to the resource, so that nothing is left when that is deleted.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import structlog

from tandem.errors import AccessDenied, InvalidSpec
from tandem.index.server.messages import (
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
from tandem.kube.client.api import Api, Conflict, Forbidden, NotFound, ResourcePath
from tandem.kube.client.resources import is_owned
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.runtime.context import OperatorContext
from tandem.spark.application.manifest import SERVICE_EXECUTOR_CORES
from tandem.spark.application.port import (
    ApplicationBuilder,
    JobOwner,
    JobPlacement,
    ServicePlacement,
)
from tandem.spark.jobs.index_server import slot_conf
from tandem.spec.common import INDEX_SERVER_LABEL, KIND_LABEL, MANAGED_BY, ResourceKey
from tandem.spec.index import AccessMode, IndexServer

# The SparkApplication and the Service of an IndexServer. Pure.
#
# The application's name has a digest of all that it depends on, also of the versions of its
# Secrets: what is different has another name, and replaces it.


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
        conf=slot_conf(SERVICE_EXECUTOR_CORES) if server.spec.executors else {},
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


def service_endpoint(server: IndexServer) -> str:
    """Where it answers."""
    scheme = "grpc" if server.tls_secret is None else "grpc+tls"
    return f"{scheme}://{host(server)}:{PORT}"


# The Secrets of an IndexServer: their versions, and what the operator needs of the server's own.
# Reads them one by one, and seldom; never logs what is in them.


_MISSING_PART: Final = 0.1
"""One that does not exist is looked for more often."""
_KEPT: Final = ("ca.crt", "tls.crt", "token")
"""Keys that the operator needs to ask the server; never a private key."""


@dataclass(frozen=True, slots=True)
class SecretState:
    """`version` is None if it does not exist; `values` of an own Secret."""

    version: str | None
    values: dict[str, bytes] = field(default_factory=dict, repr=False)


class Secrets:
    """Those of one namespace. To be used in one event loop.

    Args:
        look_s: how often each is looked at.
    """

    def __init__(self, api: Api, namespace: str, look_s: float) -> None:
        self._api, self._namespace, self._look_s = api, namespace, look_s
        self._known: dict[str, tuple[float, SecretState]] = {}

    async def look(self, own: Collection[str], others: Collection[str]) -> dict[str, SecretState]:
        """The states of all of these. Raises: AccessDenied if we may not read one; ApiError."""
        wanted = {**dict.fromkeys(others, False), **dict.fromkeys(own, True)}
        self._known = {name: known for name, known in self._known.items() if name in wanted}
        now = asyncio.get_running_loop().time()
        for name, is_own in wanted.items():
            known = self._known.get(name)
            if known is not None:
                part = 1.0 if known[1].version is not None else _MISSING_PART
                if now - known[0] < part * self._look_s:
                    continue
            self._known[name] = now, await self._read(name, is_own=is_own)
        return {name: self._known[name][1] for name in wanted}

    async def _read(self, name: str, *, is_own: bool) -> SecretState:
        try:
            found = await self._api.get(ResourcePath("", "v1", "secrets", self._namespace, name))
        except NotFound:
            return SecretState(None)
        except Forbidden:
            raise AccessDenied(
                "the operator may not read this Secret",
                resource=f"Secret/{name}",
                remedy="Bind the operator's role in this namespace",
            ) from None
        metadata, data = found["metadata"], found.get("data") or {}
        values = {key: base64.b64decode(data[key]) for key in _KEPT if is_own and key in data}
        return SecretState(f"{metadata['uid']}/{metadata['resourceVersion']}", values)


_log = structlog.get_logger("tandem.kube.index_server")
SEEN_EVERY: Final = 4
"""After so many polls of the server its Service and its Secrets are looked at, too."""
_GOING_S: Final = 2.0
_SERVICES: Final = ResourcePath("", "v1", "services")
_PODS: Final = ResourcePath("", "v1", "pods")


@dataclass(frozen=True, slots=True)
class Ensured:
    """`created`: the name of an application that was created now. `waits`: what is waited for
    before the one that is there is replaced; look again in `again_s`."""

    created: str = ""
    waits: str = ""
    again_s: float = math.inf


class Deployment:
    """To be used in one event loop.

    Args:
        cache: the applications that a watch reports.
        status: as an earlier operator left it.

    Attributes:
        current: the name of the application that exists, as far as is known; "" for none.
    """

    def __init__(
        self,
        context: OperatorContext,
        uid: str,
        key: ResourceKey,
        builder: ApplicationBuilder,
        cache: ApplicationCache,
        status: Mapping[str, Any],
    ) -> None:
        self._context, self._uid, self._builder, self._cache = context, uid, builder, cache
        _, self._namespace, self._name = key
        group, version, plural = builder.resource
        self._path = ResourcePath(group, version, plural, self._namespace)
        self.current = str(status.get("application", ""))
        self._generation = int(status.get("observedGeneration", -1))
        """That of the spec which `current` is of."""
        self._pending: tuple[str, float] = ("", 0.0)
        """The name that is to come, and since when."""
        self._looked = -math.inf

    async def ensure_service(self, server: IndexServer) -> None:
        """Have the Service. Raises: InvalidSpec if its name is taken; ApiError."""
        now = time.monotonic()
        if now - self._looked < SEEN_EVERY * self._context.settings.index_poll_s:
            return
        api, wanted = self._context.api, service(server, self._uid)
        at = _SERVICES.at(server.namespace, server.service_name)
        try:
            there = await api.get(at)
        except NotFound:
            there = await api.create(_SERVICES.at(server.namespace), wanted)
        if not is_owned(there, self._uid):
            raise InvalidSpec(
                "a Service of this name belongs to something else",
                resource=server.id,
                field="metadata.name",
                found=f"Service/{server.service_name}",
                expected="a name whose Service is free",
                remedy="Delete that Service, or choose another name",
            )
        if any(there["spec"].get(key) != value for key, value in wanted["spec"].items()):
            # Whole fields: a merge would leave what another client has added to the selector.
            test = {"op": "test", "path": "/metadata/uid", "value": there["metadata"]["uid"]}
            fields = wanted["spec"].items()
            changes = [{"op": "add", "path": f"/spec/{key}", "value": v} for key, v in fields]
            await api.patch(at, [test, *changes])
        self._looked = now

    async def ensure(self, server: IndexServer, wanted: Json) -> Ensured:
        """Have this application, and no other. Raises: ApiError."""
        name, generation = wanted["metadata"]["name"], server.metadata.generation
        if name == self.current and await self.read() is not None:
            self._pending, self._generation = ("", 0.0), generation
            return Ensured()
        others = [each for each in await self._all() if each["metadata"]["name"] != name]
        if others and generation == self._generation:
            self.current = others[0]["metadata"]["name"]
            # Tables come in bursts, and each restart costs readers time.
            left_s = self._left_s(name)
            if left_s > 0:
                return Ensured(waits="other tables: it restarts when no more come", again_s=left_s)
        for each in others:
            await self._delete(each)
        try:
            made = await self._context.api.create(self._path, wanted)
        except Conflict:
            made = await self._context.api.get(self._path.at(self._namespace, name))
            if "deletionTimestamp" in made["metadata"] or not is_owned(made, self._uid):
                return Ensured(waits=f"SparkApplication/{name} is in the way", again_s=_GOING_S)
        self._cache.observe(None, made)
        self.current, self._generation, self._pending = name, generation, ("", 0.0)
        _log.info("application created", application=name)
        return Ensured(created=name)

    async def remove(self, server: IndexServer) -> None:
        """Have no application. Raises: ApiError."""
        for each in await self._all():
            await self._delete(each)
        self.current, self._generation = "", server.metadata.generation

    async def read(self) -> Json | None:
        """The current application; None if it does not exist. Raises: ApiError."""
        if not self.current:
            return None
        known = self._cache.get(self._namespace, self.current)
        if known is None:
            with suppress(NotFound):
                found = await self._context.api.get(self._path.at(self._namespace, self.current))
                self._cache.observe(None, found)
                known = self._cache.get(self._namespace, self.current)
        return known

    async def pod(self, application: Mapping[str, Any]) -> Json | None:
        """The driver's pod; None if it does not exist. Raises: ApiError."""
        name = self._builder.driver_pod(application)
        with suppress(NotFound):
            return await self._context.api.get(_PODS.at(self._namespace, name))
        return None

    def _left_s(self, name: str) -> float:
        """How long these tables have to stay what they are before they are served."""
        now = time.monotonic()
        if self._pending[0] != name:
            self._pending = (name, now)
        return self._pending[1] + self._context.settings.index_calm_s - now

    async def _all(self) -> list[Json]:
        """Our applications that are not being deleted."""
        found = await self._context.api.list(
            self._path, labels=f"{INDEX_SERVER_LABEL}={self._name}"
        )
        return [
            each
            for each in found["items"]
            if is_owned(each, self._uid) and "deletionTimestamp" not in each["metadata"]
        ]

    async def _delete(self, application: Json) -> None:
        metadata = application["metadata"]
        with suppress(NotFound, Conflict):
            at = self._path.at(self._namespace, metadata["name"])
            await self._context.api.delete(at, uid=metadata["uid"])
