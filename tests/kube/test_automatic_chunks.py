"""Chunks that are compacted and dropped automatically, under a real API server: the user creates
nothing but the LakeTable. Jobs are quick ones, and can be held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube.clocks import ShiftedClock
from kube.scrapes import Scrape, free_port, scrape
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    operating,
    quick_settings,
    two_leaders,
)
from support.jobs import quick_lake
from support.lake import timed
from support.lake.lake import DELETION_VECTORS
from support.lake.timed import Hours, TimedLake, day, hours, join, without
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
TWO = {"minUncompacted": {"segments": 2}}
# Days are counted from March 1st, 2013.
FIRST, SECOND, THIRD = (hours(day(n), first=100 * n) for n in (1, 2, 3))
LATE = hours(6, 30, first=900)


@dataclass
class Stage:
    space: Resources
    folder: Path
    jobs: HeldJobs = field(default_factory=HeldJobs)
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    port: int = field(default_factory=free_port)
    _made: int = 0

    def lake(
        self, *loads: Hours, deletion_vectors: bool = True, **spec: Any
    ) -> tuple[str, TimedLake]:
        """A table of days with these loads, whose LakeTable is adopted."""
        self._made += 1
        name = f"t{self._made}"
        properties: Mapping[str, str] = DELETION_VECTORS if deletion_vectors else {}
        folder = self.folder / name
        made = quick_lake.make(folder, 0, schema=timed.SCHEMA, properties=properties)
        lake = TimedLake(made)
        for rows in loads:
            lake.append(rows)
        self.space.table(name, made.location, time=timed.DAYS, **spec)
        self.space.await_reason("LakeTable", name, "Adopted")
        return name, lake

    def children(self, kind: str, table: str) -> list[Json]:
        found = self.space.children(kind, table)
        return sorted(found, key=lambda child: str(child["metadata"]["creationTimestamp"]))

    def await_children(self, kind: str, table: str, *phases: str) -> list[Json]:
        """Until exactly these exist."""

        def there() -> bool:
            found = [c.get("status", {}).get("phase", "") for c in self.children(kind, table)]
            return sorted(found) == sorted(phases)

        await_that(
            there,
            lambda: (self.children(kind, table), self.space.status("LakeTable", table)),
        )
        return self.children(kind, table)

    def await_next(self, table: str, about: str = "nextCompaction", **wanted: str) -> Json:
        """Until the LakeTable's status says this (each a part of it)."""
        return self.space.await_next(table, about, **wanted)

    def metrics(self) -> Scrape:
        return scrape(self.port)

    def age(self, days: int) -> str:
        """`retention.rows` by which all days of March up to this one are old enough now."""
        ended = timed.START + timedelta(days=days, hours=1)
        return f"{int((self.clock.now - ended) / timedelta(hours=1))}h"


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With one operator, which has one automatic slot."""
    space = Resources(cluster, cluster.namespace("chunks"))
    made = Stage(space, tmp_path_factory.mktemp("chunks"))
    health = f"127.0.0.1:{made.port}"
    settings = quick_settings(
        cluster, space.namespace, progress_s=0.3, automatic_slots=1, health=health
    )
    with operating(settings, made.jobs, clock=made.clock):
        yield made


def of_chunks(child: Json) -> list[str]:
    found: list[str] = child["spec"]["semiMajor"]["chunks"]
    return found


def test_A2_chunks_that_are_due_are_compacted_and_late_rows_wait_for_others(stage: Stage) -> None:
    table, lake = stage.lake(
        FIRST, LATE, SECOND, THIRD, compaction={"chunks": TWO, "skipOffsetFromLatest": "24h"}
    )
    (child,) = stage.await_children("TableCompaction", table, "Succeeded")
    # The late rows' file spans two days: these are compacted together, and the newest is left.
    assert of_chunks(child) == ["2013-03-01T00:00:00Z/2013-03-03T00:00:00Z"]
    assert child["metadata"]["labels"]["tandem.dev/automatic"].startswith("chunks-")
    following = stage.await_next(table, why="No chunk that ends 24h before the newest has 2")
    assert following["chunksDue"] == 0
    assert stage.metrics().value("tandem_table_chunks_due", table=table) == 0

    with stage.jobs.held():
        lake.append(hours(50, 51, first=950))
        lake.append(hours(96, first=960))
        seen = stage.await_next(table, why="1 chunk is due, and 1 of parallel (1) is at work.")
        assert seen["chunks"] == ["2013-03-03"]
        assert stage.metrics().value("tandem_table_chunks_due", table=table) == 1
    stage.await_children("TableCompaction", table, "Succeeded", "Succeeded")
    lake.assert_shows(join(FIRST, LATE, SECOND, THIRD, hours(50, 51, first=950),
                          hours(96, first=960)))  # fmt: skip


def test_the_table_that_has_waited_longest_gets_the_automatic_slot(stage: Stage) -> None:
    policy = {"chunks": TWO}
    with stage.jobs.held():
        first, _ = stage.lake(FIRST, hours(3, first=800), compaction=policy)
        stage.await_children("TableCompaction", first, "Running")
        second, _ = stage.lake(FIRST, hours(3, first=800), compaction=policy)
        waits = stage.await_next(second, why="its place in the queue is 1")
        assert waits["what"] == "SemiMajor of chunk 2013-03-01"
        assert "All 1 slots of automatic jobs (--automatic-slots) are taken" in waits["why"]
        third, _ = stage.lake(FIRST, hours(3, first=800), compaction=policy)
        stage.await_next(third, why="its place in the queue is 2")
        assert stage.children("TableCompaction", second) == []
    ended = [
        stage.await_children("TableCompaction", table, "Succeeded")[0]["status"]
        for table in (first, second, third)
    ]
    starts = [status["startTime"] for status in ended]
    assert starts == sorted(starts)
    for before, after in pairwise(ended):
        assert before["completionTime"] <= after["startTime"]


def test_old_chunks_are_dropped_and_rows_without_a_time_stay(stage: Stage) -> None:
    timeless = {999: None}
    table, lake = stage.lake(
        FIRST, LATE, SECOND, {**THIRD, **timeless}, retention={"rows": stage.age(1)}
    )
    (drop,) = stage.await_children("TableReplace", table, "Succeeded")
    assert drop["spec"]["replace"] == {"intervals": ["2013-03-01"]}
    assert drop["metadata"]["labels"]["tandem.dev/automatic"] == "retention"
    assert drop["status"]["result"]["replaced"]["rows"] == 25
    lake.assert_shows(join(without(join(FIRST, LATE, SECOND, THIRD), day(1)), timeless))
    following = stage.await_next(table, "nextDrop", why="No row is of a chunk that ended more")
    assert following["nextTime"]

    stage.space.patch("LakeTable", table, {"spec": {"retention": {"rows": stage.age(3)}}})
    stage.await_children("TableReplace", table, "Succeeded", "Succeeded")
    lake.assert_shows(timeless)


def test_without_deletion_vectors_a_straddling_file_is_rewritten(stage: Stage) -> None:
    retention = {"rows": stage.age(1)}
    table, lake = stage.lake(FIRST, LATE, THIRD, deletion_vectors=False, retention=retention)
    (drop,) = stage.await_children("TableReplace", table, "Succeeded")
    assert drop["status"]["result"]["replaced"]["rows"] == 25
    lake.assert_shows(without(join(FIRST, LATE, THIRD), day(1)))
    assert not any(add.deletion_vector for add in lake.lake.log.snapshot().adds())


def test_where_it_must_go_whole_a_straddling_file_keeps_its_rows(stage: Stage) -> None:
    retention = {"rows": stage.age(1)}
    table, lake = stage.lake(
        FIRST, LATE, THIRD, deletion_vectors=False, vectors="Only", retention=retention
    )
    waits = stage.await_next(table, "nextDrop", why="1 file holds such rows and others")
    assert waits["chunks"] == ["2013-03-01"]
    assert stage.children("TableReplace", table) == []
    lake.assert_shows(join(FIRST, LATE, THIRD))

    # A day later all of the file is old enough.
    stage.space.patch("LakeTable", table, {"spec": {"retention": {"rows": stage.age(2)}}})
    stage.await_children("TableReplace", table, "Succeeded")
    lake.assert_shows(THIRD)


def test_A5_two_schedulers_make_one_child_of_a_chunk_and_one_drop(
    cluster: Cluster, tmp_path: Path
) -> None:
    stage = Stage(Resources(cluster, cluster.namespace("chunks")), tmp_path)
    with two_leaders(stage.space, stage.jobs, stage.clock):
        table, lake = stage.lake(
            FIRST,
            SECOND,
            hours(30, first=800),
            compaction={"chunks": TWO},
            retention={"rows": stage.age(1)},
        )
        stage.await_children("TableCompaction", table, "Succeeded")
        stage.await_children("TableReplace", table, "Succeeded")
        # One commit of each, although there were two to make it.
        assert lake.lake.version == 5
        assert len(lake.lake.names) == 1
        lake.assert_shows(join(SECOND, hours(30, first=800)))
