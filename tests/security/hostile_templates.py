"""Pieces of SparkApplications: those that reach for more than the job's pods, with the path by
which they are to be refused, and those that do not."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SAFE: Json = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
DRIVER = "spark-kubernetes-driver"


def spec(**fields: Any) -> Json:
    return {"spec": fields}


def conf(key: str, value: str = "x") -> Json:
    return spec(sparkConf={key: value})


def driver(**fields: Any) -> Json:
    return spec(driver=fields)


def pod(**fields: Any) -> Json:
    return driver(template={"spec": fields})


def container(**fields: Any) -> Json:
    return pod(containers=[{"name": DRIVER, **fields}])


def context(**fields: Any) -> Json:
    return container(securityContext={**SAFE, **fields})


def sidecar(**fields: Any) -> Json:
    return {"name": "beside", "image": "i", **fields}


POD = "spec.driver.template.spec"
CONTAINER = f"{POD}.containers.{DRIVER}"


def setting(key: str, value: str = "x") -> tuple[Json, str]:
    """A setting of Spark, and its path."""
    return conf(key, value), f"spec.sparkConf.{key}"


HOSTILE: dict[str, tuple[Json, str]] = {
    "a pod without its account": setting(
        "spark.kubernetes.driver.pod.excludedFeatureSteps",
        "org.apache.spark.deploy.k8s.features.DriverKubernetesCredentialsFeatureStep",
    ),
    "a claim that the submitter creates": setting(
        "spark.kubernetes.driver.volumes.persistentVolumeClaim.x.options.claimName", "OnDemand"
    ),
    # Out of the pod.
    "host path": (
        spec(volumes=[{"name": "h", "hostPath": {"path": "/"}}]),
        "spec.volumes.h.hostPath",
    ),
    "host path in the pod template": (
        pod(volumes=[{"name": "h", "hostPath": {"path": "/var/run/containerd"}}]),
        f"{POD}.volumes.h.hostPath",
    ),
    "host path of executors": (
        spec(executor={"template": {"spec": {"volumes": [{"name": "h", "hostPath": {}}]}}}),
        "spec.executor.template.spec.volumes.h.hostPath",
    ),
    "host path by a setting": setting(
        "spark.kubernetes.driver.volumes.hostPath.h.mount.path", "/host"
    ),
    "host path beside another volume": (
        spec(volumes=[{"name": "both", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        "spec.volumes.both.hostPath",
    ),
    "nfs": (spec(volumes=[{"name": "n", "nfs": {"server": "s"}}]), "spec.volumes.n.nfs"),
    "host network": (driver(hostNetwork=True), "spec.driver.hostNetwork"),
    "host network in the template": (pod(hostNetwork=True), f"{POD}.hostNetwork"),
    "host pid": (pod(hostPID=True), f"{POD}.hostPID"),
    "host ipc": (pod(hostIPC=True), f"{POD}.hostIPC"),
    "host port": (container(ports=[{"containerPort": 1, "hostPort": 1}]), f"{CONTAINER}.ports"),
    "probe of another host": (
        container(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}}),
        f"{CONTAINER}.httpGet.host",
    ),
    "hook to another host": (
        driver(lifecycle={"preStop": {"httpGet": {"host": "10.0.0.1", "port": 1}}}),
        "spec.driver.httpGet.host",
    ),
    # More rights in it.
    "privileged": (context(privileged=True), f"{CONTAINER}.securityContext.privileged"),
    "privileged field": (
        driver(securityContext={"privileged": True}),
        "spec.driver.securityContext.privileged",
    ),
    "root": (driver(securityContext={"runAsUser": 0}), "spec.driver.securityContext.runAsUser"),
    "root pod": (
        driver(podSecurityContext={"runAsUser": 0}),
        "spec.driver.podSecurityContext.runAsUser",
    ),
    "may be root": (
        driver(securityContext={"runAsNonRoot": False}),
        "spec.driver.securityContext.runAsNonRoot",
    ),
    "no context at all": (
        driver(securityContext=None),
        "spec.driver.securityContext.allowPrivilegeEscalation",
    ),
    "no context in the template": (
        container(securityContext=None),
        f"{CONTAINER}.securityContext.allowPrivilegeEscalation",
    ),
    "escalation": (
        driver(securityContext={"allowPrivilegeEscalation": True}),
        "spec.driver.securityContext.allowPrivilegeEscalation",
    ),
    "capabilities": (
        driver(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "spec.driver.securityContext.capabilities.add",
    ),
    "capabilities kept": (
        driver(securityContext={"capabilities": {"drop": []}}),
        "spec.driver.securityContext.capabilities.drop",
    ),
    "seccomp off": (
        driver(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "spec.driver.securityContext.seccompProfile",
    ),
    "seccomp off in the pod": (
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        f"{POD}.securityContext.seccompProfile",
    ),
    "proc unmasked": (context(procMount="Unmasked"), f"{CONTAINER}.securityContext.procMount"),
    "apparmor off": (
        driver(annotations={f"container.apparmor.security.beta.kubernetes.io/{DRIVER}": "x"}),
        f"spec.driver.annotations.container.apparmor.security.beta.kubernetes.io/{DRIVER}",
    ),
    "apparmor off by a setting": setting(
        "spark.kubernetes.driver.annotation.container.apparmor.security.beta", "unconfined"
    ),
    "selinux": (
        context(seLinuxOptions={"type": "spc_t"}),
        f"{CONTAINER}.securityContext.seLinuxOptions",
    ),
    "sysctl": (
        pod(securityContext={"sysctls": [{"name": "kernel.core_pattern", "value": "|x"}]}),
        f"{POD}.securityContext.sysctls",
    ),
    "host process": (
        pod(securityContext={"windowsOptions": {"hostProcess": True}}),
        f"{POD}.securityContext.windowsOptions.hostProcess",
    ),
    "init container": (
        driver(initContainers=[sidecar()]),
        "spec.driver.initContainers.beside.securityContext.allowPrivilegeEscalation",
    ),
    "privileged init container": (
        pod(initContainers=[sidecar(securityContext={**SAFE, "privileged": True})]),
        f"{POD}.initContainers.beside.securityContext.privileged",
    ),
    "privileged sidecar": (
        spec(executor={"sidecars": [sidecar(securityContext={**SAFE, "privileged": True})]}),
        "spec.executor.sidecars.beside.securityContext.privileged",
    ),
    "root sidecar": (
        driver(sidecars=[sidecar(securityContext={**SAFE, "runAsUser": 0})]),
        "spec.driver.sidecars.beside.securityContext.runAsUser",
    ),
    # Another identity.
    "another account": (driver(serviceAccount="admin"), "spec.driver.serviceAccount"),
    "another account of executors": (
        spec(executor={"serviceAccount": "admin"}),
        "spec.executor.serviceAccount",
    ),
    "another account in the template": (
        pod(serviceAccountName="admin"),
        f"{POD}.serviceAccountName",
    ),
    "another account by a setting": setting(
        "spark.kubernetes.authenticate.driver.serviceAccountName", "admin"
    ),
    "a proxy user": (spec(proxyUser="hdfs"), "spec.proxyUser"),
    # The Spark operator's own pod, in which spark-submit runs.
    **{
        key: (conf(key), f"spec.sparkConf.{key}")
        for key in (
            "spark.kubernetes.authenticate.submission.oauthTokenFile",
            "spark.kubernetes.authenticate.submission.oauthToken",
            "spark.kubernetes.authenticate.driver.oauthTokenFile",
            "spark.kubernetes.authenticate.driver.clientKeyFile",
            "spark.kubernetes.authenticate.driver.mounted.caCertFile",
            "spark.kubernetes.authenticate.caCertFile",
            "spark.kubernetes.authenticate.executor.serviceAccountName",
            "spark.kubernetes.file.upload.path",
            "spark.kubernetes.context",
            "spark.kubernetes.trust.certificates",
            "spark.kubernetes.kerberos.krb5.path",
            "spark.kubernetes.hadoop.configMapName",
            "spark.kubernetes.submission.waitAppCompletion",
            "spark.kubernetes.driver.pod.featureSteps",
            "spark.kubernetes.executor.pod.featureSteps",
            "spark.kubernetes.executor.volumes.nfs.x.options.server",
            "spark.kubernetes.executor.volumes.hostPath.x.options.path",
            "spark.jars",
            "spark.jars.packages",
            "spark.jars.repositories",
            "spark.jars.ivySettings",
            "spark.files",
            "spark.archives",
            "spark.submit.pyFiles",
            "spark.kerberos.keytab",
            "spark.kerberos.principal",
            "spark.yarn.keytab",
            "spark.security.credentials.hbase.enabled",
            "spark.hadoop.hadoop.security.credential.provider.path",
            "spark.hadoop.fs.s3a.aws.credentials.provider",
            "spark.hadoop.hadoop.security.group.mapping",
            "SPARK.JARS.PACKAGES",
        )
    },
    "remote jars": (spec(deps={"jars": ["https://evil.example/x.jar"]}), "spec.deps.jars"),
    "files of the Spark operator's pod": (
        spec(deps={"files": ["local:///a", "file:///var/run/secrets/x/token"]}),
        "spec.deps.files",
    ),
    "packages": (spec(deps={"packages": ["evil:evil:1"]}), "spec.deps.packages"),
    "repositories": (spec(deps={"repositories": ["https://x"]}), "spec.deps.repositories"),
    "hadoop settings": (
        spec(hadoopConf={"fs.s3a.assumed.role.arn": "x"}),
        "spec.hadoopConf.fs.s3a.assumed.role.arn",
    ),
    "settings of a config map": (spec(sparkConfigMap="mine"), "spec.sparkConfigMap"),
    "hadoop settings of a config map": (spec(hadoopConfigMap="mine"), "spec.hadoopConfigMap"),
    "an ingress": (
        spec(sparkUIOptions={"ingressAnnotations": {"nginx.ingress/snippet": "x"}}),
        "spec.sparkUIOptions",
    ),
    "a driver's ingress": (
        spec(driverIngressOptions=[{"servicePort": 1}]),
        "spec.driverIngressOptions",
    ),
    # Texts that Spark replaces in the Spark operator's pod, or that are for other programs.
    "a variable in an image's name": (spec(image="evil/${env:TOKEN}"), "spec.image"),
    "a variable in a setting": setting(
        "spark.kubernetes.driver.container.image", "evil/${env:TOKEN}"
    ),
    "a path in a local file": (spec(deps={"jars": ["local:///a/../b.jar"]}), "spec.deps.jars"),
    "a pattern of files": (spec(deps={"files": ["local:///opt/*"]}), "spec.deps.files"),
    "another host's local file": (spec(deps={"files": ["local://h/a"]}), "spec.deps.files"),
    "a listener": setting("spark.extraListeners", "evil.Listener"),
    "an unknown setting": setting("my.setting"),
    "an unknown field": (spec(unknown=True), "spec.unknown"),
    "a field in another case": (spec(SparkConf={"spark.jars": "x"}), "spec.SparkConf"),
    "monitoring": (spec(monitoring={"exposeDriverMetrics": True}), "spec.monitoring"),
    "another scheduler": (spec(batchScheduler="volcano"), "spec.batchScheduler"),
    "a node by name": (pod(nodeName="master"), f"{POD}.nodeName"),
    "an owner of the pod": (
        driver(template={"metadata": {"ownerReferences": []}}),
        "spec.driver.template.metadata.ownerReferences",
    ),
    "an unknown field of a container": (
        container(volumeDevices=[{"devicePath": "/dev/sda"}]),
        f"{CONTAINER}.volumeDevices",
    ),
    "a service's annotations": (
        driver(serviceAnnotations={"external-dns/hostname": "bank.example"}),
        "spec.driver.serviceAnnotations",
    ),
}

# These are no question of policy: they are set by us, whatever it is.
OURS = {
    "another program": (spec(mainApplicationFile="local:///tmp/x.py"), "spec.mainApplicationFile"),
    "another class": (spec(mainClass="Evil"), "spec.mainClass"),
    "other arguments": (spec(arguments=["--location", "s3://other"]), "spec.arguments"),
    "another namespace": (conf("spark.kubernetes.namespace", "other"), "spec.sparkConf.spark.kube"),
    "a template's file": (
        conf("spark.kubernetes.driver.podTemplateFile", "https://evil.example/pod.yaml"),
        "spec.sparkConf.spark.kubernetes.driver.podTemplateFile",
    ),
    "another cluster": (conf("spark.master", "k8s://evil.example"), "spec.sparkConf.spark.master"),
    "files as tables": (conf("spark.sql.runSQLOnFiles", "true"), "spec.sparkConf.spark.sql.runSQL"),
    "another owner": ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
    "pods of another job": (
        driver(labels={"sparkoperator.k8s.io/app-name": "tandem-other"}),
        "spec.driver.labels.sparkoperator.k8s.io/app-name",
    ),
    "executors of another job, by a setting": (
        conf("spark.kubernetes.executor.label.sparkoperator.k8s.io/app-name", "tandem-other"),
        "spec.sparkConf.spark.kubernetes.executor.label.sparkoperator.k8s.io/app-name",
    ),
    "another job, by the pod template": (
        driver(template={"metadata": {"labels": {"sparkoperator.k8s.io/app-name": "x"}}}),
        "spec.driver.template.metadata.labels.sparkoperator.k8s.io/app-name",
    ),
    "another place": ({"metadata": {"namespace": "other"}}, "metadata.namespace"),
}

# Texts that arrive as something else at Spark: refused whatever the policy is.
SPLIT: dict[str, tuple[Json, str]] = {
    **{
        f"a key {key!r}": (conf(key), "spec.sparkConf.")
        for key in (
            "spark.files=hdfs://169.254.169.254:80/x,",
            "spark.jars=https://evil.example/x.jar",
            "spark.master=k8s://evil.example",
            "spark.sql.ansi.enabled=false",
            "spark.hadoop.fs.hdfs.impl\n",
            "spark.sql.shuffle.partitions\n",
            "\nspark.sql.shuffle.partitions",
            " spark.sql.shuffle.partitions",
            "spark.sql.shuffle.partitions\0",
            "spark.sql.shuffle.partitions\u2028",
            "spark.sql.shuffle.partitions,spark.jars",
            "spark.kubernetes.driver.label.a=b",
            "spark.kubernetes.node.selector.a/b/c",
            "spark.ſql.shuffle.partitions",
            "",
        )
    },
    "a hadoop key with a line break": (
        spec(hadoopConf={"fs.hdfs.impl\n": "x"}),
        "spec.hadoopConf.fs.hdfs.impl\\n",
    ),
    "a hadoop key with =": (spec(hadoopConf={"a=b": "x"}), "spec.hadoopConf.a=b"),
    "commas in a file": (
        spec(deps={"files": ["local:///x,hdfs://host/x,file:///var/run/secrets/x/*"]}),
        "spec.deps.files.0",
    ),
    "commas in a jar": (
        spec(deps={"jars": ["local:///x,http://evil.example/x"]}),
        "spec.deps.jars.0",
    ),
    "a blank in an archive": (spec(deps={"archives": ["local:///x "]}), "spec.deps.archives.0"),
    "a text for a list": (spec(deps={"jars": "local:///x,http://evil"}), "spec.deps.jars"),
    "an empty item": (spec(deps={"pyFiles": [""]}), "spec.deps.pyFiles.0"),
    "commas in a secret of images": (spec(imagePullSecrets=["a,b"]), "spec.imagePullSecrets.0"),
    "a line break in a value": setting("spark.executor.memory", "1g\nspark.jars=x"),
    "a line break in an image": (spec(image="mine\n"), "spec.image"),
    "a line break in Java options": (driver(javaOptions="-Xss1m\n"), "spec.driver.javaOptions"),
    "a mapping as a value": setting("spark.executor.memory", {"a": 1}),  # type: ignore[arg-type]
    "= in a label": (driver(labels={"a=b": "c"}), "spec.driver.labels.a=b"),
    "= in an annotation": ({"metadata": {"annotations": {"a=b": "c"}}}, "metadata.annotations.a=b"),
    "= in a node selector": (spec(nodeSelector={"a=b": "c"}), "spec.nodeSelector.a=b"),
    "= in a variable": (driver(envVars={"A=B": "c"}), "spec.driver.envVars.A=B"),
    "= in a secret's name": (
        driver(secrets=[{"name": "a=b", "path": "/x"}]),
        "spec.driver.secrets.0.name",
    ),
    "= in a volume's name": (
        spec(volumes=[{"name": "spark-local-dir-a=b", "emptyDir": {}}]),
        "spec.volumes.0.name",
    ),
    "a pinned setting by Java": (
        driver(javaOptions="-Xss1m -Dspark.sql.ansi.enabled=false"),
        "spec.driver.javaOptions",
    ),
    "the same in quotes": setting(
        "spark.driver.extraJavaOptions", "'-Ds'\\park.sql.ansi.enabled=false"
    ),
    "a pinned setting in another case": setting("Spark.SQL.ansi.Enabled", "false"),
    "a session elsewhere": setting("spark.remote", "sc://evil"),
}

HARMLESS: dict[str, Json] = {
    "image": spec(image="mine:1", driver={"image": "mine:2"}),
    "sizes": driver(cores=4, memory="8g", coreLimit="4"),
    "placement": driver(nodeSelector={"a": "b"}, tolerations=[{"operator": "Exists"}]),
    "node settings": conf("spark.kubernetes.node.selector.disk", "ssd"),
    "volumes": spec(
        volumes=[
            {"name": "a", "emptyDir": {}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "d", "secret": {"secretName": "s"}},
            {"name": "e", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        ]
    ),
    "spill": conf("spark.kubernetes.driver.volumes.emptyDir.spill.mount.path", "/spill"),
    "options of the Java in the pod": conf("spark.driver.extraJavaOptions", "-javaagent:/x.jar"),
    "environment": driver(env=[{"name": "A", "value": "b"}], envSecretKeyRefs={}),
    "a sidecar that keeps to it": driver(sidecars=[sidecar(securityContext=SAFE)]),
    "jars of the image": spec(deps={"jars": ["local:///opt/x.jar"]}),
    "the job's own account": driver(serviceAccount="tandem-spark"),
    "a stricter container": driver(securityContext={"readOnlyRootFilesystem": True}),
    "another user": driver(securityContext={"runAsUser": 1000}),
    "labels": {"metadata": {"labels": {"team": "a"}}, "spec": {"driver": {"labels": {"a": "b"}}}},
    "session": conf("spark.sql.files.maxPartitionBytes", "1"),
    "allocation": conf("spark.kubernetes.allocation.batch.size", "5"),
    "partitions": conf("spark.sql.shuffle.partitions", "64"),
    "a zone": conf("spark.kubernetes.node.selector.topology.kubernetes.io/zone", "a"),
    "a part of the zone": spec(nodeSelector={"topology.kubernetes.io/zone": "a"}),
    "dynamic executors": spec(dynamicAllocation={"enabled": True, "maxExecutors": 4}),
    "a variable of the shell in a container": driver(
        sidecars=[sidecar(securityContext=SAFE, command=["sh", "-c", "echo ${A}\necho b"])]
    ),
    "a long annotation of the pod": driver(
        template={"metadata": {"annotations": {"example.com/a": "b\nc=${d}"}}}
    ),
}
