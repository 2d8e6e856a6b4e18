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
from collections.abc import Callable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import structlog
from kopf import DaemonStoppingReason

from tandem.jobs.runner import JobRunner
from tandem.kube.children.at_work import AtWork
from tandem.kube.children.link import Link
from tandem.kube.children.ports import (
    LinkedApi,
    LinkedAutomaticSlots,
    LinkedLocks,
    LinkedMetrics,
    LinkedRunner,
    LinkedSlots,
)
from tandem.kube.client.events import events_go_to, traceback_of
from tandem.kube.client.resources import Body, CachedResource, ResourceCache, uid_of
from tandem.kube.controllers.automation import AutoCompactionController, LogAutomation, RowRetention
from tandem.kube.controllers.operation import OperationController
from tandem.kube.controllers.table import TableController
from tandem.kube.runtime.context import OperatorContext, OperatorSettings
from tandem.kube.runtime.leader import LockMembers
from tandem.kube.runtime.small_jobs import SmallJobRules, SmallJobs
from tandem.kube.runtime.tenants import Tenant, environment
from tandem.kube.runtime.threads import TableThreads
from tandem.operations.ports import SystemClock, SystemNonces
from tandem.operations.registry import import_kinds
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spec.common import OPERATIONS
from tandem.spec.resources import Operation
from tandem.spec.table import LakeTable

_log = structlog.get_logger("tandem.kube.children")
LEAST_MEMORY: Final = 256 << 20
"""The least bound under which a child does anything: it begins with two thirds of it."""
_STACK: Final = 2 << 20
"""Of a thread. The usual eight megabytes count against the bound also where they are not used: a
dozen threads would take half of the least one."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What a child is made with.

    Args:
        operator: without what is only the operator's own, such as the password of etcd.
        tenant: whose child it is; its Secret is read later.
        member: the child's name and nonce among those that hold claims, as of `LockMembers`.
        memory: how many bytes the process may have, None for any number.
        rules: which jobs it does itself; None for no job.
        folder: its own one, for temporary files, if it may have a JVM.
        configure: called first.
    """

    operator: OperatorSettings
    tenant: Tenant
    member: tuple[str, str]
    memory: int | None
    rules: SmallJobRules | None
    folder: Path | None
    configure: Callable[[], None] | None


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


class _Stopped:
    """kopf's `stopped` of a daemon, as the operator passes it on."""

    def __init__(self) -> None:
        self.reason: DaemonStoppingReason | None = None
        self._stopped = asyncio.Event()

    def stop(self, reason: int) -> None:
        """The first reason holds: the controller ends by it, whatever comes later."""
        if self.reason is None:
            self.reason = DaemonStoppingReason(reason)
            self._stopped.set()

    async def wait(self) -> object:
        return await self._stopped.wait()


class RunEnd(StrEnum):
    """How the controller of a resource has ended."""

    OVER = "over"
    LEFT = "left"
    """It leaves the resource to the next one."""
    FAILED = "failed"


@dataclass
class _Run:
    """A controller at work."""

    task: asyncio.Task[None]
    stopped: _Stopped


class _Child:
    def __init__(self, settings: ChildSettings, environ: dict[str, str], at_work: AtWork) -> None:
        loop = asyncio.get_running_loop()
        self.link = link = Link(
            {
                "put": self._put,
                "remove": self._remove,
                "clear": self._clear,
                "run": self._begin,
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
                lambda uid, has: _soon(loop, link.tell, "small_job", uid, has),
                lambda: _soon(loop, link.tell, "harmed"),
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
        context.on_gone = lambda uid: link.tell("gone", uid)
        context.on_figures = lambda key, found: link.tell("figures", key, found.as_json())
        events_go_to(lambda *event: link.tell("event", *event))
        self._passing_on = asyncio.create_task(self._metrics.pass_on(link), name="pass metrics on")

    # What the operator says

    def _put(self, summary: dict[str, Any], body: Body | None) -> None:
        labels = tuple((name, value) for name, value in summary.pop("labels"))
        self._context.resource_cache.put(CachedResource(**summary, labels=labels), body)

    def _remove(self, uid: str) -> None:
        self._context.resource_cache.remove(uid)

    def _clear(self) -> None:
        self._context.resource_cache.clear()

    def _begin(self, number: int, kind: str, uid: str, on_spark: bool) -> None:
        if on_spark and self._small is not None:
            self._small.suits_not(uid)
        stopped, before = _Stopped(), self._runs.get(uid)
        controlling = self._control(number, kind, uid, stopped, before)
        task = asyncio.create_task(controlling, name=f"run {kind}")
        self._runs[uid] = _Run(task, stopped)

    async def _control(
        self,
        number: int,
        kind: str,
        uid: str,
        stopped: _Stopped,
        before: _Run | None,
    ) -> None:
        """`before`: the same resource's controller that the operator has left, and which ends."""
        made = OperationController if kind in OPERATIONS else TableController
        how = RunEnd.OVER
        try:
            if before is not None:
                await asyncio.wait({before.task})
            body = self._context.resource_cache.body(uid)
            if body is not None:
                await made(self._context, body).run(stopped)
            if stopped.reason is DaemonStoppingReason.OPERATOR_EXITING:
                how = RunEnd.LEFT
        except Exception as error:  # noqa: BLE001 - a bug, after which the operator tries again
            _log.error("a bug: please report it", at=traceback_of(error))
            how = RunEnd.FAILED
        finally:
            run = self._runs.get(uid)
            if run is not None and run.stopped is stopped:
                del self._runs[uid]
            self._metrics.flush(self.link)
            cancelled = uid in self._context.cancelled
            self._context.cancelled.discard(uid)
            self.link.tell("done", number, uid, how, cancelled)

    def _stop(self, uid: str, reason: int) -> None:
        run = self._runs.get(uid)
        if run is not None:
            run.stopped.stop(reason)

    def _leave(self, uid: str) -> None:
        """No caller waits for the controller any more."""
        run = self._runs.get(uid)
        if run is not None:
            run.task.cancel()

    async def _clean_up(self, body: Body) -> bool:
        """Whether it is done."""
        await OperationController(self._context, body).clean_up()
        cancelled = uid_of(body) in self._context.cancelled
        self._context.cancelled.discard(uid_of(body))
        return cancelled

    # What the controllers need, and say

    def _runner(self, resource: Operation, body: Body, table: LakeTable | None) -> JobRunner:
        account = "" if table is None else table.spec.storage.service_account_name or ""
        # Before the operation does anything: the operator checks it only with its job.
        self._applications.check(
            resource.spec.spark_template, resource=resource.id, service_account=account
        )
        return LinkedRunner(self.link, self._loop, uid_of(body))

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
