"""The private parts of kopf are as `tandem.kube.runtime.kopf_internals` uses them.

When the version check fails after an update of kopf: read what changed in the parts that the other
tests name, fix what they report, then add the version to `CHECKED`.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib.metadata
import inspect
import json
import logging
import re
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import kopf
import pytest
from kopf._cogs.aiokits import aiotoggles
from kopf._cogs.clients import api as kopf_client
from kopf._cogs.clients import fetching
from kopf._cogs.clients.errors import APIError
from kopf._cogs.structs.references import NamespaceName, Resource
from kopf._core.reactor import orchestration, queueing
from kopf._core.reactor.inventory import ResourceMemories

import tandem
from tandem.kube.client.api import CUT
from tandem.kube.runtime import kopf_internals

CHECKED = {"1.45.2"}
"""Versions of kopf whose private parts were read and tested."""

DEEP = "[" * 2000 + "]" * 2000
ANYTHING: dict[str, Any] = {
    "settings": kopf.OperatorSettings(),
    "logger": logging.getLogger("kopf"),
}


def parameters(function: Any) -> str:
    return ", ".join(
        ("*" if found.kind is found.KEYWORD_ONLY else "") + name
        for name, found in inspect.signature(function).parameters.items()
    )


def test_this_version_of_kopf_was_checked() -> None:
    assert importlib.metadata.version("kopf") in CHECKED


def test_no_other_module_imports_private_parts_of_kopf() -> None:
    package, tests = Path(tandem.__file__).parent, Path(__file__).parents[1]
    found = set()
    for path in (*package.rglob("*.py"), *tests.rglob("*.py")):
        text = path.read_text()
        if "kopf" not in text:
            continue  # parsing all takes ten seconds
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("kopf._") for name in names):
                found.add(path)
    assert found == {Path(kopf_internals.__file__), Path(__file__)}


def test_no_resource_is_remembered() -> None:
    assert parameters(ResourceMemories.recall) == (
        "self, raw_body, *memobase, *noticed_by_listing, *ephemeral"
    )
    assert parameters(kopf_internals.NoMemories.recall) == parameters(ResourceMemories.recall)
    kept, memories = ResourceMemories(), kopf_internals.NoMemories()
    for each in (kept, memories):
        asyncio.run(each.recall({"metadata": {"uid": "u"}}))
    assert (len(kept._items), len(memories._items)) == (1, 0)


def test_tasks_of_kopf_are_recognized() -> None:
    async def ours() -> None:
        await asyncio.Event().wait()

    async def look() -> None:
        roots = await kopf.spawn_tasks(registry=kopf.OperatorRegistry(), clusterwide=True)
        event = asyncio.Event()
        others = [asyncio.create_task(ours()), asyncio.ensure_future(event.wait())]
        not_of_kopf = kopf_internals.NotOfKopf()
        assert [root in not_of_kopf for root in roots] == [False] * len(roots)
        assert [other in not_of_kopf for other in others] == [True, True]
        for task in (*roots, *others):
            task.cancel()
        await asyncio.gather(*roots, *others, return_exceptions=True)

    asyncio.run(look())


class Answer:
    """An HTTP response, as far as kopf's client reads it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.content = self

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def json(self, *, loads: Any = json.loads) -> Any:
        return loads(self._text)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        yield self._text.encode() + b"\n"


def test_its_client_reads_deep_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parameters(kopf_client.request) == (
        "method, url, *settings, *payload, *headers, *timeout, *backoffs, *context, *logger"
    )

    async def request(*_: Any, **__: Any) -> Answer:
        return Answer(DEEP)

    async def read() -> list[Any]:
        streamed = [found async for found in kopf_client.stream("/things", **ANYTHING)]
        return [await kopf_client.get("/things", **ANYTHING), *streamed]

    monkeypatch.setattr(kopf_client, "request", request)
    monkeypatch.setattr(kopf_client, "json", json)
    kopf_internals.read_lean_json()
    assert [CUT in json.dumps(found) for found in asyncio.run(read())] == [True, True]
    wrapped = kopf_client.request
    kopf_internals.read_lean_json()
    assert kopf_client.request is wrapped, "it is wrapped once"


def test_its_client_keeps_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the text of a list, and is freed without a search for garbage."""
    alive: weakref.WeakSet[Answer] = weakref.WeakSet()

    async def request(*_: Any, **__: Any) -> Answer:
        answer = Answer("{}")
        vars(answer).pop("content")  # refers to it
        alive.add(answer)
        return answer

    async def read() -> None:
        await kopf_client.get("/things", **ANYTHING)
        assert not alive

    monkeypatch.setattr(kopf_client, "request", request)
    monkeypatch.setattr(kopf_client, "json", json)
    kopf_internals.read_lean_json()
    gc.disable()
    try:
        asyncio.run(read())
    finally:
        gc.enable()


OBJECT: dict[str, Any] = {
    "metadata": {"uid": "u", "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]},
    "spec": {"managedFields": "a user's"},
}
LEAN: dict[str, Any] = {"metadata": {"uid": "u"}, "spec": {"managedFields": "a user's"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OBJECT, LEAN),
        ({"type": "ADDED", "object": OBJECT}, {"type": "ADDED", "object": LEAN}),
        (
            {"metadata": {"resourceVersion": "7"}, "items": [OBJECT, LEAN]},
            {"metadata": {"resourceVersion": "7"}, "items": [LEAN, LEAN]},
        ),
        ({"metadata": {}, "items": []}, {"metadata": {}, "items": []}),
        ({"metadata": None, "items": None}, {"metadata": None, "items": None}),
        ({"type": "BOOKMARK", "object": None}, {"type": "BOOKMARK", "object": None}),
        ([OBJECT], [OBJECT]),
    ],
    ids=["object", "event", "list", "empty list", "null", "null event", "array"],
)
def test_kopf_reads_no_managed_fields(text: object, expected: object) -> None:
    assert kopf_internals.lean_loads(json.dumps(text)) == expected


def test_its_watches_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "await spawn_missing_watchers(" in inspect.getsource(orchestration.adjust_tasks)
    spawn = orchestration.spawn_missing_watchers
    monkeypatch.setattr(orchestration, "spawn_missing_watchers", spawn)  # restored at the end
    kopf_internals.note_watches()
    wrapped = orchestration.spawn_missing_watchers
    kopf_internals.note_watches()
    assert orchestration.spawn_missing_watchers is wrapped, "it is wrapped once"

    async def look() -> None:
        ends = asyncio.Event()

        async def watch(*, namespace: str, **_: Any) -> None:
            await ends.wait()

        monkeypatch.setattr(queueing, "watcher", watch)
        paused = aiotoggles.ToggleSet(any)
        ensemble = orchestration.Ensemble(
            peering_missing=await paused.make_toggle(name="peering"),
            operator_paused=paused,
            operator_indexed=aiotoggles.ToggleSet(all),
        )
        other = asyncio.create_task(ends.wait())
        a, b = NamespaceName("a"), NamespaceName("b")
        for namespaces in ([a], [a, b]):
            await orchestration.spawn_missing_watchers(
                processor=AsyncMock(),
                settings=kopf.OperatorSettings(),
                indexed_resources=(),
                watched_resources=[Resource("group", "v1", "things", namespaced=True)],
                watched_namespaces=namespaces,
                ensemble=ensemble,
            )
            found = kopf_internals.watch_tasks()
            assert {task.get_name() for task in found} == {
                f"watcher for things.v1.group@{namespace}" for namespace in namespaces
            }
        ends.set()
        await asyncio.gather(other, *found)
        assert kopf_internals.watch_tasks() == set(), "they have ended"

    asyncio.run(look())


def test_it_says_what_it_has_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [([{"metadata": {"uid": "a"}}, {"metadata": {"uid": "b"}}], "7"), ([], "7")]

    async def fetch(*, resource: Any, namespace: Any, **_: Any) -> AsyncIterator[Any]:
        for page in pages if namespace == "here" else ():
            yield page

    monkeypatch.setattr(fetching, "fetch_objs", fetch)
    kopf_internals.note_lists()
    wrapped = fetching.fetch_objs
    kopf_internals.note_lists()
    assert fetching.fetch_objs is wrapped, "it is wrapped once"
    things = Resource("tandem.dev", "v1", "things")

    async def look() -> list[kopf_internals.Listed]:
        found: list[kopf_internals.Listed] = []
        kopf_internals.listed_to(found.append)
        for namespace in ("here", "empty"):
            options: Any = {"resource": things, "namespace": namespace, **ANYTHING}
            assert [page async for page in wrapped(**options)] == (
                pages if namespace == "here" else []
            )
        return found

    listed = kopf_internals.Listed
    assert asyncio.run(look()) == [
        listed("things", "here", frozenset({"a", "b"}), "7"),
        listed("things", "empty", frozenset(), ""),
    ]


def test_a_root_task_starts_its_watches_and_fails_with_the_first_that_dies() -> None:
    assert "await aiotasks.reraise(ensemble_done)" in inspect.getsource(orchestration.orchestrator)
    starts = r'name="multidimensional multitasker", .*\s+coro=orchestration\.orchestrator\('
    assert re.search(starts, inspect.getsource(kopf.spawn_tasks))

    async def look() -> str:
        roots = await kopf.spawn_tasks(registry=kopf.OperatorRegistry(), clusterwide=True)
        for root in roots:
            root.cancel()
        await asyncio.gather(*roots, return_exceptions=True)
        return kopf_internals.starter_of_watches(roots).get_name()

    assert asyncio.run(look()) == "multidimensional multitasker"


@pytest.mark.parametrize(("status", "expired"), [(410, True), (403, False)])
def test_its_errors_have_a_status(status: int, *, expired: bool) -> None:
    error = APIError("refused", status=status, headers={})
    assert kopf_internals.is_expired_watch(error) is expired
