"""The calls about the ConfigMaps of pools, from the engine's threads. Decides nothing.

A refusal by RBAC is `PoolsUnusable` where a job can still have an application of its own, and
`ClusterUnavailable` afterwards, as for every right that is missing while a job runs. So is what
refuses a new ConfigMap: a quota, a webhook that is down, too many requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from tandem.errors import ClusterUnavailable
from tandem.jobs.pool import Patch, PoolRecord, record_of
from tandem.kube.client.api import (
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ResourcePath,
)
from tandem.kube.controllers.spark_jobs import call_on

T = TypeVar("T")

_CONFIG_MAPS: Final = ResourcePath("", "v1", "configmaps")
_SECRETS: Final = ResourcePath("", "v1", "secrets")


class PoolsUnusable(Exception):
    """No pool can be used for now: jobs have applications of their own."""


class ConfigMaps:
    """Thread-safe; never to be called on the event loop's own thread. All methods raise
    `ClusterUnavailable` if there is no answer."""

    def __init__(self, api: Api, loop: asyncio.AbstractEventLoop) -> None:
        self._api, self._loop = api, loop

    def list(self, namespace: str, labels: str) -> list[PoolRecord]:
        """Raises: PoolsUnusable."""
        path = _CONFIG_MAPS.at(namespace)
        found = self._call(self._or_unusable(self._api.list(path, labels=labels)))
        return [record_of(body) for body in found["items"]]

    def create(self, namespace: str, body: Mapping[str, Any]) -> PoolRecord:
        """Raises: PoolsUnusable."""
        return record_of(self._call(self._or_unusable(self._create(namespace, body))))

    def secret_version(self, namespace: str, name: str) -> str:
        """Raises: PoolsUnusable if there is no such Secret."""
        path = _SECRETS.at(namespace, name)
        metadata = self._call(self._or_unusable(self._api.get(path)))["metadata"]
        return f"{metadata['uid']}/{metadata['resourceVersion']}"

    def get(self, namespace: str, name: str) -> PoolRecord | None:
        """None if it does not exist."""
        try:
            return record_of(self._call(self._api.get(_CONFIG_MAPS.at(namespace, name))))
        except NotFound:
            return None

    def patch(self, namespace: str, name: str, patch: Patch | Mapping[str, Any]) -> bool:
        """False, with nothing changed, if a test of the patch fails, or the ConfigMap is gone.

        Raises `ClusterUnavailable` also if an earlier try may have changed it: a job that was
        posted must not be taken for one that does not exist, since it reads its plan later."""
        try:
            self._call(self._api.patch(_CONFIG_MAPS.at(namespace, name), patch))
        except (Invalid, Conflict, NotFound) as error:
            if error.unsure:
                raise _no_answer(error) from error
            return False
        return True

    def delete(self, namespace: str, pool: PoolRecord) -> None:
        with suppress(NotFound, Conflict):
            self._call(self._api.delete(_CONFIG_MAPS.at(namespace, pool.name), uid=pool.uid))

    async def _create(self, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._api.create(_CONFIG_MAPS.at(namespace), body)
        except ApiError as error:
            # As for applications (docs/decisions/0170); but nothing waits, since no pool is needed.
            if error.status == 429 or error.webhook_failed:
                raise PoolsUnusable(error.message) from error
            raise

    async def _or_unusable(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await call
        except (Forbidden, Invalid, NotFound) as error:
            raise PoolsUnusable(error.message) from error

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Raises: Invalid, Conflict, NotFound."""
        try:
            return call_on(self._loop, call)
        except (Invalid, Conflict, NotFound):
            raise
        except ApiError as error:
            raise _no_answer(error) from error


def _no_answer(error: ApiError) -> ClusterUnavailable:
    return ClusterUnavailable(
        "the Kubernetes API did not answer, or refuses the operator's request",
        found=error,
        remedy="Check the operator's rights on ConfigMaps",
    )
