"""The current mapping of a coordinator, shared by the threads that answer requests.

The rules are those of `tandem.index.assignment`; here is only the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from tandem.index import assignment as rules
from tandem.index.assignment import Executor, Routes, Shard, ShardMapping


class Assignments:
    """The current mapping of a coordinator. Thread-safe: of two askers one decides (X14)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ShardMapping()

    @property
    def now(self) -> ShardMapping:
        return self._now

    def route(self, shards: Collection[Shard]) -> Routes:
        """Assign what has no executor, and say where all of `shards` are. No executor that was
        removed before the call is in the answer."""
        return rules.routes(
            shards, self._change(lambda now: rules.assign(shards, now.executors, now))
        )

    def report(self, executor: Executor, sizes: Mapping[Shard, int]) -> None:
        """See `report`."""
        self._change(lambda now: rules.report(now, executor, sizes))

    def join(self, executor: Executor) -> None:
        """See `joined`."""
        self._change(lambda now: rules.joined(now, executor))

    def remove(self, executor: Executor) -> tuple[Shard, ...]:
        """See `without`. Returns: the shards it had, so that others can load them before the next
        request."""
        lost: list[Shard] = []

        def change(now: ShardMapping) -> ShardMapping:
            lost.extend(now.shards_of(executor))
            return rules.without(now, executor)

        self._change(change)
        return tuple(lost)

    def drop_table(self, table: str) -> None:
        """See `without_table`."""
        self._change(lambda now: rules.without_table(now, table))

    def drop_shards(self, shards: Collection[Shard]) -> None:
        """See `without_shards`."""
        self._change(lambda now: rules.without_shards(now, shards))

    def _change(self, change: Callable[[ShardMapping], ShardMapping]) -> ShardMapping:
        with self._lock:
            self._now = change(self._now)
            return self._now
