"""Threads take turns to compute, and leave theirs while they wait for something outside.

One thread of a process runs Python at a time. Of sixteen that compute, each waits for fifteen
others, and so does an event loop beside them; those that wait for a store or a lock are in no
other's way. So the threads of a pool compute in turns of `Turns`, and whatever asks something
outside of the process does so in a block of `waiting`. Without such a pool, that has no effect.

Does not know what the threads do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """So many threads compute at once. Thread-safe.

    Args:
        most_s: one that has not left its turn for so long shares it with one that wants a turn. It
            may be waiting for something that does not know `waiting`, even for that thread.
    """

    def __init__(self, limit: int, most_s: float) -> None:
        self._free = limit
        self._most_s = most_s
        self._changed = threading.Condition()
        self._taken_s: dict[Turn, float] = {}  # in the order in which they were taken

    def take(self, turn: Turn) -> None:
        with self._changed:
            while not self._free:
                if not self._changed.wait(self._most_s):
                    self._take_away_overdue()
            self._free -= 1
            self._taken_s[turn] = time.monotonic()

    def give_back(self, turn: Turn) -> None:
        """No effect if it was taken away."""
        with self._changed:
            self._drop(turn)

    def _take_away_overdue(self) -> None:
        now_s = time.monotonic()
        for turn, taken_s in list(self._taken_s.items()):
            if now_s - taken_s < self._most_s:
                return
            self._drop(turn)

    def _drop(self, turn: Turn) -> None:
        if self._taken_s.pop(turn, None) is not None:
            self._free += 1
            self._changed.notify()


class Turn:
    """One thread's turn, for the length of a `with` block."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """To be called by the thread."""
        self._turns.take(self)
        _current.turn = self

    def end(self) -> None:
        """To be called by the thread."""
        _current.turn = None
        self._turns.give_back(self)


@contextmanager
def waiting() -> Iterator[None]:
    """In this block the thread's turn is for others, if it has one."""
    turn = _current.turn
    if turn is None:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()


@contextmanager
def locked(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock whose holders wait in `waiting`, for requests for example.

    A thread that waited for it in its turn would keep the holder, who wants a turn, from going on.
    """
    if not lock.acquire(blocking=False):
        with waiting():
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Current(threading.local):
    turn: Turn | None = None


_current = _Current()
