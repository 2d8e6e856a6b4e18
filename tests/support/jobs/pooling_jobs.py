"""`HeldJobs` that also run job pools: the real driver in a thread, without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.cluster.operator_thread import HeldJobs
from support.jobs.quick_jobs import drive
from support.waiting import LIMIT_S
from tandem.errors import TandemError
from tandem.jobs.pool import (
    KUBECONFIG_VARIABLE,
    POOL_APP,
    PoolConfig,
    PooledEnd,
    PooledJob,
    read_config,
)
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.client.api import Api
from tandem.kube.job_pool.driver import PoolDriver
from tandem.spark.launch.pooled import Outcome, PooledControl
from tandem.spark.runtime.control import open_job, recorded


@dataclass
class QuickPooledJobs:
    """Does the jobs of one pool. While `open` is not set, they wait."""

    config: PoolConfig
    open: threading.Event
    begun: list[str] = field(default_factory=list)
    withdrawn: dict[str, threading.Event] = field(default_factory=dict)

    def begin(
        self, name: str, job: PooledJob, _slot: int, on_end: Callable[[Outcome], None]
    ) -> None:
        self.begun.append(name)
        withdrawn = self.withdrawn[name] = threading.Event()

        def work() -> None:
            while not (self.open.wait(0.02) or withdrawn.is_set()):
                pass
            on_end(self._do(job, withdrawn))

        threading.Thread(target=work, name=name, daemon=True).start()

    def withdraw(self, name: str) -> None:
        self.withdrawn[name].set()

    def _do(self, job: PooledJob, withdrawn: threading.Event) -> Outcome:
        if withdrawn.is_set():
            return Outcome(PooledEnd(code=1, message="withdrawn"))
        options = dict(self.config.storage_options)
        try:
            opened = open_job(job.location, job.spec, options, self.config.allowed)
        except TandemError as error:
            return Outcome(PooledEnd(code=1, message=str(error)))
        control = PooledControl(opened.spec, opened.store, withdrawn)
        failure = recorded(lambda control: drive(control, withdrawn), control)
        return Outcome(PooledEnd(code=0 if failure is None else 1, message=str(failure or "")))


class _Pool:
    def __init__(self, request: JobRequest, opened: threading.Event) -> None:
        self.config = read_config(request.request)
        self.jobs = QuickPooledJobs(self.config, opened)
        self.status = JobStatus(JobPhase.RUNNING)
        self._kubeconfig = Path(dict(request.environ)[KUBECONFIG_VARIABLE])
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[bool] | None = None
        self.thread = threading.Thread(target=self._run, name=request.name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        async def serve() -> bool:
            async with Api.from_kubeconfig(self._kubeconfig) as api:
                self._task = asyncio.ensure_future(PoolDriver(self.config, api, self.jobs).run())
                return await self._task

        try:
            drained = self._loop.run_until_complete(serve())
            code = "" if drained else "ended with exit code 1"
            phase = JobPhase.ENDED if drained else JobPhase.FAILED
            self.status = JobStatus(phase, code)
        except (asyncio.CancelledError, TandemError) as error:
            self.status = JobStatus(JobPhase.FAILED, f"ended with exit code 1: {error}")
        finally:
            self._loop.close()

    def kill(self) -> None:
        """As if its pod were gone."""
        if self.thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.thread.join(LIMIT_S)


class PoolingJobs(HeldJobs):
    """Attributes:
    pools: the pools that were started, in their order.
    opened: jobs of pools wait until it is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pools: dict[str, _Pool] = {}
        self.opened = threading.Event()
        self.opened.set()

    @property
    def pooled(self) -> list[str]:
        """The jobs that pools have begun."""
        return [name for pool in self.pools.values() for name in pool.jobs.begun]

    def start(self, request: JobRequest) -> None:
        if request.app != POOL_APP:
            super().start(request)
        elif request.name not in self.pools:
            self.pools[request.name] = _Pool(request, self.opened)

    def status(self, name: str) -> JobStatus:
        pool = self.pools.get(name)
        return super().status(name) if pool is None else pool.status

    def stop(self, name: str) -> None:
        pool = self.pools.get(name)
        if pool is None:
            super().stop(name)
        else:
            pool.kill()

    def close(self) -> None:
        self.opened.set()
        for pool in self.pools.values():
            pool.kill()
