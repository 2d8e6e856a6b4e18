"""The facts that one executor holds, shard by shard, below a limit of bytes.

What was used least recently is dropped first. A shard that was dropped is still this executor's:
it is loaded again when it is asked for (X5).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from tandem.errors import ReferenceNotFound
from tandem.index.facts.cache import LIMIT, FactsCache
from tandem.index.narrowing import NeededGroups
from tandem.index.server.executors.shared_listing import SharedListing
from tandem.index.server.messages import HeldShard
from tandem.storage.store import Store

_NOTHING = 0, 0
MakeFacts = Callable[[Store], FactsCache]


class ShardName(NamedTuple):
    """`table` is the name of its LakeTable: of two tables of one id each has facts of its own."""

    table: str
    table_id: str
    key: str


class Held:
    """The facts of one shard. Thread-safe."""

    def __init__(self, facts: FactsCache) -> None:
        self.facts = facts
        self.used = 0
        """The number of the last question about it, among all."""
        self._lock = threading.Lock()
        self._late: set[Future[NeededGroups]] = set()

    def note_late(self, question: Future[NeededGroups]) -> None:
        """A question did not end in time, and goes on: its facts are being read."""
        with self._lock:
            self._late.add(question)

    @property
    def is_loading(self) -> bool:
        with self._lock:
            self._late = {each for each in self._late if not each.done()}
            return bool(self._late)


class HeldShards:
    """Thread-safe.

    Args:
        stores: how the store of each table is opened, by the name of its LakeTable.
        limit_bytes: of what is held between questions; None for no limit.
        facts: makes what holds the facts of a shard, if it is not the usual one.
    """

    def __init__(
        self,
        stores: Mapping[str, Callable[[], Store]],
        *,
        limit_bytes: int | None = None,
        facts: MakeFacts | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self._stores = stores
        # No shard alone may take more than all.
        most = LIMIT if limit_bytes is None else min(limit_bytes, LIMIT)
        self._facts = facts or partial(FactsCache, limit=most)
        self._opened: dict[str, Store] = {}
        self._lock = threading.Lock()
        self._held: dict[ShardName, Held] = {}
        self._loads: dict[ShardName, int] = {}
        self._hits: dict[ShardName, int] = {}
        self._turn = 0

    def of(self, name: ShardName) -> Held:
        """The facts of a shard, which may be none yet. Raises: ReferenceNotFound."""
        store = self._store(name.table)
        with self._lock:
            self._turn += 1
            held = self._held.get(name)
            if held is None:
                held = self._held[name] = Held(self._facts(store))
                self._loads[name] = self._loads.get(name, 0) + 1
            else:
                self._hits[name] = self._hits.get(name, 0) + 1
            held.used = self._turn
            return held

    def shown(self) -> tuple[HeldShard, ...]:
        """What is held, and what has been evicted and not been loaded again."""
        with self._lock:
            sizes = {
                name: (held.facts.nbytes, held.facts.filter_bytes)
                for name, held in self._held.items()
            }
            return tuple(
                HeldShard(
                    table=name.table,
                    table_id=name.table_id,
                    shard=name.key,
                    bytes=sizes.get(name, _NOTHING)[0],
                    filter_bytes=sizes.get(name, _NOTHING)[1],
                    loads=self._loads[name],
                    hits=self._hits.get(name, 0),
                )
                for name in sorted(self._loads)
            )

    def sizes(self) -> dict[ShardName, int]:
        """The bytes that shards need, of those that have been loaded."""
        with self._lock:
            sizes = {name: held.facts.nbytes for name, held in self._held.items()}
        return {name: size for name, size in sizes.items() if size}

    def drop(self, table_id: str | None = None, keys: Collection[str] = ()) -> None:
        """Forget shards: these of a table, all of a table, or all."""
        with self._lock:
            for name in list(self._loads):
                if table_id in (None, name.table_id) and (not keys or name.key in keys):
                    self._held.pop(name, None)
                    self._hits.pop(name, None)
                    del self._loads[name]

    def evict(self) -> None:
        """Drop what was used least recently until what is held is below the limit."""
        if self.limit_bytes is None:
            return
        with self._lock:
            sizes = {name: held.facts.nbytes for name, held in self._held.items()}
            total = sum(sizes.values())
            for name in sorted(sizes, key=lambda each: self._held[each].used):
                if total <= self.limit_bytes:
                    break
                total -= sizes[name]
                del self._held[name]
                self.evictions += 1

    def _store(self, table: str) -> Store:
        with self._lock:
            found = self._opened.get(table)
        if found is None:
            opener = self._stores.get(table)
            if opener is None:
                raise ReferenceNotFound(
                    "this executor does not serve such a table",
                    resource=table[:100],
                    expected="the name of a LakeTable that the server serves",
                )
            opened = SharedListing(opener())
            with self._lock:
                found = self._opened.setdefault(table, opened)
        return found
