"""Ways to an API server that `cluster_parts` started: kubeconfig files, single calls, kubectl.

Needs only Python's standard library. It does not use the operator's client, so that tests check
the operator's effects independently.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from cluster_processes import POLL_S, READY_WITHIN_S, built


class KubectlFailed(RuntimeError):
    """kubectl ended with an error; `stderr` has its output."""

    def __init__(self, arguments: Sequence[str], stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {stderr.strip()}")
        self.stderr = stderr


class ApiRefused(RuntimeError):
    """The API server responded with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Access:
    """Address and credentials of a user, as in a kubeconfig file."""

    server: str
    authority: str = field(repr=False)
    token: str = field(repr=False)

    def write(self, path: Path) -> Path:
        """Write a kubeconfig file that only its owner can read."""
        authority = base64.b64encode(self.authority.encode()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "parts",
                    "cluster": {"server": self.server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "user", "user": {"token": self.token}}],
            "contexts": [{"name": "parts", "context": {"cluster": "parts", "user": "user"}}],
            "current-context": "parts",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path

    @classmethod
    def read(cls, path: Path) -> Access:
        """Read the file of `write`."""
        config = json.loads(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], authority, config["users"][0]["user"]["token"])

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 30,
    ) -> Any:
        """One call; returns the response's JSON. `path` follows the server's name in the URL.

        Raises ApiRefused if the server responds with an error, OSError if it does not respond.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        call = method, path, data, headers
        status, text = once_served(lambda: _answer(self.server, self.authority, call, timeout_s))
        if status >= 400:
            raise ApiRefused(status, _message(text))
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()

    def of_service_account(self, namespace: str, name: str) -> Access:
        """The access of a pod of that service account: a token for a day."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86_400},
        }
        answer = self.request("POST", path, wanted)
        return Access(self.server, self.authority, answer["status"]["token"])


def once_served(ask: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    """Status and content of a call, repeated as long as the answer is 429: nothing has been done.

    An API server answers `storage is (re)initializing` while its cache of a kind is not loaded:
    after its start, and after that of a definition, also if it is established and `/readyz` is fine
    (Kubernetes' KEP 4568).
    """
    pause = threading.Event()
    for _ in range(int(READY_WITHIN_S / POLL_S)):
        status, text = ask()
        if status != 429:
            break
        pause.wait(POLL_S)
    return status, text


Call = tuple[str, str, bytes | None, dict[str, str]]
"""Method, path, body, headers."""
_open: dict[tuple[int, str, str], HTTPSConnection] = {}
"""An open connection that no thread uses, by process, server and authority. A wait for a condition
asks fifty times a second: connecting takes most of the work, of both sides."""
_lock = threading.Lock()


@atexit.register
def _close() -> None:
    for connection in _open.values():
        connection.close()


@cache
def _trusting(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority)


def _answer(server: str, authority: str, call: Call, timeout_s: float) -> tuple[int, bytes]:
    """Status and content. Only a GET is repeated, if the connection was open before: the server may
    have been restarted since."""
    place = (os.getpid(), server, authority)
    with _lock:
        used = _open.pop(place, None) if call[0] == "GET" else None
    if used is not None:
        try:
            return _ask(place, used, call, timeout_s)
        except (ConnectionError, ssl.SSLError, HTTPException):
            pass  # a fresh one says what is the matter
    address = server.removeprefix("https://")
    return _ask(place, HTTPSConnection(address, context=_trusting(authority)), call, timeout_s)


def _ask(
    place: tuple[int, str, str], connection: HTTPSConnection, call: Call, timeout_s: float
) -> tuple[int, bytes]:
    connection.timeout = timeout_s
    if connection.sock is not None:
        connection.sock.settimeout(timeout_s)
    method, path, data, headers = call
    with ExitStack() as failed:
        failed.callback(connection.close)  # it may be in the midst of an answer
        connection.request(method, path, data, headers)
        with connection.getresponse() as response:
            found = response.status, response.read()
        failed.pop_all()
    with _lock:
        left = _open.get(place)
        _open[place] = connection
    if left is not None:
        left.close()
    return found


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")


def kubectl(kubeconfig: Path, *arguments: str, text: str | None = None) -> str:
    """Run kubectl with this kubeconfig and, if given, this standard input; returns its output.

    Raises KubectlFailed, whose `stderr` has the error.
    """
    program = str(built("kubernetes") / "bin" / "kubectl")
    cache = kubeconfig.parent / "kubectl"
    done = subprocess.run(
        [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *arguments],
        input=text,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise KubectlFailed(arguments, done.stderr)
    return done.stdout
