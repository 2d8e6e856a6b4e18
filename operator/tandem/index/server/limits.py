"""How much one caller has of a server at once: what is beyond waits for its turn, and what does not
come in time is refused, so that its caller goes on without the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tandem.errors import Unreachable

MAX_CALLS: Final = 64
"""Of one caller that are worked on at once."""
MAX_STREAMS: Final = 16
"""Of one caller that are being sent to it, of those that are larger than what a connection takes
unread."""
WAIT_S: Final = 1.0
"""For its turn, of the two seconds for which a client waits."""
_MOST_WAITING: Final = 1_000


class CallerLimits:
    """How many calls of one caller are worked on, and how many answers are being sent to it.
    Further ones wait for their turn. Thread-safe."""

    def __init__(
        self, calls: int = MAX_CALLS, streams: int = MAX_STREAMS, wait_s: float = WAIT_S
    ) -> None:
        self._calls, self._streams = _Turns(calls), _Turns(streams)
        self._wait_s = wait_s

    def call(self, caller: str) -> AbstractContextManager[None]:
        """For the work of a call. Raises: Unreachable if its turn does not come in time: the caller
        goes on without the server."""
        return self._calls.turn(caller, self._wait_s)

    def stream(self, caller: str) -> AbstractContextManager[None]:
        """While a large answer is being sent: a caller that does not read it takes the place of
        others of its own only. Raises: as `call`."""
        return self._streams.turn(caller, self._wait_s)


class _Turns:
    """Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def turn(self, caller: str, wait_s: float) -> Iterator[None]:
        with self._changed:
            if self._waiting[caller] >= _MOST_WAITING:
                raise self._too_much()
            self._waiting[caller] += 1
            came = self._changed.wait_for(lambda: self._taken[caller] < self._most, wait_s)
            self._lower(self._waiting, caller)
            if not came:
                raise self._too_much()
            self._taken[caller] += 1
        try:
            yield
        finally:
            with self._changed:
                self._lower(self._taken, caller)
                self._changed.notify_all()

    def _lower(self, counts: Counter[str], caller: str) -> None:
        counts[caller] -= 1
        if not counts[caller]:
            del counts[caller]

    def _too_much(self) -> Unreachable:
        return Unreachable(
            "this caller asks too much at once",
            found=f"{self._most} calls that are not answered yet",
            expected=f"at most {self._most} at once",
        )
