"""A proxy before a server of Unity Catalog: notes requests, injects faults, and makes the state of
tables that of the server of Unity Catalog's makers, and of more: commits from the newest on, which
is the only order that DuckDB takes; the list of permitted maintenance; places in S3.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from support.http_server import EveryMethod, serving

ALL_MAINTENANCE: Final = ("DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP")
_PASSED: Final = ("content-type", "retry-after")
_BY_ACTION: Final = {"add-commit": "COMMIT", "set-latest-backfilled-version": "REPORT"}


class Lost(Enum):
    """The connection is closed without an answer."""

    BEFORE = auto()
    """The server has not got the request."""
    AFTER = auto()
    """The server has carried it out."""


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the server's."""

    status: int
    error: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None

    @property
    def body(self) -> bytes:
        if self.content is not None:
            return self.content
        shown = {"message": "injected", "type": self.error, "code": self.status}
        return json.dumps({"error": shown}).encode()


@dataclass(frozen=True)
class Call:
    """A request: LOAD, COMMIT, REPORT, CREDENTIALS, or the method of another one."""

    kind: str
    path: str
    query: Mapping[str, str]
    body: Any
    token: str


Fault = Lost | Refusal | None


@dataclass
class Proxy:
    """`fault` is asked for each request, in its thread, and may wait. `permitted`: None adds no
    list."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    fault: Callable[[Call], Fault] = lambda _: None
    after: Callable[[Call, int], None] = lambda _call, _status: None
    """Called before the server's answer is passed on."""
    permitted: Sequence[str] | None = ALL_MAINTENANCE
    location: str = ""
    """Where tables are, if not where the server says."""

    def kinds(self) -> list[str]:
        return [call.kind for call in self.calls]


class FaultOnce:
    """The faults of one kind of request, one after the other."""

    def __init__(self, kind: str, *faults: Fault) -> None:
        self._kind = kind
        self._left = list(faults)
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Fault:
        with self._lock:
            return self._left.pop(0) if call.kind == self._kind and self._left else None

    @property
    def is_over(self) -> bool:
        return not self._left


@contextmanager
def proxy_before(url: str) -> Iterator[Proxy]:
    """A proxy for the length of the block."""
    upstream = urlsplit(url).netloc
    found = Proxy()

    class Handler(EveryMethod):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            content = self.body()
            call = self._call(content)
            found.calls.append(call)
            fault = found.fault(call)
            if isinstance(fault, Refusal):
                self._reply(fault.status, fault.headers, fault.body)
                return
            if fault is Lost.BEFORE:
                self._close()
                return
            try:
                status, headers, reply = self._forward(content)
            except (OSError, http.client.HTTPException):
                self._close()  # as the server itself would: it is down
                return
            found.after(call, status)
            if fault is Lost.AFTER:
                self._close()
                return
            kept = {name: text for name, text in headers.items() if name.lower() in _PASSED}
            self._reply(status, kept, self._changed(call, status, reply))

        def _forward(self, content: bytes) -> tuple[int, Mapping[str, str], bytes]:
            connection = http.client.HTTPConnection(upstream, timeout=60)
            kept = ("authorization", "content-type", "accept")
            headers = {n: v for n, v in self.headers.items() if n.lower() in kept}
            try:
                connection.request(self.command, self.path, content or None, headers)
                reply = connection.getresponse()
                return reply.status, dict(reply.getheaders()), reply.read()
            finally:
                connection.close()

        def _call(self, content: bytes) -> Call:
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            body = json.loads(content) if content else None
            kind = self.command
            if "/tables/" in path and kind == "GET":
                kind = "CREDENTIALS" if path.endswith("/credentials") else "LOAD"
            for update in (body or {}).get("updates", []):
                kind = _BY_ACTION.get(update["action"], kind)
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            return Call(kind, path, query, body, token)

        def _changed(self, call: Call, status: int, reply: bytes) -> bytes:
            if call.kind != "LOAD" or status != 200:
                return reply
            body = json.loads(reply)
            body["commits"] = sorted(body.get("commits") or [], key=lambda each: -each["version"])
            if found.permitted is not None:
                body["allowed-maintenance-operations"] = list(found.permitted)
            if found.location:
                body["metadata"]["location"] = found.location
            return json.dumps(body).encode()

        def _reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            with suppress(OSError):  # the client may have gone
                self.end_headers()
                self.wfile.write(content)

        def _close(self) -> None:
            self.close_connection = True
            with suppress(OSError):  # the client may have gone
                self.connection.shutdown(socket.SHUT_RDWR)

    with serving(Handler) as endpoint:
        found.url = endpoint
        yield found
