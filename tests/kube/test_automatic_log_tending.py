"""What the operator asks of the API server for a table's log, and what it does not ask: against a
server that only answers, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import write_deltalake

from kube.answering import Clock, CountingExecutor, Server
from mergelog.lake import DELETION_VECTORS, Merged, made, table
from tandem.errors import StorageError
from tandem.kube.client.api import Api
from tandem.kube.client.resources import ResourceCache
from tandem.kube.controllers.automation import LogAutomation
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.slots import AutomaticSlots
from tandem.kube.tables.context import TableContext, TableLog
from tandem.mergelog import upkeep
from tandem.mergelog.log_table import state_of
from tandem.spec.status import TableStatus
from tandem.spec.table import LakeTable

Json = dict[str, Any]
HOUR = 3600 * 1000
POLICY: Json = {"logCompaction": {"minBlocks": 2}}


class Stage:
    """One table with a log, and the operator's side of its automation."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "t")
        self.lake: Merged = made(folder / "t", table((1, "a", None), (2, "b", None)))
        self.server, self.clock, self.cache = Server(), Clock(), ResourceCache()
        context = object.__new__(OperatorContext)
        self.context = cast(Any, context)
        self.context.api = cast(Api, self.server)
        self.context.resource_cache = self.cache
        self.context.automatic_slots = AutomaticSlots(0, self.cache)
        self.context.clock = self.clock
        self.context.may_write = lambda: True
        self.context.table_threads = self.pool = CountingExecutor()
        self.automation = LogAutomation(context)
        self.table = TableContext("uid-1", cast(Any, None))
        self.table.log = TableLog(self.lake.log.base)
        self.table.facts = TableStatus(rows=6, deleted_rows=2)
        self.policy(POLICY)

    def policy(self, fields: Json) -> None:
        body = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "orders", "namespace": "lake"},
            "spec": {
                "location": Path(self.path).as_uri(),
                "mergeOnRead": {"keys": ["k"], **fields},
            },
        }
        self.table.resource = LakeTable.model_validate(body)

    def read(self) -> None:
        assert self.table.log is not None
        self.table.log.update(thoroughly=True)
        self.table.log.look(self.lake.log.base.snapshot())

    def append(self, *ids: int) -> None:
        for id_ in ids:
            self.lake.append(table((id_, "x", None)))

    def know(self, kind: str, name: str, phase: str = "Running", **spec: Any) -> None:
        """The watch brings an operation that a user has created."""
        self.cache.update(
            {
                "kind": kind,
                "metadata": {
                    "name": name,
                    "namespace": "lake",
                    "uid": name,
                    "resourceVersion": "3",
                },
                "spec": {"tableRef": {"name": "orders"}, **spec},
                "status": {"phase": phase},
            }
        )

    async def look(self) -> tuple[Json, float]:
        self.read()
        operations = list(self.cache.of_table("lake", "orders"))
        status, seconds = await self.automation(self.table, operations)
        log: Json = status.get("log", {})
        return log, seconds


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_an_unchanged_log_causes_no_request_and_no_planning(stage: Stage) -> None:
    async def play() -> None:
        stage.policy({"merge": {"maxAge": "9999h"}})
        stage.append(3)
        for _ in range(5):
            status, seconds = await stage.look()
            assert seconds > HOUR / 1000
        labels = "tandem.dev/automatic,tandem.dev/table=orders"
        assert stage.server.calls == [
            f"list tablecompactions {labels}",
            f"list logcompactions {labels}",
        ]
        assert stage.pool.calls == 1
        assert (status["blocks"], status["unmergedBlocks"], status["deadPercent"]) == (1, 1, 25)
        assert status["next"]["what"] == "LogMerge of 1 block"

    asyncio.run(play())


def test_a_log_compaction_is_created_once_although_the_watch_lags(stage: Stage) -> None:
    async def play() -> None:
        stage.append(3, 4)
        status, _ = await stage.look()
        (name,) = stage.server.objects
        assert status["next"]["why"] == f"LogCompaction/{name} was started."
        assert f"create logcompactions {name}" in stage.server.calls
        stage.append(5)
        status, seconds = await stage.look()
        assert status["next"]["why"] == f"LogCompaction/{name} is at work."
        assert 0 < seconds <= 10
        assert len(stage.server.objects) == 1

    asyncio.run(play())


@pytest.mark.parametrize(
    ("kind", "spec", "waits"),
    [
        ("TableCompaction", {"type": "LogMerge"}, True),
        ("LogCompaction", {}, True),
        ("TableCompaction", {"type": "Major"}, False),
    ],
)
def test_operations_of_users_on_the_log_are_waited_for(
    stage: Stage, kind: str, spec: Json, waits: bool
) -> None:
    async def play() -> None:
        stage.append(3, 4)
        stage.know(kind, "mine", **spec)
        status, _ = await stage.look()
        assert status["next"]["why"].startswith(f"Waits for {kind}/mine.") is waits
        assert bool(stage.server.objects) is not waits
        stage.know(kind, "mine", "Suspended", **spec)
        await stage.look()
        assert len(stage.server.objects) == 1

    asyncio.run(play())


def test_without_a_policy_the_log_is_shown_and_nothing_is_asked(stage: Stage) -> None:
    async def play() -> None:
        stage.policy({})
        stage.append(3, 4)
        status, seconds = await stage.look()
        assert (status["blocks"], seconds) == (2, float("inf"))
        assert "next" not in status
        assert stage.server.calls == []

    asyncio.run(play())


def test_a_log_that_cannot_be_read_is_reported(stage: Stage) -> None:
    async def play() -> None:
        stage.append(3, 4)
        shutil.rmtree(Path(stage.path) / "_delta_log")
        write_deltalake(stage.path, table((7, "n", "x")), configuration=DELETION_VECTORS)
        status, seconds = await stage.look()
        assert (list(status), seconds) == (["problem"], float("inf"))
        assert "the base table was re-created at the same location" in status["problem"]
        assert stage.server.objects == {}

    asyncio.run(play())


def test_the_base_version_is_recorded_after_an_hour_and_again_after_an_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage.policy({})
        stage.append(3)
        write_deltalake(stage.path, table((9, "n", None)), mode="append")
        stage.read()
        facts = stage.table.log_facts
        assert facts is not None
        assert facts.moved_ms is not None
        stage.clock.ms = facts.moved_ms + HOUR - 1000
        assert (await stage.look())[1] == 1.0
        assert stage.lake.log.snapshot().version == 1

        stage.clock.ms += 1000
        with monkeypatch.context() as broken:
            error = StorageError("no answer")
            broken.setattr(upkeep, "put", lambda *_: (_ for _ in ()).throw(error))
            assert (await stage.look())[1] == 60.0
        assert (await stage.look())[1] == 60.0
        stage.clock.ms += 60_000
        stage.context.may_write = lambda: False
        await stage.look()
        assert stage.lake.log.snapshot().version == 1
        stage.context.may_write = lambda: True
        await stage.look()
        assert stage.table.due
        assert state_of(stage.lake.log.snapshot()).base == 1
        assert (await stage.look())[1] == float("inf")

    asyncio.run(play())
