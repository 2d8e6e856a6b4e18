"""The locks that a child has of the operator, over a real link between two loops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from locks.lock_contract import LockContract
from support.cluster.loop_thread import loop_thread
from support.lock_requests import TABLE, request
from tandem.errors import LocationNotAllowed, LocksUnavailable
from tandem.kube.children.link import Link
from tandem.kube.children.ports import LinkedLocks
from tandem.kube.children.services import ChildServices
from tandem.kube.runtime.tenants import Tenant
from tandem.locks.rules import Mode
from tandem.locks.store import InProcessLocks, LockStore
from tandem.storage.paths import LOG_FOLDER

_LOCATIONS = {TABLE, "file:///b", "file:///one", "file:///other"}


@contextmanager
def linked(store: LockStore) -> Iterator[tuple[LinkedLocks, Callable[[], None]]]:
    """A child's locks, and what ends the link."""
    ours, theirs = socket.socketpair()
    made: list[Any] = []
    pool = ThreadPoolExecutor(8)

    async def operator(stop: asyncio.Event, ready: asyncio.Event) -> None:
        context = cast(Any, SimpleNamespace(locks=store))
        services = ChildServices(context, Tenant("a"), (), pool, pool, lambda _: None, _LOCATIONS)
        await services.link.connect(ours)
        serving = asyncio.create_task(services.link.serve())
        made.append(services)
        ready.set()
        await stop.wait()
        services.link.close()
        services.close()
        await serving

    async def child(stop: asyncio.Event, ready: asyncio.Event) -> None:
        link = Link({"locks.wake": lambda number: locks.woken(number)})
        locks = LinkedLocks(link, asyncio.get_running_loop())
        await link.connect(theirs)
        serving = asyncio.create_task(link.serve())
        made.append(locks)
        ready.set()
        await stop.wait()
        link.close()
        await serving

    with loop_thread("operator", operator) as loop, loop_thread("child", child):
        services, locks = made

        def end() -> None:
            loop.call_soon_threadsafe(services.link.close)

        yield locks, end
    pool.shutdown()


class TestLinkedLocks(LockContract):
    @pytest.fixture
    def locks(self) -> Iterator[LockStore]:
        with linked(InProcessLocks()) as (locks, _):
            yield locks


def test_locks_of_a_table_are_none_of_what_lies_below_it() -> None:
    """But for its log: a LakeTable may name a whole bucket, in which others have tables."""
    with linked(InProcessLocks()) as (locks, _):
        assert locks.entries(f"{TABLE}/{LOG_FOLDER}") == ()
        for other in (f"{TABLE}/other", f"{TABLE}/other/{LOG_FOLDER}", f"{TABLE}/_tandem"):
            with pytest.raises(LocationNotAllowed):
                locks.entries(other)


def test_an_operator_that_is_gone_is_an_unavailable_lock_store() -> None:
    with linked(InProcessLocks()) as (locks, end):
        locks.acquire(request("a", Mode.UPDATE, "1"))
        end()

        def ask_on() -> None:
            while True:  # what is under way may still be answered
                locks.entries(TABLE)

        with pytest.raises(LocksUnavailable, match="the operator does not answer"):
            ask_on()
