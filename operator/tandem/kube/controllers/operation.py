"""The controller of an operation's resource, from its first event to its terminal status.

Level-triggered: it looks at the resource as it is now, takes the next step, and looks again. What
an operation does is decided, and committed, by a session of `tandem.operations`; the controller
makes it wait, starts and stops it, reports on it and, when the resource is deleted, cleans up after
it. It keeps no state: what a restart needs is in the status, in the lock store and below the
table's `_tandem/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

import structlog

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import InvalidSpec, Reason, StorageError, TandemError, TooLarge, Unreachable
from tandem.jobs.port import Jobs
from tandem.kube.client.events import traceback_of
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    generation_of,
    key_of,
    place_of,
    retry_requested,
    spec_of,
    status_of,
    uid_of,
)
from tandem.kube.controllers.preconditions import table_for_cleaning, waiting_reason
from tandem.kube.controllers.reporting import BEGUN, InstrumentedInterceptor, Reporter
from tandem.kube.controllers.session_loop import SessionLoop, Signals
from tandem.kube.metrics import families
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.controller_tasks import (
    LogContext,
    StopReason,
    StopSignal,
    bound_log_context,
)
from tandem.kube.runtime.slots import Lane
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import StopRequest
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.operations.session.options import passthrough
from tandem.operations.session.session import Session
from tandem.spec.loader import parse
from tandem.spec.resources import Operation
from tandem.spec.status import ENDED, OperationStatus, Phase

_log = structlog.get_logger("tandem.kube.controllers.operation")
_LOOK_AGAIN_S = 5.0
_AFTER_BUG_S = 10.0
_INTERRUPT_S = 8.0
"""How long an attempt may take to end that the end of the operator interrupts."""


class OperationController:
    """One resource, identified by its uid. A later resource of the same name waits for it."""

    def __init__(self, context: OperatorContext, body: Body) -> None:
        self._context = context
        self._uid = uid_of(body)
        self._key = key_of(body)
        self._signals = Signals()
        self._session: Session | None = None
        self._table: Table | None = None
        self._deleted = False
        self._give_up = False
        self._inherited = False
        self._began_on = ("", "")
        self._moved_to = ""
        self._was_suspended = False
        self._interrupted = False
        self._left = asyncio.Event()
        """Set when no session is under way any more; cleared when one begins."""
        self._reported: OperationStatus | None = None
        self._log_context = LogContext(
            *self._key,
            table=str((spec_of(body).get("tableRef") or {}).get("name", "")),
            operation=str(status_of(body).get("operationId", "")),
        )
        with bound_log_context(self._log_context):
            self._reporter = Reporter(context, body, self._object_gone)

    @property
    def _body(self) -> Body:
        return self._reporter.body

    @property
    def _last(self) -> OperationStatus:
        return self._reporter.last

    @property
    def _as_named_by_table(self) -> tuple[str, str, str]:
        kind, namespace, name = self._key
        return namespace, self._table_name, f"{kind}/{name}"

    @property
    def _table_name(self) -> str:
        return str((spec_of(self._body).get("tableRef") or {}).get("name", ""))

    async def run(self, stopped: StopSignal) -> None:
        """Run until the operation has ended, its resource was deleted, or the operator stops."""
        with bound_log_context(self._log_context):
            await self._run(stopped)

    async def _run(self, stopped: StopSignal) -> None:
        context = self._context
        minding = asyncio.create_task(self._await_stop(stopped), name="mind the stop")
        try:
            with context.resource_lock(self._key) as lock:
                if await self._signals.acquire(lock, self._is_over):
                    try:
                        await self._live()
                    finally:
                        lock.release()
        finally:
            minding.cancel()
            if not self._signals.leaving:
                self._context.cancelling.discard(self._as_named_by_table)
            await self._reporter.close()

    async def clean_up(self) -> None:
        """Cancel what a resource left whose deletion no controller has seen."""
        self._deleted = True
        self._reporter.object_gone()
        # Its status may say less than what was done.
        self._inherited = True
        try:
            with (
                bound_log_context(self._log_context),
                self._context.resource_lock(self._key) as lock,
            ):
                async with lock:
                    await self._live()
        finally:
            await self._reporter.close()

    # Notifications

    async def _await_stop(self, stopped: StopSignal) -> None:
        await stopped.wait()
        if stopped.reason is StopReason.DELETED:
            if self._is_gone:
                self._object_gone()
            else:
                self._deletion_seen()
        elif stopped.reason is StopReason.ENDED and self._session is not None:
            # Another operator has reported the end. Our session detects that and releases the
            # locks, which would otherwise be held as long as this process lives.
            self._signals.wake.set()
        else:
            await self._interrupt()
            self._signals.leave()

    async def _interrupt(self) -> None:
        """What this process does is lost with it: end the attempt as if it had not begun, so that
        it counts for nothing, unless that takes long."""
        session, small = self._session, self._context.small_jobs
        if session is None or small is None or not small.owns(self._uid):
            return
        self._interrupted = True
        session.request_stop(StopRequest.INTERRUPT)
        self._signals.wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPT_S):
                await self._left.wait()

    @property
    def _is_gone(self) -> bool:
        return self._context.resource_cache.by_uid(self._uid) is None

    def _object_gone(self) -> None:
        """The object is gone. A write may find out before the watch does."""
        self._context.gone(self._uid)
        self._reporter.object_gone()
        self._deletion_seen()

    def _deletion_seen(self) -> None:
        """The resource is being deleted, or is gone."""
        if self._session is not None and not self._deleted:
            self._session.request_stop(StopRequest.CANCEL)
        self._deleted = True
        if self._session is not None or self._has_begun:
            self._context.cancelling.add(self._as_named_by_table)
        self._signals.wake.set()

    def _changed(self) -> None:
        """Something that we watch has changed: the resource, its table, what it depends on."""
        if self._is_gone and not self._deleted:
            self._object_gone()
        body = self._context.resource_cache.body(self._uid)
        session = self._session
        if body is not None:
            renewed = generation_of(body) != generation_of(self._body)
            self._reporter.observe(body)
            if renewed and session is not None:
                self._reporter.renew()
        if session is not None and spec_of(self._body).get("suspend") is True:
            session.request_stop(StopRequest.SUSPEND)
        self._stop_if_moved()
        self._signals.wake.set()

    def _stop_if_moved(self) -> None:
        session = self._session
        if session is None or self._moved_to or self._deleted:
            return
        self._moved_to = self._new_location()
        if self._moved_to:
            session.request_stop(StopRequest.TABLE_MOVED)

    def _lake_table(self) -> tuple[str, str]:
        """The uid and the location of the LakeTable as it is now, "" each if there is none."""
        cache = self._context.resource_cache
        found = cache.get((TABLE_KIND, self._key[1], self._table_name))
        body = None if found is None or found.deleting else cache.body(found.uid)
        return ("", "") if body is None else (uid_of(body), place_of(body))

    def _new_location(self) -> str:
        """Where the LakeTable is, if it is another one than the session's and not at the same
        location; "" otherwise. Its operations run on the old table no longer."""
        uid, location = self._lake_table()
        before_uid, before = self._began_on
        if not before_uid or uid in ("", before_uid) or location.rstrip("/") == before.rstrip("/"):
            return ""
        known = self._context.tables.get((self._key[1], self._table_name))
        opened, table = None if known is None else known.table, self._table
        # Two spellings may be one location.
        same = opened is not None and table is not None and opened.location == table.location
        return "" if same else location

    def _is_over(self) -> bool:
        return self._signals.leaving or self._deleted or not self._context.may_write()

    # The life cycle

    async def _live(self) -> None:
        cache = self._context.resource_cache
        namespace = self._key[1]
        watched = [self._key, (TABLE_KIND, namespace, self._table_name)]
        for dependency in spec_of(self._body).get("dependsOn") or ():
            watched.append((str(dependency.get("kind")), namespace, str(dependency.get("name"))))
        ends = [cache.watch(key, self._changed) for key in watched]
        try:
            self._changed()  # perhaps since our body was taken
            while not self._signals.leaving and self._context.may_write():
                if self._deleted and not (self._has_begun or self._inherited):
                    break
                self._signals.wake.clear()
                end = await self._turn()
                if end is not None:
                    await self._end(end)
                    break
                if self._give_up:
                    break
        finally:
            for end_watch in ends:
                end_watch()
            small = self._context.small_jobs
            if self._deleted and small is not None:
                await asyncio.to_thread(small.leave, self._uid)

    @property
    def _has_begun(self) -> bool:
        last = self._last  # which may have been written just before the first attempt was claimed
        return last.phase in BEGUN or (last.attempt > 0 and last.phase not in ENDED)

    async def _turn(self) -> OperationStatus | None:
        """Take the next step; returns the terminal status once there is one."""
        try:
            resource = parse(self._body)
            assert isinstance(resource, Operation)
        except InvalidSpec as error:
            return self._reporter.changed(Phase.FAILED, Reason.INVALID_SPEC, str(error))
        if self._deleted:
            # A LakeTable that goes at the same time may have gone first.
            table = self._table or await table_for_cleaning(self._context, resource)
            snapshot = None
            if table is None:
                self._give_up = True
                return None
        else:
            if self._was_suspended and self._has_begun and self._new_location():
                # It holds nothing of the old table, and was not written for the new one.
                message = (
                    "the LakeTable was deleted and made again at another location while the"
                    " operation was suspended"
                )
                return self._reporter.changed(Phase.FAILED, Reason.TABLE_REPLACED, message)
            found = waiting_reason(
                self._context,
                resource,
                begun=self._has_begun,
                at_work=self._last.phase in BEGUN,
            )
            if found is not None:
                await self._report_and_wait(found.phase, found.reason, found.message)
                return None
            known = self._context.tables[resource.namespace, resource.spec.table_ref.name]
            table, snapshot = known.table, known.snapshot
            assert table is not None
        # One try: a clean-up that fails must not keep the resource for ever.
        self._give_up = self._deleted
        try:
            return await self._drive(resource, table, snapshot)
        except (StorageError, Unreachable, TooLarge) as error:
            if not self._deleted:
                await self._report_and_wait(Phase.PENDING, error.reason, str(error), _LOOK_AGAIN_S)
            return None
        except TandemError as error:
            return self._reporter.changed(Phase.FAILED, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._context.metrics.count(families.INTERNAL_ERRORS, "operation")
            _log.error("a bug: please report it", resource=resource.id, at=traceback_of(error))
            if not self._deleted:
                message = f"{type(error).__name__}, see the operator's log; it will be retried"
                await self._report_and_wait(
                    Phase.PENDING, Reason.INTERNAL_ERROR, message, _AFTER_BUG_S
                )
            return None

    async def _report_and_wait(
        self, phase: Phase, reason: Reason, message: str, seconds: float | None = None
    ) -> None:
        """Report it, and wait until something changes, at most this long (None: any time)."""
        self._reporter.waiting(phase, reason, message)
        await self._signals.wait(seconds)

    async def _drive(
        self, resource: Operation, table: Table, snapshot: Snapshot | None
    ) -> OperationStatus | None:
        context = self._context
        self._table = table
        self._began_on, self._moved_to = self._lake_table(), ""
        self._was_suspended = False
        retry = retry_requested(self._body)
        ports = Ports(
            jobs=self._jobs(resource, table),
            locks=context.locks,
            clock=context.clock,
            processes=context.processes,
            nonces=context.nonces,
        )
        execution = ExecutionOptions(
            again=bool(retry),
            # The status may be older than the log, or lost: what has succeeded is not repeated.
            only_failed=True,
            poll_ms=context.settings.poll_ms,
            lock_wait_s=0,
            deadline_s=context.settings.deadline_s or None,
            interceptor=InstrumentedInterceptor(
                context.metrics, self._log_context, context.interceptor or passthrough
            ),
        )
        started_ms = None if retry else self._reporter.started_ms
        loop = asyncio.get_running_loop()

        # To wake the loop costs more than a step: those of one turn of it are handed over together.
        reports, handing_over = deque[OperationStatus](), threading.Event()

        def take_over() -> None:
            handing_over.clear()
            while reports:
                self._on_status(reports.popleft(), retry)

        def report(status: OperationStatus) -> None:
            # From a thread, and perhaps when the loop has ended.
            if status == self._reported:
                return
            self._reported = status
            reports.append(status)
            if not handing_over.is_set():
                handing_over.set()
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(take_over)

        self._reported = None
        lane = Lane(self._key[1], self._table_name)
        table_uid, _ = self._began_on
        session = await context.threads(
            table_uid,
            lambda: open_session(
                resource,
                table,
                ports,
                execution,
                on_status=report,
                started_ms=started_ms,
                snapshot=snapshot,
            ),
        )
        self._session = session
        self._left.clear()
        self._stop_if_moved()  # while it was opened
        self._log_context.operation = session.identity.operation_id
        try:
            if self._deleted:
                session.request_stop(StopRequest.CANCEL)
            elif spec_of(self._body).get("suspend") is True and not resource.spec.suspend:
                session.request_stop(StopRequest.SUSPEND)
            deadline = execution.deadline_of(resource)
            session_loop = SessionLoop(
                session,
                context.locks,
                context.slots,
                lane,
                context.table_threads.of(table_uid),
                self._signals,
                on_queued=self._queued,
                deadline_s=None
                if deadline is None
                else loop.time() + deadline - (context.clock.now_ms() - session.started_ms) / 1000,
            )
            if not await session_loop.run():
                return None
        finally:
            self._session = None
            # Left or ended: the next session may take the attempt over.
            session.close()
            self._left.set()
        ending = session.ending
        if self._interrupted and ending is not None and ending.reason is Reason.INTERRUPTED:
            self._signals.leave()
            return None
        status = self._reporter.as_of_now(finish(session, resource, ports), retry)
        moved_to = self._moved_to or self._new_location()
        if moved_to and status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED):
            # It had committed before.
            where = f"on the table at {table.location}; its LakeTable is now at {moved_to}"
            first, *others = status.conditions
            first = first.model_copy(update={"message": f"{first.message}, {where}"})
            status = status.model_copy(update={"conditions": (first, *others)})
        if status.phase is Phase.SUSPENDED:
            self._was_suspended = True
            # It was resumed meanwhile: the next turn continues.
            if spec_of(self._body).get("suspend") is True:
                self._reporter.offer(status)
            return None
        if ending is not None and ending.elsewhere and not self._deleted:
            if self._reporter.has_begun_before:
                # The process that works on it reports. We take over once that one is dead.
                await self._signals.wait(_LOOK_AGAIN_S)
            else:
                await self._report_and_wait(
                    Phase.PENDING, ending.reason, ending.message, _LOOK_AGAIN_S
                )
            return None
        return status

    def _jobs(self, resource: Operation, table: Table) -> Jobs:
        context = self._context
        spark = FileJobs(context.runner_factory(resource, self._body, table.spec))
        if context.small_jobs is None:
            return spark
        loop = asyncio.get_running_loop()

        def changed() -> None:
            # From a thread, and perhaps when the loop has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._signals.wake.set)

        jobs = context.small_jobs.of(self._uid, spark, changed)
        self._reporter.has_application = jobs.has_application
        return jobs

    def _on_status(self, status: OperationStatus, retry: str) -> None:
        if self._session is not None:
            acting = self._session.acting.operation_id
            self._reporter.report_progress(status, retry, acting)

    def _queued(self, full: str) -> None:
        message = f"waits until fewer than {full}"
        self._reported = None
        self._reporter.waiting(self._last.phase, Reason.PLANNED, message)

    async def _end(self, status: OperationStatus) -> None:
        await self._reporter.finish(status, write=not self._deleted)
        context = self._context.tables.get((self._key[1], self._table_name))
        if context is not None:
            context.refresh_soon()
