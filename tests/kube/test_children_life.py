"""The children of an operator, from begin to end, under a real API server: which resources each
has, and that none outlives its use."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kube.child_stage import TABLE, Stage, settings_of
from support.cluster.child_hooks import Ends, Fails, Halts, kill, quickly, recorded
from support.cluster.operator_thread import Operator, Resources, condition, operating
from support.jobs import quick_lake
from support.lake.lake import batch
from support.lake.rows import id_in, plus
from support.waiting import await_that
from tandem.kube import operator as operator_module
from tandem.kube.children import process, processes
from tandem.kube.children.process import ChildProcess
from tandem.kube.children.start import LEAST_MEMORY
from tandem.kube.runtime import controller_tasks
from tandem.operations.machine.events import Point
from tandem.spark.runtime.session import alive

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from tandem.kube.client.api import Api


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A namespace, before any operator."""
    quickly(monkeypatch)
    space = Resources(cluster, cluster.namespace("child-life"))
    return Stage(space, tmp_path, Halts(tmp_path), recorded(monkeypatch))


@contextmanager
def running(
    stage: Stage, *others: str, table_memory: int | None = None, **more: Any
) -> Iterator[Operator]:
    spaces = (stage.space.namespace, *others)
    settings = settings_of(stage.space.cluster, *spaces, table_memory=table_memory)
    with operating(settings, stage.jobs, **{"configure_child": stage.halts, **more}) as operator:
        yield operator


# One for each tenant


def test_a_death_in_one_namespace_is_not_noticed_in_another(stage: Stage, cluster: Cluster) -> None:
    space = Resources(cluster, cluster.namespace("neighbour"))
    neighbour = Stage(space, stage.folder / "n", stage.halts, stage.children, stage.jobs)
    with running(stage, space.namespace):
        stage.lake()
        table, lake = neighbour.lake()
        stage.halts.at(Point.RECONCILE)
        operation = neighbour.apply(table, lake.update("id < 12", v="v + 1"), backoffLimit=0)
        stage.halts.await_reached()
        child = stage.children.only(space.namespace)
        kill(stage.children.only(stage.space.namespace))
        await_that(lambda: stage.children.living(stage.space.namespace), "no other one begins")
        assert stage.children.only(space.namespace) is child
        stage.halts.go()
        assert space.await_end(*operation)["attempt"] == 1
    assert not stage.jobs.started


def test_a_table_with_another_secret_moves_to_another_child(stage: Stage) -> None:
    """And so do its operations, and what else their child controls, at no cost."""
    space = stage.space
    for name in ("one", "other"):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {}}
        space.cluster.request("POST", f"/api/v1/namespaces/{space.namespace}/secrets", body)
    with running(stage):
        storage = {"secretRef": {"name": "one"}}
        (name, lake), (stays, neighbour) = stage.lake(storage=storage), stage.lake(storage=storage)
        first = stage.children.only()
        with stage.jobs.held():
            moves = stage.apply(name, lake.delete("ln(v + 1) > 8"), backoffLimit=0)
            await_that(lambda: stage.jobs.started, "its job is not started")
            stage.halts.at(Point.RECONCILE)
            remains = stage.apply(stays, neighbour.update("id < 12", v="v + 1"), backoffLimit=0)
            stage.halts.await_reached()
            space.patch(TABLE, name, {"spec": {"storage": {"secretRef": {"name": "other"}}}})
            stage.halts.await_asked()
            stage.halts.go()
            await_that(lambda: first.end == "it has left what it controlled", lambda: first.end)

            def moved() -> bool:
                runs = {child.key.secret: child.runs for child in stage.children.living()}
                return set(runs) == {"one", "other"} and len(runs["other"]) == 2

            await_that(moved, lambda: stage.children.living())
        for operation in (moves, remains):
            status = space.await_end(*operation)
            assert status["phase"] == "Succeeded", status
    assert len(stage.jobs.started) == 1
    lake.assert_clean()
    neighbour.assert_clean()


def test_a_table_that_ends_its_children_has_one_to_itself(stage: Stage, tmp_path: Path) -> None:
    """Its neighbours go on, and it comes back once it is smaller."""
    ends = Ends(tmp_path)
    ends.bomb.touch()
    bomb = quick_lake.make(tmp_path / "bombs")
    with running(stage, configure_child=ends):
        table, lake = stage.lake()
        stage.space.table("bomb", bomb.location)
        stage.space.compaction("waits", "bomb")
        found = stage.space.await_reason(TABLE, "bomb", "TooLarge")
        ready = condition(found, "Ready")
        assert "killed by SIGKILL" in ready["message"]
        assert "--table-memory" in ready["message"]
        child = stage.children.only()
        operation = stage.apply(table, lake.compaction("Major"), backoffLimit=0)
        assert stage.space.await_end(*operation)["attempt"] == 1
        assert stage.children.only() is child
        ends.bomb.unlink()
        stage.space.await_phase(TABLE, "bomb", "Succeeded")
        assert stage.space.await_end("TableCompaction", "waits")["phase"] == "Succeeded"
    lake.assert_clean()


def test_a_controller_that_fails_runs_again(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the child that lives on."""
    monkeypatch.setattr(controller_tasks, "_RETRY_S", 0.2)
    with running(stage, configure_child=Fails(tmp_path)):
        table, lake = stage.lake()
        child = stage.children.only()
        operation = stage.apply(table, lake.compaction("Major"))
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"
        assert (tmp_path / "failed").exists()
        assert stage.children.only() is child


# Its end


def test_a_child_that_does_not_answer_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(stage):
        table, lake = stage.lake()
        child = stage.children.only()
        freeze(child, monkeypatch)
        assert child.end == "it did not answer within 1 s"
        operation = stage.apply(table, lake.compaction("Major"))
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"
        assert stage.children.only() is not child


def freeze(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does nothing more, and does not end by itself; until that is noticed. The next one may
    take longer to begin."""
    with monkeypatch.context() as patched:
        patched.setattr(process, "ANSWER_S", 1.0)
        os.kill(child.pid, signal.SIGSTOP)
        await_that(lambda: child.end, "its end")


def test_an_idle_child_ends_and_another_one_takes_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IDLE_S", 1.0)
    with running(stage):
        name, _ = stage.lake()
        first = stage.children.only()
        stage.space.delete(TABLE, name)
        await_that(lambda: first.end == "it was idle", lambda: first.end)
        assert not alive(first.pid)
        assert stage.children.living() == []
        stage.lake()
        assert stage.children.only() is not first


def test_an_operator_that_ends_leaves_no_child(stage: Stage) -> None:
    """Also none that is stopped, and says nothing."""
    with running(stage):
        stage.lake()
        child = stage.children.only()
        os.kill(child.pid, signal.SIGSTOP)
    assert child.end == "the operator has ended"
    assert not alive(child.pid)


def test_the_end_of_an_operator_costs_no_attempt(stage: Stage) -> None:
    """What its processes have done is lost, as after Ctrl-C: the attempt ends as if it had not
    begun."""
    with running(stage) as operator:
        table, lake = stage.lake()
        stage.halts.at(Point.RECONCILE)
        operation = stage.apply(table, lake.update("id < 12", v="v + 1"), backoffLimit=0)
        stage.halts.await_reached()
        rows = lake.by_tandem()
        ending = threading.Thread(target=operator.stop)
        ending.start()
        stage.halts.await_asked()
        stage.halts.go()
        ending.join()
    with running(stage):
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"
    assert not stage.jobs.started
    lake.assert_rows(plus(rows, id_in(range(12)), 1))
    lake.assert_clean()


def test_an_operation_that_was_deleted_without_an_operator_is_cleaned_up(stage: Stage) -> None:
    with running(stage):
        table, lake = stage.lake()
        rows = lake.by_tandem()
        stage.halts.at(Point.RECONCILE)
        kind, name = stage.apply(table, lake.update("id < 12", v="v + 1"))
        stage.halts.await_reached()
        # Killed, it cleans nothing up.
        kill(stage.children.only())
        stage.halts.at(Point.RECONCILE)
        stage.halts.await_reached()
        stage.space.await_status(TABLE, table, lambda s: bool(s.get("runningOperations")))
    stage.space.delete(kind, name)
    assert stage.space.get(kind, name) is None
    with running(stage):
        await_that(lambda: not lake.unreachable(), lake.unreachable)
    assert len(stage.children.made) == 2
    lake.assert_rows(rows)
    lake.assert_clean()


def test_an_operation_that_the_next_child_cancels_is_not_named_for_ever(stage: Stage) -> None:
    """A write that finds the resource gone says so once more."""
    with running(stage):
        table, lake = stage.lake()
        stage.halts.at(Point.RECONCILE)
        kind, name = stage.apply(table, lake.update("id < 12", v="v + 1"))
        stage.halts.await_reached()
        stage.space.await_status(TABLE, table, lambda s: bool(s.get("runningOperations")))
        stage.space.delete(kind, name)
        stage.halts.await_asked()
        stage.halts.at(Point.RELEASE_LOCKS)
        kill(stage.children.only())
        stage.halts.await_reached()
        assert stage.space.status(TABLE, table)["runningOperations"]
        stage.halts.go()
        stage.space.await_status(TABLE, table, lambda s: s.get("runningOperations") == [])
    lake.assert_clean()


def test_an_operator_that_dies_leaves_no_child(stage: Stage, tmp_path: Path) -> None:
    """It is killed, and says nothing to them."""
    script = tmp_path / "operator_that_dies.py"
    script.write_text(_OPERATOR)
    lake = quick_lake.make(tmp_path)
    stage.space.table("t", lake.location)
    cluster = stage.space.cluster
    command = [sys.executable, str(script), str(cluster.operator_kubeconfig), stage.space.namespace]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as operator:
        stage.space.await_phase(TABLE, "t", "Succeeded")
        pids = descendants(operator.pid)
        assert len(pids) >= 2  # a template, and a child
        operator.kill()
    try:
        await_that(lambda: not any(map(alive, pids)), lambda: pids, limit_s=30)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


_OPERATOR = """
import asyncio, sys
from pathlib import Path
from tandem.kube.operator import run_operator
from tandem.kube.runtime.context import OperatorSettings

if __name__ == "__main__":
    asyncio.run(run_operator(OperatorSettings((sys.argv[2],), kubeconfig=Path(sys.argv[1]))))
"""


def descendants(pid: int) -> list[int]:
    """Processes that it has begun, and those that they have."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            text = stat.read_text()
            parents[int(text.split()[0])] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found.extend(child for child, parent in parents.items() if parent == each)
    return found[1:]


def test_a_child_lives_on_without_the_fork_server(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends when it cannot fork; then nothing says how its children end."""
    with running(stage):
        table, lake = stage.lake()
        child = stage.children.only()
        server = vars(multiprocessing.forkserver._forkserver)["_forkserver_pid"]
        os.kill(server, signal.SIGKILL)
        await_that(lambda: not alive(server), "its end")
        operation = stage.apply(table, lake.update("id < 12", v="v + 1"))
        assert stage.space.await_end(*operation)["attempt"] == 1
        assert stage.children.only() is child
        freeze(child, monkeypatch)
        assert not alive(child.pid)
        operation = stage.apply(table, lake.compaction("Major"))
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"


# Its memory


def test_a_source_that_takes_too_much_memory_ends_one_attempt(stage: Stage, tmp_path: Path) -> None:
    """Sixty-four million rows in a few kilobytes."""
    bomb = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"id": pa.nulls(64_000_000, pa.int64()).fill_null(1)}), bomb)
    with running(stage, table_memory=LEAST_MEMORY):
        table, lake = stage.lake()
        source = {"format": "Parquet", "location": bomb.as_uri()}
        ingest = lake.resource("TableIngest", {"source": source, "backoffLimit": 0})
        child = stage.children.only()
        assert stage.space.await_end(*stage.apply(table, ingest))["phase"] == "Failed"
        # Memory that it does not give back would be short for its neighbours.
        # It may also be its link that finds no memory: that ends it at once.
        ends = ("it has left what it controlled", "its process ended with exit code 1")
        await_that(lambda: child.end in ends, lambda: child.end)
        operation = stage.apply(table, lake.compaction("Major"))
        assert stage.space.await_end(*operation)["attempt"] == 1
    assert not stage.jobs.started
    lake.assert_clean()


def test_many_operations_at_once_are_done_within_the_least_memory(stage: Stage) -> None:
    """Each job has a thread, and waits for its turn."""
    with running(stage, table_memory=LEAST_MEMORY):
        lakes = [stage.lake() for _ in range(12)]
        child = stage.children.only()
        operations = [stage.apply(table, lake.merge(batch(1) + batch(90))) for table, lake in lakes]
        for operation in operations:
            status = stage.space.await_end(*operation)
            assert (status["phase"], status["attempt"]) == ("Succeeded", 1)
        assert stage.children.only() is child
    assert not stage.jobs.started


# What outlives a run of kopf


def test_children_outlive_a_run_of_kopf(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf starts again when there is a Spark operator; an operation costs that no attempt."""
    served, hidden = operator_module._served, [True]

    async def without(api: Api, group: str) -> set[str]:
        if hidden and group.startswith("sparkoperator"):
            return set()
        return await served(api, group)

    monkeypatch.setattr(operator_module, "_served", without)
    monkeypatch.setattr(operator_module, "_SPARK_S", 0.2)
    with running(stage, spark=True) as operator:
        table, lake = stage.lake()
        child = stage.children.only()
        stage.halts.at(Point.RECONCILE)
        operation = stage.apply(table, lake.ingest(batch(70)), backoffLimit=0)
        stage.halts.await_reached()
        hidden.clear()
        stage.halts.await_asked()
        stage.halts.go()
        await_that(
            lambda: any("sparkapplications" in task.get_name() for task in operator.tasks()),
            "a watch of SparkApplications",
        )
        assert stage.space.await_end(*operation)["phase"] == "Succeeded"
        assert stage.children.only() is child
        again = stage.apply(table, lake.compaction("Major"))
        assert stage.space.await_end(*again)["phase"] == "Succeeded"
    lake.assert_clean()
