"""What the operator does of what a child asks for: within the tenant's namespace, as long as this
process leads.

Nothing of it is taken on trust: a child may have been taken over by what it has read.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Final, TypeVar

from tandem.errors import ClusterUnavailable, InvalidSpec, LocationNotAllowed
from tandem.jobs.runner import JobRunner, RenewingRunner
from tandem.kube.children.link import Handler, Link
from tandem.kube.children.ports import (
    REQUEST,
    STATUS,
    VENDED,
    grant,
    lock_entry,
    requested,
)
from tandem.kube.client import events
from tandem.kube.client.api import Forbidden, Unavailable
from tandem.kube.client.resources import TABLE_KIND, Body, spec_of
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.leader import MEMBERS
from tandem.kube.runtime.slots import Lane
from tandem.kube.runtime.tenants import Tenant
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.kube.tables.status import TableFigures
from tandem.locks.rules import Granted, Waiting
from tandem.locks.store import LockStore
from tandem.spec.common import GROUP, OPERATIONS, VERSION, plural
from tandem.spec.loader import parse
from tandem.spec.resources import Operation
from tandem.spec.table import LakeTable
from tandem.storage.paths import LOG_FOLDER

_T = TypeVar("_T")
_VERBS: Final = frozenset({"GET", "POST", "PATCH", "DELETE"})
_KINDS: Final = frozenset(plural(kind) for kind in (*OPERATIONS, TABLE_KIND))
_MOST_MOVES: Final = 100
"""Places of one table while its child lives: a hostile child could name them without end."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")
"""What Kubernetes takes as a name: nothing that begins a query, or is decoded to another path."""


def may_request(tenant: Tenant, secrets: Collection[str], method: str, url: str) -> bool:
    """Whether a child may have a request sent to the API server: reads of its tenant's resources,
    changes of their statuses, new and deleted automatic operations, and its own Secrets. Pure."""
    root, *parts = url.split("/")
    if root:
        return False
    if method == "GET" and parts[:-1] == ["api", "v1", "namespaces", tenant.namespace, "secrets"]:
        return parts[-1] in secrets
    if method not in _VERBS or parts[:5] != [
        "apis",
        GROUP,
        VERSION,
        "namespaces",
        tenant.namespace,
    ]:
        return False
    kind, *rest = parts[5:] or [""]
    if kind not in _KINDS or not all(map(_NAME.fullmatch, rest)):
        return False
    if method == "GET":
        return len(rest) <= 1
    if method == "PATCH":
        return len(rest) == 2 and rest[1] == "status"
    return kind != plural(TABLE_KIND) and len(rest) == (0 if method == "POST" else 1)


def _named(deleted: object, uid: str) -> Body:
    """What a child says of a resource that is gone, as of this uid. Raises: InvalidSpec."""
    metadata = deleted.get("metadata") if isinstance(deleted, dict) else None
    if not isinstance(deleted, dict) or not isinstance(metadata, dict):
        raise InvalidSpec("no resource", found=type(deleted).__name__, expected="an operation")
    return {**deleted, "metadata": {**metadata, "uid": str(uid)}}


class ChildServices:
    """What one child can ask for. To be used on the operator's loop.

    Args:
        context: the operator's.
        tenant: whose child it is.
        secrets: the names of its Secrets.
        threads, job_threads: for calls of the lock store, and for those of jobs.
        event_context: where events about a resource, by its uid, are to be posted; None for a
            resource that the child does not control.
        locations: where the namespace's tables are, or were; gets those that catalogs name.
    """

    def __init__(
        self,
        context: OperatorContext,
        tenant: Tenant,
        secrets: Collection[str],
        threads: Executor,
        job_threads: Executor,
        event_context: Callable[[str], Context | None],
        locations: set[str],
    ) -> None:
        self._context = context
        self._tenant = tenant
        self._secrets = secrets
        self._threads = threads
        self._job_threads = job_threads
        self._event_context = event_context
        self._locations = locations
        self._moves: Counter[str] = Counter()
        """How often each table that a catalog names was somewhere else, by uid."""
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, Callable[[], None]] = {}
        self._held: dict[int, Lane] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._waiters: dict[int, object] = {}
        self._runners: dict[str, JobRunner] = {}
        self.link = Link(self._handlers())
        self.unsuited: set[str] = set()
        """The uids of operations whose small job failed in this child."""
        self.locks: set[tuple[str, str, str]] = set()
        """Tables, operations and owners of the locks that it may have: of calls under way, too."""
        self.at_work: set[str] = set()
        """The uids of operations that have a small job."""
        self.on_harmed: Callable[[], None] = lambda: None
        """Called when the child may not have the memory that it should have."""

    def _handlers(self) -> Mapping[str, Handler]:
        locks = self._context.locks
        return {
            "api": self._api,
            "locks.acquire": self._acquire,
            "locks.extend": self._extend,
            "locks.watch": self._watch,
            "locks.unwatch": self._unwatch,
            "locks.enter_commit": lambda table, *whose: self._on_own(
                table, lambda: str(locks.enter_commit(table, *map(str, whose)))
            ),
            "locks.leave_commit": lambda table, *whose: self._on_own(
                table, lambda: locks.leave_commit(table, *map(str, whose))
            ),
            "locks.release": self._release,
            "locks.entries": self._entries,
            "slots.take": self._take_slot,
            "slots.force": self._force_slot,
            "slots.give_back": self._give_back,
            "automatic.take": self._take_automatic,
            "automatic.leave": self._leave_automatic,
            "automatic.wake_first": self._wake_automatic,
            "jobs.start": self._start_job,
            "jobs.status": self._job_status,
            "jobs.stop": self._stop_job,
            "jobs.renew": self._renew_job,
            "metrics": self._record,
            "event": self._post,
            "figures": self._figures,
            "small_job": self._small_job,
            "harmed": lambda: self.on_harmed(),
            "gone": self._gone,
        }

    def close(self) -> None:
        """The child has ended: give back what it held. Its locks stay, for the one that takes its
        operations over."""
        for end in self._watches.values():
            self._threads.submit(end)
        self._watches.clear()
        for task in self._waiting.values():
            task.cancel()
        for lane in self._held.values():
            self._context.slots.give_back(lane)
        self._held.clear()
        for waiter in self._waiters.values():
            self._context.automatic_slots.leave(waiter)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._threads, call)

    async def _on_own(self, table: str, call: Callable[[], _T]) -> _T:
        """Call the lock store about a table. Raises: LocationNotAllowed if it is no table of the
        tenant's namespace."""
        if str(table).removesuffix(f"/{LOG_FOLDER}") not in self._locations:
            raise LocationNotAllowed("locks of another tenant's table", resource=table)
        return await self._in_thread(call)

    # The API server

    async def _api(
        self,
        method: str,
        url: str,
        body: object,
        query: dict[str, str],
        content_type: str,
    ) -> dict[str, Any]:
        if not may_request(self._tenant, self._secrets, method, url):
            raise Forbidden(403, "Forbidden", f"not for this tenant: {method} {url}")
        if method != "GET" and not self._context.may_write():
            raise Unavailable(0, "NotLeader", "this operator does not lead")
        return await self._context.api.request(
            method, url, body=body, query=query, content_type=content_type
        )

    # Locks

    async def _acquire(self, request: str) -> dict[str, Any]:
        wanted = requested(request)

        def acquire() -> Granted | Waiting:
            self.locks.add((wanted.table, wanted.operation, wanted.owner))
            return self._context.locks.acquire(wanted)

        return grant(await self._on_own(wanted.table, acquire))

    async def _release(self, table: str, operation: str, owner: str) -> None:
        locks = self._context.locks
        await self._on_own(table, lambda: locks.release(table, str(operation), str(owner)))
        self.locks.discard((table, operation, owner))

    async def _extend(
        self, table: str, operation: str, owner: str, resources: str
    ) -> dict[str, Any]:
        locks: LockStore = self._context.locks
        wanted = requested(resources).resources
        return grant(
            await self._on_own(table, lambda: locks.extend(table, operation, owner, wanted))
        )

    async def _entries(self, table: str) -> list[tuple[str, int, int]]:
        def found() -> list[tuple[str, int, int]]:
            return [lock_entry(each) for each in self._context.locks.entries(table)]

        # Whose entry is among the members is how one learns which processes live.
        return await (self._in_thread(found) if table == MEMBERS else self._on_own(table, found))

    async def _watch(self, number: int, table: str, operation: str) -> None:
        if number in self._watches:
            raise ValueError("a watch that is in use")

        def wake() -> None:
            # From a thread, and perhaps when the loop has ended.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.link.notify, "locks.wake", number)

        def watch() -> None:
            end = self._context.locks.watch(table, operation, wake)
            try:
                self._loop.call_soon_threadsafe(self._watched, number, end)
            except RuntimeError:  # the loop has ended
                end()

        await self._on_own(table, watch)

    def _watched(self, number: int, end: Callable[[], None]) -> None:
        """Also if the link has ended, and with it what awaited the answer."""
        if self.link.ended:
            self._threads.submit(end)
        else:
            self._watches[number] = end

    def _unwatch(self, number: int) -> None:
        end = self._watches.pop(number, None)
        if end is not None:
            self._threads.submit(end)

    # Slots

    def _take_slot(self, ticket: int, namespace: str, table: str) -> asyncio.Task[None]:
        """It waits at once: what follows may be that it is given back."""
        lane = self._lane(namespace, table)
        self._require_new(ticket)
        taking = asyncio.create_task(self._hold_slot(ticket, lane), name="take a slot for a child")
        self._waiting[ticket] = taking
        taking.add_done_callback(lambda _: self._waiting.pop(ticket))
        return taking

    async def _hold_slot(self, ticket: int, lane: Lane) -> None:
        slots = self._context.slots
        await slots.take(lane, lambda why: self.link.notify("slots.queued", ticket, why))
        self._held[ticket] = lane

    def _require_new(self, ticket: int) -> None:
        if ticket in self._held or ticket in self._waiting:
            raise ValueError("a ticket that is in use")

    def _force_slot(self, ticket: int, namespace: str, table: str) -> None:
        self._require_new(ticket)
        self._held[ticket] = lane = self._lane(namespace, table)
        self._context.slots.force(lane)

    def _give_back(self, ticket: int) -> None:
        lane, waiting = self._held.pop(ticket, None), self._waiting.get(ticket)
        if lane is not None:
            self._context.slots.give_back(lane)
        elif waiting is not None:
            waiting.cancel()

    def _lane(self, namespace: str, table: str) -> Lane:
        if namespace != self._tenant.namespace:
            raise ValueError("a slot for another namespace")
        return Lane(namespace, str(table))

    async def _take_automatic(self, number: int, child: tuple[str, str, str]) -> int:
        kind, _, name = child
        waiter = self._waiters.setdefault(number, object())
        return await self._context.automatic_slots.take(
            waiter,
            (str(kind), self._tenant.namespace, str(name)),
            lambda: self.link.notify("automatic.wake", number),
        )

    def _leave_automatic(self, number: int) -> None:
        waiter = self._waiters.pop(number, None)
        if waiter is not None:
            self._context.automatic_slots.leave(waiter)

    def _wake_automatic(self) -> None:
        self._context.automatic_slots.wake_first()

    # Spark's jobs

    async def _start_job(self, uid: str, request: Any) -> None:
        runner, found = self._runner(uid), REQUEST.validate_python(request)
        await self._loop.run_in_executor(self._job_threads, runner.start, found)

    async def _job_status(self, uid: str, name: str, deleted: Body | None) -> Any:
        runner = self._runner(uid, deleted)
        status = await self._loop.run_in_executor(self._job_threads, runner.status, str(name))
        return STATUS.dump_python(status, mode="json")

    async def _stop_job(self, uid: str, name: str, deleted: Body | None) -> None:
        runner = self._runner(uid, deleted)
        await self._loop.run_in_executor(self._job_threads, runner.stop, str(name))

    async def _renew_job(self, uid: str, name: str, vended: Any, deleted: Body | None) -> None:
        runner, found = self._runner(uid, deleted), VENDED.validate_python(vended)
        if isinstance(runner, RenewingRunner):
            await self._loop.run_in_executor(self._job_threads, runner.renew, str(name), found)

    def _runner(self, uid: str, deleted: Body | None = None) -> JobRunner:
        """`deleted`: the operation as the child knows it, if it is gone. Its runner is not kept,
        and reads and stops only applications that belong to it."""
        found = self._runners.get(uid)
        if found is None:
            body = self._context.resource_cache.body(uid)
            if body is None and deleted is not None:
                return self._made(_named(deleted, uid))
            found = self._runners[uid] = self._made(body)
        return found

    def _made(self, body: Body | None) -> JobRunner:
        """The runner of an operation's jobs. Raises: ClusterUnavailable if it is none of the
        tenant's namespace; InvalidSpec."""
        resource = None if body is None else parse(body)
        if not isinstance(resource, Operation) or resource.namespace != self._tenant.namespace:
            raise ClusterUnavailable("the operator does not know the operation")
        cache = self._context.resource_cache
        table = cache.get((TABLE_KIND, resource.namespace, resource.spec.table_ref.name))
        table_body = None if table is None else cache.body(table.uid)
        lake = None if table_body is None else parse(table_body)
        assert body is not None
        return self._context.runner_factory(
            resource, body, lake if isinstance(lake, LakeTable) else None
        )

    def forget(self, uid: str) -> None:
        """The operation's controller has ended."""
        self._runners.pop(uid, None)

    # What is only said

    def _record(self, recorded: list[tuple[str, str, float, list[str]]]) -> None:
        for name, how, value, labels in recorded:
            self._context.metrics.record(name, how, value, labels)

    def _post(self, body: dict[str, Any], reason: str, message: str, warning: bool) -> None:
        metadata = body["metadata"]
        where = self._event_context(str(metadata["uid"]))
        if where is not None and metadata["namespace"] == self._tenant.namespace:
            where.copy().run(events.post, body, reason, message, warning=warning)

    def _figures(self, key: tuple[str, str], found: Mapping[str, Any]) -> None:
        namespace, name = key
        figures = TableFigures.from_json(found)
        table = self._context.resource_cache.get((TABLE_KIND, str(namespace), str(name)))
        # One that is gone would stay in the metrics for ever.
        if namespace == self._tenant.namespace and table is not None and table.uid == figures.uid:
            self._context.figures[namespace, name] = figures
            if figures.location is not None and figures.location not in self._locations:
                self._note_location(table.uid, figures.location)

    def _note_location(self, uid: str, location: str) -> None:
        """A table that its catalog names lies where its child says, within the namespace's bounds.
        Raises: InvalidSpec, LocationNotAllowed."""
        body = self._context.resource_cache.body(uid)
        if body is None or "catalog" not in spec_of(body):
            return
        self._moves[uid] += 1
        if self._moves[uid] > _MOST_MOVES:
            raise InvalidSpec("a table that moves all the time", found=location[:200])
        table = parse(body)
        assert isinstance(table, LakeTable)
        settings = self._context.settings
        policy = LocationPolicy(settings.allowed_locations, settings.allowed_endpoints)
        policy.check(table, location)
        self._locations.add(location)

    def _gone(self, uid: str) -> None:
        found = self._context.resource_cache.by_uid(uid)
        if found is not None and found.namespace == self._tenant.namespace:
            self._context.removed(uid)

    def _small_job(self, uid: str, has: bool | None) -> None:
        self.at_work.discard(uid)
        if has:
            self.at_work.add(uid)
        elif has is False:
            self.unsuited.add(uid)
