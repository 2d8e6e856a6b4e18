"""Leases of locks: granted, renewed by their holder only, and given up before they can expire.

A lease belongs to one owner's operation on one table. It counts as lost, without a call to etcd,
once it might have expired: its time is counted from when the last successful renewal was *sent*,
on a clock that continues while the machine sleeps. Runs on the store's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from tandem.errors import LocksUnavailable
from tandem.locks.etcd.client import EtcdClient, KeepAlives, LeaseExists, LeaseMissing, StreamBroken

_ANSWER_WITHIN_S = 2.5
_PAUSE_S = 0.25
_AT_REST_S = 3600.0

LeaseName = tuple[str, str, str]
"""(table, operation, owner)"""


def now() -> float:
    """A clock in seconds that, if the system has one, continues while the process or the machine
    is suspended."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_id(prefix: str, name: LeaseName, number: int) -> int:
    """A positive int64 from a hash: a repeated grant finds its own first try, but never a lease of
    another prefix in the same etcd."""
    text = "\0".join((prefix, *name, str(number)))
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1 or 1


@dataclass(slots=True, eq=False)
class Lease:
    """`used`: an entry is, or may be, attached to it, so it is renewed. `released`: it must not be
    used again, even if etcd has not revoked it yet."""

    name: LeaseName
    id: int
    ttl_s: float
    deadline: float
    due: float
    used: bool = False
    released: bool = False
    gone: bool = False

    @property
    def lost(self) -> bool:
        return self.gone or now() >= self.deadline

    @property
    def kept(self) -> bool:
        """Whether it is to be renewed."""
        return self.used and not self.released and not self.gone

    def renewed(self, sent: float, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.deadline = sent + ttl_s - max(ttl_s / 10, 0.25)
        self.due = sent + ttl_s / 3


class Leases:
    """All leases of a store. `on_lost` is called with the name of one that was lost in use."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        ttl_s: int,
        on_lost: Callable[[LeaseName], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._leases: dict[LeaseName, Lease] = {}
        self._discarded = 0
        self._granting: dict[LeaseName, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._wakes_at = 0.0

    def get(self, name: LeaseName) -> Lease | None:
        return self._leases.get(name)

    async def ensure(self, name: LeaseName) -> Lease:
        """A lease for an entry. Raises: LocksUnavailable."""
        while True:
            lease = self._leases.get(name)
            if lease is not None and not lease.lost and not lease.released:
                return lease
            granting = self._granting.get(name)
            if granting is None:
                break
            await granting.wait()
        if lease is not None:
            self._discard(lease)
        self._granting[name] = granting = asyncio.Event()
        try:
            return await self._grant(name)
        finally:
            del self._granting[name]
            granting.set()

    def use(self, lease: Lease) -> None:
        """An entry was attached to it: renew it from now on."""
        if not lease.used:
            lease.used = True
            if lease.due < self._wakes_at:
                self._changed.set()

    def stop(self, lease: Lease) -> None:
        """Stop renewing it."""
        lease.released = True

    def forget(self, lease: Lease) -> None:
        """etcd has ended it. Its name may be granted again, with another id."""
        lease.gone = True
        self._discard(lease)

    async def keep(self) -> None:
        """Renew the leases in use, until cancelled."""
        while True:
            if not any(lease.kept for lease in self._leases.values()):
                self._changed.clear()
                self._wakes_at = float("inf")
                await self._changed.wait()
            try:
                async with self._client.keep_alives() as stream:
                    await self._renew_on(stream)
            except (StreamBroken, LocksUnavailable):
                self._report_losses()
                await asyncio.sleep(_PAUSE_S)

    def _discard(self, lease: Lease) -> None:
        if self._leases.get(lease.name) is lease:
            del self._leases[lease.name]
            # No id is reused: a late call may still revoke it.
            self._discarded += 1

    async def _grant(self, name: LeaseName) -> Lease:
        identifier = lease_id(self._prefix, name, self._discarded)
        while True:
            sent = now()
            try:
                ttl_s = await self._client.grant(identifier, self._ttl_s)
                left_s = ttl_s
            except LeaseExists:
                # Our own grant whose answer was lost, or that of an earlier process of this owner.
                try:
                    left_s, ttl_s = await self._client.remaining(identifier)
                except LeaseMissing:
                    continue
            lease = Lease(name, identifier, ttl_s, 0.0, 0.0)
            lease.renewed(sent - (ttl_s - left_s), ttl_s)
            self._leases[name] = lease
            return lease

    async def _renew_on(self, stream: KeepAlives) -> None:
        """Renew on one stream, until StreamBroken."""
        sent: dict[int, float] = {}
        reader = asyncio.ensure_future(self._read(stream, sent))
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                self._changed.clear()
                await self._send_due(stream, sent)
                self._report_losses()
                self._wakes_at = self._next_wake(sent)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(self._wakes_at - now(), 0.01)):
                        await self._changed.wait()
                if reader.done():
                    await reader
                if sent and now() - min(sent.values()) >= _ANSWER_WITHIN_S:
                    stream.give_up()
                    raise StreamBroken("renewals are not answered")
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _send_due(self, stream: KeepAlives, sent: dict[int, float]) -> None:
        for lease in list(self._leases.values()):
            if lease.kept and lease.id not in sent and lease.due <= now():
                sent[lease.id] = now()
                await stream.send(lease.id)

    def _next_wake(self, sent: dict[int, float]) -> float:
        """When the next renewal or expiry is due."""
        times = [at + _ANSWER_WITHIN_S for at in sent.values()]
        for lease in self._leases.values():
            if lease.kept:
                times.append(lease.deadline)
                if lease.id not in sent:
                    times.append(lease.due)
        return min(times, default=now() + _AT_REST_S)

    async def _read(self, stream: KeepAlives, sent: dict[int, float]) -> None:
        while True:
            identifier, ttl_s = await stream.receive()
            at = sent.pop(identifier, None)
            lease = next((x for x in self._leases.values() if x.id == identifier), None)
            if lease is None or at is None:
                continue
            if ttl_s > 0:
                lease.renewed(at, ttl_s)
            else:
                lease.deadline = at
                self._changed.set()

    def _report_losses(self) -> None:
        for lease in list(self._leases.values()):
            if lease.kept and lease.lost:
                # Do not renew it: its entry would keep others waiting without a holder.
                lease.gone = True
                self._on_lost(lease.name)
