"""The `JobRunner` of an operation whose small jobs are pooled: it passes the others on, and every
job for which there is no pool for now.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from tandem.errors import Reason
from tandem.jobs.pool.rules import LIVE, is_pooled
from tandem.jobs.runner import JobPhase, JobRequest, JobRunner, JobStatus
from tandem.kube.controllers.operation.spark_jobs import STOP_S
from tandem.kube.job_pool.config_maps import PoolsUnusable
from tandem.kube.job_pool.pools import JobPools
from tandem.spark.application.port import JobPlacement

_log = structlog.get_logger("tandem.kube.job_pool")
BEGIN_S: Final = 600.0
"""How long a job may wait in a pool that runs; then it is lost, and gets an application."""


class PooledRunner:
    """Thread-safe as its engine needs it; never to be called on the event loop's own thread.

    Args:
        own: runs jobs as applications of their own.
        placement: of the jobs.
    """

    def __init__(self, own: JobRunner, pools: JobPools, placement: JobPlacement) -> None:
        self._own, self._pools, self._placement = own, pools, placement
        self._pool_of: dict[str, str] = {}
        """The pool of each job that is known; "" for none."""
        self._running_s: dict[str, float] = {}
        """Since when a job was seen to wait in a pool that runs."""

    def start(self, request: JobRequest) -> None:
        """Post the job to a pool, or start it by itself. Raises: as `ApplicationRunner.start`."""
        if is_pooled(request, self._pools.rules) and self._pool_of.get(request.name) != "":
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
        namespace = self._placement.namespace
        record = self._pools.record(namespace, pool)
        if record is None:
            return _lost(f"its pool {pool} was deleted")
        application = self._pools.application(namespace, record)
        if application.phase not in LIVE or name not in record.jobs:
            # What it reported last counts, and what was read may be older than the job.
            record = self._pools.record(namespace, pool, fresh=True) or record
        end = record.ended.get(name)
        if end is not None:
            if not end.code:
                return JobStatus(JobPhase.ENDED, log=application.log)
            return JobStatus(JobPhase.FAILED, end.message, application.log, Reason.JOB_FAILED)
        if name not in record.jobs:
            return _lost(f"it is no longer in its pool {pool}", application.log)
        if application.phase not in LIVE:
            message = f"its pool {pool} has ended: {application.message}"
            reason = application.reason or Reason.JOB_VANISHED
            return JobStatus(JobPhase.FAILED, message, application.log, reason)
        if application.phase is JobPhase.RUNNING and name not in record.begun:
            since = self._running_s.setdefault(name, time.monotonic())
            if time.monotonic() - since > BEGIN_S:
                # It hangs, or has too much to do: either way no place for further jobs.
                self._pools.close(namespace, pool)
                message = f"its pool {pool} did not begin it within {BEGIN_S:g} s"
                return JobStatus(JobPhase.FAILED, message, application.log, Reason.JOB_NOT_STARTED)
            return JobStatus(JobPhase.STARTING, f"waits in the pool {pool}", application.log)
        return application

    def stop(self, name: str) -> None:
        """End the job, and forget it. Raises: ClusterUnavailable."""
        pool = self._where(name)
        if not pool:
            self._own.stop(name)
            return
        self._pools.stop(self._placement.namespace, pool, name, STOP_S)

    def _where(self, name: str) -> str:
        """The pool of a job; "" for none. One that an earlier operator started is looked for."""
        if name not in self._pool_of:
            try:
                self._pool_of[name] = self._pools.find(self._placement.namespace, name)
            except PoolsUnusable:
                self._pool_of[name] = ""
        return self._pool_of[name]


def _lost(message: str, log: str = "") -> JobStatus:
    return JobStatus(JobPhase.FAILED, message, log, Reason.JOB_VANISHED)
