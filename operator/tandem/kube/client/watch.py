"""A watch without end: list, watch, and list again whenever the stream has a gap.

For callers that watch without kopf. Does not interpret the objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from tandem.json_types import Json
from tandem.kube.client.api import Api, ApiError, Gone, ResourcePath

SYNCED = "SYNCED"
"""The type of the event after every whole listing; its object is empty."""
_PAUSE_S = 0.5


async def follow(
    api: Api, path: ResourcePath, *, labels: str = "", fields: str = ""
) -> AsyncIterator[tuple[str, Json]]:
    """`(ADDED|MODIFIED|DELETED, object)` without end. An object whose deletion was missed is
    reported as DELETED with its last known content. An object may be reported twice in the same
    version."""
    known: dict[str, Json] = {}
    while True:
        try:
            listed = await api.list(path, labels=labels, fields=fields)
            version = listed["metadata"]["resourceVersion"]
            there = {item["metadata"]["uid"]: item for item in listed["items"]}
            for uid in known.keys() - there.keys():
                yield "DELETED", known.pop(uid)
            for uid, item in there.items():
                kind = "MODIFIED" if uid in known else "ADDED"
                known[uid] = item
                # Items of a list lack `apiVersion` and `kind`.
                item.setdefault("apiVersion", listed["apiVersion"])
                item.setdefault("kind", str(listed["kind"]).removesuffix("List"))
                yield kind, item
            yield SYNCED, {}
            while True:
                async for kind, item in api.watch(
                    path, resource_version=version, labels=labels, fields=fields
                ):
                    version = item["metadata"]["resourceVersion"]
                    if kind == "BOOKMARK":
                        continue
                    uid = item["metadata"]["uid"]
                    if kind == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = item
                    yield kind, item
                await asyncio.sleep(_PAUSE_S / 5)  # no busy loop if streams end at once
        except Gone:
            continue
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(_PAUSE_S)
