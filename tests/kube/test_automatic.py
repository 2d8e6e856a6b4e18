"""Automatic compaction under a real API server: the user creates nothing but the LakeTable.

Rows are written by deltalake, which knows nothing of Tandem. Jobs are quick ones, and can be
held. The operators' clock is the machine's with an offset, so that nights come when they are
wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube.clocks import ShiftedClock
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    operating,
    quick_settings,
    two_leaders,
)
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch, loads
from support.waiting import await_that
from tandem.operations.ports import SystemClock

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"
DAY_MS = 24 * 3600 * 1000
Json = dict[str, Any]


@dataclass
class Stage:
    """A namespace whose tables are compacted automatically only."""

    space: Resources
    folder: Path
    jobs: HeldJobs = field(default_factory=HeldJobs)
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    _made: int = 0

    def lake(self, loads_: int, **policy: Any) -> tuple[str, QuickLake]:
        """A table of that many loads whose LakeTable has this policy, and is adopted."""
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name, loads_)
        self.space.table(name, lake.location, compaction=policy)
        self.space.await_reason("LakeTable", name, "Adopted")
        return name, lake

    def children(self, table: str, line: str | None = None) -> list[Json]:
        """The automatic compactions of a table, in the order of their names."""
        return self.space.children(KIND, table, line or "")

    def await_children(self, table: str, number: int, phase: str = "Succeeded") -> list[Json]:
        """Until there are exactly so many, all in a phase."""

        def there() -> bool:
            found = self.children(table)
            return [phase_of(child) for child in found] == [phase] * number

        await_that(
            there,
            lambda: (
                [(phase_of(child), child["spec"]) for child in self.children(table)],
                self.space.status("LakeTable", table),
            ),
        )
        return self.children(table)

    def await_next(self, table: str, **wanted: str) -> Json:
        """Until the LakeTable's status says this of the next compaction (each a part of it)."""
        return self.space.await_next(table, "nextCompaction", **wanted)

    @property
    def next_hour(self) -> datetime:
        full = self.clock.now.replace(minute=0, second=0, microsecond=0)
        return full + timedelta(hours=1)

    def at_next_hour(self, type_: str) -> Json:
        """A schedule that is due when an hour has passed, and not again for a day."""
        return {"cron": f"0 {self.next_hour.hour} * * *", "template": {"type": type_}}

    def pass_an_hour(self) -> None:
        self.clock.pass_an_hour()

    def reason(self, status: Json) -> str:
        return next(str(c["reason"]) for c in status["conditions"] if c["type"] == "Succeeded")

    def see(self, table: str, lake: QuickLake) -> None:
        """Until the operator has seen the table's latest version, and decided about it."""
        version = lake.version
        self.space.await_status("LakeTable", table, lambda s: s.get("version", 0) >= version)


def phase_of(body: Json) -> str:
    return str(body.get("status", {}).get("phase", ""))


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With one operator."""
    space = Resources(cluster, cluster.namespace("auto"))
    made = Stage(space, tmp_path_factory.mktemp("auto"))
    with operating(quick_settings(cluster, space.namespace, progress_s=0.3), made.jobs,
                   clock=made.clock):  # fmt: skip
        yield made


@pytest.fixture
def bare(cluster: Cluster, tmp_path: Path) -> Stage:
    """Without any."""
    return Stage(Resources(cluster, cluster.namespace("auto")), tmp_path)


def test_A1_new_compactible_segments_are_compacted_automatically(stage: Stage) -> None:
    table, lake = stage.lake(3, minor={"thresholds": [4, 3]})
    following = stage.await_next(table, why="It needs 4 of level 0 or 3 of level 1")
    assert "what" not in following or following["what"] == ""
    assert stage.children(table) == []

    lake.append(batch(3))

    (child,) = stage.await_children(table, 1)
    assert child["status"]["result"]["segments"] == ["0.1"]
    assert child["spec"]["minor"]["thresholds"] == [4, 3]
    assert len(child["spec"]["minor"]["segments"]) == 4
    owner = stage.space.get("LakeTable", table)
    assert owner is not None
    assert child["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "name": table,
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]
    assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tandem"
    lake.assert_rows(loads(range(4)))

    for number in range(4, 8):
        lake.append(batch(number))
    stage.await_children(table, 2)
    lake.assert_rows(loads(range(8)))
    stage.await_next(table, why="None of 2 segments qualify for a minor compaction")


def test_A2_semi_major_comes_by_its_schedule_while_appends_are_compacted_beside_it(
    stage: Stage,
) -> None:
    table, lake = stage.lake(3, minor={}, schedules=[stage.at_next_hour("SemiMajor")])
    following = stage.await_next(table, what="SemiMajor by schedule")
    assert following["nextTime"] == stage.next_hour.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert stage.children(table) == []

    with stage.jobs.held():
        stage.pass_an_hour()
        (semi_major,) = stage.await_children(table, 1, "Running")
        assert semi_major["spec"]["type"] == "SemiMajor"
        for number in range(3, 7):
            lake.append(batch(number))
        both = stage.await_children(table, 2, "Running")
        stage.await_next(table, why="is at work")
    both = stage.await_children(table, 2)
    taken = [set(child["status"]["plan"]["segments"]) for child in both]
    assert [len(segments) for segments in taken] in ([3, 4], [4, 3])
    assert not taken[0] & taken[1]
    assert {child["spec"]["type"] for child in both} == {"Minor", "SemiMajor"}
    lake.assert_rows(loads(range(7)))


def test_A3_minor_then_semi_major_then_major_when_the_window_opens(stage: Stage) -> None:
    opens = stage.next_hour
    window = {"start": f"{opens:%H:%M}", "duration": "59m"}
    table, lake = stage.lake(
        4,
        minor={},
        schedules=[stage.at_next_hour("Major"), stage.at_next_hour("SemiMajor")],
        maintenanceWindow=window,
    )
    # Four loads are compactible, and nothing starts: the status says why.
    following = stage.await_next(
        table, what="Minor of segments", why="Outside the maintenance window"
    )
    assert following["nextTime"] == opens.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert stage.children(table) == []

    stage.clock.ahead_ms += int((opens - stage.clock.now).total_seconds() * 1000) + 1000
    children = stage.await_children(table, 3)

    # Each begins after the one before it has ended; and a major compaction does not pay any more.
    children.sort(key=lambda child: child["status"]["startTime"])
    by_type = {child["spec"]["type"]: child["status"] for child in children}
    assert by_type["Minor"]["result"]["segments"] == ["0.1"]
    assert by_type["Minor"]["completionTime"] <= by_type["SemiMajor"]["startTime"]
    assert by_type["SemiMajor"]["completionTime"] <= by_type["Major"]["startTime"]
    assert stage.reason(by_type["Major"]) == "NothingToDo"
    lake.assert_rows(loads(range(4)))


def test_A4_recent_segments_are_not_compacted(stage: Stage) -> None:
    table, lake = stage.lake(4, minor={"thresholds": [4]}, skipOffsetFromLatest="24h")
    stage.await_next(table, why="4 files within 24h of the newest data")

    # The same loads as if they had been made two days ago, and then two of today.
    lake.log_again(modified_ms=SystemClock().now_ms() - 2 * DAY_MS)
    old = set(lake.names)
    for number in range(4, 6):
        lake.append(batch(number))

    (child,) = stage.await_children(table, 1)
    assert set(child["status"]["plan"]["segments"]) == old
    assert child["spec"]["skipOffsetFromLatest"] == "24h"
    stage.await_next(table, why="2 files within 24h of the newest data")
    lake.assert_rows(loads(range(6)))


def test_a_table_without_a_policy_any_more_is_left_alone(stage: Stage) -> None:
    table, lake = stage.lake(3, minor={})
    stage.await_next(table, why="None of 3 segments")

    stage.space.patch("LakeTable", table, {"spec": {"compaction": None}})
    stage.space.await_status("LakeTable", table, lambda status: "nextCompaction" not in status)
    lake.append(batch(3))
    stage.see(table, lake)
    assert stage.children(table) == []

    stage.space.patch("LakeTable", table, {"spec": {"compaction": {"minor": {}}}})
    stage.await_children(table, 1)


def test_finished_children_beyond_the_history_limit_are_deleted(stage: Stage) -> None:
    table, lake = stage.lake(2, minor={"thresholds": [2]}, history={"succeeded": 1})
    for number in range(2, 6):
        lake.append(batch(number))
        # The first segment is of level 1 then, and too high; the next two make another.
        if number % 2:
            stage.see(table, lake)

    def one_is_left() -> bool:
        left = stage.children(table)
        return [phase_of(child) for child in left] == ["Succeeded"] and len(lake.live) == 3

    await_that(one_is_left, lambda: (stage.children(table), lake.names))
    lake.assert_rows(loads(range(6)))


def test_A5_two_schedulers_make_one_plan(bare: Stage) -> None:
    with two_leaders(bare.space, bare.jobs, bare.clock):
        table, lake = bare.lake(4, minor={}, schedules=[bare.at_next_hour("Major")])
        (minor,) = bare.await_children(table, 1)
        bare.pass_an_hour()
        children = bare.await_children(table, 2)

        assert {child["spec"]["type"] for child in children} == {"Minor", "Major"}
        assert minor["metadata"]["name"] in {child["metadata"]["name"] for child in children}
        # One commit, although there were two to make it.
        assert len(lake.names) == 1
        assert lake.version == lake.first_version + 1
        lake.append(batch(4))
        bare.see(table, lake)
        bare.await_next(table, why="None of 2 segments")
        assert len(bare.children(table)) == 2
    lake.assert_rows(loads(range(5)))


def test_A5_a_restart_makes_nothing_twice(bare: Stage) -> None:
    cluster = bare.space.cluster
    settings = quick_settings(cluster, bare.space.namespace, progress_s=0.3)
    schedules = [bare.at_next_hour("SemiMajor")]
    with operating(settings, bare.jobs, clock=bare.clock):
        table, lake = bare.lake(3, minor={}, schedules=schedules)
        bare.await_next(table, schedules=schedules[0]["cron"])

    # It is away when the schedule is due, and when the fourth load comes.
    bare.pass_an_hour()
    with bare.jobs.held(), operating(settings, bare.jobs, clock=bare.clock):
        (missed,) = bare.await_children(table, 1, "Running")
        assert missed["spec"]["type"] == "SemiMajor"

    # It is away again while its child is at work, which the next one adopts.
    with operating(settings, bare.jobs, clock=bare.clock):
        (child,) = bare.await_children(table, 1)
        assert child["metadata"]["uid"] == missed["metadata"]["uid"]
        bare.await_next(table, why="None of 1 segment ")
    with operating(settings, bare.jobs, clock=bare.clock):
        lake.append(batch(3))
        bare.see(table, lake)
        bare.await_next(table, why="None of 2 segments")
        assert len(bare.children(table)) == 1
    lake.assert_rows(loads(range(4)))
