"""Progress of a running job: counters in the store that tasks advance and the driver adds up.

Spark sends a task's accumulators to the driver when the task ends, which for a large bin is the
end of the job. So a task writes an object whose *length* is its count: one small put at most
every `EVERY_SECONDS`, and one listing returns the counts of all tasks. For display only: no
decision depends on them, and a counter that cannot be written fails no task.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from tandem.errors import TandemError
from tandem.jobs.results import JobProgress
from tandem.spark.runtime.control import Control
from tandem.storage import Store

EVERY_SECONDS = 0.5

ProgressFromCounts = Callable[[Mapping[int, int]], tuple[int, int]]
"""Counts of tasks by their number → (files done, bytes done)."""


class Counter:
    """The count of task `number`. Not thread-safe."""

    def __init__(self, store: Store, prefix: str, number: int) -> None:
        self._store = store
        self._path = f"{prefix}/{number}"
        self._count = 0
        self._shown = 0
        self._shown_at = time.monotonic()

    def add(self) -> None:
        """Count one more; written now, with a later one, or by `show`."""
        self._count += 1
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self.show()

    def show(self) -> None:
        """Write the current count: a task ends with it, since there is no later call."""
        if self._shown == self._count:
            return
        self._shown, self._shown_at = self._count, time.monotonic()
        with contextlib.suppress(TandemError):  # a counter fails no task
            self._store.put(self._path, b"." * self._count)


def task_counts(store: Store, prefix: str) -> dict[int, int]:
    """The counts of all tasks by number. Raises: StorageError."""
    return {int(meta.path.rpartition("/")[2]): meta.size for meta in store.list(prefix)}


def prefix_of(control_prefix: str, round_: int = 0) -> str:
    """The prefix of the counters of a round."""
    return f"{control_prefix}/rounds/{round_}/counters"


@contextlib.contextmanager
def reported(
    control: Control, stage: str, total: tuple[int, int], done: ProgressFromCounts, round_: int = 0
) -> Iterator[None]:
    """Keep `progress.json` up to date while the block runs: from zero to all of `total`,
    (files, bytes), or to the state at which the block failed."""
    ended = threading.Event()
    prefix = prefix_of(control.spec.control_prefix, round_)

    def report(files: int, size: int) -> None:
        control.progress(
            JobProgress(
                files_done=files,
                files_total=total[0],
                bytes_done=size,
                bytes_total=total[1],
                stage=stage,
            )
        )

    def watch() -> None:
        shown = (0, 0)
        while not ended.wait(EVERY_SECONDS):
            with contextlib.suppress(TandemError):  # a counter fails no job
                found = done(task_counts(control.store, prefix))
                if found > shown:
                    shown = found
                    report(*found)

    report(0, 0)
    thread = threading.Thread(target=watch, name="tandem-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report(*total)
