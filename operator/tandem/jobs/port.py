"""The port through which the engine has the work of an attempt done.

Implementations: `tandem.spark.in_process`, where the job is a thread of the engine's process and
nothing of what the two say to each other is stored; and
`tandem.operations.session.job_control`, where the job is a process of its own and reads and writes
files of the attempt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tandem.errors import ManifestInvalid, ObjectNotFound
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.results import JobFailure, JobProgress, JobResult, SideFileRef
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.storage.store import Store


@dataclass(frozen=True, slots=True)
class JobKey:
    """The job of an attempt. `store` is that of the attempt's table; `name` is deterministic."""

    name: str
    operation_id: str
    attempt: int
    store: Store


@dataclass(frozen=True, slots=True)
class RoundState:
    """How far a round is: its result is there, or `failure` says why it will not be, or neither.
    `status` is that of the job, asked before. `needs_spark`: the job, or this round of it, does,
    and there is none where it ran: it has ended, and published nothing of this round."""

    status: JobStatus
    has_result: bool = False
    failure: JobFailure | None = None
    progress: JobProgress | None = None
    needs_spark: bool = False


class JobPlace(StrEnum):
    """Where the work of a job is done."""

    HERE = "here"
    """By the engine's own process, or one of its own: it takes no job slot."""
    ELSEWHERE = "elsewhere"
    WAITS = "waits"
    """Elsewhere, once it has a slot: it turned out to need more than there is here."""


class Jobs(Protocol):
    """Thread-safe. Every method may raise StorageError."""

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:
        """Where a job would be done that is not begun."""
        ...

    def place_of(self, key: JobKey) -> JobPlace:
        """Where a job is done that was started."""
        ...

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        """Start the job, unless it was started. Raises: InvalidSpec, JobRefused, SparkMissing."""
        ...

    def knows(self, key: JobKey) -> bool:
        """Whether the job runs, or it is known how it ended."""
        ...

    def poll(self, key: JobKey, round_: int) -> RoundState:
        """How far a round is. Starts a job that waits for its slot. Raises: as `start`, if it
        does."""
        ...

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        """The result of a round. Raises: ManifestInvalid."""
        ...

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        """What belongs to a result or a request, verified. Raises: ManifestInvalid."""
        ...

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        """Request a round. Returns the request that stands: an earlier one, if there was one."""
        ...

    def finish(self, key: JobKey) -> None:
        """Say that no more rounds follow."""
        ...

    def stop(self, key: JobKey) -> None:
        """End the job, and forget what it said; no error if it has ended."""
        ...


def read_side_file(store: Store, ref: SideFileRef) -> bytes:
    """A file that belongs to a result, verified. Raises: ManifestInvalid, StorageError."""
    try:
        data = store.get(ref.path)
    except ObjectNotFound as error:
        raise ManifestInvalid(
            "a file of the result no longer exists",
            resource=ref.path,
            found="no such object",
            expected=f"{ref.size} bytes",
            remedy="Check that no other process removes files below _tandem",
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if len(data) != ref.size or digest != ref.sha256:
        raise ManifestInvalid(
            "a file of the result is not what the job wrote",
            resource=ref.path,
            found=f"{len(data)} bytes, SHA-256 {digest}",
            expected=f"{ref.size} bytes, SHA-256 {ref.sha256}",
        )
    return data
