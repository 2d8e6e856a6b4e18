"""Threads that work on tables: in them runs whatever asks a store or computes for long."""

from __future__ import annotations

import contextvars
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, ParamSpec, TypeVar

from tandem.errors import TooLarge

THREADS: Final = 16
"""So many calls of one process run at once. Those of a store that hangs take them until their time
limit; it has a process of its own."""
_PANIC: Final = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end what works on others. The class cannot be imported."""
_PLACE: Final = 64
"""Bytes for a thread: a uid has 36."""
_PLACES: Final = 64
_SIZE: Final = _PLACE * _PLACES
_P = ParamSpec("_P")
_T = TypeVar("_T")


class AtWork:
    """On which table each thread of a child works: in memory that both processes map, and that the
    operator reads when the child has ended, however it did. Thread-safe."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._free = list(range(_PLACES))

    @classmethod
    def shared(cls, with_: socket.socket) -> AtWork:
        """New memory, which the process at the other end has `received`. Raises: OSError."""
        descriptor = os.memfd_create("tandem-at-work")
        try:
            os.ftruncate(descriptor, _SIZE)
            socket.send_fds(with_, [b"m"], [descriptor])
            return cls(mmap.mmap(descriptor, _SIZE))
        finally:
            os.close(descriptor)

    @classmethod
    def received(cls, from_: socket.socket) -> AtWork:
        """The memory that the process at the other end has shared. Raises: OSError."""
        _, [descriptor], *_ = socket.recv_fds(from_, 1, 1)
        try:
            return cls(mmap.mmap(descriptor, _SIZE))
        finally:
            os.close(descriptor)

    @contextmanager
    def on(self, table: str) -> Iterator[None]:
        """In the block, this thread works on a table, given by its uid."""
        with self._lock:
            place = self._free.pop() if self._free else None
        if place is None:
            yield
            return
        begin = place * _PLACE
        self._memory[begin : begin + _PLACE] = table.encode()[:_PLACE].ljust(_PLACE, b"\0")
        try:
            yield
        finally:
            self._memory[begin : begin + _PLACE] = bytes(_PLACE)
            with self._lock:
                self._free.append(place)

    def tables(self) -> set[str]:
        """The uids of the tables that threads work on now, or worked on at the end."""
        places = (self._memory[at : at + _PLACE] for at in range(0, _SIZE, _PLACE))
        found = {place.rstrip(b"\0").decode(errors="replace") for place in places}
        return found - {""}

    def close(self) -> None:
        self._memory.close()


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
        together = threading.Barrier(THREADS)
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
