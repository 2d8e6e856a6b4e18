"""Templates by chance: pieces that an author would write, and the same with something odd in a
key, a value or an item of a list. What arrives of them is worked out here without the product's
code."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]

ODD = (
    "=", "==", ",", "\n", "\r", "\t", "\0", " ", "\x7f", "\x85", "\u2028", "\u00a0", "\ufeff",
    "${env:HOME}", "${spark.master}", "$(HOME)", "`id`", "$(id)", ";", "|", "'", '"', "\\", "#",
    "*", "?", "[a-z]", "{a,b}", "//", "/../", "%2c", "%0a", ":", "@", "--conf ", "é", "/", "..",
)  # fmt: skip
_SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("spark.sql.shuffle.partitions", (8, "200", "16")),
    ("spark.sql.adaptive.enabled", (True, "false")),
    ("spark.executor.memory", ("2g", "512m")),
    ("spark.executor.instances", (3, "2")),
    ("spark.driver.memoryOverhead", ("1g",)),
    ("spark.dynamicAllocation.maxExecutors", ("9",)),
    ("spark.local.dir", ("/spill", "/a,/b")),
    ("spark.driver.extraJavaOptions", ("-Xss4m -Dfile.encoding=UTF-8", "-javaagent:/opt/x.jar")),
    ("spark.kubernetes.node.selector.topology.kubernetes.io/zone", ("a-1",)),
    ("spark.kubernetes.driver.label.team", ("lake",)),
    ("spark.kubernetes.executor.annotation.prometheus.io/scrape", ("true",)),
    ("spark.kubernetes.driverEnv.LEVEL", ("debug", "a b=c,d")),
    ("spark.kubernetes.container.image", ("registry.example/spark:4.2",)),
    ("spark.kubernetes.driver.volumes.emptyDir.spill.mount.path", ("/spill",)),
    ("spark.eventLog.dir", ("s3a://logs/x",)),
)
_FORBIDDEN = (
    "spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles", "spark.jars.packages",
    "spark.jars.ivySettings", "spark.master", "spark.submit.deployMode", "spark.plugins",
    "spark.sql.ansi.enabled", "spark.sql.session.timeZone", "spark.extraListeners",
    "spark.kubernetes.file.upload.path", "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.driver.pod.featureSteps", "spark.kubernetes.namespace", "spark.remote",
    "spark.hadoop.fs.hdfs.impl", "spark.kubernetes.authenticate.submission.oauthToken",
    "spark.sql.extensions", "spark.kerberos.keytab", "spark.metrics.conf", "SPARK.MASTER",
    "spark.Files", "spark.redaction.regex", "spark.yarn.dist.files",
)  # fmt: skip
_TARGETS = (
    "hdfs://127.0.0.1:1/x", "file:///etc/passwd", "file:///var/run/secrets/*", "http://127.0.0.1:1/",
    "local:///opt/a.jar", "org.example.Evil", "false", "x",
)  # fmt: skip


def templates(count: int, seed: int) -> Iterator[Json]:
    """So many, always the same of a seed. About half have nothing odd."""
    chance = random.Random(seed)
    for _ in range(count):
        template: Json = {}
        pieces = [chance.choice(_PIECES) for _ in range(chance.randint(1, 5))]
        odd = chance.randrange(2 * len(pieces))
        for index, piece in enumerate(pieces):
            piece(chance, template, (lambda text: _odd(chance, text)) if index == odd else str)
        yield template


def _odd(chance: random.Random, value: Any) -> str:
    """Something odd within, before, behind or instead of it."""
    text, inserted = str(value), chance.choice(ODD)
    kind = chance.randrange(6)
    if kind == 0:
        return text + "\n"
    if kind == 1:
        return f"{chance.choice(_FORBIDDEN)}={chance.choice(_TARGETS)}{chance.choice(ODD)}"
    if kind == 2:
        return f"{text},{chance.choice(_TARGETS)}"
    at = chance.choice((0, len(text), chance.randint(0, len(text))))
    return text[:at] + inserted + text[at:]


_Odd = Callable[[Any], str]


def _key_or_value(chance: random.Random, key: str, value: Any, odd: _Odd) -> tuple[str, Any]:
    if odd is str:
        return key, value
    return (odd(key), value) if chance.random() < 0.6 else (key, odd(value))


def _conf(chance: random.Random, template: Json, odd: _Odd) -> None:
    key, values = chance.choice(_SETTINGS)
    if odd is not str and chance.random() < 0.3:
        key, values = chance.choice(_FORBIDDEN), _TARGETS
    key, value = _key_or_value(chance, key, chance.choice(values), odd)
    _spec(template).setdefault("sparkConf", {})[key] = value


def _hadoop(chance: random.Random, template: Json, odd: _Odd) -> None:
    if odd is not str:
        key = odd("fs.hdfs.impl")
        _spec(template).setdefault("hadoopConf", {})[key] = chance.choice(_TARGETS)


def _deps(chance: random.Random, template: Json, odd: _Odd) -> None:
    kind = chance.choice(("jars", "files", "pyFiles", "archives"))
    items = _spec(template).setdefault("deps", {}).setdefault(kind, [])
    items.append(odd(f"local:///opt/{chance.choice('abc')}.zip"))


def _map(chance: random.Random, template: Json, odd: _Odd) -> None:
    holder, name, key, value = chance.choice(
        (
            (template.setdefault("metadata", {}), "labels", "team", "lake"),
            (template.setdefault("metadata", {}), "annotations", "example.com/a", "b c"),
            (_pod(chance, template), "labels", "app.example/x", "y"),
            (_pod(chance, template), "annotations", "example.com/note", '{"a": 1, "b": "c"}'),
            (_pod(chance, template), "envVars", "LEVEL", "debug"),
            (_pod(chance, template), "nodeSelector", "disk", "nvme"),
            (_spec(template).setdefault("driver", {}), "serviceLabels", "a", "b"),
        )
    )
    key, value = _key_or_value(chance, key, value, odd)
    holder.setdefault(name, {})[key] = value


def _plain(chance: random.Random, template: Json, odd: _Odd) -> None:
    name, value = chance.choice(
        (
            ("memory", "3g"), ("memoryOverhead", "700m"), ("coreLimit", "2"), ("image", "mine:1"),
            ("javaOptions", "-Xss2m"), ("coreRequest", "500m"), ("serviceAccount", "tandem-spark"),
        )
    )  # fmt: skip
    _pod(chance, template)[name] = odd(value)


def _top(chance: random.Random, template: Json, odd: _Odd) -> None:
    name, value = chance.choice(
        (("image", "mine:2"), ("imagePullPolicy", "Always"), ("memoryOverheadFactor", "0.3"))
    )
    _spec(template)[name] = odd(value)


def _secrets(chance: random.Random, template: Json, odd: _Odd) -> None:
    _spec(template)["imagePullSecrets"] = [odd("registry")]
    secret = {"name": odd("keys"), "path": "/keys", "secretType": "Generic"}
    _pod(chance, template)["secrets"] = [secret]


def _volumes(chance: random.Random, template: Json, odd: _Odd) -> None:
    name = odd("spark-local-dir-1")
    _spec(template)["volumes"] = [{"name": name, "emptyDir": {}}]
    _pod(chance, template)["volumeMounts"] = [{"name": name, "mountPath": odd("/spill")}]


def _field(chance: random.Random, template: Json, odd: _Odd) -> None:
    """A field that is none of a template's, and one of the pods alone."""
    if odd is not str:
        names = ("proxyUser", "mainClass", "sparkConfigMap", "monitoring", "batchScheduler", "x")
        _spec(template)[chance.choice(names)] = "x"
    pod = _pod(chance, template)
    pod["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    pod["env"] = [{"name": "A", "value": "${B},c=d\n"}]


def _sizes(chance: random.Random, template: Json, odd: _Odd) -> None:
    _pod(chance, template)["cores"] = chance.randint(1, 4)
    if chance.random() < 0.5:
        _spec(template)["dynamicAllocation"] = {"enabled": True, "maxExecutors": 5}


_PIECES = (
    _conf, _conf, _conf, _hadoop, _deps, _deps, _map, _map, _plain, _top, _secrets, _volumes,
    _field, _sizes,
)  # fmt: skip


def _spec(template: Json) -> Json:
    found: Json = template.setdefault("spec", {})
    return found


def _pod(chance: random.Random, template: Json) -> Json:
    found: Json = _spec(template).setdefault(chance.choice(("driver", "executor")), {})
    return found


def expected_properties(application: Json) -> dict[str, str]:
    """The settings that an application asks for, by the meaning of its fields: not by how any
    program writes or splits them. What the Spark operator adds by itself is not among them."""
    metadata, spec = application["metadata"], application["spec"]
    found: dict[str, str] = {"spark.kubernetes.namespace": metadata["namespace"]}

    def put(key: str, value: Any) -> None:
        if value is not None:
            found[key] = value if isinstance(value, str) else str(value).lower()

    put("spark.kubernetes.container.image", spec.get("image"))
    put("spark.kubernetes.container.image.pullPolicy", spec.get("imagePullPolicy"))
    if spec.get("imagePullSecrets"):
        put("spark.kubernetes.container.image.pullSecrets", ",".join(spec["imagePullSecrets"]))
    put("spark.kubernetes.pyspark.pythonVersion", spec.get("pythonVersion"))
    put("spark.kubernetes.memoryOverheadFactor", spec.get("memoryOverheadFactor"))
    for key, value in (spec.get("sparkConf") or {}).items():
        put(key, value)
    for key, value in (spec.get("hadoopConf") or {}).items():
        put(f"spark.hadoop.{key}", value)
    for part in ("driver", "executor"):
        _expected_pod(part, spec, metadata, put)
    put("spark.executor.instances", spec["executor"].get("instances"))
    for key, value in (spec.get("nodeSelector") or {}).items():
        put(f"spark.kubernetes.node.selector.{key}", value)
    dynamic = copy.copy(spec.get("dynamicAllocation") or {})
    if dynamic.pop("enabled", False):
        put("spark.dynamicAllocation.enabled", True)
        put("spark.dynamicAllocation.shuffleTracking.enabled", True)
        for key, value in dynamic.items():
            put(f"spark.dynamicAllocation.{key}", value)
    return found


def _expected_pod(part: str, spec: Json, metadata: Json, put: Callable[[str, Any], None]) -> None:
    pod, at = spec[part], f"spark.kubernetes.{part}"
    put(f"{at}.container.image", pod.get("image") or spec.get("image"))
    put(f"spark.{part}.cores", pod.get("cores"))
    put(f"{at}.request.cores", pod.get("coreRequest"))
    put(f"{at}.limit.cores", pod.get("coreLimit"))
    put(f"spark.{part}.memory", pod.get("memory"))
    put(f"spark.{part}.memoryOverhead", pod.get("memoryOverhead"))
    put(f"spark.kubernetes.authenticate.{part}.serviceAccountName", pod.get("serviceAccount"))
    put(f"spark.{part}.extraJavaOptions", pod.get("javaOptions"))
    put("spark.kubernetes.driver.master", pod.get("kubernetesMaster"))
    for key, value in [*metadata["labels"].items(), *(pod.get("labels") or {}).items()]:
        put(f"{at}.label.{key}", value)
    for key, value in (pod.get("annotations") or {}).items():
        put(f"{at}.annotation.{key}", value)
    for key, value in (pod.get("serviceLabels") or {}).items():
        put(f"{at}.service.label.{key}", value)
    env = "spark.kubernetes.driverEnv" if part == "driver" else "spark.executorEnv"
    for key, value in (pod.get("envVars") or {}).items():
        put(f"{env}.{key}", value)
    for secret in pod.get("secrets") or ():
        put(f"{at}.secrets.{secret['name']}", secret["path"])
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    for mount in pod.get("volumeMounts") or ():
        if mount["name"].startswith("spark-local-dir-") and mount["name"] in volumes:
            put(f"{at}.volumes.emptyDir.{mount['name']}.mount.path", mount["mountPath"])
