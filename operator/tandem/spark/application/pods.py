"""Additions to the pods of an application beyond its template: credentials, no privileges, and a
writable volume. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandem.json_types import Json
from tandem.spark.application import template as templates
from tandem.spark.application.status import DRIVER_CONTAINER, EXECUTOR_CONTAINER

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
_SCRATCH_VOLUME: Final = "tandem-tmp"


def complete_pods(spec: Json, secret_name: str | None, *, driver_only: bool) -> None:
    """Add credentials; no token of the API server if the job uses none; and a pod template with
    everything that must also apply in a cluster without the Spark operator's webhook, since only
    the webhook applies the fields outside the template."""
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
    pod["template"]["spec"]["volumes"] = [*volumes, {"name": _SCRATCH_VOLUME, "emptyDir": {}}]
    container["volumeMounts"] = [*mounts, {"name": _SCRATCH_VOLUME, "mountPath": SCRATCH}]
