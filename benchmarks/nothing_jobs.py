"""A `JobRunner` whose jobs find nothing to write, at once: what is left is what the engine and
the operator cost."""

from __future__ import annotations

from tandem.jobs.results import JobResult
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime import control


class NothingJobs:
    """For ingests."""

    def __init__(self) -> None:
        self._started: set[str] = set()

    def start(self, request: JobRequest) -> None:
        opened = control.open_job(
            request.location,
            request.spec_path,
            dict(request.storage_options),
            request.allowed_locations,
        )
        spec = opened.spec
        opened.publish(JobResult(operation_id=spec.operation_id, attempt=spec.attempt))
        self._started.add(request.name)

    def status(self, name: str) -> JobStatus:
        known = name in self._started
        return JobStatus(JobPhase.ENDED if known else JobPhase.UNKNOWN)

    def stop(self, name: str) -> None:
        """Nothing runs."""
