"""Small jobs that need Spark, in a JVM beside a child, under a real API server, without a Spark
operator. Children and JVMs are killed, and run out of memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube.child_stage import Stage, settings_of
from support.cluster.child_hooks import HarmsJvm, jvm_of, kill, recorded
from support.cluster.operator_thread import HeldJobs, Resources, operating
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.lake.rewritten import replace_all
from tandem.cli.commands.operator import on_spark_beside
from tandem.errors import InvalidSpec, SparkMissing
from tandem.jobs.runner import SMALL_BYTES
from tandem.kube import operator as operator_module
from tandem.kube.children import process
from tandem.kube.children.process import ChildProcess
from tandem.kube.client.api import Api
from tandem.kube.runtime.context import OperatorSettings
from tandem.spark.runtime import session
from tandem.spec.common import Operation

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

_MEMORY = 512 << 20
_ODD = '"id","k","v"\n"+901"," 1 ","-5"\n'
"""Numbers in forms that only Spark converts."""


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A namespace, before any operator."""
    space = Resources(cluster, cluster.namespace("small-spark"))
    return Stage(space, tmp_path, None, recorded(monkeypatch))  # type: ignore[arg-type]


@contextmanager
def running(stage: Stage, harms: HarmsJvm | None = None, **more: Any) -> Iterator[None]:
    settings = settings_of(
        stage.space.cluster,
        stage.space.namespace,
        small_jobs_on_spark=True,
        table_memory=_MEMORY,
    )
    jobs: HeldJobs = stage.jobs
    with operating(settings, jobs, configure_child=harms, **more):
        yield


def needs_spark(lake: QuickLake) -> Operation:
    return lake.delete("ln(v + 1) > 8")


def succeeds(stage: Stage, table: str, operation: Operation, attempt: int = 1) -> None:
    status = stage.space.await_end(*stage.apply(table, operation))
    assert (status["phase"], status["attempt"]) == ("Succeeded", attempt), status


def test_small_jobs_have_spark_without_a_spark_operator(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replace, odd CSV and a function that only Spark has, one after the other in one JVM, which
    ends with the operator."""
    served = operator_module._served

    async def without(api: Api, group: str) -> set[str]:
        return set() if group.startswith("sparkoperator") else await served(api, group)

    monkeypatch.setattr(operator_module, "_served", without)
    with running(stage, spark=True):
        table, lake = stage.lake()
        succeeds(stage, table, replace_all(lake, batch(70)))
        lake.assert_rows(batch(70))
        child = stage.children.only()
        jvm = jvm_of(child.pid)
        assert jvm
        odd = stage.folder / "odd.csv"
        odd.write_text(_ODD)
        source = {"format": "Csv", "location": odd.as_uri(), "options": {"header": "true"}}
        succeeds(stage, table, lake.resource("TableIngest", {"source": source}))
        lake.assert_rows((*batch(70), (901, 1, -5)))
        succeeds(stage, table, lake.delete("ln(k + 1) > 1"))
        kept = tuple(row for row in batch(70) if row[1] < 2)
        lake.assert_rows((*kept, (901, 1, -5)))
        assert jvm_of(child.pid) == jvm
        lake.assert_clean()
        assert_bounded(child, jvm)
    assert not list(process.session_processes(child.pid))
    path = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{stage.space.namespace}"
    assert stage.space.cluster.request("GET", f"{path}/sparkapplications")["items"] == []


def assert_bounded(child: ChildProcess, jvm: int) -> None:
    """The JVM and its Python workers have a bound of their own, and count with their child."""
    others = set(process.session_processes(child.pid)) - {child.pid}
    assert jvm in others
    assert len(others) > 1
    for pid in others:
        limits = Path(f"/proc/{pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max data size")]
        assert line.split()[3:5] == [str(1 << 30)] * 2
    sizes = [process._memory_of(pid) for pid in (child.pid, jvm)]
    assert child.memory >= sum(sizes) > sizes[0] > 0


@pytest.mark.parametrize("how", ["kill", "fill"])
def test_a_job_whose_jvm_ends_has_an_application_in_the_same_attempt(
    stage: Stage, how: str
) -> None:
    """And the child, and other jobs, go on. One without memory ends: it does not limp on."""
    with running(stage, HarmsJvm(stage.folder, how)):
        table, lake = stage.lake()
        child = stage.children.only()
        (stage.folder / "harm").touch()
        succeeds(stage, table, needs_spark(lake))
        assert len(stage.jobs.started) == 1
        assert not jvm_of(child.pid)
        assert stage.children.only() is child
        lake.assert_clean()


def test_a_child_that_is_killed_leaves_no_jvm_and_no_file(stage: Stage) -> None:
    """Not even one that does not end by itself."""
    with running(stage):
        table, lake = stage.lake()
        succeeds(stage, table, needs_spark(lake))
        child = stage.children.only()
        jvm = jvm_of(child.pid)
        assert child.folder is not None
        assert list(child.folder.iterdir())
        os.kill(jvm, signal.SIGSTOP)
        kill(child)
        assert not list(process.session_processes(child.pid))
        assert not child.folder.exists()
    assert not stage.jobs.started


# The option


def test_no_jvm_unless_the_administrator_allows_it() -> None:
    assert not OperatorSettings().small_jobs.heap
    assert not on_spark_beside(False, 0)


@pytest.mark.parametrize(
    ("memory", "heap"),
    [(256 << 20, 512 << 20), (1536 << 20, 768 << 20), (1 << 36, 1 << 30), (None, 1 << 30)],
)
def test_the_heap_is_half_of_what_a_child_may_have(memory: int | None, heap: int) -> None:
    """Within what Spark needs, and what a small application has."""
    settings = OperatorSettings(small_jobs_on_spark=True, table_memory=memory)
    assert settings.small_jobs.heap == heap


@pytest.mark.parametrize(
    ("small", "memory", "java", "error"),
    [
        (0, 1 << 40, True, InvalidSpec),
        (SMALL_BYTES, (2 << 30) - 1, True, InvalidSpec),
        (SMALL_BYTES, 2 << 30, False, SparkMissing),
        (SMALL_BYTES, 2 << 30, True, None),
    ],
)
def test_what_the_option_needs_is_checked_at_the_start(
    small: int,
    memory: int,
    java: bool,
    error: type[Exception] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "memory_here", lambda: (memory, True))
    if not java:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    if error is None:
        assert on_spark_beside(True, small)
    else:
        with pytest.raises(error, match=r"tandem operator\.--small-jobs-on-spark: "):
            on_spark_beside(True, small)
