"""A watch without end: list, watch, and list again whenever the stream has a gap.

For those who watch without kopf. Must not know what a resource means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from tandem.kube.client.api import Api, ApiError, Gone, ResourcePath
from tandem.kube.client.json_depth import Json

SYNCED = "SYNCED"
"""The type of the event after every whole listing; its object is empty."""
_PAUSE_S = 0.5


async def follow(
    api: Api, path: ResourcePath, *, labels: str = "", fields: str = ""
) -> AsyncIterator[tuple[str, Json]]:
    """`(ADDED|MODIFIED|DELETED, object)` for ever; what vanished unseen comes as DELETED with
    the last object known. An object may come twice in the same version."""
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
                # Lists leave out what their items have in common.
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
                await asyncio.sleep(_PAUSE_S / 5)  # whatever ends the streams: no mad loop
        except Gone:
            continue
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(_PAUSE_S)
