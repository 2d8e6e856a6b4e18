"""Leader election among several operators, through the lock store; and which operators are alive,
so that no other one takes over their attempts.

Correctness does not depend on either: claims, the owners of locks and the log's markers guarantee
it. They keep two operators from doing the same work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import structlog

from tandem.errors import LocksUnavailable
from tandem.kube.client.api import Api, ApiError
from tandem.kube.client.resources import TABLE_KIND, path, version_of
from tandem.locks.rules import NOTHING, WHOLE_TABLE, EntryState, Granted, LockRequest, Mode
from tandem.locks.store import LockStore
from tandem.operations.ports import ProcessId

_log = structlog.get_logger("tandem.kube.runtime.leader")
_T = TypeVar("_T")
MEMBERS = "tandem:members"
_LOOK_S = 1.0
_PAUSE_S = 2.0
_WAIT_S = 10.0


def election(election_id: str) -> str:
    """The name in the lock store under which leaders are elected."""
    return f"tandem:leader:{election_id}"


class LockMembers:
    """`Processes` of operators: one is alive as long as it has an entry among the members."""

    def __init__(self, locks: LockStore, instance: str, nonce: str) -> None:
        self._locks = locks
        self._me = ProcessId(instance, os.getpid(), nonce)

    def me(self) -> ProcessId:
        return self._me

    def alive(self, process: ProcessId) -> bool:
        """Raises: LocksUnavailable."""
        entries = self._locks.entries(MEMBERS)
        return any(entry.request.owner == process.started for entry in entries)

    def join(self) -> None:
        """Become a member; replaces an earlier process of this instance, which then counts as
        dead. Raises: LocksUnavailable."""
        self._locks.acquire(
            LockRequest(
                table=MEMBERS,
                operation=self._me.host,
                mode=Mode.APPEND,
                resources=NOTHING,
                owner=self._me.started,
                display=str(self._me),
            )
        )

    def leave(self) -> None:
        """Raises: LocksUnavailable."""
        self._locks.release(MEMBERS, self._me.host, self._me.started)


class Leadership:
    """One candidate's part in the election.

    Args:
        grace_s: how long to go on if the lock store does not answer: less than the time after
            which it lets another candidate lead.
    """

    def __init__(
        self,
        locks: LockStore,
        members: LockMembers,
        election_id: str,
        pool: Executor,
        *,
        grace_s: float = 40.0,
    ) -> None:
        self._locks = locks
        self._members = members
        self._table = election(election_id)
        self._pool = pool
        self._grace_s = grace_s
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._won = self._stood = False
        self._seen = float("inf")

    @property
    def leads(self) -> bool:
        """Whether we may act as the leader. A process that was paused (stopped, or on a machine
        that slept) for longer than its locks are kept may have been replaced; so it permanently
        ceases to lead."""
        if self._won and self._loop.time() - self._seen > self._grace_s:
            self._won = False
            _log.error("no longer the leader: the lock store did not answer for too long")
        return self._won

    async def win(self) -> None:
        """Wait until we lead."""
        me = self._members.me()
        request = LockRequest(
            table=self._table,
            operation=me.host,
            mode=Mode.EXCLUSIVE,
            resources=WHOLE_TABLE,
            owner=me.started,
            display=str(me),
        )
        logged = False
        while True:
            self._wake.clear()
            try:
                await self._call(self._members.join)
                self._stood = True
                answer = await self._call(lambda: self._locks.acquire(request))
                if isinstance(answer, Granted):
                    self._won = True
                    _log.info("leads", instance=me.host)
                    return
                if not logged:
                    logged = True
                    _log.info(
                        "waits to become the leader", instance=me.host, leader=answer.blockers[0][0]
                    )
                await self._wait(me.host)
            except LocksUnavailable as error:
                _log.warning("cannot take part in the election", problem=str(error))
                await asyncio.sleep(_PAUSE_S)

    async def hold(self) -> None:
        """Returns once we no longer lead. From then on `leads` is False."""
        me = self._members.me()
        self._seen = self._loop.time()

        def look() -> bool:
            return any(
                entry.request.owner == me.started and entry.state is not EntryState.WAITING
                for entry in self._locks.entries(self._table)
            )

        while self.leads:
            sent = self._loop.time()
            try:
                if not await self._call(look):
                    _log.error("no longer the leader: another operator took over")
                    break
                if self.leads:
                    self._seen = sent
            except LocksUnavailable as error:
                _log.warning("the lock store is unavailable", problem=str(error))
            await asyncio.sleep(_LOOK_S)
        # Not when this is cancelled: the caller may call it again, and leads meanwhile.
        self._won = False

    async def resign(self) -> None:
        """Let another candidate lead, at once."""
        self._won = False
        if not self._stood:
            return  # we have no entry
        me = self._members.me()
        try:
            await self._call(lambda: self._locks.release(self._table, me.host, me.started))
            await self._call(self._members.leave)
            _log.info("resigned", instance=me.host)
        except LocksUnavailable as error:
            _log.warning("resigned, but the lock store did not answer", problem=str(error))

    async def _wait(self, operation: str) -> None:
        def notify() -> None:
            self._loop.call_soon_threadsafe(self._wake.set)

        end = await self._call(lambda: self._locks.watch(self._table, operation, notify))
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            await self._call(end)

    async def _call(self, call: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._pool, call)


# Detects that the API server has been restored from an older backup.
#
# Versions of objects then go back. Watches wait in silence for versions that are still to come,
# and what this process remembers of objects is of a state that no longer exists. So the process
# has to end: the next one begins with a list. Must not decide anything about operations.


LOOK_S = 15.0
"""Seconds between two looks: a list of one LakeTable each."""


class ApiServerRestored(Exception):
    """The API server has an older state than this process has seen: start again from a list."""


class Restoration:
    """Looks at the API server's version.

    Args:
        namespace: one of which LakeTables may be listed; None for all namespaces.
        look_s: seconds between two looks.
    """

    def __init__(self, api: Api, namespace: str | None, look_s: float = LOOK_S) -> None:
        self._api, self._path, self._look_s = api, path(TABLE_KIND, namespace), look_s
        self._newest = 0

    async def detect(self) -> None:
        """Ends only by an exception. A request that fails says nothing and is repeated.

        Versions of one resource type are numbers that grow (KEP-5504), and a list without a version
        is as new as the store.

        Raises: ApiServerRestored.
        """
        while True:
            try:
                page = await self._api.request("GET", self._path.url(), query={"limit": "1"})
            except ApiError as error:
                _log.debug("the API server's version is unknown", problem=str(error))
            else:
                version = int(version_of(page))
                if version < self._newest:
                    raise ApiServerRestored(
                        f"the API server is at version {version}, and was at {self._newest}: it "
                        "has been restored from a backup"
                    )
                self._newest = version
            await asyncio.sleep(self._look_s)
