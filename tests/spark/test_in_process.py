"""Small rewrites that keep the order of rows run in this process; all others where Spark is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.jobs import quick_lake
from support.lake.lake import batch
from tandem.jobs.runner import SMALL_BYTES, JobPhase, JobRequest, JobStatus
from tandem.locks.memory import InProcessLocks
from tandem.operations.ports import Ports
from tandem.spark.launch.in_process import InProcessJobs, needs_no_spark
from tandem.spec.status import Phase

SMALL = JobRequest(
    "job", "rewrite", "file:///lake", "job.json", input_bytes=SMALL_BYTES, tasks=1, attempt=1
)


class NoSpark:
    """A runner of which each call is an error of the test."""

    def start(self, request: JobRequest) -> None:
        raise AssertionError(f"{request.app} would run on Spark")

    def status(self, name: str) -> JobStatus:
        raise AssertionError(f"{name} is asked of Spark")

    def stop(self, name: str) -> None:
        raise AssertionError(f"{name} is stopped on Spark")


@pytest.mark.parametrize(
    ("request_", "here"),
    [
        (SMALL, True),
        (replace(SMALL, input_bytes=SMALL_BYTES + 1), False),
        (replace(SMALL, tasks=0), False),  # it reorders rows
        (replace(SMALL, app="statement"), False),
        (replace(SMALL, environ=(("AWS_SECRET_ACCESS_KEY", "x"),)), False),
    ],
    ids=["small", "large", "reorders", "statement", "credentials of its own"],
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
