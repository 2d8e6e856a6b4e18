"""Waiting for the locks of one table in etcd: the table is watched while a request waits, and
waiters whose way is free are woken. Runs on the store's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import aclosing

from tandem.errors import LocksUnavailable
from tandem.locks import codec, rules
from tandem.locks.etcd.client import EtcdClient
from tandem.locks.etcd.connection import StreamBroken
from tandem.locks.etcd.leases import LeaseName
from tandem.locks.etcd.mirror import Mirror
from tandem.locks.etcd.transaction import MOST_REVOKED
from tandem.locks.model import LockEntry

_RECONNECT_S = 0.2


class Watchers:
    """Of one table. `refresh` has the table read into the mirror; `look` is called after it."""

    def __init__(
        self,
        keys: codec.TableKeys,
        client: EtcdClient,
        mirror: Mirror,
        refresh: Callable[[], None],
    ) -> None:
        self._keys = keys
        self._client = client
        self._mirror = mirror
        self._refresh = refresh
        self._watchers: dict[int, tuple[str, Callable[[], None]]] = {}
        self._blockers: dict[int, tuple[LockEntry, LockEntry]] = {}
        self._numbers = itertools.count()
        self._looking = False
        self.following: asyncio.Task[None] | None = None
        """The task that watches the table."""

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, operation: str, wake: Callable[[], None]) -> int:
        """Call `wake` when the operation's way may be free; a number for `remove`."""
        number = next(self._numbers)
        self._watchers[number] = (operation, wake)
        if self.following is None:
            self.following = asyncio.ensure_future(self._follow())
        elif self._mirror.current:
            self.look()
        return number

    def remove(self, number: int) -> None:
        self._watchers.pop(number, None)
        self._blockers.pop(number, None)

    def stop_watching(self) -> None:
        """Stop watching the table if no request waits."""
        if self.following is not None and not self._watchers:
            self.following.cancel()
            self.following = None
            self._mirror.watch_ended()

    def lost(self, name: LeaseName) -> None:
        """A lease was lost in use: wake its watchers, also while etcd is away."""
        for operation, wake in list(self._watchers.values()):
            if operation == name[1]:
                _call_soon(wake)

    def look(self) -> None:
        """Wake the waiters that may be granted, after all pending callbacks of the loop."""
        if self._watchers and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._mirror.current:
            return
        try:
            entries = self._mirror.entries
        except LocksUnavailable:
            # The next request for a lock reports what cannot be read.
            return
        for number, (operation, wake) in list(self._watchers.items()):
            mine = entries.get(operation)
            seen = self._blockers.get(number)
            if seen and mine is seen[0] and entries.get(seen[1].request.operation) is seen[1]:
                continue
            blockers = rules.blockers_of(mine, entries.values(), MOST_REVOKED)
            if blockers and mine is not None:
                self._blockers[number] = (mine, blockers[0][0])
            else:
                self._blockers.pop(number, None)
                _call_soon(wake)

    async def _follow(self) -> None:
        """Watch the table. Whenever the watch restarts (its stream broke, the endpoint was
        changed, or its revision was compacted), the table is read again."""
        mirror = self._mirror
        while True:
            try:
                async with aclosing(self._client.watch(self._keys.start, self._keys.end)) as watch:
                    async for event in watch:
                        if isinstance(event, int):
                            mirror.watch_began(event)
                            self._refresh()
                        elif mirror.observe(event):
                            self.look()
            except (StreamBroken, LocksUnavailable):
                mirror.watch_ended()
                await asyncio.sleep(_RECONNECT_S)


def _call_soon(wake: Callable[[], None]) -> None:
    """Call `wake` through the loop, which logs an exception of it, so that it does no harm here."""
    asyncio.get_running_loop().call_soon(wake)
