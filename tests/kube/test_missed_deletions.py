"""Which operations are cancelled that were deleted while no operator ran."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from support.jobs.quick_lake import QuickLake, make
from support.lake.log_blocks import LogBlocks
from tandem.errors import ManifestInvalid
from tandem.kube.client.api import ApiError, NotFound
from tandem.kube.client.resources import Body, ResourceCache
from tandem.kube.controllers import table_children
from tandem.kube.controllers.operation import OperationController
from tandem.kube.controllers.table import TableController
from tandem.kube.controllers.table_children import cancel_missed
from tandem.kube.runtime.context import OperatorSettings
from tandem.operations import attempt_files, garbage
from tandem.operations.garbage import Pin
from tandem.operations.ports import SystemClock

RECORDS = {
    "one": ("a", "TableUpdate", "one"),
    "two": ("a", "TableCompaction", "two"),
    "elsewhere": ("b", "TableUpdate", "one"),
}
"""Unfinished operations of a table: namespace, kind and name."""
DELETING = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture
def lake(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> QuickLake:
    def load(_store: Any, path: str, _kind: Any) -> Any:
        namespace, kind, name = RECORDS[path.split("/")[2]]
        identity = {"namespace": namespace, "kind": kind, "name": name}
        return SimpleNamespace(operation_id=path.split("/")[2], spec={"type": "Minor"}, **identity)

    pins = tuple(Pin(name, 1, "update", 0) for name in RECORDS)
    monkeypatch.setattr(garbage, "unfinished", lambda _store: pins)
    monkeypatch.setattr(attempt_files, "load", load)
    return make(tmp_path)


async def cancelled(
    lake: QuickLake,
    monkeypatch: pytest.MonkeyPatch,
    there: Body | ApiError,
    *ran: str,
    seen: Body | None = None,
) -> tuple[list[Body], set[str]]:
    """The resources of the operations that are cancelled, where each resource is like this; and
    the names that are settled. `seen`: what a watch has reported."""
    found: list[Body] = []

    class Controller:
        def __init__(self, _context: Any, body: Body) -> None:
            self.body = body

        async def clean_up(self) -> None:
            found.append(self.body)

    async def get(_path: Any) -> Body:
        if isinstance(there, ApiError):
            raise there
        return there

    async def threads(_table: str, call: Any) -> Any:
        return call()

    monkeypatch.setattr(table_children, "OperationController", Controller)
    cache = ResourceCache()
    if seen is not None:
        cache.update(seen)
    context: Any = SimpleNamespace(
        api=SimpleNamespace(get=get), threads=threads, resource_cache=cache
    )
    table: Any = SimpleNamespace(uid="uid", table=lake.table())
    return found, await cancel_missed(context, table, "a", "t", ran)


BOTH = ("TableUpdate/one", "TableCompaction/two")
GONE = NotFound(404, "NotFound", "in a test")


@pytest.mark.parametrize(
    ("there", "ran", "names"),
    [
        (GONE, BOTH, ["one", "two"]),
        (DELETING, BOTH, ["one", "two"]),
        ({"metadata": {}}, BOTH, []),
        (ApiError(500, "InternalError", "in a test"), BOTH, []),
        (GONE, BOTH[1:], ["two"]),
        (GONE, (), []),
        (GONE, ("TableUpdate/two", "LakeTable/one", "one", "", "TableUpdate/../one"), []),
    ],
)
def test_what_is_cancelled(
    lake: QuickLake,
    monkeypatch: pytest.MonkeyPatch,
    there: Body | ApiError,
    ran: tuple[str, ...],
    names: list[str],
) -> None:
    found, settled = asyncio.run(cancelled(lake, monkeypatch, there, *ran))
    assert [body["metadata"]["name"] for body in found] == names
    assert all(body["metadata"]["namespace"] == "a" for body in found)
    unknown = isinstance(there, ApiError) and there is not GONE
    assert settled == (set() if unknown else set(ran))
    assert all(body["spec"] == {"type": "Minor", "tableRef": {"name": "t"}} for body in found)


def test_what_worked_on_the_log_is_cancelled(
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    LogBlocks(lake.location, "shop", made=True)
    pins = garbage.unfinished
    monkeypatch.setattr(
        garbage, "unfinished", lambda store: pins(store) if store.location != lake.location else ()
    )
    found, _ = asyncio.run(cancelled(lake, monkeypatch, GONE, *BOTH))
    assert [body["metadata"]["name"] for body in found] == ["one", "two"]


@pytest.mark.parametrize("deleting", [True, False])
def test_one_that_was_made_again_meanwhile_goes_on(
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch, deleting: bool
) -> None:
    """Not one that is being deleted, which has no controller."""
    metadata = {"namespace": "a", "name": "one", "uid": "new", "resourceVersion": "2"}
    if deleting:
        metadata |= DELETING["metadata"]
    seen = {"kind": "TableUpdate", "metadata": metadata, "spec": {"tableRef": {"name": "t"}}}
    found, settled = asyncio.run(
        cancelled(lake, monkeypatch, DELETING if deleting else GONE, BOTH[0], seen=seen)
    )
    assert [body["metadata"]["name"] for body in found] == ["one"] * deleting
    assert settled == {BOTH[0]}


def test_many_names_are_looked_into_in_turns(
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"TableUpdate/one", *(f"TableUpdate/n{number:03}" for number in range(150))}
    found = []
    for _ in range(2):
        some, settled = asyncio.run(cancelled(lake, monkeypatch, GONE, *left))
        found += some
        left -= settled
    assert not left
    assert [body["metadata"]["name"] for body in found] == ["one"]


def test_a_damaged_record_hides_no_other(lake: QuickLake, monkeypatch: pytest.MonkeyPatch) -> None:
    load = attempt_files.load

    def damaged(store: Any, path: str, kind: Any) -> Any:
        if path.split("/")[2] == "elsewhere":
            raise ManifestInvalid("in a test")
        return load(store, path, kind)

    monkeypatch.setattr(attempt_files, "load", damaged)
    found, _ = asyncio.run(cancelled(lake, monkeypatch, GONE, *BOTH))
    assert [body["metadata"]["name"] for body in found] == ["one", "two"]


def test_what_the_last_controller_was_cancelling_is_looked_into() -> None:
    """It left while it cancelled that, and nothing else would take it off the status."""
    other = ("a", "other", BOTH[0])
    context: Any = MagicMock(settings=OperatorSettings(), clock=SystemClock())
    context.cancelling = {("a", "t", BOTH[1]), other}
    metadata = {"namespace": "a", "name": "t", "uid": "uid", "resourceVersion": "1"}
    status = {"runningOperations": [BOTH[0]]}

    async def ran() -> set[str]:
        body = {"kind": "LakeTable", "metadata": metadata, "status": status}
        return TableController(context, body)._ran

    assert asyncio.run(ran()) == set(BOTH)
    assert context.cancelling == {other}


@pytest.mark.parametrize(
    ("phase", "attempt", "begun"),
    [
        ("Pending", 0, False),
        ("Planned", 0, True),
        ("Suspended", 1, True),
        ("Failed", 1, False),
    ],
)
def test_one_that_may_have_an_attempt_is_cancelled(phase: str, attempt: int, begun: bool) -> None:
    """A process that dies as it begins one has reported the plan alone."""
    metadata = {"namespace": "a", "name": "one", "uid": "uid", "resourceVersion": "1"}
    status = {"phase": phase, "attempt": attempt}

    async def found() -> bool:
        context: Any = MagicMock(settings=OperatorSettings())
        body = {"kind": "TableUpdate", "metadata": metadata, "spec": {}, "status": status}
        return OperationController(context, body)._has_begun

    assert asyncio.run(found()) is begun
