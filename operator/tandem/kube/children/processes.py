"""The children of one operator: begun when a tenant has something to control, ended when it has
nothing, and killed when they do not answer or the pod's memory runs short.

A process can be killed, a thread cannot; and the system bounds a process's memory, which no
arithmetic of ours can. What a child was doing is taken over by the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import shutil
import socket
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import structlog

from tandem.errors import InvalidSpec, LocksUnavailable, Reason
from tandem.kube.children.link import LONGEST_OF_CHILD
from tandem.kube.children.process import ChildEnded, ChildProcess, PodMemory
from tandem.kube.children.services import ChildServices
from tandem.kube.children.start import ChildSettings, RunEnd
from tandem.kube.children.start import start as start_child
from tandem.kube.client.api import ApiError
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    CachedResource,
    generation_of,
    key_of,
    path,
    spec_of,
    uid_of,
)
from tandem.kube.metrics import families
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.controller_tasks import StopReason, StopSignal
from tandem.kube.runtime.leader import LockMembers
from tandem.kube.runtime.tenants import Tenant, TenantKey, environment, tenant_of
from tandem.kube.runtime.threads import AtWork, too_large
from tandem.kube.tables.status import compose, not_ready
from tandem.spec.common import OPERATIONS
from tandem.storage.paths import canonical_location

_log = structlog.get_logger("tandem.kube.children")
IDLE_S: Final = 60.0
_LOOK_S: Final = 1.0
_PING_S: Final = 10.0
_FULL: Final = 0.9
"""At this share of the pod's memory limit the largest child is killed: a pod that exceeds its limit
is killed as a whole."""
_CROWDED: Final = 0.8
"""From this share on, a namespace that has a child gets no further one: its users can
name any number of Secrets and stores."""
_TEMPLATE: Final = "tandem.kube.children.template"
_PAUSES_S: Final = (0.0, 0.5, 2.0, 5.0, 15.0, 60.0)
"""The pauses before a tenant's next child, after so many that ended by themselves."""
_GOOD_S: Final = 300.0
"""A child that lived for so long has done no harm to its next one."""
_SUSPECT: Final = 2
"""A table on which so many children worked as they ended has a child to itself."""
_CLEAN_UPS: Final = 5
"""So many children try to cancel what a deleted operation has left; then it counts as one whose
process died."""
LOCKS_S: Final = 30.0
"""So long the locks of a child that has ended wait for the one that takes its operations over: an
operation, or its table, may be gone."""
_LOCKS_PAUSE_S: Final = 2.0
"""Between two tries of a lock store that does not answer."""


class _Crowded(ChildEnded):
    """None was begun: the pod's memory is short."""


def _keep(tasks: set[asyncio.Task[None]], what: Coroutine[Any, Any, None], name: str) -> None:
    """Begin a task that serves children, and keep it until it is done: the loop does not."""
    task = asyncio.create_task(what, name=f"{name} a child")
    tasks.add(task)
    task.add_done_callback(tasks.discard)


@dataclass(slots=True)
class _Deaths:
    """The children of a tenant that ended by themselves, one after the other."""

    count: int = 0
    last_s: float = 0.0


class ChildProcesses:
    """All children. To be used on the operator's loop.

    Args:
        memory: how many bytes a child may have, None for any number.
        configure: called in each child as it begins; to be pickled.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        memory: int | None,
        configure: Callable[[], None] | None = None,
        pod: PodMemory | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self._context = context
        self._memory = memory
        self._configure = configure
        self._pod = pod or PodMemory()
        self._own = os.environ if own is None else own
        self._forks = get_context("forkserver")
        self._forks.set_forkserver_preload([_TEMPLATE])
        self._children: dict[TenantKey, ChildProcess] = {}
        self._retired: set[ChildProcess] = set()
        """Those that end as soon as they have left what they control."""
        self._beginning: dict[TenantKey, asyncio.Task[ChildProcess]] = {}
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By namespaces, whose children begin one after the other: each counts before the next."""
        self._deaths: dict[TenantKey, _Deaths] = {}
        self._ended_on: Counter[str] = Counter()
        """How many children ended while they worked on a table, by its uid."""
        self._locations: dict[str, set[str]] = defaultdict(set)
        """By namespaces: where their tables are, or were since this operator began."""
        self._unsuited: set[str] = set()
        self._event_contexts: dict[str, contextvars.Context] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="tandem-child")
        # To stop a job may take a minute.
        self._job_threads = ThreadPoolExecutor(64, thread_name_prefix="tandem-jobs")
        self._closed = False

    def living(self) -> list[ChildProcess]:
        children = (*self._children.values(), *self._retired)
        return [child for child in children if not child.end]

    # What the operator's handlers say

    def put(self, summary: CachedResource) -> None:
        """A resource was created or changed."""
        body = self._context.resource_cache.body(summary.uid)
        for child in self._of_namespace(summary.namespace):
            child.services.link.notify("put", asdict(summary), body)
        if summary.kind == TABLE_KIND and body is not None:
            with suppress(InvalidSpec):
                location = canonical_location(str(spec_of(body).get("location", "")))
                self._locations[summary.namespace].add(location)
            self._move(summary)

    def remove(self, uid: str, namespace: str) -> None:
        """A resource is gone."""
        self._unsuited.discard(uid)
        self._ended_on.pop(uid, None)
        for child in self._of_namespace(namespace):
            child.services.link.notify("remove", uid)

    def clear(self) -> None:
        """All resources are about to be listed again."""
        for child in self.living():
            child.services.link.notify("clear")

    async def run(self, body: Body, stopped: StopSignal) -> None:
        """Have a resource controlled until that is over, or `stopped`. To be called in the context
        of a kopf handler, in which events about it are posted. Raises: RuntimeError if its
        controller failed, which is a bug."""
        kind, uid = key_of(body)[0], uid_of(body)
        self._event_contexts[uid] = contextvars.copy_context()
        stopping = asyncio.create_task(self._pass_stop(uid, stopped), name="mind the stop")
        try:
            cache = self._context.resource_cache
            while not stopping.done() and self._context.may_write():
                if cache.body(uid) is None:
                    break  # it is gone, or has ended
                try:
                    tenant = self._tenant(body)
                    child = await self._child(tenant, stopping)
                    if child is None or stopping.done():
                        break
                    if self._tenant(body) != tenant:
                        continue  # it has moved meanwhile
                    how = await child.run(kind, uid, on_spark=uid in self._unsuited)
                except ChildEnded as error:
                    if isinstance(error, _Crowded) and kind == TABLE_KIND:
                        await self._report(uid, Reason.PENDING, str(error))
                    continue
                if how is RunEnd.FAILED:
                    raise RuntimeError("its controller failed, see the log")
                if how is RunEnd.OVER:
                    return
            if kind in OPERATIONS and stopped.reason is StopReason.DELETED:
                # No controller has cancelled it.
                await self._clean_up(self._context.resource_cache.body(uid) or body)
        finally:
            stopping.cancel()
            self._event_contexts.pop(uid, None)

    async def _clean_up(self, body: Body) -> None:
        tries = 0
        while tries < _CLEAN_UPS:
            try:
                child = await self._child(self._tenant(body), None)
                if child is not None:
                    await child.clean_up(body)
                return
            except _Crowded:
                continue  # nothing was tried
            except ChildEnded:
                tries += 1

    async def _pass_stop(self, uid: str, stopped: StopSignal) -> None:
        await stopped.wait()
        for child in self.living():
            if uid in child.runs:
                child.services.link.notify("stop", uid, stopped.reason)

    # Which child

    def _of_namespace(self, namespace: str) -> Iterable[ChildProcess]:
        return [child for child in self.living() if child.key.namespace == namespace]

    def _tenant(self, body: Body) -> TenantKey:
        kind, namespace, name = key_of(body)
        cache = self._context.resource_cache
        if kind != TABLE_KIND:
            name = str((spec_of(body).get("tableRef") or {}).get("name", ""))
        table = cache.get((TABLE_KIND, namespace, name))
        if table is None:
            return TenantKey(namespace)
        tenant = tenant_of(cache.body(table.uid), namespace)
        if self._ended_on[table.uid] >= _SUSPECT:
            return replace(tenant, alone=table.uid)
        return tenant

    def _move(self, table: CachedResource) -> None:
        """A LakeTable that has other credentials is another child's, and so are its operations.
        Their claims are given up by the end of their child alone, so that one ends with them."""
        cache = self._context.resource_cache
        body = cache.body(table.uid)
        if body is None:
            return
        tenant = self._tenant(body)
        uids = [table.uid, *(each.uid for each in cache.of_table(table.namespace, table.name))]
        for child in self._of_namespace(table.namespace):
            moving = {uid for uid in uids if uid in child.runs and child.key != tenant}
            if moving - {table.uid}:
                self._retire(child)
            for uid in moving:
                child.services.link.notify("stop", uid, StopReason.HANDED_OVER)

    def _retire(self, child: ChildProcess) -> None:
        """End it as soon as it has left what it controls to the next one, at no cost."""
        if self._children.get(child.key) is child:
            self._retired.add(self._children.pop(child.key))
            for uid in child.runs:
                child.services.link.notify("stop", uid, StopReason.HANDED_OVER)

    async def _child(
        self, key: TenantKey, stopping: asyncio.Task[None] | None
    ) -> ChildProcess | None:
        """The tenant's child; None if meanwhile there is nothing left to do. Raises: ChildEnded."""
        while not (self._closed or (stopping is not None and stopping.done())):
            child, beginning = self._children.get(key), self._beginning.get(key)
            # While it begins, it does not know all resources yet.
            if beginning is None and child is not None and not child.end:
                return child
            if beginning is None and (left_s := self._pause_left_s(key)) > 0:
                if stopping is None:
                    await asyncio.sleep(left_s)
                else:
                    await asyncio.wait({stopping}, timeout=left_s)
                continue
            if beginning is None:
                beginning = asyncio.create_task(self._begin_in_turn(key), name="begin a child")
                self._beginning[key] = beginning
                beginning.add_done_callback(lambda _: self._beginning.pop(key, None))
            # One who waits for it may be cancelled: others wait, too, and nothing is half begun.
            return await asyncio.shield(beginning)
        return None

    def _pause_left_s(self, key: TenantKey) -> float:
        deaths = self._deaths.get(key, _Deaths())
        pause_s = _PAUSES_S[min(deaths.count, len(_PAUSES_S) - 1)]
        return deaths.last_s + pause_s - time.monotonic()

    async def _begin_in_turn(self, key: TenantKey) -> ChildProcess:
        async with self._turns[key.namespace]:
            if self._closed:
                raise ChildEnded("the operator has ended")
            others = len([*self._of_namespace(key.namespace)])
            if others and await asyncio.to_thread(self._pod.share) >= _CROWDED:
                self._died(key, 0.0)  # so that there is a pause before the next try
                _log.warning("the pod's memory is short", namespace=key.namespace, children=others)
                raise _Crowded(
                    "it waits for a process: the memory of the operator's pod is short, and the "
                    f"namespace has {others} of them, one for each Secret, service account and "
                    "store. Use fewer of these, or raise the pod's memory limit"
                )
            return await self._begin(key)

    async def _begin(self, key: TenantKey) -> ChildProcess:
        context = self._context
        number = f"{key.namespace}-{context.nonces.nonce()}"
        member = (f"{context.settings.instance}/{number}", context.nonces.nonce())
        members = LockMembers(context.locks, *member)
        tenant = Tenant(key.namespace, key.account)
        rules = context.settings.small_jobs if context.settings.small_job_bytes else None
        folder = None
        if rules is not None and rules.heap:
            folder = Path(tempfile.gettempdir(), f"tandem-{number}")
        settings = ChildSettings(
            replace(context.settings, etcd=None, kubeconfig=None),
            tenant,
            member,
            self._memory,
            rules,
            folder,
            self._configure,
        )

        def leave() -> None:
            with suppress(LocksUnavailable):
                members.leave()

        def start() -> tuple[ForkServerProcess, socket.socket, AtWork]:
            members.join()
            with ExitStack() as undo:
                undo.callback(leave)
                ours, theirs = socket.socketpair()
                undo.enter_context(ours)
                if folder is not None:
                    folder.mkdir(mode=0o700)
                    undo.callback(shutil.rmtree, folder, ignore_errors=True)
                with theirs:
                    process = self._forks.Process(
                        target=start_child,
                        args=(theirs, settings, environment(tenant, self._own)),
                        name=f"tandem-{key.namespace}",
                        daemon=True,
                    )
                    process.start()
                at_work = AtWork.shared(ours)
                undo.pop_all()
                return process, ours, at_work

        loop = asyncio.get_running_loop()
        try:
            process, own, at_work = await loop.run_in_executor(self._threads, start)
        except (OSError, EOFError, RuntimeError, LocksUnavailable) as error:
            self._died(key, 0.0)
            _log.warning("no child process begun", namespace=key.namespace, problem=str(error))
            raise ChildEnded(f"no process could be begun: {error}") from error
        services = ChildServices(
            context,
            tenant,
            tuple(filter(None, (key.secret, key.token))),
            self._threads,
            self._job_threads,
            self._event_contexts.get,
            self._locations[key.namespace],
        )
        await services.link.connect(own, LONGEST_OF_CHILD)
        child = ChildProcess(key, process, services, at_work, folder)
        services.on_harmed = lambda: self._retire(child)
        _keep(self._serving, self._serve(child, members), "serve")
        context.metrics.count(families.CHILD_PROCESSES_STARTED)
        self._children[key] = child
        cache = context.resource_cache
        for uid in [each.uid for each in cache.all() if each.namespace == key.namespace]:
            summary = cache.by_uid(uid)  # as it is now: a later one may have been put before
            if summary is not None:
                services.link.notify("put", asdict(summary), cache.body(uid))
                # After each of them: fifty may be more than it may leave unread.
                await services.link.drain()
        return child

    async def _serve(self, child: ChildProcess, members: LockMembers) -> None:
        try:
            await child.serve()
            self._note_end(child)
            if child.runs and child.key.alone:
                # In no process does it live for long enough to say so itself.
                count = self._ended_on[child.key.alone]
                why = too_large(f"{count} of them ended so far, the last one: {child.end}")
                await self._report(child.key.alone, Reason.TOO_LARGE, why)
            # Only now may another one take its attempts over.
            await self._release(members.leave)
        finally:
            child.released.set()
        if child.services.locks and not self._closed:
            _keep(self._releasing, self._release_later(child.services.locks), "release later")

    def _note_end(self, child: ChildProcess) -> None:
        services = child.services
        self._unsuited |= services.unsuited | services.at_work
        if services.at_work:
            self._context.metrics.add(families.SMALL_JOBS_LOST, len(services.at_work))
        if self._children.get(child.key) is child:
            del self._children[child.key]
        self._retired.discard(child)
        worked_on = child.at_work.tables()
        child.at_work.close()
        if not child.runs:
            _log.info("a child process has ended", namespace=child.key.namespace, how=child.end)
            return
        self._context.metrics.count(families.CHILD_PROCESSES_LOST)
        self._died(child.key, time.monotonic() - child.begun_s)
        if not child.killed_for_pod:
            self._ended_on.update(worked_on)
        cache = self._context.resource_cache
        tables = [table for table in map(cache.by_uid, worked_on) if table is not None]
        _log.warning(
            "a child process was lost",
            namespace=child.key.namespace,
            how=child.end,
            resources=len(child.runs),
            tables={table.name: self._ended_on[table.uid] for table in tables},
            small_jobs=[f"{of.kind}/{of.name}" for of in map(cache.by_uid, services.at_work) if of],
        )
        for table in tables:
            self._move(table)  # perhaps to a child of its own

    async def _release_later(self, locks: set[tuple[str, str, str]]) -> None:
        """Release what a child that has ended has locked, unless another one has taken it over."""
        await asyncio.sleep(LOCKS_S)
        for held in list(locks):
            await self._release(partial(self._context.locks.release, *held))

    async def _release(self, call: Callable[[], None]) -> None:
        """Call the lock store until it has answered, or the operator ends, with which all that it
        holds expires."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._threads, call)
            except LocksUnavailable as error:
                _log.warning("not released yet", problem=str(error))
                if self._closed:
                    return None
            await asyncio.sleep(_LOCKS_PAUSE_S)

    async def _report(self, uid: str, reason: Reason, message: str) -> None:
        """Say in the status of a table why no process controls it."""
        context = self._context
        body = context.resource_cache.body(uid)
        if body is None or not context.may_write():
            return
        generation, now_ms = generation_of(body), context.clock.now_ms()
        conditions = not_ready(reason, message, generation, now_ms)
        status = compose(None, conditions, generation, (), ()).manifest()
        fields = {key: status[key] for key in ("phase", "observedGeneration", "conditions")}
        try:
            await context.api.patch_status(path(*key_of(body)), fields, uid=uid)
        except ApiError as error:
            _log.warning("status not written", uid=uid, problem=str(error))

    def _died(self, key: TenantKey, lived_s: float) -> None:
        deaths = self._deaths.setdefault(key, _Deaths())
        deaths.count = 1 if lived_s > _GOOD_S else deaths.count + 1
        deaths.last_s = time.monotonic()

    # Watching them

    async def watch(self) -> None:
        """End idle children, and kill those that do not answer, and the largest one when memory
        runs short, until cancelled."""
        pinged_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._context.may_write():
                for child in self.living():
                    child.kill("another operator leads")
            self._end_idle()
            self._end_isolation()
            await self._kill_largest()
            if time.monotonic() - pinged_s >= _PING_S:
                pinged_s = time.monotonic()
                for child in self.living():
                    _keep(self._serving, child.ping(), "ping")

    def _end_idle(self) -> None:
        now_s = time.monotonic()
        for child in self.living():
            if child.runs:
                continue
            if child in self._retired:
                child.close("it has left what it controlled")
            elif now_s - child.idle_since_s >= IDLE_S:
                del self._children[child.key]
                child.close("it was idle")

    def _end_isolation(self) -> None:
        """A table whose own child lives on goes back to the others."""
        for child in self.living():
            uid = child.key.alone
            if uid in self._ended_on and time.monotonic() - child.begun_s > _GOOD_S:
                del self._ended_on[uid]
                table = self._context.resource_cache.by_uid(uid)
                if table is not None:
                    self._move(table)

    async def _kill_largest(self) -> None:
        living = self.living()
        if not living or await asyncio.to_thread(self._pod.share) < _FULL:
            return
        sizes = await asyncio.to_thread(lambda: [child.memory for child in living])
        used = Counter[str]()
        for child, size in zip(living, sizes, strict=True):
            used[child.key.namespace] += size
        # Many small ones of one namespace must not end those of others.
        largest, _ = max(
            zip(living, sizes, strict=True), key=lambda each: (used[each[0].key.namespace], each[1])
        )
        largest.killed_for_pod = True
        largest.kill("it was the largest process when the pod's memory ran short")

    def prepare(self) -> None:
        """Begin the template, so that the first child need not wait for it."""
        from multiprocessing.forkserver import ensure_running

        ensure_running()

    async def close(self) -> None:
        """End all of them: another operator takes over what they do."""
        self._closed = True
        for task in self._releasing:
            task.cancel()
        self._kill_all()
        await asyncio.gather(*self._beginning.values(), return_exceptions=True)
        self._kill_all()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for pool in (self._threads, self._job_threads):
            pool.shutdown(wait=False, cancel_futures=True)

    def _kill_all(self) -> None:
        for child in self.living():
            child.kill("the operator has ended")
