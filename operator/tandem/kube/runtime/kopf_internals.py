"""What we need of kopf that is not public: which resources it remembers, and on which it puts a
finalizer.

This is the one file that knows such a part of kopf, which is pinned to a minor version.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from tandem.kube.client.kinds import TABLE_KIND, is_active
from tandem.spec.common import GROUP


class FrugalMemories(ResourceMemories):
    """Remembers LakeTables, and operations that are active or have a daemon still.

    kopf remembers the whole object of everything that it has ever seen. Of tens of thousands of
    operations that have ended, nothing needs to be remembered.
    """

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


def without_finalizer(registry: kopf.OperatorRegistry, daemons: Container[str]) -> None:
    """Have kopf put no finalizer on what these daemons (ids) are for, as it would for each. One
    that is there from an earlier release, it takes off."""
    handlers = registry._spawning._handlers
    handlers[:] = [
        replace(handler, requires_finalizer=False) if handler.id in daemons else handler
        for handler in handlers
    ]
