"""Threads that work on tables: in them runs whatever asks a store or computes for long."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 16
"""So many calls of one process run at once. Those of a store that hangs take them until their time
limit; it has a process of its own."""
_PANIC: Final = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end what works on others. The class cannot be imported."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TableThreads(ThreadPoolExecutor):
    """A call runs in the context (`contextvars`) of its submitter, and a panic of a native library
    in it is a RuntimeError."""

    def __init__(self, limit: int = THREADS) -> None:
        super().__init__(limit, thread_name_prefix="tandem")

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        context = contextvars.copy_context()
        return super().submit(lambda: _translated(lambda: context.run(fn, *args, **kwargs)))


def _translated(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise RuntimeError("a native library panicked") from error
