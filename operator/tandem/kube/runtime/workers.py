"""The threads that work on tables: a pool that measures its load, and in which log lines keep the
subject of the submitting task."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tandem.kube.metrics.collectors import Metrics

_PANIC = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end the process. The class cannot be imported."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers(ThreadPoolExecutor):
    """`limit` threads. A call runs in the context (`contextvars`) of its submitter."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        super().__init__(limit, thread_name_prefix="tandem")
        self.limit = limit
        self._metrics = metrics
        self._counting = threading.Lock()
        self._busy = self._waiting = 0

    @property
    def busy(self) -> int:
        """How many threads are working now."""
        return self._busy

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._waiting

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        context = contextvars.copy_context()
        submitted = time.perf_counter()

        def work() -> _T:
            with self._counting:
                self._waiting -= 1
                self._busy += 1
            self._metrics.worker_wait.observe(time.perf_counter() - submitted)
            try:
                return context.run(fn, *args, **kwargs)
            except BaseException as error:
                if type(error).__name__ != _PANIC:
                    raise
                raise RuntimeError("a native library panicked") from error
            finally:
                with self._counting:
                    self._busy -= 1

        with self._counting:
            self._waiting += 1
        future: Future[Any] = super().submit(work)
        future.add_done_callback(self._forget_cancelled)
        return future

    def _forget_cancelled(self, future: Future[Any]) -> None:
        if future.cancelled():  # before a thread took it
            with self._counting:
                self._waiting -= 1
