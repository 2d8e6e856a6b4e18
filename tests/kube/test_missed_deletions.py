"""Which operations are cancelled that were deleted while no operator ran."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.jobs.quick_lake import QuickLake, make
from tandem.kube.client.api import ApiError, NotFound
from tandem.kube.client.resources import Body
from tandem.kube.controllers import missed_deletions
from tandem.kube.controllers.missed_deletions import cancel_missed
from tandem.operations import attempt_files, garbage
from tandem.operations.garbage import Pin

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
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch, there: Body | ApiError, *ran: str
) -> list[Body]:
    """The resources of the operations that are cancelled, where each resource is like this."""
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

    monkeypatch.setattr(missed_deletions, "OperationController", Controller)
    context: Any = SimpleNamespace(api=SimpleNamespace(get=get), threads=threads)
    table: Any = SimpleNamespace(uid="uid", table=lake.table())
    await cancel_missed(context, table, "a", "t", ran)
    return found


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
        (GONE, ("TableUpdate/one", *(f"TableUpdate/{n}" for n in range(10_000))), ["one"]),
    ],
)
def test_what_is_cancelled(
    lake: QuickLake,
    monkeypatch: pytest.MonkeyPatch,
    there: Body | ApiError,
    ran: tuple[str, ...],
    names: list[str],
) -> None:
    found = asyncio.run(cancelled(lake, monkeypatch, there, *ran))
    assert [body["metadata"]["name"] for body in found] == names
    assert all(body["metadata"]["namespace"] == "a" for body in found)
    assert all(body["spec"] == {"type": "Minor", "tableRef": {"name": "t"}} for body in found)
