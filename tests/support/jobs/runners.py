"""Job runners that do the real work and then misbehave, as drivers and clusters do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from support.jobs.inline_runner import InlineRunner
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.storage import Store

Misbehaviour = Callable[["Jobs", JobRequest], None]


@dataclass
class Jobs:
    """A `JobRunner` over the shared session, or without Spark. `next_job` is what the next job does
    beside, or in place of, its work; `started` names all jobs that were asked for."""

    spark: SparkSession | None
    store: Store
    next_job: Misbehaviour | None = None
    started: list[JobRequest] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    runners: list[InlineRunner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runners.append(InlineRunner(self.spark))

    def start(self, request: JobRequest) -> None:
        if any(earlier.name == request.name for earlier in self.started):
            return
        self.started.append(request)
        act, self.next_job = self.next_job, None
        if act is None:
            self.runners[0].start(request)
        else:
            act(self, request)

    def status(self, name: str) -> JobStatus:
        if name in self.dead:
            return JobStatus(JobPhase.FAILED, "exit code 137")
        return self.runners[0].status(name)

    def stop(self, name: str) -> None:
        for runner in self.runners:
            runner.stop(name)

    def work_through(self, request: JobRequest, runner: InlineRunner | None = None) -> None:
        """Do the job's (first) round in the calling thread."""
        runner = runner or self.runners[0]
        runner.start(request)
        runner.stop(request.name)


def dies_before_its_work(jobs: Jobs, request: JobRequest) -> None:
    jobs.dead.add(request.name)


def dies_after_its_work(jobs: Jobs, request: JobRequest) -> None:
    """All files are written, and no result is published."""
    jobs.work_through(request)
    folder = request.spec_path.rsplit("/", 1)[0]
    jobs.store.delete([f"{folder}/rounds/0/result.json"])
    jobs.dead.add(request.name)


def runs_twice(jobs: Jobs, request: JobRequest) -> None:
    """Two drivers of the same job do all of its work; one of them is first."""
    duplicate = InlineRunner(jobs.spark)
    jobs.runners.append(duplicate)
    duplicate.start(request)
    jobs.runners[0].start(request)


def follows_a_duplicate(jobs: Jobs, request: JobRequest) -> None:
    """Another driver had done all the work when this one starts."""
    jobs.work_through(request, InlineRunner(jobs.spark))
    jobs.runners[0].start(request)
