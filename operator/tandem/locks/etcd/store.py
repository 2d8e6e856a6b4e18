"""A `LockStore` in etcd: for operators in a cluster, whose locks must outlive a process.

One leased key per operation with all its resources, and a head key per table that every grant
compares and bumps (docs/decisions/0033). This module is the entry point: it starts the thread and
the event loop on which everything else runs, and turns blocking calls into tasks there.

    codec        keys and values
    client       etcd's calls, endpoints, TLS, tokens, deadlines
    mirror       a cached copy of a table's locks
    transaction  what one transaction does
    table        requests, transactions and waiters of one table
    leases       leases, and when they count as lost
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.locks import codec
from tandem.locks.etcd.client import EtcdAccess, EtcdClient
from tandem.locks.etcd.leases import LeaseName, Leases
from tandem.locks.etcd.table import TableLocks
from tandem.locks.rules import CommitLease, Granted, LockEntry, LockRequest, LockResources, Waiting
from tandem.locks.store import wait_by_watching

_T = TypeVar("_T")
_Call = tuple[Callable[[], Coroutine[Any, Any, Any]], queue.SimpleQueue[asyncio.Task[Any] | None]]
"""A call of another thread: what begins it, and what gets its task once that is done, or None if
the store was closed before."""

_TEND_EVERY_S = 0.25
_HEAD_STAYS_S = 0.5
_WATCH_STAYS_S = 10.0
_MIRROR_STAYS_S = 60.0
_LOOK_AGAIN_S = 30.0
_SWEEP_EVERY_S = 600.0
_GOODBYE_S = 2.0


@dataclass(frozen=True)
class EtcdSettings:
    """How to connect to etcd, and the lifetime of locks.

    `endpoints` are `host:port`, or `https://host:port` for TLS, which `ca`, `certificate` and
    `key` (PEM files) enable, too. `ttl_s` is how long the locks of a dead process are kept: longer
    than it takes to start the next one, which takes them over.
    """

    endpoints: tuple[str, ...]
    prefix: str = "/tandem/v1"
    ttl_s: int = 60
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 4.0
    """The longest time that a call waits for etcd; a method may need a second call."""


class EtcdLocks:
    """The locks in etcd. Thread-safe; all methods except `watch` block. Without etcd they raise
    LocksUnavailable within about five seconds, and work again once it is back. The first call
    connects."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Raises: InvalidSpec."""
        if not settings.endpoints:
            raise InvalidSpec(
                "no etcd endpoint is given", field="endpoints", expected="at least one host:port"
            )
        self._settings = settings
        self._keys = codec.LockKeys(settings.prefix)
        self._tables: dict[bytes, TableLocks] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._incoming: deque[_Call] = deque()
        self._woken = False

    # The port

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        # In the calling thread, since work on the loop delays all other calls.
        text = codec.encode_resources(request)
        return self._call(lambda: self._table(request.table).acquire(request, text))

    def extend(
        self, table: str, operation: str, owner: str, resources: LockResources
    ) -> Granted | Waiting:
        return self._call(lambda: self._table(table).extend(operation, owner, resources))

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        wait_by_watching(self, table, operation, timeout_s)

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        loop = self._started()
        watched: list[tuple[TableLocks, int]] = []
        ended = threading.Event()

        def wake_unless_ended() -> None:
            if not ended.is_set():
                wake()

        def begin() -> None:
            if not ended.is_set() and not self._closed:
                found = self._table(table)
                watched.append((found, found.watch(operation, wake_unless_ended)))

        def end() -> None:
            for found, number in watched:
                found.end_watch(number)

        def finish() -> None:
            ended.set()
            loop.call_soon_threadsafe(end)

        loop.call_soon_threadsafe(begin)
        return finish

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        return self._call(lambda: self._table(table).enter_commit(operation, owner))

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        self._call(lambda: self._table(table).leave_commit(operation, owner))

    def release(self, table: str, operation: str, owner: str) -> None:
        self._call(lambda: self._table(table).release(operation, owner))

    def entries(self, table: str) -> tuple[LockEntry, ...]:
        return self._call(lambda: self._table(table).entries())

    def close(self) -> None:
        """Stop renewing leases, but release nothing: a successor may take the locks over before
        they expire."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    # The thread

    def _call(self, begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        loop = self._started()
        if threading.current_thread().name == _THREAD:
            raise RuntimeError("a store was called from `wake`, on the thread of the locks")
        box: queue.SimpleQueue[asyncio.Task[_T] | None] = queue.SimpleQueue()
        self._incoming.append((begin, box))
        if not self._woken:
            # To wake the loop costs as much as a request. Where the flag is set, the loop is about
            # to clear it, and looks at what came before only then.
            self._woken = True
            loop.call_soon_threadsafe(self._take_over)
        task = box.get()
        if task is None or task.cancelled():
            raise _closed()
        return task.result()

    def _take_over(self) -> None:
        """On the loop: begin the calls of other threads."""
        self._woken = False
        loop = asyncio.get_running_loop()
        while self._incoming:
            begin, box = self._incoming.popleft()
            if self._closed:
                box.put(None)
                continue
            task = loop.create_task(_performed(begin))
            self._calls.add(task)
            task.add_done_callback(partial(self._ended, box))

    def _ended(
        self, box: queue.SimpleQueue[asyncio.Task[Any] | None], task: asyncio.Task[Any]
    ) -> None:
        self._calls.discard(task)
        box.put(task)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._closed:
            with self._starting:
                if self._closed:
                    raise _closed()
                if self._loop is None:
                    loop = _shared_loop()
                    asyncio.run_coroutine_threadsafe(self._begin(), loop).result()
                    self._loop = loop
        return self._loop

    async def _begin(self) -> None:
        """Start everything on the loop. Raises: OSError for a missing certificate."""
        settings = self._settings
        self._calls: set[asyncio.Task[Any]] = set()
        self._client = EtcdClient(
            EtcdAccess(
                settings.endpoints,
                settings.ca,
                settings.certificate,
                settings.key,
                settings.user,
                settings.password,
                settings.timeout_s,
            )
        )
        self._leases = Leases(self._client, settings.prefix, settings.ttl_s, self._lost)

        self._tasks = [asyncio.ensure_future(work) for work in (self._leases.keep(), self._tend())]
        for task in self._tasks:
            task.add_done_callback(_say_why)

    async def _end(self) -> None:
        for task in (*self._tasks, *self._calls):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._calls, return_exceptions=True)
        for table in self._tables.values():
            await table.close()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._remove_heads(stayed_s=0.0)
        except (TimeoutError, LocksUnavailable):
            # The next store that sweeps removes them.
            pass
        await self._client.close()

    # On the loop

    def _table(self, name: str) -> TableLocks:
        identifier = codec.table_id(name)
        table = self._tables.get(identifier)
        if table is None:
            keys = self._keys.by_id(identifier)
            table = TableLocks(name, keys, self._client, self._leases, self._revoke)
            self._tables[identifier] = table
        table.used_at = time.monotonic()
        return table

    def _lost(self, name: LeaseName) -> None:
        table = self._tables.get(codec.table_id(name[0]))
        if table is not None:
            table.lost(name)

    def _revoke(self, lease: int) -> None:
        """Revoke a lease without a user in the background; if that fails, it expires."""

        async def revoke() -> None:
            try:
                await self._client.revoke(lease)
            except LocksUnavailable:
                return

        task = asyncio.ensure_future(revoke())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _tend(self) -> None:
        """Background work: removes heads without entries, closes unused tables, and reads
        tables with waiters again, in case a watch missed a change."""
        look_at = time.monotonic() + _LOOK_AGAIN_S
        sweep_at = time.monotonic() + _HEAD_STAYS_S
        while True:
            await asyncio.sleep(_TEND_EVERY_S)
            now = time.monotonic()
            for table in self._tables.values():
                table.refresh_for_waiters(doubt=now >= look_at)
                if table.idle(now - _WATCH_STAYS_S):
                    table.stop_watching()
            if now >= look_at:
                look_at = now + _LOOK_AGAIN_S
            try:
                await self._remove_heads(_HEAD_STAYS_S)
                if now >= sweep_at:
                    sweep_at = now + _SWEEP_EVERY_S
                    await self._sweep()
            except LocksUnavailable:
                continue
            for identifier, table in list(self._tables.items()):
                if table.idle(now - _MIRROR_STAYS_S):
                    del self._tables[identifier]

    async def _remove_heads(self, stayed_s: float) -> None:
        before = time.monotonic() - stayed_s
        for table in list(self._tables.values()):
            if table.may_be_empty and table.idle(before):
                await table.remove_head()

    async def _sweep(self) -> None:
        """Remove heads of tables whose last holder died: perhaps no other request ever does."""
        heads: set[bytes] = set()
        used: set[bytes] = set()
        for kv in await self._client.read(self._keys.start, self._keys.end, keys_only=True):
            identifier = self._keys.id_of(kv.key)
            is_head = kv.key == self._keys.by_id(identifier).head
            (heads if is_head else used).add(identifier)
        for identifier in heads - used:
            if identifier not in self._tables:
                keys = self._keys.by_id(identifier)
                await TableLocks("", keys, self._client, self._leases, self._revoke).remove_head()


_THREAD = "locks"
_loops: list[asyncio.AbstractEventLoop] = []
_loops_mutex = threading.Lock()


def _shared_loop() -> asyncio.AbstractEventLoop:
    """The loop of all stores of this process, which runs as long as the process: gRPC's asyncio
    has one event queue for all loops, and drops events for a loop that was closed."""
    with _loops_mutex:
        if not _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True).start()
            _loops.append(loop)
        return _loops[0]


def _say_why(task: asyncio.Future[None]) -> None:
    """Log why a task has ended by itself, which is a bug: locks are then lost in time."""
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": "the lock store stopped working", "exception": task.exception()}
        )


async def _performed(begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    return await begin()


def _closed() -> LocksUnavailable:
    return LocksUnavailable("the lock store is closed")
