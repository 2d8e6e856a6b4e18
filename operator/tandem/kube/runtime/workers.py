"""The threads that work on tables: fair to namespaces and tables, measured, and in which log lines
keep the subject of the submitting task.

`worker_places` decides which call runs. To cancel the future of a call that runs abandons it: its
thread goes on until the call returns, but has another place, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.fair_queue import NO_TABLE, Lane
from tandem.kube.runtime.worker_places import PATIENCE_S, Room, WorkerCall, WorkerPlaces
from tandem.turns import Turn, Turns

STARVED_S: Final = 60.0
"""After so long without a begin, waiting work counts as starved."""
_WATCH_S: Final = 0.1
_COMPUTING: Final = 1
"""So many calls compute at once, since so many threads run Python."""
_TURN_S: Final = 0.1
"""A call that has not waited for so long lets others compute, too."""
_PANIC = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end the process. The class cannot be imported."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers(Executor):
    """Threads for `limit` quick calls, and more for those that take long. A call runs in the
    context (`contextvars`) of its submitter. They compute in turns, so that the event loop waits
    for one of them, not for all (docs/decisions/0190). Thread-safe."""

    def __init__(self, limit: int, metrics: Metrics, *, patience_s: float = PATIENCE_S) -> None:
        self.limit = limit
        self._metrics = metrics
        self._places = WorkerPlaces(limit, patience_s=patience_s)
        self._turns = Turns(_COMPUTING, _TURN_S)
        self._threads = ThreadPoolExecutor(self._places.most, thread_name_prefix="tandem")
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._closed = False

    @property
    def busy(self) -> int:
        """How many of the `limit` places are taken."""
        return self._places.running(Room.QUICK)

    @property
    def long(self) -> int:
        """How many calls run that take long, and have places of their own."""
        return self._places.running(Room.LONG)

    @property
    def abandoned(self) -> int:
        """How many calls run that no caller waits for."""
        return self._places.abandoned

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._places.waiting

    @property
    def oldest_wait_s(self) -> float:
        """How long a call has waited at most, in seconds; without tables that are known to take
        long."""
        with self._lock:
            return self._places.oldest_wait_s(time.monotonic())

    @property
    def starved(self) -> bool:
        """Whether work waits of a namespace of which nothing runs, and no call has begun for a
        minute."""
        with self._lock:
            return self._places.starved(time.monotonic(), STARVED_S)

    def lane(self, lane: Lane, *, look: bool = False) -> Executor:
        """An executor for the calls on one table. `look`: they ask its store, so how long they
        take says how long the next ones will."""
        return _LaneExecutor(self, lane, look)

    def lies_in(self, lane: Lane, store: str) -> None:
        """The table lies in this store: any text that is the same for tables of one store."""
        with self._lock:
            self._places.lies_in(lane, store)

    def forget(self, lane: Lane) -> None:
        """The table is gone."""
        with self._lock:
            self._places.forget(lane)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call on no table."""
        return self.submit_to(WorkerCall(NO_TABLE), partial(fn, *args, **kwargs))

    def submit_to(self, call: WorkerCall, function: Callable[[], _T]) -> Future[_T]:
        """Run a function when the call gets its place. Raises: RuntimeError after `shutdown`."""
        context = contextvars.copy_context()
        future: Future[_T] = Future()

        def work() -> None:
            try:
                with Turn(self._turns):
                    result = context.run(function)
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                self._ended(call)
                with suppress(InvalidStateError):  # abandoned
                    future.set_exception(_translated(error))
            else:
                self._ended(call)
                with suppress(InvalidStateError):
                    future.set_result(result)

        call.work, call.future = work, future
        call.submitted_s = time.monotonic()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._places.add(call)
            self._begin()
        future.add_done_callback(lambda done: self._abandon_cancelled(done, call))
        return future

    async def watch(self) -> None:
        """Let calls that take long leave their places, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            with self._lock:
                self._places.move_overdue(time.monotonic())
                self._begin()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that wait are begun first, or cancelled."""
        with self._lock:
            self._closed = True
            dropped = self._places.drop_waiting() if cancel_futures else []
            self._drained.wait_for(lambda: not self._places.waiting)
        for call in dropped:
            if call.future is not None:
                call.future.cancel()
        self._threads.shutdown(wait=wait)

    def _begin(self) -> None:
        now_s = time.monotonic()
        while (call := self._places.begin(now_s)) is not None:
            self._metrics.worker_wait.observe(now_s - call.submitted_s)
            assert call.work is not None
            self._threads.submit(call.work)
        if self._closed and not self._places.waiting:
            self._drained.notify_all()

    def _ended(self, call: WorkerCall) -> None:
        with self._lock:
            self._places.end(call, time.monotonic())
            call.work = call.future = None
            self._begin()

    def _abandon_cancelled(self, future: Future[Any], call: WorkerCall) -> None:
        if future.cancelled():
            with self._lock:
                self._places.abandon(call)
                self._begin()


class _LaneExecutor(Executor):
    def __init__(self, workers: Workers, lane: Lane, look: bool) -> None:
        self._workers = workers
        self._lane = lane
        self._look = look

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        return self._workers.submit_to(
            WorkerCall(self._lane, self._look), partial(fn, *args, **kwargs)
        )


def _translated(error: BaseException) -> BaseException:
    if type(error).__name__ != _PANIC:
        return error
    found = RuntimeError("a native library panicked")
    found.__cause__ = error
    return found
