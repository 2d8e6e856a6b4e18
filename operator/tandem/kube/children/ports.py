"""What a child has of the operator: the API server, locks, slots, Spark jobs and metrics,
each as the part of the operator that it stands for.

The operator decides what it does of what is asked here (`tandem.kube.children.services`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import asdict, replace
from typing import Any, Final

from pydantic import TypeAdapter

from tandem.errors import ClusterUnavailable, LocksUnavailable
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.kube.children.link import Link, LinkEnded
from tandem.kube.client.api import Api, Unavailable
from tandem.kube.client.resources import Body
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.slots import Lane
from tandem.locks import codec
from tandem.locks.rules import (
    CommitLease,
    EntryState,
    Granted,
    LockEntry,
    LockRequest,
    LockResources,
    Mode,
    Waiting,
)
from tandem.locks.store import wait_by_watching
from tandem.spec.common import ResourceKey
from tandem.storage.renewable import Vended

ANSWER_S: Final = 180.0
"""How long a thread waits for the operator: longer than any of its own time limits."""
_FLUSH_S: Final = 0.5


class LinkedApi(Api):
    """The API server, by way of the operator, which sends only what is this tenant's.

    Args:
        before: called before each request, so that what a status says has been counted.
    """

    def __init__(self, link: Link, before: Callable[[], None] = lambda: None) -> None:
        self._link = link
        self._before = before

    async def close(self) -> None:
        """Nothing of ours is open."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        **others: Any,
    ) -> dict[str, Any]:
        """`others`: no controller reads what is no JSON, or has a time limit of its own."""
        assert not any(others.values()), others
        self._before()
        try:
            found: dict[str, Any] = await self._link.call(
                "api", method, url, body, dict(query or {}), content_type
            )
        except LinkEnded as error:
            raise Unavailable(0, "Unreachable", str(error)) from error
        return found


def lock_request(request: LockRequest) -> str:
    """A request as text, as etcd's entries have it."""
    return codec.encode(LockEntry(request, EntryState.WAITING, 0)).decode()


def requested(text: str) -> LockRequest:
    """Raises: LocksUnavailable if it is no request."""
    return codec.decode(text.encode(), created=0, modified=0)[0].request


def lock_resources(resources: LockResources) -> str:
    """Resources as text."""
    return lock_request(LockRequest("", "", Mode.APPEND, resources))


def lock_entry(entry: LockEntry) -> tuple[str, int, int]:
    """An entry as text, with its place in the queue and its token."""
    return codec.encode(entry).decode(), entry.order, entry.token


def grant(answer: Granted | Waiting) -> dict[str, Any]:
    """The answer to a request."""
    return asdict(answer)


class _CallFromThread:
    """Calls the operator from a thread of ours."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Raises: LinkEnded, TimeoutError, what the operator answers."""
        calling = self._link.call(name, *arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(calling, self._loop)
        except RuntimeError as error:
            calling.close()
            raise LinkEnded("this process ends") from error
        try:
            return future.result(ANSWER_S)
        except CancelledError as error:
            raise LinkEnded("this process ends") from error
        except TimeoutError:
            future.cancel()
            raise


class LinkedLocks:
    """The `LockStore` of the operator."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._call_operator = _CallFromThread(link, loop)
        self._link = link
        self._loop = loop
        self._watches: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()

    def acquire(self, request: LockRequest) -> Granted | Waiting:
        return _granted(self._call("locks.acquire", lock_request(request)))

    def extend(
        self, table: str, operation: str, owner: str, resources: LockResources
    ) -> Granted | Waiting:
        wanted = lock_resources(resources)
        return _granted(self._call("locks.extend", table, operation, owner, wanted))

    def wait(self, table: str, operation: str, timeout_s: float) -> None:
        wait_by_watching(self, table, operation, timeout_s)

    def watch(self, table: str, operation: str, wake: Callable[[], None]) -> Callable[[], None]:
        number = next(self._numbers)
        self._watches[number] = wake
        try:
            self._call("locks.watch", number, table, operation)
        except LocksUnavailable:
            self._watches.pop(number, None)
            raise

        def end() -> None:
            self._watches.pop(number, None)
            self._loop.call_soon_threadsafe(self._link.notify, "locks.unwatch", number)

        return end

    def woken(self, number: int) -> None:
        """The operator says that a watch has to be woken."""
        wake = self._watches.get(number)
        if wake is not None:
            wake()

    def enter_commit(self, table: str, operation: str, owner: str) -> CommitLease:
        return CommitLease(self._call("locks.enter_commit", table, operation, owner))

    def leave_commit(self, table: str, operation: str, owner: str) -> None:
        self._call("locks.leave_commit", table, operation, owner)

    def release(self, table: str, operation: str, owner: str) -> None:
        self._call("locks.release", table, operation, owner)

    def entries(self, table: str) -> tuple[LockEntry, ...]:
        found = self._call("locks.entries", table)
        return tuple(
            replace(codec.decode(text.encode(), created=0, modified=0)[0], order=order, token=token)
            for text, order, token in found
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._call_operator(name, *arguments)
        except (LinkEnded, TimeoutError) as error:
            raise LocksUnavailable("the operator does not answer", found=str(error)) from error


def _granted(found: Mapping[str, Any]) -> Granted | Waiting:
    if "token" in found:
        return Granted(int(found["token"]))
    return Waiting(tuple((str(holder), str(what)) for holder, what in found["blockers"]))


class LinkedSlots:
    """The operator's slots for jobs. A slot is a ticket of ours, which the operator takes back with
    the link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tickets = itertools.count()
        self._held: dict[Lane, list[int]] = defaultdict(list)
        self._queued: dict[int, Callable[[str], None]] = {}

    async def take(self, lane: Lane, on_queued: Callable[[str], None] = lambda _: None) -> None:
        ticket = next(self._tickets)
        self._queued[ticket] = on_queued
        taken = False
        try:
            await self._link.call("slots.take", ticket, lane.namespace, lane.table)
            self._held[lane].append(ticket)
            taken = True
        finally:
            del self._queued[ticket]
            if not taken:  # the answer may be on its way
                self._link.notify("slots.give_back", ticket)

    def queued(self, ticket: int, why: str) -> None:
        """The operator says that there is no slot yet."""
        if ticket in self._queued:
            self._queued[ticket](why)

    def force(self, lane: Lane) -> None:
        ticket = next(self._tickets)
        self._held[lane].append(ticket)
        self._link.notify("slots.force", ticket, lane.namespace, lane.table)

    def give_back(self, lane: Lane) -> None:
        tickets = self._held[lane]
        self._link.notify("slots.give_back", tickets.pop())
        if not tickets:
            del self._held[lane]


class LinkedAutomaticSlots:
    """The operator's slots for automatic operations."""

    def __init__(self, link: Link, limit: int) -> None:
        self.limit = limit
        self._link = link
        self._waiting: dict[int, Callable[[], None]] = {}

    async def take(self, waiter: object, child: ResourceKey, wake: Callable[[], None]) -> int:
        number = id(waiter)
        self._waiting[number] = wake
        try:
            place = int(await self._link.call("automatic.take", number, child))
        except LinkEnded:
            return 1
        if not place:
            self._waiting.pop(number, None)
        return place

    def woken(self, number: int) -> None:
        """The operator says that there may be a slot for this waiter."""
        if number in self._waiting:
            self._waiting[number]()

    def leave(self, waiter: object) -> None:
        if self._waiting.pop(id(waiter), None) is not None:
            self._link.notify("automatic.leave", id(waiter))

    def wake_first(self) -> None:
        self._link.notify("automatic.wake_first")


REQUEST: Final = TypeAdapter(JobRequest)
STATUS: Final = TypeAdapter(JobStatus)
VENDED: Final = TypeAdapter(Vended)


class LinkedRunner:
    """The `RenewingRunner` of one operation: the operator has its jobs run.

    Args:
        deleted: returns the resource if it is gone, so that the operator does not know it any more.
    """

    def __init__(
        self,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        uid: str,
        deleted: Callable[[], Body | None],
    ) -> None:
        self._call_operator = _CallFromThread(link, loop)
        self._uid = uid
        self._deleted = deleted

    def start(self, request: JobRequest) -> None:
        self._call("jobs.start", REQUEST.dump_python(request, mode="json"))

    def status(self, name: str) -> JobStatus:
        found: JobStatus = STATUS.validate_python(self._call("jobs.status", name, self._deleted()))
        return found

    def stop(self, name: str) -> None:
        self._call("jobs.stop", name, self._deleted())

    def renew(self, name: str, vended: Vended) -> None:
        found = VENDED.dump_python(vended, mode="json")
        self._call("jobs.renew", name, found, self._deleted())

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._call_operator(name, self._uid, *arguments)
        except (LinkEnded, TimeoutError) as error:
            raise ClusterUnavailable("the operator does not answer", found=str(error)) from error


class LinkedMetrics(Metrics):
    """Metrics that the operator counts. What is recorded is said twice a second."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, float, tuple[str, ...]]] = []

    def _record(self, family: str, how: str, value: float, labels: tuple[object, ...]) -> None:
        # Appended by any thread; only the loop's own takes from the front.
        self.recorded.append((family, how, value, tuple(map(str, labels))))

    async def pass_on(self, link: Link) -> None:
        """Say what was recorded, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            self.flush(link)

    def flush(self, link: Link) -> None:
        found = self.recorded[:]
        if found:
            del self.recorded[: len(found)]
            link.notify("metrics", found)
