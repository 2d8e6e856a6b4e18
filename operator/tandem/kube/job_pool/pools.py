"""The pools of one operator: finds the one for a job or makes it, reads what it says of the job,
and removes what is left over. Keeps no state that a restart needs: jobs are found in ConfigMaps.

A pool is a ConfigMap, which owns the application of its name.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, Final, TypeVar

import structlog

from tandem.errors import ClusterUnavailable, JobRefused
from tandem.jobs.pool.formats import POOL_APP, PoolConfig, PooledJob, arguments
from tandem.jobs.pool.records import (
    Patch,
    PoolRecord,
    ask_to_stop,
    close,
    forget,
    new_record,
    post,
    record_of,
)
from tandem.jobs.pool.rules import AVOIDED_S, PoolRules, choose, digest_of, is_left_over
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.kube.client.api import (
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ResourcePath,
)
from tandem.kube.controllers.operation.spark_jobs import (
    ApplicationCache,
    ApplicationRunner,
    call_on,
)
from tandem.spark.application.port import ApplicationBuilder, JobOwner, JobPlacement
from tandem.spark.runtime.session import SHORT_JOB_BYTES
from tandem.spec.labels import JOB_POOL_LABEL

T = TypeVar("T")

_log = structlog.get_logger("tandem.kube.job_pool")
_CONFIG_MAPS: Final = ResourcePath("", "v1", "configmaps")
_SECRETS: Final = ResourcePath("", "v1", "secrets")
_FRESH_S: Final = 0.3
"""For how long a record that was read answers the polls of all jobs."""
_TRIES: Final = 3
_ANY: Final = "tandem-pool"
LIVE: Final = frozenset({JobPhase.STARTING, JobPhase.RUNNING})
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5)


class PoolsUnusable(Exception):
    """No pool can be used for now: jobs have applications of their own."""


class JobPools:
    """Thread-safe; never to be called on the event loop's own thread."""

    def __init__(
        self,
        api: Api,
        loop: asyncio.AbstractEventLoop,
        builder: ApplicationBuilder,
        applications: ApplicationCache,
        rules: PoolRules,
    ) -> None:
        self.rules = rules
        self._api, self._loop = api, loop
        self._builder, self._applications = builder, applications
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        """One for each digest: two jobs at once do not make two pools."""
        self._avoided: dict[str, float] = {}
        self._runners: dict[tuple[str, str], ApplicationRunner] = {}
        self._read: dict[tuple[str, str], tuple[float, PoolRecord | None]] = {}

    def find(self, namespace: str, job: str) -> str:
        """The pool that a job was posted to; "" for none. Raises: ClusterUnavailable."""
        for pool in self._list(namespace, JOB_POOL_LABEL):
            if job in pool.jobs or job in pool.ended:
                return pool.name
        return ""

    def place(self, request: JobRequest, placement: JobPlacement) -> str:
        """Post a job, unless it was posted; the name of its pool.

        Raises: PoolsUnusable, JobRefused, InvalidSpec, ClusterUnavailable.
        """
        namespace = placement.namespace
        there = self._list(namespace, JOB_POOL_LABEL)
        for pool in there:
            if request.name in pool.jobs:
                return pool.name
        digest = self._digest(request, placement)
        if time.monotonic() < self._avoided.get(digest, 0.0):
            raise PoolsUnusable("a pool of this kind has failed")
        job = PooledJob(
            app=request.app,
            location=request.location,
            spec=request.spec_path,
            posted_ms=time.time_ns() // 1_000_000,
        )
        with self._digest_lock(digest):
            for _ in range(_TRIES):
                same = self._list(namespace, f"{JOB_POOL_LABEL}={digest}")
                alive = {
                    pool.name for pool in same if pool.is_open and self._is_alive(namespace, pool)
                }
                pool = choose(same, alive) or self._make(digest, request, placement)
                if self._patch(namespace, pool.name, post(request.name, job)):
                    self._sweep(namespace, [each for each in there if each.name != pool.name])
                    return pool.name
        raise PoolsUnusable("pools close as fast as they are found")

    def record(self, namespace: str, pool: str, *, fresh: bool = False) -> PoolRecord | None:
        """What a pool's ConfigMap says; None if it does not exist. Raises: ClusterUnavailable."""
        key, now = (namespace, pool), time.monotonic()
        with self._lock:
            at, known = self._read.get(key, (-_FRESH_S, None))
        if not fresh and now - at < _FRESH_S:
            return known
        found = self._call(self._get(namespace, pool))
        with self._lock:
            if found is None:
                self._read.pop(key, None)
                self._runners.pop(key, None)
            else:
                self._read[key] = (now, found)
        return found

    def application(self, namespace: str, pool: PoolRecord) -> JobStatus:
        """The status of a pool's application. Raises: ClusterUnavailable."""
        status = self._runner(namespace, pool).status(pool.name)
        if status.phase is JobPhase.FAILED:
            self._avoid(pool)
        return status

    def stop(self, namespace: str, pool: str, job: str, limit_s: float) -> None:
        """End a job and forget it; wait until it has ended, at most this long. Raises:
        ClusterUnavailable."""
        record = self.record(namespace, pool, fresh=True)
        if record is None:
            return
        if (
            job in record.unfinished
            and self.application(namespace, record).phase is JobPhase.RUNNING
        ):
            self._patch(namespace, pool, ask_to_stop(job))
            if not self._await_end(namespace, record, job, limit_s):
                _log.warning("not gone in time", job=job, pool=pool, seconds=limit_s)
        self._call(self._merge(namespace, pool, forget(job)))
        self._remove_if_stuck(namespace, pool)

    def _await_end(self, namespace: str, pool: PoolRecord, job: str, limit_s: float) -> bool:
        until, tries = time.monotonic() + limit_s, 0
        while time.monotonic() < until:
            found = self.record(namespace, pool.name, fresh=True)
            if found is None or job not in found.unfinished:
                return True
            if self.application(namespace, pool).phase not in LIVE:
                return True
            time.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1
        return False

    def _remove_if_stuck(self, namespace: str, name: str) -> None:
        """Remove a pool that waits for its start and has no jobs: it would hold up the next."""
        record = self.record(namespace, name, fresh=True)
        if record is None or record.jobs or not record.is_open:
            return
        status = self.application(namespace, record)
        hangs = status.reason is not None and status.phase in (JobPhase.STARTING, JobPhase.FAILED)
        # Not one that another job was posted to meanwhile.
        if hangs and self._patch(namespace, name, close(record.version)):
            _log.warning("pool removed", pool=name, reason=status.reason, problem=status.message)
            self._runner(namespace, record).stop(name)
            self._call(self._delete(namespace, record))

    # Making

    def _digest(self, request: JobRequest, placement: JobPlacement) -> str:
        """All that the application of a pool depends on, and the version of its Secret: what is
        different has another pool."""
        body = self._application(_ANY, "", request, placement, "")
        version = ""
        if placement.secret_name is not None:
            try:
                path = _SECRETS.at(placement.namespace, placement.secret_name)
                secret = self._call(self._api.get(path))
            except ApiError as error:
                raise PoolsUnusable(f"secret {placement.secret_name}: {error.message}") from error
            version = secret["metadata"]["uid"] + secret["metadata"]["resourceVersion"]
        return digest_of(placement.namespace, version, json.dumps(body, sort_keys=True))

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
        asked = JobRequest(
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
        return self._builder.build_pool(asked, placed)

    def _make(self, digest: str, request: JobRequest, placement: JobPlacement) -> PoolRecord:
        namespace, name = placement.namespace, f"tandem-pool-{digest}-{token_hex(4)}"
        body = new_record(namespace, name, digest)
        try:
            made = self._call(self._api.create(_CONFIG_MAPS.at(namespace), body))
        except (Forbidden, Invalid) as error:
            _log.warning("no pool", namespace=namespace, problem=error.message)
            raise PoolsUnusable(error.message) from error
        pool = record_of(made)
        try:
            application = self._application(name, pool.uid, request, placement, digest)
            self._runner(namespace, pool).create(application)
        except JobRefused:
            self._call(self._delete(namespace, pool))
            raise
        _log.info("pool created", namespace=namespace, pool=name)
        return pool

    def _sweep(self, namespace: str, pools: list[PoolRecord]) -> None:
        """Delete ConfigMaps whose application no longer exists. What fails is done next time."""
        for pool in pools:
            if not is_left_over(_age_s(pool), has_application=False):
                continue
            with suppress(ClusterUnavailable):
                status = self._runner(namespace, pool).status(pool.name)
                if status.phase is JobPhase.UNKNOWN:
                    self._call(self._delete(namespace, pool))

    def _is_alive(self, namespace: str, pool: PoolRecord) -> bool:
        return self.application(namespace, pool).phase in LIVE

    def _avoid(self, pool: PoolRecord) -> None:
        digest = pool.name.removeprefix(f"{_ANY}-").rpartition("-")[0]
        self._avoided[digest] = time.monotonic() + AVOIDED_S

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

    @contextmanager
    def _digest_lock(self, digest: str) -> Iterator[None]:
        with self._lock:
            making = self._making.setdefault(digest, threading.Lock())
        with making:
            yield

    # Calls

    def _list(self, namespace: str, labels: str) -> list[PoolRecord]:
        try:
            found = self._call(self._api.list(_CONFIG_MAPS.at(namespace), labels=labels))
        except Forbidden as error:
            _log.warning("no pools", namespace=namespace, problem=error.message)
            raise PoolsUnusable(error.message) from error
        return [record_of(body) for body in found["items"]]

    async def _get(self, namespace: str, name: str) -> PoolRecord | None:
        try:
            return record_of(await self._api.get(_CONFIG_MAPS.at(namespace, name)))
        except NotFound:
            return None

    def _patch(self, namespace: str, name: str, patch: Patch) -> bool:
        """False if a test of the patch fails, or the ConfigMap is gone."""
        try:
            self._call(self._api.patch(_CONFIG_MAPS.at(namespace, name), patch))
        except (Invalid, Conflict, NotFound):
            return False
        return True

    async def _merge(self, namespace: str, name: str, patch: Json) -> None:
        with suppress(NotFound):
            await self._api.patch(_CONFIG_MAPS.at(namespace, name), patch)

    async def _delete(self, namespace: str, pool: PoolRecord) -> None:
        with suppress(NotFound, Conflict):
            await self._api.delete(_CONFIG_MAPS.at(namespace, pool.name), uid=pool.uid)

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Raises: ClusterUnavailable; refusals as they are."""
        try:
            return call_on(self._loop, call)
        except (Forbidden, Invalid, Conflict, NotFound):
            raise
        except ApiError as error:
            raise ClusterUnavailable("the Kubernetes API did not answer", found=error) from error


def _age_s(pool: PoolRecord) -> float:
    if not pool.created:
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(pool.created)).total_seconds()
