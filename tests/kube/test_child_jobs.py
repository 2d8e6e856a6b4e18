"""Which jobs of an operation a child does itself, and which have applications: the child's part in
this process, with real tables."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake, just_before
from support.lake.lake import batch
from support.lake.rewritten import replace_all
from tandem.errors import (
    InvalidSpec,
    JobFailed,
    JobRefused,
    OutOfMemory,
    Reason,
    SparkMissing,
    StatementFailed,
    TandemError,
)
from tandem.jobs.port import JobKey, JobPlace
from tandem.jobs.runner import SMALL_BYTES, JobRequest
from tandem.kube.runtime import small_jobs
from tandem.kube.runtime.small_jobs import OperationJobs, SmallJobs
from tandem.kube.runtime.tenants import SmallJobRules, Tenant
from tandem.operations.kinds import replace as replace_kind
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.job_control import FileJobs
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spark import in_process
from tandem.spark.local_spark import SparkBusy
from tandem.spec.common import Operation
from tandem.spec.status import OperationStatus, Phase

Perform = Callable[[], Event]


@dataclass
class Stage:
    """A table, and a child's jobs; those that need Spark run as those of other processes do."""

    lake: QuickLake
    rules: SmallJobRules = field(default_factory=lambda: SmallJobRules(trusted=True))
    spark: QuickJobs = field(default_factory=QuickJobs)
    changes: threading.Event = field(default_factory=threading.Event)
    notes: list[tuple[str, bool | None]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.small = SmallJobs(
            Tenant("team-a"),
            self.rules,
            lambda *note: self.notes.append(note),
            lambda: self.notes.append(("harmed", None)),
            Path("unused") if self.rules.heap else None,
        )

    def jobs(self, owner: str = "an operation") -> OperationJobs:
        return self.small.of(owner, FileJobs(self.spark), self.changes.set)

    def run(
        self,
        operation: Operation,
        interceptor: Interceptor = passthrough,
        jobs: OperationJobs | None = None,
    ) -> OperationStatus:
        ports = dataclasses.replace(self.lake.ports(), jobs=jobs or self.jobs())
        return self.lake.run(operation, interceptor=interceptor, ports=ports)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    lake = quick_lake.make(tmp_path)
    lake.backoff_limit = 1
    made = Stage(lake)
    yield made
    assert not made.small.owns("an operation"), "a job is left"


def test_a_small_job_needs_no_application(stage: Stage) -> None:
    status = stage.run(stage.lake.merge(batch(1) + batch(90)))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert not stage.spark.started
    assert stage.changes.is_set(), "the controller is not woken by a result"
    assert stage.notes == [("an operation", True), ("an operation", None)]
    stage.lake.assert_clean()


@pytest.mark.parametrize("reads", ["too much", "what it may not"])
def test_what_a_child_may_not_do_has_an_application(stage: Stage, reads: str) -> None:
    if reads == "too much":
        stage.small.rules = SmallJobRules(most_bytes=10, trusted=True)
        operation = stage.lake.compaction("Major")
    else:
        stage.small.rules = SmallJobRules()
        operation = stage.lake.ingest(batch(70))
    jobs = stage.jobs()
    status = stage.run(operation, jobs=jobs)
    assert status.phase is Phase.SUCCEEDED, status
    [request] = stage.spark.started
    assert jobs.has_application(request.name)
    assert stage.notes == []


def test_what_needs_spark_has_an_application_in_the_same_attempt(stage: Stage) -> None:
    jobs, places, names = stage.jobs(), list[JobPlace](), list[str]()

    def watch(effect: Effect, perform: Perform) -> Event:
        if effect.point is Point.POLL_JOB:
            names.extend(vars(stage.small)["_owners"])
            places.append(jobs.place_of(JobKey(names[0], "", 1, stage.lake.store)))
            assert jobs.has_application(names[0]) is (places[-1] is JobPlace.ELSEWHERE)
        return perform()

    status = stage.run(stage.lake.delete("ln(v + 1) > 8"), watch, jobs)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert [request.name for request in stage.spark.started] == names[:1]
    assert jobs.has_application(names[0])
    # It waits for a slot as soon as it is known, and is started by the poll that has one.
    order = [JobPlace.HERE, JobPlace.WAITS, JobPlace.ELSEWHERE]
    assert [place for n, place in enumerate(places) if place not in places[:n]] == order
    assert stage.notes[-1] == ("an operation", None)
    stage.lake.assert_clean()


class _Refusing(QuickJobs):
    """Does not take the first applications."""

    def __init__(self, error: TandemError) -> None:
        super().__init__()
        self.errors = [error, error]

    def start(self, request: JobRequest) -> None:
        if self.errors:
            raise self.errors.pop()
        super().start(request)


@pytest.mark.parametrize("most_bytes", [SMALL_BYTES, 0])
@pytest.mark.parametrize(
    "error",
    [
        JobRefused("a quota"),
        JobRefused("no answer", certain=False),
        JobRefused("no such kind", reason=Reason.SPARK_MISSING),
        InvalidSpec("the template"),
    ],
)
def test_an_application_that_is_refused(stage: Stage, error: TandemError, most_bytes: int) -> None:
    """It is the same whether the job was begun in a child."""
    stage.lake.backoff_limit = 0
    stage.spark = refusing = _Refusing(error)
    stage.small.rules = SmallJobRules(most_bytes, trusted=True)
    status = stage.run(stage.lake.delete("ln(v + 1) > 8"))
    if isinstance(error, JobRefused):
        assert status.phase is Phase.SUCCEEDED, status
        assert status.attempt == (1 if error.certain else 3)
    else:
        assert (status.phase, status.attempt) == (Phase.FAILED, 1)
        assert status.conditions[0].reason == Reason.INVALID_SPEC
        assert len(refusing.errors) == 1
    stage.lake.assert_clean()


def _no_memory(*_: Any) -> bool:
    raise OutOfMemory("in a test")


@pytest.mark.parametrize("backoff_limit", [0, 1])
def test_a_job_without_memory_has_an_application_next(
    stage: Stage, backoff_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "run_here", _no_memory)
    stage.lake.backoff_limit = backoff_limit
    status = stage.run(stage.lake.compaction("Major"))
    if backoff_limit:
        assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2), status
    else:
        assert status.phase is Phase.FAILED
        assert "--table-memory" in status.conditions[0].message
    assert len(stage.spark.started) == backoff_limit
    assert not stage.small.suits("an operation")
    assert ("an operation", False) in stage.notes
    assert ("an operation", None) not in stage.notes
    assert stage.notes[-1] == ("harmed", None)
    monkeypatch.undo()
    # It is the operation that is not suited, not the child.
    stage.notes.clear()
    other = stage.run(stage.lake.delete("k = 1"), jobs=stage.jobs("another"))
    assert other.phase is Phase.SUCCEEDED
    assert ("another", True) in stage.notes


def test_an_operation_that_lost_a_job_has_an_application(stage: Stage) -> None:
    """In whichever process."""
    stage.small.suits_not("an operation")
    status = stage.run(stage.lake.compaction("Major"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(stage.spark.started) == 1


def test_an_operation_that_lost_a_job_is_done_here_without_a_spark_operator(stage: Stage) -> None:
    stage.small.suits_not("an operation")
    stage.spark = refusing = _Refusing(JobRefused("no such kind", reason=Reason.SPARK_MISSING))
    status = stage.run(stage.lake.compaction("Major"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert not stage.spark.started
    assert len(refusing.errors) == 1, "it was not asked once"


def test_a_job_for_which_there_is_no_thread_has_an_application(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(in_process.InProcessJobs, "start", without)
    status = stage.run(stage.lake.compaction("Major"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(stage.spark.started) == 1
    assert stage.notes == [("an operation", True), ("an operation", None)]


class LocalSpark(NoSpark):
    """Spark beside the child, where it fails with the first jobs."""

    def __init__(self, *_: object) -> None:
        self.errors: list[Exception] = []
        self.begun: list[str] = []

    def job(self, request: JobRequest) -> AbstractContextManager[Any]:
        self.begun.append(request.name)
        raise self.errors.pop(0)


@pytest.fixture
def with_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Stage, LocalSpark]:
    beside = LocalSpark()
    monkeypatch.setattr(small_jobs, "LocalSpark", lambda *_: beside)
    return Stage(quick_lake.make(tmp_path), SmallJobRules(trusted=True, heap=1)), beside


@pytest.mark.parametrize(
    "error",
    [
        SparkBusy("others have it"),
        SparkMissing("no Java"),
        JobFailed("the JVM was killed"),
        OutOfMemory("in the JVM"),
    ],
)
def test_where_spark_fails_beside_a_child_a_job_has_an_application(
    with_spark: tuple[Stage, LocalSpark], error: Exception
) -> None:
    """In the same attempt: it says nothing about the job, nor about the child."""
    stage, beside = with_spark
    beside.errors = [error]
    status = stage.run(stage.lake.delete("ln(v + 1) > 8"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert [request.name for request in stage.spark.started] == beside.begun
    assert stage.notes == [("an operation", True), ("an operation", None)]
    stage.lake.assert_clean()


def test_what_spark_says_of_a_job_is_its_end(with_spark: tuple[Stage, LocalSpark]) -> None:
    stage, beside = with_spark
    beside.errors = [StatementFailed("of a row")]
    status = stage.run(stage.lake.delete("ln(v + 1) > 8"))
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "StatementFailed")
    assert not stage.spark.started


def test_without_a_spark_operator_a_job_tries_again_beside_its_child(
    with_spark: tuple[Stage, LocalSpark],
) -> None:
    """It might wait for an application for ever."""
    stage, beside = with_spark
    beside.errors = [SparkBusy("others have it") for _ in range(3)]
    stage.spark = _Refusing(JobRefused("no such kind", reason=Reason.SPARK_MISSING))
    status = stage.run(stage.lake.delete("ln(v + 1) > 8"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(beside.begun) == 3
    assert len(stage.spark.started) == 1


def test_a_large_source_has_an_application(
    with_spark: tuple[Stage, LocalSpark], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was not measured before the job begins, as for a tenant without credentials."""
    stage, beside = with_spark
    monkeypatch.setattr(replace_kind, "check_loaded", lambda *_, **__: None)
    for most in (SMALL_BYTES, 100):
        monkeypatch.setattr(stage.small._jobs, "_small", most)
        beside.errors = [StatementFailed("it is too wide")]
        stage.run(replace_all(stage.lake, batch(70)))
    assert len(beside.begun) == 1
    assert len(stage.spark.started) == 1


def test_what_an_operation_leaves_is_ended(stage: Stage) -> None:
    """Also a job that waits for a round."""

    def leave() -> None:
        assert stage.small.owns("an operation")
        stage.small.leave("another")
        assert stage.small.owns("an operation")
        stage.small.leave("an operation")

    merge = stage.lake.merge(batch(1) + batch(90))
    status = stage.run(merge, just_before(Point.RECONCILE, leave))
    assert status.phase is Phase.SUCCEEDED, status
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tandem-0")]
    stage.lake.assert_clean()
