"""A client of a service of JSON over HTTP: time limits, tries, and a bearer token that is in no
error, log or text of an object.

Connections are kept and used again. TLS is verified. No redirect is followed: another host must not
get the token, and a catalog has no reason to name one. The proxies of the environment are not used.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import random
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from tandem.errors import InvalidSpec, OutcomeUnknown, StorageError
from tandem.json_types import Json
from tandem.storage.options import URL
from tandem.storage.paths import without_userinfo
from tandem.storage.time_limits import TimeLimits, time_limits
from tandem.text import clean

MOST_BYTES: Final = 64 << 20
"""Of an answer: a table has at most some dozens of commits that are not published."""
_KEPT: Final = 4
"""Idle connections."""
_FIRST_PAUSE_S: Final = 0.1
_HEAD_BYTES: Final = 1 << 20
"""Of an answer besides its body, at most."""
_LONGEST: Final = 500
"""Characters of a text of the service that a message has."""
# ValueError: a host that is no name, a chunk of a negative size.
_UNREADABLE: Final = (http.client.HTTPException, OSError, ValueError)
_OF_TLS: Final = (
    (
        "WRONG_VERSION_NUMBER",
        "Check the port. A server without TLS is named with http:// in a resource, and with "
        "unity+http:// on the command line",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "Have it present a certificate for this name, of an authority that is trusted here; "
        "SSL_CERT_FILE names a file of such authorities",
    ),
)
"""What OpenSSL calls an error that another try meets again, and its remedy."""
_FAILED: Final = frozenset({500, 502, 503, 504})
TOO_MANY: Final = "TooManyRequestsException"
"""Of an answer 429 that is about the number of requests, and not about the table."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` of HTTP; `error` is the service's own name of a refusal, and `message` its text,
    both "" if it gives none. `body` is {} for an answer without one."""

    status: int
    body: Json = field(default_factory=dict, repr=False)
    error: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def described(self) -> str:
        """For a message: the status, and what the service says about it."""
        return " ".join(filter(None, (f"HTTP {self.status}", self.error, self.message)))


class _NotSent(Exception):
    """The service cannot have begun with the request."""


class _Lost(Exception):
    """The answer was lost: the request may have been carried out."""


class Rest:
    """A service below one URL. Thread-safe.

    Args:
        url: `https://host[:port][/path]`; `http://` for a service without TLS.
        token: the bearer token, asked for at each request, so that it may be renewed; "" for none.
        ceiling_s: how long a request may take as a whole, in seconds; None for as long as the
            tries take.
        context: certificates that are trusted, if not those of the system.
    Raises: InvalidSpec if it is not such a URL.
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        *,
        ceiling_s: float | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self._port, self._path, is_https = _parts(url)
        self.url = url.rstrip("/")
        self._context = None
        if is_https:
            self._context = context or ssl.create_default_context()
        self._token = token
        self._limits: TimeLimits = time_limits({}, ceiling_s)
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close, self._idle)

    def __repr__(self) -> str:
        return f"<{self.url}>"

    def get(self, path: tuple[str, ...], query: Mapping[str, str] | None = None) -> Reply:
        """Read; tried again while the service fails or does not answer. Any status is an answer.

        Args:
            path: the segments below the URL, not encoded.
        Raises: StorageError if there is no answer, or it is none of such a service.
        """
        target = self._target(path) + (f"?{urlencode(query)}" if query else "")
        return self._tries("GET", target, None)

    def post(self, path: tuple[str, ...], body: Json) -> Reply:
        """Send a request that must not be sent twice by chance: only one that the service cannot
        have begun with is sent again.

        Raises: OutcomeUnknown if the answer was lost or cannot be read, or says that the service
            has failed; StorageError if the request was not sent, or is redirected.
        """
        return self._tries("POST", self._target(path), json.dumps(body).encode())

    def _target(self, path: tuple[str, ...]) -> str:
        return self._path + "".join(f"/{quote(part, safe='')}" for part in path)

    def _tries(self, method: str, target: str, body: bytes | None) -> Reply:
        until = time.monotonic() + self._limits.retries.total_seconds()
        pause_s = _FIRST_PAUSE_S
        while True:
            wait_s = None
            try:
                status, headers, content = self._once(method, target, body)
            except _NotSent as error:
                problem = self._unanswered(error)
            except _Lost as error:
                if body is not None:
                    raise self._unanswered(error, OutcomeUnknown) from None
                problem = self._unanswered(error)
            else:
                kind = StorageError if body is None else OutcomeUnknown
                answer = self._read(status, headers, content, kind)
                wait_s = _retry_after(headers)
                if status in _FAILED:
                    problem = self._failed(answer, kind)
                    if body is not None:
                        raise problem
                elif status == 429 and (wait_s is not None or answer.error == TOO_MANY):
                    problem = self._failed(answer, StorageError)
                else:
                    return answer
            pause_s = min(pause_s * 2, self._limits.pause.total_seconds())
            if wait_s is None:
                wait_s = pause_s * random.uniform(0.5, 1.0)
            if time.monotonic() + wait_s > until:
                raise problem
            time.sleep(wait_s)

    def _once(
        self, method: str, target: str, body: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json", "User-Agent": "tandem"}
        token = self._token()
        if token:
            if not (token.isascii() and token.isprintable()):
                raise InvalidSpec(  # without it: the library would quote it
                    "the token of the catalog is not the value of a header",
                    resource=self.url,
                    found="a control or foreign character",
                    expected="a bearer token",
                )
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        until_s = time.monotonic() + self._limits.one_try.total_seconds()
        connection.response_class = cast(Any, functools.partial(_Response, until_s=until_s))
        keep = False
        try:
            try:
                if connection.sock is None:
                    connection.connect()
                    assert connection.sock is not None
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sock.settimeout(self._limits.one_try.total_seconds())
            except _UNREADABLE as error:
                if any(text in str(error) for text, _ in _OF_TLS):
                    raise self._unanswered(error) from None
                raise _NotSent(_named(error)) from None
            try:
                connection.request(method, target, body, headers)
                answer = connection.getresponse()
                content = answer.read(MOST_BYTES + 1)
            except _UNREADABLE as error:
                raise _Lost(_named(error)) from None
            if answer.length and len(content) <= MOST_BYTES:
                raise _Lost(f"an answer that ends {answer.length} bytes early")
            keep = not answer.will_close and len(content) <= MOST_BYTES
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, content
        finally:
            self._done(connection, keep)

    def _connection(self) -> http.client.HTTPConnection:
        """One that is open and idle, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not _is_closed(connection):
                return connection
            connection.close()
        connect_s = self._limits.connect.total_seconds()
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=connect_s, context=self._context
        )

    def _done(self, connection: http.client.HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def _read(
        self, status: int, headers: Mapping[str, str], content: bytes, kind: type[StorageError]
    ) -> Reply:
        """Raises: `kind` if it is not JSON, StorageError if it asks to go elsewhere."""
        if 300 <= status < 400:
            raise self._foreign(f"HTTP {status}", "redirects are not followed")
        if len(content) > MOST_BYTES:
            raise self._foreign(f"more than {MOST_BYTES} bytes", "the answer is too long", kind)
        try:
            body = _decoded(content) if content.strip() else {}
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            of_type = self.shown(headers.get("content-type", "no type"))[:100]
            if 200 <= status < 300:
                found = f"HTTP {status} with {of_type}"
                raise self._foreign(found, "the answer is not JSON", kind)
            return Reply(status, {}, "", f"(answer of type {of_type})")
        # `error` of the Delta API; the fields themselves of the other calls.
        error = body.get("error")
        described = error if isinstance(error, dict) else body
        if 200 <= status < 300:
            return Reply(status, body)
        name = self.shown(str(described.get("type") or described.get("error_code") or ""))
        return Reply(status, body, name, self.shown(str(described.get("message") or "")))

    def shown(self, text: str) -> str:
        """A text of the service, which may repeat what it was sent, for a message."""
        token = self._token()
        return clean(text.replace(token, "…") if token else text, _LONGEST)

    def _foreign(
        self, found: str, message: str, kind: type[StorageError] = StorageError
    ) -> StorageError:
        return kind(
            message,
            resource=self.url,
            found=found,
            expected="the API of a catalog",
            remedy="Correct the URL, or the proxy before the catalog",
        )

    def _unanswered(
        self, error: Exception, kind: type[StorageError] = StorageError
    ) -> StorageError:
        found = self.shown(str(error))
        remedies = (each for text, each in _OF_TLS if text in found)
        return kind(
            "the catalog did not answer",
            resource=self.url,
            found=found,
            remedy=next(
                remedies, "Check that it runs, and that this address can be reached from here"
            ),
        )

    def _failed(self, answer: Reply, kind: type[StorageError]) -> StorageError:
        return kind(
            "the catalog does not serve the request",
            resource=self.url,
            found=answer.described,
            remedy="Its own log says why",
        )


def _parts(url: str) -> tuple[str, int, str, bool]:
    """Host, port and path, and whether it is of TLS. Raises: InvalidSpec."""
    if URL.fullmatch(url) is not None:
        try:
            parts = urlsplit(url)
            is_https = parts.scheme.lower() == "https"
            # Always with a port: the library would take one from the end of an IPv6 address.
            port = parts.port if parts.port is not None else (443 if is_https else 80)
            return parts.hostname or "", port, parts.path.rstrip("/"), is_https
        except ValueError:  # no such port, or no address between the brackets
            pass
    raise InvalidSpec(
        "this is not the URL of a catalog",
        field="spec.catalog",
        found=without_userinfo(url)[:200],
        expected="https://host:port, without user and query",
    )


class _Response(http.client.HTTPResponse):
    """An answer that ends in time and is not too long, however it is sent.

    Args:
        until_s: until when it may be read, by the monotonic clock.
    """

    def __init__(self, sock: socket.socket, *args: Any, until_s: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        raw = cast(socket.SocketIO, self.fp.detach())
        self.fp = io.BufferedReader(_Limited(raw, sock, until_s))


class _Limited(io.RawIOBase):
    def __init__(self, raw: socket.SocketIO, sock: socket.socket, until_s: float) -> None:
        self._raw, self._sock, self._until_s = raw, sock, until_s
        self._left = MOST_BYTES + 1 + _HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no whole answer in time")
        self._sock.settimeout(left_s)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise http.client.HTTPException("the answer is too long")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _decoded(content: bytes) -> Any:
    """Raises: ValueError, RecursionError."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(content, parse_constant=refuse)


def _close(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _is_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the service has closed an idle connection, or sent something unasked."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; None if the service names none. A date counts as none."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None
