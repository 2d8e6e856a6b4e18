"""The private parts of kopf that we use. No other module may use private parts of kopf.

kopf is pinned to a minor version; `tests/kube/test_kopf_internals.py` names the patch version that
was checked, and checks that each part is as it is used here.

| part of kopf | used for |
|---|---|
| `ResourceMemories.recall` | which resources it remembers |
| `_cogs.clients.api`: `request`, `json` | how it reads JSON, and what it leaves out |
| `orchestration.spawn_missing_watchers`, `Ensemble.watcher_tasks` | its watches |
| `fetching.fetch_objs` | what it has listed |
| the name of a task | which one starts the watches |
| the files of its coroutines | which tasks are its own |
| `status` of its API errors | that a watch has expired |
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kopf
from kopf._cogs.clients import api as kopf_client
from kopf._cogs.clients import fetching
from kopf._core.reactor import orchestration
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from tandem.kube.client.api import loads

_GONE = 410
_KOPF = f"{Path(kopf.__file__).parent}/"
_STARTER_TASK = "multidimensional multitasker"
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakSet[asyncio.Task[Any]]]
_watches = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Listed:
    """The uids of all objects of a kind, by its plural, in a namespace (None: in all), as of a
    resource version."""

    plural: str
    namespace: str | None
    uids: frozenset[str]
    version: str


_listeners: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[Listed], None]]
_listeners = weakref.WeakKeyDictionary()


class NoMemories(ResourceMemories):
    """kopf keeps every whole object that it has ever seen. Handlers of events need none of them."""

    async def recall(
        self,
        raw_body: Any,
        *,
        memobase: Any = None,
        noticed_by_listing: bool = False,
        ephemeral: bool = True,  # noqa: ARG002 - kopf's
    ) -> ResourceMemory:
        return await super().recall(
            raw_body, memobase=memobase, noticed_by_listing=noticed_by_listing, ephemeral=True
        )


class NotOfKopf(Collection[asyncio.Task[Any]]):
    """All tasks that kopf has not made. At its end it would cancel all tasks that were begun since
    its start, also those of controllers, which leave their resources to the next run, and of child
    processes, which outlive this one."""

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, asyncio.Task):
            return False
        code = getattr(task.get_coro(), "cr_code", None)
        return code is None or not code.co_filename.startswith(_KOPF)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return (task for task in asyncio.all_tasks() if task in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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


def note_lists() -> None:
    """Have kopf say what it has listed (`listed_to`), for the rest of the process. When a watch has
    to begin with a list again, kopf reports what is there, and not what was deleted meanwhile."""
    inner = fetching.fetch_objs
    if getattr(inner, "notes", False):
        return

    @functools.wraps(inner)
    async def fetch(*, resource: Any, namespace: Any, **options: Any) -> AsyncIterator[Any]:
        uids, version = set[str](), ""
        async for items, version in inner(resource=resource, namespace=namespace, **options):
            uids.update(item["metadata"]["uid"] for item in items)
            yield items, version
        listener = _listeners.get(asyncio.get_running_loop())
        if listener is not None:
            listener(Listed(resource.plural, namespace, frozenset(uids), str(version)))

    vars(fetch)["notes"] = True
    setattr(fetching, "fetch_objs", fetch)  # noqa: B010 - mypy refuses an assignment


def listed_to(listener: Callable[[Listed], None]) -> None:
    """Have this called with each list of kopf, in this event loop."""
    _listeners[asyncio.get_running_loop()] = listener


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
