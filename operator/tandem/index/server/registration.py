"""How executors come and go: what the coordinator serves for them, and what each of them does.

Executors know one address, that of the coordinator, and send it theirs, as an address of the
network: names of hosts may have characters that no URL has. All of an application share a random
key. A process that was forgotten, because it was silent or failed, joins again without load.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog
from pydantic import ValidationError

from tandem.errors import InvalidSpec, TandemError
from tandem.index.server.answer_files import AnswerFiles
from tandem.index.server.assignment import Executor, Shard
from tandem.index.server.calls import Answer, no_such_call, parsed
from tandem.index.server.executor import ExecutorService, MakeFacts, ShardName
from tandem.index.server.executor_messages import (
    MAX_REPLY_BYTES,
    MAX_SIZES,
    REGISTRY_CALL,
    ShardSize,
    SlotNews,
    Welcome,
    body,
)
from tandem.index.server.registry import Registry, RemoteExecutor
from tandem.index.server.transport import Connection, FlightServer, Tls
from tandem.storage.store import Store

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
