"""The event loop does no work: whatever touches a table or locks does so in a thread. And what
many resources at once cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.jobs import quick_lake
from tandem.kube.runtime.slots import JobLimits
from tandem.locks.rules import LockRequest
from tandem.locks.store import InProcessLocks
from tandem.storage.renewable import RenewableStore

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

_CALLS = ("get", "get_range", "head", "list", "put", "put_if_absent", "delete", "delete_prefix")
_LOCKS = ("acquire", "extend", "wait", "enter_commit", "leave_commit", "release", "entries")


def in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of stores and locks that were made in the thread of an event loop."""
    found: list[str] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if in_a_loop():
                found.append(name)
            return method(*args, **options)

        return call

    for owner, names in ((RenewableStore, _CALLS), (InProcessLocks, _LOCKS)):
        for name in names:
            method = watched(f"{owner.__name__}.{name}", getattr(owner, name))
            monkeypatch.setattr(owner, name, method)
    return found


def test_nothing_blocks_the_loop(cluster: Cluster, tmp_path: Path, on_the_loop: list[str]) -> None:
    space, jobs = Resources(cluster, cluster.namespace("loop")), HeldJobs()
    lake = quick_lake.make(tmp_path)
    with operating(quick_settings(cluster, space.namespace), jobs):
        space.table("t", lake.location)
        with jobs.held():
            space.compaction("m", "t")
            space.await_phase("TableCompaction", "m", "Running")
            # Others wait for locks, are suspended, and are deleted meanwhile.
            space.compaction("waits", "t", targetFileSize="64Mi")
            space.await_reason("TableCompaction", "waits", "WaitingForLock")
            space.delete("TableCompaction", "waits")
            space.await_gone("TableCompaction", "waits")
        space.update("u", "t", "k = 1", {"v": "v + 1"})
        assert space.await_end("TableCompaction", "m")["phase"] == "Succeeded"
        assert space.await_end("TableUpdate", "u")["phase"] == "Succeeded"
        space.delete("LakeTable", "t")
        space.await_gone("LakeTable", "t")
    assert on_the_loop == []
    lake.assert_clean()


def test_no_more_jobs_run_than_may(cluster: Cluster, tmp_path: Path) -> None:
    """Five updates, two slots, one after the other; who waits for a slot says so."""
    space, jobs = Resources(cluster, cluster.namespace("slots")), HeldJobs()
    lake = quick_lake.make(tmp_path)
    names = [f"u{number}" for number in range(5)]
    with operating(
        quick_settings(cluster, space.namespace, job_limits=JobLimits(2), progress_s=0.3), jobs
    ):
        space.table("t", lake.location)
        with jobs.held():
            for number, name in enumerate(names):
                space.update(name, "t", f"k = {number}", {"v": "v + 1"})
            phases = {"Running": 0, "Planned": 0, "Locked": 0}
            for name in names:
                status = space.await_status(
                    "TableUpdate",
                    name,
                    lambda s: s.get("phase") == "Running" or "fewer than 2" in str(s),
                )
                phases[status["phase"]] += 1
            assert phases["Running"] == 2
            assert len(jobs.started) == 2
        for name in names:
            assert space.await_end("TableUpdate", name)["phase"] == "Succeeded"
    lake.assert_clean()


def test_a_slow_waiter_may_be_stopped_while_it_waits_for_a_slot(
    cluster: Cluster, tmp_path: Path
) -> None:
    space, jobs = Resources(cluster, cluster.namespace("slots")), HeldJobs()
    lake = quick_lake.make(tmp_path)
    with operating(
        quick_settings(cluster, space.namespace, job_limits=JobLimits(1), progress_s=0.3), jobs
    ):
        space.table("t", lake.location)
        with jobs.held():
            space.update("runs", "t", "k = 1", {"v": "v + 1"})
            space.await_phase("TableUpdate", "runs", "Running")
            space.update("waits", "t", "k = 2", {"v": "v + 1"})
            space.await_status("TableUpdate", "waits", lambda s: "fewer than 1" in str(s))
            space.patch("TableUpdate", "waits", {"spec": {"suspend": True}})
            space.await_phase("TableUpdate", "waits", "Suspended")
            space.delete("TableUpdate", "waits")
            space.await_gone("TableUpdate", "waits")
        assert space.await_end("TableUpdate", "runs")["phase"] == "Succeeded"
    lake.assert_clean()


def test_an_operation_that_waits_for_a_slot_has_no_locks(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = list[str]()
    acquire = InProcessLocks.acquire

    def noted(locks: InProcessLocks, request: LockRequest) -> object:
        requested.append(request.table)
        return acquire(locks, request)

    monkeypatch.setattr(InProcessLocks, "acquire", noted)
    space, jobs = Resources(cluster, cluster.namespace("slots")), HeldJobs()
    lakes = [quick_lake.make(tmp_path / name) for name in ("one", "two")]
    settings = quick_settings(cluster, space.namespace, job_limits=JobLimits(1), progress_s=0.3)
    with operating(settings, jobs):
        for number, lake in enumerate(lakes):
            space.table(f"t{number}", lake.location)
        with jobs.held():
            space.update("runs", "t0", "k = 1", {"v": "v + 1"})
            space.await_phase("TableUpdate", "runs", "Running")
            space.update("waits", "t1", "k = 1", {"v": "v + 1"})
            space.await_status("TableUpdate", "waits", lambda s: "fewer than 1 jobs run" in str(s))
            assert lakes[0].location in requested
            assert lakes[1].location not in requested
        for name in ("runs", "waits"):
            assert space.await_end("TableUpdate", name)["phase"] == "Succeeded"
    for lake in lakes:
        lake.assert_clean()


def test_the_operator_has_a_deadline_for_operations_that_name_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    space, jobs = Resources(cluster, cluster.namespace("slots")), HeldJobs()
    lake = quick_lake.make(tmp_path)
    with operating(quick_settings(cluster, space.namespace, deadline_s=5), jobs):
        space.table("t", lake.location)
        with jobs.held():
            space.update("ends", "t", "k = 1", {"v": "v + 1"})
            space.update("stays", "t", "k = 2", {"v": "v + 1"}, activeDeadlineSeconds=6000)
            status = space.await_end("TableUpdate", "ends")
            assert status["conditions"][0]["reason"] == "DeadlineExceeded"
        assert space.await_end("TableUpdate", "stays")["phase"] == "Succeeded"
    lake.assert_clean()
