"""What makes an application of Spark one that serves until it is deleted. Pure.

It differs from a job: it is started again whenever it ends, is never removed by a time to live,
gets its credentials as files (a Secret a folder, so that two tables can have different ones), and
its driver's pod is what a Service selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.json_types import Json
from tandem.spark.application.port import ServicePlacement
from tandem.spark.application.sizes import MIB
from tandem.spark.application.status import DRIVER_CONTAINER, EXECUTOR_CONTAINER

HEAP: Final = 512 * MIB
"""Of the driver: no data passes through its JVM."""
BESIDE: Final = 512 * MIB
"""Memory of the Python process beside what it holds: interpreter, requests, answers under way."""
_RETRY_S: Final = 10
_SCRATCH: Final = "tandem-tmp"
EXECUTOR_CORES: Final = 1


def sizes(service: ServicePlacement) -> Json:
    """What a template of the resource may still change."""
    size = {"memory": f"{HEAP // MIB}m", "memoryOverhead": f"{_holding(service)}m"}
    spec: Json = {"driver": {"cores": 2, **size}}
    if service.executors:
        spec["executor"] = {"cores": EXECUTOR_CORES, "instances": service.executors, **size}
        spec["sparkConf"] = dict(service.conf)
    return {"spec": spec}


def complete(body: Json, service: ServicePlacement) -> Json:
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


def _holding(service: ServicePlacement) -> int:
    """Memory beside the JVM's heap, in MiB."""
    return (service.memory + BESIDE) // MIB
