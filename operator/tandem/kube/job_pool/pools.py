"""The pools of one operator: finds the one for a job or makes it, reads what it says of the job,
and removes what is left over. Keeps no state that a restart needs: jobs are found in ConfigMaps.

A pool is a ConfigMap, which owns the application of its name.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

import structlog

from tandem.errors import ClusterUnavailable, InvalidSpec, JobRefused
from tandem.jobs.pool import (
    AVOIDED_S,
    LEFT_S,
    LIVE,
    POOL_APP,
    START_S,
    PoolConfig,
    PooledJob,
    PoolRecord,
    PoolRules,
    arguments,
    ask_to_stop,
    choose,
    close,
    digest_of,
    forget,
    is_left_over,
    new_record,
    post,
)
from tandem.jobs.runner import SHORT_JOB_BYTES, JobPhase, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.kube.client.api import Api
from tandem.kube.controllers.spark_jobs import ApplicationCache, ApplicationRunner
from tandem.kube.job_pool.config_maps import ConfigMaps, PoolsUnusable
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.metrics.families import PooledState, PoolEnd
from tandem.spark.application.port import (
    COMPLETED,
    ApplicationBuilder,
    JobOwner,
    JobPlacement,
    state_of,
)
from tandem.spec.labels import JOB_POOL_LABEL
from tandem.turns import locked, waiting

_log = structlog.get_logger("tandem.kube.job_pool")
_FRESH_S: Final = 0.3
"""For how long a record that was read answers the polls of all jobs."""
_TRIES: Final = 3
_LOCKS: Final = 64
_ANY: Final = "tandem-pool"
_Key = tuple[str, str]
"""Namespace and name of a pool."""
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5)


class JobPools:
    """Thread-safe; never to be called on the event loop's own thread."""

    def __init__(
        self,
        api: Api,
        loop: asyncio.AbstractEventLoop,
        builder: ApplicationBuilder,
        applications: ApplicationCache,
        rules: PoolRules,
        metrics: Metrics,
    ) -> None:
        self.rules = rules
        self._api, self._loop = api, loop
        self._maps = ConfigMaps(api, loop)
        self._builder, self._applications = builder, applications
        self._lock = threading.Lock()
        self._making = [threading.Lock() for _ in range(_LOCKS)]
        """By digest: two jobs at once do not make two pools."""
        self._failed: dict[str, float] = {}
        """When each pool was first seen to have failed."""
        self._refused: dict[str, tuple[float, str]] = {}
        """Namespaces in which ConfigMaps cannot be read, since when, and why."""
        self._runners: dict[_Key, ApplicationRunner] = {}
        self._read: dict[_Key, tuple[float, PoolRecord]] = {}
        self._seen: dict[_Key, float] = {}
        """When each pool was first listed. Ages are by our own clock that never jumps, not by the
        difference of two machines' clocks: a live pool is never taken for an old one."""
        self._starting: dict[_Key, float] = {}
        """Since when each pool is known to start."""
        self._not_started: set[_Key] = set()
        self._metrics = metrics
        self._states: dict[str, PooledState] = {}
        """The jobs that are known to wait or to run in pools."""
        applications.on_end = self._count_end

    def find(self, namespace: str, job: str, *, again: bool = False) -> str:
        """The pool that a job was posted to; "" for none. `again`: also if pools lately could not
        be read. Raises: PoolsUnusable, ClusterUnavailable."""
        for pool in self._list_all(namespace, again=again):
            if job in pool.jobs or job in pool.ended:
                return pool.name
        return ""

    def place(self, request: JobRequest, placement: JobPlacement) -> str:
        """Post a job, unless it was posted; the name of its pool.

        Raises: PoolsUnusable, JobRefused, InvalidSpec, ClusterUnavailable.
        """
        namespace = placement.namespace
        there = self._list_all(namespace)
        self._note_listed(namespace, there)
        for pool in there:
            if request.name in pool.jobs:
                return pool.name
        digest = self._digest(request, placement)
        job = PooledJob(
            app=request.app,
            location=request.location,
            spec=request.spec_path,
            posted_ms=time.time_ns() // 1_000_000,
        )
        with locked(self._making[int(digest, 16) % _LOCKS]):
            for _ in range(_TRIES):
                same = self._maps.list(namespace, f"{JOB_POOL_LABEL}={digest}")
                chosen = choose(same, self._alive(namespace, same), self.rules.most_jobs)
                if chosen is None and self._has_failed_lately(digest):
                    raise PoolsUnusable("a pool of this kind has failed")
                pool = chosen or self._make(digest, request, placement)
                if self._maps.patch(namespace, pool.name, post(request.name, job)):
                    self.note(request.name, PooledState.WAITING)
                    self._sweep(namespace, [each for each in there if each.name != pool.name])
                    return pool.name
        raise PoolsUnusable("pools take no job")

    def record(self, namespace: str, pool: str, *, fresh: bool = False) -> PoolRecord | None:
        """What a pool's ConfigMap says; None if it does not exist. Raises: ClusterUnavailable."""
        key, now = (namespace, pool), time.monotonic()
        with self._lock:
            known = self._read.get(key)
        if not fresh and known is not None and now - known[0] < _FRESH_S:
            return known[1]
        found = self._maps.get(namespace, pool)
        if found is None:
            self._drop(namespace, pool)
        else:
            with self._lock:
                self._read[key] = (now, found)
        return found

    def application(self, namespace: str, pool: PoolRecord) -> JobStatus:
        """The status of a pool's application. Raises: ClusterUnavailable."""
        status = self._runner(namespace, pool).status(pool.name)
        key, now = (namespace, pool.name), time.monotonic()
        with self._lock:
            if status.phase is JobPhase.STARTING:
                self._starting.setdefault(key, now)
            else:
                self._starting.pop(key, None)
            if status.phase is JobPhase.FAILED:
                self._failed.setdefault(pool.name, now)
        return status

    def is_overdue(self, namespace: str, name: str) -> bool:
        """Whether a pool that `application` has found to start has done so for too long: its
        driver's pod waits for a node, say."""
        key, now = (namespace, name), time.monotonic()
        with self._lock:
            since = self._starting.get(key)
            if since is None or now - since <= START_S:
                return False
            self._not_started.add(key)
            # One of the same kind would wait as long.
            self._failed.setdefault(name, now)
            return True

    def close(self, namespace: str, name: str) -> None:
        """Post no more jobs to a pool. Raises: ClusterUnavailable."""
        if self._maps.patch(namespace, name, close("")):
            _log.warning("pool closed: it does not begin its jobs", pool=name)

    def note(self, job: str, state: PooledState) -> None:
        """What is known of a job now, for the metrics. Its end is counted once."""
        with self._lock:
            if not state.is_end:
                self._states[job] = state
                return
            known = self._states.pop(job, None)
        if known is not None:
            self._metrics.pooled_jobs_ended.count(state)

    def counts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many pools are `Starting` and `Running`, and how many jobs are `Waiting` and
        `Running`. Without a call."""
        pools = Counter(
            self._builder.classify(each, None).phase.value
            for each in self._applications.all()
            if _is_pool(each)
        )
        with self._lock:
            return pools, Counter(self._states.values())

    def _count_end(self, application: Json, deleted: bool) -> None:
        if not _is_pool(application):
            return
        metadata = application["metadata"]
        key = (metadata["namespace"], metadata["name"])
        with self._lock:
            not_started = key in self._not_started
            self._not_started.discard(key)
        if not_started:
            reason = PoolEnd.NOT_STARTED
        elif deleted:
            reason = PoolEnd.DELETED
        else:
            is_finished = state_of(application) == COMPLETED
            reason = PoolEnd.FINISHED if is_finished else PoolEnd.FAILED
        self._metrics.job_pools_ended.count(reason)

    def stop(self, namespace: str, name: str, job: str, limit_s: float) -> None:
        """End a job and forget it; wait until it has ended, at most this long. Raises:
        ClusterUnavailable."""
        pool = self.record(namespace, name, fresh=True)
        if pool is None:
            self.note(job, PooledState.LOST)
            return
        # What the application's status says may be older than the job.
        may_run = job in pool.unfinished and (
            job in pool.begun or self.application(namespace, pool).phase is JobPhase.RUNNING
        )
        if may_run:
            self._maps.patch(namespace, name, ask_to_stop(job))
            if not self._await_end(namespace, pool, job, limit_s):
                _log.warning("not gone in time", job=job, pool=name, seconds=limit_s)
            pool = self.record(namespace, name) or pool
        end = pool.ended.get(job)
        if end is not None and not end.code:
            self.note(job, PooledState.SUCCEEDED)
        else:
            failed = end is not None and not may_run
            self.note(job, PooledState.FAILED if failed else PooledState.STOPPED)
        self._maps.patch(namespace, name, forget(job))
        self._remove_if_stuck(namespace, name)

    def _await_end(self, namespace: str, pool: PoolRecord, job: str, limit_s: float) -> bool:
        until, tries = time.monotonic() + limit_s, 0
        while time.monotonic() < until:
            found = self.record(namespace, pool.name, fresh=True)
            if found is None or job not in found.unfinished:
                return True
            if self.application(namespace, pool).phase not in LIVE:
                return True
            with waiting():
                time.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1
        return False

    def _remove_if_stuck(self, namespace: str, name: str) -> None:
        """Remove a pool that cannot start and has no jobs: it would hold up the next ones."""
        pool = self.record(namespace, name, fresh=True)
        if pool is None or pool.jobs:
            return
        status = self.application(namespace, pool)
        there = self._applications.get(namespace, name)
        is_stuck = status.reason is not None or self.is_overdue(namespace, name)
        if not is_stuck or there is None or self._builder.finished(there):
            return  # the application of one that has ended has its log
        # Not one that another job was posted to meanwhile.
        if self._maps.patch(namespace, name, close(pool.version)):
            _log.warning("pool removed", pool=name, reason=status.reason, problem=status.message)
            self._runner(namespace, pool).stop(name)
            self._delete(namespace, pool)

    def _digest(self, request: JobRequest, placement: JobPlacement) -> str:
        """All that the application of a pool depends on, and the version of its Secret: what is
        different has another pool."""
        body = self._application(_ANY, "", request, placement, "")
        namespace, secret = placement.namespace, placement.secret_name
        version = "" if secret is None else self._maps.secret_version(namespace, secret)
        return digest_of(namespace, version, json.dumps(body, sort_keys=True))

    def _application(
        self, name: str, uid: str, request: JobRequest, placement: JobPlacement, digest: str
    ) -> Json:
        config = PoolConfig(
            namespace=placement.namespace,
            name=name,
            slots=self.rules.slots,
            most_jobs=self.rules.most_jobs,
            idle_s=self.rules.idle_s,
            storage_options=dict(request.storage_options),
            allowed=request.allowed_locations,
        )
        wanted = JobRequest(
            name,
            POOL_APP,
            "",
            "",
            # It lives long enough for the optimizing compiler; one task: no executors for it.
            input_bytes=SHORT_JOB_BYTES,
            tasks=1,
            request=arguments(config),
        )
        owner = JobOwner("v1", "ConfigMap", name, uid)
        placed = replace(placement, owner=owner, labels={JOB_POOL_LABEL: digest})
        return self._builder.build_pool(wanted, placed)

    def _make(self, digest: str, request: JobRequest, placement: JobPlacement) -> PoolRecord:
        namespace, name = placement.namespace, f"{_ANY}-{digest}-{token_hex(4)}"
        pool = self._maps.create(namespace, new_record(namespace, name, digest))
        try:
            application = self._application(name, pool.uid, request, placement, digest)
            self._runner(namespace, pool).create(application)
        except (JobRefused, InvalidSpec):
            self._delete(namespace, pool)
            raise
        self._metrics.job_pools_started.count()
        _log.info("pool created", namespace=namespace, pool=name)
        return pool

    def _list_all(self, namespace: str, *, again: bool = False) -> list[PoolRecord]:
        """Raises: PoolsUnusable; at once if they lately were, unless `again`."""
        with self._lock:
            refused = self._refused.get(namespace)
        lately = refused is not None and time.monotonic() - refused[0] < AVOIDED_S
        if refused is not None and lately and not again:
            raise PoolsUnusable(refused[1])
        try:
            found = self._maps.list(namespace, JOB_POOL_LABEL)
        except PoolsUnusable as problem:
            if not lately:
                _log.warning("no pools", namespace=namespace, problem=str(problem))
                with self._lock:
                    self._refused[namespace] = time.monotonic(), str(problem)
            raise
        with self._lock:
            self._refused.pop(namespace, None)
        return found

    def _alive(self, namespace: str, pools: list[PoolRecord]) -> set[str]:
        """The names of the open ones that may still do a job; the others are closed."""
        alive = set()
        for pool in pools:
            if not pool.is_open:
                continue
            phase = self.application(namespace, pool).phase
            if phase in LIVE and not self.is_overdue(namespace, pool.name):
                alive.add(pool.name)
            else:
                self._maps.patch(namespace, pool.name, close(""))
        return alive

    def _has_failed_lately(self, digest: str) -> bool:
        now = time.monotonic()
        with self._lock:
            self._failed = {name: at for name, at in self._failed.items() if now - at < AVOIDED_S}
            return any(name.startswith(f"{_ANY}-{digest}-") for name in self._failed)

    def _note_listed(self, namespace: str, pools: Collection[PoolRecord]) -> None:
        """Since when each is there; forget those that no longer are."""
        names, now = {pool.name for pool in pools}, time.monotonic()
        with self._lock:
            for name in names:
                self._seen.setdefault((namespace, name), now)
            gone = [key for key in self._seen if key[0] == namespace and key[1] not in names]
        for key in gone:
            self._drop(*key)

    def _sweep(self, namespace: str, pools: list[PoolRecord]) -> None:
        """Delete ConfigMaps whose application no longer exists, or does not end. What fails is done
        next time."""
        for pool in pools:
            age_s = self._age_s(namespace, pool)
            # The label alone does not make it ours.
            if age_s <= LEFT_S or not pool.name.startswith(f"{_ANY}-"):
                continue
            with suppress(ClusterUnavailable):
                status = self._runner(namespace, pool).status(pool.name)
                if is_left_over(age_s, status.phase):
                    self._delete(namespace, pool)

    def _delete(self, namespace: str, pool: PoolRecord) -> None:
        self._maps.delete(namespace, pool)
        self._drop(namespace, pool.name)

    def _drop(self, namespace: str, name: str) -> None:
        with self._lock:
            for known in (self._read, self._runners, self._seen, self._starting):
                known.pop((namespace, name), None)

    def _age_s(self, namespace: str, pool: PoolRecord) -> float:
        with self._lock:
            now = time.monotonic()
            return now - self._seen.get((namespace, pool.name), now)

    def _runner(self, namespace: str, pool: PoolRecord) -> ApplicationRunner:
        with self._lock:
            found = self._runners.get((namespace, pool.name))
            if found is None:
                owner = JobOwner("v1", "ConfigMap", pool.name, pool.uid)
                found = self._runners[namespace, pool.name] = ApplicationRunner(
                    api=self._api,
                    loop=self._loop,
                    builder=self._builder,
                    placement=JobPlacement(owner, namespace),
                    applications=self._applications,
                )
            return found


def _is_pool(application: Mapping[str, Any]) -> bool:
    metadata = application["metadata"]
    owners = metadata.get("ownerReferences") or []
    return metadata["name"].startswith(f"{_ANY}-") and any(
        owner.get("kind") == "ConfigMap" for owner in owners
    )
