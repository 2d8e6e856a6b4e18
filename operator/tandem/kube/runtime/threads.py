"""Threads that work on tables: in them runs whatever asks a store or computes for long."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Barrier
from typing import Final, ParamSpec, TypeVar

from tandem.errors import TooLarge

THREADS: Final = 16
"""So many calls of one process run at once. Those of a store that hangs take them until their time
limit; it has a process of its own."""
_PANIC: Final = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end what works on others. The class cannot be imported."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TableThreads:
    """Args:
    at_work: entered by a thread while it works on a table, given by its uid.
    """

    def __init__(
        self, at_work: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    ) -> None:
        self._at_work = at_work
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tandem")
        # All threads begin now: one that cannot, once memory is scarce, would fail its call.
        together = Barrier(THREADS)
        for _ in range(THREADS):
            self._pool.submit(together.wait)

    def of(self, table: str) -> Executor:
        """Runs the calls on a table. A call runs in the context (`contextvars`) of its submitter.
        For want of memory it raises TooLarge, and a panic of a native library is a RuntimeError."""
        return _OfTable(self._pool, self._at_work, table)

    def shutdown(self) -> None:
        """Take no more calls, and drop those that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _OfTable(Executor):
    def __init__(
        self,
        pool: Executor,
        at_work: Callable[[str], AbstractContextManager[None]],
        table: str,
    ) -> None:
        self._pool = pool
        self._at_work = at_work
        self._table = table

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        context = contextvars.copy_context()

        def call() -> _T:
            with self._at_work(self._table):
                return context.run(fn, *args, **kwargs)

        return self._pool.submit(_translated, call)


def too_large(why: str) -> str:
    """The message of a table for which a process has too little memory."""
    return (
        f"the work on it takes more memory than a process of the operator has: {why}. Raise "
        "--table-memory, and with it the pod's limit"
    )


def _translated(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except MemoryError as error:
        raise TooLarge(too_large(str(error) or "no memory is left")) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise RuntimeError("a native library panicked") from error
