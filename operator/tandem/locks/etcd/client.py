"""etcd's calls as locks need them: keys, leases and watches, over channels with TLS, tokens,
deadlines and retries. The only module that knows the client library.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from aetcd import rpc

from tandem.errors import InvalidSpec, LocksUnavailable

# Channels to etcd's endpoints: TLS, tokens, deadlines, retries and the exceptions for errors.
#
# Only the generated stubs of aetcd are used: its own client has one endpoint, no TLS, and keeps an
# expired token. This module does not depend on locks.


_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5

_OPTIONS: tuple[tuple[str, int], ...] = (
    # An endpoint that hangs is detected within 15 s, even on an idle connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Reading a table with hundreds of large plans.
    ("grpc.max_receive_message_length", -1),
    # Each store has its own connections, so that they do not share failures.
    ("grpc.use_local_subchannel_pool", 1),
    # Ignore the proxy of the environment, which is meant for external addresses.
    ("grpc.enable_http_proxy", 0),
)


_CODES = grpc.StatusCode
# Another endpoint, or the same one a little later, may answer.
RETRIED_CODES = (_CODES.UNAVAILABLE, _CODES.DEADLINE_EXCEEDED, _CODES.CANCELLED, _CODES.UNKNOWN)


class LeaseExists(Exception):
    """A live lease has this id already."""


class LeaseMissing(Exception):
    """No such lease (any more)."""


class StreamBroken(Exception):
    """A watch or a keep-alive stream must be restarted."""


@dataclass(frozen=True)
class EtcdAccess:
    """The endpoints of etcd and our credentials. Paths are those of PEM files."""

    endpoints: tuple[str, ...]
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 4.0
    """The longest time that a call takes, including retries."""

    @property
    def tls(self) -> bool:
        return bool(self.authority or self.certificate) or any(
            endpoint.startswith("https://") for endpoint in self.endpoints
        )


class Endpoint:
    """A channel to one member, with its methods."""

    def __init__(self, address: str, credentials: Any) -> None:
        self.address = address
        options = list(_OPTIONS)
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)
        kv, lease = rpc.KVStub(self.channel), rpc.LeaseStub(self.channel)
        self.methods: dict[str, Any] = {
            "range": kv.Range,
            "txn": kv.Txn,
            "grant": lease.LeaseGrant,
            "revoke": lease.LeaseRevoke,
            "remaining": lease.LeaseTimeToLive,
        }
        self.auth: Any = rpc.AuthStub(self.channel)
        self.methods["authenticate"] = self.auth.Authenticate
        self.keep_alive: Any = lease.LeaseKeepAlive
        self.watch: Any = rpc.WatchStub(self.channel).Watch


class EtcdConnection:
    """Calls to any of the endpoints, with a token where there is a user.

    To be made and used on one event loop. Raises LocksUnavailable: no endpoint gave an answer
    within `timeout_s`, or etcd refuses us. A call that fails so may have had its effect.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._try_s = access.timeout_s / (2.5 if len(access.endpoints) == 1 else 4)
        self._files: tuple[int, ...] = ()
        self._endpoints: list[Endpoint] = []
        self._closing: list[asyncio.Future[None]] = []
        self._connect()
        self._current = 0
        self.moved = asyncio.Event()
        """Set when another endpoint is used from now on; then there is a new event."""
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    async def close(self) -> None:
        await asyncio.gather(*(e.channel.close() for e in self._endpoints), *self._closing)

    async def call(self, method: str, request: Any) -> Any:
        """Repeated while there is time and the error may pass.

        Raises: LeaseMissing, LeaseExists.
        """
        deadline = time.monotonic() + self._access.timeout_s
        failures = 0
        while True:
            endpoint = self._endpoints[self._current]
            left = deadline - time.monotonic()
            metadata = await self._metadata() if self._access.user else None
            try:
                return await endpoint.methods[method](
                    request, timeout=min(left, self._try_s), metadata=metadata
                )
            except grpc.aio.AioRpcError as error:
                failures += 1
                if is_token_refused(error) and metadata and failures <= 3:
                    self.forget_token(metadata)
                elif error.code() in RETRIED_CODES:
                    if error.code() is _CODES.DEADLINE_EXCEEDED:
                        # A token contains the revision at which etcd issued it. A member that has
                        # lost its data since refuses it until it has reached that revision again.
                        self.forget_token(metadata)
                    self.avoid(endpoint)
                else:
                    raise error_of(error, endpoint) from error
                pause = self._pause(failures)
                if time.monotonic() + pause >= deadline - _PAUSE_S:
                    raise error_of(error, endpoint) from error
                await asyncio.sleep(pause)

    def _pause(self, failures: int) -> float:
        """The pause in seconds: 0 until all endpoints were tried, then increasing."""
        rounds = failures // len(self._endpoints)
        if failures % len(self._endpoints):
            return 0.0
        return min(_PAUSE_S * float(2 ** (rounds - 1)), _LONGEST_PAUSE_S)

    async def for_stream(self) -> tuple[Endpoint, Any]:
        """The endpoint in use, and the metadata of a stream to it."""
        metadata = await self._metadata() or ()
        # A member that has lost its leader ends the stream instead of falling silent.
        return self._endpoints[self._current], (*metadata, ("hasleader", "true"))

    def failed_stream(self, endpoint: Endpoint, error: Any, metadata: Any) -> None:
        """Raises: StreamBroken, always."""
        if is_token_refused(error):
            self.forget_token(metadata)
        else:
            self.avoid(endpoint)
        raise StreamBroken(f"{error.code().name}: {error.details()}") from error

    # Endpoints

    def _connect(self) -> None:
        """Create the channels; again if the certificate files have been renewed."""
        access = self._access
        paths = (access.authority, access.certificate, access.key)
        files = tuple(path.stat().st_mtime_ns for path in paths if path is not None)
        if self._endpoints and files == self._files:
            return
        credentials = credentials_of(access) if access.tls else None
        self._files = files
        self._closing = [task for task in self._closing if not task.done()]
        self._closing += [asyncio.ensure_future(e.channel.close(5)) for e in self._endpoints]
        self._endpoints = [
            Endpoint(address.split("://", 1)[-1], credentials) for address in access.endpoints
        ]

    def avoid(self, endpoint: Endpoint) -> None:
        """Use another endpoint from now on, for streams, too."""
        if self._access.tls:
            # A file that is being replaced is looked at again after the next error.
            with suppress(OSError):
                self._connect()
        if self._endpoints[self._current] is not endpoint or len(self._endpoints) == 1:
            return
        self._current = (self._current + 1) % len(self._endpoints)
        self.moved.set()
        self.moved = asyncio.Event()

    # Tokens

    async def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        if not self._access.user:
            return None
        if self._token is None:
            async with self._authenticating:
                if self._token is None:
                    self._token = await self._authenticate()
        return (("token", self._token),)

    async def _authenticate(self) -> str:
        request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
        error: Any = None
        for _ in range(1 + len(self._endpoints)):
            endpoint = self._endpoints[self._current]
            try:
                timeout = self._access.timeout_s / (1 + len(self._endpoints))
                answer = await endpoint.methods["authenticate"](request, timeout=timeout)
            except grpc.aio.AioRpcError as refused:
                error = refused
                if refused.code() not in RETRIED_CODES:
                    break
                self.avoid(endpoint)
            else:
                return str(answer.token)
        raise error_of(error, endpoint) from error

    def forget_token(self, used: Any) -> None:
        """Discard a refused token: of many calls refused with it, one fetches the new one."""
        if used and used[0] == ("token", self._token):
            self._token = None

    def drop_token(self) -> None:
        """Fetch a new one for the next call."""
        self._token = None


def is_token_refused(error: Any) -> bool:
    # Users or roles were changed since the token was given: it is refused as an argument.
    return error.code() is _CODES.UNAUTHENTICATED or "revision of auth store" in error.details()


def error_of(error: Any, endpoint: Endpoint) -> Exception:
    """The exception to raise for an error of a call."""
    code, details = error.code(), error.details() or ""
    if code is _CODES.NOT_FOUND and "lease" in details:
        return LeaseMissing(details)
    if code is _CODES.FAILED_PRECONDITION and "lease" in details:
        return LeaseExists(details)
    if code is _CODES.INVALID_ARGUMENT and "too large" in details:
        return InvalidSpec(
            "the plan names more segments than fit into one lock",
            expected="less than 1 MB of names",
            remedy="Split the operation into several",
        )
    if "authentication is not enabled" in details:
        remedy = (
            "It has lost its data, or was never set up: run `tandem etcd-user`; "
            "for the chart's bundled etcd, `kubectl rollout restart` the operator"
        )
    elif code in (_CODES.PERMISSION_DENIED, _CODES.UNAUTHENTICATED, _CODES.INVALID_ARGUMENT):
        remedy = "Check the user, the password or the certificate, and the user's roles"
    elif code is _CODES.RESOURCE_EXHAUSTED:
        remedy = "Check etcd's alarms and quota"
    else:
        remedy = "Nothing is lost; the operation continues when etcd answers"
    return LocksUnavailable(
        "etcd cannot be used",
        resource=endpoint.address,
        found=f"{code.name}: {details}"[:300],
        remedy=remedy,
    )


def credentials_of(access: EtcdAccess) -> Any:
    def content(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    return grpc.ssl_channel_credentials(
        root_certificates=content(access.authority),
        private_key=content(access.key),
        certificate_chain=content(access.certificate),
    )


# etcd's calls as locks need them: keys, leases and watches.
#
# Everything runs on one event loop. This module does not depend on locks.


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
