"""What the operator asks of the API server for automatic compaction, and what it does not ask:
against a server that only answers, and a clock that the test moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from kube.answering import NOON, Clock, CountingExecutor, Server
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake import timed
from support.lake.lake import batch
from tandem.kube.client.api import Api, Conflict, Forbidden, NotFound, ResourcePath
from tandem.kube.client.resources import ResourceCache, summarize
from tandem.kube.controllers import automation
from tandem.kube.controllers.automation import AutoCompactionController, RowRetention, remembered
from tandem.kube.controllers.table_children import child_fact, child_manifest
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.slots import AutomaticSlots
from tandem.kube.tables.context import TableContext
from tandem.planning.auto.facts import ChildCompaction
from tandem.spec.table import LakeTable

Json = dict[str, Any]
MINUTE = 60_000
POLICY = {"minor": {"thresholds": [2]}}


@dataclass
class Stage:
    """One table with a policy, and the operator's side of its automatic compaction."""

    lake: QuickLake
    policy: Json | None = field(default_factory=lambda: dict(POLICY))
    server: Server = field(default_factory=Server)
    clock: Clock = field(default_factory=Clock)
    resource_cache: ResourceCache = field(default_factory=ResourceCache)

    def __post_init__(self) -> None:
        context = object.__new__(OperatorContext)
        self.context = cast(Any, context)
        self.context.api = cast(Api, self.server)
        self.context.resource_cache = self.resource_cache
        self.context.automatic_slots = AutomaticSlots(0, self.resource_cache)
        self.context.clock = self.clock
        self.context.table_threads = self.pool = CountingExecutor()
        self.tend = AutoCompactionController(context)
        self.table = TableContext("uid-1", cast(Any, None))
        self.see()

    def see(self, **spec: Any) -> None:
        """The table as it is now."""
        spec |= {"location": self.lake.location, "compaction": self.policy}
        body = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "flights", "namespace": "lake"},
            "spec": spec,
        }
        self.table.resource = LakeTable.model_validate(body)
        self.table.snapshot = self.lake.log.snapshot()

    def know(self, status: Json | None = None) -> None:
        """The watch brings what the server has, with a status for the children."""
        for body in self.server.objects.values():
            self.resource_cache.update({**body, "status": status or {}})

    async def look(self) -> tuple[Json, float]:
        status, seconds = await self.tend(
            self.table, list(self.resource_cache.of_table("lake", "flights"))
        )
        return status.get("nextCompaction", {}), seconds

    @property
    def plans(self) -> int:
        return self.pool.calls

    @property
    def creates(self) -> list[str]:
        return [call for call in self.server.calls if call.startswith("create")]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(quick_lake.make(tmp_path, 2))


def test_an_unchanged_table_causes_no_request_and_no_planning(stage: Stage) -> None:
    async def play() -> None:
        stage.policy = {"minor": {}, "schedules": [
            {"cron": "0 15 * * *", "template": {"type": "Major"}}]}  # fmt: skip
        stage.see()
        for _ in range(5):
            status, seconds = await stage.look()
            assert seconds == 3 * 3600
        listed = ["list tablecompactions tandem.dev/automatic,tandem.dev/table=flights"]
        assert (stage.plans, stage.server.calls) == (1, listed)
        assert status["nextTime"] == "2026-06-10T15:00:00Z"

        stage.clock.ms += 3 * 3600 * 1000
        await stage.look()
        assert (stage.plans, len(stage.creates)) == (2, 1)

    asyncio.run(play())


def test_a_child_is_created_once_although_the_watch_lags(stage: Stage) -> None:
    async def play() -> None:
        status, _ = await stage.look()
        (name,) = stage.server.objects
        assert status["why"] == f"TableCompaction/{name} was started."
        status, seconds = await stage.look()
        assert status["why"] == f"TableCompaction/{name} is at work."
        assert 0 < seconds <= 10
        stage.know({"phase": "Running"})
        status, seconds = await stage.look()
        assert seconds == float("inf")
        assert len(stage.creates) == 1

    asyncio.run(play())


def test_A5_another_scheduler_was_faster(stage: Stage) -> None:
    async def play() -> None:
        other = Stage(stage.lake, server=stage.server)
        other.policy = {"minor": {"thresholds": [9]}}
        other.see()
        await other.look()
        await stage.look()
        other.policy = POLICY
        other.see()
        status, _ = await other.look()

        assert len(stage.server.objects) == 1
        assert len(stage.creates) == 2
        assert status["why"].endswith("was started.")

    asyncio.run(play())


def test_a_foreign_operation_of_that_name_is_not_taken_for_a_child(stage: Stage) -> None:
    async def play() -> None:
        await stage.look()
        (name,) = stage.server.objects
        stage.server.objects[name]["metadata"]["ownerReferences"] = []
        other = Stage(stage.lake, server=stage.server)

        status, seconds = await other.look()

        assert status["why"].startswith(f"TableCompaction/{name} exists already, and is not this")
        assert seconds == 60

    asyncio.run(play())


def test_a_refusal_of_the_server_is_reported_and_retried(stage: Stage) -> None:
    async def play() -> None:
        stage.policy = {"minor": {"thresholds": [9]}}
        stage.see()
        await stage.look()
        stage.policy = POLICY
        stage.see()
        stage.server.error = Forbidden(403, "Forbidden", "exceeded quota")
        for number in range(1, 4):
            status, seconds = await stage.look()
            assert status["why"].endswith("could not be created: exceeded quota")
            assert (seconds, len(stage.creates)) == (60, number)
            assert (await stage.look())[1] == 60
            stage.clock.ms += MINUTE
        stage.server.error = None
        await stage.look()
        assert len(stage.server.objects) == 1

    asyncio.run(play())


def test_A5_an_operator_that_starts_waits_until_it_has_seen_all_children(stage: Stage) -> None:
    async def play() -> None:
        await stage.look()
        (name,) = stage.server.objects
        before = {"nextCompaction": {"why": "as it was"}}
        other = Stage(stage.lake, server=stage.server)
        other.resource_cache.update(
            {
                "kind": "LakeTable",
                "metadata": {
                    "name": "flights",
                    "namespace": "lake",
                    "uid": "uid-1",
                    "resourceVersion": "1",
                },
                "status": before,
            }
        )
        for _ in range(3):
            assert await other.look() == (before["nextCompaction"], 1.0)
        other.know({"phase": "Running", "plan": {"segments": ["0"]}})
        status, _ = await other.look()
        assert status["why"] == f"TableCompaction/{name} is at work."
        assert [call.split()[0] for call in stage.server.calls] == ["list", "create", "list"]

        # Without an answer nothing is decided either.
        third = Stage(stage.lake, server=stage.server)
        stage.server.error = Forbidden(403, "Forbidden", "")
        assert await third.look() == ({}, 1.0)
        assert third.plans == 0

    asyncio.run(play())


def test_a_child_that_vanishes_before_it_was_seen_is_not_waited_for(stage: Stage) -> None:
    async def play() -> None:
        await stage.look()
        stage.server.objects.clear()
        stage.clock.ms += 11_000
        await stage.look()
        assert len(stage.server.objects) == 1

    asyncio.run(play())


def test_history_is_deleted_with_preconditions(stage: Stage) -> None:
    async def play() -> None:
        stage.policy = {**POLICY, "history": {"succeeded": 0, "failed": 0}}
        stage.see()
        for ended in ("12:00:00", "13:00:00"):
            child = ChildCompaction(
                f"old-{ended[:2]}", "minor", {"tableRef": {"name": "flights"}}, ""
            )
            assert stage.table.resource is not None
            body = child_manifest(child, stage.table.resource, "uid-1")
            await stage.server.create(ResourcePath("", "", ""), body)
            made = stage.server.objects[child.name]
            completed = {"phase": "Succeeded", "completionTime": f"2026-06-10T{ended}Z"}
            stage.resource_cache.update({**made, "status": completed})
        for error in (None, NotFound(404, "", ""), Conflict(409, "", ""), Forbidden(403, "", "")):
            stage.server.error = error
            stage.clock.ms += MINUTE * 60
            await stage.look()
        deletes = [call for call in stage.server.calls if call.startswith("delete")]
        assert deletes == ["delete tablecompactions old-12 u0 7"] * 4

    asyncio.run(play())


def test_without_a_policy_status_and_memory_are_empty(stage: Stage) -> None:
    async def play() -> None:
        stage.policy = None
        stage.see()
        assert await stage.look() == ({}, float("inf"))
        assert (stage.plans, stage.server.calls) == (0, [])

    asyncio.run(play())


def test_a_missing_time_column_is_reported(stage: Stage) -> None:
    async def play() -> None:
        stage.see(time={"column": "k", "granularity": "Day"})
        status, _ = await stage.look()
        assert "the table has no such time column" in status["why"]

    asyncio.run(play())


def test_a_busy_table_is_planned_for_a_tenth_of_the_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage.policy = {"minor": {"thresholds": [100]}}
        stage.see()
        monkeypatch.setattr(automation, "_CALM_FACTOR", 1e9)
        await stage.look()
        stage.lake.append(batch(2))
        stage.see()
        _, seconds = await stage.look()
        assert (stage.plans, 0 < seconds <= 60) == (1, True)
        # What people change is looked at at once.
        stage.policy = {"minor": {"thresholds": [3]}}
        stage.see()
        await stage.look()
        assert (stage.plans, len(stage.creates)) == (2, 1)

    asyncio.run(play())


def test_the_remembered_state_is_that_of_the_status() -> None:
    body = {
        "status": {
            "nextCompaction": {
                "schedules": [
                    {"id": "a", "since": "2026-06-10T12:00:00Z"},
                    {"id": "b", "since": "never"},
                    {"id": "c"},
                ]
            }
        }
    }
    assert remembered(body) == {"a": NOON}
    for nothing in ({}, {"status": None}, {"status": {"nextCompaction": "x"}}):
        assert remembered(nothing) == {}


def test_labels_of_any_content_are_handled() -> None:
    body = {
        "kind": "TableCompaction",
        "metadata": {
            "name": "x",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {
                "tandem.dev/automatic": "minor",
                "tandem.dev/scheduled": "x" * 63,
                "tandem.dev/retries": "-1",
            },
        },
        "spec": {"tableRef": {"name": "flights"}},
    }
    fact = child_fact(summarize(body), body)
    assert (fact.scheduled_ms, fact.retries, fact.segments, fact.created_ms) == (None, 0, None, 0)


def test_a_decision_waits_for_the_version_that_a_child_has_committed(stage: Stage) -> None:
    async def play() -> None:
        await stage.look()
        assert stage.plans == 1
        version = stage.lake.version
        done = {"phase": "Succeeded", "observedGeneration": 1, "result": {"version": version + 1}}
        stage.know(done)
        _, seconds = await stage.look()
        assert (stage.plans, stage.table.due) == (1, True)
        assert 0 < seconds <= 2
        # If the log was replaced meanwhile, such a version may never come.
        await stage.look()
        assert stage.plans == 2

    asyncio.run(play())


def test_old_rows_are_dropped_by_one_child_for_one_content(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0, schema=timed.SCHEMA)
    lake.append(timed.table(timed.hours(timed.day(1), first=1)))
    stage = Stage(lake, policy=None)
    tend = RowRetention(cast(OperatorContext, stage.context))
    stage.see(time=timed.DAYS, retention={"rows": "24h"})

    async def look() -> tuple[Json, float]:
        children = list(stage.resource_cache.of_table("lake", "flights"))
        status, seconds = await tend(stage.table, children)
        return status["nextDrop"], seconds

    async def play() -> None:
        status, _ = await look()
        (name,) = stage.server.objects
        assert status["why"] == f"TableReplace/{name} was started."
        assert status["chunks"] == ["2013-03-01"]
        assert stage.server.objects[name]["spec"]["replace"] == {"intervals": ["2013-03-01"]}
        status, _ = await look()
        assert status["why"] == f"TableReplace/{name} is at work."
        stage.know({"phase": "Succeeded", "observedGeneration": 1})
        status, _ = await look()
        assert status["why"].startswith(f"TableReplace/{name} has dropped the rows")
        assert len(stage.creates) == 1

        # Without the field it is off, and says nothing.
        stage.see(time=timed.DAYS)
        assert await tend(stage.table, []) == ({}, float("inf"))

    asyncio.run(play())


def test_a_table_waits_for_a_slot_and_is_woken_when_one_is_free(stage: Stage) -> None:
    async def play() -> None:
        slots = AutomaticSlots(1, stage.resource_cache)
        assert stage.table.resource is not None
        stage.context.automatic_slots = slots
        woken: list[int] = []
        stage.table.wake = lambda: woken.append(1)
        assert await slots.take("other", ("TableCompaction", "lake", "other"), lambda: None) == 0
        status, seconds = await stage.look()
        assert stage.creates == []
        assert status["why"].endswith("are taken; its place in the queue is 1.")
        assert status["what"].startswith("Minor of segments ")
        assert "nextTime" not in status
        assert 0 < seconds <= 15

        ended = child_manifest(
            ChildCompaction("other", "minor", {"tableRef": {"name": "t"}}, ""),
            stage.table.resource,
            "uid-2",
        )
        ended["metadata"] |= {"uid": "uid-3", "resourceVersion": "8", "generation": 1}
        status = {"phase": "Succeeded", "observedGeneration": 1}
        stage.resource_cache.update({**ended, "status": status})
        slots.wake_first()
        assert woken == [1]
        await stage.look()
        assert len(stage.creates) == 1

    asyncio.run(play())
