"""Jobs in the engine's process that are stopped, or go on elsewhere: what they may still say."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest

from spark.test_in_process import Asked, sort_of, statement_of, until_answered
from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.waiting import await_that
from tandem.jobs.results import JobResult
from tandem.spark import in_process
from tandem.spark.in_process import InProcessJobs
from tandem.spark.runtime.control import Control


@pytest.mark.parametrize("app", ["rewrite", "statement"])
def test_a_job_that_is_stopped_before_its_turn_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    """An interrupt of many operations waits for those that compute, not for all, one by one."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    jobs = InProcessJobs(NoSpark())
    lake = quick_lake.make(tmp_path)
    asked = sort_of(lake, 1) if app == "rewrite" else statement_of(lake, "`k` = 1", v="0")
    with jobs._slots:
        jobs.start(*asked)
        job = jobs._jobs[asked[0].name]
        await_that(lambda: job.waits, "a job that waits for its turn")
        jobs.stop(asked[0])
        assert job.thread.is_alive()
    job.thread.join()
    assert not job.control.said.results
    assert list((lake.path / asked[2].data_prefix).rglob("*")) == []


def test_a_job_on_spark_that_was_stopped_stores_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may outlive `stop`; what is below its attempt is deleted then."""
    monkeypatch.setattr(in_process, "KEPT_AFTER_S", 0.0)
    monkeypatch.setattr(in_process, "END_SECONDS", 0.01)
    monkeypatch.setattr(in_process, "STOP_SECONDS", 0.01)
    at_work, go_on = threading.Event(), threading.Event()

    def works(control: Control, *_: object) -> None:
        at_work.set()
        assert go_on.wait(100)
        ref = control.side_file(0, "matches.arrow", b"rows")
        spec = control.spec
        result = JobResult(operation_id=spec.operation_id, attempt=spec.attempt, matches=ref)
        assert not control.publish(result)

    monkeypatch.setattr(in_process, "run", works)
    lake = quick_lake.make(tmp_path)
    spark = Asked()
    spark.open.set()
    jobs = InProcessJobs(spark)
    asked = statement_of(lake, "greatest(`k`, 1) = 1")
    jobs.start(*asked)
    assert at_work.wait(100)
    job = jobs._jobs[asked[0].name]
    jobs.stop(asked[0])
    go_on.set()
    job.thread.join()
    assert job.failure is None
    folder = lake.path / asked[2].control_prefix
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["job.json"]


def test_of_two_evaluations_of_a_round_the_first_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that goes on on Spark evaluates its first round again; rounds that followed the first
    result refer to its files."""
    monkeypatch.setattr(in_process, "KEPT_AFTER_S", 0.0)
    lake = quick_lake.make(tmp_path)
    jobs = InProcessJobs(NoSpark())
    key, request, spec = statement_of(lake, "`k` = 1", v="0")
    jobs.start(key, request, spec)
    first = until_answered(jobs, key, 0)
    control = jobs._jobs[key.name].control
    stored = lake.path / control.round_path(0, "result.json")
    stored.unlink()
    assert not control.publish(first.model_copy(update={"outputs": ()}))
    assert not stored.exists()
    assert jobs.result(key, 0) is first
    jobs.stop(key)


def test_tasks_of_spark_count_where_the_engine_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def works(control: Control, *_: object) -> None:
        pickle.loads(pickle.dumps(control.counters(0))).show(0, 3)
        found.append(control.counters(0).counts())

    monkeypatch.setattr(in_process, "run", works)
    spark = Asked()
    spark.open.set()
    jobs = InProcessJobs(spark)
    asked = statement_of(quick_lake.make(tmp_path), "greatest(`k`, 1) = 1")
    jobs.start(*asked)
    jobs._jobs[asked[0].name].thread.join()
    assert found == [{0: 3}]
