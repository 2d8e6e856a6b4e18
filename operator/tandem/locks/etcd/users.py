"""Users and permissions of an etcd: root, and one user that owns one prefix.

For administrators who set up an etcd for Tandem alone. Besides `client` the only file that calls
etcd; the operator itself never uses it, and needs no permissions for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from aetcd import rpc

from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.locks.codec import after
from tandem.locks.etcd.client import RETRIED_CODES, Endpoint, EtcdAccess, credentials_of, error_of

ROOT: Final = "root"
_PAUSE_S = 0.5
_CALL_S = 5.0
_TRIES = 5
_READWRITE: Final = rpc.Permission.READWRITE


@dataclass(frozen=True, slots=True)
class PrefixOwner:
    """A user with all permissions on the keys below `prefix/`, and no others."""

    user: str
    password: str = field(repr=False)
    prefix: str

    def __post_init__(self) -> None:
        def wrong(what: str, message: str, expected: str, found: str = "") -> InvalidSpec:
            return InvalidSpec(message, resource="etcd", field=what, found=found, expected=expected)

        if self.user in ("", ROOT):
            raise wrong("user", "cannot own a prefix", "a user of its own", self.user)
        if not self.password:
            raise wrong("password", "is empty", "a file with a password in it")
        if not self.prefix.startswith("/") or not self.prefix.strip("/"):
            raise wrong("prefix", "would be all of etcd", "such as /tandem/v1", self.prefix)

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The range of the keys: the first key, and the first one after the range."""
        start = f"{self.prefix.rstrip('/')}/".encode()
        return start, after(start)


async def ensure(access: EtcdAccess, owner: PrefixOwner, *, wait_s: float = 60.0) -> list[str]:
    """Ensure that root has the password of `access`, that `owner` exists as described, and that
    authentication is enabled. Returns a description of each change, empty if there was none.

    Safe to run concurrently. Raises: LocksUnavailable if etcd does not answer within `wait_s`, or
    refuses root's password.
    """
    credentials = credentials_of(access) if access.tls else None
    endpoints = [Endpoint(address.split("://", 1)[-1], credentials) for address in access.endpoints]
    try:
        return await _Setup(access, owner, endpoints, time.monotonic() + wait_s).run()
    finally:
        await asyncio.gather(*(endpoint.channel.close() for endpoint in endpoints))


class _Refused(Exception):
    """A refusal by etcd that a retry does not change."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _Setup:
    def __init__(
        self, access: EtcdAccess, owner: PrefixOwner, endpoints: list[Endpoint], deadline: float
    ) -> None:
        self._access = access
        self._owner = owner
        self._endpoints = endpoints
        self._deadline = deadline
        self._token: str | None = None
        self._done: list[str] = []

    async def run(self) -> list[str]:
        last: _Refused | None = None
        for _ in range(_TRIES):
            try:
                await self._all()
            except _Refused as refused:
                # Another one does the same at this moment, and was faster; or a token is old.
                last = refused
                await asyncio.sleep(_PAUSE_S / 5)
            else:
                return self._done
        assert last is not None
        raise LocksUnavailable(
            "etcd rejects the setup",
            resource=self._endpoints[0].address,
            found=f"{last.code.name}: {last.details}"[:300],
            remedy="Set the user up with etcdctl, or give Tandem an etcd of its own",
        )

    async def _all(self) -> None:
        authenticated = await self._authenticate()
        await self._root(authenticated=authenticated)
        await self._role()
        await self._user(authenticated=authenticated)
        if not authenticated:
            await self._call("AuthEnable", rpc.AuthEnableRequest())
            self._done.append("authentication is enabled now")

    async def _authenticate(self) -> bool:
        """Whether authentication is enabled; if so, authenticate as root."""
        self._token = None
        try:
            self._token = await self._token_of(ROOT, self._access.password)
        except _Refused as refused:
            if "not enabled" in refused.details:
                return False
            raise LocksUnavailable(
                "authentication is already enabled, and root has a different password",
                resource=self._endpoints[0].address,
                found=f"{refused.code.name}: {refused.details}"[:300],
                remedy="Give root's password, or have etcd's administrator make the user",
            ) from refused
        return True

    async def _root(self, *, authenticated: bool) -> None:
        roles = await self._roles(ROOT)
        if roles is None:
            await self._add(ROOT, self._access.password)
            roles = []
        elif not authenticated:
            # Without authentication, nothing could check whether it is the right one.
            await self._change(ROOT, self._access.password)
        if ROOT not in roles:
            request = rpc.AuthUserGrantRoleRequest(user=ROOT, role=ROOT)
            await self._call("UserGrantRole", request)
            self._done.append("root is root")

    async def _role(self) -> None:
        name = self._owner.user
        start, end = self._owner.keys
        found = await self._maybe("RoleGet", rpc.AuthRoleGetRequest(role=name))
        if found is None:
            await self._call("RoleAdd", rpc.AuthRoleAddRequest(name=name))
        there = [] if found is None else [(p.permType, p.key, p.range_end) for p in found.perm]
        if (_READWRITE, start, end) not in there:
            permission = rpc.Permission(permType=_READWRITE, key=start, range_end=end)
            request = rpc.AuthRoleGrantPermissionRequest(name=name, perm=permission)
            await self._call("RoleGrantPermission", request)
            self._done.append(f"role {name} may read and write {start.decode()}…")
        for _type, key, range_end in there:
            if (key, range_end) != (start, end):
                await self._call(
                    "RoleRevokePermission",
                    rpc.AuthRoleRevokePermissionRequest(role=name, key=key, range_end=range_end),
                )
                text = key.decode(errors="replace")
                self._done.append(f"role {name} no longer has access to {text!r}…")

    async def _user(self, *, authenticated: bool) -> None:
        name, password = self._owner.user, self._owner.password
        roles = await self._roles(name)
        if roles is None:
            await self._add(name, password)
            roles = []
        elif not authenticated or not await self._knows(name, password):
            await self._change(name, password)
        if name not in roles:
            request = rpc.AuthUserGrantRoleRequest(user=name, role=name)
            await self._call("UserGrantRole", request)
            self._done.append(f"user {name} has role {name}")
        for role in roles:
            if role != name:
                revoke = rpc.AuthUserRevokeRoleRequest(name=name, role=role)
                await self._call("UserRevokeRole", revoke)
                self._done.append(f"user {name} no longer has role {role}")

    # Users

    async def _roles(self, user: str) -> list[str] | None:
        """The roles of a user; None if there is no such user."""
        found = await self._maybe("UserGet", rpc.AuthUserGetRequest(name=user))
        return None if found is None else list(found.roles)

    async def _add(self, user: str, password: str) -> None:
        await self._call("UserAdd", rpc.AuthUserAddRequest(name=user, password=password))
        self._done.append(f"user {user} made")

    async def _change(self, user: str, password: str) -> None:
        request = rpc.AuthUserChangePasswordRequest(name=user, password=password)
        await self._call("UserChangePassword", request)
        self._done.append(f"user {user} has the given password")

    async def _knows(self, user: str, password: str) -> bool:
        try:
            await self._token_of(user, password)
        except _Refused:
            return False
        return True

    async def _token_of(self, user: str, password: str) -> str:
        request = rpc.AuthenticateRequest(name=user, password=password)
        return str((await self._call("Authenticate", request)).token)

    # Calls

    async def _maybe(self, method: str, request: Any) -> Any:
        """The response, or None if the user or role does not exist."""
        try:
            return await self._call(method, request)
        except _Refused as refused:
            if "not found" in refused.details:
                return None
            raise

    async def _call(self, method: str, request: Any) -> Any:
        """Call etcd, with retries. Raises: _Refused, LocksUnavailable."""
        tries = 0
        while True:
            endpoint = self._endpoints[tries % len(self._endpoints)]
            tries += 1
            call: Callable[..., Awaitable[Any]] = getattr(endpoint.auth, method)
            metadata = None if self._token is None else (("token", self._token),)
            try:
                return await call(request, timeout=_CALL_S, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRIED_CODES:
                    raise _Refused(error.code(), error.details() or "") from error
                if time.monotonic() + _PAUSE_S >= self._deadline:
                    raise error_of(error, endpoint) from error
            await asyncio.sleep(_PAUSE_S)
