"""LakeTables under a real API server: what their status says, and what becomes of operations
whose table or credentials are absent, come late or go away."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
    reason_of,
)
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch, loads
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from support.lake.s3 import S3Server

TABLE = "LakeTable"
KIND = "TableCompaction"


@dataclass
class Stage:
    space: Resources
    jobs: HeldJobs
    folder: Path

    def lake(self, name: str, loads: int = 4, **spec: Any) -> QuickLake:
        lake = quick_lake.make(self.folder / name, loads)
        self.space.table(name, lake.location, **spec)
        return lake


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("tables")
    space = Resources(cluster, cluster.namespace("tables"))
    jobs = HeldJobs()
    settings = quick_settings(
        cluster,
        space.namespace,
        allowed_locations=(folder.as_uri(), "s3://lake"),
        allowed_endpoints=("127.0.0.1",),
        clean_s=0.0,
    )
    with operating(settings, jobs):
        yield Stage(space, jobs, folder)


def test_the_status_of_a_table_describes_it(stage: Stage) -> None:
    lake = stage.lake("facts", loads=3)
    status = stage.space.await_reason(TABLE, "facts", "Adopted")
    assert {name: status[name] for name in ("version", "segments", "files", "rows")} == {
        "version": lake.version,
        "segments": 3,
        "files": 3,
        "rows": 30,
    }
    assert status["deletedRows"] == 0
    assert status["smallFiles"] == 3
    assert status["bytes"] == sum(add.size for add in lake.log.snapshot().adds())
    assert condition(status, "Ready")["status"] == "True"
    assert condition(status, "Stalled")["status"] == "False"
    assert status["observedGeneration"] == 1


def test_files_past_the_retention_are_cleaned(stage: Stage) -> None:
    """And only where a retention is given; another one is heeded at once."""
    lake = quick_lake.make(stage.folder / "old", 4)
    lake.foreign().optimize.compact()
    folder = stage.folder / "old"
    data = sorted(folder.rglob("*.parquet"))
    stage.space.table("old", lake.location)
    status = stage.space.await_status(TABLE, "old", lambda s: "lastCleaning" in s)
    assert status["lastCleaning"]["files"] == 0
    assert sorted(folder.rglob("*.parquet")) == data
    stage.space.patch(TABLE, "old", {"spec": {"retention": {"files": "0s"}}})
    status = stage.space.await_status(TABLE, "old", lambda s: s["lastCleaning"]["files"] > 0)
    assert status["lastCleaning"]["files"] == 4
    assert status["lastCleaning"]["nextTime"] > status["lastCleaning"]["time"]
    assert len(list(folder.rglob("*.parquet"))) == len(data) - 4 == 1
    lake.assert_rows(loads(range(4)))
    assert "Cleaned" in stage.space.events("old")


def test_commits_of_others_appear_in_the_status(stage: Stage) -> None:
    lake = stage.lake("foreign")
    stage.space.await_reason(TABLE, "foreign", "Adopted")
    lake.append(batch(9))
    status = stage.space.await_status(TABLE, "foreign", lambda s: s["version"] == lake.version)
    assert status["rows"] == 50
    lake.foreign().delete("k = 1")
    status = stage.space.await_status(TABLE, "foreign", lambda s: s["version"] == lake.version)
    assert status["rows"] + status["deletedRows"] == 50 or status["deletedRows"] == 0


def test_a_running_operation_and_its_locks_appear_in_the_status(stage: Stage) -> None:
    stage.lake("busy")
    with stage.jobs.held():
        stage.space.compaction("work", "busy")
        stage.space.await_phase(KIND, "work", "Running")
        status = stage.space.await_status(
            TABLE, "busy", lambda s: bool(s.get("heldLocks") and s.get("runningOperations"))
        )
        assert status["runningOperations"] == ["TableCompaction/work"]
        (lock,) = status["heldLocks"]
        assert lock.startswith("TableCompaction/work: f-")
        assert lock.endswith("(Rewrite)")
    stage.space.await_end(KIND, "work")
    status = stage.space.await_status(
        TABLE,
        "busy",
        # An operation's end is reported before the table is read again.
        lambda s: not s["runningOperations"] and bool(s.get("lastOperations")) and s["version"] > 4,
    )
    (last,) = status["lastOperations"]
    assert (last["name"], last["phase"], last["reason"]) == (
        "TableCompaction/work",
        "Succeeded",
        "Committed",
    )
    assert last["version"] == status["version"]
    stage.space.await_status(TABLE, "busy", lambda s: not s["heldLocks"] and s["segments"] == 1)


def test_nothing_is_written_while_nothing_happens(stage: Stage) -> None:
    lake = stage.lake("calm")
    # The last field of its status to appear.
    stage.space.await_status(TABLE, "calm", lambda s: "lastCleaning" in s)
    before = stage.space.get(TABLE, "calm")
    # Another table, of which much later commits show, proves that time has passed.
    other = stage.lake("clock")
    stage.space.await_reason(TABLE, "clock", "Adopted")
    for number in range(2):
        other.append(batch(number))
        stage.space.await_status(TABLE, "clock", lambda s: s["version"] == other.version)
    after = stage.space.get(TABLE, "calm")
    assert before is not None
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert after["status"]["version"] == lake.version


def test_an_operation_waits_for_its_table(stage: Stage) -> None:
    stage.space.compaction("early", "later")
    status = stage.space.await_reason(KIND, "early", "WaitingForDependency")
    assert "LakeTable/later, which does not exist" in condition(status)["message"]
    assert condition(status, "Ready")["status"] == "Unknown"
    stage.lake("later")
    assert stage.space.await_end(KIND, "early")["phase"] == "Succeeded"


def test_a_location_without_table_stalls_until_there_is_one(stage: Stage) -> None:
    folder = stage.folder / "empty"
    stage.space.table("empty", (folder / "lake").as_uri())
    stage.space.compaction("hopeful", "empty")
    status = stage.space.await_reason(TABLE, "empty", "TableNotFound")
    assert condition(status, "Stalled")["status"] == "True"
    stage.space.await_reason(KIND, "hopeful", "WaitingForDependency")
    quick_lake.make(folder)
    stage.space.await_reason(TABLE, "empty", "Adopted")
    assert stage.space.await_end(KIND, "hopeful")["phase"] == "Succeeded"


def test_a_table_is_created(stage: Stage) -> None:
    location = (stage.folder / "fresh").as_uri()
    create = {"schema": [{"name": "k", "type": "long"}]}
    stage.space.table("fresh", location, create=create)
    status = stage.space.await_reason(TABLE, "fresh", "Created")
    assert (status["version"], status["files"]) == (0, 0)


def test_locations_may_be_forbidden(stage: Stage, tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    stage.space.table("outside", lake.location)
    status = stage.space.await_reason(TABLE, "outside", "LocationNotAllowed")
    assert condition(status, "Stalled")["status"] == "True"
    stage.space.compaction("trespass", "outside")
    stage.space.await_reason(KIND, "trespass", "WaitingForDependency")
    stage.space.delete(KIND, "trespass")
    stage.space.delete(TABLE, "outside")
    stage.space.await_gone(KIND, "trespass")
    stage.space.await_gone(TABLE, "outside")


def test_no_operation_is_kept_when_the_location_is_gone(stage: Stage) -> None:
    lake = stage.lake("vanishing")
    stage.space.await_reason(TABLE, "vanishing", "Adopted")
    with stage.jobs.held():
        stage.space.compaction("orphan", "vanishing")
        stage.space.await_phase(KIND, "orphan", "Running")
        shutil.rmtree(lake.path)
        stage.space.delete(KIND, "orphan")
        stage.space.delete(TABLE, "vanishing")
        stage.space.await_gone(KIND, "orphan")
        stage.space.await_gone(TABLE, "vanishing")


def test_credentials_come_late_and_are_renewed(stage: Stage, s3_server: S3Server) -> None:
    """S3 with keys: none at first, wrong ones next, the right ones in the end."""
    store = s3_server.open()
    environ = s3_server.environ
    options = s3_server.options
    spec = {"storage": {"secretRef": {"name": "keys"}, "options": dict(options)}}
    create = {"schema": [{"name": "k", "type": "long"}]}
    stage.space.table("remote", store.location, create=create, **spec)
    status = stage.space.await_reason(TABLE, "remote", "ReferenceNotFound")
    assert "keys" in condition(status, "Ready")["message"]
    wrong = {**environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    put_secret(stage.space, "keys", wrong)
    status = stage.space.await_reason(TABLE, "remote", "AccessDenied")
    put_secret(stage.space, "keys", environ)
    status = stage.space.await_reason(TABLE, "remote", "Created")
    assert status["version"] == 0
    text = str(stage.space.cluster.request("GET", stage.space.url(TABLE)))
    assert environ["AWS_SECRET_ACCESS_KEY"] not in text
    stage.space.delete(TABLE, "remote")
    stage.space.await_gone(TABLE, "remote")


def put_secret(space: Resources, name: str, values: dict[str, str]) -> None:
    url = f"/api/v1/namespaces/{space.namespace}/secrets"
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    there = [item["metadata"]["name"] for item in space.cluster.request("GET", url)["items"]]
    if name in there:
        space.cluster.request("PUT", f"{url}/{name}", body)
    else:
        space.cluster.request("POST", url, body)


def test_a_table_may_be_deleted_and_made_again(stage: Stage) -> None:
    lake = stage.lake("cycle")
    stage.space.await_reason(TABLE, "cycle", "Adopted")
    stage.space.delete(TABLE, "cycle")
    stage.space.await_gone(TABLE, "cycle")
    stage.space.compaction("between", "cycle")
    stage.space.await_reason(KIND, "between", "WaitingForDependency")
    stage.space.table("cycle", lake.location)
    status = stage.space.await_end(KIND, "between")
    assert (status["phase"], reason_of(status)) == ("Succeeded", "Committed")
    await_that(
        lambda: stage.space.status(TABLE, "cycle").get("version") == lake.version,
        lambda: stage.space.status(TABLE, "cycle"),
    )
