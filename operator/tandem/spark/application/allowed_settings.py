"""What a `sparkTemplate` may set under the policy `restricted`: lists of settings and fields.

They contain settings that affect a job's pods and Spark's performance in them. Everything else is
refused: it may take effect in the pod of the Spark operator, which submits with its own privileges,
and a later version of Spark or of the Spark operator may add such settings. An administrator adds
to them with `--template-allow`. `docs/template-policy.md` is generated from here; `policy`
reads them.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "sizes of driver and executors": _words(
        """
        spark.driver.cores spark.driver.memory spark.driver.memoryOverhead
        spark.driver.memoryOverheadFactor spark.driver.minMemoryOverhead spark.driver.maxResultSize
        spark.driver.resource.* spark.executor.cores spark.executor.instances spark.executor.memory
        spark.executor.memoryOverhead spark.executor.memoryOverheadFactor
        spark.executor.minMemoryOverhead spark.executor.pyspark.memory spark.executor.resource.*
        spark.executor.maxNumFailures spark.executor.failuresValidityInterval
        spark.dynamicAllocation.* spark.memory.* spark.kubernetes.memoryOverheadFactor
        spark.kubernetes.driver.request.cores spark.kubernetes.driver.limit.cores
        spark.kubernetes.executor.request.cores spark.kubernetes.executor.limit.cores
        """
    ),
    "concurrency": _words(
        """
        spark.default.parallelism spark.task.cpus spark.task.maxFailures spark.task.resource.*
        spark.task.reaper.* spark.speculation spark.speculation.* spark.locality.wait
        spark.locality.wait.* spark.scheduler.mode spark.scheduler.maxRegisteredResourcesWaitingTime
        spark.scheduler.minRegisteredResourcesRatio spark.excludeOnFailure.* spark.stage.*
        spark.decommission.enabled spark.storage.decommission.enabled
        spark.storage.decommission.rddBlocks.enabled
        spark.storage.decommission.shuffleBlocks.enabled
        """
    ),
    "query planning": _words(
        """
        spark.sql.shuffle.partitions spark.sql.adaptive.* spark.sql.autoBroadcastJoinThreshold
        spark.sql.broadcastTimeout spark.sql.files.maxPartitionBytes spark.sql.files.maxPartitionNum
        spark.sql.files.minPartitionNum spark.sql.files.openCostInBytes
        spark.sql.join.preferSortMergeJoin spark.sql.execution.arrow.maxRecordsPerBatch
        spark.sql.execution.arrow.maxBytesPerBatch
        spark.sql.execution.rangeExchange.sampleSizePerPartition spark.sql.inMemoryColumnarStorage.*
        spark.sql.debug.maxToStringFields spark.sql.maxPlanStringLength
        spark.sql.sources.parallelPartitionDiscovery.*
        """
    ),
    "shuffle, network and memory": _words(
        """
        spark.broadcast.* spark.cleaner.* spark.checkpoint.compress spark.executor.heartbeatInterval
        spark.io.compression.* spark.kryoserializer.buffer spark.kryoserializer.buffer.max
        spark.maxRemoteBlockSizeFetchToMem spark.network.timeout spark.network.timeoutInterval
        spark.rdd.compress spark.reducer.* spark.rpc.* spark.shuffle.accurateBlockThreshold
        spark.shuffle.compress spark.shuffle.file.buffer spark.shuffle.io.*
        spark.shuffle.registration.* spark.shuffle.sort.bypassMergeThreshold
        spark.shuffle.spill.compress spark.storage.memoryMapThreshold spark.unsafe.* spark.local.dir
        """
    ),
    "the processes in the pods": _words(
        """
        spark.driver.extraJavaOptions spark.driver.defaultJavaOptions spark.driver.extraClassPath
        spark.driver.extraLibraryPath spark.executor.extraJavaOptions
        spark.executor.defaultJavaOptions spark.executor.extraClassPath
        spark.executor.extraLibraryPath spark.executorEnv.* spark.kubernetes.driverEnv.*
        spark.pyspark.python spark.pyspark.driver.python spark.python.worker.*
        spark.python.use.daemon
        """
    ),
    "logs and metrics": _words(
        """
        spark.log.level spark.eventLog.* spark.logConf spark.metrics.namespace
        spark.executor.processTreeMetrics.enabled spark.ui.enabled spark.ui.prometheus.enabled
        spark.ui.retainedJobs spark.ui.retainedStages spark.ui.retainedTasks
        spark.ui.showConsoleProgress
        """
    ),
    "the pods": _words(
        """
        spark.kubernetes.container.image spark.kubernetes.container.image.pullPolicy
        spark.kubernetes.container.image.pullSecrets spark.kubernetes.driver.container.image
        spark.kubernetes.executor.container.image spark.kubernetes.node.selector.*
        spark.kubernetes.driver.node.selector.* spark.kubernetes.executor.node.selector.*
        spark.kubernetes.driver.label.* spark.kubernetes.executor.label.*
        spark.kubernetes.driver.annotation.* spark.kubernetes.executor.annotation.*
        spark.kubernetes.driver.service.label.* spark.kubernetes.driver.service.ipFamilies
        spark.kubernetes.driver.service.ipFamilyPolicy spark.kubernetes.driver.secrets.*
        spark.kubernetes.executor.secrets.* spark.kubernetes.driver.secretKeyRef.*
        spark.kubernetes.executor.secretKeyRef.* spark.kubernetes.driver.volumes.emptyDir.*
        spark.kubernetes.executor.volumes.emptyDir.*
        spark.kubernetes.executor.volumes.persistentVolumeClaim.*
        spark.kubernetes.driver.ownPersistentVolumeClaim
        spark.kubernetes.driver.reusePersistentVolumeClaim
        spark.kubernetes.driver.waitToReusePersistentVolumeClaim spark.kubernetes.scheduler.name
        spark.kubernetes.driver.scheduler.name spark.kubernetes.executor.scheduler.name
        spark.kubernetes.local.dirs.tmpfs spark.kubernetes.configMap.maxSize
        spark.kubernetes.appKillPodDeletionGracePeriod
        spark.kubernetes.dynamicAllocation.deleteGracePeriod spark.kubernetes.driver.requestTimeout
        spark.kubernetes.driver.connectionTimeout
        """
    ),
    "creation and monitoring of executors": _words(
        """
        spark.kubernetes.allocation.batch.* spark.kubernetes.allocation.driver.readinessTimeout
        spark.kubernetes.allocation.executor.timeout spark.kubernetes.allocation.maxPendingPods
        spark.kubernetes.allocation.maxPendingPodsPerRp spark.kubernetes.executor.apiPollingInterval
        spark.kubernetes.executor.checkAllContainers spark.kubernetes.executor.decommissionLabel
        spark.kubernetes.executor.decommissionLabelValue
        spark.kubernetes.executor.deleteOnTermination spark.kubernetes.executor.disableConfigMap
        spark.kubernetes.executor.enableApiPolling spark.kubernetes.executor.enableApiWatcher
        spark.kubernetes.executor.enablePollingWithResourceVersion
        spark.kubernetes.executor.eventProcessingInterval
        spark.kubernetes.executor.minTasksPerExecutorBeforeRolling
        spark.kubernetes.executor.missingPodDetectDelta spark.kubernetes.executor.podNamePrefix
        spark.kubernetes.executor.rollInterval spark.kubernetes.executor.rollPolicy
        spark.kubernetes.executor.terminationGracePeriodSeconds
        spark.kubernetes.executor.useDriverPodIP
        """
    ),
}
"""By purpose. A `*` at the end matches any suffix."""

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "metadata": _words(
        """
        labels.* annotations.*
        """
    ),
    "spec": _words(
        """
        image imagePullPolicy imagePullSecrets sparkVersion pythonVersion sparkConf hadoopConf
        deps.jars deps.files deps.pyFiles deps.archives volumes.* nodeSelector.*
        memoryOverheadFactor timeToLiveSeconds dynamicAllocation.* driver executor
        """
    ),
    "spec.driver, spec.executor": _words(
        """
        cores coreRequest coreLimit memory memoryLimit memoryOverhead instances gpu.* image
        javaOptions env.* envVars.* envFrom.* envSecretKeyRefs.* configMaps.* secrets.*
        volumeMounts.* labels.* annotations.* serviceLabels.* nodeSelector.* affinity.*
        tolerations.* priorityClassName schedulerName serviceAccount hostNetwork
        podSecurityContext.* securityContext.* initContainers sidecars lifecycle.* ports.*
        dnsConfig.* hostAliases.* shareProcessNamespace terminationGracePeriodSeconds
        deleteOnTermination template
        """
    ),
    "spec.driver.template, spec.executor.template": _words(
        """
        metadata.labels.* metadata.annotations.* spec
        """
    ),
    "spec.driver.template.spec, spec.executor.template.spec": _words(
        """
        containers initContainers volumes.* imagePullSecrets.* nodeSelector.* affinity.*
        tolerations.* topologySpreadConstraints.* priorityClassName preemptionPolicy schedulerName
        runtimeClassName serviceAccountName serviceAccount automountServiceAccountToken
        securityContext.* hostNetwork hostPID hostIPC dnsConfig.* dnsPolicy hostAliases.*
        enableServiceLinks shareProcessNamespace terminationGracePeriodSeconds activeDeadlineSeconds
        """
    ),
    "a container": _words(
        """
        name image imagePullPolicy command.* args.* workingDir env.* envFrom.* ports.* resources.*
        volumeMounts.* livenessProbe.* readinessProbe.* startupProbe.* lifecycle.* securityContext.*
        restartPolicy stdin tty terminationMessagePath terminationMessagePolicy
        """
    ),
}
"""By location. A `.*` at the end: the field with everything below it. A field that is allowed by
its name may still be refused for its value: `tandem.spark.application.policy`."""

REFUSED: Final[dict[str, str]] = {
    "spec.proxyUser": "it makes the Spark operator submit as another user",
    "spec.sparkConfigMap": "it brings settings that the policy does not see",
    "spec.hadoopConfigMap": "it brings settings that the policy does not see",
    "spec.monitoring": "it makes the Spark operator create a ConfigMap and add an agent to drivers",
    "spec.batchScheduler": "it makes the Spark operator create objects of another scheduler",
    "spec.batchSchedulerOptions": "it makes the Spark operator create objects of another scheduler",
    "spec.sparkUIOptions": "it makes the Spark operator create Services and Ingresses",
    "spec.driverIngressOptions": "it makes the Spark operator create Services and Ingresses",
    "spec.driverPodDisruptionBudget": "it makes the Spark operator create a PodDisruptionBudget",
    "spec.deps.packages": "the Spark operator would load them, with its own rights",
    "spec.deps.excludePackages": "the Spark operator would load packages, with its own rights",
    "spec.deps.repositories": "the Spark operator would contact them, with its own rights",
    "spec.driver.serviceAnnotations": "it makes the Spark operator annotate a Service",
    "spec.driver.template.spec.nodeName": "it bypasses the scheduler, and so taints",
    "spec.executor.template.spec.nodeName": "it bypasses the scheduler, and so taints",
}
"""Reasons for settings that a reader may look for; that of others is `not on the list`."""
