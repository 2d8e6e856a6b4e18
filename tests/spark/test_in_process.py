"""Small rewrites, updates, deletes and merges run in this process; other jobs where Spark is."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.jobs import job_files, quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_lake import just_before
from support.lake.faults import ProcessDied
from support.lake.lake import INSERT_ALL, Lake, batch
from support.lake.rows import k_is, plus, without
from support.waiting import await_that
from tandem.errors import Reason, SparkMissing
from tandem.jobs.formats import (
    InputFile,
    JobBin,
    JobLayout,
    JobSpec,
    RewriteJob,
    RoundRequest,
    StatementJob,
)
from tandem.jobs.port import JobKey
from tandem.jobs.results import JobResult
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.spark import in_process
from tandem.spark.in_process import InProcessJobs, needs_no_spark
from tandem.spark.jobs import local_statement
from tandem.spark.jobs.bins import MEMORY
from tandem.spark.runtime.control import Control
from tandem.spec.status import Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ForStart = tuple[JobKey, JobRequest, JobSpec]

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
        (replace(SMALL, app="ingest"), True),
    ],
    ids=["small", "large", "reorders", "statement", "merge", "ingest"],
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
class Asked:
    """Spark that says which jobs ask for it, and does them if it is `open`, on `context`."""

    context: Any = None
    started: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    is_asked: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def require(self) -> None:
        pass

    @contextmanager
    def job(self, request: JobRequest) -> Iterator[Any]:
        self.started.append(request.name)
        self.is_asked.set()
        assert self.open.wait(300)
        yield self.context

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)
        self.open.set()

    def log(self) -> str:
        return "/logs/spark.log"


def test_a_sort_runs_in_this_process(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    layout = {"strategy": "Sort", "columns": ["v", "k"]}
    status = lake.run(lake.compaction("Major", layout=layout), ports=ports)
    assert status.phase is Phase.SUCCEEDED
    lake.assert_rows(tuple(row for number in range(4) for row in batch(number)))
    lake.assert_clean()


def asked_for(opened: Control, app: str, name: str = "job") -> ForStart:
    """What the engine gives for the job."""
    spec = opened.spec
    key = JobKey(name, spec.operation_id, spec.attempt, opened.store)
    return key, replace(SMALL, app=app, name=name), spec


def sort_of(lake: Lake, size: int) -> ForStart:
    """A job that sorts all files of a table by `v`, which are said to have so many bytes."""
    store, snapshot = lake.store, lake.log.snapshot()
    inputs = [i.model_copy(update={"size": size}) for i in job_files.input_files(store, snapshot)]
    job = RewriteJob(
        inputs=tuple(inputs),
        bins=(JobBin(inputs=tuple(range(len(inputs)))),),
        target_file_size=1 << 20,
        layout=JobLayout(strategy="Sort", columns=("v",)),
    )
    return asked_for(job_files.control(store, snapshot, job), "rewrite")


def test_a_sort_whose_rows_do_not_fit_into_memory_is_passed_on(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    others = Asked()
    jobs = InProcessJobs(others)
    asked = sort_of(lake, MEMORY)
    jobs.start(*asked)
    assert others.is_asked.wait(300)
    assert others.started == ["job"]
    jobs.start(*asked)  # again: it was started
    assert others.started == ["job"]
    status = jobs.poll(asked[0], 0).status
    assert (status.phase, status.log) == (JobPhase.RUNNING, "/logs/spark.log")
    jobs.stop(asked[0])
    assert others.cancelled == ["job"]


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


def statement_of(lake: Lake, where: str, name: str = "job", **set_: str) -> ForStart:
    """A job that changes rows of all files of a table."""
    store, snapshot = lake.store, lake.log.snapshot()
    inputs = job_files.input_files(store, snapshot)
    job = StatementJob(where=where, set=set_, inputs=inputs, target_file_size=1 << 20)
    return asked_for(job_files.control(store, snapshot, job), "statement", name)


@pytest.mark.parametrize("where", [
    "greatest(`k`, 1) = 1",  # an expression that is not proven equal
    "1 / (`k` - 1) > 0",  # a row on which Spark raises
], ids=["expression", "row"])  # fmt: skip
def test_a_statement_that_needs_spark_is_passed_on(tmp_path: Path, where: str) -> None:
    others = Asked()
    jobs = InProcessJobs(others)
    asked = statement_of(quick_lake.make(tmp_path), where)
    jobs.start(*asked)
    assert others.is_asked.wait(300)
    assert jobs.result(asked[0], 0) is None
    jobs.stop(asked[0])
    assert others.cancelled == ["job"]


def test_a_statement_on_many_rows_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_statement, "MOST_ROWS_HERE", 39)
    others = Asked()
    jobs = InProcessJobs(others)
    asked = statement_of(quick_lake.make(tmp_path), "`k` = 1")  # 40 rows
    jobs.start(*asked)
    assert others.is_asked.wait(300)
    jobs.stop(asked[0])
    assert others.cancelled == ["job"]


def until_answered(jobs: InProcessJobs, key: JobKey, round_: int) -> JobResult:
    await_that(lambda: jobs.poll(key, round_).has_result, f"the result of round {round_}")
    found = jobs.result(key, round_)
    assert found is not None
    return found


def ask(jobs: InProcessJobs, key: JobKey, round_: int, inputs: Sequence[InputFile]) -> RoundRequest:
    """Ask for another round, of all rows of these files."""
    asked = RoundRequest(
        operation_id=key.operation_id,
        attempt=key.attempt,
        round=round_,
        table_version=9,
        inputs=tuple(inputs),
    )
    return jobs.ask(key, asked)


def test_rounds_are_served_until_the_job_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waits for a round leaves its core to others."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    jobs = InProcessJobs(NoSpark())
    served = []
    for name in ("first", "second"):
        asked = statement_of(quick_lake.make(tmp_path / name), "`k` = 1", name, v="0")
        jobs.start(*asked)
        served.append((asked[0], asked[2]))
    for round_ in (0, 1, 2):
        for key, spec in served:
            assert until_answered(jobs, key, round_).rows_matched == 8
            ask(jobs, key, round_ + 1, spec.job.reads)
    for key, _ in served:
        assert until_answered(jobs, key, 3).outputs[0].round == 3
        assert jobs.poll(key, 4).status.phase is JobPhase.RUNNING
        jobs.stop(key)
        assert key.name not in {thread.name for thread in threading.enumerate()}


def test_a_job_ends_when_no_more_rounds_follow(tmp_path: Path) -> None:
    jobs = InProcessJobs(NoSpark())
    key, request, spec = statement_of(quick_lake.make(tmp_path), "`k` = 1", v="0")
    jobs.start(key, request, spec)
    until_answered(jobs, key, 0)
    jobs.finish(key)
    await_that(lambda: jobs.poll(key, 1).status.phase is JobPhase.ENDED, "the end of the job")


def test_the_first_request_of_a_round_stands(tmp_path: Path) -> None:
    jobs = InProcessJobs(NoSpark())
    key, request, spec = statement_of(quick_lake.make(tmp_path), "`k` = 1", v="0")
    jobs.start(key, request, spec)
    until_answered(jobs, key, 0)
    first = ask(jobs, key, 1, spec.job.reads)
    assert ask(jobs, key, 1, ()) is first
    assert until_answered(jobs, key, 1).rows_matched == 8
    jobs.stop(key)


def test_what_engine_and_job_say_is_not_stored(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    jobs = InProcessJobs(NoSpark())
    key, request, spec = statement_of(lake, "`k` = 1", v="0")
    jobs.start(key, request, spec)
    result = until_answered(jobs, key, 0)
    ask(jobs, key, 1, spec.job.reads)
    until_answered(jobs, key, 1)
    jobs.finish(key)
    assert result.matches is not None
    assert len(jobs.read(lake.store, result.matches)) == result.matches.size
    jobs.stop(key)
    folder = lake.path / spec.control_prefix
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["job.json"]


def test_what_took_long_is_stored_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a process that dies after it, before the commit, is not done again."""
    monkeypatch.setattr(in_process, "KEPT_AFTER_S", 0.0)
    lake = quick_lake.make(tmp_path)
    operation = lake.update("k = 1", v="v + 15")

    def dies() -> None:
        raise ProcessDied

    interceptor = just_before(Point.RECONCILE, dies)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    with pytest.raises(ProcessDied):
        lake.run(operation, ports=ports, interceptor=interceptor)
    # It reads what is stored, and its jobs would be an error.
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    monkeypatch.setattr(InProcessJobs, "start", never)
    assert lake.run(operation, ports=ports).phase is Phase.SUCCEEDED
    lake.assert_rows(plus(tuple(row for n in range(4) for row in batch(n)), k_is(1), 15))
    lake.assert_clean()


def never(*_: object) -> None:
    raise AssertionError("a job is started")


def test_a_round_that_needs_spark_is_done_there(tmp_path: Path, spark: SparkSession) -> None:
    """And what engine and job have said holds."""
    lake = quick_lake.make(tmp_path)
    others = Asked(spark.sparkContext)
    jobs = InProcessJobs(others)
    key, request, spec = statement_of(lake, "1 / (`k` - 77) > 0")
    jobs.start(key, request, spec)
    first = until_answered(jobs, key, 0)
    lake.append(((1000, 77, 0),))
    later = job_files.input_files(lake.store, lake.log.snapshot())
    ask(jobs, key, 1, later)
    assert others.is_asked.wait(300)
    assert jobs.result(key, 0) is first
    others.open.set()
    await_that(lambda: jobs.poll(key, 1).failure is not None, "Spark's answer")
    failure = jobs.poll(key, 1).failure
    assert failure is not None
    assert "Division by zero" in failure.message
    assert jobs.result(key, 0) is first
    jobs.stop(key)


def test_on_spark_nothing_but_new_files_is_stored_in_the_table(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and tasks leave their files in a folder of this machine, in which tasks count."""
    folder = tmp_path / "scratch"

    def kept(**_: object) -> AbstractContextManager[str]:
        folder.mkdir()
        return nullcontext(str(folder))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", kept)
    lake = quick_lake.make(tmp_path / "lake")
    others = Asked(spark.sparkContext)
    others.open.set()
    jobs = InProcessJobs(others)
    key, request, spec = statement_of(lake, "greatest(`k`, 1) = 1", v="0")
    jobs.start(key, request, spec)
    assert until_answered(jobs, key, 0).rows_matched == 16
    progress = jobs.poll(key, 1).progress
    assert progress is not None
    assert progress.files_done == progress.files_total == 4
    jobs.stop(key)
    stored = [path for path in (lake.path / spec.control_prefix).rglob("*") if path.is_file()]
    assert [path.name for path in stored] == ["job.json"]
    counted = (folder / spec.control_prefix / "rounds/0/counters").iterdir()
    assert sum(path.stat().st_size for path in counted) == 4


def test_a_job_that_is_stopped_begins_nothing_on_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr(in_process, "run", lambda *given: begun.append(given))
    others = Asked()
    jobs = InProcessJobs(others)
    key, request, spec = sort_of(quick_lake.make(tmp_path), MEMORY)
    jobs.start(key, request, spec)
    assert others.is_asked.wait(300)  # Spark starts, and the job waits for it
    jobs.stop(key)
    assert key.name not in {thread.name for thread in threading.enumerate()}
    assert begun == []


def test_a_sort_that_needs_spark_fails_where_there_is_none(tmp_path: Path) -> None:
    class Missing(NoSpark):
        def job(self, request: JobRequest) -> AbstractContextManager[Any]:
            raise SparkMissing("no Java was found", resource=request.name)

    jobs = InProcessJobs(Missing())
    asked = sort_of(quick_lake.make(tmp_path), MEMORY)
    jobs.start(*asked)
    await_that(lambda: jobs.poll(asked[0], 0).failure is not None, "the failure")
    failure = jobs.poll(asked[0], 0).failure
    assert failure is not None
    assert failure.reason == Reason.SPARK_MISSING
    assert not failure.transient


def test_a_failure_is_recorded_as_that_of_any_job(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    (lake.path / lake.first_add.path).write_bytes(b"no Parquet")
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    operation = lake.compaction("Major", backoffLimit=0)
    status = lake.run(operation, ports=ports)
    assert status.phase is Phase.FAILED
    assert "a data file cannot be read" in str(status.conditions)
