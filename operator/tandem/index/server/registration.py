"""How executors come and go: what the coordinator serves for them, and what each of them does.

Executors know one address, that of the coordinator, and send it theirs, as an address of the
network: names of hosts may have characters that no URL has. All of an application share a random
key. A process that was forgotten, because it was silent or failed, joins again without load.

A coordinator counts on the executors that joined and were heard of lately. An executor that failed
is removed at once, whatever it says of itself, and let in again after a while: until then it would
only cost every caller a deadline. It joins without load (X7).
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import structlog
from pydantic import ValidationError

from tandem.errors import InvalidSpec, TandemError
from tandem.index.server.calls import Answer, AnswerFiles, no_such_call, parsed
from tandem.index.server.executor import (
    MAX_REPLY_BYTES,
    MAX_SIZES,
    REGISTRY_CALL,
    ExecutorCall,
    ExecutorService,
    InvalidateQuestion,
    MakeFacts,
    NarrowQuestion,
    NarrowReply,
    ShardName,
    ShardQuestion,
    ShardSize,
    SlotCache,
    SlotNews,
    Welcome,
    body,
)
from tandem.index.server.messages import one, whole
from tandem.index.server.shards import Executor, Shard, ShardMapping
from tandem.index.server.transport import Connection, FlightServer, Tls
from tandem.storage.store import Store

_coordinator_log = structlog.get_logger("tandem.index.coordinator")

SILENT_S: Final = 10.0
"""Seconds without a sign of life after which an executor is dead."""

LEFT_OUT_S: Final = 10.0
"""Seconds after which an executor that failed may join again."""


class RemoteExecutor:
    """An executor behind a connection, with the calls of `ExecutorService`.

    Each raises: a TandemError if there is no answer in time; what executors raise.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float
    ) -> tuple[NarrowReply, pa.Table]:
        message, tables = self._ask(ExecutorCall.NARROW, body(asked, files), timeout_s)
        return whole(NarrowReply, message), one(tables)

    def prime(self, asked: ShardQuestion, files: pa.Table, timeout_s: float) -> None:
        self._ask(ExecutorCall.PRIME, body(asked, files), timeout_s)

    def show(self, timeout_s: float) -> SlotCache:
        message, _ = self._ask(ExecutorCall.SHOW_CACHE, b"{}", timeout_s)
        return whole(SlotCache, message)

    def invalidate(self, gone: InvalidateQuestion, timeout_s: float) -> None:
        self._ask(ExecutorCall.INVALIDATE_CACHE, body(gone), timeout_s)

    def close(self) -> None:
        self._connection.close()

    def _ask(
        self, call: ExecutorCall, data: bytes, timeout_s: float
    ) -> tuple[dict[str, object], list[pa.Table]]:
        return self._connection.ask(call, data, timeout_s=timeout_s)


ReachedExecutor = RemoteExecutor | ExecutorService
"""An executor in another process, or in this one: with `executors: 0` the coordinator has one."""


@dataclass
class _Live:
    reached: ReachedExecutor
    heard: float


class Registry:
    """Thread-safe: of two askers one decides where a shard goes (X14).

    Args:
        left_out_s: see `LEFT_OUT_S`.
    """

    def __init__(self, *, left_out_s: float = LEFT_OUT_S) -> None:
        self._now = time.monotonic
        self._left_out_s = left_out_s
        self._lock = threading.Lock()
        self.mapping = ShardMapping()
        self._live: dict[Executor, _Live] = {}
        self._failed: dict[str, float] = {}

    def join(self, executor: Executor, reached: ReachedExecutor, *, stays: bool = False) -> bool:
        """Count on an executor, unless it failed lately. Another one of the same slot is dead.

        Args:
            stays: without signs of life: it is in this process.
        """
        with self._lock:
            now = self._now()
            self._failed = {
                each: at for each, at in self._failed.items() if now - at < self._left_out_s
            }
            if executor.id in self._failed:
                return False
            replaced = self._taken([each for each in self._live if each.slot == executor.slot])
            self._live[executor] = _Live(reached, float("inf") if stays else now)
            self.mapping.join(executor)
        for each in replaced:
            each.close()
        return True

    def beat(self, executor: Executor, sizes: Mapping[Shard, int]) -> bool:
        """A sign of life, with the bytes that shards were found to need (X4). False if the executor
        is not counted on, and has to join."""
        with self._lock:
            live = self._live.get(executor)
            if live is not None:
                live.heard = self._now()
                self.mapping.report(executor, sizes)
            return live is not None

    def leave(self, executor: Executor) -> None:
        """It ends."""
        self._remove([executor])

    def fail(self, executor: Executor, problem: object) -> None:
        """It did not answer."""
        with self._lock:
            if executor in self._live:
                self._failed[executor.id] = self._now()
        if self._remove([executor]):
            _coordinator_log.warning(
                "an executor fails; its shards go elsewhere",
                slot=executor.slot,
                executor=executor.id,
                problem=str(problem),
            )

    def sweep(self) -> None:
        """Remove those that were not heard of."""
        with self._lock:
            since = self._now() - SILENT_S
            silent = [each for each, live in self._live.items() if live.heard < since]
        if silent:
            self._remove(silent)
            _coordinator_log.warning("executors are silent", executors=[each.id for each in silent])

    def reached(self, executor: Executor) -> ReachedExecutor | None:
        """How to ask an executor; None if it is dead."""
        live = self._live.get(executor)
        return None if live is None else live.reached

    @property
    def live(self) -> dict[Executor, ReachedExecutor]:
        """The executors that are counted on, in the order of their slots."""
        with self._lock:
            return {each: self._live[each].reached for each in self.mapping.executors}

    def route(self, shards: Iterable[Shard]) -> Mapping[Executor, Sequence[Shard]]:
        """See `ShardMapping.route`. No executor that was removed before the call is in the
        answer."""
        with self._lock:
            return self.mapping.route(shards)

    def drop(self, table: str, keys: Collection[str] = ()) -> None:
        """See `ShardMapping.drop`."""
        with self._lock:
            self.mapping.drop(table, keys)

    def _remove(self, executors: Sequence[Executor]) -> bool:
        with self._lock:
            gone = self._taken([each for each in executors if each in self._live])
        for slot in gone:
            slot.close()
        return bool(gone)

    def _taken(self, executors: Sequence[Executor]) -> list[ReachedExecutor]:
        """With the lock: their shards go elsewhere, one by one (I-49)."""
        found = [self._live.pop(each).reached for each in executors]
        for each in executors:
            self.mapping.route(self.mapping.remove(each))
        return found


_log = structlog.get_logger("tandem.index.executor")

BEAT_S: Final = 1.0
"""Seconds between signs of life."""

GIVE_UP_S: Final = 60.0
"""Seconds without the coordinator after which an executor ends: if the application lives, it is
started again."""

_CALL_S = 5.0
_REPLY_BYTES = MAX_REPLY_BYTES + (1 << 20)
"""Of a message of an executor: the reply and what belongs to it."""


@dataclass(frozen=True)
class TlsFolder:
    """A certificate as Kubernetes mounts it: `tls.crt`, `tls.key`, and `ca.crt` unless the
    certificate is its own authority.

    Args:
        name: that the certificate is for; executors present it, too.
    """

    path: Path
    name: str

    @property
    def server(self) -> Tls:
        return Tls((self.path / "tls.crt").read_bytes(), (self.path / "tls.key").read_bytes())

    @property
    def client(self) -> Tls:
        authority = self.path / "ca.crt"
        return Tls((authority if authority.exists() else self.path / "tls.crt").read_bytes())


@dataclass(frozen=True)
class SlotSettings:
    """What an executor needs to know. It travels in the task, and holds no credential of a store.

    Args:
        coordinator: endpoint of its registry.
        key: that all of the application share.
        stores: how the store of each table is opened, by the name of its LakeTable.
        limit_bytes: of facts.
        facts: as of `HeldShards`.
    """

    coordinator: str
    key: str = field(repr=False)
    stores: Mapping[str, Callable[[], Store]]
    limit_bytes: int | None = None
    facts: MakeFacts | None = None
    tls: TlsFolder | None = None


def new_key() -> str:
    """The key of an application."""
    return secrets.token_urlsafe(32)


class RegistryService:
    """What the coordinator serves for its executors, with their key as token."""

    def __init__(self, registry: Registry, key: str, *, tls: TlsFolder | None = None) -> None:
        self.parts = AnswerFiles(None)
        self._registry, self._key, self._tls = registry, key, tls

    def ask(self, call: str, body: bytes, caller: str) -> Answer:  # noqa: ARG002
        """Raises: InvalidSpec."""
        if call != REGISTRY_CALL:
            raise no_such_call(call, [REGISTRY_CALL])
        news = parsed(SlotNews, call, body)
        executor, registry = Executor(news.slot, news.id), self._registry
        if news.leaves:
            registry.leave(executor)
            return Answer(Welcome(known=False))
        sizes = {Shard(each.table_id, each.shard): each.bytes for each in news.sizes}
        known = registry.beat(executor, sizes)
        if not known:
            reached = RemoteExecutor(connected(news.endpoint, self._key, self._tls))
            if not registry.join(executor, reached):
                reached.close()
        return Answer(Welcome(known=known))


def connected(endpoint: str, key: str, tls: TlsFolder | None) -> Connection:
    """A connection between coordinator and executor. Raises: InvalidSpec."""
    scheme = "grpc" if tls is None else "grpc+tls"
    if urlsplit(endpoint).scheme != scheme:
        raise InvalidSpec(
            "not an endpoint of this application",
            field="endpoint",
            found=endpoint[:200],
            expected=f"{scheme}://ADDRESS:PORT",
        )
    return Connection(
        endpoint,
        token=key,
        tls=None if tls is None else tls.client,
        timeout_s=_CALL_S,
        most_bytes=_REPLY_BYTES,
        server_name="" if tls is None else tls.name,
    )


def run_executor(
    settings: SlotSettings,
    slot: int,
    stop: threading.Event,
    *,
    beat_s: float = BEAT_S,
    give_up_s: float = GIVE_UP_S,
) -> None:
    """Be an executor until `stop`, or until there is no coordinator.

    Args:
        slot: its number, from 0.
    """
    service = ExecutorService(
        settings.stores, limit_bytes=settings.limit_bytes, facts=settings.facts
    )
    coordinator = connected(settings.coordinator, settings.key, settings.tls)
    tls = None if settings.tls is None else settings.tls.server
    address, id_ = own_address(settings.coordinator), secrets.token_hex(8)
    sent: dict[ShardName, int] = {}
    silent = 0.0
    with FlightServer(service, address, 0, token=settings.key, tls=tls) as server:
        scheme = "grpc" if tls is None else "grpc+tls"
        me = SlotNews(slot=slot, id=id_, endpoint=f"{scheme}://{address}:{server.port}")
        while silent < give_up_s:
            sizes = service.held.sizes()
            new = [name for name, size in sizes.items() if sent.get(name) != size][:MAX_SIZES]
            told = tuple(
                ShardSize(table_id=name.table_id, shard=name.key, bytes=sizes[name]) for name in new
            )
            known = _told(coordinator, me.model_copy(update={"sizes": told}))
            silent = silent + beat_s if known is None else 0.0
            if known:
                sent |= {name: sizes[name] for name in new}
            elif known is False:
                # It holds nothing that the coordinator does not know of.
                service.held.drop()
                sent = {}
            if stop.wait(beat_s):
                _told(coordinator, me.model_copy(update={"leaves": True}))
                break
    coordinator.close()
    service.close()


def _told(coordinator: Connection, news: SlotNews) -> bool | None:
    """Whether the coordinator knew the executor; None if it does not answer."""
    try:
        message, _ = coordinator.ask(REGISTRY_CALL, body(news))
        return Welcome.model_validate(message).known
    except (TandemError, ValidationError) as error:
        _log.info("the coordinator does not answer", problem=str(error))
        return None


def own_address(coordinator: str) -> str:
    """The address by which the coordinator reaches this process, in brackets if it has colons."""
    parts = urlsplit(coordinator)
    host, port = parts.hostname or "", parts.port or 0
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # of datagrams: nothing is sent
        found = str(probe.getsockname()[0])
    return f"[{found}]" if ipaddress.ip_address(found).version == 6 else found
