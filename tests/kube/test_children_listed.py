"""Which compactions of a table exist at the start: asked again after an error, ever more rarely."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandem.kube.client.api import ApiError
from tandem.kube.controllers.table_children import Children
from tandem.kube.runtime.context import OperatorContext
from tandem.spec.table import LakeTable

TABLE = LakeTable.model_validate(
    {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "LakeTable",
        "metadata": {"name": "t"},
        "spec": {"location": "file:///t"},
    }
)


def test_after_errors_children_are_listed_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    listed: list[float] = []
    broken = True

    async def list_(*_: Any, **__: Any) -> dict[str, Any]:
        listed.append(now)
        if broken:
            raise ApiError(503, "ServiceUnavailable", "away")
        return {"items": []}

    async def look() -> None:
        nonlocal now, broken
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        context = cast(OperatorContext, SimpleNamespace(api=SimpleNamespace(list=list_)))
        children = Children(context, "uid", lambda _: True)
        while now < 300:
            assert not await children.are_known(TABLE, ())
            assert not await children.are_known(TABLE, ())  # no request in between
            now += children.look_again_s
        assert listed == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
        broken = False
        assert await children.are_known(TABLE, ())

    asyncio.run(look())
