"""The sizes of a job's driver and executors, from the input of its plan. Pure.

Data is decoded and encoded by Python workers outside the JVM's heap, one per concurrent task, so
the memory *beside* the heap (`memoryOverhead`) grows with the number of concurrent tasks, and the
heap hardly does. A small job needs no executors at all: in Spark's driver-pod-only mode the driver
runs the tasks, which saves the start of a second pod and its JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tandem.spark.runtime.session import SHORT_JOB_BYTES

MIB = 1 << 20
GIB = 1 << 30

DRIVER_ALONE_BYTES = SHORT_JOB_BYTES
"""Jobs that read less than this run in the driver only (and with the first compiler tier)."""
LARGE_BYTES = 100 * GIB
"""Jobs that read more than this have a larger driver heap: it holds the answers of all tasks."""
BYTES_PER_SLOT = 512 * MIB
"""An executor core pays for its start if it reads about this much."""
EXECUTOR_CORES = 2
WORKER_BYTES = GIB
"""Memory of a Python worker: decoded batches of several inputs, and the row groups it writes."""


@dataclass(frozen=True, slots=True)
class PodSize:
    """Cores, JVM heap, and memory beside it, in bytes."""

    cores: int
    heap: int
    overhead: int


@dataclass(frozen=True, slots=True)
class JobSizes:
    """`executors` 0: the driver runs the tasks itself."""

    driver: PodSize
    executor: PodSize
    executors: int

    @property
    def slots(self) -> int:
        """Concurrent tasks."""
        return self.executors * self.executor.cores or self.driver.cores


def sizes(
    input_bytes: int,
    *,
    tasks: int = 0,
    cores: int = 2,
    heap: int = 0,
    max_executors: int = 8,
    distributed: bool = False,
) -> JobSizes:
    """The table of `docs/spark-applications.md`.

    Args:
        input_bytes: what the job reads, 0 if unknown.
        tasks: parts of the work, 0 if unknown; no more slots than these.
        cores: those of a driver without executors.
        heap: the driver's heap in bytes, instead of the table's.
        max_executors: the maximum number of executors, at least 1.
        distributed: use executors in any case, since the template requests them.
    """
    executor = PodSize(EXECUTOR_CORES, 2 * GIB, EXECUTOR_CORES * WORKER_BYTES)
    if not distributed and (input_bytes < DRIVER_ALONE_BYTES or tasks == 1):
        # A single task does not run faster than in the driver.
        driver = PodSize(cores, heap or GIB, cores * WORKER_BYTES)
        return JobSizes(driver, executor, 0)
    slots = max(ceil(input_bytes / BYTES_PER_SLOT), 1)
    slots = min(slots, tasks) if tasks else slots
    large = input_bytes >= LARGE_BYTES
    driver = PodSize(1, heap or (4 if large else 2) * GIB, (2 if large else 1) * GIB)
    return JobSizes(driver, executor, min(ceil(slots / EXECUTOR_CORES), max(max_executors, 1)))
