"""`kubectl tandem report`: a bundle for a bug report, of everything that the user may read.

Secrets are never read. What cannot be read is not an error: the bundle's manifest lists what is
missing, and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

import tandem
from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.arguments import Flags
from tandem.cli.kubectl.commands import now_ms
from tandem.cli.kubectl.overview import id_of, namespace_of
from tandem.cli.kubectl.redact import Redactor
from tandem.errors import AccessDenied, InvalidSpec, TandemError
from tandem.json_types import Json
from tandem.kube.client.api import ResourcePath
from tandem.kube.client.resources import status_of
from tandem.spec.common import GROUP, MANAGED_BY, PREFIX, TABLE_LABEL, label_value, plural
from tandem.spec.resources import KINDS

_T = TypeVar("_T")
_MOST_OPERATIONS = 500
_MOST_LOGS = 20
_FOLDER = "tandem-report"
_APP_NAME = "sparkoperator.k8s.io/app-name"
_APPLICATIONS = ResourcePath("sparkoperator.k8s.io", "v1beta2", "sparkapplications")
_DEPLOYMENTS = ResourcePath("apps", "v1", "deployments")
_PODS = ResourcePath("", "v1", "pods")
_CRDS = ResourcePath("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_NEVER = (
    "Secrets: never read.",
    "Values of the Helm release: Helm keeps them in a Secret. The operator's settings are the "
    "arguments in operator/pods.yaml.",
    "Environment variables, Spark settings, options, annotations and labels of unknown names: "
    "values other than numbers, sizes and times are removed.",
    "Data of tables, and their logs below the location: never read.",
)


class Bundle:
    """The files of a report, and notes about them."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.files: dict[str, Any] = {}
        self.missing: list[Json] = []

    def add(self, name: str, content: Any) -> None:
        """Add data, as YAML, or a text."""
        self.files[name] = content

    async def reading(self, what: str, pending: Awaitable[_T]) -> _T | None:
        """The result of a read; None if it fails, which is noted."""
        try:
            return await pending
        except TandemError as error:
            self.missing.append({"what": what, "why": error.message, "reason": str(error.reason)})
            return None

    def pack(self, manifest: Mapping[str, Any]) -> bytes:
        """The bundle as tar.gz."""
        texts = {}
        for name, content in self.files.items():
            clean = self.redactor.finish(content)
            texts[name] = clean if isinstance(clean, str) else yaml_text(clean)
        listed = {
            **manifest,
            "included": {name: len(text.encode()) for name, text in sorted(texts.items())},
            "missing": self.redactor.finish(self.missing),
            "never": list(_NEVER),
        }
        texts["manifest.json"] = json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, text in sorted(texts.items()):
                data = text.encode()
                entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
        return packed.getvalue()


def yaml_text(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10_000)


def report(
    flags: Flags, table: str | None, *, file: Path | None, redact_statements: bool, log_lines: int
) -> Exit:
    """Write a bundle. Raises: InvalidSpec if it would be written to a terminal."""
    if file is None and sys.stdout.isatty():
        raise InvalidSpec(
            "a bundle cannot be written to a terminal",
            resource="report",
            remedy="Redirect it (kubectl tandem report > bundle.tar.gz), or name a file with -f",
        )

    async def work(access: Access) -> Exit:
        bundle = Bundle(Redactor(statements=redact_statements))
        with contextlib.suppress(AccessDenied):  # also shows that the API server is reachable
            await access.page("/version")
        await collect(access, bundle, table, log_lines)
        manifest = {
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "by": f"kubectl tandem {tandem.__version__}",
            "namespace": access.scope or "(all)",
            "table": table or "(all)",
            "statements": "taken out" if redact_statements else "included",
        }
        packed = bundle.pack(manifest)
        if file is not None:
            _write(file, packed)
        else:
            sys.stdout.buffer.write(packed)
            sys.stdout.buffer.flush()
        say(f"{len(bundle.files)} files, {len(packed) // 1024 + 1} KiB; manifest.json lists them.")
        for item in bundle.missing:
            say(f"  missing: {item['what']}: {item['why']}")
        say("Secrets are removed where they are recognized; check the bundle before you send it.")
        return Exit.OK

    return access_.run(flags, work)


def _write(file: Path, packed: bytes) -> None:
    """Write the file, readable for its owner only."""
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise InvalidSpec(
            "cannot be written", resource=str(file), found=error.strerror or ""
        ) from error
    with os.fdopen(opened, "wb") as out:
        out.write(packed)


async def collect(access: Access, bundle: Bundle, table: str | None, log_lines: int) -> None:
    """Put everything that can be read into the bundle."""
    await asyncio.gather(
        _resources(access, bundle, table),
        _jobs(access, bundle, table, log_lines),
        _operator(access, bundle, log_lines),
        _versions(access, bundle),
    )


async def _resources(access: Access, bundle: Bundle, table: str | None) -> None:
    tables = await bundle.reading("LakeTables", access_.tables(access, table)) or []
    pending = access_.operations(access, table, ended_well=True)
    operations = await bundle.reading("operations", pending) or []
    operations.sort(key=lambda o: str(o["metadata"].get("creationTimestamp")), reverse=True)
    if len(operations) > _MOST_OPERATIONS:
        left = len(operations) - _MOST_OPERATIONS
        bundle.missing.append({"what": f"{left} operations", "why": "older than the others"})
    servers = await bundle.reading("IndexServers", access_.index_servers(access)) or []
    for found in [*tables, *servers, *operations[:_MOST_OPERATIONS]]:
        name = f"resources/{namespace_of(found)}/{id_of(found)}.yaml"
        bundle.add(name, bundle.redactor.clean(found))
    events = await bundle.reading(
        "events", access.list(ResourcePath("", "v1", "events", access.scope))
    )
    if events is not None:
        bundle.add("events.yaml", [_event(event) for event in events if _is_ours(event)])


def _is_ours(event: Mapping[str, Any]) -> bool:
    about = event.get("involvedObject") or {}
    version = str(about.get("apiVersion", ""))
    return version.startswith((f"{GROUP}/", "sparkoperator.k8s.io/")) or (
        about.get("kind") == "Pod" and str(about.get("name", "")).startswith("tandem-")
    )


def _event(event: Mapping[str, Any]) -> Json:
    about = event.get("involvedObject") or {}
    return {
        "time": event.get("lastTimestamp") or event["metadata"].get("creationTimestamp"),
        "about": f"{about.get('namespace')}/{about.get('kind')}/{about.get('name')}",
        **{key: event.get(key) for key in ("type", "reason", "message", "count")},
    }


async def _jobs(access: Access, bundle: Bundle, table: str | None, log_lines: int) -> None:
    labels = "=".join(MANAGED_BY) + (f",{TABLE_LABEL}={label_value(table)}" if table else "")
    where = replace(_APPLICATIONS, namespace=access.scope)
    applications = await bundle.reading("SparkApplications", access.list(where, labels=labels))
    for found in applications or ():
        name = f"sparkapplications/{namespace_of(found)}/{found['metadata']['name']}.yaml"
        bundle.add(name, bundle.redactor.job(found))
    scope = replace(_PODS, namespace=access.scope)
    pods = await bundle.reading("pods of jobs", access.list(scope, labels=_APP_NAME))
    known = {found["metadata"]["name"] for found in applications or ()}
    pods = [p for p in pods or () if (p["metadata"].get("labels") or {}).get(_APP_NAME) in known]
    bundle.add("pods.yaml", [pod_state(pod) for pod in pods])
    pods.sort(key=lambda p: str(p["metadata"].get("creationTimestamp")), reverse=True)
    await _logs(access, bundle, pods[:_MOST_LOGS], "logs", log_lines)


async def _logs(
    access: Access, bundle: Bundle, pods: Sequence[Json], folder: str, lines: int
) -> None:
    if not lines:
        return
    pending = []
    for pod in pods:
        metadata = pod["metadata"]
        where = _PODS.at(metadata["namespace"], metadata["name"])
        for container in status_of(pod).get("containerStatuses") or ():
            pending.append((where, str(container["name"]), False))
            if container.get("restartCount"):
                pending.append((where, str(container["name"]), True))

    async def one(where: ResourcePath, container: str, previous: bool) -> None:
        query = {"container": container, "tailLines": str(lines), "timestamps": "true"}
        if previous:
            query["previous"] = "true"
        name = f"{folder}/{where.namespace}/{where.name}/{container}"
        name += ".previous.log" if previous else ".log"
        text = await bundle.reading(name, access.text(where, "log", query))
        if text is not None:
            bundle.add(name, text)

    await asyncio.gather(*(one(*item) for item in pending))


def pod_state(pod: Mapping[str, Any]) -> Json:
    """The state of a pod; of its spec only fields that cannot hold a secret. Pure."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = [
        {key: c.get(key) for key in ("name", "image", "resources", "ports") if c.get(key)}
        for c in spec.get("containers") or ()
    ]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp"),
        "deleted": metadata.get("deletionTimestamp"),
        "labels": {
            k: v for k, v in (metadata.get("labels") or {}).items()
            if k.startswith(("app.kubernetes.io/", "helm.sh/", PREFIX, "spark"))
        },
        "node": spec.get("nodeName"),
        "serviceAccount": spec.get("serviceAccountName"),
        "containers": containers,
        "status": {
            key: status.get(key)
            for key in ("phase", "reason", "message", "conditions", "startTime",
                        "initContainerStatuses", "containerStatuses")
            if status.get(key)
        },
    }  # fmt: skip


def operator_state(pod: Mapping[str, Any], redactor: Redactor) -> Json:
    """Like `pod_state`, with the arguments, which are the operator's settings: none of them is a
    secret."""
    arguments = [
        argument
        for container in (pod.get("spec") or {}).get("containers") or ()
        for argument in container.get("args") or ()
    ]
    return {**pod_state(pod), "arguments": [redactor.text(str(a)) for a in arguments]}


async def _operator(access: Access, bundle: Bundle, log_lines: int) -> None:
    found = await bundle.reading("the operator's pods", access_.operator_pods(access))
    if found is None:
        return
    pods, where = found
    if not pods:
        bundle.missing.append({"what": "the operator's pods", "why": f"there is none {where}"})
    bundle.add("operator/pods.yaml", [operator_state(pod, bundle.redactor) for pod in pods])

    async def page(pod: Json, name: str) -> None:
        at = _PODS.at(pod["metadata"]["namespace"], pod["metadata"]["name"])
        file = f"operator/{at.name}/{name}.txt"
        text = await bundle.reading(file, access.from_pod(at, access_.health_port(pod), name))
        if text is not None:
            bundle.add(file, text)

    await asyncio.gather(
        _logs(access, bundle, pods, "operator/logs", log_lines),
        *(page(pod, name) for pod in pods for name in ("healthz", "metrics")),
    )
    for namespace in sorted({pod["metadata"]["namespace"] for pod in pods}):
        pending = access.list(_DEPLOYMENTS.at(namespace), labels=access_.OPERATOR_LABELS)
        for deployment in await bundle.reading("the operator's Deployment", pending) or ():
            bundle.add("operator/deployment.yaml", bundle.redactor.clean(deployment))


async def _versions(access: Access, bundle: Bundle) -> None:
    found: Json = {"plugin": tandem.__version__, "at": now_ms()}
    server = await bundle.reading("Kubernetes' version", access.page("/version"))
    found["kubernetes"] = (server or {}).get("gitVersion")
    kinds = await bundle.reading("served versions", access.page(f"/apis/{GROUP}"))
    found["served"] = [item["version"] for item in (kinds or {}).get("versions") or ()]
    definitions = []
    for kind in KINDS:
        name = f"{plural(kind)}.{GROUP}"
        crd = await bundle.reading(f"CRD {name}", access.get(replace(_CRDS, name=name)))
        if crd is None:
            break  # the others would be refused, too
        definitions.append(
            {
                "name": name,
                "generation": crd["metadata"].get("generation"),
                "labels": bundle.redactor.clean(crd["metadata"]).get("labels"),
                "stored": status_of(crd).get("storedVersions"),
                "conditions": status_of(crd).get("conditions"),
            }
        )
    found["definitions"] = definitions
    bundle.add("versions.yaml", found)
