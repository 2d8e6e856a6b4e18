"""How many jobs may run at once. Fair: first come, first served. For one event loop."""

from __future__ import annotations

import asyncio
from collections import deque


class JobSlots:
    """`limit` slots; 0 for no limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        """How many operations wait for a slot."""
        return sum(not turn.done() for turn in self._waiting)

    def try_take(self) -> bool:
        """Take a slot if one is free and no operation waits."""
        if self.limit and (self._taken >= self.limit or self._waiting):
            return False
        self._taken += 1
        return True

    def force(self) -> None:
        """Take a slot for a job that runs already, even if none is free."""
        self._taken += 1

    async def take(self) -> None:
        """Wait for a slot, and take it."""
        if self.try_take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            elif turn in self._waiting:  # not passed over by `give_back` meanwhile
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        self._taken -= 1
        while self._waiting and self._taken < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
