"""How large a job's driver and executors are, from what its plan reads. Pure.

Data is decoded and encoded by Python workers outside of the JVM's heap, one per task at a time,
so the memory *beside* the heap (`memoryOverhead`) grows with the tasks that run at once, and
the heap hardly does. A small job needs no executors at all: Spark's driver-pod-only mode runs
the tasks in the driver, which saves the start of a second pod and its JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tandem.spark.runtime.session import SHORT_JOB_BYTES

MIB = 1 << 20
GIB = 1 << 30

DRIVER_ALONE_BYTES = SHORT_JOB_BYTES
"""Jobs that read less than this run in the driver alone (and with the first compiler tier)."""
LARGE_BYTES = 100 * GIB
"""From here on the driver gets more heap: it holds the answers of all tasks."""
BYTES_PER_SLOT = 512 * MIB
"""An executor's core is worth its start if it reads about this much."""
EXECUTOR_CORES = 2
WORKER_BYTES = GIB
"""Memory of a Python worker: decoded batches of several inputs, and the row groups it writes."""


@dataclass(frozen=True, slots=True)
class PodSize:
    """Cores, heap of the JVM, and memory beside it, in bytes."""

    cores: int
    heap: int
    beside: int


@dataclass(frozen=True, slots=True)
class JobSizes:
    """`executors` 0: the driver runs the tasks itself."""

    driver: PodSize
    executor: PodSize
    executors: int

    @property
    def slots(self) -> int:
        """Tasks at once."""
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
        cores: of a driver that is alone.
        heap: of the driver, in bytes, instead of the table's.
        max_executors: never more than these, at least 1.
        distributed: with executors in any case, since the template requests them.
    """
    executor = PodSize(EXECUTOR_CORES, 2 * GIB, EXECUTOR_CORES * WORKER_BYTES)
    if not distributed and (input_bytes < DRIVER_ALONE_BYTES or tasks == 1):
        # A single task runs nowhere faster than in the driver.
        driver = PodSize(cores, heap or GIB, cores * WORKER_BYTES)
        return JobSizes(driver, executor, 0)
    slots = max(ceil(input_bytes / BYTES_PER_SLOT), 1)
    slots = min(slots, tasks) if tasks else slots
    large = input_bytes >= LARGE_BYTES
    driver = PodSize(1, heap or (4 if large else 2) * GIB, (2 if large else 1) * GIB)
    return JobSizes(driver, executor, min(ceil(slots / EXECUTOR_CORES), max(max_executors, 1)))
