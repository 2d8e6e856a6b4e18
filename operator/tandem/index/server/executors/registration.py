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
from tandem.index.assignment import Executor, Shard
from tandem.index.server.answer_files import AnswerFiles
from tandem.index.server.calls import Answer, parsed
from tandem.index.server.executors.coordinator import Coordinator
from tandem.index.server.executors.executor import ExecutorService, MakeFacts, ShardName
from tandem.index.server.executors.slot_messages import (
    MAX_REPLY_BYTES,
    MAX_SIZES,
    RegistryCall,
    ShardSize,
    SlotNews,
    Welcome,
    body,
)
from tandem.index.server.executors.slots import RemoteSlot
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

    def __init__(self, coordinator: Coordinator, key: str, *, tls: TlsFolder | None = None) -> None:
        self.parts = AnswerFiles(None)
        self._coordinator, self._key, self._tls = coordinator, key, tls

    def ask(self, call: str, body: bytes, caller: str) -> Answer:  # noqa: ARG002
        """Raises: InvalidSpec."""
        if call not in list(RegistryCall):
            raise InvalidSpec(
                "no such call", resource=call[:40], expected="one of " + ", ".join(RegistryCall)
            )
        news = parsed(SlotNews, call, body)
        executor = Executor(news.slot, news.id)
        known = True
        match call:
            case RegistryCall.JOIN:
                slot = RemoteSlot(connected(news.endpoint, self._key, self._tls))
                known = self._coordinator.join(executor, slot)
                if not known:
                    slot.close()
            case RegistryCall.BEAT:
                sizes = {Shard(each.table_id, each.shard): each.bytes for each in news.sizes}
                known = self._coordinator.beat(executor, sizes)
            case _:
                self._coordinator.registry.leave(executor)
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
    address = own_address(settings.coordinator)
    with FlightServer(service, address, 0, token=settings.key, tls=tls) as server:
        scheme = "grpc" if tls is None else "grpc+tls"
        me = _Member(
            service, coordinator, slot, secrets.token_hex(8), f"{scheme}://{address}:{server.port}"
        )
        silent = 0.0
        while silent < give_up_s:
            silent = 0.0 if me.beat() else silent + beat_s
            if stop.wait(beat_s):
                me.leave()
                break
    coordinator.close()
    service.close()


def own_address(coordinator: str) -> str:
    """The address by which the coordinator reaches this process, in brackets if it has colons."""
    parts = urlsplit(coordinator)
    host, port = parts.hostname or "", parts.port or 0
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # of datagrams: nothing is sent
        found = str(probe.getsockname()[0])
    return f"[{found}]" if ipaddress.ip_address(found).version == 6 else found


class _Member:
    def __init__(
        self, service: ExecutorService, coordinator: Connection, slot: int, id_: str, endpoint: str
    ) -> None:
        self._service, self._coordinator = service, coordinator
        self._slot, self._id, self._endpoint = slot, id_, endpoint
        self._joined = False
        self._sent: dict[ShardName, int] = {}

    def beat(self) -> bool:
        """Send a sign of life, or join. False if the coordinator does not answer."""
        try:
            if not self._joined:
                # It holds nothing that the coordinator does not know of.
                self._service.held.drop()
                self._sent = {}
                self._joined = self._ask(RegistryCall.JOIN)
                return True
            sizes = self._service.held.sizes()
            new = {name: size for name, size in sizes.items() if self._sent.get(name) != size}
            now = dict(list(new.items())[:MAX_SIZES])
            self._joined = self._ask(RegistryCall.BEAT, now)
            self._sent |= now
        except (TandemError, ValidationError) as error:
            _log.info("the coordinator does not answer", problem=str(error))
            return False
        return True

    def leave(self) -> None:
        try:
            self._ask(RegistryCall.LEAVE)
        except TandemError as error:
            _log.info("the coordinator does not answer", problem=str(error))

    def _ask(self, call: RegistryCall, sizes: Mapping[ShardName, int] | None = None) -> bool:
        news = SlotNews(
            slot=self._slot,
            id=self._id,
            endpoint=self._endpoint,
            sizes=tuple(
                ShardSize(table_id=name.table_id, shard=name.key, bytes=size)
                for name, size in (sizes or {}).items()
            ),
        )
        message, _ = self._coordinator.ask(call, body(news))
        return Welcome.model_validate(message).known
