"""Small rewrites, updates, deletes and merges run in this process; other jobs where Spark is."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from support.jobs import job_files, quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_lake import just_before
from support.lake.lake import INSERT_ALL, Lake, batch
from support.lake.rows import k_is, plus, without
from tandem.errors import ObjectNotFound, Reason, SparkMissing
from tandem.jobs.formats import (
    InputFile,
    JobBin,
    JobLayout,
    RewriteJob,
    RoundRequest,
    StatementJob,
)
from tandem.jobs.results import JobResult
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobStatus
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.spark.jobs import local_statement
from tandem.spark.jobs.rewrite.bins import MEMORY
from tandem.spark.launch.local import InProcessJobs, needs_no_spark
from tandem.spark.runtime.control import Control, encode
from tandem.spec.status import Phase

SMALL = JobRequest(
    "job", "rewrite", "file:///lake", "job.json", input_bytes=SMALL_BYTES, tasks=1, attempt=1
)


@pytest.mark.parametrize(
    ("request_", "here"),
    [
        (SMALL, True),
        (replace(SMALL, input_bytes=SMALL_BYTES + 1), False),
        (replace(SMALL, tasks=0), True),  # it reorders rows
        (replace(SMALL, app="statement"), True),
        (replace(SMALL, app="merge"), True),
        (replace(SMALL, app="ingest"), False),
        (replace(SMALL, environ=(("AWS_SECRET_ACCESS_KEY", "x"),)), False),
    ],
    ids=["small", "large", "reorders", "statement", "merge", "ingest", "credentials"],
)
def test_which_jobs_need_no_spark(request_: JobRequest, here: bool) -> None:
    assert needs_no_spark(request_) is here


def test_a_compaction_runs_in_this_process(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    status = lake.run(lake.compaction("Major"), ports=ports)
    assert status.phase is Phase.SUCCEEDED
    lake.assert_rows(tuple(row for number in range(4) for row in batch(number)))
    lake.assert_clean()


@dataclass
class OnSpark(NoSpark):
    """A runner that says so of the jobs that it is asked for."""

    started: list[str] = field(default_factory=list)
    is_asked: threading.Event = field(default_factory=threading.Event)

    def start(self, request: JobRequest) -> None:
        self.started.append(request.name)
        self.is_asked.set()

    def status(self, name: str) -> JobStatus:
        return JobStatus(JobPhase.RUNNING, f"{name} on Spark")

    def stop(self, name: str) -> None:
        self.started.remove(name)


def test_a_sort_runs_in_this_process(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    layout = {"strategy": "Sort", "columns": ["v", "k"]}
    status = lake.run(lake.compaction("Major", layout=layout), ports=ports)
    assert status.phase is Phase.SUCCEEDED
    lake.assert_rows(tuple(row for number in range(4) for row in batch(number)))
    lake.assert_clean()


def sort_of(lake: Lake, size: int) -> JobRequest:
    """A job that sorts all files of a table by `v`, which are said to have so many bytes."""
    store, snapshot = lake.store, lake.log.snapshot()
    inputs = [i.model_copy(update={"size": size}) for i in job_files.input_files(store, snapshot)]
    job = RewriteJob(
        inputs=tuple(inputs),
        bins=(JobBin(inputs=tuple(range(len(inputs)))),),
        target_file_size=1 << 20,
        layout=JobLayout(strategy="Sort", columns=("v",)),
    )
    opened = job_files.control(store, snapshot, job)
    return replace(SMALL, location=store.location, spec_path=opened.path("job.json"))


def test_a_sort_whose_rows_do_not_fit_into_memory_is_passed_on(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    others = OnSpark()
    jobs = InProcessJobs(others)
    request = sort_of(lake, MEMORY)
    jobs.start(request)
    assert others.is_asked.wait(300)
    assert others.started == ["job"]
    jobs.start(request)  # again: it was started
    assert others.started == ["job"]
    jobs.stop("job")
    assert others.started == []
    assert jobs.status("job").message == "job on Spark"


def test_an_update_and_a_delete_run_in_this_process(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    before = tuple(row for number in range(4) for row in batch(number))
    assert lake.run(lake.update("k = 1", v="v + 15"), ports=ports).phase is Phase.SUCCEEDED
    after = plus(before, k_is(1), 15)
    lake.assert_rows(after)
    assert lake.run(lake.delete("k = 2"), ports=ports).phase is Phase.SUCCEEDED
    lake.assert_rows(without(after, k_is(2)))
    lake.assert_clean()


def test_a_merge_runs_in_this_process(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    before = tuple(row for number in range(4) for row in batch(number))
    changed, new = before[5][0], 5_000
    merge = lake.merge(((changed, 1, 77), (new, 2, 88)))
    assert lake.run(merge, ports=ports).phase is Phase.SUCCEEDED
    others = tuple(row for row in before if row[0] != changed)
    lake.assert_rows((*others, (changed, 1, 77), (new, 2, 88)))
    lake.assert_clean()


@pytest.mark.parametrize("what", ["update", "delete"])
def test_a_merge_in_this_process_goes_on_beside_another_writer(tmp_path: Path, what: str) -> None:
    """The engine takes its record and its copy of the source further."""
    lake = quick_lake.make(tmp_path)

    def act() -> None:
        if what == "update":
            lake.foreign().update({"v": "-1"}, predicate="id = 2")
        else:
            lake.foreign().delete("id = 2")

    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    when: dict[str, Any] = {"whenMatched": [{"where": "s.v > 0", "update": {"set": {"v": "s.v"}}}]}
    merge = lake.merge(((1, 1, 7), (2, 2, -7), (5_000, 0, 7)), **when, **INSERT_ALL)
    interceptor = just_before(Point.RECONCILE, act)
    assert lake.run(merge, ports=ports, interceptor=interceptor).phase is Phase.SUCCEEDED
    others = [row for number in range(4) for row in batch(number) if row[0] not in (1, 2)]
    second = (2, 2, -1 if what == "update" else -7)
    lake.assert_rows(tuple(sorted((*others, (1, 1, 7), second, (5_000, 0, 7)))))


def statement_of(lake: Lake, where: str, **set_: str) -> tuple[Control, JobRequest]:
    """A job that changes rows of all files of a table."""
    store, snapshot = lake.store, lake.log.snapshot()
    inputs = job_files.input_files(store, snapshot)
    job = StatementJob(where=where, set=set_, inputs=inputs, target_file_size=1 << 20)
    opened = job_files.control(store, snapshot, job)
    request = replace(SMALL, app="statement", location=store.location)
    return opened, replace(request, spec_path=opened.path("job.json"))


@pytest.mark.parametrize("where", [
    "greatest(`k`, 1) = 1",  # an expression that is not proven equal
    "1 / (`k` - 1) > 0",  # a row on which Spark raises
], ids=["expression", "row"])  # fmt: skip
def test_a_statement_that_needs_spark_is_passed_on(tmp_path: Path, where: str) -> None:
    others = OnSpark()
    jobs = InProcessJobs(others)
    opened, request = statement_of(quick_lake.make(tmp_path), where)
    jobs.start(request)
    assert others.is_asked.wait(300)
    with pytest.raises(ObjectNotFound):
        opened.result(0)
    jobs.stop("job")
    assert others.started == []


def test_a_statement_on_many_rows_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_statement, "MOST_ROWS_HERE", 39)
    others = OnSpark()
    jobs = InProcessJobs(others)
    _, request = statement_of(quick_lake.make(tmp_path), "`k` = 1")  # 40 rows
    jobs.start(request)
    assert others.is_asked.wait(300)
    jobs.stop("job")
    assert others.started == []


def until_answered(opened: Control, round_: int) -> JobResult:
    pause = threading.Event()
    for _ in range(30_000):
        try:
            return opened.result(round_)
        except ObjectNotFound:
            pause.wait(0.01)
    raise AssertionError(f"round {round_} has no result")


def ask(opened: Control, round_: int, inputs: Sequence[InputFile]) -> None:
    """Ask for another round, of all rows of these files."""
    asked = RoundRequest(
        operation_id=opened.spec.operation_id,
        attempt=opened.spec.attempt,
        round=round_,
        table_version=9,
        inputs=tuple(inputs),
    )
    opened.store.put(opened.round_path(round_, "request.json"), encode(asked))


def test_rounds_are_served_until_the_job_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waits for a round leaves its core to others."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    jobs = InProcessJobs(NoSpark())
    served = []
    for number in range(2):
        opened, request = statement_of(quick_lake.make(tmp_path / str(number)), "`k` = 1", v="0")
        jobs.start(replace(request, name=str(number)))
        served.append(opened)
    for round_ in (0, 1, 2):
        for opened in served:
            assert until_answered(opened, round_).rows_matched == 8
            ask(opened, round_ + 1, opened.spec.job.reads)
    for number, opened in enumerate(served):
        assert until_answered(opened, 3).outputs[0].round == 3
        assert jobs.status(str(number)).phase is JobPhase.RUNNING
        jobs.stop(str(number))
        assert jobs.status(str(number)).phase is JobPhase.ENDED


def test_a_round_that_needs_spark_goes_there_with_the_job(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    others = OnSpark()
    jobs = InProcessJobs(others)
    opened, request = statement_of(lake, "1 / (`k` - 77) > 0")
    jobs.start(request)
    until_answered(opened, 0)
    lake.append(((1000, 77, 0),))
    later = job_files.input_files(lake.store, lake.log.snapshot())
    ask(opened, 1, later)
    assert others.is_asked.wait(300)
    with pytest.raises(ObjectNotFound):
        opened.result(1)
    jobs.stop("job")
    assert others.started == []


def test_a_sort_that_needs_spark_fails_where_there_is_none(tmp_path: Path) -> None:
    class Missing(NoSpark):
        def start(self, request: JobRequest) -> None:
            raise SparkMissing("no Java was found", resource=request.name)

    jobs = InProcessJobs(Missing())
    jobs.start(sort_of(quick_lake.make(tmp_path), MEMORY))
    jobs.stop("job")
    status = jobs.status("job")
    assert status.phase is JobPhase.FAILED
    assert status.reason is Reason.SPARK_MISSING
    assert not status.transient


def test_a_failure_is_recorded_as_that_of_any_job(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    (lake.path / lake.first_add.path).write_bytes(b"no Parquet")
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    operation = lake.compaction("Major", backoffLimit=0)
    status = lake.run(operation, ports=ports)
    assert status.phase is Phase.FAILED
    assert "a data file cannot be read" in str(status.conditions)


def test_a_job_whose_files_are_gone_fails_with_what_was_not_found(tmp_path: Path) -> None:
    jobs = InProcessJobs(NoSpark())
    jobs.start(replace(SMALL, location=tmp_path.as_uri()))
    jobs.stop("job")
    status = jobs.status("job")
    assert status.phase is JobPhase.FAILED
    assert "job.json" in status.message
