"""Waiting for a condition, by tests of what runs in other threads and processes.

Never used for "nothing happens within a while": a limit is reached only where something hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

LIMIT_S = 120.0
"""Seconds; longer than anything takes on a busy machine of two cores."""

POLL_S = 0.02

MOST_POLL_S = 0.1
"""Seconds between two looks after a while: to look at a cluster takes CPU of three processes."""


def await_that(
    test: Callable[[], object],
    what: Callable[[], object] | str,
    limit_s: float = LIMIT_S,
    poll_s: float = POLL_S,
) -> None:
    """Until `test` holds; fails with what `what` says after `limit_s` seconds."""
    begun = time.monotonic()
    pause = threading.Event()
    while not test():
        waited = time.monotonic() - begun
        if waited > limit_s:
            raise AssertionError(f"after {limit_s} s: {what if isinstance(what, str) else what()}")
        pause.wait(max(poll_s, min(waited / 20, MOST_POLL_S)))


async def until(test: Callable[[], bool]) -> None:
    """`await_that` on an event loop: each look is one turn of it, so that what is tested runs."""
    async with asyncio.timeout(LIMIT_S):
        while not test():  # noqa: ASYNC110 - what is tested sets no event
            await asyncio.sleep(POLL_S / 10)
