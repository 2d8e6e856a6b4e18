"""The children of one operator: begun when a tenant has something to control, ended when it has
nothing, and killed when they do not answer or the pod's memory runs short.

A process can be killed, a thread cannot; and the system bounds a process's memory, which no
arithmetic of ours can. What a child was doing is taken over by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import Signals
from typing import Final
from zlib import crc32

import structlog
from kopf import DaemonStoppingReason

from tandem.errors import InvalidSpec, LocksUnavailable, Reason
from tandem.kube.children import child as child_process
from tandem.kube.children import sessions
from tandem.kube.children.at_work import AtWork
from tandem.kube.children.child import ChildSettings, RunEnd
from tandem.kube.children.link import LONGEST_OF_CHILD, TASK, LinkEnded
from tandem.kube.children.services import ChildServices
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
from tandem.kube.runtime.context import OperatorContext, StopSignal
from tandem.kube.runtime.leader import LockMembers
from tandem.kube.runtime.tenants import Tenant, environment
from tandem.kube.runtime.threads import too_large
from tandem.kube.tables.status import compose, not_ready
from tandem.spark.runtime.control import alive
from tandem.spec.common import OPERATIONS
from tandem.storage.paths import canonical_location

_log = structlog.get_logger("tandem.kube.children")
ANSWER_S: Final = 60.0
"""How long a child's loop may take to answer: it computes nothing itself."""
IDLE_S: Final = 60.0
STORES: Final = 8
"""So many children the tables of one Secret have at most, by their stores."""
_LOOK_S: Final = 1.0
_PING_S: Final = 10.0
_FULL: Final = 0.9
"""At this share of the pod's memory limit the largest child is killed: a pod that exceeds its limit
is killed as a whole."""
_TEMPLATE: Final = "tandem.kube.children.template"
_END_S: Final = 5.0
_UNKNOWN: Final = 255
"""The exit code of a process of which it is not known how, or even whether, it ended: the fork
server, which is its parent, has ended."""
_PAUSES_S: Final = (0.0, 0.5, 2.0, 5.0, 15.0, 60.0)
"""The pauses before a tenant's next child, after so many that ended by themselves."""
_GOOD_S: Final = 300.0
"""A child that lived for so long has done no harm to its next one."""
_SUSPECT: Final = 2
"""A table on which so many children worked as they ended has a child to itself."""
LOCKS_S: Final = 30.0
"""So long the locks of a child that has ended wait for the one that takes its operations over: an
operation, or its table, may be gone."""
_LOCKS_PAUSE_S: Final = 2.0
"""Between two tries of a lock store that does not answer."""
_MOVES: Final = DaemonStoppingReason.OPERATOR_EXITING
"""To a child, it is as if the operator ended: the next one takes over what it leaves."""


class ChildEnded(Exception):
    """The child has ended; the message says how."""


@dataclass(frozen=True, slots=True)
class PodMemory:
    """The memory of the container that we run in: version 2 of cgroups, without what the kernel
    gives back when it is needed."""

    root: Path = Path("/sys/fs/cgroup")

    def share(self) -> float:
        """Of its limit, how much is used; 0 without a limit."""
        try:
            limit = (self.root / "memory.max").read_text(encoding="ascii").strip()
            used = int((self.root / "memory.current").read_text(encoding="ascii"))
            stat = (self.root / "memory.stat").read_text(encoding="ascii")
        except (OSError, ValueError):
            return 0.0
        if not limit.isdecimal():
            return 0.0
        cached = sum(
            int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")
        )
        return (used - cached) / int(limit)


@dataclass(frozen=True, slots=True)
class TenantKey:
    """Whose child it is: a namespace, an account, and the name of a Secret; "" for none. `store`:
    tables of one store have the same number, so that one that hangs holds up no other. `alone`: the
    uid of a table that has a child to itself."""

    namespace: str
    account: str = ""
    secret: str = ""
    store: int = 0
    alone: str = ""


def tenant_of(table: Body | None, namespace: str) -> TenantKey:
    """The tenant of a LakeTable; without one, that of its namespace. Pure."""
    storage = {} if table is None else spec_of(table).get("storage") or {}
    secret = (storage.get("secretRef") or {}).get("name") or ""
    scheme, _, rest = ("" if table is None else str(spec_of(table)["location"])).partition("://")
    options = sorted((storage.get("options") or {}).items())
    where = "" if scheme == "file" or not rest else repr((scheme, rest.split("/")[0], options))
    return TenantKey(
        namespace,
        str(storage.get("serviceAccountName") or ""),
        str(secret),
        crc32(where.encode()) % STORES,
    )


def _is_deleted(stopped: StopSignal) -> bool:
    return stopped.reason is not None and DaemonStoppingReason.RESOURCE_DELETED in stopped.reason


class ChildProcess:
    """A child as the operator sees it. To be used on the operator's loop."""

    def __init__(
        self,
        key: TenantKey,
        process: ForkServerProcess,
        services: ChildServices,
        at_work: AtWork,
        folder: Path | None = None,
    ) -> None:
        self.key = key
        self.folder = folder
        self.at_work = at_work
        self.services = services
        self.runs: dict[str, asyncio.Future[bool]] = {}
        """By the uids of resources: what is set when their controllers have ended."""
        self.begun_s = time.monotonic()
        self.idle_since_s = time.monotonic()
        self.end = ""
        """How it ended; "" while it lives."""
        self.spared = False
        """Whether it was ended for what others did, too."""
        self.pid = process.pid or 0
        self._process = process
        self._killed_for = ""
        self._numbers = itertools.count()
        self._by_number: dict[int, asyncio.Future[bool]] = {}
        services.on_done = self._done

    @property
    def small_jobs(self) -> int:
        return len(self.services.at_work)

    @property
    def memory(self) -> int:
        """Bytes that it and what it has started have for themselves: what a kill gives back. 0 if
        it has ended."""
        return sessions.private_bytes(self.pid)

    async def run(self, kind: str, uid: str, *, on_spark: bool) -> bool:
        """Have it control a resource, until that is over (False) or left to the next one (True).
        Raises: ChildEnded; RuntimeError if the controller failed, which is a bug."""
        if self.end:
            raise ChildEnded(self.end)
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.runs[uid] = over
        number = next(self._numbers)
        self._by_number[number] = over
        self.services.link.tell("run", number, kind, uid, on_spark)
        try:
            return await over
        except asyncio.CancelledError:
            self.services.link.tell("leave", uid)
            raise
        finally:
            self.runs.pop(uid, None)
            del self._by_number[number]
            self.services.forget(uid)
            self.idle_since_s = time.monotonic()

    async def clean_up(self, body: Body) -> bool:
        """Have it cancel what a resource left. Whether that is done. Raises: ChildEnded."""
        if self.end:
            raise ChildEnded(self.end)
        uid = uid_of(body)
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.runs[uid] = over
        try:
            return bool(await self.services.link.ask("clean_up", body))
        except LinkEnded:
            return await over
        finally:
            self.runs.pop(uid, None)
            self.idle_since_s = time.monotonic()

    def kill(self, why: str) -> None:
        if self.end:
            return
        self._killed_for = self._killed_for or why
        self._process.kill()
        sessions.kill(self.pid)

    def close(self, why: str) -> None:
        """Let it end: it controls nothing."""
        self._killed_for = self._killed_for or why
        self.services.link.close()

    async def serve(self) -> None:
        """Answer it until it has ended."""
        if problem := await self.services.link.serve():
            self.kill(problem)
        await asyncio.to_thread(self._reap)
        self.end = self._killed_for or _how(self._process.exitcode)
        with contextlib.suppress(ValueError):  # it still runs
            # Else its descriptors would stay until garbage is collected.
            self._process.close()
        self.services.close()
        for over in self.runs.values():
            if not over.done():
                over.set_exception(ChildEnded(self.end))

    async def answers(self) -> bool:
        """Whether it answers in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.services.link.ask("ping")
        except TimeoutError:
            return False
        except LinkEnded:
            return True
        return True

    def _reap(self) -> None:
        self._process.join(_END_S)
        if self._process.is_alive() or self._lives_unseen:
            self.kill("it did not end")
            self._process.join(_END_S)
        # A JVM ends by itself, and removes its files.
        sessions.end(self.pid, _END_S)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _lives_unseen(self) -> bool:
        """Whether it lives although it counts as ended, since the fork server has ended."""
        return not self.end and self._process.exitcode == _UNKNOWN and alive(self.pid)

    def _done(self, number: int, how: str) -> None:
        over = self._by_number.get(number)
        if over is None or over.done():
            return
        if how == RunEnd.FAILED:
            over.set_exception(RuntimeError("its controller failed, see the log"))
        else:
            over.set_result(how == RunEnd.LEFT)


def _how(code: int | None) -> str:
    if code is None or code == _UNKNOWN:
        return "its process ended"
    if code < 0:
        signals = {number.value: number.name for number in Signals}  # some have no name
        return f"its process was killed by {signals.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}"


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
        self._deaths: dict[TenantKey, _Deaths] = {}
        self._killers: Counter[str] = Counter()
        """How many children ended while they worked on a table, by its uid."""
        self._locations: dict[str, set[str]] = defaultdict(set)
        """By namespaces: where their tables are, or were since this operator began."""
        self._unsuited: set[str] = set()
        self._event_contexts: dict[str, contextvars.Context] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._letting_go: set[asyncio.Task[None]] = set()
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
            child.services.link.tell("put", asdict(summary), body)
        if summary.kind == TABLE_KIND and body is not None:
            with contextlib.suppress(InvalidSpec):
                location = canonical_location(str(spec_of(body).get("location", "")))
                self._locations[summary.namespace].add(location)
            self._move(summary)

    def remove(self, uid: str, namespace: str) -> None:
        """A resource is gone."""
        self._unsuited.discard(uid)
        self._killers.pop(uid, None)
        for child in self._of_namespace(namespace):
            child.services.link.tell("remove", uid)

    def clear(self) -> None:
        """All resources are about to be listed again."""
        for child in self.living():
            child.services.link.tell("clear")

    async def run(self, body: Body, stopped: StopSignal) -> None:
        """Have a resource controlled until that is over, or `stopped`. To be called in the context
        of a kopf handler, in which events about it are posted."""
        kind, namespace, name = key_of(body)
        uid = uid_of(body)
        self._event_contexts[uid] = contextvars.copy_context()
        self._context.active_operations.add(uid)
        stopping = asyncio.create_task(self._pass_stop(uid, stopped), name="mind the stop")
        try:
            while not stopping.done() and self._context.may_write():
                try:
                    tenant = self._tenant(body)
                    child = await self._child(tenant, stopping)
                    if child is None or stopping.done():
                        break
                    if self._tenant(body) != tenant:
                        continue  # it has moved meanwhile
                    if not await child.run(kind, uid, on_spark=uid in self._unsuited):
                        return
                except ChildEnded as error:
                    _log.warning(
                        "its process has ended",
                        kind=kind,
                        namespace=namespace,
                        name=name,
                        how=str(error),
                    )
            if kind in OPERATIONS and _is_deleted(stopped):
                # No controller has cancelled it.
                await self._clean_up(self._context.resource_cache.body(uid) or body)
        finally:
            stopping.cancel()
            self._event_contexts.pop(uid, None)
            self._context.active_operations.discard(uid)

    async def clean_up(self, body: Body) -> None:
        """Cancel what a resource left that was deleted while no operator ran."""
        uid = uid_of(body)
        self._event_contexts[uid] = contextvars.copy_context()
        self._context.active_operations.add(uid)
        try:
            await self._clean_up(body)
        finally:
            self._event_contexts.pop(uid, None)
            self._context.active_operations.discard(uid)

    async def _clean_up(self, body: Body) -> None:
        while (child := await self._child(self._tenant(body), None)) is not None:
            with contextlib.suppress(ChildEnded):
                if await child.clean_up(body):
                    self._context.cancelled.add(uid_of(body))
                return

    async def _pass_stop(self, uid: str, stopped: StopSignal) -> None:
        await stopped.wait()
        reason = stopped.reason
        for child in self.living():
            if uid in child.runs:
                child.services.link.tell("stop", uid, 0 if reason is None else reason.value)

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
        if self._killers[table.uid] >= _SUSPECT:
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
                child.services.link.tell("stop", uid, _MOVES.value)

    def _retire(self, child: ChildProcess) -> None:
        """End it as soon as it has left what it controls to the next one, at no cost."""
        if self._children.get(child.key) is child:
            self._retired.add(self._children.pop(child.key))
            for uid in child.runs:
                child.services.link.tell("stop", uid, _MOVES.value)

    async def _child(
        self, key: TenantKey, stopping: asyncio.Task[None] | None
    ) -> ChildProcess | None:
        """The tenant's child; None if meanwhile there is nothing left to do. Raises: ChildEnded."""
        while not (self._closed or (stopping is not None and stopping.done())):
            child = self._children.get(key)
            if child is not None and not child.end:
                return child
            beginning = self._beginning.get(key)
            if beginning is None and (left_s := self._pause_left_s(key)) > 0:
                if stopping is None:
                    await asyncio.sleep(left_s)
                else:
                    await asyncio.wait({stopping}, timeout=left_s)
                continue
            if beginning is None:
                beginning = asyncio.create_task(self._begin(key), name=f"{TASK}begin")
                self._beginning[key] = beginning
                beginning.add_done_callback(lambda _: self._beginning.pop(key, None))
            # One who waits for it may be cancelled: others wait, too, and nothing is half begun.
            return await asyncio.shield(beginning)
        return None

    def _pause_left_s(self, key: TenantKey) -> float:
        deaths = self._deaths.get(key, _Deaths())
        pause_s = _PAUSES_S[min(deaths.count, len(_PAUSES_S) - 1)]
        return deaths.last_s + pause_s - time.monotonic()

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

        def start() -> tuple[ForkServerProcess, socket.socket, AtWork]:
            members.join()
            try:
                return started()
            except BaseException:
                with contextlib.suppress(LocksUnavailable):
                    members.leave()
                raise

        def started() -> tuple[ForkServerProcess, socket.socket, AtWork]:
            ours, theirs = socket.socketpair()
            try:
                if folder is not None:
                    folder.mkdir(mode=0o700)
                process = self._forks.Process(
                    target=child_process.main,
                    args=(theirs, settings, environment(tenant, self._own)),
                    name=f"tandem-{key.namespace}",
                    daemon=True,
                )
                process.start()
                return process, ours, AtWork.shared(ours)
            except BaseException:
                ours.close()
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            finally:
                theirs.close()

        loop = asyncio.get_running_loop()
        try:
            process, own, at_work = await loop.run_in_executor(self._threads, start)
        except (OSError, EOFError, RuntimeError, LocksUnavailable) as error:
            self._died(key, 0.0)
            raise ChildEnded(f"no process could be begun: {error}") from error
        services = ChildServices(
            context,
            tenant,
            key.secret,
            self._threads,
            self._job_threads,
            self._event_contexts.get,
            self._locations[key.namespace],
        )
        await services.link.connect(own, LONGEST_OF_CHILD)
        child = ChildProcess(key, process, services, at_work, folder)
        services.on_harmed = lambda: self._retire(child)
        serving = asyncio.create_task(self._serve(child, members), name=f"{TASK}serve")
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        context.metrics.child_processes_started.count()
        self._children[key] = child
        cache = context.resource_cache
        for uid in [each.uid for each in cache.all() if each.namespace == key.namespace]:
            summary = cache.by_uid(uid)  # as it is now: a later one may have been put before
            if summary is not None:
                services.link.tell("put", asdict(summary), cache.body(uid))
                # After each of them: fifty may be more than it may leave unread.
                await services.link.drain()
        return child

    async def _serve(self, child: ChildProcess, members: LockMembers) -> None:
        await child.serve()
        services = child.services
        self._unsuited |= services.unsuited | services.at_work
        if services.at_work:
            self._context.metrics.small_jobs_lost.add(len(services.at_work))
        if self._children.get(child.key) is child:
            del self._children[child.key]
        self._retired.discard(child)
        tables = child.at_work.tables()
        child.at_work.close()
        if child.runs:
            self._context.metrics.child_processes_lost.count()
            self._died(child.key, time.monotonic() - child.begun_s)
            if not child.spared:
                self._killers.update(tables)
            for uid in tables:
                table = self._context.resource_cache.by_uid(uid)
                _log.warning(
                    "its process ended while it worked on a table",
                    namespace=child.key.namespace,
                    table="" if table is None else table.name,
                    times=self._killers[uid],
                    how=child.end,
                )
                if table is not None:
                    self._move(table)  # perhaps to a child of its own
        if child.runs and child.key.alone:
            await self._tell_too_large(child)
        # Only now may another one take its attempts over.
        await self._release(members.leave)
        if services.locks and not self._closed:
            task = asyncio.create_task(self._let_go(services.locks), name=f"{TASK}let go")
            self._letting_go.add(task)
            task.add_done_callback(self._letting_go.discard)

    async def _let_go(self, locks: set[tuple[str, str, str]]) -> None:
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

    async def _tell_too_large(self, child: ChildProcess) -> None:
        """A table ends every process that works on it: say so in its status, since none of them
        lives for long enough."""
        context, uid = self._context, child.key.alone
        body = context.resource_cache.body(uid)
        if body is None or not context.may_write():
            return
        message = too_large(f"{self._killers[uid]} of them ended so far, the last one: {child.end}")
        generation, now_ms = generation_of(body), context.clock.now_ms()
        conditions = not_ready(Reason.TOO_LARGE, message, generation, now_ms)
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
        asked_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._context.may_write():
                for child in self.living():
                    child.kill("another operator leads")
            self._end_idle()
            self._forgive()
            await self._relieve()
            if time.monotonic() - asked_s >= _PING_S:
                asked_s = time.monotonic()
                for child in self.living():
                    task = asyncio.create_task(self._ask(child), name=f"{TASK}ping")
                    self._serving.add(task)
                    task.add_done_callback(self._serving.discard)

    async def _ask(self, child: ChildProcess) -> None:
        if not await child.answers():
            child.kill(f"it did not answer within {ANSWER_S:g} s")

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

    def _forgive(self) -> None:
        """A table whose own child lives on goes back to the others."""
        for child in self.living():
            uid = child.key.alone
            if uid in self._killers and time.monotonic() - child.begun_s > _GOOD_S:
                del self._killers[uid]
                table = self._context.resource_cache.by_uid(uid)
                if table is not None:
                    self._move(table)

    async def _relieve(self) -> None:
        living = self.living()
        if not living or await asyncio.to_thread(self._pod.share) < _FULL:
            return
        sizes = await asyncio.to_thread(lambda: [child.memory for child in living])
        largest = living[sizes.index(max(sizes))]
        _log.warning("killed a child", namespace=largest.key.namespace, why="memory")
        largest.spared = True
        largest.kill("it was the largest process when the pod's memory ran short")

    def prepare(self) -> None:
        """Begin the template, so that the first child need not wait for it."""
        from multiprocessing.forkserver import ensure_running

        ensure_running()

    async def close(self) -> None:
        """End all of them: another operator takes over what they do."""
        self._closed = True
        for task in self._letting_go:
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
