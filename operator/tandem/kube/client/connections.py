"""The connections of one login: the official `kubernetes` package's client, with extensions.

Does not interpret requests, and retries nothing.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient

from tandem.kube.client.credentials import AUTHORIZATION, Login

_WITHIN: Final = aiohttp.ClientTimeout(total=None, sock_connect=5)


class SocketTracker:
    """The sockets of a connector, so that a caller can wait until they are closed.

    TLS sends a close notification if a connection is closed in the middle of a response; a
    session's `close` does not wait for that, and the loop may end before.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def create(self, address: Sequence[Any]) -> socket.socket:
        """The connector's `socket_factory`."""
        made = socket.socket(*address[:3])
        self._made.add(made)
        return made

    async def closed(self) -> None:
        """Wait until all are closed, at most a second."""
        for _ in range(200):
            if all(item.fileno() < 0 for item in self._made):
                return
            await asyncio.sleep(0.005)


class Connections:
    """TLS, proxy and the header `Authorization`, whose token is read again every minute in a pod.

    The constructor reads certificates, so call it in a thread; call `open` in the loop.

    Args:
        headers: sent with every call.
    """

    def __init__(self, login: Login, headers: Mapping[str, str]) -> None:
        self.login = login
        self.closed = False
        self._client = ApiClient(login.configuration)
        self._client.default_headers.update(headers)
        self._connector: aiohttp.TCPConnector | None = None

    def open(self, sockets: SocketTracker) -> Connections:
        self._connector = aiohttp.TCPConnector(
            limit=64, ssl=self._client.rest_client.ssl_context, socket_factory=sockets.create
        )
        # As in kopf: no proxy from the environment, no login from .netrc. And the default buffer
        # of 64 KiB per watch instead of 2 MiB, since our watch joins lines itself.
        self.login.configuration.client_session_kwargs = {
            "connector": self._connector,
            "trust_env": False,
            "read_bufsize": 2**16,
        }
        return self

    async def send(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        within: aiohttp.ClientTimeout = _WITHIN,
    ) -> aiohttp.ClientResponse:
        """The response, of any status; the caller has to close it.

        Raises: aiohttp.ClientError, TimeoutError, OSError; ConfigException if the pod's token
            cannot be read; RuntimeError if the connections are closed.
        """
        if self.closed:
            raise RuntimeError("the connections are closed")
        call = await self._client.param_serialize(
            method,
            url,
            query_params=list((query or {}).items()),
            header_params=dict(headers or {}),
            body=body,
            auth_settings=[AUTHORIZATION],
        )
        found: Any = await self._client.call_api(*call, _request_timeout=within)
        answer: aiohttp.ClientResponse = found.response
        return answer

    async def close(self) -> None:
        self.closed = True
        await self._client.close()
        if self._connector is not None:
            await self._connector.close()
