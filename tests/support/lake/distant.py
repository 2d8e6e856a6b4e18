"""A store at a distance: a proxy before the S3 test server that takes its time for each request,
and notes all of them.

It changes no answer. Requests of one client run side by side as far as the client sends them so.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit

from support.http_server import EveryMethod, serving
from support.lake.s3 import S3Server

_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})
_ATTEMPT = re.compile(r"[0-9a-f]{16}(?:r\d+)?")


Answer = Callable[[str, Mapping[str, str]], tuple[int, bytes] | None]
"""From the kind and the headers of a request, the status and the body of its answer."""


@dataclass(frozen=True)
class Request:
    """One request: what it asks for, whether there was an object, when (seconds of
    `time.perf_counter`), and the bytes of the bodies that it sent and got."""

    kind: str
    path: str
    status: int
    began: float
    ended: float
    sent: int = 0
    got: int = 0

    @property
    def text(self) -> str:
        """For reading: the path without ids."""
        return f"{self.kind} {_ATTEMPT.sub('ID', self.path)} {self.status}"


@dataclass
class Distance:
    """`server` as its clients see it, `seconds` away for each request."""

    server: S3Server
    seconds: float = 0.0
    requests: list[Request] = field(default_factory=list)
    instead: Answer | None = None
    """Answers in place of the server, if it answers at all."""

    @property
    def moved(self) -> int:
        """Bytes of all bodies: what went through the process that made the requests."""
        return sum(each.sent + each.got for each in self.requests)

    def since(self, moment: float) -> list[Request]:
        """The requests that began at a moment or later."""
        return [each for each in self.requests if each.began >= moment]


@contextmanager
def at_a_distance(server: S3Server, seconds: float = 0.0) -> Iterator[Distance]:
    """A proxy for the length of the block."""
    upstream = urlsplit(server.endpoint).netloc
    local = threading.local()

    class Proxy(EveryMethod):
        protocol_version = "HTTP/1.1"
        # Without it, the head and the body of an answer wait for each other on loopback.
        disable_nagle_algorithm = True

        def answer(self) -> None:
            body = self.body()
            began = time.perf_counter()
            time.sleep(found.seconds)  # the distance itself: nothing is awaited
            own = found.instead and found.instead(self._kind()[0], dict(self.headers.items()))
            if own:
                status, content = own
                found.requests.append(self._noted(status, began, len(body), len(content)))
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
            connection = getattr(local, "connection", None)
            if connection is None:
                connection = local.connection = http.client.HTTPConnection(upstream)
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            content = reply.read()
            found.requests.append(self._noted(reply.status, began, len(body), len(content)))
            self.send_response_only(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            head = self.command == "HEAD"
            size = reply.getheader("Content-Length") if head else str(len(content))
            self.send_header("Content-Length", size or "0")
            self.end_headers()
            self.wfile.write(content)

        def _noted(self, status: int, began: float, sent: int, got: int) -> Request:
            kind, path = self._kind()
            ended = time.perf_counter()
            return Request(kind, path.partition("/")[2], status, began, ended, sent, got)

        def _kind(self) -> tuple[str, str]:
            url = urlsplit(self.path)
            asked = parse_qs(url.query, keep_blank_values=True)
            path = unquote(url.path).removeprefix(f"/{server.bucket}").lstrip("/")
            kind = self.command
            if "list-type" in asked:
                kind, path = "LIST", asked.get("prefix", [""])[0]
            elif "delete" in asked:
                kind = "DELETE"
            elif "If-None-Match" in self.headers:
                kind = "PUT-IF-ABSENT"
            elif "x-amz-copy-source" in self.headers:
                kind = "COPY"
            return kind, path

    with serving(Proxy) as endpoint:
        found = Distance(replace(server, endpoint=endpoint), seconds)
        yield found


def in_sequence(requests: Sequence[Request]) -> int:
    """The most requests of which each began after the one before it had ended: so many times the
    distance counts."""
    chain, free = 0, 0.0
    for each in sorted(requests, key=lambda request: request.ended):
        if each.began >= free:
            chain, free = chain + 1, each.ended
    return chain


def by_kind(requests: Sequence[Request]) -> dict[str, int]:
    """How many of each kind; `absent` counts those that asked for what is not there."""
    counted = Counter(each.kind for each in requests)
    absent = sum(each.kind in ("GET", "HEAD") and each.status == 404 for each in requests)
    return {**dict(sorted(counted.items())), "absent": absent}
