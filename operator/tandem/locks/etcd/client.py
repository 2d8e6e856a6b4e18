"""etcd's calls as locks need them: keys, leases and watches.

Everything runs on one event loop. This module does not depend on locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from aetcd import rpc

from tandem.locks.etcd.connection import (
    Endpoint,
    EtcdAccess,
    EtcdConnection,
    LeaseMissing,
    StreamBroken,
    is_token_refused,
)

KEEP_LEASE = -1
"""For `put`: the key keeps its current lease."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes
    created: int
    modified: int
    lease: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of a key; without a value, the key was deleted at revision `modified`."""

    key: bytes
    modified: int
    now: KeyValue | None


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a transaction, and the keys that its branch read."""

    succeeded: bool
    revision: int
    found: tuple[KeyValue, ...]


def unchanged(key: bytes, modified: int) -> Any:
    """A compare: the key was last put at revision `modified`; 0: it does not exist."""
    return rpc.Compare(
        result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=key, mod_revision=modified
    )


def empty(start: bytes, end: bytes) -> Any:
    """A compare: there is no key in the range."""
    return rpc.Compare(
        result=rpc.Compare.EQUAL,
        target=rpc.Compare.CREATE,
        key=start,
        range_end=end,
        create_revision=0,
    )


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    if lease == KEEP_LEASE:
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, ignore_lease=True))
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def read(key: bytes, end: bytes = b"") -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=end))


class EtcdClient:
    """A client of etcd, to be created and used on one event loop.

    All methods raise LocksUnavailable if no endpoint answers within `timeout_s`, or if etcd refuses
    our credentials. A call that fails in this way may have had its effect.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self._timeout_s = access.timeout_s
        self._connection = EtcdConnection(access)

    async def close(self) -> None:
        await self._connection.close()

    # Keys

    async def transact(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]
    ) -> TransactionResult:
        """Perform all of `success` if all of `compare` hold, otherwise all of `failure`.

        It is retried if the outcome is unknown, so repeating it must do no harm: a compare must
        fail after the first success. Raises: LeaseMissing.
        """
        request = rpc.TxnRequest(compare=compare, success=success, failure=failure)
        answer = await self._connection.call("txn", request)
        found = tuple(
            _key_value(kv)
            for part in answer.responses
            if part.HasField("response_range")
            for kv in part.response_range.kvs
        )
        return TransactionResult(answer.succeeded, answer.header.revision, found)

    async def read(
        self, start: bytes, end: bytes, *, keys_only: bool = False
    ) -> tuple[KeyValue, ...]:
        """The current keys of a range."""
        request = rpc.RangeRequest(key=start, range_end=end, keys_only=keys_only)
        return tuple(map(_key_value, (await self._connection.call("range", request)).kvs))

    # Leases

    async def grant(self, lease: int, ttl_s: int) -> int:
        """Grant a lease; returns its TTL in seconds. Raises: LeaseExists."""
        return int(
            (await self._connection.call("grant", rpc.LeaseGrantRequest(TTL=ttl_s, ID=lease))).TTL
        )

    async def revoke(self, lease: int) -> int | None:
        """Revoke a lease, and with it its keys. Returns the revision by which they are gone, or
        None if there was no such lease."""
        try:
            answer = await self._connection.call("revoke", rpc.LeaseRevokeRequest(ID=lease))
        except LeaseMissing:
            return None
        return int(answer.header.revision)

    async def remaining(self, lease: int) -> tuple[int, int]:
        """(seconds that a lease has left, seconds that each renewal gives). Raises:
        LeaseMissing."""
        answer = await self._connection.call("remaining", rpc.LeaseTimeToLiveRequest(ID=lease))
        if answer.TTL <= 0:
            raise LeaseMissing
        return int(answer.TTL), int(answer.grantedTTL)

    # Streams

    @asynccontextmanager
    async def keep_alives(self) -> AsyncIterator[KeepAlives]:
        """A stream of renewals. Its methods raise StreamBroken."""
        endpoint, metadata = await self._connection.for_stream()
        call = endpoint.keep_alive(metadata=metadata)
        try:
            yield KeepAlives(self._connection, endpoint, call)
        finally:
            call.cancel()

    async def watch(
        self, start: bytes, end: bytes
    ) -> AsyncGenerator[int | tuple[KeyChange, ...], None]:
        """Changes in a range from now on: first the current revision, then the changes in their
        order, those of one revision together.

        Ends with StreamBroken, also when `avoid` has switched to another endpoint. The caller has
        to read the range after restarting the watch.
        """
        endpoint, metadata = await self._connection.for_stream()
        call = endpoint.watch(metadata=metadata)
        moved = self._connection.moved
        guard = asyncio.ensure_future(moved.wait())
        guard.add_done_callback(lambda _: call.cancel())
        request = rpc.WatchCreateRequest(key=start, range_end=end)
        try:
            async with asyncio.timeout(self._timeout_s):
                await call.write(rpc.WatchRequest(create_request=request))
                first = await call.read()
            while True:
                answer = first or await call.read()
                if answer is grpc.aio.EOF:
                    raise StreamBroken("etcd ended the watch")
                if answer.canceled:
                    raise self._cancelled(answer, metadata)
                if first:
                    first = None
                    yield int(answer.header.revision)
                if answer.events:
                    yield tuple(map(_change, answer.events))
        except TimeoutError as error:
            self._connection.forget_token(metadata)
            self._connection.avoid(endpoint)
            raise StreamBroken("no answer to a watch") from error
        except grpc.aio.AioRpcError as error:
            self._connection.failed_stream(endpoint, error, metadata)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not moved.is_set() or (task is not None and task.cancelling()):
                raise
            raise StreamBroken("moved to another endpoint") from None
        finally:
            guard.cancel()
            call.cancel()
            await asyncio.gather(guard, return_exceptions=True)

    def _cancelled(self, answer: Any, metadata: Any) -> StreamBroken:
        if "auth" in answer.cancel_reason or "permission" in answer.cancel_reason:
            self._connection.forget_token(metadata)
        return StreamBroken(
            f"etcd cancelled the watch: {answer.cancel_reason or 'its revision is compacted'}"
        )


class KeepAlives:
    """Renewals on one stream; the answers come in the order of the requests."""

    def __init__(self, connection: EtcdConnection, endpoint: Endpoint, call: Any) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._call = call

    async def send(self, lease: int) -> None:
        try:
            await self._call.write(rpc.LeaseKeepAliveRequest(ID=lease))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            await self._broken(error)

    async def receive(self) -> tuple[int, int]:
        """(lease, its TTL in seconds); 0 if the lease is gone."""
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            await self._broken(error)
        if answer is grpc.aio.EOF:
            await self._broken(None)
        return int(answer.ID), int(answer.TTL)

    def give_up(self) -> None:
        """The endpoint does not answer: the next stream uses another one."""
        self._connection.avoid(self._endpoint)

    async def _broken(self, error: Exception | None) -> None:
        if not isinstance(error, grpc.aio.AioRpcError):
            raise StreamBroken("etcd ended the stream") from error
        if is_token_refused(error):
            self._connection.drop_token()
        else:
            self.give_up()
        raise StreamBroken(f"{error.code().name}: {error.details()}") from error


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _change(event: Any) -> KeyChange:
    deleted = event.type == rpc.Event.DELETE
    return KeyChange(event.kv.key, event.kv.mod_revision, None if deleted else _key_value(event.kv))
