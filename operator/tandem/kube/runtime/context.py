"""The shared state of one operator. No globals: several operators may run in one process, each
with a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tandem.delta.budget import TableBudget
from tandem.jobs.runner import JobRunner
from tandem.kube.client.api import Api
from tandem.kube.client.kinds import TABLE_KIND, Body
from tandem.kube.client.resource_cache import CachedResource, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.automatic_slots import AutomaticSlots
from tandem.kube.runtime.fair_queue import Lane
from tandem.kube.runtime.job_slots import JobSlots
from tandem.kube.runtime.settings import OperatorSettings
from tandem.kube.runtime.workers import Workers
from tandem.kube.tables.context import TableContext, TableDependencies
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.locks.store import LockStore
from tandem.operations.model import Table
from tandem.operations.ports import Clock, Nonces, Processes
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.common import ResourceKey
from tandem.spec.resources import Operation

_T = TypeVar("_T")


class RunnerFactory(Protocol):
    """Returns the `JobRunner` of one operation. Called in a worker thread or in the loop."""

    def __call__(self, resource: Operation, body: Body, table: Table) -> JobRunner: ...


class AutoCompactor(Protocol):
    """Automatic compaction of one table or of its log, or its retention: called after each
    refresh, and when it requested that. Returns what to add to the status of the table, and in how
    many seconds to call it again."""

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource], /
    ) -> tuple[dict[str, Any], float]: ...


@dataclass(frozen=True, slots=True)
class IndexServerFacts:
    """What metrics say of an IndexServer. `ready` is None while it is suspended."""

    ready: bool | None
    reason: str
    tables: int = 0
    bytes: int = 0
    evictions: int = 0


@dataclass
class OperatorContext:
    """`may_write`: whether we still lead; once False it stays so. `active_operations`: the uids of
    operations that have a running controller; `cancelled`: of those that are being deleted and are
    cleaned up; `index_pool`: threads that ask index servers, which may hang."""

    settings: OperatorSettings
    api: Api
    resource_cache: ResourceCache
    locks: LockStore
    processes: Processes
    clock: Clock
    nonces: Nonces
    pool: Workers
    index_pool: Executor
    slots: JobSlots
    automatic_slots: AutomaticSlots
    runner_factory: RunnerFactory
    metrics: Metrics
    interceptor: Interceptor = passthrough
    auto_compactors: Sequence[AutoCompactor] = ()
    may_write: Callable[[], bool] = lambda: True
    tables: dict[tuple[str, str], TableContext] = field(default_factory=dict)
    index_servers: dict[tuple[str, str], IndexServerFacts] = field(default_factory=dict)
    active_operations: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    _resource_locks: dict[ResourceKey, tuple[asyncio.Lock, list[None]]] = field(
        default_factory=dict
    )

    def threads(
        self, namespace: str, table: str, call: Callable[[], _T], *, look: bool = False
    ) -> Awaitable[_T]:
        """Run a call on a table in the pool of worker threads. `look`: it asks the table's store,
        as the next ones will."""
        executor = self.pool.lane(Lane(namespace, table), look=look)
        return asyncio.get_running_loop().run_in_executor(executor, call)

    def new_table(self, uid: str, namespace: str, name: str, *, adopted: bool) -> TableContext:
        """A table that was not refreshed yet."""

        def threads(call: Callable[[], _T], *, look: bool = False) -> Awaitable[_T]:
            return self.threads(namespace, name, call, look=look)

        dependencies = TableDependencies(
            self.api,
            threads,
            self.locks,
            self.clock,
            self.nonces,
            self.metrics,
            LocationPolicy(self.settings.allowed_locations, self.settings.allowed_endpoints),
            self.settings.store_timeout_s,
            TableBudget(self.settings.table_memory),
        )
        return TableContext(uid, dependencies, adopted=adopted)

    def table_changed(self, namespace: str, name: str) -> None:
        """A table has become ready, or is no longer ready: wake those that wait for it."""
        self.resource_cache.wake_watchers((TABLE_KIND, namespace, name))

    @contextmanager
    def resource_lock(self, key: ResourceKey) -> Iterator[asyncio.Lock]:
        """The lock by which a resource that was deleted and recreated waits for the clean-up
        of its predecessor. It exists only while it is used."""
        lock, users = self._resource_locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            yield lock
        finally:
            users.pop()
            if not users:
                del self._resource_locks[key]
