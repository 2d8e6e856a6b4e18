"""Work for which no caller waits: what fails in it is logged, and stops nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

_log = structlog.get_logger("tandem.index.background")


class Background:
    """Threads of their own.

    Args:
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, table: str, work: Callable[..., object], *args: Any) -> Future[object]:
        """Begin work about a table as soon as a thread is free."""
        task: Future[object] = self._pool.submit(work, *args)
        task.add_done_callback(partial(_log_failure, table))
        return task

    def close(self) -> None:
        """Begin nothing more; returns before the work under way has ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _log_failure(table: str, task: Future[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a bug: please report it", table=table, exc_info=error)
