"""On which table each thread of a child works: in memory that the operator reads when the child has
ended, however it did."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PLACE: Final = 64
"""Bytes for a thread: a uid has 36."""
_PLACES: Final = 64
_SIZE: Final = _PLACE * _PLACES


class AtWork:
    """Thread-safe. Both processes map the same memory."""

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
