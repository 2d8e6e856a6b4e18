"""The Secrets of an IndexServer: their versions, and what the operator needs of the server's own.
Reads them one by one, and seldom; never logs what is in them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from tandem.errors import AccessDenied
from tandem.kube.client.api import Api, Forbidden, NotFound, ResourcePath

_MISSING_PART: Final = 0.1
"""One that does not exist is looked for more often."""
_KEPT: Final = ("ca.crt", "tls.crt", "token")
"""Keys that the operator needs to ask the server; never a private key."""


@dataclass(frozen=True, slots=True)
class SecretState:
    """`version` is None if it does not exist; `values` of an own Secret."""

    version: str | None
    values: dict[str, bytes] = field(default_factory=dict, repr=False)


class Secrets:
    """Those of one namespace. To be used in one event loop.

    Args:
        look_s: how often each is looked at.
    """

    def __init__(self, api: Api, namespace: str, look_s: float) -> None:
        self._api, self._namespace, self._look_s = api, namespace, look_s
        self._known: dict[str, tuple[float, SecretState]] = {}

    async def look(self, own: Collection[str], others: Collection[str]) -> dict[str, SecretState]:
        """The states of all of these. Raises: AccessDenied if we may not read one; ApiError."""
        wanted = {**dict.fromkeys(others, False), **dict.fromkeys(own, True)}
        self._known = {name: known for name, known in self._known.items() if name in wanted}
        now = asyncio.get_running_loop().time()
        for name, is_own in wanted.items():
            known = self._known.get(name)
            if known is not None:
                part = 1.0 if known[1].version is not None else _MISSING_PART
                if now - known[0] < part * self._look_s:
                    continue
            self._known[name] = now, await self._read(name, is_own=is_own)
        return {name: self._known[name][1] for name in wanted}

    async def _read(self, name: str, *, is_own: bool) -> SecretState:
        try:
            found = await self._api.get(ResourcePath("", "v1", "secrets", self._namespace, name))
        except NotFound:
            return SecretState(None)
        except Forbidden:
            raise AccessDenied(
                "the operator may not read this Secret",
                resource=f"Secret/{name}",
                remedy="Bind the operator's role in this namespace",
            ) from None
        metadata, data = found["metadata"], found.get("data") or {}
        values = {key: base64.b64decode(data[key]) for key in _KEPT if is_own and key in data}
        return SecretState(f"{metadata['uid']}/{metadata['resourceVersion']}", values)
