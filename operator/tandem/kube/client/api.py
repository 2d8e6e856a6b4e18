"""A small client of the Kubernetes API: the calls that we need, typed errors, retries.

One `Api` belongs to one event loop. Objects are plain dictionaries, whose content it does not
interpret.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.config import ConfigException

from tandem.errors import AccessDenied, InvalidSpec
from tandem.json_types import Json
from tandem.kube.client.credentials import Connections, Credentials, LogIn, Login, SocketTracker

# Reads the API server's JSON at any depth.
#
# A user who may create an object in one namespace may nest it ten thousand levels deep where its
# schema is open (`sparkTemplate`, a pod's template). Python's JSON decoder fails at a thousand:
# then a watch ends, and the operator stops working for all namespaces. Values below any plausible
# depth are cut off here, so that no later code has to walk them; the spec's model refuses the
# rest.
#
# The text is cut before it is decoded. A decoder that runs into the limit of recursion, or runs
# with a higher one, may end the process: what the garbage collector calls meanwhile cannot
# recover.


MOST_LEVELS: Final = 150
"""Deeper than any known object, including schemas."""
CUT: Final = "(cut off: nested too deeply)"

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_BRACKETS = b"{[}]"
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")
"""By how many levels a bracket leads deeper, as signed bytes."""
_ALL_ELSE = bytes(sorted({*range(256)} - {*_BRACKETS}))


def loads(text: str | bytes, most: int = MOST_LEVELS) -> Any:
    """Like `json.loads`, with `CUT` in place of objects and arrays on more than `most` levels."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"{") + data.count(b"[") > most and _levels(data) > most:
        return json.loads(_cut(data, most))
    return json.loads(text)


def _levels(data: bytes) -> int:
    steps = _STRINGS.sub(b"", data).translate(_STEPS, _ALL_ELSE)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def _cut(data: bytes, most: int) -> bytes:
    parts: list[bytes] = []
    level = begin = 0
    for token in _TOKENS.finditer(data):
        if token[0] in (b"{", b"["):
            level += 1
            if level == most + 1:
                parts.append(data[begin : token.start()])
        elif token[0] in (b"}", b"]"):
            level -= 1
            if level == most:
                parts.append(json.dumps(CUT).encode())
                begin = token.end()
    if level <= most:  # else it ends within what was cut off, and is no JSON
        parts.append(data[begin:])
    return b"".join(parts)


_BACKOFF_S = (0.1, 0.3, 0.7, 1.5, 3.0, 5.0)
_FORBIDDEN_S = 10.0
_RETRIED = frozenset({429, 500, 502, 503, 504})
_WEBHOOK_FAILED = "failed calling webhook"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """The API server refused, or could not be reached (`status` 0). `reason` (`AlreadyExists`) and
    `message` are those of the response's Status. `unsure`: a try of this call may have taken effect
    all the same, since its answer was lost or says nothing about that."""

    def __init__(self, status: int, reason: str, message: str, *, unsure: bool = False) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.unsure = unsure

    @property
    def webhook_failed(self) -> bool:
        """Whether an admission webhook did not answer: nothing was stored."""
        return self.status == 500 and _WEBHOOK_FAILED in self.message


class NotFound(ApiError):
    """404: the object, its namespace, or its kind."""


class Conflict(ApiError):
    """409: it exists already, or changed meanwhile."""


class Forbidden(ApiError):
    """401 or 403."""


class Invalid(ApiError):
    """400 or 422: the object is invalid, or a `test` of a JSON patch failed."""


class Gone(ApiError):
    """410: that resource version has expired; list again."""


class Unavailable(ApiError):
    """Still not reachable, or still failing, after all retries."""


_ERRORS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A collection (without a name) or an object. The core group is ""; `namespace` None means
    all namespaces, or that the kind is cluster-scoped."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""

    def at(self, namespace: str, name: str = "") -> ResourcePath:
        return replace(self, namespace=namespace, name=name)

    def url(self, subresource: str = "") -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [root, self.version]
        if self.namespace is not None:
            parts += ["namespaces", self.namespace]
        parts += [part for part in (self.plural, self.name, subresource) if part]
        # A pod's name comes from a status that others write: it must not change the path.
        return "/".join([parts[0], *(quote(part, safe=":") for part in parts[1:])])


class Api:
    """Calls of one API server. Every call tries for at most `patience_s` seconds, and each try
    takes at most `timeout_s`.

    Args:
        log_in: returns the credentials, and others after they were refused.
        forbidden_s: for how long a refusal by RBAC is retried.
        headers: sent with every call.
        observe: called after every try with method, path, status (0: no answer), seconds.
    """

    def __init__(
        self,
        log_in: LogIn,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 60.0,
        forbidden_s: float = _FORBIDDEN_S,
        user_agent: str = "tandem",
        headers: Mapping[str, str] | None = None,
        observe: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        self.log_in = log_in
        self._observe = observe
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._forbidden_s = forbidden_s
        self._headers = {**(headers or {}), "User-Agent": user_agent}
        self._connections: Connections | None = None
        self._refused: Login | None = None
        self._was_heard = False
        self._lock = asyncio.Lock()
        self._old: list[Connections] = []
        self._sockets = SocketTracker()

    @classmethod
    def from_kubeconfig(cls, path: Path | None, **options: Any) -> Api:
        """A client by a kubeconfig; None: the pod's service account, or kubectl's default file."""
        return cls(Credentials(None if path is None else [path]).log_in, **options)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the client can still be used afterwards."""
        current = [] if self._connections is None else [self._connections]
        every, self._old, self._connections = [*self._old, *current], [], None
        for connections in every:
            await connections.close()
        await self._sockets.closed()

    async def get(self, path: ResourcePath) -> Json:
        return await self.request("GET", path.url())

    async def list(
        self,
        path: ResourcePath,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
        chunk: int = 500,
    ) -> Json:
        """The whole list, read in chunks: `items`, `metadata.resourceVersion`."""
        while True:
            try:
                return await self._list(path, labels, fields, resource_version, chunk)
            except Gone:
                # The list's version expired between two chunks: begin again.
                resource_version = None

    async def _list(
        self, path: ResourcePath, labels: str, fields: str, version: str | None, chunk: int
    ) -> Json:
        query = {"limit": str(chunk)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        if version is not None:
            query["resourceVersion"] = version
        items: list[Json] = []
        while True:
            page = await self.request("GET", path.url(), query=query)
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue")
            if not token:
                return {**page, "items": items}
            query.pop("resourceVersion", None)
            query["continue"] = token

    async def create(
        self, path: ResourcePath, body: Mapping[str, Any], *, patience_s: float | None = None
    ) -> Json:
        """Create an object; `path` is the collection. Raises: Conflict if the name exists."""
        return await self.request("POST", path.url(), body=body, patience_s=patience_s)

    async def patch(
        self, path: ResourcePath, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> Json:
        """Patch an object: a mapping is a merge patch, a list a JSON patch."""
        if isinstance(patch, Mapping):
            return await self.request("PATCH", path.url(), body=patch, content_type=_MERGE)
        return await self.request("PATCH", path.url(), body=list(patch), content_type=_JSON_PATCH)

    async def patch_status(
        self, path: ResourcePath, fields: Mapping[str, Any], *, uid: str, resource_version: str = ""
    ) -> Json:
        """Set whole fields of the status; None removes one.

        It uses a JSON patch, which can test the uid: the API server ignores a uid in a merge patch
        of a status. Raises: Conflict if the object has another uid, or a newer version than
        `resource_version`, if given.
        """
        patch: list[Json] = [{"op": "test", "path": "/metadata/uid", "value": uid}]
        if resource_version:
            # A test that fails is Invalid; the version of an update that differs is a Conflict.
            where = "/metadata/resourceVersion"
            patch.append({"op": "replace", "path": where, "value": resource_version})
        for key, value in fields.items():
            where = "/status/" + key.replace("~", "~0").replace("/", "~1")
            patch.append({"op": "add", "path": where, "value": value})
            if value is None:
                # A JSON patch cannot remove a field that does not exist.
                patch.append({"op": "remove", "path": where})
        try:
            return await self.request(
                "PATCH", path.url("status"), body=patch, content_type=_JSON_PATCH
            )
        except Invalid:
            there = await self.get(path)
            if there["metadata"]["uid"] != uid:
                raise Conflict(409, "Conflict", "another object has this name now") from None
            raise

    async def delete(
        self,
        path: ResourcePath,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> None:
        """Delete an object. Raises: NotFound, Conflict if its uid or version differs."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if any(conditions.values()):
            body["preconditions"] = {key: value for key, value in conditions.items() if value}
        await self.request("DELETE", path.url(), body=body)

    async def watch(
        self,
        path: ResourcePath,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
        timeout_s: int = 300,
    ) -> AsyncIterator[tuple[str, Json]]:
        """Events `(ADDED|MODIFIED|DELETED|BOOKMARK, object)` after a version, until the server
        ends the stream. See `tandem.kube.client.api.follow` for a stream without end.

        Raises: Gone (list again), ApiError, aiohttp.ClientError, TimeoutError if it is silent.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        connections = await self._open()
        # A silent stream is a dead one: bookmarks come every minute.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=90)
        async with await connections.send("GET", path.url(), query=query, within=timeout) as answer:
            if answer.status >= 400:
                if answer.status == 401:
                    await self._log_in_again(connections)
                raise await _error_of(answer)
            rest = b""
            async for block in answer.content.iter_any():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _event(loads(line))

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        text: bool = False,
        patience_s: float | None = None,
    ) -> Json:
        """Any call. Transient errors are retried, also those of writes: each of our writes either
        has a precondition or is idempotent. With `text` the response need not be JSON (a log), and
        is returned as `{"text": …}`. `patience_s`: for this call, if it is less than the client's.

        Raises: ApiError.
        """
        loop = asyncio.get_running_loop()
        patience_s = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
        until = loop.time() + patience_s
        unsure = False
        denied = 0.0
        refused = False
        tries = 0
        while True:
            try:
                connections = await self._open()
            except (InvalidSpec, AccessDenied) as problem:
                if not self._was_heard:
                    raise
                # They were good before, and may be again.
                raise Forbidden(401, "Unauthorized", str(problem)) from problem
            after = 0.0
            code, begun = 0, loop.time()
            try:
                async with asyncio.timeout(self._timeout_s):
                    async with await connections.send(
                        method,
                        url,
                        query=query,
                        body=body,
                        headers={
                            "Content-Type": content_type,
                            "Accept": "*/*" if text else "application/json",
                        },
                    ) as answer:
                        code = answer.status
                        if code < 400:
                            found: Json = (
                                {"text": await answer.text(errors="replace")}
                                if text
                                else await answer.json(loads=loads)
                            )
                            self._was_heard = True
                            return found
                        error = await _error_of(answer)
                        after = _retry_after(answer)
            except (aiohttp.ClientError, ConfigException, TimeoutError, OSError) as problem:
                # Without the request, whose headers may hold a token.
                error = Unavailable(0, "Unreachable", f"API server: {type(problem).__name__}")
            except RuntimeError as problem:
                if not connections.closed:
                    raise
                error = Unavailable(0, "Unreachable", f"API server: {problem}")
            finally:
                self._observe(method, url, code, loop.time() - begun)
            if error.status == 401 and not refused:
                refused = True
                await self._log_in_again(connections)
                continue
            unsure = error.unsure = unsure or _may_have_happened(error)
            deadline = until
            if self._was_heard and _role_is_missing(error):
                # Right after its start an API server has not loaded the roles yet.
                denied = denied or loop.time()
                deadline = min(until, denied + self._forbidden_s)
            elif error.status and error.status not in _RETRIED:
                raise error
            pause = max(after, _BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])
            pause *= 1 + random.random() / 4  # so that not all come back at once
            tries += 1
            if loop.time() + pause > deadline:
                if isinstance(error, Forbidden):
                    raise error
                raise Unavailable(error.status, error.reason, error.message, unsure=unsure)
            await asyncio.sleep(pause)

    async def _open(self) -> Connections:
        async with self._lock:
            if self._connections is None:
                login = await self.log_in(self._refused)
                made = await asyncio.to_thread(Connections, login, self._headers)
                self._connections = made.open(self._sockets)
            return self._connections

    async def _log_in_again(self, refused: Connections) -> None:
        async with self._lock:
            if self._connections is refused:
                # Calls may still use the previous connections, but hardly those before it.
                self._old.append(refused)
                self._connections, self._refused = None, refused.login
                for connections in self._old[:-2]:
                    await connections.close()
                del self._old[:-2]


def _event(event: Json) -> tuple[str, Json]:
    kind, body = event["type"], event["object"]
    if kind == "ERROR":
        status = int(body.get("code", 500))
        error = _ERRORS.get(status, ApiError)
        raise error(status, body.get("reason", ""), body.get("message", ""))
    return kind, body


def _role_is_missing(error: ApiError) -> bool:
    """Whether RBAC refused the call, not a quota or a webhook (which respond with 403, too)."""
    return isinstance(error, Forbidden) and error.status == 403 and " cannot " in error.message


def _may_have_happened(error: ApiError) -> bool:
    """Whether a call with this answer may have taken effect."""
    return not error.status or (error.status >= 500 and not error.webhook_failed)


def _retry_after(answer: aiohttp.ClientResponse) -> float:
    try:
        return min(float(answer.headers.get("Retry-After", 0)), 30.0)
    except ValueError:
        return 0.0


async def _error_of(answer: aiohttp.ClientResponse) -> ApiError:
    text = await answer.text()
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    if not isinstance(body, dict) or body.get("kind") != "Status":
        body = {"message": text[:200].strip()}
    error = _ERRORS.get(answer.status, ApiError)
    return error(answer.status, body.get("reason", ""), body.get("message", ""))


# A watch without end: list, watch, and list again whenever the stream has a gap.
#
# For callers that watch without kopf. Does not interpret the objects.


SYNCED = "SYNCED"
"""The type of the event after every whole listing; its object is empty."""
_PAUSE_S = 0.5


async def follow(
    api: Api, path: ResourcePath, *, labels: str = "", fields: str = ""
) -> AsyncIterator[tuple[str, Json]]:
    """`(ADDED|MODIFIED|DELETED, object)` without end. An object whose deletion was missed is
    reported as DELETED with its last known content. An object may be reported twice in the same
    version."""
    known: dict[str, Json] = {}
    while True:
        try:
            listed = await api.list(path, labels=labels, fields=fields)
            version = listed["metadata"]["resourceVersion"]
            there = {item["metadata"]["uid"]: item for item in listed["items"]}
            for uid in known.keys() - there.keys():
                yield "DELETED", known.pop(uid)
            for uid, item in there.items():
                kind = "MODIFIED" if uid in known else "ADDED"
                known[uid] = item
                # Items of a list lack `apiVersion` and `kind`.
                item.setdefault("apiVersion", listed["apiVersion"])
                item.setdefault("kind", str(listed["kind"]).removesuffix("List"))
                yield kind, item
            yield SYNCED, {}
            while True:
                async for kind, item in api.watch(
                    path, resource_version=version, labels=labels, fields=fields
                ):
                    version = item["metadata"]["resourceVersion"]
                    if kind == "BOOKMARK":
                        continue
                    uid = item["metadata"]["uid"]
                    if kind == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = item
                    yield kind, item
                await asyncio.sleep(_PAUSE_S / 5)  # no busy loop if streams end at once
        except Gone:
            continue
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(_PAUSE_S)
