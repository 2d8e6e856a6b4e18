"""What kopf keeps per resource, for those that it has something to do for only.

kopf remembers the whole object of everything that it has ever seen. Of tens of thousands of
operations that have ended, nothing needs to be remembered. This is the one file that knows a part
of kopf that is not public (kopf is pinned to a minor version).
"""

from __future__ import annotations

from typing import Any

from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from tandem.kube.kinds import GROUP, TABLE_KIND, is_active


class FrugalMemories(ResourceMemories):
    """Remembers LakeTables, and operations that are active or have a daemon still."""

    async def recall(
        self,
        raw_body: Any,
        *,
        memobase: Any = None,
        noticed_by_listing: bool = False,
        ephemeral: bool = False,
    ) -> ResourceMemory:
        known = self._items.get(self._build_key(raw_body))
        busy = known is not None and known.daemons_memory.running_daemons
        if not busy and not _is_needed(raw_body):
            self._items.pop(self._build_key(raw_body), None)
            ephemeral = True
        return await super().recall(
            raw_body,
            memobase=memobase,
            noticed_by_listing=noticed_by_listing,
            ephemeral=ephemeral,
        )


def _is_needed(body: Any) -> bool:
    if not str(body.get("apiVersion", "")).startswith(f"{GROUP}/"):
        return False
    return body["kind"] == TABLE_KIND or is_active(body)
