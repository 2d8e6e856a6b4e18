"""`tandem dev`: stands in for a Spark operator, on a laptop or in CI.

Watches the same `SparkApplication` objects, runs them by a `JobRunner` (local Spark by default),
and writes the states that Kubeflow's controller writes.
Everything else is as in a cluster.

There are no pods. A job's process is a child of this one and ends with it; an annotation has the
path of its log. Only one `tandem dev` may serve a namespace: each treats running applications that
it did not start as orphans, as the Spark operator treats those whose driver vanished.

Must not depend on operations or tables: all of its input is in the application.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tandem.errors import AccessDenied, ClusterUnavailable, SparkMissing, TandemError
from tandem.jobs.runner import JobPhase, JobRunner, JobStatus
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
    Unavailable,
    follow,
)
from tandem.kube.client.resources import version_number, version_of
from tandem.kube.dev.request import (
    InvalidApplication,
    endpoint_of,
    mounted,
    request_of,
    secrets_of,
    serves,
)
from tandem.spark.application import port as states
from tandem.spark.application.port import FINISHED, driver_pod_name, state_of
from tandem.spark.local_spark import LocalRunner
from tandem.spec.common import ENDPOINT_ANNOTATION, LOG_ANNOTATION, MANAGED_BY

# One SparkApplication under `tandem dev`: a state machine like that of Kubeflow's controller.
#
# States, their order and their names are those of v2.5.1
# (`internal/controller/sparkapplication/controller.go`). Each state has one method, which does the
# work of the state and returns the next one. The new state is written to the API server before its
# work begins.


T = TypeVar("T")

APPLICATIONS = ResourcePath("sparkoperator.k8s.io", "v1beta2", "sparkapplications")

_log = structlog.get_logger("tandem.kube.dev.controller")
_MERGE = "application/merge-patch+json"
_PAUSE_S = 1.0
"""Between two tries of a write while the API server is unavailable."""
_START_S = 5.0
"""How long an application that is deleted while its process starts waits for that."""
_RENEW_S = 10.0
"""How often the credentials of a running job are read again, if they are a file."""
_LOOKS = 20
"""For a Secret that is not there yet, within `_START_S`."""
_ORPHANED = frozenset({states.SUBMITTED, states.RUNNING, states.UNKNOWN})


class JobHost:
    """Where jobs run: how many at once, and how often they are polled."""

    def __init__(self, api: Api, runner: JobRunner, max_jobs: int, poll_s: float) -> None:
        self.api = api
        self.runner = runner
        self.poll_s = poll_s
        self.slots = asyncio.Semaphore(max_jobs)
        # A runner may block in any of its methods; each job at most in two at once.
        self._threads = ThreadPoolExecutor(2 * max_jobs + 4, "tandem-dev")

    async def blocking(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, call, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _ApplicationGone(Exception):
    """The application was deleted, or another one has its name."""


class ApplicationController:
    """One application, from state to state. Cancelled when it is deleted."""

    def __init__(self, host: JobHost, body: Json) -> None:
        self._host = host
        self._body = body
        self._changed = asyncio.Event()
        metadata = body["metadata"]
        self._uid: str = metadata["uid"]
        self._path = APPLICATIONS.at(metadata["namespace"], metadata["name"])
        self._log = _log.bind(application=f"{metadata['namespace']}/{metadata['name']}")
        self._attempts = int((body.get("status") or {}).get("executionAttempts") or 0)
        self._submissions = int((body.get("status") or {}).get("submissionAttempts") or 0)
        self._start: asyncio.Future[None] | None = None
        self._started = ""
        self._folder: Path | None = None
        """The Secrets that it mounts, as files."""
        self._slot = False
        self._seen = version_number(version_of(body))
        self._submitted: Json | None = None

    @property
    def key(self) -> str:
        """The job's name for the runner: another object of this name, or another run of this
        one, is another job."""
        return f"{self._path.name}-{self._uid[:8]}-{self._attempts}"

    def see(self, body: Json) -> None:
        """Take over the object of a watch event, which may be older than the response to our last
        write."""
        self._seen = version_number(version_of(body))
        if self._seen >= version_number(version_of(self._body)):
            self._body = body
        self._changed.set()

    async def serve(self) -> None:
        try:
            await self._serve()
        except _ApplicationGone:
            self._log.info("gone")
            await self._wait_for_deletion()
        except ApiError as error:
            self._log.error("cannot be served", problem=str(error))
        finally:
            # Also when we are cancelled: no job must be left running.
            await asyncio.shield(self._end_job())
        # Our successor for this object must not take a late event of our writes for its state.
        while self._seen < version_number(version_of(self._body)):
            await self._pause(None)

    async def _wait_for_deletion(self) -> None:
        """Wait until the watch reports the deletion, too, and we are cancelled."""
        while True:
            await self._pause(None)

    async def _serve(self) -> None:
        steps = {
            states.NEW: self._submit,
            states.RESUMING: self._submit,
            states.PENDING_RERUN: self._submit,
            states.SUBMITTED: self._launch,
            states.RUNNING: self._watch_job,
            states.SUCCEEDING: self._complete,
            states.FAILING: self._fail,
            states.SUBMISSION_FAILED: self._fail,
            states.INVALIDATING: self._rerun,
            states.SUSPENDING: self._suspend,
            states.SUSPENDED: self._resume,
        }
        state = state_of(self._body)
        if state in _ORPHANED:
            state = await self._write(
                states.FAILING, "driver pod not found", terminationTime=_now_text()
            )
        while state in steps:
            if self._suspended() and state not in (states.SUSPENDING, states.SUSPENDED):
                state = await self._write(states.SUSPENDING)
            elif self._changed_spec() and state in (states.SUBMITTED, states.RUNNING):
                # A change of a running application makes it run again.
                state = await self._write(states.INVALIDATING)
            state = await steps[state]()
            self._log.info("state", state=state)
        await self._expire()

    # One method per state; each returns the next state

    async def _submit(self) -> str:
        self._submissions += 1
        self._submitted = _immutable_spec(self._body)
        submission: Json = {
            "submissionID": str(uuid.uuid4()),
            "lastSubmissionAttemptTime": _now_text(),
            "submissionAttempts": self._submissions,
            "driverInfo": {"podName": f"{self._path.name}-driver"},
            "terminationTime": None,
        }
        try:
            request_of(self._body, self.key, {})
        except InvalidApplication as error:
            return await self._write(
                states.SUBMISSION_FAILED,
                f"failed to submit spark application: failed to run spark-submit: {error}",
                **submission,
            )
        self._attempts += 1
        return await self._write(states.SUBMITTED, executionAttempts=self._attempts, **submission)

    async def _launch(self) -> str:
        """Start the job, which takes time as with a pod that waits for a node and pulls its
        image."""
        await self._host.slots.acquire()
        self._slot = True
        if self._suspended() or self._changed_spec():
            return states.SUBMITTED
        try:
            environ = await secrets_of(self._host.api, self._body)
            environ |= await self._mount()
            request = request_of(self._body, self.key, environ)
            self._started = self.key
            self._start = asyncio.ensure_future(
                self._host.blocking(self._host.runner.start, request)
            )
            await asyncio.shield(self._start)
        except (InvalidApplication, TandemError) as error:
            # The Spark operator's message for a driver that was never created.
            self._log.warning("driver did not start", problem=str(error))
            return await self._write(
                states.FAILING, f"driver container failed: {error}", terminationTime=_now_text()
            )
        status = await self._host.blocking(self._host.runner.status, self.key)
        annotations = {LOG_ANNOTATION: status.log} if status.log else {}
        if serves(self._body):
            annotations[ENDPOINT_ANNOTATION] = endpoint_of(request)
        if annotations:
            await self._annotate(annotations)
        return await self._write(
            states.RUNNING, sparkApplicationId=f"spark-{self._uid.replace('-', '')}"
        )

    async def _mount(self) -> dict[str, str]:
        """Write what its pod mounts. Waits for what is not there yet, as a kubelet does."""
        self._remove_folder()
        folder = self._folder = Path(tempfile.mkdtemp(prefix="tandem-dev-"))
        for _ in range(_LOOKS):
            with suppress(InvalidApplication):
                return await mounted(self._host.api, self._body, folder)
            await self._pause(_START_S / _LOOKS)
        return await mounted(self._host.api, self._body, folder)

    async def _watch_job(self) -> str:
        loop, due_s = asyncio.get_running_loop(), 0.0
        while not (self._suspended() or self._changed_spec()):
            if self._folder is not None and not serves(self._body) and loop.time() >= due_s:
                due_s = loop.time() + _RENEW_S
                with suppress(InvalidApplication):  # it has the last credentials
                    await mounted(self._host.api, self._body, self._folder)
            status = await self._host.blocking(self._host.runner.status, self.key)
            if status.phase is JobPhase.ENDED:
                await self._end_job()
                return await self._write(states.SUCCEEDING, terminationTime=_now_text())
            if status.phase in (JobPhase.FAILED, JobPhase.UNKNOWN):
                self._log.warning("driver failed", problem=status.message, log=status.log)
                await self._end_job()
                return await self._write(
                    states.FAILING, exit_message(status), terminationTime=_now_text()
                )
            await self._pause(self._host.poll_s)
        return states.RUNNING

    async def _complete(self) -> str:
        if self._restarts_always():
            return await self._rerun_later()
        return await self._write(states.COMPLETED)

    def _restarts_always(self) -> bool:
        policy = (self._body.get("spec") or {}).get("restartPolicy") or {}
        return policy.get("type") == "Always"

    async def _rerun_later(self) -> str:
        """Run it again, after the pause that its policy asks for."""
        policy = (self._body.get("spec") or {}).get("restartPolicy") or {}
        await self._pause(float(policy.get("onFailureRetryInterval") or 0))
        return await self._write(states.PENDING_RERUN, keep_message=True, **_FORGOTTEN)

    async def _fail(self) -> str:
        if self._restarts_always():
            return await self._rerun_later()
        ended = (self._body.get("status") or {}).get("terminationTime")
        return await self._write(
            states.FAILED, keep_message=True, terminationTime=ended or _now_text()
        )

    async def _rerun(self) -> str:
        await self._end_job()
        return await self._write(states.PENDING_RERUN, **_FORGOTTEN)

    async def _suspend(self) -> str:
        await self._end_job()
        return await self._write(states.SUSPENDED, **_FORGOTTEN)

    async def _resume(self) -> str:
        while self._suspended():
            await self._pause(None)
        return await self._write(states.RESUMING)

    async def _expire(self) -> None:
        """Delete the application when the TTL after its end is over."""
        while (limit_s := ttl_s(self._body)) is not None:
            ended = (self._body.get("status") or {}).get("terminationTime")
            if not ended:
                return
            left_s = limit_s - (datetime.now(UTC) - datetime.fromisoformat(ended)).total_seconds()
            if left_s > 0:
                await self._pause(left_s)
                continue
            with suppress(NotFound, Conflict):
                await self._patiently(lambda: self._host.api.delete(self._path, uid=self._uid))
            await self._wait_for_deletion()

    # Shared by the states

    def _suspended(self) -> bool:
        return bool((self._body.get("spec") or {}).get("suspend"))

    def _changed_spec(self) -> bool:
        return self._submitted is not None and self._submitted != _immutable_spec(self._body)

    async def _end_job(self) -> None:
        """Kill the process if there is one, and free its slot."""
        started, self._started = self._started, ""
        if self._start is not None and not self._start.done():
            # A job that has not started cannot be stopped.
            await asyncio.wait([self._start], timeout=_START_S)
        if started:
            await self._host.blocking(self._host.runner.stop, started)
        self._remove_folder()
        if self._slot:
            self._slot = False
            self._host.slots.release()

    async def _pause(self, seconds: float | None) -> None:
        """Wait, at most until the application changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _write(
        self, state: str, message: str = "", *, keep_message: bool = False, **status: Any
    ) -> str:
        application_state: Json = {"state": state}
        if not keep_message:
            application_state["errorMessage"] = message or None
        pod = {"podName": driver_pod_name(self._body)}
        body = {"applicationState": application_state, "driverInfo": pod, **status}
        await self._patch("status", {"status": body})
        return state

    async def _annotate(self, annotations: Mapping[str, str]) -> None:
        await self._patch("", {"metadata": {"annotations": dict(annotations)}})

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _patch(self, subresource: str, patch: Json) -> None:
        """Patch with the uid as a precondition, so that another object of this name is never
        changed."""
        metadata = {**patch.get("metadata", {}), "uid": self._uid}
        body = {**patch, "metadata": metadata}
        try:
            self._body = await self._patiently(
                lambda: self._host.api.request(
                    "PATCH", self._path.url(subresource), body=body, content_type=_MERGE
                )
            )
        except NotFound as error:
            raise _ApplicationGone from error
        except (Conflict, Invalid) as error:
            there = await self._patiently(lambda: self._host.api.get(self._path))
            if there["metadata"]["uid"] != self._uid:
                raise _ApplicationGone from error
            raise

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Retry while the API server is unavailable, without a limit: jobs go on meanwhile."""
        while True:
            try:
                return await call()
            except Unavailable as error:
                self._log.warning("waits for the API server", problem=str(error))
                await asyncio.sleep(_PAUSE_S)


_FORGOTTEN: Mapping[str, Any] = {
    "sparkApplicationId": None,
    "submissionAttempts": 0,
    "executorState": None,
    "terminationTime": None,
}
"""What the Spark operator resets before it runs an application again."""

_EXIT = re.compile(r"exit code (\d+)")
_SIGNAL = re.compile(r"signal (\d+)")


def exit_message(status: JobStatus) -> str:
    """The Spark operator's message for a failed job: `driver container failed with ExitCode: 137,
    Reason: Error`. A process killed by a signal has the exit code that its container would
    have."""
    if status.phase is JobPhase.UNKNOWN:
        return "driver pod not found"
    code, signal = _EXIT.search(status.message), _SIGNAL.search(status.message)
    number = int(code[1]) if code else 128 + int(signal[1]) if signal else 1
    return f"driver container failed with ExitCode: {number}, Reason: Error"


def _immutable_spec(body: Mapping[str, Any]) -> Json:
    """The part of a spec that must not change while the application runs."""
    spec = body.get("spec") or {}
    free = ("suspend", "timeToLiveSeconds")
    return {key: value for key, value in spec.items() if key not in free}


def ttl_s(body: Mapping[str, Any]) -> int | None:
    found: int | None = (body.get("spec") or {}).get("timeToLiveSeconds")
    return found


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class DevSettings:
    """Settings of one `tandem dev`.

    Args:
        namespaces: those served; none: all.
        kubeconfig: None for the pod's service account, or else the one that kubectl would use.
        max_jobs: how many jobs run at once; the others wait, as pods wait for a node.
        every: also serve applications without Tandem's label. Only Tandem's own applications can
            run, so all others then fail.
        poll_s: how often a job's process is polled.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    max_jobs: int = 8
    every: bool = False
    poll_s: float = 0.1


async def run_dev(
    settings: DevSettings,
    runner: JobRunner | None = None,
    stop: asyncio.Event | None = None,
    ready: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set; then end all jobs.

    Args:
        runner: runs the jobs; None for local `spark-submit` processes.
        ready: set once all namespaces are watched.

    Raises:
        SparkMissing: the Spark operator's CRDs are not installed.
        AccessDenied: we may not watch its resources.
        ClusterUnavailable: the API server does not answer at the start; later, calls are retried.
    """
    stop = stop or asyncio.Event()
    local = None
    if runner is None:
        runner = local = LocalRunner()
    async with Api.from_kubeconfig(settings.kubeconfig, user_agent="tandem-dev") as api:
        served = [APPLICATIONS.at(name) for name in settings.namespaces] or [APPLICATIONS]
        for path in served:
            await _check(api, path)
        dev = _Dev(settings, api, runner)
        synced = [asyncio.Event() for _ in served]
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(dev.watch(path, event))
            for path, event in zip(served, synced, strict=True)
        ]
        try:
            for event in synced:
                await event.wait()
            if ready is not None:
                ready.set()
            ending = asyncio.create_task(stop.wait())
            tasks.append(ending)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await dev.close()
            if local is not None:
                await asyncio.to_thread(local.close)


async def _check(api: Api, path: ResourcePath) -> None:
    """Check that the kind is installed and that we may watch it: `follow` would retry for ever."""
    try:
        await api.request("GET", path.url(), query={"limit": "1"})
    except NotFound as error:
        raise SparkMissing(
            "the cluster has no SparkApplication resource",
            found=error.message,
            expected="the CRDs of Kubeflow's Spark operator",
            remedy="Install its CRDs (crds/ of its Helm chart)",
        ) from error
    except Forbidden as error:
        raise AccessDenied(
            "SparkApplications cannot be watched",
            found=error.message,
            remedy="Bind the ClusterRole tandem-dev of examples/cluster/rbac.yaml",
        ) from error
    except Unavailable as error:
        raise ClusterUnavailable("the Kubernetes API does not answer", found=error) from error


class _Dev:
    """All applications that are served."""

    def __init__(self, settings: DevSettings, api: Api, runner: JobRunner) -> None:
        self._labels = "" if settings.every else "=".join(MANAGED_BY)
        self._api = api
        self._host = JobHost(api, runner, settings.max_jobs, settings.poll_s)
        self._served: dict[str, tuple[ApplicationController, asyncio.Task[None]]] = {}

    async def watch(self, path: ResourcePath, synced: asyncio.Event) -> None:
        async for kind, body in follow(self._api, path, labels=self._labels):
            if kind == SYNCED:
                synced.set()
            else:
                self._see(kind, body)

    def _see(self, kind: str, body: Json) -> None:
        uid = body["metadata"]["uid"]
        served = self._served.get(uid)
        if kind == "DELETED" or "deletionTimestamp" in body["metadata"]:
            if served is not None:
                served[1].cancel()
        elif served is not None:
            served[0].see(body)
        elif state_of(body) not in FINISHED or ttl_s(body) is not None:
            application = ApplicationController(self._host, body)
            task = asyncio.create_task(application.serve(), name=application.key)
            self._served[uid] = application, task
            task.add_done_callback(lambda _: self._served.pop(uid, None))

    async def close(self) -> None:
        tasks = [task for _, task in self._served.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._host.close()
