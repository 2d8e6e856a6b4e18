"""The port to Spark operators, and the states of their applications."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from tandem import __version__
from tandem.errors import Reason
from tandem.jobs.runner import OUT_OF_MEMORY, JobPhase, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.spark.application.policy import TemplatePolicy
from tandem.spec.common import LOG_ANNOTATION

# The status of a job from its `SparkApplication` and its driver's pod. Pure.
#
# States are those of Kubeflow's Spark operator v2.5.1 (`api/v1beta2/sparkapplication_types.go`),
# and messages are worded as in its controller. The state is a hint: an operator that was restarted
# at the wrong moment reports a job as failed while its driver runs (its issues 2573, 2755, 2788),
# and only the result in the table's store proves success. So a failure counts only if the driver's
# pod does not contradict it, and an unknown state is waited for.


DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
CREDENTIALS_VOLUME: Final = "tandem-credentials"
"""Of a job's pods, if a catalog vends its credentials."""

NEW = ""
SUBMITTED = "SUBMITTED"
RUNNING = "RUNNING"
SUCCEEDING = "SUCCEEDING"
COMPLETED = "COMPLETED"
FAILING = "FAILING"
FAILED = "FAILED"
SUBMISSION_FAILED = "SUBMISSION_FAILED"
PENDING_RERUN = "PENDING_RERUN"
INVALIDATING = "INVALIDATING"
SUSPENDING = "SUSPENDING"
SUSPENDED = "SUSPENDED"
RESUMING = "RESUMING"
UNKNOWN = "UNKNOWN"

STATES: Final[Mapping[str, tuple[JobPhase, str]]] = {
    NEW: (JobPhase.STARTING, "the Spark operator has not seen it yet"),
    SUBMITTED: (JobPhase.STARTING, "submitted; its driver has not started"),
    RUNNING: (JobPhase.RUNNING, ""),
    SUCCEEDING: (JobPhase.RUNNING, "its driver has succeeded"),
    COMPLETED: (JobPhase.ENDED, ""),
    FAILING: (JobPhase.RUNNING, "its driver has failed; the Spark operator is finishing"),
    FAILED: (JobPhase.FAILED, ""),
    SUBMISSION_FAILED: (JobPhase.FAILED, ""),
    PENDING_RERUN: (JobPhase.STARTING, "its spec was changed, so that it runs again"),
    INVALIDATING: (JobPhase.STARTING, "its spec was changed, so that it runs again"),
    SUSPENDING: (JobPhase.STARTING, "it was suspended"),
    SUSPENDED: (JobPhase.STARTING, "it was suspended"),
    RESUMING: (JobPhase.STARTING, "it was resumed"),
    UNKNOWN: (JobPhase.RUNNING, "the Spark operator has lost track of its driver"),
}
"""All states of v2.5.1: the phase for the engine, and the message. A state that is not listed is
waited for, like UNKNOWN."""

FINISHED = frozenset({COMPLETED, FAILED})
"""States that the Spark operator never leaves by itself."""


@dataclass(frozen=True, slots=True)
class DriverTimeouts:
    """How many seconds a driver may hang before its job counts as failed. All three causes may
    resolve by themselves: a registry comes back, a node is added, a Secret is created.
    `container_s` also counts for a pod of which the Spark operator says that it has failed."""

    image_pull_s: int = 300
    unschedulable_s: int = 1_800
    container_s: int = 300


_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_NOT_CREATED = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_EVICTED = frozenset(
    {"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting"}
)
_SPARK_OOM = 52
"""Spark's own exit code for an `OutOfMemoryError`."""
_KILLED, _TERMINATED = 137, 143
_NEEDS_POD = frozenset({NEW, SUBMITTED, RESUMING, SUBMISSION_FAILED, FAILED})


def state_of(application: Mapping[str, Any]) -> str:
    """`status.applicationState.state`; "" until the Spark operator writes it."""
    return str(_get(application, "status", "applicationState", "state") or "")


def needs_pod(application: Mapping[str, Any]) -> bool:
    """Whether the driver's pod may have information that the application lacks."""
    return state_of(application) in _NEEDS_POD


def driver_pod_name(application: Mapping[str, Any]) -> str:
    """The pod's name, as the Spark operator chooses it."""
    named = _get(application, "status", "driverInfo", "podName")
    return str(named or f"{_get(application, 'metadata', 'name')}-driver")


def classify(
    application: Mapping[str, Any] | None,
    driver_pod: Mapping[str, Any] | None,
    *,
    now_ms: int | None = None,
    patience: DriverTimeouts | None = None,
) -> JobStatus:
    """A job's status.

    Args:
        application: None if there is none: then the job is `UNKNOWN`, and the engine looks for
            its result.
        driver_pod: None if it does not exist, or is not needed (`needs_pod`).
        now_ms: the time, for `patience`, in Unix milliseconds; None: a hanging driver never fails.
    """
    if application is None:
        return JobStatus(
            JobPhase.UNKNOWN, "its SparkApplication is gone", reason=Reason.JOB_VANISHED
        )
    patience = patience or DriverTimeouts()
    pod = driver_pod if driver_pod and _belongs(driver_pod, application) else None
    state = state_of(application)
    log = _log(application, pod)
    phase, message = STATES.get(
        state, (JobPhase.RUNNING, f"the Spark operator says {state}, which is an unknown state")
    )
    if phase is JobPhase.FAILED:
        return _failed(application, pod, state, log, now_ms, patience)
    if phase is JobPhase.STARTING and pod is not None:
        return _starting(pod, message, log, now_ms, patience)
    return JobStatus(phase, message, log)


def _failed(
    application: Mapping[str, Any],
    pod: Mapping[str, Any] | None,
    state: str,
    log: str,
    now_ms: int | None,
    patience: DriverTimeouts,
) -> JobStatus:
    """The status if the Spark operator reports a failure: a pod that exists takes precedence."""
    cause = _cause(str(_get(application, "status", "applicationState", "errorMessage") or ""))
    if pod is None:
        reason = _reason_of(cause, state)
        message = cause or "the Spark operator gives no cause"
        return JobStatus(JobPhase.FAILED, message, log, reason)
    ended = _terminated(pod)
    phase = _get(pod, "status", "phase")
    if phase == "Succeeded" or (ended is not None and ended.get("exitCode") == 0):
        return JobStatus(JobPhase.ENDED, f"{state}, but its driver succeeded", log)
    if ended is None and phase == "Running":
        return JobStatus(JobPhase.RUNNING, f"{state} ({cause}), but its driver runs", log)
    if ended is None and phase == "Pending":
        starts = _starting(pod, f"{state} ({cause}), but its driver starts", log, now_ms, patience)
        over = _over(pod, "PodScheduled", now_ms, patience.container_s)
        if starts.reason is None and over:
            # A submission that ended after it had made the pod never makes what the pod mounts.
            message = f"its driver's pod does not start: {cause}"
            return JobStatus(JobPhase.FAILED, message, log, _reason_of(cause, state))
        return starts
    evicted = _eviction(pod)
    if evicted:
        return JobStatus(JobPhase.FAILED, evicted, log, Reason.DRIVER_EVICTED)
    if ended is None:
        message = cause or f"its driver's pod is {phase}"
        return JobStatus(JobPhase.FAILED, message, log, _reason_of(cause, state))
    return _ended(ended, log)


def _ended(ended: Mapping[str, Any], log: str) -> JobStatus:
    """The status of a driver that ended with an exit code other than 0."""
    code, why = int(ended.get("exitCode", -1)), str(ended.get("reason") or "Error")
    last = _last_line(str(ended.get("message") or ""))
    message = f"the driver ended with exit code {code} ({why})" + (f": {last}" if last else "")
    if why == "OOMKilled" or code == _SPARK_OOM or OUT_OF_MEMORY.search(last):
        return JobStatus(JobPhase.FAILED, message, log, Reason.OUT_OF_MEMORY)
    if code in (_KILLED, _TERMINATED):
        message = f"the driver was killed, exit code {code} ({why})" + (f": {last}" if last else "")
    return JobStatus(JobPhase.FAILED, message, log, Reason.JOB_FAILED)


def _starting(
    pod: Mapping[str, Any], state: str, log: str, now_ms: int | None, patience: DriverTimeouts
) -> JobStatus:
    """A driver that has not started, and perhaps never will."""
    for name, waiting in _waiting(pod):
        why, message = str(waiting.get("reason") or ""), _line(waiting.get("message") or "")
        text = f"container {name}: {why}" + (f": {message}" if message else "")
        if why in _NEVER_PULLED:
            return JobStatus(JobPhase.FAILED, text, log, Reason.IMAGE_PULL_FAILED, transient=False)
        if why in _NOT_PULLED:
            over = _over(pod, "PodScheduled", now_ms, patience.image_pull_s)
            return _hangs(Reason.IMAGE_PULL_FAILED, text, log, over)
        if why in _NOT_CREATED:
            over = _over(pod, "PodScheduled", now_ms, patience.container_s)
            return _hangs(Reason.JOB_NOT_STARTED, text, log, over)
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        text = f"no node for the driver: {_line(scheduled.get('message') or '')}"
        over = _over(pod, "PodScheduled", now_ms, patience.unschedulable_s)
        return _hangs(Reason.UNSCHEDULABLE, text, log, over)
    return JobStatus(JobPhase.STARTING, state, log)


def _hangs(reason: Reason, text: str, log: str, over: bool) -> JobStatus:
    return JobStatus(JobPhase.FAILED if over else JobPhase.STARTING, text, log, reason)


def _reason_of(cause: str, state: str) -> Reason:
    """The reason from the Spark operator's message alone: the pod no longer exists."""
    if "driver pod not found" in cause:
        return Reason.JOB_VANISHED
    if state == SUBMISSION_FAILED or "failed to submit spark application" in cause:
        return Reason.SUBMISSION_FAILED
    if "Reason: OOMKilled" in cause or f"ExitCode: {_SPARK_OOM}," in cause:
        return Reason.OUT_OF_MEMORY
    return Reason.JOB_FAILED


def _eviction(pod: Mapping[str, Any]) -> str:
    """Why the cluster evicted the pod, "" if it did not."""
    status = pod.get("status") or {}
    if status.get("reason") in _EVICTED:
        message = _line(status.get("message") or "")
        return f"the driver's pod was removed: {status['reason']}" + (
            f": {message}" if message else ""
        )
    disruption = _condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        message = _line(disruption.get("message") or "")
        return f"the driver's pod was removed: {disruption.get('reason')}: {message}"
    return ""


def _belongs(pod: Mapping[str, Any], application: Mapping[str, Any]) -> bool:
    """Whether it is the driver of this application, not of an earlier one of the same name."""
    uid = _get(application, "metadata", "uid")
    owners = _get(pod, "metadata", "ownerReferences") or []
    return any(owner.get("uid") == uid for owner in owners)


def _log(application: Mapping[str, Any], pod: Mapping[str, Any] | None) -> str:
    annotated = _get(application, "metadata", "annotations", LOG_ANNOTATION)
    if annotated:
        return str(annotated)
    if pod is None and not _get(application, "status", "driverInfo", "podName"):
        return ""
    namespace = _get(application, "metadata", "namespace")
    return f"kubectl logs -n {namespace} {driver_pod_name(application)} -c {DRIVER_CONTAINER}"


def _waiting(pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting")
            if waiting:
                yield container.get("name", ""), waiting


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in _get(pod, "status", "containerStatuses") or ():
        if container.get("name") == DRIVER_CONTAINER:
            ended: Mapping[str, Any] | None = (container.get("state") or {}).get("terminated")
            return ended
    return None


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in _get(pod, "status", "conditions") or ():
        if condition.get("type") == kind:
            found: Mapping[str, Any] = condition
            return found
    return {}


def _over(pod: Mapping[str, Any], condition: str, now_ms: int | None, limit_s: int) -> bool:
    """Whether the pod has been in this condition, or has existed, for longer than the limit."""
    since = _condition(pod, condition).get("lastTransitionTime") or _get(
        pod, "metadata", "creationTimestamp"
    )
    if now_ms is None or not since:
        return False
    began = datetime.fromisoformat(str(since)).timestamp()
    return now_ms / 1000 - began > limit_s


def _get(source: Mapping[str, Any], *path: str) -> Any:
    found: Any = source
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", str(text)).strip()[:500]


def _cause(text: str) -> str:
    """The Spark operator's message; only the exception if it is the output of spark-submit."""
    thrown = re.search(r"^Exception in thread \S+ (.*)$", text, re.MULTILINE)
    return _line(f"{text.split(':', 1)[0]}: {thrown[1]}" if thrown else text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _line(lines[-1]) if lines else ""


# The port to Spark operators: what other modules know of the resource that starts a job.
#
# `tandem.spark.application.manifest` implements it for Kubeflow's; the resources of another Spark
# operator need another `ApplicationBuilder`
# (`docs/decisions/0023-spark-operators-behind-a-seam.md`). Pure, no client.


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The resource for which a job runs: its application is deleted with it."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> Json:
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """The settings of an operator's administrator for all jobs.

    `image` is by default the image of this version that the Dockerfile builds, for operator and
    jobs alike; `apps_dir` is the folder of `spark_apps/` in it; the templates of resources are
    merged over `template`; `ttl_s` is how long an ended application (and with it its driver's log)
    is kept, None for as long as its resource; `template_policy` applies to the templates of
    resources, `template_allow` adds to the lists of `allowed_settings` (patterns of settings and of
    fields).
    """

    image: str = f"tandem:{__version__}"
    spark_version: str = "4.2.0"
    apps_dir: str = "local:///opt/tandem/spark_apps"
    service_account: str = "tandem-spark"
    template_policy: TemplatePolicy = TemplatePolicy.RESTRICTED
    template_allow: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    ttl_s: int | None = 86_400
    max_executors: int = 8
    template: Mapping[str, Any] | None = None
    patience: DriverTimeouts = field(default_factory=DriverTimeouts)


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """For which resource a job runs, where, and with which settings of that resource and its table.

    Attributes:
        template: the resource's `sparkTemplate`, merged over `ApplicationSettings.template`.
        secret_name: a Secret whose keys become environment variables of driver and executors.
            Credentials never occur in arguments or anywhere else in the object.
        service_account: that of the table's storage, instead of the settings'; ignored if there is
            a Secret.
        labels: additional labels; names of resources are shortened by `label_value`.
    """

    owner: JobOwner
    namespace: str
    template: Mapping[str, Any] | None = None
    secret_name: str | None = None
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        """The resource, for errors."""
        return f"{self.owner.kind}/{self.owner.name}"


@dataclass(frozen=True, slots=True)
class ServicePlacement:
    """How an application that serves until it is deleted differs from a job.

    Attributes:
        port: on which the driver listens.
        secrets: Secrets that are mounted as files, one folder each.
        folder: where these folders are.
        pod_label: label of the driver's pod.
        memory, disk: of the driver beside its JVM or, where there are executors, of each.
        executors: their number.
        token: whether the driver uses its account's token itself.
        conf: settings of Spark that executors need which do not end.
    """

    port: int
    secrets: tuple[str, ...]
    folder: str
    pod_label: tuple[str, str]
    memory: int
    disk: int
    executors: int = 0
    token: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


class ApplicationBuilder(Protocol):
    """What `tandem.kube.controllers.spark_jobs` knows of a Spark operator's resources."""

    @property
    def resource(self) -> tuple[str, str, str]:
        """Group, version and plural of the resource."""
        ...

    def check(
        self,
        template: Mapping[str, Any] | None,
        *,
        resource: str = "",
        service_account: str = "",
    ) -> None:
        """Raises: InvalidSpec if a resource's template sets a reserved field, or one that the
        policy refuses."""
        ...

    def build(self, request: JobRequest, placement: JobPlacement) -> Json:
        """The whole object to create. Raises: InvalidSpec."""
        ...

    def build_service(
        self, request: JobRequest, placement: JobPlacement, service: ServicePlacement
    ) -> Json:
        """The whole object of an application that is started again whenever it ends. Raises:
        InvalidSpec."""
        ...

    def classify(
        self,
        application: Mapping[str, Any] | None,
        driver_pod: Mapping[str, Any] | None,
        *,
        now_ms: int | None = None,
    ) -> JobStatus:
        """The status of the job, from the object and, where needed, its driver's pod."""
        ...

    def needs_pod(self, application: Mapping[str, Any]) -> bool:
        """Whether the driver's pod may have information that the object lacks."""
        ...

    def finished(self, application: Mapping[str, Any]) -> bool:
        """Whether its Spark operator starts nothing more for it."""
        ...

    def driver_pod(self, application: Mapping[str, Any]) -> str:
        """The name of its driver's pod, which need not exist."""
        ...

    def pods(self, name: str) -> str:
        """A label selector of all pods of the application of that name."""
        ...
