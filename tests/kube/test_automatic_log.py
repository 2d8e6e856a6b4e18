"""Automatic log compaction and merge under a real API server: the user creates nothing but the
LakeTable, and writers append upserts. Jobs run without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube.clocks import ShiftedClock
from support.cluster.operator_thread import HeldJobs, Resources, two_leaders
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.log_blocks import LogBlocks
from support.lake.rows import id_in, join, rows, without
from support.waiting import await_that
from tandem.mergelog import open_log
from tandem.mergelog.log_table import state_of

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
UPSERTED = tuple((n, 0, -n) for n in (1, 2, 30))
VIEW = join(without(rows(range(20)), id_in([1, 2])), UPSERTED)
"""Two loads, and upserts of two of their rows and of a new one."""


@dataclass
class Stage:
    space: Resources
    folder: Path
    clock: ShiftedClock
    _made: int = 0

    def table(self, **policy: Any) -> LoggedTable:
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name, loads=2)
        self.space.table(name, lake.location, mergeOnRead={"keys": ["id"], **policy})
        self.space.await_reason("LakeTable", name, "Adopted")
        return LoggedTable(self.space, name, lake, LogBlocks(lake.location, "shop"))


@dataclass
class LoggedTable:
    """A table whose log is kept by the operator alone."""

    space: Resources
    name: str
    lake: QuickLake
    log: LogBlocks

    def upsert(self, *ids: int) -> None:
        for id_ in ids:
            self.log.upsert(((id_, 0, -id_),))

    def children(self, kind: str) -> list[Json]:
        return self.space.children(kind, self.name)

    def await_child(self, kind: str) -> Json:
        """Until exactly one of a kind exists, and has succeeded."""

        def there() -> bool:
            phases = [c.get("status", {}).get("phase") for c in self.children(kind)]
            return phases == ["Succeeded"]

        await_that(there, lambda: (self.children(kind), self.status()))
        return self.children(kind)[0]

    def status(self) -> Json:
        return self.space.status("LakeTable", self.name)

    def await_log(self, **wanted: Any) -> Json:
        """Until the status of the log has these fields; `why` is a part of the reason."""
        why = wanted.pop("why", "")

        def says(status: Json) -> bool:
            log = status.get("log") or {}
            if why not in (log.get("next") or {}).get("why", ""):
                return False
            return all(log.get(key) == value for key, value in wanted.items())

        found: Json = self.space.await_status("LakeTable", self.name, says)["log"]
        return found


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """With two operators that do not know of each other, but share the lock store."""
    space = Resources(cluster, cluster.namespace("log"))
    made = Stage(space, tmp_path, ShiftedClock())
    jobs = HeldJobs()
    with two_leaders(space, jobs, made.clock):
        yield made


def test_L13_upserts_are_stitched_and_merged_without_a_user(stage: Stage) -> None:
    table = stage.table(logCompaction={"minBlocks": 3, "minInterval": "1ms"}, merge={})
    unmerged = stage.table()
    table.await_log(newestInstant=0, blocks=0, why="The table holds all records of the log.")
    table.upsert(1, 2)
    waits = table.await_log(unmergedBlocks=2, why="2 of minBlocks (3) instants")
    assert (waits["smallBlocks"], waits["deadPercent"]) == (2, 0)
    assert waits["next"]["what"] == "LogMerge of 2 blocks"
    assert table.children("LogCompaction") == []

    table.upsert(30)
    compaction = table.await_child("LogCompaction")
    assert compaction["spec"]["minBlocks"] == 3
    assert compaction["metadata"]["ownerReferences"][0]["name"] == table.name
    assert compaction["metadata"]["labels"]["tandem.dev/automatic"] == "log-compaction"
    assert compaction["status"]["result"]["instants"] == ["1-3"]
    assert table.log.blocks() == [(1, 3)]
    assert table.log.view() == VIEW
    stitched = table.await_log(blocks=1, newestInstant=4, why="0 of minBlocks (3) instants since")
    assert stitched["oldestUnmerged"] == waits["oldestUnmerged"]
    assert "mergedInstant" not in stitched

    # A table whose log is not merged: its base version is recorded after an hour.
    unmerged.upsert(1)
    unmerged.lake.append(((40, 0, 0),))
    unmerged.await_log(unmergedBlocks=1)
    stage.clock.pass_an_hour()
    merge = table.await_child("TableCompaction")
    assert merge["spec"]["type"] == "LogMerge"
    assert table.lake.by_deltalake() == VIEW
    merged = table.await_log(blocks=0, mergedInstant=4, why="The table holds all records")
    assert merged["deadPercent"] == 100 * 2 // 23
    assert "oldestUnmerged" not in merged
    assert len(table.children("LogCompaction")) == 1
    log = open_log(unmerged.lake.location)
    await_that(lambda: state_of(log.snapshot()).base == unmerged.lake.version, unmerged.status)
    assert unmerged.children("TableCompaction") == []
    assert "next" not in unmerged.status()["log"]
    assert len(unmerged.log.blocks()) == 1
