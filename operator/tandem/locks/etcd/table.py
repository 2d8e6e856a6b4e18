"""The locks of one table in etcd: decided on the mirror, written by conditional transactions.

A table is watched only while a request waits. Otherwise only its users need to know
its state, and the next transaction notices and reads what others did. Requests that arrive during a
transaction are decided together and share the next one, so that a busy table costs etcd less, not
more. Runs on the store's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.locks import codec, rules
from tandem.locks.etcd.client import (
    KEEP_LEASE,
    EtcdClient,
    KeyValue,
    LeaseMissing,
    StreamBroken,
    TransactionResult,
    delete,
    empty,
    put,
    read,
    unchanged,
)
from tandem.locks.etcd.leases import LeaseName, Leases
from tandem.locks.etcd.mirror import (
    MOST_COMPARES,
    MOST_REVOKED,
    EntryRecord,
    Mirror,
    QueuedRequest,
    TransactionPlan,
    decide_batch,
    record_of,
    take,
)
from tandem.locks.rules import (
    CommitLease,
    EntryState,
    Granted,
    LockEntry,
    LockRequest,
    LockResources,
    Waiting,
)

# Waiting for the locks of one table in etcd: the table is watched while a request waits, and
# waiters whose way is free are woken. Runs on the store's event loop.


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


_TRIES_S = 5.0

LockAnswer = Granted | Waiting


class TableLocks:
    """One table. `revoke` ends a lease in the background."""

    def __init__(
        self,
        name: str,
        keys: codec.TableKeys,
        client: EtcdClient,
        leases: Leases,
        revoke: Callable[[int], None],
    ) -> None:
        self.name = name
        self.used_at = time.monotonic()
        self._keys = keys
        self._client = client
        self._leases = leases
        self._revoke = revoke
        self.mirror = Mirror(keys)
        self._queue: deque[QueuedRequest] = deque()
        self._worker: asyncio.Future[None] | None = None
        self._working = False
        self._watchers = Watchers(keys, client, self.mirror, self.refresh)
        # Whether an entry was removed, so that the head may be the only key now.
        self._left = False

    # Requests of the store

    async def acquire(self, request: LockRequest, text: bytes) -> LockAnswer:
        """`text` is the result of `codec.encode_resources` on the request."""
        name = (request.table, request.operation, request.owner)
        for _ in range(3):
            lease = await self._leases.ensure(name)
            try:
                answer: LockAnswer = await self._submit(
                    QueuedRequest(
                        request.operation, request.owner, _future(), request, lease=lease, text=text
                    )
                )
            except LeaseMissing:
                self._leases.forget(lease)
                continue
            return answer
        raise LocksUnavailable("leases expire as soon as they are granted", resource=self.name)

    async def extend(self, operation: str, owner: str, resources: LockResources) -> LockAnswer:
        lease = self._leases.get((self.name, operation, owner))
        if lease is None or lease.lost or lease.released:
            return Waiting(())
        queued = QueuedRequest(operation, owner, _future(), more=resources, lease=lease)
        try:
            answer: LockAnswer = await self._submit(queued)
        except LeaseMissing:
            return Waiting(())
        return answer

    async def entries(self) -> tuple[LockEntry, ...]:
        await self._submit(QueuedRequest("", "", _future()))
        return tuple(sorted(self.mirror.entries.values(), key=lambda entry: entry.order))

    async def enter_commit(self, operation: str, owner: str) -> CommitLease:
        lease = self._leases.get((self.name, operation, owner))
        if lease is None or lease.lost or lease.released:
            return CommitLease.LOST
        answer = await self._change_state(operation, owner, EntryState.COMMITTING)
        return CommitLease.LOST if lease.lost else answer

    async def leave_commit(self, operation: str, owner: str) -> None:
        lease = self._leases.get((self.name, operation, owner))
        if lease is not None and not lease.lost and not lease.released:
            await self._change_state(operation, owner, EntryState.HELD)

    async def release(self, operation: str, owner: str) -> None:
        lease = self._leases.get((self.name, operation, owner))
        record = self.mirror.record(operation)
        if lease is None:
            # Perhaps an earlier process of the same owner.
            record = await self._read_record(operation)
            if record is None or record.entry.request.owner != owner:
                return
            await self._client.revoke(record.lease)
            self._left = True
        else:
            self._leases.stop(lease)
            await self._client.revoke(lease.id)
            self._leases.forget(lease)
            self._left = True
            if record is None or record.lease != lease.id:
                return
        self.mirror.removed(operation, record)
        self._watchers.look()

    def watch(self, operation: str, wake: Callable[[], None]) -> int:
        self.used_at = time.monotonic()
        return self._watchers.add(operation, wake)

    def end_watch(self, number: int) -> None:
        self.used_at = time.monotonic()
        self._watchers.remove(number)

    # Periodic work of the store

    def idle(self, since: float) -> bool:
        """Whether it is unused since this time (`time.monotonic()`), and no request waits."""
        return self.used_at <= since and not self._working and not self._watchers

    def stop_watching(self) -> None:
        """No request has waited for a while: stop watching."""
        self._watchers.stop_watching()

    def refresh_for_waiters(self, *, doubt: bool) -> None:
        """Read the table for its waiters if that has failed before or, with `doubt`, in case the
        watch has missed a change."""
        waiting = self._watchers and self.mirror.watched and not self._working
        if waiting and (doubt or not self.mirror.current):
            self.refresh()

    async def close(self) -> None:
        """Stop all tasks. To be called after the last request."""
        tasks = [task for task in (self._worker, self._watchers.following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def may_be_empty(self) -> bool:
        mirror = self.mirror
        return self._left or (mirror.head > 0 and mirror.empty)

    async def remove_head(self) -> None:
        """Remove the head if there are no entries. Raises: LocksUnavailable."""
        head, generation = self.mirror.head, self.mirror.generation
        done = await self._client.transact(
            [empty(self._keys.operations, self._keys.operations_end)],
            [delete(self._keys.head)],
            [],
        )
        self._left = False
        if done.succeeded:
            self.mirror.head_removed(generation, head)
        elif not self.mirror.current:
            self.mirror.forget()

    def lost(self, name: LeaseName) -> None:
        """A lease was lost in use: wake its watchers, also while etcd is unavailable."""
        self._watchers.lost(name)

    def refresh(self) -> None:
        """Read the table, for the watchers. If that fails, the store tries again."""
        answer = _future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._put_in_queue(QueuedRequest("", "", answer))

    # The queue

    async def _submit(self, queued: QueuedRequest) -> Any:
        self.used_at = time.monotonic()
        self._queue.append(queued)
        if not self._working:
            # The first request serves those that arrived with it; a task serves later ones.
            await self._work(batches=1)
        return await queued.answer

    def _put_in_queue(self, queued: QueuedRequest) -> None:
        self._queue.append(queued)
        self._start()

    def _start(self) -> None:
        if self._queue and not self._working:
            self._working = True
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self, batches: float = math.inf) -> None:
        self._working = True
        alone = 0
        batch: list[QueuedRequest] = []
        try:
            while self._queue and (batches > 0 or alone):
                batches -= 1
                batch = take(self._queue, 1 if alone else MOST_COMPARES)
                alone = max(alone - 1, 0)
                try:
                    await self._settle(batch)
                except (LeaseMissing, InvalidSpec) as error:
                    # One of the leases is gone, or one of the plans is too large: try one by one.
                    if len(batch) == 1:
                        _fail(batch, error)
                    else:
                        alone = len(batch)
                        self._queue.extendleft(reversed(batch))
                except LocksUnavailable as error:
                    # The mirror may contain what cannot be read. The other requests in the queue
                    # would fail in the same way, one after the other.
                    self.mirror.forget()
                    _fail([*batch, *self._queue], error)
                    self._queue.clear()
        except BaseException as error:
            _fail([*batch, *self._queue], error)
            self._queue.clear()
            raise
        finally:
            self._working = False
            self._start()

    async def _settle(self, batch: list[QueuedRequest]) -> None:
        """Decide and write until a transaction succeeds. Each failure means that another process
        was faster, and returns the current state of the table."""
        ends = time.monotonic() + _TRIES_S
        while time.monotonic() < ends:
            plan = decide_batch(batch, self.mirror)
            self.mirror.reading()
            try:
                done = await self._transact(plan)
            except BaseException:
                self.mirror.not_read()
                raise
            if done.succeeded:
                self._apply(plan, done)
                return
            self.mirror.read(done.found, done.revision)
            self._watchers.look()
        raise LocksUnavailable("other processes keep changing the locks", resource=self.name)

    async def _transact(self, plan: TransactionPlan) -> TransactionResult:
        compares, success = plan.requests(self._keys, self.name)
        everything = read(self._keys.start, self._keys.end)
        if plan.reads_all:
            success.append(everything)
        return await self._client.transact(compares, success, [everything])

    def _apply(self, plan: TransactionPlan, done: TransactionResult) -> None:
        written = {o: plan.written(o, done.revision) for o in plan.puts}
        if plan.reads_all:
            self.mirror.read(done.found, done.revision)
        else:
            self.mirror.not_read()
            for operation in plan.deletes:
                self.mirror.removed(operation, plan.records[operation])
            if plan.puts:
                self.mirror.wrote(plan.generation, written, done.revision)
        for lease in plan.left_leases():
            self._revoke(lease)
        self._queue.extendleft(reversed(plan.again))
        for queued in plan.reads:
            _answer(queued, None)
        for queued, blockers in plan.waits.items():
            if queued.request is not None and queued.lease is not None:
                self._leases.use(queued.lease)
            _answer(queued, rules.waiting(blockers))
        for queued in plan.grants:
            if queued.lease is not None:
                self._leases.use(queued.lease)
            record = written.get(queued.operation)
            entry = record.entry if record is not None else plan.work[queued.operation]
            _answer(queued, Granted(entry.token))
        self._watchers.look()

    # A single entry

    async def _change_state(self, operation: str, owner: str, state: EntryState) -> CommitLease:
        """Change the state between held and committing, without bumping the head: no grant
        changes, and a revoking transaction compares the entry."""
        key = self._keys.of(operation)
        record, fresh = self.mirror.record(operation), False
        ends = time.monotonic() + _TRIES_S
        while time.monotonic() < ends:
            answer = rules.may_commit(record.entry if record else None, owner)
            if record is None or answer is not CommitLease.ENTERED:
                if fresh:
                    return answer
                record, fresh = await self._read_record(operation), True
                continue
            if state is EntryState.HELD and record.entry.state is state:
                return answer
            entry = replace(record.entry, state=state)
            done = await self._client.transact(
                [unchanged(key, record.modified)],
                [put(key, codec.encode(entry, record.place), KEEP_LEASE)],
                [read(key)],
            )
            if done.succeeded:
                self.mirror.changed(operation, replace(record, entry=entry, modified=done.revision))
                self._watchers.look()
                return answer
            record, fresh = _only(done.found), True
        raise LocksUnavailable("other processes keep changing the lock", resource=self.name)

    async def _read_record(self, operation: str) -> EntryRecord | None:
        key = self._keys.of(operation)
        return _only(await self._client.read(key, b""))


def _only(found: Sequence[KeyValue]) -> EntryRecord | None:
    return record_of(found[0]) if found else None


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _answer(queued: QueuedRequest, answer: LockAnswer | None) -> None:
    if not queued.answer.done():
        queued.answer.set_result(answer)


def _fail(batch: list[QueuedRequest], error: BaseException) -> None:
    if not isinstance(error, Exception):
        error = LocksUnavailable("the lock store is closed")
    for queued in batch:
        if not queued.answer.done():
            queued.answer.set_exception(error)
