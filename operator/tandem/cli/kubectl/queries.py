"""Reads from the API server what a command shows, and no more.

Operations that succeeded are taken from the status of their tables: there may be tens of
thousands.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.cli.kubectl.access import Access
from tandem.errors import AccessDenied, InvalidSpec, ReferenceNotFound, TandemError
from tandem.json_types import Json
from tandem.kube.client.api import ResourcePath
from tandem.kube.client.resources import TABLE_KIND, path
from tandem.spec.common import GROUP, OPERATIONS
from tandem.spec.index import IndexServer
from tandem.spec.status import Phase

OPERATOR_LABELS = "app.kubernetes.io/part-of=tandem,app.kubernetes.io/component=operator"
OPERATOR_NAMESPACE = "tandem-system"
"""The usual namespace of the operator, which is searched if not all namespaces can be listed."""
_UNENDED = f"status.phase!={Phase.SUCCEEDED},status.phase!={Phase.SUPERSEDED}"


async def tables(access: Access, name: str | None = None) -> list[Json]:
    """The LakeTables of the namespace, or one of them. Raises: as `Access`."""
    if name is None:
        return await access.list(path(TABLE_KIND, access.scope))
    if access.all_namespaces:
        found = await access.list(path(TABLE_KIND), fields=f"metadata.name={name}")
        return found or [await access.get(path(TABLE_KIND, access.namespace, name))]
    return [await access.get(path(TABLE_KIND, access.namespace, name))]


async def index_servers(access: Access) -> list[Json]:
    """The IndexServers of the namespace; none where the cluster does not have the kind, or does not
    show it. Raises: as `Access`."""
    try:
        return await access.list(path(IndexServer.kind_name, access.scope))
    except (AccessDenied, ReferenceNotFound):
        return []


async def operations(
    access: Access, table: str | None = None, *, ended_well: bool = False
) -> list[Json]:
    """Operations of all kinds, in no particular order. Raises: as `Access`."""
    fields = [
        *([f"spec.tableRef.name={table}"] if table else []),
        *([] if ended_well else [_UNENDED]),
    ]
    found = await asyncio.gather(
        *(_listed(access, path(kind, access.scope), ",".join(fields)) for kind in OPERATIONS)
    )
    every = [item for items in found for item in items]
    # A server that does not support the selector has returned all.
    if not ended_well:
        well = (Phase.SUCCEEDED, Phase.SUPERSEDED)
        every = [o for o in every if (o.get("status") or {}).get("phase") not in well]
    if table:
        every = [o for o in every if (o["spec"].get("tableRef") or {}).get("name") == table]
    return every


async def _listed(access: Access, collection: ResourcePath, fields: str) -> list[Json]:
    try:
        return await access.list(collection, fields=fields)
    except InvalidSpec:
        # Older clusters support field selectors by name and namespace only.
        return await access.list(collection)


async def events(access: Access) -> list[Json]:
    """The events of our resources. Raises: as `Access`."""
    found = await access.list(ResourcePath("", "v1", "events", access.scope))
    return [
        event
        for event in found
        if str((event.get("involvedObject") or {}).get("apiVersion", "")).startswith(f"{GROUP}/")
    ]


async def operator(access: Access) -> Json:
    """The operator's pods and its leader, as far as the user may read them, or the reason why
    not."""
    try:
        pods, where = await operator_pods(access)
    except TandemError as error:
        return {"ok": True, "visible": False, "summary": f"not visible: {error.message}"}
    found = await asyncio.gather(*(_health(access, pod) for pod in pods))
    members = [_member(pod, facts) for pod, facts in zip(pods, found, strict=True)]
    return {"visible": True, "pods": members, **summary(members, where)}


async def operator_pods(access: Access) -> tuple[list[Json], str]:
    """The operator's pods, and a description of where they were searched. Raises: as `Access`."""
    pods = ResourcePath("", "v1", "pods")
    try:
        return await access.list(pods, labels=OPERATOR_LABELS), "in any namespace"
    except AccessDenied:
        found = await access.list(pods.at(OPERATOR_NAMESPACE), labels=OPERATOR_LABELS)
        return found, f"in namespace {OPERATOR_NAMESPACE}"


async def _health(access: Access, pod: Mapping[str, Any]) -> Json:
    """The health page of a pod; {} if it cannot be read."""
    if (pod.get("status") or {}).get("phase") != "Running":
        return {}
    metadata = pod["metadata"]
    where = ResourcePath("", "v1", "pods", metadata["namespace"], metadata["name"])
    try:
        answer = json.loads(await access.from_pod(where, health_port(pod), "healthz"))
    except (TandemError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def health_port(pod: Mapping[str, Any]) -> str:
    """The name or number of the port of its health page."""
    ports = [
        port
        for container in (pod.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
    ]
    for name in ("health", "http", "metrics"):
        for port in ports:
            if port.get("name") == name:
                return str(port["containerPort"])
    return "8080"


def _member(pod: Mapping[str, Any], facts: Mapping[str, Any]) -> Json:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    containers = status.get("containerStatuses") or ()
    spec = pod.get("spec") or {}
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True"
        for c in status.get("conditions") or ()
    )
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase", "Unknown"),
        "ready": ready,
        "restarts": sum(int(c.get("restartCount", 0)) for c in containers),
        "version": facts.get("version") or labels.get("app.kubernetes.io/version"),
        "image": next((c.get("image") for c in spec.get("containers") or ()), None),
        "leads": facts.get("leads"),
    }


def summary(members: Sequence[Mapping[str, Any]], where: str) -> Json:
    """`ok`, and a line of text. Pure."""
    if not members:
        return {"ok": False, "summary": f"none of its pods is visible {where}"}
    ready = sum(bool(m["ready"]) for m in members)
    versions = sorted({str(m["version"]) for m in members if m.get("version")})
    leaders = [m for m in members if m.get("leads")]
    restarts = sum(m["restarts"] for m in members)
    parts = [f"{ready} of {len(members)} pods ready in {members[0]['namespace']}"]
    if versions:
        parts.append(f"version {' and '.join(versions)}")
    if leaders:
        parts.append(f"leader {leaders[0]['name']}")
    elif any(m.get("leads") is not None for m in members):
        parts.append("no leader")
    if restarts:
        parts.append(f"{restarts} restart{'s' if restarts > 1 else ''}")
    return {"ok": ready == len(members), "summary": ", ".join(parts)}
