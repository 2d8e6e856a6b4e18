"""What a `sparkTemplate` may set under the policy `restricted`: settings and fields by name. Pure.

The lists hold settings that shape a job's pods and Spark's performance in them. Everything else is
refused: it may act in the pod of the Spark operator, which submits with its own rights, and a later
version of Spark or of the Spark operator may add such settings. An administrator adds to them by
`--template-allow`. `docs/template-policy.md` is generated from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.spark.application.arguments import InvalidText, arguments, shown

SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "sizes of driver and executors": (
        "spark.driver.cores",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.driver.memoryOverheadFactor",
        "spark.driver.minMemoryOverhead",
        "spark.driver.maxResultSize",
        "spark.driver.resource.*",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.memoryOverheadFactor",
        "spark.executor.minMemoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.executor.resource.*",
        "spark.executor.maxNumFailures",
        "spark.executor.failuresValidityInterval",
        "spark.dynamicAllocation.*",
        "spark.memory.*",
        "spark.kubernetes.memoryOverheadFactor",
        "spark.kubernetes.driver.request.cores",
        "spark.kubernetes.driver.limit.cores",
        "spark.kubernetes.executor.request.cores",
        "spark.kubernetes.executor.limit.cores",
    ),
    "how much work at once": (
        "spark.default.parallelism",
        "spark.task.cpus",
        "spark.task.maxFailures",
        "spark.task.resource.*",
        "spark.task.reaper.*",
        "spark.speculation",
        "spark.speculation.*",
        "spark.locality.wait",
        "spark.locality.wait.*",
        "spark.scheduler.mode",
        "spark.scheduler.maxRegisteredResourcesWaitingTime",
        "spark.scheduler.minRegisteredResourcesRatio",
        "spark.excludeOnFailure.*",
        "spark.stage.*",
        "spark.decommission.enabled",
        "spark.storage.decommission.enabled",
        "spark.storage.decommission.rddBlocks.enabled",
        "spark.storage.decommission.shuffleBlocks.enabled",
    ),
    "how a query is planned": (
        "spark.sql.shuffle.partitions",
        "spark.sql.adaptive.*",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.broadcastTimeout",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.files.maxPartitionNum",
        "spark.sql.files.minPartitionNum",
        "spark.sql.files.openCostInBytes",
        "spark.sql.join.preferSortMergeJoin",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.execution.arrow.maxBytesPerBatch",
        "spark.sql.execution.rangeExchange.sampleSizePerPartition",
        "spark.sql.inMemoryColumnarStorage.*",
        "spark.sql.debug.maxToStringFields",
        "spark.sql.maxPlanStringLength",
        "spark.sql.sources.parallelPartitionDiscovery.*",
    ),
    "shuffle, network and memory": (
        "spark.broadcast.*",
        "spark.cleaner.*",
        "spark.checkpoint.compress",
        "spark.executor.heartbeatInterval",
        "spark.io.compression.*",
        "spark.kryoserializer.buffer",
        "spark.kryoserializer.buffer.max",
        "spark.maxRemoteBlockSizeFetchToMem",
        "spark.network.timeout",
        "spark.network.timeoutInterval",
        "spark.rdd.compress",
        "spark.reducer.*",
        "spark.rpc.*",
        "spark.shuffle.accurateBlockThreshold",
        "spark.shuffle.compress",
        "spark.shuffle.file.buffer",
        "spark.shuffle.io.*",
        "spark.shuffle.registration.*",
        "spark.shuffle.sort.bypassMergeThreshold",
        "spark.shuffle.spill.compress",
        "spark.storage.memoryMapThreshold",
        "spark.unsafe.*",
        "spark.local.dir",
    ),
    "the processes in the pods": (
        "spark.driver.extraJavaOptions",
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraLibraryPath",
        "spark.executor.extraJavaOptions",
        "spark.executor.defaultJavaOptions",
        "spark.executor.extraClassPath",
        "spark.executor.extraLibraryPath",
        "spark.executorEnv.*",
        "spark.kubernetes.driverEnv.*",
        "spark.pyspark.python",
        "spark.pyspark.driver.python",
        "spark.python.worker.*",
        "spark.python.use.daemon",
    ),
    "logs and metrics": (
        "spark.log.level",
        "spark.eventLog.*",
        "spark.logConf",
        "spark.metrics.namespace",
        "spark.executor.processTreeMetrics.enabled",
        "spark.ui.enabled",
        "spark.ui.prometheus.enabled",
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
        "spark.ui.retainedTasks",
        "spark.ui.showConsoleProgress",
    ),
    "the pods": (
        "spark.kubernetes.container.image",
        "spark.kubernetes.container.image.pullPolicy",
        "spark.kubernetes.container.image.pullSecrets",
        "spark.kubernetes.driver.container.image",
        "spark.kubernetes.executor.container.image",
        "spark.kubernetes.node.selector.*",
        "spark.kubernetes.driver.node.selector.*",
        "spark.kubernetes.executor.node.selector.*",
        "spark.kubernetes.driver.label.*",
        "spark.kubernetes.executor.label.*",
        "spark.kubernetes.driver.annotation.*",
        "spark.kubernetes.executor.annotation.*",
        "spark.kubernetes.driver.service.label.*",
        "spark.kubernetes.driver.service.ipFamilies",
        "spark.kubernetes.driver.service.ipFamilyPolicy",
        "spark.kubernetes.driver.secrets.*",
        "spark.kubernetes.executor.secrets.*",
        "spark.kubernetes.driver.secretKeyRef.*",
        "spark.kubernetes.executor.secretKeyRef.*",
        "spark.kubernetes.driver.volumes.emptyDir.*",
        "spark.kubernetes.executor.volumes.emptyDir.*",
        "spark.kubernetes.executor.volumes.persistentVolumeClaim.*",
        "spark.kubernetes.driver.ownPersistentVolumeClaim",
        "spark.kubernetes.driver.reusePersistentVolumeClaim",
        "spark.kubernetes.driver.waitToReusePersistentVolumeClaim",
        "spark.kubernetes.scheduler.name",
        "spark.kubernetes.driver.scheduler.name",
        "spark.kubernetes.executor.scheduler.name",
        "spark.kubernetes.local.dirs.tmpfs",
        "spark.kubernetes.configMap.maxSize",
        "spark.kubernetes.appKillPodDeletionGracePeriod",
        "spark.kubernetes.dynamicAllocation.deleteGracePeriod",
        "spark.kubernetes.driver.requestTimeout",
        "spark.kubernetes.driver.connectionTimeout",
    ),
    "how executors are made and followed": (
        "spark.kubernetes.allocation.batch.*",
        "spark.kubernetes.allocation.driver.readinessTimeout",
        "spark.kubernetes.allocation.executor.timeout",
        "spark.kubernetes.allocation.maxPendingPods",
        "spark.kubernetes.allocation.maxPendingPodsPerRp",
        "spark.kubernetes.executor.apiPollingInterval",
        "spark.kubernetes.executor.checkAllContainers",
        "spark.kubernetes.executor.decommissionLabel",
        "spark.kubernetes.executor.decommissionLabelValue",
        "spark.kubernetes.executor.deleteOnTermination",
        "spark.kubernetes.executor.disableConfigMap",
        "spark.kubernetes.executor.enableApiPolling",
        "spark.kubernetes.executor.enableApiWatcher",
        "spark.kubernetes.executor.enablePollingWithResourceVersion",
        "spark.kubernetes.executor.eventProcessingInterval",
        "spark.kubernetes.executor.minTasksPerExecutorBeforeRolling",
        "spark.kubernetes.executor.missingPodDetectDelta",
        "spark.kubernetes.executor.podNamePrefix",
        "spark.kubernetes.executor.rollInterval",
        "spark.kubernetes.executor.rollPolicy",
        "spark.kubernetes.executor.terminationGracePeriodSeconds",
        "spark.kubernetes.executor.useDriverPodIP",
    ),
}
"""By what they are for. A `*` at the end stands for any rest."""

_SIZES: Final = ("cores", "coreRequest", "coreLimit", "memory", "memoryLimit", "memoryOverhead")

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "metadata": ("labels.*", "annotations.*"),
    "spec": (
        "image",
        "imagePullPolicy",
        "imagePullSecrets",
        "sparkVersion",
        "pythonVersion",
        "sparkConf",
        "hadoopConf",
        "deps.jars",
        "deps.files",
        "deps.pyFiles",
        "deps.archives",
        "volumes.*",
        "nodeSelector.*",
        "memoryOverheadFactor",
        "timeToLiveSeconds",
        "dynamicAllocation.*",
        "driver",
        "executor",
    ),
    "spec.driver, spec.executor": (
        *_SIZES,
        "instances",
        "gpu.*",
        "image",
        "javaOptions",
        "env.*",
        "envVars.*",
        "envFrom.*",
        "envSecretKeyRefs.*",
        "configMaps.*",
        "secrets.*",
        "volumeMounts.*",
        "labels.*",
        "annotations.*",
        "serviceLabels.*",
        "nodeSelector.*",
        "affinity.*",
        "tolerations.*",
        "priorityClassName",
        "schedulerName",
        "serviceAccount",
        "hostNetwork",
        "podSecurityContext.*",
        "securityContext.*",
        "initContainers",
        "sidecars",
        "lifecycle.*",
        "ports.*",
        "dnsConfig.*",
        "hostAliases.*",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "deleteOnTermination",
        "template",
    ),
    "spec.driver.template, spec.executor.template": (
        "metadata.labels.*",
        "metadata.annotations.*",
        "spec",
    ),
    "spec.driver.template.spec, spec.executor.template.spec": (
        "containers",
        "initContainers",
        "volumes.*",
        "imagePullSecrets.*",
        "nodeSelector.*",
        "affinity.*",
        "tolerations.*",
        "topologySpreadConstraints.*",
        "priorityClassName",
        "preemptionPolicy",
        "schedulerName",
        "runtimeClassName",
        "serviceAccountName",
        "serviceAccount",
        "automountServiceAccountToken",
        "securityContext.*",
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "dnsConfig.*",
        "dnsPolicy",
        "hostAliases.*",
        "enableServiceLinks",
        "shareProcessNamespace",
        "terminationGracePeriodSeconds",
        "activeDeadlineSeconds",
    ),
    "a container": (
        "name",
        "image",
        "imagePullPolicy",
        "command.*",
        "args.*",
        "workingDir",
        "env.*",
        "envFrom.*",
        "ports.*",
        "resources.*",
        "volumeMounts.*",
        "livenessProbe.*",
        "readinessProbe.*",
        "startupProbe.*",
        "lifecycle.*",
        "securityContext.*",
        "restartPolicy",
        "stdin",
        "tty",
        "terminationMessagePath",
        "terminationMessagePolicy",
    ),
}
"""By where they stand. A `.*` at the end: the field with all below it. What is allowed by its name
may still be refused for its value: `tandem.spark.application.policy`."""

REFUSED: Final[dict[str, str]] = {
    "spec.proxyUser": "it has the Spark operator submit as another user",
    "spec.sparkConfigMap": "it brings settings that the policy does not see",
    "spec.hadoopConfigMap": "it brings settings that the policy does not see",
    "spec.monitoring": "it has the Spark operator make a ConfigMap and an agent of every driver",
    "spec.batchScheduler": "it has the Spark operator make objects of another scheduler",
    "spec.batchSchedulerOptions": "it has the Spark operator make objects of another scheduler",
    "spec.sparkUIOptions": "it has the Spark operator make Services and Ingresses",
    "spec.driverIngressOptions": "it has the Spark operator make Services and Ingresses",
    "spec.driverPodDisruptionBudget": "it has the Spark operator make a PodDisruptionBudget",
    "spec.deps.packages": "the Spark operator would load them, with its own rights",
    "spec.deps.excludePackages": "the Spark operator would load packages, with its own rights",
    "spec.deps.repositories": "the Spark operator would ask them, with its own rights",
    "spec.driver.serviceAnnotations": "it has the Spark operator annotate a Service",
    "spec.driver.template.spec.nodeName": "it goes round the scheduler, and with it round taints",
    "spec.executor.template.spec.nodeName": "it goes round the scheduler, and with it round taints",
}
"""Why, for those that a reader would look for; the rest is `not on the list`."""

OPTION: Final = "--template-allow"
VALUE: Final = "templateAllow"
NOT_LISTED: Final = "it is not among what templates may set"

_PATTERN = re.compile(r"(?:spark|spec|metadata)(?:\.[A-Za-z0-9_-]+|\.\*)+")
_CONTAINERS: Final = ("containers", "initContainers", "sidecars")
_LOCAL: Final = re.compile(r"local:///[A-Za-z0-9._/+-]+(?:#[A-Za-z0-9._-]+)?")


def check_patterns(patterns: Iterable[str]) -> None:
    """That each names settings or fields. Raises: InvalidSpec."""
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise InvalidSpec(
                "names no setting and no field of a template",
                field=OPTION,
                found=pattern,
                expected="`spark.…`, `spec.…` or `metadata.…`, with `*` for a part or the rest",
            )


def unlisted(template: Mapping[str, Any], allowed: tuple[str, ...] = ()) -> Iterator[InvalidText]:
    """What a template sets that neither the lists here nor an administrator's patterns name, and
    texts that Spark would replace by something else.

    Its shape is known to be right (`template.check`).
    """
    fields = _compiled(allowed)
    for name in ("metadata", "spec"):
        yield from _walk(name, template.get(name), name, fields)
    spec = _mapping(template.get("spec"))
    for part, prefix in (("sparkConf", ""), ("hadoopConf", "spark.hadoop.")):
        for key in _mapping(spec.get(part)):
            if not setting_allowed(f"{prefix}{key}", allowed):
                yield InvalidText(
                    f"spec.{part}.{shown(key)}", why_refused(f"{prefix}{key}"), _SETTINGS
                )
    deps = _mapping(spec.get("deps"))
    for kind in ("jars", "files", "pyFiles", "archives"):
        if fields.fullmatch(f"spec.deps.{kind}"):
            continue
        for item in deps.get(kind) or ():
            if not (isinstance(item, str) and _LOCAL.fullmatch(item) and "/.." not in item):
                yield InvalidText(
                    f"spec.deps.{kind}", _OF_SUBMITTER, "local:///PATH, a file of the image"
                )
    for path, text in arguments(template):
        if "${" in text:
            # Spark replaces ${env:NAME} and ${system:NAME} where it reads a setting.
            yield InvalidText(
                path, "`${`, which Spark replaces in the Spark operator's pod", "plain text"
            )


def setting_allowed(name: str, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a template may set that setting of Spark."""
    return bool(_settings().fullmatch(name) or _compiled(allowed).fullmatch(name))


def why_refused(setting: str) -> str:
    """In words, why a setting is not on the list."""
    for pattern, why in _WHY:
        if re.match(pattern, setting, re.IGNORECASE):
            return why
    return NOT_LISTED


_OF_SUBMITTER: Final = "the Spark operator, which submits, would load it with its own rights"
_WHY: Final = (
    (r"spark\.(jars|files|archives|submit)\b", _OF_SUBMITTER),
    (r"spark\.hadoop\.", "the Spark operator, which submits, would use it with its own rights"),
    (r"spark\.(kerberos|security)\.", "it names files of the Spark operator's pod"),
    (r"spark\.(yarn|mesos|deploy|standalone)\.", "it is for another cluster manager"),
    (r"spark\.kubernetes\.", "it is none of those that only shape the job's pods"),
)
_SETTINGS: Final = "a setting of docs/template-policy.md"
_FIELDS: Final = "a field of docs/template-policy.md"


def _walk(path: str, value: Any, place: str, allowed: re.Pattern[str]) -> Iterator[InvalidText]:
    """Fields below `path`; `place` is the path in the words of `FIELDS`."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        where, at = f"{path}.{shown(key)}", f"{place}.{shown(key)}"
        listed = _fields().get(at)
        if listed == "all" or allowed.fullmatch(where):
            continue
        if listed is None:
            yield InvalidText(where, _reason(at), _FIELDS)
        elif key in _CONTAINERS:
            for index, item in enumerate(inner if isinstance(inner, list) else []):
                name = _mapping(item).get("name", index)
                yield from _walk(f"{where}.{shown(name)}", item, "a container", allowed)
        elif listed == "inner":
            yield from _walk(where, inner, at, allowed)


def _reason(place: str) -> str:
    return REFUSED.get(place, NOT_LISTED)


@lru_cache(maxsize=1)
def _fields() -> dict[str, str]:
    """Of each field: `all` with what is below it, `leaf`, or `inner` where the next table holds."""
    found: dict[str, str] = {}
    for places, names in FIELDS.items():
        for place in places.split(", "):
            for name in names:
                path = f"{place}.{name.removesuffix('.*')}"
                found[path] = "all" if name.endswith(".*") else "leaf"
    for path in list(found):
        while "." in path:
            path = path.rpartition(".")[0]
            if path != "a container" and found.get(path) != "all":
                found[path] = "inner"
    return found


@lru_cache(maxsize=1)
def _settings() -> re.Pattern[str]:
    return _pattern(name for names in SETTINGS.values() for name in names)


@lru_cache(maxsize=16)
def _compiled(allowed: tuple[str, ...]) -> re.Pattern[str]:
    return _pattern(allowed)


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """`*` is the rest at the end, else a part between two dots."""
    parts = []
    for name in names:
        head, rest = (name[:-1], ".+") if name.endswith(".*") else (name, "")
        parts.append(re.escape(head).replace(r"\*", r"[^.]+") + rest)
    return re.compile("|".join(parts) or r"(?!)", re.DOTALL)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
