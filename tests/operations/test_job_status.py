"""The status of a job that a runner reports, as the engine receives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.lake.memory_store import MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import Reason
from tandem.jobs.results import JobFailure
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.operations.attempt import paths
from tandem.operations.machine.events import JobLost, JobRunning
from tandem.operations.model import Identity, Table, Work
from tandem.operations.session import job_control

LOG = "kubectl logs -n lake x-driver"


@dataclass
class Says:
    """A `JobRunner` that knows one answer."""

    answer: JobStatus

    def start(self, request: JobRequest) -> None:
        raise AssertionError(request)

    def status(self, name: str) -> JobStatus:
        assert name == "tandem-0f-1"
        return self.answer

    def stop(self, name: str) -> None:
        raise AssertionError(name)


def work() -> Work:
    store = MemoryStore()
    identity = Identity("0f", "TableCompaction", "lake", "nightly", "h", {})
    return Work(identity, Table(store, DeltaLog(store), "LakeTable/flights"))


def poll(answer: JobStatus, at: Work | None = None) -> Any:
    return job_control.poll(at or work(), Says(answer), 1, 0, 0)


@pytest.mark.parametrize(
    ("reason", "transient", "expected"),
    [
        (Reason.OUT_OF_MEMORY, True, Reason.OUT_OF_MEMORY),
        (Reason.IMAGE_PULL_FAILED, False, Reason.IMAGE_PULL_FAILED),
        (None, True, Reason.JOB_FAILED),
    ],
)
def test_a_failure_that_the_runner_distinguishes(
    reason: Reason | None, transient: bool, expected: Reason
) -> None:
    lost = poll(JobStatus(JobPhase.FAILED, "it died", LOG, reason, transient))
    assert lost == JobLost(expected, f"it died (log: {LOG})", transient)


def test_the_message_of_the_job_comes_first() -> None:
    at = work()
    failure = JobFailure(
        operation_id="0f", attempt=1, reason="StatementFailed", message="1 / 0", transient=False
    )
    path = paths.round_file("0f", 1, 0, "failure.json")
    at.table.store.put(path, failure.model_dump_json(by_alias=True).encode())
    lost = poll(JobStatus(JobPhase.FAILED, "exit code 1", reason=Reason.JOB_FAILED), at)
    assert lost == JobLost(Reason.STATEMENT_FAILED, "TableCompaction/nightly: 1 / 0", False)


def test_the_cause_of_a_pending_driver_is_reported() -> None:
    waits = JobStatus(JobPhase.STARTING, "no node: 0/3", LOG, Reason.UNSCHEDULABLE)
    assert poll(waits) == JobRunning(None, (Reason.UNSCHEDULABLE, "no node: 0/3"))
    assert poll(JobStatus(JobPhase.RUNNING, "late")) == JobRunning(None)


def test_the_driver_of_a_statement_alone_is_informed_that_it_may_end(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    for operation, waits in ((lake.compaction("Major"), False), (lake.delete("k = 1"), True)):
        before = {found.path for found in lake.store.list(paths.operations())}
        lake.do(operation)
        made = {found.path for found in lake.store.list(paths.operations())} - before
        assert any(path.endswith("/plan.json") for path in made)
        assert any(path.endswith("/done.json") for path in made) is waits
