"""The child: a process that controls the tables and operations of one tenant, until the operator
closes the link.

It is forked from a template that has imported everything and begun nothing. Whatever it reads can
end or harm it, and nothing else: what it was doing is taken over by the next one, from statuses,
locks and the tables' `_tandem/`, as after a restart of the operator.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import structlog

from tandem.jobs.runner import JobRunner
from tandem.kube.children.link import Link
from tandem.kube.children.ports import (
    LinkedApi,
    LinkedAutomaticSlots,
    LinkedLocks,
    LinkedMetrics,
    LinkedRunner,
    LinkedSlots,
)
from tandem.kube.children.start import ChildSettings, RunEnd
from tandem.kube.client.events import events_go_to, traceback_of
from tandem.kube.client.resources import Body, CachedResource, ResourceCache, uid_of
from tandem.kube.controllers.automation import AutoCompactionController, LogAutomation, RowRetention
from tandem.kube.controllers.operation import OperationController
from tandem.kube.controllers.table import TableController
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.controller_tasks import StopReason, StopSignal
from tandem.kube.runtime.leader import LockMembers
from tandem.kube.runtime.small_jobs import SmallJobs
from tandem.kube.runtime.tenants import Tenant, environment
from tandem.kube.runtime.threads import AtWork, TableThreads
from tandem.operations.ports import SystemClock, SystemNonces
from tandem.operations.registry import import_kinds
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spec.common import OPERATIONS
from tandem.spec.resources import Operation
from tandem.spec.table import LakeTable

_log = structlog.get_logger("tandem.kube.children")
_STACK: Final = 2 << 20
"""Of a thread. The usual eight megabytes count against the bound also where they are not used: a
dozen threads would take half of the least one."""


def main(own: socket.socket, settings: ChildSettings, environ: Mapping[str, str]) -> None:
    """Do what the operator says, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the operator ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # whatever it starts is of this session, and ends with it
    if settings.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory, resource.RLIM_INFINITY))
    os.environ.clear()
    os.environ.update(environ)
    threading.stack_size(_STACK)
    if settings.folder is not None:
        tempfile.tempdir = str(settings.folder)
    if settings.configure is not None:
        settings.configure()
    import_kinds()
    at_work = AtWork.received(own)
    asyncio.run(_serve(own, settings, dict(environ), at_work))
    # Threads may wait for a store that does not answer.
    os._exit(0)


async def _serve(
    own: socket.socket, settings: ChildSettings, environ: dict[str, str], at_work: AtWork
) -> None:
    child = _Child(settings, environ, at_work)
    await child.link.connect(own)
    code = 1
    try:
        if problem := await child.link.serve():
            _log.error("the link to the operator has ended", problem=problem)
        else:
            code = 0
    finally:
        os._exit(code)


@dataclass
class _Run:
    """A controller at work. The task leads to the answer to the operator's call."""

    task: asyncio.Task[RunEnd]
    stopped: StopSignal


class _Child:
    def __init__(self, settings: ChildSettings, environ: dict[str, str], at_work: AtWork) -> None:
        loop = asyncio.get_running_loop()
        self.link = link = Link(
            {
                "put": self._put,
                "remove": self._remove,
                "clear": self._clear,
                "run": self._run,
                "stop": self._stop,
                "leave": self._leave,
                "clean_up": self._clean_up,
                "ping": _pong,
                "locks.wake": lambda number: self._locks.woken(number),
                "slots.queued": lambda ticket, why: self._slots.queued(ticket, why),
                "automatic.wake": lambda number: self._automatic.woken(number),
            }
        )
        self._loop = loop
        self._applications = KubeflowApplications(settings.operator.application)
        self._environ = environ
        self._given: Set[str] = environ.keys()
        self._tenant = settings.tenant
        self._runs: dict[str, _Run] = {}
        self._locks = LinkedLocks(link, loop)
        self._slots = LinkedSlots(link)
        self._automatic = LinkedAutomaticSlots(link, settings.operator.automatic_slots)
        self._metrics = LinkedMetrics()
        self._small = None
        if settings.rules is not None:
            self._small = SmallJobs(
                settings.tenant,
                settings.rules,
                lambda uid, has: _soon(loop, link.notify, "small_job", uid, has),
                lambda: _soon(loop, link.notify, "harmed"),
                settings.folder,
            )
        self._context = context = OperatorContext(
            settings=settings.operator,
            api=LinkedApi(link, lambda: self._metrics.flush(link)),
            resource_cache=ResourceCache(),
            locks=self._locks,
            processes=LockMembers(self._locks, *settings.member),
            clock=SystemClock(),
            nonces=SystemNonces(),
            table_threads=TableThreads(at_work.on),
            index_threads=ThreadPoolExecutor(1),
            slots=self._slots,
            automatic_slots=self._automatic,
            runner_factory=self._runner,
            metrics=self._metrics,
            small_jobs=self._small,
            on_secret=self._renewed,
        )
        context.automations = (
            AutoCompactionController(context),
            LogAutomation(context),
            RowRetention(context),
        )
        context.on_gone = lambda uid: link.notify("gone", uid)
        context.on_figures = lambda key, found: link.notify("figures", key, found.as_json())
        events_go_to(lambda *event: link.notify("event", *event))
        self._passing_on = asyncio.create_task(self._metrics.pass_on(link), name="pass metrics on")

    # What the operator says

    def _put(self, summary: dict[str, Any], body: Body | None) -> None:
        labels = tuple((name, value) for name, value in summary.pop("labels"))
        self._context.resource_cache.put(CachedResource(**summary, labels=labels), body)

    def _remove(self, uid: str) -> None:
        self._context.resource_cache.remove(uid)

    def _clear(self) -> None:
        self._context.resource_cache.clear()

    def _run(self, kind: str, uid: str, on_spark: bool) -> asyncio.Task[RunEnd]:
        """It is among the runs at once: what follows may be that it has to stop."""
        if on_spark and self._small is not None:
            self._small.suits_not(uid)
        stopped, before = StopSignal(), self._runs.get(uid)
        controlling = self._control(kind, uid, stopped, None if before is None else before.task)
        run = self._runs[uid] = _Run(asyncio.create_task(controlling, name=f"run {kind}"), stopped)
        run.task.add_done_callback(lambda _: self._end_run(uid, run))
        return run.task

    def _end_run(self, uid: str, run: _Run) -> None:
        if self._runs.get(uid) is run:
            del self._runs[uid]

    async def _control(
        self, kind: str, uid: str, stopped: StopSignal, before: asyncio.Task[Any] | None
    ) -> RunEnd:
        """How the controller has ended. `before`: the same resource's controller that the operator
        has left, and which ends."""
        made = OperationController if kind in OPERATIONS else TableController
        how = RunEnd.OVER
        try:
            if before is not None:
                await asyncio.wait({before})
            body = self._context.resource_cache.body(uid)
            if body is not None:
                await made(self._context, body).run(stopped)
            if body is None or stopped.reason is StopReason.HANDED_OVER:
                how = RunEnd.LEFT
        except Exception as error:  # noqa: BLE001 - a bug, after which the operator tries again
            _log.error("a bug: please report it", at=traceback_of(error))
            how = RunEnd.FAILED
        finally:
            self._metrics.flush(self.link)
        return how

    def _stop(self, uid: str, reason: str) -> None:
        run = self._runs.get(uid)
        if run is not None:
            run.stopped.stop(StopReason(reason))

    def _leave(self, uid: str) -> None:
        """No caller waits for the controller any more."""
        run = self._runs.get(uid)
        if run is not None:
            run.task.cancel()

    async def _clean_up(self, body: Body) -> None:
        await OperationController(self._context, body).clean_up()

    # What the controllers need, and say

    def _runner(self, resource: Operation, body: Body, table: LakeTable | None) -> JobRunner:
        account = "" if table is None else table.spec.storage.service_account_name or ""
        # Before the operation does anything: the operator checks it only with its job.
        self._applications.check(
            resource.spec.spark_template, resource=resource.id, service_account=account
        )
        uid, cache = uid_of(body), self._context.resource_cache
        return LinkedRunner(
            self.link, self._loop, uid, lambda: body if cache.by_uid(uid) is None else None
        )

    def _renewed(self, secret: str, environ: Mapping[str, str]) -> None:
        """The tenant's Secret was read."""
        tenant = Tenant(self._tenant.namespace, self._tenant.account, secret, environ)
        wanted = environment(tenant, self._environ)
        # Threads may read it now: what stays the same must be there all the time. And PySpark has
        # names of its own there while it connects.
        for name in self._given - wanted.keys():
            del os.environ[name]
        self._given = wanted.keys()
        for name, value in wanted.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if self._small is not None:
            self._small.renewed(tenant)


async def _pong() -> bool:
    return True


def _soon(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    """From any thread."""
    loop.call_soon_threadsafe(call, *arguments)
