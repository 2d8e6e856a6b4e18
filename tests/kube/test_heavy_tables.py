"""A table whose log takes more memory than a child process may, under a real API server: it costs
itself alone, says so, and is taken up again once it is smaller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.jobs import quick_lake
from support.waiting import await_that
from tandem.kube.children.start import LEAST_MEMORY

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

TABLE = "LakeTable"
OPERATION = "TableCompaction"


def test_a_table_that_is_too_large_costs_itself_alone_and_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    space = Resources(cluster, cluster.namespace("heavy"))
    heavy, small = quick_lake.make(tmp_path / "heavy"), quick_lake.make(tmp_path / "small")
    bomb = heavy.path / f"_delta_log/{heavy.version + 1:020d}.json"
    heavy.log_raw(x=[[]] * 4_000_000)  # 64 bytes each, and 8 for the reference
    settings = quick_settings(cluster, space.namespace, table_memory=LEAST_MEMORY)
    with operating(settings, HeldJobs()):
        space.table("heavy", heavy.location)
        found = space.await_reason(TABLE, "heavy", "TooLarge")
        assert found["phase"] == "Failed"
        ready = condition(found, "Ready")
        assert "Raise --table-memory" in ready["message"]
        assert condition(found, "Stalled")["status"] == "True"
        space.compaction("waits", "heavy")
        waiting = space.await_reason(OPERATION, "waits", "TooLarge")
        assert waiting["phase"] == "Pending"
        # The other one notices nothing.
        space.table("small", small.location)
        space.compaction("works", "small")
        assert space.await_end(OPERATION, "works")["phase"] == "Succeeded"
        url = f"/api/v1/namespaces/{space.namespace}/events"

        def events() -> list[str]:
            return [event["reason"] for event in cluster.request("GET", url)["items"]]

        await_that(lambda: "TooLarge" in events(), lambda: f"{events()}")
        bomb.unlink()
        space.await_phase(TABLE, "heavy", "Succeeded")
        assert space.await_end(OPERATION, "waits")["phase"] == "Succeeded"
    small.assert_clean()
