"""The Service and the application of one IndexServer in the cluster, as they should be.

An application is never changed: one that should be another is deleted, and its successor created.
Both belong to the resource, so that nothing is left when that is deleted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from tandem.errors import InvalidSpec
from tandem.json_types import Json
from tandem.kube.client.api import Conflict, NotFound, ResourcePath
from tandem.kube.controllers.index_server import application as applications
from tandem.kube.controllers.operation.spark_jobs import ApplicationCache
from tandem.kube.runtime.context import OperatorContext
from tandem.spark.application.port import ApplicationBuilder
from tandem.spec.common import ResourceKey
from tandem.spec.index.server import IndexServer
from tandem.spec.labels import INDEX_SERVER_LABEL

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
        api, wanted = self._context.api, applications.service(server, self._uid)
        at = _SERVICES.at(server.namespace, server.service_name)
        try:
            there = await api.get(at)
        except NotFound:
            there = await api.create(_SERVICES.at(server.namespace), wanted)
        if not self._is_ours(there):
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
            if "deletionTimestamp" in made["metadata"] or not self._is_ours(made):
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
            if self._is_ours(each) and "deletionTimestamp" not in each["metadata"]
        ]

    async def _delete(self, application: Json) -> None:
        metadata = application["metadata"]
        with suppress(NotFound, Conflict):
            at = self._path.at(self._namespace, metadata["name"])
            await self._context.api.delete(at, uid=metadata["uid"])

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        owners = found["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == self._uid for owner in owners)
