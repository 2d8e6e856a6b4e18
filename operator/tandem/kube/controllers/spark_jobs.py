"""Runs jobs as SparkApplications: the engine's `JobRunner` in a cluster.

One `ApplicationRunner` per operation. The engine calls it from its own threads, and it runs the
calls on the event loop. An application is created once and never patched: the Spark operator
would run it again. Its status is read from the cache that a watch feeds, so a poll costs no call;
the driver's pod is read only to find the cause of a failure.

The builder (`tandem.spark.application.manifest`) knows the Spark operator in use: what is created,
watched and classified. Only `tandem.kube.dev`, which stands in for that operator, and the support
bundle (`tandem.cli.kubectl.report`) name its kinds as well.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import structlog

from tandem.errors import (
    AlreadyRunning,
    ClusterUnavailable,
    InvalidSpec,
    JobRefused,
    Reason,
)
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.kube.client.api import (
    Api,
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ResourcePath,
)
from tandem.spark.application.port import FINISHED, ApplicationBuilder, JobPlacement, state_of
from tandem.spec.common import ENDPOINT_ANNOTATION, LOG_ANNOTATION, MANAGED_BY
from tandem.storage.renewable import CREDENTIALS_FILE, VARIABLES, Vended

T = TypeVar("T")

_log = structlog.get_logger("tandem.kube.controllers.spark_jobs")
CALL_S = 180.0
"""Longer than a call's own time limit, so that a waiting thread always gets an answer."""
STOP_S = 60.0
"""How long `stop` waits until the pods are gone: more than a pod's grace period."""
CREATE_S = 5.0
"""How long the creation of an application is tried at once. The operation waits for what lasts."""
POD_S = 5.0
"""The driver's pod is read at most this often, and first when a start takes this long."""
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
_LIVE = frozenset({"Pending", "Running", "Unknown"})


class ApplicationCache:
    """The latest version of each application that a watch has reported, trimmed. Thread-safe.

    Of those that have ended only the last ones are kept: the others are rarely needed, and are
    read from the API server then.
    """

    def __init__(self, *, ended: int = 1_000) -> None:
        self._known: dict[tuple[str, str], Json] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._keep = ended
        self._lock = threading.Lock()

    def observe(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """Handle a watch event: `ADDED`, `MODIFIED`, `DELETED`, or None for an object of the
        initial list."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        is_deleted = kind == "DELETED"
        with self._lock:
            known = self._known.get(key)
            is_same = known is not None and known["metadata"]["uid"] == metadata["uid"]
            if is_deleted:
                # The event of an earlier object of that name may come late.
                if is_same:
                    self._drop(key)
            elif known is None or _newer(metadata, known["metadata"]):
                self._drop(key)
                self._known[key] = trimmed(body)
                if state_of(body) in FINISHED:
                    self._ended[key] = None
                if len(self._ended) > self._keep:
                    self._drop(next(iter(self._ended)))

    def get(self, namespace: str, name: str) -> Json | None:
        with self._lock:
            return self._known.get((namespace, name))

    def forget(self, namespace: str, name: str) -> None:
        """A call has found the object gone before the watch reported it."""
        key = (namespace, name)
        with self._lock:
            self._drop(key)

    def keep(self, namespace: str | None, uids: Collection[str]) -> None:
        """Forget those of a namespace (None: of all) that a list does not have: no watch has
        reported their deletion. One that was made after it is read again."""
        with self._lock:
            for key, body in tuple(self._known.items()):
                if namespace in (None, key[0]) and body["metadata"]["uid"] not in uids:
                    self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._known.pop(key, None)
        self._ended.pop(key, None)

    def __len__(self) -> int:
        return len(self._known)


def trimmed(body: Mapping[str, Any]) -> Json:
    """What status and ownership need of an application: a tenth of its size."""
    metadata, status = body["metadata"], body.get("status") or {}
    kept: Json = {
        key: metadata[key]
        for key in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            "ownerReferences",
        )
        if key in metadata
    }
    annotations = metadata.get("annotations") or {}
    found = {k: annotations[k] for k in (LOG_ANNOTATION, ENDPOINT_ANNOTATION) if annotations.get(k)}
    if found:
        kept["annotations"] = found
    return {
        "metadata": kept,
        "status": {
            key: status[key]
            for key in ("applicationState", "driverInfo", "terminationTime")
            if key in status
        },
    }


def _newer(found: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether it is another object, or a version at least as new: responses of calls and watch
    events may arrive in any order."""
    if found["uid"] != known["uid"]:
        return True
    versions = [str(item.get("resourceVersion", "")) for item in (found, known)]
    if not all(version.isdecimal() for version in versions):
        return True
    return int(versions[0]) >= int(versions[1])


class ApplicationRunner:
    """A `RenewingRunner` whose jobs are SparkApplications. Thread-safe; never to be called on the
    event loop's own thread.

    Args:
        api, loop: the client, and the loop that it belongs to.
        builder: the Spark operator's side.
        placement: of the jobs; they are deleted with its owner.
        applications: fed by a watch of the builder's resource.
    """

    def __init__(
        self,
        *,
        api: Api,
        loop: asyncio.AbstractEventLoop,
        builder: ApplicationBuilder,
        placement: JobPlacement,
        applications: ApplicationCache,
        stop_s: float = STOP_S,
    ) -> None:
        self._api = api
        self._loop = loop
        self._builder = builder
        self._placement = placement
        self._owner = placement.owner
        self._namespace = placement.namespace
        self._cache = applications
        self._stop_s = stop_s
        group, version, plural = builder.resource
        self._path = ResourcePath(group, version, plural, self._namespace)
        # When the driver's pod was last read, and the status that resulted.
        self._pods: dict[tuple[str, JobPhase], tuple[float, JobStatus]] = {}

    # JobRunner

    def start(self, request: JobRequest) -> None:
        """Create the application, or adopt our own that exists already.

        Raises:
            InvalidSpec: the template sets a field that is reserved for Tandem, or the API server
                refuses the object.
            AlreadyRunning: an application of that name belongs to another resource.
            JobRefused: the API server does not take it for now (rights, a quota, a webhook, the
                kind is not installed).
            ClusterUnavailable: no answer; try again.
        """
        _require_vended(request.vended, request.name)
        self._call(self._create(self._builder.build(request, self._placement)))
        if request.environ:
            # It belongs to the application. Pods wait for what they mount.
            self.renew(request.name, request.vended)

    def renew(self, name: str, vended: Vended) -> None:
        """Raises: InvalidSpec, as `start`; ClusterUnavailable."""
        _require_vended(vended, name)
        self._call(self._put_secret(name, vended))

    def status(self, name: str) -> JobStatus:
        """Raises: ClusterUnavailable."""
        found = self._cache.get(self._namespace, name)
        if found is None:
            found = self._call(self._read(name))
        if found is not None and not self._is_ours(found):
            found = None  # the name belongs to another object: ours does not exist
        if found is None or not self._builder.needs_pod(found):
            return self._builder.classify(found, None)
        return self._with_pod(name, found)

    def _with_pod(self, name: str, found: Json) -> JobStatus:
        """The job's status with what the driver's pod adds. The pod is read seldom while the
        driver starts, and always before a failure is reported."""
        without = self._builder.classify(found, None)
        key, now_s = (name, without.phase), time.monotonic()
        first_s = now_s if without.phase is JobPhase.STARTING else -POD_S
        at_s, last = self._pods.setdefault(key, (first_s, without))
        if now_s - at_s < POD_S:
            return last
        pod = self._call(self._pod(self._builder.driver_pod(found)))
        status = self._builder.classify(found, pod, now_ms=time.time_ns() // 1_000_000)
        self._pods[key] = (now_s, status)
        return status

    def stop(self, name: str) -> None:
        """Delete the application, and wait until its pods are gone, at most `stop_s`: files that
        a pod writes later are not in any listing. An application that has ended stays, for its
        driver's log.

        Raises: ClusterUnavailable.
        """
        self._call(self._stop(name), self._stop_s + CALL_S)

    # On the loop

    async def _put_secret(self, name: str, vended: Vended) -> None:
        """Create or renew the Secret of an application of ours, which is deleted with it."""
        found = await self._read(name)
        if found is None or not self._is_ours(found):
            return
        group, version, _ = self._builder.resource
        uid = found["metadata"]["uid"]
        owner = {"apiVersion": f"{group}/{version}", "kind": "SparkApplication", "name": name}
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {MANAGED_BY[0]: MANAGED_BY[1]},
            "ownerReferences": [{**owner, "uid": uid}],
        }
        data = {CREDENTIALS_FILE: base64.b64encode(vended.encode()).decode()}
        path = ResourcePath("", "v1", "secrets", self._namespace)
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        try:
            await self._api.create(path, body, patience_s=CREATE_S)
        except Conflict:
            # No other one of this name is changed.
            ours = {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": uid}
            new = {"op": "replace", "path": "/data", "value": data}
            await self._api.patch(path.at(self._namespace, name), [ours, new])

    async def _create(self, body: Json) -> None:
        name = body["metadata"]["name"]
        path = self._path.at(self._namespace, name)
        for pause in self._pauses():
            try:
                made = await self._api.create(self._path, body, patience_s=CREATE_S)
                self._cache.observe(None, made)
                return
            except Conflict:
                found = await self._read(name)
            except ApiError as error:
                found = await self._made_after_all(name, error)
                if found is None:
                    raise _refused(error) from error
            if found is None:
                continue  # gone between the two calls
            if "deletionTimestamp" not in found["metadata"]:
                self._adopt(found)
                return
            # An earlier one that is on its way out.
            await asyncio.sleep(pause)
        raise ClusterUnavailable(
            "an earlier SparkApplication of this name still exists",
            resource=f"{self._namespace}/{path.name}",
            expected=f"its deletion within {self._stop_s:g} s",
        )

    async def _made_after_all(self, name: str, refusal: ApiError) -> Json | None:
        """An earlier try whose answer was lost may have made it, and have used up the quota."""
        if not _is_refusal(refusal):
            return None
        try:
            return await self._read(name)
        except ApiError:
            return None  # the refusal is passed on as unsure

    def _adopt(self, found: Json) -> None:
        owners = found["metadata"].get("ownerReferences") or []
        if not self._is_ours(found):
            whose = ", ".join(f"{o['kind']}/{o['name']} ({o['uid']})" for o in owners) or "none"
            raise AlreadyRunning(
                "a SparkApplication of this name belongs to another resource",
                resource=f"SparkApplication/{found['metadata']['name']}",
                field="metadata.ownerReferences",
                found=whose,
                expected=f"{self._owner.kind}/{self._owner.name} ({self._owner.uid})",
                remedy="Delete it if it is not needed",
            )

    async def _read(self, name: str) -> Json | None:
        try:
            found = await self._api.get(self._path.at(self._namespace, name))
        except NotFound:
            self._cache.forget(self._namespace, name)
            return None
        self._cache.observe(None, found)
        return trimmed(found)

    def _is_ours(self, found: Json) -> bool:
        """Whether it belongs to our resource, by kind and uid."""
        owner = (self._owner.kind, self._owner.uid)
        owners = found["metadata"].get("ownerReferences") or ()
        return any((each["kind"], each["uid"]) == owner for each in owners)

    async def _pod(self, name: str) -> Json | None:
        try:
            return await self._api.get(ResourcePath("", "v1", "pods", self._namespace, name))
        except NotFound:
            return None

    async def _stop(self, name: str) -> None:
        found = await self._read(name)
        if found is not None and self._is_ours(found):
            if self._builder.finished(found) and not await self._live_pods(name):
                return
            # Gone, or another one by now.
            with suppress(NotFound, Conflict):
                await self._api.delete(
                    self._path.at(self._namespace, name),
                    uid=found["metadata"]["uid"],
                    propagation="Foreground",
                )
        elif found is not None:
            return
        uid = None if found is None else found["metadata"]["uid"]
        for pause in self._pauses():
            rest = await self._live_pods(name)
            there = await self._read(name) if uid is not None else None
            if not rest and (there is None or there["metadata"]["uid"] != uid):
                return
            await asyncio.sleep(pause)
        _log.warning(
            "not gone in time",
            application=f"{self._namespace}/{name}",
            seconds=self._stop_s,
            pods=rest,
        )

    async def _live_pods(self, name: str) -> list[str]:
        pods = ResourcePath("", "v1", "pods", self._namespace)
        found = await self._api.list(pods, labels=self._builder.pods(name))
        return [
            pod["metadata"]["name"]
            for pod in found["items"]
            if (pod.get("status") or {}).get("phase", "Pending") in _LIVE
        ]

    def _pauses(self) -> Iterator[float]:
        until = self._loop.time() + self._stop_s
        tries = 0
        while self._loop.time() < until:
            yield _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
            tries += 1

    # From the engine's threads

    def _call(self, call: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        with _translated_errors():
            return _call_on(self._loop, call, timeout_s)


def _call_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Run a call on the loop, from another thread. Raises: ClusterUnavailable if it takes longer
    or the loop ends; what the call raises."""
    try:
        future = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError as error:
        call.close()
        raise ClusterUnavailable("the operator is ending") from error
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        future.cancel()
        raise ClusterUnavailable(
            "the Kubernetes API did not answer", expected=f"an answer in {timeout_s:g} s"
        ) from error
    except concurrent.futures.CancelledError as error:
        raise ClusterUnavailable("the operator is ending") from error


def _require_vended(vended: Vended, name: str) -> None:
    """Raises: InvalidSpec for other variables: who asks for them is less trusted."""
    if not vended.environ.keys() <= VARIABLES:
        raise InvalidSpec(
            "these are not credentials that a catalog vends",
            resource=f"Secret/{name}",
            found=", ".join(sorted(vended.environ.keys() - VARIABLES)),
            expected=f"some of {', '.join(sorted(VARIABLES))}",
        )


def _is_refusal(error: ApiError) -> bool:
    """Whether the API server has decided about the request, and may decide otherwise later."""
    return isinstance(error, Forbidden | NotFound) or error.status == 429 or error.webhook_failed


def _refused(error: ApiError) -> Exception:
    """What an answer to the creation of an application means. What lies in the request does not
    pass (400, 413, 422); rights, quotas, webhooks and missing kinds do (docs/decisions/0170)."""
    if error.status in (400, 413, 422):
        return InvalidSpec(
            "the API server refuses the SparkApplication",
            field="spec.sparkTemplate",
            found=error.message,
            remedy="Correct the template, or the operator's",
        )
    if not _is_refusal(error):
        return error
    if isinstance(error, NotFound):
        return JobRefused(
            "the cluster has no SparkApplication resource",
            certain=not error.unsure,
            reason=Reason.SPARK_MISSING,
            found=error.message,
            expected="the Spark operator's CRDs, and the namespace",
            remedy="Install Kubeflow's Spark operator, or use `tandem dev` with its CRDs; "
            "small jobs need neither with --small-jobs-on-spark (the chart's workers.spark)",
        )
    return JobRefused(
        "the API server does not take the SparkApplication",
        certain=not error.unsure,
        found=f"{error.status} {error.message}",
        remedy="Check quotas, admission webhooks and the operator's role",
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turns errors of the API server into ours."""
    try:
        yield
    except Forbidden as error:
        raise ClusterUnavailable(
            "the API server refuses the operator's request",
            found=error.message,
            remedy="Check the operator's role and token",
        ) from error
    except ApiError as error:
        raise ClusterUnavailable("the Kubernetes API did not answer", found=error) from error
