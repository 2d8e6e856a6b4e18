"""A job pool with Spark: `tandem dev` starts its driver as a process, which does several jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.test_job_pools import KIND, Stage
from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import operating
from support.waiting import await_that
from tandem.spark.launch.local import LocalRunner

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

LIMIT_S = 400.0


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalRunner]:
    made = LocalRunner(logs=tmp_path / "logs")
    yield made
    made.close()


@pytest.mark.matrix
def test_one_driver_does_rewrites_and_statements(
    cluster: Cluster, tmp_path: Path, runner: LocalRunner
) -> None:
    stage = Stage(cluster, tmp_path)
    for name in ("a", "b"):
        stage.table(name)
    with (
        spark_operator(cluster, stage.space.namespace, runner),
        operating(stage.settings(), stage.jobs, spark=True),
    ):
        stage.space.compaction("a", "a")
        stage.space.compaction("b", "b")
        for name in ("a", "b"):
            status = stage.space.await_end(KIND, name, LIMIT_S)
            assert status["phase"] == "Succeeded", status
        deleted = {"tableRef": {"name": "b"}, "delete": {"where": "id % 2 = 0"}}
        stage.space.create("TableUpdate", "u", deleted)
        status = stage.space.await_end("TableUpdate", "u", LIMIT_S)
        assert status["phase"] == "Succeeded", status
        (application,) = stage.applications()
        assert application["status"]["applicationState"]["state"] == "RUNNING"
        await_that(lambda: not stage.jobs_left(), stage.jobs_left)
    (log,) = (tmp_path / "logs").glob("*.log")
    assert log.read_text().count("ended with exit code 0") == 3
    for lake in stage.lakes.values():
        lake.assert_clean()
