"""The remaining work on operations that have ended: deleting them when their TTL is over, and
updating `observedGeneration` after a later change of their spec, which their status writer, gone
with their controller, does no more. Needs no task per resource.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

import structlog

from tandem.kube.client.api import Api, ApiError, Conflict, NotFound
from tandem.kube.client.resources import (
    CachedResource,
    ResourceCache,
    generation_of,
    path,
    status_of,
    version_of,
)
from tandem.operations.ports import Clock
from tandem.spec.status import unix_ms

_log = structlog.get_logger("tandem.kube.controllers.ended")
_RETRY_S = 10.0


class EndedController:
    """Operations that have ended: `note` adds one, `run` works until it is cancelled."""

    def __init__(
        self, api: Api, resource_cache: ResourceCache, clock: Clock, may_write: Callable[[], bool]
    ) -> None:
        self._api = api
        self._resource_cache = resource_cache
        self._clock = clock
        self._may_write = may_write
        self._due: list[tuple[float, str]] = []
        self._wake = asyncio.Event()

    def note(self, summary: CachedResource) -> None:
        """Take note of a resource as it is now; one that has not ended is ignored."""
        if not summary.ended or summary.deleting:
            return
        due = 0.0 if _is_stale(summary) else due_s(summary)
        if due is not None:
            heapq.heappush(self._due, (due, summary.uid))
            if self._due[0][1] == summary.uid:
                self._wake.set()

    async def run(self) -> None:
        """Delete and update, one after the other."""
        while True:
            self._wake.clear()
            now = self._clock.now_ms() / 1000
            while self._due and self._due[0][0] <= now:
                _, uid = heapq.heappop(self._due)
                await self._observe(uid, now)
                await self._delete(uid, now)
            left = self._due[0][0] - self._clock.now_ms() / 1000 if self._due else None
            try:
                async with asyncio.timeout(None if left is None else max(0.01, left)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _delete(self, uid: str, now_s: float) -> None:
        summary = self._resource_cache.by_uid(uid)
        if summary is None or not summary.ended or summary.deleting or not self._may_write():
            return
        due = due_s(summary)
        if due is None or due > now_s:
            return  # changed meanwhile, and noted again
        try:
            await self._api.delete(
                path(*summary.key), uid=uid, resource_version=summary.resource_version
            )
            _log.info("deleted after its TTL", **_named(summary))
        except (NotFound, Conflict):
            return  # gone, or changed: then another event follows
        except ApiError as error:
            _log.warning("not deleted yet", **_named(summary), problem=str(error))
            heapq.heappush(self._due, (now_s + _RETRY_S, uid))

    async def _observe(self, uid: str, now_s: float) -> None:
        summary = self._resource_cache.by_uid(uid)
        if summary is None or not (summary.ended and _is_stale(summary) and self._may_write()):
            return
        where = path(*summary.key)
        try:
            body = await self._api.get(where)
            if body["metadata"]["uid"] != uid:
                return
            generation = generation_of(body)
            conditions = [
                {**item, "observedGeneration": generation}
                for item in status_of(body).get("conditions") or ()
            ]
            status = {"observedGeneration": generation, "conditions": conditions}
            version = version_of(body)
            await self._api.patch_status(where, status, uid=uid, resource_version=version)
        except (NotFound, Conflict):
            return
        except ApiError as error:
            _log.warning("generation not observed yet", **_named(summary), problem=str(error))
            heapq.heappush(self._due, (now_s + _RETRY_S, uid))


def _named(summary: CachedResource) -> dict[str, str]:
    """What each log line says of a resource."""
    return {
        "kind": summary.kind,
        "namespace": summary.namespace,
        "name": summary.name,
        "operation": summary.operation,
    }


def _is_stale(summary: CachedResource) -> bool:
    return summary.observed_generation != summary.generation


def due_s(summary: CachedResource) -> float | None:
    """When its TTL is over, in Unix seconds; None for never."""
    ended_ms = unix_ms(summary.completed)
    return None if summary.ttl_s is None or ended_ms is None else ended_ms / 1000 + summary.ttl_s
