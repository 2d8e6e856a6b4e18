"""The driver of a job pool: follows its ConfigMap, does what its ledger says, reports the ends.

It ends by itself: without jobs for a while, after its last job once it takes no more, or if its
ConfigMap is deleted. A job whose end was not reported is found by its result, or is lost as that of
any driver that dies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tandem.errors import AccessDenied, TandemError
from tandem.jobs.pool import (
    KUBECONFIG_VARIABLE,
    Action,
    Begin,
    Close,
    End,
    Ledger,
    Patch,
    PoolConfig,
    PooledEnd,
    PooledJob,
    Refuse,
    ReportStopped,
    Withdraw,
    change_nothing,
    close,
    read_config,
    record_of,
    refuse,
    report_begun,
    report_end,
)
from tandem.json_types import Json
from tandem.kube.client.api import (
    SYNCED,
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ResourcePath,
    follow,
)
from tandem.spark.launch.pooled import Outcome, PooledJobs
from tandem.spark.runtime.control import watch_parent

CONFIG_MAPS: Final = ResourcePath("", "v1", "configmaps")
LOOK_S: Final = 1.0
"""How often the ledger takes a step if nothing happens."""
LOOK_AGAIN_S: Final = 15.0
"""How often the ConfigMap is read beside the watch, which may be refused or fail."""
_REPORT_S: Final = 60.0
"""How long the last reports may take at the end."""
_PAUSE_S: Final = 1.0


class JobThreads(Protocol):
    """What does the jobs; `tandem.spark.launch.pooled.PooledJobs`."""

    def begin(
        self, name: str, job: PooledJob, slot: int, on_end: Callable[[Outcome], None], /
    ) -> None: ...

    def withdraw(self, name: str, /) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """The main function of `spark_apps/job_pool.py`. Exit codes: 0 if no job was left, else 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", action="append", required=True, metavar="PIECE")
    found = parser.parse_args(arguments)
    watch_parent()
    kubeconfig = os.environ.get(KUBECONFIG_VARIABLE)
    try:
        config = read_config(found.request)
        jobs = PooledJobs(config)
        jobs.open()
        try:
            drained = asyncio.run(_serve(config, jobs, Path(kubeconfig) if kubeconfig else None))
        finally:
            jobs.close()
    except TandemError as error:
        sys.stderr.write(f"tandem: {error}\n")
        return 1
    return 0 if drained else 1


async def _serve(config: PoolConfig, jobs: JobThreads, kubeconfig: Path | None) -> bool:
    async with Api.from_kubeconfig(kubeconfig, user_agent="tandem-job-pool") as api:
        return await PoolDriver(config, api, jobs).run()


class PoolDriver:
    """To be used in one event loop."""

    def __init__(self, config: PoolConfig, api: Api, jobs: JobThreads) -> None:
        self._config = config
        self._api = api
        self._jobs = jobs
        self._path = CONFIG_MAPS.at(config.namespace, config.name)
        self._loop = asyncio.get_running_loop()
        self._ledger = Ledger(config, self._loop.time())
        self._wake = asyncio.Event()
        self._version = -1
        self._uid = ""
        self._is_gone = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        """Serve; True if all jobs have ended. Raises: AccessDenied if its ConfigMap cannot be
        read."""
        await self._begin()
        looking = [
            asyncio.create_task(_reported(work), name=name)
            for name, work in (("watch", self._watch), ("look", self._look_now_and_then))
        ]
        try:
            while True:
                self._wake.clear()
                for action in self._ledger.step(self._loop.time()):
                    if isinstance(action, End):
                        await self._await_reports()
                        return action.drained
                    self._act(action)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
        finally:
            for task in (*looking, *self._tasks):
                task.cancel()
            await asyncio.gather(*looking, *self._tasks, return_exceptions=True)

    async def _begin(self) -> None:
        """Read it, and make sure that it can be changed: by a patch that changes nothing. A driver
        that cannot report would do jobs for nothing, and never end."""
        try:
            self._see(await self._api.get(self._path))
            await self._api.patch(self._path, change_nothing(self._config.name))
        except NotFound:
            self._vanished()
        except Forbidden as error:
            raise AccessDenied(
                "the pool's account may not read its jobs, or not report on them",
                resource=f"ConfigMap/{self._config.name}",
                found=error.message,
                expected="get, list, watch and patch on configmaps",
                remedy="Bind the rules of examples/cluster/rbac-job-pools.yaml in this namespace",
            ) from error

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                self._see(await self._api.get(self._path))
            except NotFound:
                self._vanished()
            except ApiError as error:
                _say(f"the API server: {error}")
            self._wake.set()

    async def _watch(self) -> None:
        is_there = False
        fields = f"metadata.name={self._config.name}"
        async for kind, body in follow(self._api, CONFIG_MAPS.at(self._config.namespace),
                                       fields=fields):  # fmt: skip
            if kind == SYNCED:
                if not is_there:
                    self._vanished()
            elif kind == "DELETED":
                self._vanished()
            else:
                is_there = True
                self._see(body)
            self._wake.set()

    def _see(self, body: Json) -> None:
        """Take over a version of the ConfigMap: answers of calls and events of the watch come
        in any order. Another one that took its name is not that of this pool."""
        metadata = body["metadata"]
        self._uid = self._uid or metadata["uid"]
        if self._is_gone or metadata["uid"] != self._uid:
            self._vanished()
            return
        text = str(metadata.get("resourceVersion", ""))
        version = int(text) if text.isdecimal() else self._version
        if version >= self._version:
            self._version = version
            self._ledger.see(record_of(body))

    def _vanished(self) -> None:
        """For good, whatever answer comes late."""
        self._is_gone = True
        self._ledger.see(None)

    def _act(self, action: Action) -> None:
        match action:
            case Begin(name, job, slot):
                _say(f"{name}: {job.app} begins in slot {slot}")
                self._jobs.begin(name, job, slot, lambda outcome: self._on_end(name, job, outcome))
                self._patch(report_begun(name, job))
            case Withdraw(name):
                _say(f"{name} is withdrawn")
                self._spawn(lambda: asyncio.to_thread(self._jobs.withdraw, name))
            case ReportStopped(name, job):
                end = PooledEnd(code=1, message="it was withdrawn before it began")
                self._patch(report_end(name, job, end))
            case Refuse(name):
                end = PooledEnd(code=1, message="it is written by another version of Tandem")
                self._patch(refuse(name, end))
            case Close(version):
                self._patch(close(version), again=False)

    def _on_end(self, name: str, job: PooledJob, outcome: Outcome) -> None:
        """In the thread of the job, perhaps when the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended, name, job, outcome)

    def _ended(self, name: str, job: PooledJob, outcome: Outcome) -> None:
        _say(f"{name} ended with exit code {outcome.end.code}")
        self._ledger.ended(name, self._loop.time(), taints=outcome.taints)
        self._patch(report_end(name, job, outcome.end))
        self._wake.set()

    def _patch(self, patch: Patch, *, again: bool = True) -> None:
        self._spawn(lambda: self._patched(patch, again))

    async def _patched(self, patch: Patch, again: bool) -> None:
        """Patch the ConfigMap, until it is done or is no longer wanted: a test of it fails then."""
        while True:
            try:
                self._see(await self._api.patch(self._path, patch))
            except NotFound:
                self._vanished()
            except (Invalid, Conflict):
                pass
            except ApiError as error:
                _say(f"the API server: {error}")
                if again:
                    await asyncio.sleep(_PAUSE_S)
                    continue
            self._wake.set()
            return

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(_reported(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_reports(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_REPORT_S)


async def _reported(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`work` begins with this: one that is cancelled before leaves no coroutine behind."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - of one action; the others go on
        _say(f"{type(error).__name__}: {error}")


def _say(text: str) -> None:
    sys.stderr.write(f"tandem pool: {text}\n")
    sys.stderr.flush()
