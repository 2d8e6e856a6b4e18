"""The private parts of kopf that we use. No other module may use private parts of kopf.

kopf is pinned to a minor version; `tests/kube/test_kopf_internals.py` names the patch version that
was checked, and checks that each part is as it is used here.

| part of kopf | used for |
|---|---|
| `ResourceMemories`: `recall`, `_items`, `_build_key` | which resources it remembers |
| `OperatorRegistry._spawning._handlers`, `requires_finalizer` | where it puts a finalizer |
| `_cogs.clients.api`: `request`, `json` | how it reads JSON, and what it leaves out |
| `Patch.as_json_patch`, `_original`, the functions of `finalizers` | what a patch compares |
| `orchestration.spawn_missing_watchers`, `Ensemble.watcher_tasks` | its watches |
| the name of a task | which one starts the watches |
| `status` of its API errors | that a watch has expired |
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Collection, Container
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import kopf
from kopf._cogs.clients import api as kopf_client
from kopf._cogs.structs import finalizers
from kopf._cogs.structs.patches import Patch
from kopf._core.reactor import orchestration
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from tandem.kube.client.api import loads
from tandem.kube.client.resources import TABLE_KIND, is_active
from tandem.spec.common import GROUP

_GONE = 410
_FINALIZERS = (finalizers.block_deletion, finalizers.allow_deletion)
_STARTER_TASK = "multidimensional multitasker"
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakSet[asyncio.Task[Any]]]
_watches = weakref.WeakKeyDictionary()


class MinimalMemories(ResourceMemories):
    """Keeps only LakeTables, IndexServers, and operations that are active or still have a daemon.

    kopf keeps every whole object that it has ever seen. Tens of thousands of operations that have
    ended need not be kept.
    """

    async def recall(
        self,
        raw_body: Any,
        *,
        memobase: Any = None,
        noticed_by_listing: bool = False,
        ephemeral: bool = False,
    ) -> ResourceMemory:
        known = self._items.get(self._build_key(raw_body))
        busy = known is not None and known.daemons_memory.running_daemons
        if not busy and not _is_needed(raw_body):
            self._items.pop(self._build_key(raw_body), None)
            ephemeral = True
        return await super().recall(
            raw_body,
            memobase=memobase,
            noticed_by_listing=noticed_by_listing,
            ephemeral=ephemeral,
        )


def _is_needed(body: Any) -> bool:
    if not str(body.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return False
    return body["kind"] == TABLE_KIND or is_active(body)


def without_finalizer(registry: kopf.OperatorRegistry, daemons: Container[str]) -> None:
    """Keep kopf from adding a finalizer to the resources of these daemons (ids), which is its
    default. kopf removes a finalizer that an earlier release has added."""
    handlers = registry._spawning._handlers
    handlers[:] = [
        replace(handler, requires_finalizer=False) if handler.id in daemons else handler
        for handler in handlers
    ]


def read_lean_json() -> None:
    """Have kopf's client read JSON with `lean_loads`, for the rest of the process. kopf has no
    setting for this."""
    inner = kopf_client.request
    if getattr(inner, "reads_lean", False):
        return

    @functools.wraps(inner)
    async def request(*args: Any, **options: Any) -> Any:
        response: Any = await inner(*args, **options)
        # Not its bound method, which would refer to it: it holds what it has read, megabytes of a
        # list, until Python looks for such cycles.
        plain, itself = type(response).json, weakref.proxy(response)
        response.json = lambda: plain(itself, loads=lean_loads)
        return response

    vars(request)["reads_lean"] = True
    kopf_client.request = request
    vars(kopf_client)["json"] = SimpleNamespace(loads=lean_loads)


def lean_loads(text: str | bytes) -> Any:
    """`loads` of a list, an event of a watch or an object, without
    `managedFields`, which are long, and which nothing here reads."""
    found = loads(text)
    if isinstance(found, dict):
        items = found.get("items")
        for item in items if isinstance(items, list) else (found.get("object", found),):
            if isinstance(item, dict) and isinstance(item.get("metadata"), dict):
                item["metadata"].pop("managedFields", None)
    return found


def compare_only_finalizers() -> None:
    """Have kopf compare only the metadata of an object whose finalizers it changes, for the rest of
    the process. It copies and compares the whole object, also for an empty patch, which takes
    longer than the request."""
    inner = Patch.as_json_patch
    if getattr(inner, "of_metadata", False):
        return

    @functools.wraps(inner)
    def as_json_patch(patch: Patch, body: Any = None) -> Any:
        if not patch:
            return []
        whole = patch._original if body is None else body
        only_finalizers = not dict(patch) and all(
            getattr(fn, "func", None) in _FINALIZERS for fn in patch.fns
        )
        if only_finalizers and whole is not None and "metadata" in whole:
            return inner(patch, {"metadata": whole["metadata"]})
        return inner(patch, body)

    vars(as_json_patch)["of_metadata"] = True
    setattr(Patch, "as_json_patch", as_json_patch)  # noqa: B010 - mypy refuses an assignment


def note_watches() -> None:
    """Have kopf note the watches that it starts, for the rest of the process. Tables have thousands
    of tasks: a search among all, again and again, takes a part of the event loop's time."""
    inner = orchestration.spawn_missing_watchers
    if getattr(inner, "notes", False):
        return

    @functools.wraps(inner)
    async def spawn(*, ensemble: orchestration.Ensemble, **options: Any) -> None:
        try:
            await inner(ensemble=ensemble, **options)
        finally:
            noted = _watches.setdefault(asyncio.get_running_loop(), weakref.WeakSet())
            noted.update(ensemble.watcher_tasks.values())

    vars(spawn)["notes"] = True
    setattr(orchestration, "spawn_missing_watchers", spawn)  # noqa: B010 - mypy refuses an assignment


def watch_tasks() -> set[asyncio.Task[Any]]:
    """kopf's watches in this event loop that have not ended, if it notes them."""
    noted = _watches.get(asyncio.get_running_loop(), ())
    return {task for task in noted if not task.done()}


def starter_of_watches(roots: Collection[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Of kopf's root tasks, the one that starts the watches. It fails as soon as one has died."""
    return next(task for task in roots if task.get_name() == _STARTER_TASK)


def is_expired_watch(error: Exception) -> bool:
    """Whether kopf ended with this answer to a watch (410 Gone), which it does not expect."""
    return getattr(error, "status", None) == _GONE
