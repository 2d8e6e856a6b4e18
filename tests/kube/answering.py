"""A server that only answers, a clock that the test moves, and an executor that works at once: for
tests of what the operator asks of the API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tandem.errors import TandemError
from tandem.kube.client.api import ApiError, Conflict, NotFound, ResourcePath

Json = dict[str, Any]
NOON = 1_781_092_800_000


class Server:
    """Keeps what is created; refuses with `error`, if there is one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.objects: dict[str, Json] = {}
        self.error: ApiError | None = None

    async def create(self, at: ResourcePath, body: Mapping[str, Any]) -> Json:
        name = body["metadata"]["name"]
        self.calls.append(f"create {at.plural} {name}")
        if self.error is not None:
            raise self.error
        if name in self.objects:
            raise Conflict(409, "AlreadyExists", f"{name} already exists")
        made = {**body, "metadata": {**body["metadata"], "uid": f"u{len(self.objects)}",
                "resourceVersion": "7", "creationTimestamp": "2026-06-10T12:00:00Z"}}  # fmt: skip
        self.objects[name] = made
        return made

    async def list(self, at: ResourcePath, *, labels: str) -> Json:
        self.calls.append(f"list {at.plural} {labels}")
        if self.error is not None:
            raise self.error
        return {"items": list(self.objects.values())}

    async def get(self, at: ResourcePath) -> Json:
        self.calls.append(f"get {at.plural} {at.name}")
        if at.name not in self.objects:
            raise NotFound(404, "NotFound", "")
        return self.objects[at.name]

    async def delete(self, at: ResourcePath, *, uid: str, resource_version: str) -> None:
        self.calls.append(f"delete {at.plural} {at.name} {uid} {resource_version}")
        if self.error is not None:
            raise self.error


@dataclass
class Clock:
    ms: int = NOON

    def now_ms(self) -> int:
        return self.ms


class CountingExecutor:
    """An executor that counts what it is given, and does it at once."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, _table: str) -> CountingExecutor:
        return self

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments))
        except TandemError as error:
            done.set_exception(error)
        return done
