"""The `JobRunner` of an operation whose small jobs are pooled: it passes the others on, and every
job for which there is no pool for now.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from tandem.errors import ClusterUnavailable, Reason
from tandem.jobs.pool import LIVE, START_S, PoolRules, is_pooled
from tandem.jobs.runner import JobPhase, JobRequest, JobRunner, JobStatus
from tandem.kube.controllers.spark_jobs import STOP_S
from tandem.kube.job_pool.config_maps import PoolsUnusable
from tandem.kube.job_pool.pools import JobPools
from tandem.kube.metrics.families import PooledState
from tandem.spark.application.port import JobPlacement

_log = structlog.get_logger("tandem.kube.job_pool")
BEGIN_S: Final = 600.0
"""How long a job may wait in a pool that runs; then it is lost, and gets an application."""
FIND_S: Final = 600.0
"""How long a job that an earlier operator started is looked for while pools cannot be read; then it
is lost. An operator without the rights for pools must not wait for ever for an application that is
gone."""


class PooledRunner:
    """Thread-safe as its engine needs it; never to be called on the event loop's own thread.

    Args:
        own: runs jobs as applications of their own.
        placement: of the jobs.
        rules: which of the table's jobs are pooled.
    """

    def __init__(
        self, own: JobRunner, pools: JobPools, placement: JobPlacement, rules: PoolRules
    ) -> None:
        self._own, self._pools, self._placement = own, pools, placement
        self._rules = rules
        self._pool_of: dict[str, str] = {}
        """The pool of each job that is known; "" for none."""
        self._running_s: dict[str, float] = {}
        """Since when a job was seen to wait in a pool that runs."""
        self._sought_s: dict[str, float] = {}
        """Since when a job is looked for while pools cannot be read."""

    def start(self, request: JobRequest) -> None:
        """Post the job to a pool, or start it by itself. Raises: as `ApplicationRunner.start`."""
        if is_pooled(request, self._rules) and self._pool_of.get(request.name) != "":
            try:
                self._pool_of[request.name] = self._pools.place(request, self._placement)
            except PoolsUnusable as problem:
                _log.info("a job is not pooled", job=request.name, problem=str(problem))
            else:
                return
        self._pool_of[request.name] = ""
        self._own.start(request)

    def status(self, name: str) -> JobStatus:
        """Raises: ClusterUnavailable."""
        pool = self._where(name)
        if not pool:
            return self._own.status(name)
        state, status = self._in_pool(name, pool)
        self._pools.note(name, state)
        return status

    def _in_pool(self, name: str, pool: str) -> tuple[PooledState, JobStatus]:
        namespace = self._placement.namespace
        record = self._pools.record(namespace, pool)
        if record is None:
            return _lost(f"its pool {pool} was deleted")
        application = self._pools.application(namespace, record)
        log = application.log
        if application.phase not in LIVE or name not in record.jobs:
            # What it reported last counts, and what was read may be older than the job.
            record = self._pools.record(namespace, pool, fresh=True) or record
        end = record.ended.get(name)
        if end is not None and not end.code:
            return PooledState.SUCCEEDED, JobStatus(JobPhase.ENDED, log=log)
        if end is not None:
            failed = JobStatus(JobPhase.FAILED, end.message, log, Reason.JOB_FAILED)
            return PooledState.FAILED, failed
        if name not in record.jobs:
            return _lost(f"it is no longer in its pool {pool}", log)
        if application.phase not in LIVE:
            message = f"its pool {pool} has ended: {application.message}"
            return _lost(message, log, application.reason or Reason.JOB_VANISHED)
        if name in record.begun:
            return PooledState.RUNNING, application
        if application.phase is JobPhase.STARTING:
            if not self._pools.is_overdue(namespace, pool):
                return PooledState.WAITING, application
            message = f"its pool {pool} did not start within {START_S:g} s: {application.message}"
        else:
            since = self._running_s.setdefault(name, time.monotonic())
            if time.monotonic() - since <= BEGIN_S:
                waits = JobStatus(JobPhase.STARTING, f"waits in the pool {pool}", log)
                return PooledState.WAITING, waits
            # It hangs, or has too much to do: either way no place for further jobs.
            message = f"its pool {pool} did not begin it within {BEGIN_S:g} s"
        self._pools.close(namespace, pool)
        return _lost(message, log, application.reason or Reason.JOB_NOT_STARTED)

    def stop(self, name: str) -> None:
        """End the job, and forget it. Raises: ClusterUnavailable."""
        pool = self._where(name)
        if not pool:
            self._own.stop(name)
            return
        self._pools.stop(self._placement.namespace, pool, name, STOP_S)

    def _where(self, name: str) -> str:
        """The pool of a job; "" for none. One that an earlier operator started is looked for.
        Raises: ClusterUnavailable."""
        if name not in self._pool_of:
            pool = self._find(name)
            self._pool_of[name] = pool
            if pool:
                self._pools.note(name, PooledState.WAITING)
        return self._pool_of[name]

    def _find(self, name: str) -> str:
        namespace = self._placement.namespace
        try:
            return self._pools.find(namespace, name, again=name in self._sought_s)
        except PoolsUnusable as problem:
            if self._own.status(name).phase is not JobPhase.UNKNOWN:
                return ""
            since = self._sought_s.setdefault(name, time.monotonic())
            if time.monotonic() - since > FIND_S:
                return ""
            # It may run in a pool, and would run twice if it was taken for lost.
            raise ClusterUnavailable(
                "job pools cannot be read, and this job may be in one",
                resource=f"{namespace}/{name}",
                found=problem,
                remedy="Check the operator's rights on ConfigMaps",
            ) from problem


def _lost(
    message: str, log: str = "", reason: Reason = Reason.JOB_VANISHED
) -> tuple[PooledState, JobStatus]:
    return PooledState.LOST, JobStatus(JobPhase.FAILED, message, log, reason)
