"""Access to the API server as the user: kubectl's configuration, errors that name the missing
permission, and what commands read.

The configuration is read as by kubectl: `--kubeconfig`, or else all files of KUBECONFIG merged, or
else `~/.kube/config`, or else the pod's service account.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from kubernetes.aio.client import Configuration

import tandem
from tandem.cli.kubectl.arguments import Flags
from tandem.errors import (
    AccessDenied,
    ClusterUnavailable,
    Interrupted,
    InvalidSpec,
    ReferenceNotFound,
    TandemError,
)
from tandem.json_types import Json
from tandem.kube.client.api import (
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ResourcePath,
    Unavailable,
)
from tandem.kube.client.credentials import AUTHORIZATION, Credentials, LogIn, Login, usual_files
from tandem.kube.client.resources import TABLE_KIND, condition, path
from tandem.spec.common import GROUP, OPERATIONS
from tandem.spec.index import IndexServer
from tandem.spec.status import Phase

_T = TypeVar("_T")
_P = ParamSpec("_P")
_PATIENCE_S = 5.0


def files_of(flags: Flags, environ: Mapping[str, str]) -> list[Path]:
    """The files that make up the configuration. Raises: InvalidSpec."""
    if flags.kubeconfig is not None:
        if not flags.kubeconfig.exists():
            raise InvalidSpec("there is no such file", resource=str(flags.kubeconfig))
        return [flags.kubeconfig]
    return usual_files(environ)


def login_of(flags: Flags, environ: Mapping[str, str] | None = None) -> LogIn:
    """The login function for these options. It raises InvalidSpec and AccessDenied.

    Raises: InvalidSpec.
    """
    files = files_of(flags, os.environ if environ is None else environ)
    are_there = any(path.exists() for path in files)
    credentials = Credentials(
        files if are_there else None, flags.context, cluster=flags.cluster, user=flags.user
    )

    async def log_in(refused: Login | None = None) -> Login:
        bare = flags.server and not are_there
        login = Login(Configuration()) if bare else await credentials.log_in(refused)
        if flags.server:
            login.configuration.host = flags.server.rstrip("/")
        if flags.token:
            login.configuration.api_key[AUTHORIZATION] = f"Bearer {flags.token}"
        return login

    return log_in


def headers_of(flags: Flags) -> dict[str, str]:
    """The headers of impersonation. Raises: InvalidSpec."""
    if len(flags.as_groups) > 1:
        raise InvalidSpec("only one group can be impersonated", resource="--as-group")
    user = {"Impersonate-User": flags.as_user} if flags.as_user else {}
    return user | ({"Impersonate-Group": flags.as_groups[0]} if flags.as_groups else {})


@dataclass(frozen=True)
class Access:
    """Calls as the user. Each of them may raise AccessDenied, ReferenceNotFound, InvalidSpec,
    ClusterUnavailable."""

    api: Api
    namespace: str
    all_namespaces: bool = False
    server: str = ""

    @property
    def scope(self) -> str | None:
        """The namespace to list in; None: all."""
        return None if self.all_namespaces else self.namespace

    async def list(self, path: ResourcePath, *, labels: str = "", fields: str = "") -> list[Json]:
        """The objects, each with its `apiVersion` and `kind`."""
        with self._doing("list", path):
            found = await self.api.list(path, labels=labels, fields=fields)
        kind, version = str(found.get("kind", "")), str(found.get("apiVersion", ""))
        return [
            {"apiVersion": version, "kind": kind.removesuffix("List"), **item}
            for item in found["items"]
        ]

    async def get(self, path: ResourcePath) -> Json:
        with self._doing("get", path):
            return await self.api.get(path)

    async def create(self, path: ResourcePath, body: Mapping[str, Any]) -> Json:
        with self._doing("create", path):
            return await self.api.create(path, body)

    async def patch(self, path: ResourcePath, patch: Mapping[str, Any]) -> Json:
        with self._doing("patch", path):
            return await self.api.patch(path, patch)

    async def delete(self, path: ResourcePath) -> None:
        with self._doing("delete", path):
            await self.api.delete(path)

    async def page(self, url: str) -> Json:
        """A page of the API server: `/version`, `/apis/…`."""
        with self._doing("get", ResourcePath("", "", url.strip("/"))):
            return await self.api.request("GET", url)

    async def text(self, path: ResourcePath, sub: str, query: Mapping[str, str]) -> str:
        """A subresource that is not JSON: `log`."""
        with self._doing("get", path, sub):
            return str(
                (await self.api.request("GET", path.url(sub), query=query, text=True))["text"]
            )

    async def from_pod(self, path: ResourcePath, port: str, page: str) -> str:
        """A page that a pod serves, through the API server."""
        pod = replace(path, name=f"{path.name}:{port}")
        url = f"{pod.url('proxy')}/{page}"
        with self._doing("get", path, "proxy"):
            found = await self.api.request("GET", url, text=True)
        return str(found["text"])

    @contextmanager
    def _doing(self, verb: str, path: ResourcePath, sub: str = "") -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            raise in_words(error, verb, path, sub, server=self.server) from error


def resource_text(path: ResourcePath, sub: str = "") -> str:
    """`tablecompactions.tandem.dev`, `pods/log`"""
    plural = f"{path.plural}.{path.group}" if path.group else path.plural
    return f"{plural}/{sub}" if sub else plural


def in_words(
    error: ApiError, verb: str, path: ResourcePath, sub: str = "", *, server: str = ""
) -> TandemError:
    """Our error for an error of the API server, with the verb and the resource."""
    what = resource_text(path, sub)
    if path.name:
        what_else = f"{what}/{path.name}" if not sub else f"{what} of {path.name}"
    else:
        what_else = what
    where = f"namespace {path.namespace}" if path.namespace else "all namespaces"
    if isinstance(error, Forbidden) and error.status == 401:
        return AccessDenied(
            "the API server does not accept your credentials",
            remedy="Log in again; `kubectl auth whoami` says who you are",
        )
    if isinstance(error, Forbidden):
        can_i = f"kubectl auth can-i {verb} {resource_text(path)}"
        can_i += f" --subresource={sub}" if sub else ""
        can_i += f" -n {path.namespace}" if path.namespace else " -A"
        return AccessDenied(
            f"you may not {verb} {what} in {where}",
            resource=path.name,
            found=error.message,
            expected=f"a role with verb {verb} on {what}",
            remedy=f"Ask the cluster's administrator; `{can_i}` shows when it is granted",
        )
    if isinstance(error, NotFound) and path.group == GROUP and (not path.name or not _named(error)):
        return ReferenceNotFound(
            "the cluster has no such kind",
            resource=what,
            remedy="Install Tandem's CRDs: docs/operator.md",
        )
    if isinstance(error, NotFound):
        return ReferenceNotFound(f"there is none in {where}", resource=what_else)
    if isinstance(error, Conflict | Invalid):
        return InvalidSpec(error.message, resource=what_else)
    if isinstance(error, Unavailable) or error.status == 0:
        return ClusterUnavailable(
            error.message, resource=server, remedy="Is the context the right one?"
        )
    return ClusterUnavailable(f"{error.status} {error.reason}: {error.message}", resource=what_else)


def _named(error: NotFound) -> bool:
    """Whether an object is missing, not its kind."""
    return '"' in error.message


@asynccontextmanager
async def opened(flags: Flags) -> AsyncIterator[Access]:
    """An open `Access`. Raises: InvalidSpec, AccessDenied."""
    headers, log_in = headers_of(flags), login_of(flags)
    first = await log_in(None)
    known = [first]

    async def again(refused: Login | None) -> Login:
        # The first time use what was read; later read again, since a token may have been renewed.
        return known.pop() if known else await log_in(refused)

    async with Api(
        again,
        timeout_s=flags.timeout_s,
        patience_s=_PATIENCE_S,
        forbidden_s=0.0,
        user_agent=f"kubectl-tandem/{tandem.__version__}",
        headers=headers,
    ) as api:
        yield Access(
            api,
            flags.namespace or first.namespace or "default",
            all_namespaces=flags.all_namespaces,
            server=str(first.configuration.host),
        )


def run(
    flags: Flags,
    work: Callable[Concatenate[Access, _P], Awaitable[_T]],
    *args: _P.args,
    **options: _P.kwargs,
) -> _T:
    """Run `work` on an event loop; SIGTERM ends it like Ctrl-C, after a clean-up.

    Raises: what `work` raises, Interrupted.
    """
    interrupted = False

    async def main() -> _T:
        nonlocal interrupted
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            if not interrupted:  # once: a second time would interrupt the clean-up
                interrupted = True
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, interrupt)
        async with opened(flags) as access:
            return await work(access, *args, **options)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if not interrupted:
            raise
        raise Interrupted("stopped before it was finished") from None


# Reads from the API server what a command shows, and no more.
#
# Operations that succeeded are taken from the status of their tables: there may be tens of
# thousands.


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
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.get("phase", "Unknown"),
        "ready": condition(pod, "Ready").get("status") == "True",
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
