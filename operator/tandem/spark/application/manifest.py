"""`SparkApplication`s of jobs and of index servers: builds them, and reads jobs back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.jobs.runner import SHORT_JOB_BYTES, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.spark.application import template as templates
from tandem.spark.application.policy import (
    TemplatePolicy,
    check_patterns,
    require_listed,
    require_restricted,
)
from tandem.spark.application.port import (
    CREDENTIALS_VOLUME,
    DRIVER_CONTAINER,
    EXECUTOR_CONTAINER,
    FINISHED,
    ApplicationSettings,
    JobOwner,
    JobPlacement,
    ServicePlacement,
    classify,
    driver_pod_name,
    needs_pod,
    state_of,
)
from tandem.spark.runtime.session import JOB_CONF, WORKER_BYTES, session_conf
from tandem.spec.common import (
    API_VERSION,
    ATTEMPT_LABEL,
    INPUT_BYTES_ANNOTATION,
    KIND_LABEL,
    MANAGED_BY,
    OPERATION_LABEL,
    label_value,
)
from tandem.storage.renewable import CREDENTIALS_FILE, CREDENTIALS_VARIABLE

# The sizes of a job's driver and executors, from the input of its plan. Pure.
#
# Data is decoded and encoded by Python workers outside the JVM's heap, one per concurrent task, so
# the memory *beside* the heap (`memoryOverhead`) grows with the number of concurrent tasks, and the
# heap hardly does. A small job needs no executors at all: in Spark's driver-pod-only mode the
# driver runs the tasks, which saves the start of a second pod and its JVM.


MIB = 1 << 20
GIB = 1 << 30

DRIVER_ALONE_BYTES = SHORT_JOB_BYTES
"""Jobs that read less than this run in the driver only (and with the first compiler tier)."""
LARGE_BYTES = 100 * GIB
"""Jobs that read this or more have a larger driver heap: it holds the answers of all tasks."""
BYTES_PER_SLOT = 512 * MIB
"""An executor core pays for its start if it reads about this much."""
LONE_DRIVER_CORES = 2
JOB_EXECUTOR_CORES = 2


@dataclass(frozen=True, slots=True)
class PodSize:
    """Cores, JVM heap, and memory beside it, in bytes."""

    cores: int
    heap: int
    overhead: int


@dataclass(frozen=True, slots=True)
class JobSizes:
    """`executors` 0: the driver runs the tasks itself."""

    driver: PodSize
    executor: PodSize
    executors: int

    @property
    def slots(self) -> int:
        """Concurrent tasks."""
        return self.executors * self.executor.cores or self.driver.cores


def job_sizes(
    input_bytes: int,
    *,
    tasks: int = 0,
    cores: int = 0,
    heap: int = 0,
    max_executors: int = 8,
    distributed: bool = False,
) -> JobSizes:
    """The table of `docs/spark-applications.md`.

    Args:
        input_bytes: what the job reads, 0 if unknown.
        tasks: parts of the work, 0 if unknown; no more slots than these.
        cores: those of a driver without executors; 0 for `LONE_DRIVER_CORES`.
        heap: the driver's heap in bytes, instead of the table's.
        max_executors: the maximum number of executors, at least 1.
        distributed: use executors in any case, since the template requests them.
    """
    executor = PodSize(JOB_EXECUTOR_CORES, 2 * GIB, JOB_EXECUTOR_CORES * WORKER_BYTES)
    if not distributed and (input_bytes < DRIVER_ALONE_BYTES or tasks == 1):
        # A single task does not run faster than in the driver.
        cores = cores or LONE_DRIVER_CORES
        driver = PodSize(cores, heap or GIB, cores * WORKER_BYTES)
        return JobSizes(driver, executor, 0)
    slots = max(ceil(input_bytes / BYTES_PER_SLOT), 1)
    slots = min(slots, tasks) if tasks else slots
    large = input_bytes >= LARGE_BYTES
    driver = PodSize(1, heap or (4 if large else 2) * GIB, (2 if large else 1) * GIB)
    return JobSizes(driver, executor, min(ceil(slots / JOB_EXECUTOR_CORES), max(max_executors, 1)))


# What makes an application of Spark one that serves until it is deleted. Pure.
#
# It differs from a job: it is started again whenever it ends, is never removed by a time to live,
# gets its credentials as files (a Secret a folder, so that two tables can have different ones), and
# its driver's pod is what a Service selects.


SERVICE_HEAP: Final = 512 * MIB
"""Of the driver: no data passes through its JVM."""
SERVICE_BESIDE: Final = 512 * MIB
"""Memory of the Python process beside what it holds: interpreter, requests, answers under way."""
_RETRY_S: Final = 10
_SCRATCH: Final = "tandem-tmp"
SERVICE_EXECUTOR_CORES: Final = 1


def service_sizes(service: ServicePlacement) -> Json:
    """What a template of the resource may still change."""
    beside = (service.memory + SERVICE_BESIDE) // MIB
    size = {"memory": f"{SERVICE_HEAP // MIB}m", "memoryOverhead": f"{beside}m"}
    spec: Json = {"driver": {"cores": 2, **size}}
    if service.executors:
        spec["executor"] = {"cores": SERVICE_EXECUTOR_CORES, "instances": service.executors, **size}
        spec["sparkConf"] = dict(service.conf)
    return {"spec": spec}


def service_application(body: Json, service: ServicePlacement) -> Json:
    """The application of a job, made to serve; no template can change this. Raises: InvalidSpec if
    a template has put something else where ours goes."""
    spec = body["spec"]
    spec["restartPolicy"] = {
        "type": "Always",
        "onFailureRetryInterval": _RETRY_S,
        "onSubmissionFailureRetryInterval": _RETRY_S,
    }
    spec.pop("timeToLiveSeconds", None)
    key, value = service.pod_label
    body["metadata"]["labels"][key] = value
    spec["driver"]["labels"] = {**(spec["driver"].get("labels") or {}), key: value}
    for part, name in (("driver", DRIVER_CONTAINER), ("executor", EXECUTOR_CONTAINER)):
        if part == "executor" and not service.executors:
            continue
        inner = spec[part]["template"]["spec"]
        container = next(each for each in inner["containers"] if each["name"] == name)
        _mount(inner, container, service, f"spec.sparkTemplate.spec.{part}.template.spec")
    driver = spec["driver"]["template"]["spec"]
    if service.token:
        # The driver asks the cluster who its callers are.
        driver.pop("automountServiceAccountToken", None)
    container = next(each for each in driver["containers"] if each["name"] == DRIVER_CONTAINER)
    container["readinessProbe"] = {"tcpSocket": {"port": service.port}, "periodSeconds": 5}
    return body


def _mount(inner: Json, container: Json, service: ServicePlacement, field: str) -> None:
    """Add a folder for each Secret, and room for answers."""
    volumes, mounts = inner.setdefault("volumes", []), container.setdefault("volumeMounts", [])
    _require_lists(volumes, mounts, field)
    for number, name in enumerate(service.secrets):
        volume = f"tandem-secret-{number}"
        volumes.append({"name": volume, "secret": {"secretName": name}})
        mounts.append({"name": volume, "mountPath": f"{service.folder}/{name}", "readOnly": True})
    for volume in volumes:
        if volume.get("name") == _SCRATCH and "emptyDir" in volume:
            volume["emptyDir"] = {"sizeLimit": str(service.disk)}


def _require_lists(volumes: Any, mounts: Any, field: str) -> None:
    for path, found in ((f"{field}.volumes", volumes), (f"{field}.volumeMounts", mounts)):
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise InvalidSpec(
                "is not a list",
                field=path,
                found=type(found).__name__,
                expected="a list, as in a pod",
                remedy="Correct it, or remove it",
            )


# Additions to the pods of an application beyond its template: credentials, no privileges, and a
# writable volume. Pure.


SECURITY: Final[Json] = {
    "runAsNonRoot": True,
    "runAsUser": 185,
    "runAsGroup": 185,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Matches Spark's images: user 185 and no privileges. Writable are `SCRATCH`, and the folders for
Spark's blocks, for which Spark itself creates volumes (`spark.local.dir`)."""

SCRATCH: Final = "/tmp"


_CREDENTIALS: Final = "/etc/tandem/credentials"


def complete_pods(
    spec: Json, secret_name: str | None, vended_secret: str | None, *, driver_only: bool
) -> None:
    """Add credentials, those that a catalog vends as a file; no token of the API server if the job
    uses none; and a pod template with everything that must also apply in a cluster without the
    Spark operator's webhook, since only the webhook applies the fields outside the template."""
    credentials = [{"secretRef": {"name": secret_name}}] if secret_name else []
    for part, name in (("driver", DRIVER_CONTAINER), ("executor", EXECUTOR_CONTAINER)):
        pod = spec.setdefault(part, {})
        env_from = [*(pod.get("envFrom") or []), *credentials]
        if env_from:
            pod["envFrom"] = env_from
        main: Json = {"name": name, "terminationMessagePolicy": "FallbackToLogsOnError"}
        if pod.get("securityContext"):
            main["securityContext"] = pod["securityContext"]
        ours: Json = {"spec": {"containers": [main]}}
        if driver_only or part == "executor":
            ours["spec"]["automountServiceAccountToken"] = False
        pod["template"] = templates.merge(ours, pod.get("template") or {})
        containers = pod["template"].setdefault("spec", {}).setdefault("containers", [])
        if not any(item["name"] == name for item in containers):
            containers.append(main)
        container = next(item for item in containers if item["name"] == name)
        if credentials:
            container["envFrom"] = [*(container.get("envFrom") or []), *credentials]
        _add_scratch(pod, container, part, spec.get("sparkConf") or {})
        if vended_secret:
            _mount_credentials(pod["template"]["spec"], container, vended_secret)


def _mount_credentials(inner: Json, container: Json, secret_name: str) -> None:
    """Mount a Secret that is renewed. As for `_add_scratch`, lists are checked elsewhere."""
    file = f"{_CREDENTIALS}/{CREDENTIALS_FILE}"
    for where, key, added in (
        (inner, "volumes", {"secret": {"secretName": secret_name}}),
        (container, "volumeMounts", {"mountPath": _CREDENTIALS, "readOnly": True}),
        (container, "env", {"name": CREDENTIALS_VARIABLE, "value": file}),
    ):
        found = where.get(key) or []
        if isinstance(found, list):
            where[key] = [*found, {"name": CREDENTIALS_VOLUME, **added}]


def _add_scratch(pod: Json, container: Json, part: str, conf: Mapping[str, Any]) -> None:
    """Add a volume at `SCRATCH`, unless a template mounts one there: in the pod template, in the
    field outside it, or by a setting. The API server rejects values that are not lists."""
    volumes = pod["template"]["spec"].get("volumes") or []
    mounts = container.get("volumeMounts") or []
    beside = pod.get("volumeMounts") or []
    if not all(isinstance(found, list) for found in (volumes, mounts, beside)):
        return
    paths = [mount.get("mountPath") for mount in (*mounts, *beside) if isinstance(mount, Mapping)]
    setting = f"spark.kubernetes.{part}.volumes."
    paths += [conf[key] for key in conf if key.startswith(setting) and key.endswith(".mount.path")]
    if any(str(path).rstrip("/") == SCRATCH for path in paths):
        return
    pod["template"]["spec"]["volumes"] = [*volumes, {"name": _SCRATCH, "emptyDir": {}}]
    container["volumeMounts"] = [*mounts, {"name": _SCRATCH, "mountPath": SCRATCH}]


# The `SparkApplication` of an attempt: built from a job request, and read as a job's status.
#
# Pure: knows the API of Kubeflow's Spark operator (`sparkoperator.k8s.io/v1beta2`, v2.5.1), but no
# client. An implementation of `ApplicationBuilder` (`tandem.spark.application.port`).
#
# An application is written once: the Spark operator runs it again after nearly every change of its
# spec, so nothing here creates a patch.


MAX_NAME: Final = 50
"""The Spark operator truncates and hashes longer names for the services that it creates."""
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

_NETWORK_POLICY: Final = "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"

_SIZE_KEYS: Final = {
    "driver": ("cores", "memory", "memoryOverhead"),
    "executor": ("cores", "memory", "memoryOverhead", "instances"),
}
"""Fields that the Spark operator passes on as `spark.driver.cores` and so on, after those of
`sparkConf`."""


_ANY_JOB: Final = JobRequest("tandem-any", "rewrite", "file:///any", "job.json")
_PLACEHOLDER_OWNER: Final = JobOwner(API_VERSION, "", "", "")


@dataclass(frozen=True, slots=True)
class KubeflowApplications:
    """`ApplicationBuilder` for Kubeflow's Spark operator.

    Raises: InvalidSpec if the operator-wide template sets a reserved field, or if a pattern of
        settings allowed in addition to the lists is invalid.
    """

    settings: ApplicationSettings = field(default_factory=ApplicationSettings)

    def __post_init__(self) -> None:
        templates.check(self.settings.template, resource="the operator's sparkTemplate")
        check_patterns(self.settings.template_allow)

    @property
    def resource(self) -> tuple[str, str, str]:
        return ("sparkoperator.k8s.io", "v1beta2", "sparkapplications")

    def check(
        self,
        template: Mapping[str, Any] | None,
        *,
        resource: str = "",
        service_account: str = "",
    ) -> None:
        templates.check(template, resource=resource, field="spec.sparkTemplate")
        if template is None or self.settings.template_policy is TemplatePolicy.ANY:
            return
        require_listed(
            template,
            allowed=self.settings.template_allow,
            resource=resource,
            field="spec.sparkTemplate",
        )
        without, made = (
            build(
                _ANY_JOB,
                JobPlacement(
                    _PLACEHOLDER_OWNER, "", template=piece, service_account=service_account
                ),
                self.settings,
            )["spec"]
            for piece in (None, template)
        )
        require_restricted(
            without,
            made,
            accounts=(self.settings.service_account, service_account),
            resource=resource,
            field="spec.sparkTemplate",
        )

    def build(self, request: JobRequest, placement: JobPlacement) -> Json:
        self._check(placement)
        return build(request, placement, self.settings)

    def build_service(
        self, request: JobRequest, placement: JobPlacement, service: ServicePlacement
    ) -> Json:
        self._check(placement)
        layer = service_sizes(service)
        whole = replace(placement, template=templates.merge(layer, placement.template or {}))
        return service_application(build(request, whole, self.settings), service)

    def _check(self, placement: JobPlacement) -> None:
        # The caller may not have checked the template.
        self.check(
            placement.template,
            resource=placement.resource,
            service_account=placement.service_account,
        )

    def classify(
        self,
        application: Mapping[str, Any] | None,
        driver_pod: Mapping[str, Any] | None,
        *,
        now_ms: int | None = None,
    ) -> JobStatus:
        return classify(application, driver_pod, now_ms=now_ms, patience=self.settings.patience)

    def needs_pod(self, application: Mapping[str, Any]) -> bool:
        return needs_pod(application)

    def finished(self, application: Mapping[str, Any]) -> bool:
        return state_of(application) in FINISHED

    def driver_pod(self, application: Mapping[str, Any]) -> str:
        return driver_pod_name(application)

    def pods(self, name: str) -> str:
        return f"sparkoperator.k8s.io/app-name={name}"


def build(request: JobRequest, placement: JobPlacement, settings: ApplicationSettings) -> Json:
    """The `SparkApplication` of one attempt. The same arguments give the same object.

    Raises: InvalidSpec that names the path that a template must not set, or if a name is not a
        DNS-1035 label.
    """
    _check_name(request.name)
    template, owner, secret_name = placement.template, placement.owner, placement.secret_name
    templates.check(template, resource=placement.resource, field="spec.sparkTemplate")
    users = templates.merge(settings.template or {}, template or {})
    conf = templates.texts((users.get("spec") or {}).get("sparkConf") or {})
    user_spec = users.get("spec") or {}
    driver = user_spec.get("driver") or {}
    distributed = _asks_for_executors(user_spec, conf)
    size = job_sizes(
        request.input_bytes,
        tasks=request.tasks,
        cores=_whole(driver.get("cores") or conf.get("spark.driver.cores"), request.cores),
        heap=request.memory_bytes,
        max_executors=settings.max_executors,
        distributed=distributed,
    )
    vended_secret = request.name if request.environ else None
    # If a table has both, the Secret is used.
    account = "" if secret_name or vended_secret else placement.service_account
    defaults = _defaults(request, settings, size, account or settings.service_account)
    for part, keys in _SIZE_KEYS.items():
        for key in keys:
            if f"spark.{part}.{key}" in conf:
                # The field would override the user's value in the other place.
                defaults[part].pop(key, None)
    if (user_spec.get("dynamicAllocation") or {}).get("enabled"):
        defaults["executor"].pop("instances", None)
    merged = templates.merge({"spec": defaults}, settings.template or {})
    # One after the other, so that a null in the resource's template removes the value below it.
    merged = templates.merge(merged, template or {})
    spec = merged.setdefault("spec", {})
    complete_pods(spec, secret_name, vended_secret, driver_only=not size.executors)
    spec.update(
        {
            "type": "Python",
            "mode": "cluster",
            "mainApplicationFile": f"{settings.apps_dir}/{request.app}.py",
            "arguments": request.arguments(),
            "restartPolicy": {"type": "Never"},
        }
    )
    spec["sparkConf"] = {**templates.texts(spec.get("sparkConf") or {}), **session_conf()}
    if spec.get("hadoopConf"):
        spec["hadoopConf"] = templates.texts(spec["hadoopConf"])
    if not size.executors:
        spec["driver"]["kubernetesMaster"] = f"local[{size.driver.cores}]"
    metadata = merged.get("metadata") or {}
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {
            "name": request.name,
            "namespace": placement.namespace,
            "ownerReferences": [owner.reference()],
            "labels": {
                **templates.texts(metadata.get("labels") or {}),
                MANAGED_BY[0]: MANAGED_BY[1],
                KIND_LABEL: owner.kind,
                OPERATION_LABEL: label_value(request.operation_id),
                ATTEMPT_LABEL: str(request.attempt),
                **{key: label_value(value) for key, value in placement.labels.items()},
            },
            "annotations": {
                **templates.texts(metadata.get("annotations") or {}),
                INPUT_BYTES_ANNOTATION: str(request.input_bytes),
            },
        },
        "spec": spec,
    }


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME or not _DNS_1035.fullmatch(name):
        raise InvalidSpec(
            "is not a valid name of a SparkApplication",
            field="metadata.name",
            found=name,
            expected=f"a DNS-1035 label of at most {MAX_NAME} characters",
        )


def _asks_for_executors(spec: Mapping[str, Any], conf: Mapping[str, str]) -> bool:
    """Whether a template sets the number of executors, so that there are some."""
    return bool(
        (spec.get("executor") or {}).get("instances")
        or (spec.get("dynamicAllocation") or {}).get("enabled")
        or conf.get("spark.executor.instances")
        or conf.get("spark.dynamicAllocation.enabled") == "true"
    )


def _defaults(
    request: JobRequest, settings: ApplicationSettings, size: JobSizes, account: str
) -> Json:
    """The settings that a template may change."""
    flags = ["-XX:+UseSerialGC"]
    if not size.executors and request.is_short:
        flags.append("-XX:TieredStopAtLevel=1")
    driver = {**_pod(size.driver), "serviceAccount": account, "securityContext": SECURITY}
    # A lone driver starts no executors; the CRD requires the field all the same.
    executor = {
        **(_pod(size.executor) if size.executors else {"cores": 1, "memory": "512m"}),
        "instances": size.executors or 1,
        "serviceAccount": account,
        "securityContext": SECURITY,
    }
    defaults: Json = {
        "pythonVersion": "3",
        "sparkVersion": settings.spark_version,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "driver": driver,
        "executor": executor,
        "sparkConf": {
            **JOB_CONF,
            "spark.driver.extraJavaOptions": " ".join(flags),
            "spark.sql.shuffle.partitions": str(size.slots),
            "spark.default.parallelism": str(size.slots),
            # This step of Spark 4.2 needs a permission that the Spark operator (2.5.1) lacks. A
            # null in a template restores it.
            "spark.kubernetes.driver.pod.excludedFeatureSteps": _NETWORK_POLICY,
            # With executors, the fourth loss of a task ends the job with a reason; Spark's
            # default of 3 executors would end it earlier.
            "spark.executor.maxNumFailures": str(max(8, 2 * size.executors)),
        },
    }
    if settings.ttl_s is not None:
        defaults["timeToLiveSeconds"] = settings.ttl_s
    return defaults


def _pod(pod: PodSize) -> Json:
    return {
        "cores": pod.cores,
        "memory": f"{pod.heap // MIB}m",
        "memoryOverhead": f"{pod.overhead // MIB}m",
    }


def _whole(value: object, default: int) -> int:
    """The number of cores in a template; the CRD validates values that are not numbers."""
    text = str(value or "")
    return max(int(text), 1) if text.isdecimal() and len(text) < 9 else default
