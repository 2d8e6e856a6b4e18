"""The port through which processes of jobs are started and watched.

Implementations: a local `spark-submit` process (`tandem.spark.local_spark`), a `SparkApplication`
in a cluster (`tandem.kube.controllers.spark_jobs`); in tests a shared session in the
same process. The truth about success is the result file, never the state reported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tandem.errors import Reason
from tandem.storage.renewable import Vended

SMALL_BYTES = 256 << 20
"""Input bytes of a job that needs no Spark, at most: one core encodes them in the time in which
Spark starts."""


SHORT_JOB_BYTES = 1 << 30
"""Jobs that read less than this run with the first compiler tier only.

`-XX:TieredStopAtLevel=1` halves the start time but costs about a third of the speed of code that
runs for minutes. A job of less than 1 GiB ends before the optimizing compiler pays off.
"""


class JobPhase(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    ENDED = "Ended"  # exit code 0; look for the result
    FAILED = "Failed"
    UNKNOWN = "Unknown"  # not started by this runner, or forgotten


OUT_OF_MEMORY = re.compile(
    r"OOMKilled|OutOfMemoryError|\bMemoryError\b|ArrowMemoryError"
    r"|exit code:? 137\b|exited with code 137\b|code 52\b.*OOM",
    re.IGNORECASE,
)
"""Messages about a driver, an executor or a Python worker that ran out of memory: of Java, of
Python, of Arrow, and of Spark's Kubernetes backend about a lost executor."""

LOST = frozenset({JobPhase.ENDED, JobPhase.FAILED, JobPhase.UNKNOWN})
"""Of a job in these phases no further result comes."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """`message` is one line for people; `log` says where the whole output is. `reason` is the
    failure, as far as the runner knows it; `transient` says whether another attempt may help
    (of a job that failed)."""

    phase: JobPhase
    message: str = ""
    log: str = ""
    reason: Reason | None = None
    transient: bool = True


@dataclass(frozen=True, slots=True)
class JobRequest:
    """`name` is deterministic per attempt; `app` is a file of `spark_apps/` without suffix;
    `location` and `spec_path` say where `job.json` lies. Resources are hints: cores and
    memory in bytes, 0 for what the runner gives; `input_bytes` is what the job will read, without
    its source if `size_known` is false: such a job gets no more than a small one, except for the
    optimizing compiler; `tasks` is into how many parts its work falls, 0 if unknown. `environ` is
    added to the environment of its processes, or given to its pods as a file: credentials that are
    good until `expires_ms`, in Unix milliseconds, None for ever. They go nowhere else.
    `allowed_locations`: below what the job may read, () for anywhere; an argument, since a writer
    of the table's folder could change it in `job.json`. `request`: what a program that is no job
    of a table is asked, in pieces, in place of `location` and `spec_path`."""

    name: str
    app: str
    location: str
    spec_path: str
    storage_options: tuple[tuple[str, str], ...] = ()
    cores: int = 0
    memory_bytes: int = 0
    input_bytes: int = 0
    size_known: bool = True
    tasks: int = 0
    operation_id: str = ""
    attempt: int = 0
    allowed_locations: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    expires_ms: int | None = None
    request: tuple[str, ...] = ()

    @property
    def is_short(self) -> bool:
        """Whether it ends before the optimizing compiler pays off."""
        return self.size_known and self.input_bytes < SHORT_JOB_BYTES

    @property
    def vended(self) -> Vended:
        """Its credentials, as a catalog gave them."""
        return Vended(dict(self.environ), self.expires_ms)

    def arguments(self) -> list[str]:
        """What the application is called with. Nothing secret."""
        if self.request:
            return [word for piece in self.request for word in ("--request", piece)]
        options = [f"{key}={value}" for key, value in self.storage_options]
        return [
            *("--location", self.location, "--spec", self.spec_path),
            *(word for option in options for word in ("--option", option)),
            *(word for prefix in self.allowed_locations for word in ("--allowed", prefix)),
        ]


class JobRunner(Protocol):
    def start(self, request: JobRequest) -> None:
        """Start, or do nothing if a job of that name was started. Raises `SparkMissing`."""
        ...

    def status(self, name: str) -> JobStatus: ...

    def stop(self, name: str) -> None:
        """Kill and reap; no error if it has ended."""
        ...


@runtime_checkable
class RenewingRunner(JobRunner, Protocol):
    """One whose jobs can be given other credentials while they run."""

    def renew(self, name: str, vended: Vended) -> None:
        """Give a job that was started these credentials; nothing if it is gone."""
        ...
