"""Detects that the API server has been restored from an older backup.

Versions of objects then go back. Watches wait in silence for versions that are still to come, and
what this process remembers of objects is of a state that no longer exists. So the process has to
end: the next one begins with a list. Must not decide anything about operations.
"""

from __future__ import annotations

import asyncio

import structlog

from tandem.kube.client.api import Api, ApiError
from tandem.kube.client.kinds import TABLE_KIND, path, version_of

_log = structlog.get_logger("tandem.kube.runtime.restoration")
LOOK_S = 15.0
"""Seconds between two looks: a list of one LakeTable each."""


class ApiServerRestored(Exception):
    """The API server has an older state than this process has seen: start again from a list."""


class Restoration:
    """Looks at the API server's version.

    Args:
        namespace: one of which LakeTables may be listed; None for all namespaces.
        look_s: seconds between two looks.
    """

    def __init__(self, api: Api, namespace: str | None, look_s: float = LOOK_S) -> None:
        self._api, self._path, self._look_s = api, path(TABLE_KIND, namespace), look_s
        self._newest = 0

    async def detect(self) -> None:
        """Ends only by an exception. A request that fails says nothing and is repeated.

        Versions of one resource type are numbers that grow (KEP-5504), and a list without a version
        is as new as the store.

        Raises: ApiServerRestored.
        """
        while True:
            try:
                page = await self._api.request("GET", self._path.url(), query={"limit": "1"})
            except ApiError as error:
                _log.debug("the API server's version is unknown", problem=str(error))
            else:
                version = int(version_of(page))
                if version < self._newest:
                    raise ApiServerRestored(
                        f"the API server is at version {version}, and was at {self._newest}: it "
                        "has been restored from a backup"
                    )
                self._newest = version
            await asyncio.sleep(self._look_s)
