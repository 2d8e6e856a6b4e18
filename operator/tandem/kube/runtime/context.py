"""The settings of an operator, and what its parts share. No globals: several operators may run in
one process, each with a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tandem.jobs.runner import SMALL_BYTES, JobRunner
from tandem.kube.client.api import Api
from tandem.kube.client.resources import TABLE_KIND, Body, CachedResource, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.controller_tasks import StopSignal
from tandem.kube.runtime.slots import JobLimits, OperationSlots, Slots
from tandem.kube.runtime.tenants import SmallJobRules
from tandem.kube.runtime.threads import TableThreads
from tandem.kube.tables.status import TableFigures
from tandem.locks.store import LockStore
from tandem.operations.ports import Clock, Nonces, Processes
from tandem.spark.application.port import ApplicationSettings
from tandem.spec.common import ResourceKey
from tandem.spec.resources import Operation
from tandem.spec.table import LakeTable

if TYPE_CHECKING:
    from tandem.kube.runtime.small_jobs import SmallJobs
    from tandem.kube.tables.context import TableContext
    from tandem.locks.etcd.store import EtcdSettings
    from tandem.operations.session.options import Interceptor


_LEAST_HEAP: Final = 512 << 20
_MOST_HEAP: Final = 1 << 30

# The settings of an operator. Pure data; the command line fills it in.


def default_instance() -> str:
    """The name of this operator process: its pod's name, outside of a pod host and pid."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of one operator process. No option sets `instance` and what only tests change:
    `poll_ms`, `cancel_s`, and the fields from `clean_s` on.

    Args:
        namespaces: patterns of those served, as for `kopf run --namespace`; none: all.
        kubeconfig: None for the pod's service account, or else the one that kubectl would use.
        etcd: where the locks are; None for locks inside this process, which is only safe if one
            operator runs and no other process writes through Tandem.
        application: what all jobs have in common.
        allowed_locations, allowed_endpoints: where tables and sources may be, by namespace; see
            `tandem.kube.tables.location_policy`. None: anywhere.
        job_limits: how many jobs may run at once.
        automatic_slots: how many of them may be of automatic operations; 0 for no limit.
        small_job_bytes: jobs that read at most so much are done by processes of ours, without
            Spark; 0 for none.
        small_jobs_on_spark: whether those of them that need Spark have it in a JVM beside such a
            process, instead of a SparkApplication.
        deadline_s: `activeDeadlineSeconds` of operations that name none; 0 for no deadline.
        store_timeout_s: how long a request of a store may take, retries and all.
        table_memory: bytes of memory that a child process may have; None for any number.
        table_poll_s: how often a table's log is checked for commits of other writers.
        poll_ms: how often a job's result and progress are looked for in the store; its
            SparkApplication is watched.
        election_id: operators with the same id elect one leader.
        instance: the name of this process among them, in logs and in events.
        health: `host:port` of /healthz, /readyz and /metrics, "" for none.
        table_metrics: how many tables have metrics of their own, those with the most files.
        clean_s: how long after the start a table is first cleaned, times one to four.
        index_poll_s: how often an index server is asked what it holds.
        index_calm_s: how long the tables of one have to stay the same before it restarts for them.
        status_s, progress_s: the least number of seconds between two writes of one status, and
            (status_s) between two rounds of a LakeTable's controller.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    etcd: EtcdSettings | None = None
    application: ApplicationSettings = field(default_factory=ApplicationSettings)
    allowed_locations: tuple[str, ...] = ()
    allowed_endpoints: tuple[str, ...] = ()
    job_limits: JobLimits = field(default_factory=lambda: JobLimits(16))
    small_job_bytes: int = SMALL_BYTES
    small_jobs_on_spark: bool = False
    deadline_s: int = 0
    automatic_slots: int = 0
    store_timeout_s: float = 60.0
    table_memory: int | None = None
    table_poll_s: float = 10.0
    poll_ms: int = 500
    election_id: str = "tandem"
    instance: str = field(default_factory=default_instance)
    health: str = ""
    table_metrics: int = 100
    clean_s: float = 60.0
    index_poll_s: float = 15.0
    index_calm_s: float = 10.0
    status_s: float = 1.0
    progress_s: float = 5.0

    @property
    def small_jobs(self) -> SmallJobRules:
        """Which jobs are done without Spark: those that fit into a process of ours."""
        most = self.small_job_bytes
        return SmallJobRules(
            most if self.table_memory is None else min(most, self.table_memory // 4),
            bounded=bool(self.allowed_locations),
            trusted=self.kubeconfig is not None,
            heap=self._heap if self.small_jobs_on_spark else 0,
        )

    @property
    def _heap(self) -> int:
        """Of the JVM beside a process of ours: half of what that may have, since Python workers and
        what is beside the heap take as much again; no less than Spark needs, and no more than a
        small application has."""
        half = _MOST_HEAP if self.table_memory is None else self.table_memory // 2
        return min(max(half, _LEAST_HEAP), _MOST_HEAP)

    @property
    def names_namespaces(self) -> bool:
        """Whether no namespace is given by a pattern."""
        return not any(set("*?[!,") & set(name) for name in self.namespaces)

    def log_fields(self) -> dict[str, object]:
        """The settings for the log, without passwords and without the template, which may contain
        secrets."""
        etcd = self.etcd
        return {
            "instance": self.instance,
            "namespaces": list(self.namespaces) or "all",
            "election": self.election_id,
            "locks": "in-process" if etcd is None else list(etcd.endpoints),
            "locks_prefix": "" if etcd is None else etcd.prefix,
            "locks_ttl_s": None if etcd is None else etcd.ttl_s,
            "image": self.application.image,
            "service_account": self.application.service_account,
            "allowed_locations": list(self.allowed_locations) or "any",
            "allowed_endpoints": list(self.allowed_endpoints),
            "template_policy": self.application.template_policy.value,
            "template_allow": list(self.application.template_allow),
            "max_jobs": self.job_limits.total,
            "max_jobs_per_namespace": self.job_limits.per_namespace,
            "max_jobs_per_table": self.job_limits.per_table,
            "small_job_bytes": self.small_job_bytes,
            "small_jobs_on_spark": self.small_jobs_on_spark,
            "deadline_s": self.deadline_s,
            "automatic_slots": self.automatic_slots,
            "store_timeout_s": self.store_timeout_s,
            "table_memory": self.table_memory,
            "table_poll_s": self.table_poll_s,
            "health": self.health,
            "table_metrics": self.table_metrics,
        }


# The shared state of one operator. No globals: several operators may run in one process, each with
# a loop of its own.


_T = TypeVar("_T")


class RunnerFactory(Protocol):
    """Returns the `JobRunner` of one operation on a table, if that is known. Called in a worker
    thread or in the loop."""

    def __call__(self, resource: Operation, body: Body, table: LakeTable | None) -> JobRunner: ...


class TableAutomation(Protocol):
    """What is automatic on tables: compaction, that of their logs, or drops of old rows. Called for
    a table after each refresh, and when it requested that. Returns what to add to the status of the
    table, and in how many seconds to call it again."""

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource], /
    ) -> tuple[dict[str, Any], float]: ...


class LivingChild(Protocol):
    """A living child process, as metrics see it."""

    @property
    def small_jobs(self) -> int:
        """How many operations have a small job in it."""
        ...


class ResourceControl(Protocol):
    """Has resources controlled: `tandem.kube.children.processes`, in child processes. To be used on
    the operator's loop."""

    def living(self) -> Sequence[LivingChild]: ...

    def prepare(self) -> None:
        """The operator leads now."""
        ...

    async def watch(self) -> None:
        """Look after what there is, until cancelled."""
        ...

    def clear(self) -> None:
        """All resources are about to be listed again."""
        ...

    async def close(self) -> None:
        """Leave all resources to the next operator."""
        ...

    def put(self, summary: CachedResource) -> None:
        """A resource was created or changed."""
        ...

    def remove(self, uid: str, namespace: str) -> None:
        """A resource is gone."""
        ...

    async def run(self, body: Body, stopped: StopSignal) -> None:
        """Have a resource controlled until that is over, or `stopped`."""
        ...


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
    """`may_write`: whether we lead: not before the election, and never again once it was lost.
    `table_threads`: those that work on tables; `index_threads`: those that ask index servers, which
    may hang. `small_jobs`: those that this process does itself; None if every job has an
    application. `figures`: of the tables, by namespace and name. `control`: None in a child.
    `interceptor`: wraps every effect, in tests. `cancelling`: the deleted operations that are being
    cancelled: namespace and name of their LakeTable, and what it calls them."""

    settings: OperatorSettings
    api: Api
    resource_cache: ResourceCache
    locks: LockStore
    processes: Processes
    clock: Clock
    nonces: Nonces
    table_threads: TableThreads
    index_threads: Executor
    slots: Slots
    automatic_slots: OperationSlots
    runner_factory: RunnerFactory
    metrics: Metrics
    control: ResourceControl | None = None
    small_jobs: SmallJobs | None = None
    interceptor: Interceptor | None = None
    automations: Sequence[TableAutomation] = ()
    may_write: Callable[[], bool] = lambda: True
    on_secret: Callable[[str, Mapping[str, str]], None] = lambda _version, _environ: None
    on_gone: Callable[[str], None] = lambda _uid: None
    on_figures: Callable[[tuple[str, str], TableFigures], None] = lambda _key, _figures: None
    tables: dict[tuple[str, str], TableContext] = field(default_factory=dict)
    cancelling: set[tuple[str, str, str]] = field(default_factory=set)
    figures: dict[tuple[str, str], TableFigures] = field(default_factory=dict)
    index_servers: dict[tuple[str, str], IndexServerFacts] = field(default_factory=dict)
    _resource_locks: dict[ResourceKey, tuple[asyncio.Lock, list[None]]] = field(
        default_factory=dict
    )

    def threads(self, table: str, call: Callable[[], _T]) -> Awaitable[_T]:
        """Run a call on a table, given by its uid, in a thread."""
        return asyncio.get_running_loop().run_in_executor(self.table_threads.of(table), call)

    def show(self, namespace: str, name: str, figures: TableFigures) -> None:
        """These are a table's figures from now on."""
        if self.figures.get((namespace, name)) != figures:
            self.figures[namespace, name] = figures
            self.on_figures((namespace, name), figures)

    def removed(self, uid: str) -> None:
        """An object is gone."""
        summary = self.resource_cache.by_uid(uid)
        if summary is not None and summary.kind == TABLE_KIND:
            self.figures.pop((summary.namespace, summary.name), None)
        self.resource_cache.remove(uid)

    def gone(self, uid: str) -> None:
        """A call has found an object gone before the watch reported it."""
        self.removed(uid)
        self.on_gone(uid)

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
