"""The address of the API server and our credentials: from kubeconfigs, or from the pod.

The official `kubernetes` package merges and reads kubeconfigs, and reads the pod's service
account. This module adds what it lacks (docs/decisions/0045): a timeout for credential plugins and
a cache of their credentials, paths relative to the file that contains them, the first
`current-context` of several files. Must not log a credential, nor the output of a plugin.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config_from_dict,
)
from kubernetes.aio.config.dateutil import parse_rfc3339
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME
from kubernetes.aio.config.kube_config import KubeConfigMerger

from tandem.errors import AccessDenied, InvalidSpec
from tandem.json_types import Json

AUTHORIZATION: Final = "BearerToken"
"""The key under which the package keeps the header `Authorization`, of any scheme."""
_NAMESPACE_FILE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")
_PLUGIN_TIMEOUT_S = 30.0
_PATHS = {
    "clusters": ("cluster", ("certificate-authority",)),
    "users": ("user", ("client-certificate", "client-key", "tokenFile")),
}
_UNUSABLE = (
    *(ConfigException, LookupError, TypeError, AttributeError, ValueError, OSError),
    aiohttp.ClientError,
)
"""What the package raises if an entry is missing or of a wrong type, or if the issuer of an OpenID
token cannot be reached."""


@dataclass(frozen=True, slots=True, eq=False)
class PluginAnswer:
    """The `status` of an ExecCredential. `expires` None: valid until it is refused."""

    status: Mapping[str, Any]
    expires: datetime | None

    @property
    def is_valid(self) -> bool:
        return self.expires is None or datetime.now(UTC) < self.expires


@dataclass(frozen=True, slots=True)
class Login:
    """How to connect, and the namespace of the kubeconfig's context or of the pod."""

    configuration: Configuration
    namespace: str | None = None
    answer: PluginAnswer | None = None

    @property
    def authorization(self) -> str:
        """The header `Authorization`, "" for none."""
        return str(self.configuration.api_key.get(AUTHORIZATION, ""))

    def for_kopf(self) -> kopf.ConnectionInfo:
        scheme, _, token = self.authorization.partition(" ")
        found = self.configuration
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            default_namespace=self.namespace,
            proxy_url=found.proxy,
        )


LogIn = Callable[[Login | None], Coroutine[Any, Any, Login]]
"""Returns a login; with other credentials than those of the refused one, if there are any."""


def login_handler(log_in: LogIn) -> Callable[..., Coroutine[Any, Any, kopf.ConnectionInfo]]:
    """The handler for `kopf.on.login`, which kopf calls again after a refusal."""
    earlier: Login | None = None

    async def login(**_: object) -> kopf.ConnectionInfo:
        nonlocal earlier
        earlier = await log_in(earlier)
        return earlier.for_kopf()

    return login


class Credentials:
    """Logs in with the current content of the files. One object serves all clients of a process,
    so that a credential plugin runs once for all of them.

    Args:
        files: kubeconfigs, to be merged as kubectl merges them; None for the pod's service
            account, or else those that kubectl would use.
        context: of the kubeconfig; its current one by default.
        cluster, user: instead of the context's.
    """

    def __init__(
        self,
        files: Sequence[Path] | None = None,
        context: str | None = None,
        *,
        cluster: str | None = None,
        user: str | None = None,
    ) -> None:
        self._files = files
        self._context = context
        self._instead = {"cluster": cluster, "user": user}
        self._answers: dict[str, PluginAnswer] = {}
        self._lock = asyncio.Lock()

    async def log_in(self, refused: Login | None = None) -> Login:
        """The current credentials.

        Args:
            refused: a login that the API server has refused; its plugin runs again, even if the
                credentials have not expired.

        Raises: InvalidSpec, AccessDenied.
        """
        if self._files is None and self._context is None and _is_pod():
            return _in_cluster()
        async with self._lock:
            config, where = await asyncio.to_thread(_merged, self._files or usual_files())
            return await self._from(config, where, refused)

    async def _from(self, config: Json, where: str, refused: Login | None) -> Login:
        name = self._context or config.get("current-context")
        try:
            context = _named(config, "contexts", name, where)["context"]
            context.update({key: value for key, value in self._instead.items() if value})
            _named(config, "clusters", context.get("cluster"), where)
            user = _named(config, "users", context.get("user"), where).get("user") or {}
            answer = await self._by_plugin(user.pop("exec"), refused) if "exec" in user else None
            if answer is not None:
                user |= _as_user(answer.status)
            configuration = Configuration()
            await load_kube_config_from_dict(config, name, configuration)
        except _UNUSABLE as error:
            raise InvalidSpec("not a kubeconfig", resource=where, found=str(error)) from error
        login = Login(configuration, context.get("namespace"), answer)
        if login.authorization:
            # A token file may end with a newline, which is not allowed in a header.
            configuration.api_key[AUTHORIZATION] = login.authorization.strip()
        return login

    async def _by_plugin(self, plugin: Json, refused: Login | None) -> PluginAnswer:
        key = json.dumps(plugin, sort_keys=True)
        kept = self._answers.get(key)
        if kept is None or not kept.is_valid or (refused is not None and refused.answer is kept):
            kept = self._answers[key] = await _run(plugin)
        return kept


def usual_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The kubeconfigs that kubectl would use; they need not exist."""
    words = [word for word in environ.get("KUBECONFIG", "").split(os.pathsep) if word]
    return [Path(word).expanduser() for word in words] or [Path.home() / ".kube" / "config"]


def absolute(path: str, folder: str, paths: Any = os.path) -> str:
    """A path in a kubeconfig, made absolute; relative ones refer to the kubeconfig's folder.

    Args:
        paths: the operating system's rules: `posixpath` or `ntpath`.
    """
    return str(paths.normpath(paths.join(folder, path)))


def absolute_command(command: str, folder: str, paths: Any = os.path) -> str:
    """Like `absolute`; a name without a path separator is searched in PATH, as in kubectl
    (`GetAuthInfoFileReferences` of client-go)."""
    return absolute(command, folder, paths) if paths.sep in command else command


def _is_pod() -> bool:
    return os.path.exists(SERVICE_TOKEN_FILENAME)


def _in_cluster() -> Login:
    configuration = Configuration()
    try:
        # The package reads the token's file again every minute.
        load_incluster_config(configuration)
        namespace = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else None
    except (ConfigException, OSError) as error:
        raise AccessDenied(
            "the pod's service account cannot be used",
            resource=str(_NAMESPACE_FILE.parent),
            found=str(error),
        ) from error
    return Login(configuration, namespace)


def _merged(files: Sequence[Path]) -> tuple[Json, str]:
    """Several files merged into one kubeconfig with absolute paths, and the files that exist.

    Raises: InvalidSpec.
    """
    # An empty file is allowed, but the package rejects it.
    there = [path for path in files if path.exists() and path.stat().st_size]
    if not there:
        raise InvalidSpec(
            "there is no kubeconfig here, and this is not a pod",
            resource=", ".join(map(str, files)),
            remedy="Name one with --kubeconfig or KUBECONFIG",
        )
    where = ", ".join(map(str, there))
    try:
        merger = KubeConfigMerger(os.pathsep.join(map(str, there)))
        config = {
            kind: [_with_paths(node.value, kind, node.path) for node in merger.config.value[kind]]
            for kind in ("clusters", "contexts", "users")
        }
        # The package uses the last one, kubectl the first.
        current = (found.get("current-context") for found in merger.config_files.values())
        return {"current-context": next(filter(None, current), None), **config}, where
    except (yaml.YAMLError, *_UNUSABLE) as error:
        # Without the package's message, which may quote an entry with its token.
        raise InvalidSpec("not a kubeconfig", resource=where, found=type(error).__name__) from None


def _with_paths(item: Json, kind: str, file: str) -> Json:
    inner, keys = _PATHS.get(kind, ("", ()))
    folder = os.path.dirname(os.path.abspath(file))
    values = item.get(inner) or {}
    for key in keys:
        if values.get(key):
            values[key] = absolute(values[key], folder)
    if values.get("exec"):
        values["exec"]["command"] = absolute_command(values["exec"]["command"], folder)
    return {**item, "name": str(item["name"])}


def _named(config: Json, kind: str, name: str | None, where: str) -> Json:
    for item in config[kind]:
        if item["name"] == name:
            return dict(item)
    raise InvalidSpec(
        f"the kubeconfig has no entry of this name under {kind}",
        resource=where,
        found=name or "",
        expected=", ".join(str(item["name"]) for item in config[kind]),
    )


def _as_user(status: Mapping[str, Any]) -> Json:
    """A plugin's credentials in the form of a kubeconfig's user."""
    certificates = {
        "client-certificate-data": status.get("clientCertificateData"),
        "client-key-data": status.get("clientKeyData"),
    }
    found = {
        key: base64.b64encode(str(value).encode()).decode()
        for key, value in certificates.items()
        if value
    }
    return found | ({"token": status["token"]} if status.get("token") else {})


async def _run(plugin: Json) -> PluginAnswer:
    """Run a plugin. Raises: AccessDenied, without the plugin's output, which may contain a
    credential."""
    command, version = str(plugin["command"]), plugin["apiVersion"]
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    added = {item["name"]: item["value"] for item in plugin.get("env") or ()}
    try:
        process = await asyncio.create_subprocess_exec(
            # Windows adds only `.exe` by itself; PATHEXT lists more.
            *(shutil.which(command) or command, *(plugin.get("args") or ())),
            env={**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), _PLUGIN_TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    except (OSError, TimeoutError) as error:
        raise AccessDenied(
            "the kubeconfig's credential plugin cannot be run",
            resource=command,
            found=type(error).__name__,
        ) from error
    found = f"exit code {process.returncode}"
    try:
        answer = json.loads(printed) if process.returncode == 0 else {}
        status = answer.get("status") or {}
        until = status.get("expirationTimestamp")
        if answer.get("apiVersion") == version and _as_user(status):
            return PluginAnswer(status, parse_rfc3339(until) if until else None)
    except (AttributeError, TypeError, ValueError):
        found = "not an ExecCredential"
    raise AccessDenied(
        "the kubeconfig's credential plugin failed",
        resource=command,
        found=found,
        expected=f"an ExecCredential of {version} with a token or a certificate",
    )


# The connections of one login: the official `kubernetes` package's client, with extensions.
#
# Does not interpret requests, and retries nothing.


_WITHIN: Final = aiohttp.ClientTimeout(total=None, sock_connect=5)


class SocketTracker:
    """The sockets of a connector, so that a caller can wait until they are closed.

    TLS sends a close notification if a connection is closed in the middle of a response; a
    session's `close` does not wait for that, and the loop may end before.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def create(self, address: Sequence[Any]) -> socket.socket:
        """The connector's `socket_factory`."""
        made = socket.socket(*address[:3])
        self._made.add(made)
        return made

    async def closed(self) -> None:
        """Wait until all are closed, at most a second."""
        for _ in range(200):
            if all(item.fileno() < 0 for item in self._made):
                return
            await asyncio.sleep(0.005)


class Connections:
    """TLS, proxy and the header `Authorization`, whose token is read again every minute in a pod.

    The constructor reads certificates, so call it in a thread; call `open` in the loop.

    Args:
        headers: sent with every call.
    """

    def __init__(self, login: Login, headers: Mapping[str, str]) -> None:
        self.login = login
        self.closed = False
        self._client = ApiClient(login.configuration)
        self._client.default_headers.update(headers)
        self._connector: aiohttp.TCPConnector | None = None

    def open(self, sockets: SocketTracker) -> Connections:
        self._connector = aiohttp.TCPConnector(
            limit=64, ssl=self._client.rest_client.ssl_context, socket_factory=sockets.create
        )
        # As in kopf: no proxy from the environment, no login from .netrc. And the default buffer
        # of 64 KiB per watch instead of 2 MiB, since our watch joins lines itself.
        self.login.configuration.client_session_kwargs = {
            "connector": self._connector,
            "trust_env": False,
            "read_bufsize": 2**16,
        }
        return self

    async def send(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        within: aiohttp.ClientTimeout = _WITHIN,
    ) -> aiohttp.ClientResponse:
        """The response, of any status; the caller has to close it.

        Raises: aiohttp.ClientError, TimeoutError, OSError; ConfigException if the pod's token
            cannot be read; RuntimeError if the connections are closed.
        """
        if self.closed:
            raise RuntimeError("the connections are closed")
        call = await self._client.param_serialize(
            method,
            url,
            query_params=list((query or {}).items()),
            header_params=dict(headers or {}),
            body=body,
            auth_settings=[AUTHORIZATION],
        )
        found: Any = await self._client.call_api(*call, _request_timeout=within)
        answer: aiohttp.ClientResponse = found.response
        return answer

    async def close(self) -> None:
        self.closed = True
        await self._client.close()
        if self._connector is not None:
            await self._connector.close()
