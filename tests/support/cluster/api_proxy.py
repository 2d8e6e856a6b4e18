"""A reverse proxy before the API server that counts requests and misbehaves on demand.

    with ApiProxy(kubeconfig) as proxy:
        operator(kubeconfig=proxy.kubeconfig(folder))       # plain HTTP, to the proxy
        conflict = proxy.strike(Refuse(409), verb="patch", resource="tablecompactions/status")
        conflict.wait()                                      # until it has struck
        proxy.writes("nightly")                              # who wrote what about one object

Its faults are rules set in advance and counted: a rule applies at its n-th match, so many
times, or until it is ended. It runs on a loop and a thread of its own, so that tests need not
be asynchronous.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from tandem.kube.client.credentials import SocketTracker

LIMIT_S = 120.0
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_HOP = frozenset(
    {"authorization", "connection", "host", "keep-alive", "transfer-encoding", "content-length"}
)
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One request. `resource` is plural, with its subresource (`tablecompactions/status`);
    `about` is the name of what is concerned: for an event, its object's."""

    verb: str
    resource: str
    namespace: str
    name: str
    about: str
    status: int = 0


# What can happen to a request ----------------------------------------------------------------


@dataclass(frozen=True)
class Refuse:
    """Answer without asking the server."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True)
class Slow:
    """Take so long before it is passed on."""

    seconds: float


@dataclass(frozen=True)
class CutBefore:
    """The connection breaks; the server receives nothing."""


@dataclass(frozen=True)
class CutAfter:
    """The server does it; its answer is lost."""


@dataclass(frozen=True)
class Hold:
    """Nothing comes back as long as the rule stands: of a watch, no event, and all of them
    later; of any other request, the answer."""


Fault = Refuse | Slow | CutBefore | CutAfter | Hold


@dataclass
class Rule:
    """When a fault strikes: from the `nth` match on, `times` times (None: until `end`)."""

    fault: Fault
    verb: str = ""
    resource: str = ""
    name: str = ""
    nth: int = 1
    times: int | None = 1
    seen: int = 0
    struck: int = 0
    ended: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _open: Callable[[], None] = field(default=lambda: None, repr=False)

    def matches(self, call: Call) -> bool:
        return (
            self.verb in ("", call.verb)
            and self.resource in ("", call.resource)
            and self.name in ("", call.about)
        )

    def strikes(self, call: Call) -> bool:
        """Count a request; whether this one is struck."""
        with self._changed:
            if self.ended or not self.matches(call):
                return False
            self.seen += 1
            if self.seen < self.nth or (self.times is not None and self.struck >= self.times):
                return False
            self.struck += 1
            self._changed.notify_all()
            return True

    def wait(self, times: int = 1) -> None:
        """Until it has struck so often."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self.struck >= times, LIMIT_S)
        assert arrived, f"struck {self.struck} times, seen {self.seen}: {self}"

    def end(self) -> None:
        """It strikes no more, and what it holds goes on."""
        with self._changed:
            self.ended = True
        self._open()


class _Stream:
    """A watch on its way through. `orders` are lines to say, None to break off."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.orders: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()


class ApiProxy:
    """`port` is the same after `close_door` and `open_door`."""

    def __init__(self, kubeconfig: Path) -> None:
        self._server, self._tls, self._token = read_kubeconfig(kubeconfig)
        self.port = 0
        self.calls: list[Call] = []
        self._rules: list[Rule] = []
        self._gates: dict[int, asyncio.Event] = {}
        self._streams: set[_Stream] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._sockets = SocketTracker()
        self._runner: web.ServerRunner | None = None

    def __enter__(self) -> ApiProxy:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.end_rules()
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that leads here. The proxy knows the token; the file holds none."""
        path = folder / f"proxy-{self.port}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "unused"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # Faults

    def strike(self, fault: Fault, *, verb: str = "", resource: str = "", name: str = "",
               nth: int = 1, times: int | None = 1) -> Rule:  # fmt: skip
        """From now on."""
        rule = Rule(fault, verb, resource, name, nth, times)
        if isinstance(fault, Hold):
            self._do(self._close_gate(rule))
            rule._open = lambda: self._soon(lambda: self._gates[id(rule)].set())
        self._rules = [*self._rules, rule]
        return rule

    @contextmanager
    def while_(self, fault: Fault, **where: Any) -> Iterator[Rule]:
        """A rule for the time of a block."""
        rule = self.strike(fault, times=None, **where)
        try:
            yield rule
        finally:
            rule.end()

    def end_rules(self) -> None:
        """All of them strike no more."""
        rules, self._rules = self._rules, []
        for rule in rules:
            rule.end()

    def expire_watches(self, resource: str = "") -> int:
        """Say `410 Gone` within the watches that are open; how many there were."""
        gone = {"type": "ERROR", "object": _status(410)}
        return self._order(resource, json.dumps(gone).encode() + b"\n")

    def cut_watches(self, resource: str = "") -> int:
        """Break the watches that are open off, in the middle of whatever they say."""
        return self._order(resource, None)

    def freeze_watches(self, resource: str = "") -> int:
        """The watches that are open stay so and never say anything again; others are fine."""
        found = self._open_streams(resource)
        for stream in found:
            self._soon(stream.gate.clear)
        return len(found)

    def close_door(self) -> None:
        """As if the server were down: connections break, new ones are refused."""
        self._do(self._close())

    def open_door(self) -> None:
        self._do(self._listen())

    # Figures

    def count(self, *verbs: str) -> Counter[tuple[str, str]]:
        """Requests by (verb, resource)."""
        return Counter((c.verb, c.resource) for c in self.calls if not verbs or c.verb in verbs)

    def writes(self, about: str | None = None) -> list[Call]:
        """Requests that change something, about one object by name if given."""
        return [c for c in self.calls if c.verb in WRITES and about in (None, c.about)]

    # Serving

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(
            ssl=self._tls or True, limit=0, socket_factory=self._sockets.create
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        await self._listen()

    async def _listen(self) -> None:
        self._runner = web.ServerRunner(
            web.Server(self._serve, access_log=None), shutdown_timeout=0.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = int(self._runner.addresses[0][1])

    async def _close(self) -> None:
        for stream in list(self._streams):
            stream.gate.set()
            stream.orders.put_nowait(None)
        assert self._runner is not None
        await self._runner.cleanup()

    async def _stop(self) -> None:
        await self._close()
        assert self._session is not None
        await self._session.close()
        await self._sockets.closed()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        call = _classify(request.method, request.rel_url, body)
        struck = [rule for rule in self._rules if rule.strikes(call)]
        for rule in struck:
            answer = await self._strike(rule.fault, request)
            if answer is not None:
                self._note(call, answer.status)
                return answer
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        url = URL(self._server + request.raw_path, encoded=True)
        assert self._session is not None
        try:
            async with self._session.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            ) as upstream:
                self._note(call, upstream.status)
                gates = [self._gates[id(r)] for r in struck if isinstance(r.fault, Hold)]
                if call.verb == "watch" and upstream.status == 200:
                    return await self._stream(request, upstream, call, gates)
                content = await upstream.read()
                for gate in gates:
                    await gate.wait()
                if any(isinstance(rule.fault, CutAfter) for rule in struck):
                    return _cut(request)
                kept = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP}
                return web.Response(status=upstream.status, body=content, headers=kept)
        except (aiohttp.ClientError, ConnectionError):
            # The server itself is gone.
            self._note(call, 0)
            return _cut(request)

    async def _strike(self, fault: Fault, request: web.BaseRequest) -> web.Response | None:
        match fault:
            case Refuse(status, retry_after):
                headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
                return web.json_response(_status(status), status=status, headers=headers)
            case Slow(seconds):
                await asyncio.sleep(seconds)
            case CutBefore():
                return _cut(request)
        return None

    async def _stream(self, request: web.BaseRequest, upstream: aiohttp.ClientResponse,
                      call: Call, gates: list[asyncio.Event]) -> web.StreamResponse:  # fmt: skip
        response = web.StreamResponse(
            status=200, headers={"Content-Type": upstream.headers.get("Content-Type", "")}
        )
        await response.prepare(request)
        stream = _Stream(call)
        self._streams.add(stream)
        reading: asyncio.Future[bytes] | None = None
        ordered: asyncio.Future[bytes | None] = asyncio.ensure_future(stream.orders.get())
        rest = b""
        try:
            while True:
                if reading is None:
                    reading = asyncio.ensure_future(upstream.content.readany())
                await _first(reading, ordered)
                if ordered.done():
                    line = ordered.result()
                    if line is None:
                        _cut(request)
                    else:
                        await response.write(line)
                    return response
                data, reading = reading.result(), None
                if not data:
                    return response
                for gate in [stream.gate, *gates]:
                    waits = asyncio.ensure_future(gate.wait())
                    await _first(waits, ordered)
                    waits.cancel()
                if not ordered.done():
                    # Only whole events are passed on, so that ours can come between.
                    whole, newline, rest = (rest + data).rpartition(b"\n")
                    await response.write(whole + newline)
        finally:
            self._streams.discard(stream)
            ordered.cancel()
            if reading is not None:
                reading.cancel()

    async def _close_gate(self, rule: Rule) -> None:
        self._gates[id(rule)] = asyncio.Event()

    def _note(self, call: Call, status: int) -> None:
        self.calls.append(
            Call(call.verb, call.resource, call.namespace, call.name, call.about, status)
        )

    def _open_streams(self, resource: str) -> list[_Stream]:
        return [s for s in list(self._streams) if resource in ("", s.call.resource)]

    def _order(self, resource: str, line: bytes | None) -> int:
        found = self._open_streams(resource)
        for stream in found:
            self._loop.call_soon_threadsafe(stream.orders.put_nowait, line)
        return len(found)

    def _soon(self, act: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(act)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _cut(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)


_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError",
            503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


def _status(code: int) -> dict[str, Any]:
    """What the API server says when it refuses."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "refused by a test",
        "reason": _REASONS.get(code, "Unknown"),
        "code": code,
    }


def _classify(method: str, url: URL, body: bytes) -> Call:
    parts = [part for part in url.path.split("/") if part]
    if parts[:1] == ["api"]:
        rest = parts[2:]
    elif parts[:1] == ["apis"]:
        rest = parts[3:]
    else:
        rest = []
    if not rest:
        return Call("other", url.path, "", "", "")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = "/".join([rest[0], *rest[2:]])
    name = rest[1] if len(rest) > 1 else ""
    about = name
    if method == "POST" and body:
        content = json.loads(body)
        name = name or str(content.get("metadata", {}).get("name", ""))
        concerned = content.get("involvedObject") or content.get("regarding") or {}
        about = str(concerned.get("name", name))
    watches = url.query.get("watch", "") in ("true", "1")
    verb = {
        "GET": "watch" if watches else "get" if name else "list",
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete" if name else "deletecollection",
    }.get(method, "other")
    return Call(verb, resource, namespace, name, about)


def read_kubeconfig(kubeconfig: Path) -> tuple[str, ssl.SSLContext | None, str]:
    """Address, TLS and token of the current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    server = str(cluster["server"]).rstrip("/")
    if urlsplit(server).scheme != "https":
        return server, None, str(user.get("token", ""))
    tls = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"), cadata=_text(cluster)
    )
    if "client-certificate" in user:
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
    elif "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as both:
            both.write(base64.b64decode(user["client-certificate-data"]))
            both.write(base64.b64decode(user["client-key-data"]))
            both.flush()
            tls.load_cert_chain(both.name)
    return server, tls, str(user.get("token", ""))


def _text(cluster: dict[str, str]) -> str | None:
    data = cluster.get("certificate-authority-data")
    return None if data is None else base64.b64decode(data).decode()


def _named(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)
