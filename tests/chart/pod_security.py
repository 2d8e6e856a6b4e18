"""What a pod has that Pod Security's "restricted" forbids, and what we forbid beyond it.

An opinion of our own, which shows what is missing; tests ask the API server's admission, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
_HOST = ("hostNetwork", "hostPID", "hostIPC")


def all_containers(pod: Json) -> list[Json]:
    """With their init and ephemeral ones."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [container for kind in kinds for container in pod.get(kind) or ()]


def restricted(pod: Json) -> list[str]:
    """Each violation of the profile "restricted" in a few words."""
    return [*_of_pod(pod), *(f for c in all_containers(pod) for f in _of_container(c, pod))]


def _of_pod(pod: Json) -> Iterator[str]:
    context = pod.get("securityContext") or {}
    for name in _HOST:
        if pod.get(name):
            yield name
    if context.get("sysctls"):
        yield "sysctls"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield "hostProcess"
    for volume in pod.get("volumes") or ():
        for kind in set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']} is a {kind}"
    for name in ("seLinuxOptions", "procMount"):
        if context.get(name):
            yield name


def _of_container(container: Json, pod: Json) -> Iterator[str]:
    name = container["name"]
    of_pod = pod.get("securityContext") or {}
    own = container.get("securityContext") or {}

    def effective(key: str) -> Any:
        return own[key] if key in own else of_pod.get(key)

    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if effective("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot"
    if effective("runAsUser") == 0:
        yield f"{name}: runAsUser 0"
    if (effective("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: seccompProfile"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield f"{name}: capabilities"
    for added in set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capability {added}"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"{name}: hostPort"


def beyond(pod: Json) -> list[str]:
    """What is allowed there, and not with us: a writable root, no limit of memory, no requests,
    environment variables of all services."""
    found = [] if pod.get("enableServiceLinks") is False else ["enableServiceLinks"]
    for container in all_containers(pod):
        name, resources = container["name"], container.get("resources") or {}
        if not (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            found.append(f"{name}: readOnlyRootFilesystem")
        if "memory" not in (resources.get("limits") or {}):
            found.append(f"{name}: no limit of memory")
        if not {"cpu", "memory"} <= set(resources.get("requests") or ()):
            found.append(f"{name}: no requests")
    return found
