"""Operators come and go: what one leaves, the next one takes up. Locks in a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster.api_proxy import ApiProxy, Refuse
from support.cluster.operator_thread import (
    HeldJobs,
    Operator,
    Resources,
    operating,
    quick_settings,
    reason_of,
)
from support.jobs import quick_lake
from support.waiting import LIMIT_S, await_that
from tandem.kube.kopf_loop import LeadershipLost
from tandem.kube.runtime import controller_tasks
from tandem.kube.runtime.context import OperatorSettings
from tandem.kube.runtime.leader import MEMBERS, election
from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
from tandem.locks.rules import WHOLE_TABLE, LockRequest, Mode
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.options import passthrough

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"


class Stage:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.space = Resources(cluster, cluster.namespace("takeover"))
        self.jobs = HeldJobs()
        self.etcd = EtcdSettings((cluster.etcd_endpoint,), cluster.lock_prefix(), ttl_s=4)
        self._settings = quick_settings(cluster, self.space.namespace, etcd=self.etcd)
        self.lake = quick_lake.make(folder)
        self.space.table("t", self.lake.location)

    def settings(self, instance: str) -> OperatorSettings:
        return replace(self._settings, instance=instance)

    @contextmanager
    def locks(self) -> Iterator[EtcdLocks]:
        store = EtcdLocks(self.etcd)
        try:
            yield store
        finally:
            store.close()


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path) -> Stage:
    return Stage(cluster, tmp_path)


def test_a_running_job_goes_on_and_is_taken_over(stage: Stage) -> None:
    with stage.jobs.held():
        with operating(stage.settings("one"), stage.jobs):
            stage.space.compaction("m", "t")
            running = stage.space.await_phase(KIND, "m", "Running")
        # It has ended, the job has not; its status still says that it runs.
        assert stage.jobs.stopped == []
        with operating(stage.settings("two"), stage.jobs):
            stage.space.await_status("LakeTable", "t", lambda s: bool(s.get("heldLocks")))
            stage.jobs.release()
            status = stage.space.await_end(KIND, "m")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    assert status["startTime"] == running["startTime"]
    assert len(stage.jobs.started) == 1
    stage.lake.assert_clean()
    with stage.locks() as locks:
        assert locks.entries(stage.lake.location) == ()
        assert locks.entries(MEMBERS) == ()


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_running_operation_waits_no_more_for_what_it_depended_on(
    stage: Stage, comes_back: bool
) -> None:
    """Which is gone by its TTL, say, or created again and depends on the running one by now."""
    space, other = stage.space, ("TableUpdate", "before")
    with operating(stage.settings("one"), stage.jobs):
        space.update("before", "t", "k = 1", {"v": "v + 1"})
        space.await_end(*other)
    with stage.jobs.held():
        with operating(stage.settings("one"), stage.jobs):
            space.compaction("m", "t", dependsOn=[{"kind": other[0], "name": other[1]}])
            space.await_phase(KIND, "m", "Running")
            space.delete(*other)
            space.await_gone(*other)
        if comes_back:
            behind = [{"kind": KIND, "name": "m"}]
            space.update("before", "t", "k = 2", {"v": "v + 1"}, dependsOn=behind)
    with operating(stage.settings("two"), stage.jobs):
        status = space.await_end(KIND, "m")
        if comes_back:
            assert space.await_end(*other)["phase"] == "Succeeded"
    assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
    assert len(stage.jobs.started) == 2 + comes_back
    stage.lake.assert_clean()


def test_operations_deleted_while_no_operator_ran_are_cleaned_up(stage: Stage) -> None:
    with stage.jobs.held():
        with operating(stage.settings("one"), stage.jobs):
            stage.space.compaction("m", "t")
            stage.space.await_phase(KIND, "m", "Running")
            stage.space.await_status("LakeTable", "t", lambda s: bool(s.get("runningOperations")))
        stage.space.delete(KIND, "m")
        assert stage.space.get(KIND, "m") is None
        with operating(stage.settings("two"), stage.jobs):
            await_that(lambda: stage.jobs.stopped == stage.jobs.started, lambda: "not stopped")
    stage.lake.assert_clean()
    with stage.locks() as locks:
        # The lease of the one that is gone expires.
        await_that(lambda: not locks.entries(stage.lake.location), lambda: "still locked")


def test_what_an_operator_had_not_cancelled_is_cancelled_by_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while a job is being stopped, which takes long."""
    monkeypatch.setattr(controller_tasks, "_LEAVE_S", 0.5)
    stopping, over = threading.Event(), threading.Event()

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.STOP_JOB:
            stopping.set()
            over.wait(LIMIT_S)
        return call()

    with stage.jobs.held():
        with operating(stage.settings("one"), stage.jobs, interceptor):
            stage.space.compaction("m", "t")
            stage.space.await_phase(KIND, "m", "Running")
            stage.space.delete(KIND, "m")
            assert stopping.wait(LIMIT_S)
            stage.space.await_status(
                "LakeTable", "t", lambda s: s.get("runningOperations") == [f"{KIND}/m"]
            )
        with operating(stage.settings("two"), stage.jobs):
            await_that(lambda: stage.jobs.stopped == stage.jobs.started, lambda: "not stopped")
            stage.space.await_status("LakeTable", "t", lambda s: not s.get("runningOperations"))
        over.set()
    stage.lake.assert_clean()


def test_one_leads_and_the_other_follows(stage: Stage) -> None:
    first = Operator(stage.settings("one"), stage.jobs, passthrough).start()
    second = Operator(stage.settings("two"), stage.jobs, passthrough)
    second.launch()
    with stage.locks() as locks:
        await_that(lambda: len(locks.entries(election("tandem"))) == 2, lambda: "no second")
        assert not second.is_ready
        first.stop()
        second.start()
        (leader,) = locks.entries(election("tandem"))
        assert leader.request.operation == "two"
        stage.space.compaction("m", "t")
        assert stage.space.await_end(KIND, "m")["phase"] == "Succeeded"
        second.stop()
        assert locks.entries(election("tandem")) == ()


def test_a_follower_can_be_stopped(stage: Stage) -> None:
    with operating(stage.settings("one"), stage.jobs):
        second = Operator(stage.settings("two"), stage.jobs, passthrough)
        second.launch()
        with stage.locks() as locks:
            await_that(lambda: len(locks.entries(election("tandem"))) == 2, lambda: "no second")
            second.stop()
            assert len(locks.entries(election("tandem"))) == 1


def test_an_operator_that_lost_its_lease_stops(stage: Stage) -> None:
    """Another process of the same name takes its place, as after a restart of its container
    that it did not notice."""
    operator = Operator(stage.settings("one"), stage.jobs, passthrough).start()
    stage.space.await_reason("LakeTable", "t", "Adopted")
    with stage.locks() as locks, stage.jobs.held():
        stage.space.compaction("m", "t")
        stage.space.await_phase(KIND, "m", "Running")
        request = LockRequest(
            table=election("tandem"),
            operation="one",
            mode=Mode.EXCLUSIVE,
            resources=WHOLE_TABLE,
            owner="usurper",
        )
        locks.acquire(request)
        await_that(lambda: not operator.is_alive, lambda: "it goes on")
        with pytest.raises(LeadershipLost):
            operator.stop()
        before = stage.space.get(KIND, "m")
        stage.jobs.release()
        locks.release(election("tandem"), "one", "usurper")
        assert stage.space.get(KIND, "m") == before
    with operating(stage.settings("three"), stage.jobs):
        assert stage.space.await_end(KIND, "m")["phase"] == "Succeeded"
    stage.lake.assert_clean()


def test_deletion_just_before_the_commit_either_cancels_or_commits(stage: Stage) -> None:
    """The commit is being put when the deletion comes: it stands, and nothing is left."""

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT:
            stage.space.delete(KIND, "m")
        return call()

    with operating(stage.settings("one"), stage.jobs, interceptor):
        stage.space.compaction("m", "t")
        stage.space.await_gone(KIND, "m")
    assert stage.lake.version == 5
    stage.lake.assert_clean()


def test_deletion_before_the_commit_phase_commits_nothing(stage: Stage) -> None:
    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.READ_RESULT:
            stage.space.delete(KIND, "m")
        return call()

    with operating(stage.settings("one"), stage.jobs, interceptor):
        stage.space.compaction("m", "t")
        stage.space.await_gone(KIND, "m")
        version = stage.lake.version
        stage.space.compaction("m", "t")
        # Of the same name, and of the same spec: it is the same operation, and starts again.
        stage.space.await_gone(KIND, "m")
        await_that(lambda: not stage.lake.unreachable(), stage.lake.unreachable)
    assert version in (4, 5, 6)
    stage.lake.assert_clean()


def test_without_etcd_it_waits_and_says_so(stage: Stage, cluster: Cluster) -> None:
    """An operator that cannot reach etcd does not lead, writes nothing, and can be stopped."""
    nowhere = EtcdSettings(("127.0.0.1:1",), ttl_s=4, timeout_s=0.3)
    operator = Operator(replace(stage.settings("one"), etcd=nowhere), stage.jobs, passthrough)
    operator.launch()
    stage.space.compaction("m", "t")
    operator.stop()
    assert not operator.is_ready
    assert reason_of(stage.space.status(KIND, "m")) == ""


def test_a_watch_that_dies_at_its_first_request_is_restarted(
    stage: Stage, cluster: Cluster, tmp_path: Path
) -> None:
    """Between two looks at kopf's tasks: the others must not wait for ever to be authenticated
    again, which no one does in a kopf that ends."""
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        refused = proxy.strike(Refuse(410), verb="watch", resource="tablecompactions")
        settings = replace(stage.settings("one"), kubeconfig=proxy.kubeconfig(tmp_path))
        with operating(settings, stage.jobs) as operator:
            refused.wait()
            stage.space.compaction("after", "t")
            assert stage.space.await_end(KIND, "after")["phase"] == "Succeeded"
            assert operator.is_alive
    stage.lake.assert_clean()


def test_when_a_watch_dies_the_operator_restarts_it(
    stage: Stage, cluster: Cluster, tmp_path: Path
) -> None:
    """kopf ends as a whole when a watch is answered by 410; our process goes on, and leads."""
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        settings = replace(stage.settings("one"), kubeconfig=proxy.kubeconfig(tmp_path))
        with operating(settings, stage.jobs) as operator, stage.jobs.held():
            stage.space.compaction("before", "t")
            stage.space.await_phase(KIND, "before", "Running")
            refused = proxy.strike(Refuse(410), verb="watch", resource="tablecompactions")
            assert proxy.expire_watches("tablecompactions") > 0
            refused.wait()
            stage.jobs.release()
            assert stage.space.await_end(KIND, "before")["phase"] == "Succeeded"
            stage.space.update("after", "t", "k = 1", {"v": "v + 1"})
            assert stage.space.await_end("TableUpdate", "after")["phase"] == "Succeeded"
            assert operator.is_alive
    stage.lake.assert_clean()
