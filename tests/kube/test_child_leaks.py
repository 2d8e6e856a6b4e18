"""Nothing of a child outlives it for good: its locks, its membership and its slots."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kube.child_links import turns
from kube.child_stage import TABLE, Stage, settings_of
from support.cluster.child_hooks import Halts, kill, quickly, recorded
from support.cluster.operator_thread import Operator, Resources, operating
from support.waiting import LIMIT_S, await_that
from tandem.errors import LocksUnavailable, TandemError
from tandem.kube import operator as operator_module
from tandem.kube.children import processes
from tandem.kube.children.link import Link
from tandem.kube.children.services import ChildServices
from tandem.kube.runtime.leader import MEMBERS
from tandem.kube.runtime.slots import JobLimits, JobSlots, Lane
from tandem.kube.runtime.tenants import Tenant
from tandem.locks.rules import Granted, LockRequest, Waiting
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


class Locks(InProcessLocks):
    """The operator's, which may not answer."""

    made: list[Locks]

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.answers = threading.Event()
        self.answers.set()
        self.joining = threading.Event()
        self.made.append(self)

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        if request.table == MEMBERS and not self.answers.is_set():
            self.joining.set()
            self.answers.wait(LIMIT_S)
        return super().acquire(request)

    def release(self, table: str, operation: str, owner: str) -> None:
        if table == MEMBERS and self.refused:
            self.refused -= 1
            raise LocksUnavailable("the test")
        super().release(table, operation, owner)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Locks]:
    found: list[Locks] = []
    monkeypatch.setattr(Locks, "made", found, raising=False)
    monkeypatch.setattr(operator_module, "InProcessLocks", Locks)
    return found


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    quickly(monkeypatch)
    monkeypatch.setattr(processes, "LOCKS_S", 1.0)
    space = Resources(cluster, cluster.namespace("leaks"))
    return Stage(space, tmp_path, Halts(tmp_path), recorded(monkeypatch))


def test_locks_of_a_dead_child_whose_operation_and_table_are_gone(
    stage: Stage, made: list[Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other one takes them over."""
    monkeypatch.setattr(processes, "_PAUSES_S", (3.0,))
    settings = settings_of(stage.space.cluster, stage.space.namespace)
    with operating(settings, stage.jobs, configure_child=stage.halts):
        table, lake = stage.lake()
        with stage.jobs.held():
            kind, name = stage.apply(table, lake.delete("ln(v + 1) > 8"))
            await_that(lambda: stage.jobs.started, "its job is not started")
            kill(stage.children.only())
            stage.space.delete(TABLE, table)
            stage.space.delete(kind, name)
            stage.space.await_gone(kind, name)
        await_that(lambda: not made[0].entries(lake.location), "its locks stay")


def test_locks_of_a_child_that_was_killed_after_its_commit(stage: Stage, made: list[Locks]) -> None:
    """The next one finds the commit, and needs none."""
    settings = settings_of(stage.space.cluster, stage.space.namespace)
    with operating(settings, stage.jobs, configure_child=stage.halts):
        table, lake = stage.lake()
        stage.halts.at(Point.RELEASE_LOCKS)
        operation = stage.apply(table, lake.update("id < 12", v="v + 1"))
        stage.halts.await_reached()
        kill(stage.children.only())
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"
        await_that(lambda: not made[0].entries(lake.location), "its locks stay")
    lake.assert_clean()


def test_a_child_whose_end_the_lock_store_did_not_learn_at_once(
    stage: Stage, made: list[Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(stage.space.cluster, stage.space.namespace)
    with operating(settings, stage.jobs, configure_child=stage.halts):
        table, lake = stage.lake()
        stage.halts.at(Point.RECONCILE)
        operation = stage.apply(table, lake.update("id < 12", v="v + 1"))
        stage.halts.await_reached()
        made[0].refused = 2
        kill(stage.children.only())
        assert stage.space.await_end(*operation, limit_s=20)["phase"] == "Succeeded"
    lake.assert_clean()


def controllers(operator: Operator) -> list[str]:
    """The tasks that control resources."""
    return [str(task) for task in operator.tasks() if task.get_name() == "control a resource"]


def test_a_child_that_is_no_longer_wanted_while_it_begins(
    stage: Stage, made: list[Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun then, and ends as any other one."""
    monkeypatch.setattr(processes, "IDLE_S", 1.0)
    settings = settings_of(stage.space.cluster, stage.space.namespace)
    with operating(settings, stage.jobs, configure_child=stage.halts) as operator:
        table, _ = stage.lake()
        made[0].answers.clear()
        other = {"storage": {"secretRef": {"name": "other"}}}
        stage.space.patch(TABLE, table, {"spec": other})
        assert made[0].joining.wait(LIMIT_S)
        stage.space.delete(TABLE, table)
        made[0].answers.set()
        await_that(lambda: len(controllers(operator)) == 0, lambda: controllers(operator))
        await_that(lambda: len(made[0].entries(MEMBERS)) == 1, lambda: made[0].entries(MEMBERS))


def test_an_operation_deleted_while_it_moves_is_cleaned_up(stage: Stage, made: list[Locks]) -> None:
    """Its controller leaves it, since it moves, and hears no more of the deletion."""
    space, other = stage.space, {"secretRef": {"name": "other"}}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other"}, "data": {}}
    space.cluster.request("POST", f"/api/v1/namespaces/{space.namespace}/secrets", body)
    settings = settings_of(space.cluster, space.namespace, small_job_bytes=0)
    with operating(settings, stage.jobs, configure_child=stage.halts):
        table, lake = stage.lake()
        sent: list[str] = []
        link = stage.children.only().services.link
        notify = link.notify

        def notifying(name: str, *arguments: Any) -> None:
            sent.append(name)
            notify(name, *arguments)

        link.notify = notifying  # type: ignore[method-assign]
        with stage.jobs.held():
            stage.halts.at(Point.POLL_JOB)
            operation = stage.apply(table, lake.delete("k = 3"))
            stage.halts.await_reached()
            space.patch(TABLE, table, {"spec": {"storage": other}})
            await_that(lambda: sent.count("stop") >= 2, lambda: sent)
            moved = sent.count("stop")
            space.delete(*operation)
            await_that(lambda: sent.count("stop") > moved, lambda: sent)
            stage.halts.go()
            await_that(lambda: stage.jobs.stopped == stage.jobs.started, "its job is not stopped")
        await_that(lambda: not made[0].entries(lake.location), "its locks stay")
    lake.assert_clean()


def test_descriptors_of_children_that_have_ended(stage: Stage) -> None:
    """They do not wait until garbage is collected."""

    def open_ones() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    settings = settings_of(stage.space.cluster, stage.space.namespace)
    with operating(settings, stage.jobs, configure_child=stage.halts):
        stage.lake()
        gc.disable()
        try:
            before = open_ones()
            for _ in range(5):
                kill(stage.children.only())
                await_that(stage.children.living, "no other one begins")
            await_that(lambda: open_ones() < before + 5, lambda: (before, open_ones()))
        finally:
            gc.enable()


@pytest.mark.parametrize("pauses", range(4))
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("how", ["given back", "ended"])
def test_a_slot_that_is_no_longer_wanted(how: str, free: bool, pauses: int) -> None:
    """However soon after it was asked for, it is free again."""
    slots, lane = JobSlots(JobLimits(1)), Lane("n", "t")

    async def main() -> None:
        if not free:
            slots.force(lane)
        ours, theirs = socket.socketpair()
        context = cast("Any", SimpleNamespace(slots=slots, locks=InProcessLocks()))
        services = ChildServices(
            context,
            Tenant("n"),
            (),
            cast("Any", None),
            cast("Any", None),
            lambda _: None,
            set(),
        )
        await services.link.connect(ours)
        other = Link({"slots.queued": lambda _ticket, _why: None})
        await other.connect(theirs)
        serving = asyncio.gather(services.link.serve(), other.serve())
        calling = asyncio.create_task(other.call("slots.take", 0, "n", "t"))
        await turns(1 + pauses)
        if not free:
            slots.give_back(lane)
        if how == "given back":
            other.notify("slots.give_back", 0)
            with pytest.raises(TandemError):
                await other.call("what is answered after it")
            assert (slots.taken, slots.waiting) == (0, 0)
        other.close()
        await serving
        services.close()
        await asyncio.gather(calling, return_exceptions=True)

    asyncio.run(main())
    assert (slots.taken, slots.waiting) == (0, 0)
