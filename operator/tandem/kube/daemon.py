"""The life of one operation's resource, from its first sight to its terminal status.

Level-triggered: it looks at the resource as it is now, does the next thing, and looks again.
What an operation does is decided in `tandem.operations`; here it is kept waiting, started,
stopped, reported and, when its resource is deleted, cleaned up after. Nothing is remembered:
what a restart needs is in the status, in the lock store and below the table's `_tandem/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from datetime import datetime
from typing import Protocol

import structlog
from kopf import DaemonStoppingReason
from pydantic import ValidationError

from tandem.errors import InvalidSpec, Reason, StorageError, TandemError, Unreachable
from tandem.kube.context import Context
from tandem.kube.drive import Driver, Signals
from tandem.kube.events import Narrator
from tandem.kube.hindrances import hindrance, table_for_cleaning
from tandem.kube.kinds import (
    TABLE_KIND,
    Body,
    generation_of,
    has_finalizer,
    key_of,
    path,
    retry_asked,
    spec_of,
    status_of,
    uid_of,
)
from tandem.kube.status import StatusWriter
from tandem.operations.driver import Drive, finish, open_session
from tandem.operations.events import Ask
from tandem.operations.ports import Ports
from tandem.operations.session import Session
from tandem.operations.statuses import conditions, rfc3339
from tandem.operations.work import Table
from tandem.spec.loader import parse
from tandem.spec.resources import LakeTable, Operation, require_built
from tandem.spec.status import ENDED, OperationStatus, Phase

_log = structlog.get_logger("tandem.kube.daemon")
_FINALIZER_S = 15.0
_LOOK_AGAIN_S = 5.0
_BEGUN = frozenset({Phase.PLANNED, Phase.LOCKED, Phase.RUNNING, Phase.RECONCILING})


class Stopped(Protocol):
    """kopf's `stopped` of a daemon."""

    @property
    def reason(self) -> DaemonStoppingReason | None: ...

    async def wait(self) -> object: ...


class Life:
    """One resource, that is: one uid. A resource of the same name that comes later waits."""

    def __init__(self, context: Context, body: Body) -> None:
        self._context = context
        self._uid = uid_of(body)
        self._key = key_of(body)
        self._body = body
        self._signals = Signals(asyncio.Event())
        self._session: Session | None = None
        self._deleted = False
        self._give_up = False
        self._inherited = False
        self._told = contextvars.copy_context()
        known = dict(status_of(body))
        self._narrator = Narrator(known)
        settings = context.settings
        self._writer = StatusWriter(
            context.api,
            path(*self._key),
            self._uid,
            known,
            pause_s=settings.status_s,
            progress_s=settings.progress_s,
            allowed=context.may_write,
            on_gone=self._vanished,
        )
        self._last = _status_model(known)
        self._log = _log.bind(kind=self._key[0], namespace=self._key[1], name=self._key[2])

    async def run(self, stopped: Stopped) -> None:
        """Live until it has ended, was deleted, or the operator stops."""
        context = self._context
        context.lives.add(self._uid)
        minding = asyncio.create_task(self._mind(stopped), name="mind the stop")
        try:
            with context.turn(self._key) as turn:
                if await self._take_turn(turn):
                    try:
                        await self._live()
                    finally:
                        turn.release()
        finally:
            minding.cancel()
            await self._writer.close()
            context.lives.discard(self._uid)

    async def clean_up(self) -> None:
        """For a resource that was deleted while no operator ran: cancel what it left."""
        self._deleted = True
        # Its status may say less than what was done.
        self._inherited = True
        self._context.lives.add(self._uid)
        try:
            with self._context.turn(self._key) as turn:
                async with turn:
                    await self._live()
        finally:
            await self._writer.close()
            self._context.lives.discard(self._uid)

    # Being told

    async def _mind(self, stopped: Stopped) -> None:
        await stopped.wait()
        reason = stopped.reason
        if reason is not None and DaemonStoppingReason.RESOURCE_DELETED in reason:
            self._vanished()
        else:
            self._signals.leave()

    def _vanished(self) -> None:
        """It is being deleted, or somebody took our finalizer off and it is gone."""
        self._deleted = True
        if self._session is not None:
            self._session.ask(Ask.CANCEL)
        self._signals.wake.set()

    def _changed(self) -> None:
        """Something that we watch has changed: the resource, its table, what it depends on."""
        body = self._context.registry.body(self._uid)
        if body is not None:
            self._body = body
            self._writer.observe(status_of(body), body["metadata"]["resourceVersion"])
        session = self._session
        if session is not None and spec_of(self._body).get("suspend") is True:
            session.ask(Ask.SUSPEND)
        self._signals.wake.set()

    async def _wait(self, seconds: float | None) -> None:
        """Until something changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._signals.wake.wait()
        self._signals.wake.clear()

    async def _take_turn(self, turn: asyncio.Lock) -> bool:
        taking = asyncio.ensure_future(turn.acquire())
        while not taking.done() and not self._over:
            waking = asyncio.ensure_future(self._signals.wake.wait())
            await asyncio.wait({taking, waking}, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            if not taking.done():
                self._signals.wake.clear()
        if taking.done():
            return True
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if await taking:
                turn.release()
        return False

    @property
    def _over(self) -> bool:
        return self._signals.leaving or self._deleted or not self._context.may_write()

    # Living

    async def _live(self) -> None:
        registry = self._context.registry
        namespace = self._key[1]
        table = str((spec_of(self._body).get("tableRef") or {}).get("name", ""))
        watched = [self._key, (TABLE_KIND, namespace, table)]
        for dependency in spec_of(self._body).get("dependsOn") or ():
            watched.append((str(dependency.get("kind")), namespace, str(dependency.get("name"))))
        ends = [registry.watch(key, self._changed) for key in watched]
        try:
            if not self._deleted:
                await self._await_finalizer()
            while not self._signals.leaving and self._context.may_write():
                if self._deleted and not (self._has_begun or self._inherited):
                    return
                self._signals.wake.clear()
                end = await self._turn()
                if end is not None:
                    await self._end(end)
                    return
                if self._give_up:
                    return
        finally:
            for end_watch in ends:
                end_watch()

    async def _await_finalizer(self) -> None:
        """No effect before the finalizer is on: without it we could not clean up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _FINALIZER_S
        while not has_finalizer(self._body) and not self._over and loop.time() < until:
            await self._wait(until - loop.time())

    @property
    def _has_begun(self) -> bool:
        return self._last.attempt > 0 and self._last.phase not in ENDED

    async def _turn(self) -> OperationStatus | None:
        """Do the next thing; the terminal status once there is one."""
        try:
            resource = parse({k: v for k, v in self._body.items() if k != "status"})
            assert not isinstance(resource, LakeTable)
            require_built([resource])
        except InvalidSpec as error:
            return self._status(Phase.FAILED, Reason.INVALID_SPEC, str(error))
        if self._deleted:
            table = await table_for_cleaning(self._context, resource)
            if table is None:
                self._give_up = True
                return None
        else:
            found = hindrance(self._context, resource, begun=self._last.phase in _BEGUN)
            if found is not None:
                await self._hindered(found.phase, found.reason, found.message)
                return None
            table = self._context.tables[resource.namespace, resource.spec.table_ref.name].table
            assert table is not None
        # One try: nobody may be kept for ever by what cannot be cleaned.
        self._give_up = self._deleted
        try:
            return await self._drive(resource, table)
        except (StorageError, Unreachable) as error:
            if not self._deleted:
                await self._hindered(Phase.PENDING, error.reason, str(error), _LOOK_AGAIN_S)
            return None
        except TandemError as error:
            return self._status(Phase.FAILED, error.reason, str(error))

    async def _hindered(
        self, phase: Phase, reason: Reason, message: str, seconds: float | None = None
    ) -> None:
        """Say so, and wait until something changes, at most so long."""
        self._offer(self._status(phase, reason, message))
        await self._wait(seconds)

    async def _drive(self, resource: Operation, table: Table) -> OperationStatus | None:
        context = self._context
        retry = retry_asked(self._body)
        ports = Ports(
            jobs=context.runner_of(resource, self._body, table),
            locks=context.locks,
            clock=context.clock,
            processes=context.processes,
            nonces=context.nonces,
        )
        drive = Drive(
            again=bool(retry),
            poll_ms=context.settings.poll_ms,
            lock_wait_s=0,
            around=context.around,
        )
        started_ms = None if retry or not self._last.attempt else _ms(self._last.start_time)
        loop = asyncio.get_running_loop()

        def report(status: OperationStatus) -> None:
            # From a thread; events need the context of kopf's handler.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._hear, status, retry, context=self._told)

        session = await context.threads(
            lambda: open_session(
                resource, table, ports, drive, on_status=report, started_ms=started_ms
            )
        )
        self._session = session
        try:
            if self._deleted:
                session.ask(Ask.CANCEL)
            elif spec_of(self._body).get("suspend") is True and not resource.spec.suspend:
                session.ask(Ask.SUSPEND)
            deadline = resource.spec.active_deadline_seconds
            driver = Driver(
                session,
                table.location,
                context.locks,
                context.slots,
                context.pool,
                self._signals,
                on_queued=self._queued,
                deadline_s=None
                if deadline is None
                else loop.time() + deadline - (context.clock.now_ms() - session.started_ms) / 1000,
            )
            if not await driver.run():
                return None
        finally:
            self._session = None
            # Left or ended: the next session may take the attempt over.
            session.close()
        ending = session.ending
        status = self._as_of_now(finish(session, resource, ports), retry)
        if status.phase is Phase.SUSPENDED:
            self._offer(status)
            return None
        if ending is not None and ending.elsewhere and not self._deleted:
            await self._hindered(Phase.PENDING, ending.reason, ending.message, _LOOK_AGAIN_S)
            return None
        return status

    # Reporting

    def _hear(self, status: OperationStatus, retry: str) -> None:
        if self._session is None or status.phase in ENDED:
            return
        if not status.attempt and status_of(self._body).get("phase") in _BEGUN:
            # It finds out where an earlier process left it, or where another one is with it.
            return
        self._offer(self._as_of_now(status, retry))

    def _queued(self) -> None:
        limit = self._context.settings.max_jobs
        message = f"waits until fewer than {limit} jobs run"
        self._offer(self._status(self._last.phase, Reason.PLANNED, message))

    def _offer(self, status: OperationStatus) -> None:
        self._last = status
        self._narrator.listen(self._body, status)
        self._writer.offer(status.manifest())

    async def _end(self, status: OperationStatus) -> None:
        self._last = status
        self._told.run(self._narrator.listen, self._body, status)
        reason = status.conditions[0].reason
        self._log.info("ended", phase=status.phase.value, reason=reason)
        if not self._deleted:
            await self._writer.finish(status.manifest())
        table = str((spec_of(self._body).get("tableRef") or {}).get("name", ""))
        context = self._context.tables.get((self._key[1], table))
        if context is not None:
            context.look_soon()

    def _as_of_now(self, status: OperationStatus, retry: str) -> OperationStatus:
        """With the generation as it is now, and the retry that it answers."""
        generation = generation_of(self._body)
        answered = retry if retry and (status.attempt or status.phase in ENDED) else None
        return status.model_copy(
            update={
                "observed_generation": generation,
                "observed_retry": answered or self._last.observed_retry,
                "conditions": tuple(
                    c.model_copy(update={"observed_generation": generation})
                    for c in status.conditions
                ),
            }
        )

    def _status(self, phase: Phase, reason: Reason, message: str) -> OperationStatus:
        """The last status, with another phase and reason."""
        now = self._context.clock.now_ms()
        generation = generation_of(self._body)
        ended = phase in ENDED
        retry = retry_asked(self._body) if ended else ""
        return self._last.model_copy(
            update={
                "observed_generation": generation,
                "observed_retry": retry or self._last.observed_retry,
                "phase": phase,
                "completion_time": rfc3339(now) if ended else None,
                "conditions": conditions(phase, reason, message, generation, now),
            }
        )


def _status_model(known: object) -> OperationStatus:
    try:
        return OperationStatus.model_validate(known)
    except ValidationError:
        return OperationStatus()  # of another version; nothing in it is needed


def _ms(time: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time."""
    if not time:
        return None
    return int(datetime.fromisoformat(time).timestamp() * 1000)
