"""A LakeTable whose spec changes while its log is read: nothing is reported for the new spec
before the operator has observed it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.cluster.recorder import recording
from support.jobs import quick_lake
from support.waiting import await_that
from tandem.kube.tables.context import TableContext
from tandem.spec.table import LakeTable

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

TABLE = "LakeTable"


class Held:
    """Stops the next look at the first generation until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed, self.entered, self.left = (threading.Event() for _ in range(3))
        really = TableContext.refresh

        async def refresh(table: TableContext, resource: LakeTable) -> None:
            if self.armed.is_set() and resource.metadata.generation == 1:
                self.entered.set()
                await asyncio.to_thread(self.left.wait, 20.0)
            await really(table, resource)

        monkeypatch.setattr(TableContext, "refresh", refresh)


def test_ready_is_not_reported_for_an_unobserved_spec(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Resources(cluster, cluster.namespace("generation"))
    lake = quick_lake.make(tmp_path / "t", 2)
    held = Held(monkeypatch)
    settings = quick_settings(cluster, space.namespace)
    with (
        operating(settings, HeldJobs(), here=True),
        recording(cluster, space.namespace) as recorder,
    ):
        space.table("t", lake.location)
        space.await_reason(TABLE, "t", "Adopted")
        held.armed.set()
        assert held.entered.wait(20.0)
        changed = {"spec": {"storage": {"secretRef": {"name": "absent"}}}}
        assert space.patch(TABLE, "t", changed)["metadata"]["generation"] == 2
        held.left.set()
        status = space.await_status(TABLE, "t", lambda s: s["observedGeneration"] == 2)
        assert condition(status, "Ready")["status"] == "False"

        def seen() -> list[int]:
            return [body["status"]["observedGeneration"] for body in recorder.of(TABLE, "t")]

        await_that(lambda: 2 in seen(), seen)
        statuses = [body["status"] for body in recorder.of(TABLE, "t")]
        for each in statuses:
            ready = [c for c in each.get("conditions", ()) if c["type"] == "Ready"]
            assert ("True", 2) not in [(c["status"], c["observedGeneration"]) for c in ready]
            if each["observedGeneration"] == 2:
                assert ready[0]["status"] == "False"
