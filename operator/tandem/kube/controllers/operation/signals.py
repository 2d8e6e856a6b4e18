"""Requests to the controller of a resource and to its session, and waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Signals:
    """`wake`: look again at once; `leaving`: perform no further effect and leave everything as it
    is for the next session."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: bool = False

    def leave(self) -> None:
        self.leaving = True
        self.wake.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until something changes, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        self.wake.clear()

    async def acquire(self, lock: asyncio.Lock, is_over: Callable[[], bool]) -> bool:
        """Wait for the lock; False if meanwhile there is nothing left to do."""
        taking = asyncio.ensure_future(lock.acquire())
        while not taking.done() and not is_over():
            waking = asyncio.ensure_future(self.wake.wait())
            await asyncio.wait({taking, waking}, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            if not taking.done():
                self.wake.clear()
        if taking.done():
            return True
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if await taking:
                lock.release()
        return False
