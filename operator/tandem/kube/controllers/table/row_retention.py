"""`retention.rows` in a cluster: drops whole time chunks that ended long enough ago.

`tandem.planning.auto.retention` makes the decision. Nothing is planned unless the table's version,
its spec or its drops have changed, or the time that the last decision named has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from tandem.errors import TandemError
from tandem.kube.client.kinds import status_of
from tandem.kube.client.resource_cache import CachedResource
from tandem.kube.controllers.table.children import Children, seconds_until
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import TableContext
from tandem.operations.tables.auto_compaction import decide_drop, next_drop, rows_ms
from tandem.planning.auto.child_compactions import RETENTION_LINE
from tandem.planning.auto.facts import AutoCompactionDecision
from tandem.spec.replace import TableReplace
from tandem.spec.status import NextDrop


@dataclass(slots=True)
class _Memory:
    """What is kept of one table between two calls.

    Attributes:
        children: its automatic drops.
        key, wake_ms, status: of the last decision: its input, until when it holds (Unix
            milliseconds), and its result.
    """

    children: Children
    key: tuple[object, ...] = ()
    wake_ms: int | None = None
    status: dict[str, Any] = field(default_factory=dict)


class RowRetention:
    """An `AutoCompactor` of an operator, for rows that are old."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._memories: WeakKeyDictionary[TableContext, _Memory] = WeakKeyDictionary()

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
        """Decide and act for one table. Returns what to add to its status, and in how many
        seconds to call again if nothing changes. Errors of the cluster or the table are reported
        in the status, not raised."""
        resource, snapshot = table.resource, table.snapshot
        if resource is None or snapshot is None or rows_ms(resource) is None:
            self._memories.pop(table, None)
            return {}, math.inf
        memory = self._memory(table)
        current = memory.children.are_current
        if not await current(resource, children, snapshot.version, table.refresh_soon):
            return memory.status, memory.children.look_again_s
        now_ms = self._context.clock.now_ms()
        facts = memory.children.states(children, now_ms)
        key = (resource.spec, facts, snapshot.metadata.id, snapshot.version)
        if key == memory.key and (memory.wake_ms is None or now_ms < memory.wake_ms):
            return memory.status, seconds_until(memory.wake_ms, now_ms)

        def plan() -> AutoCompactionDecision:
            seen = table.memory.by_chunk(resource, table.uid, snapshot)
            return decide_drop(resource, seen, snapshot, facts, now_ms)

        memory.key = key
        try:
            decision = await self._context.threads(resource.namespace, resource.name, plan)
        except TandemError as error:
            memory.status, memory.wake_ms = _status(NextDrop(why=str(error))), None
            return memory.status, math.inf
        done = await memory.children.carry_out(decision, resource, now_ms, table.wake)
        memory.wake_ms = done.wake_ms
        memory.status = _status(next_drop(replace(decision, next_ms=done.next_ms), done.why))
        return memory.status, seconds_until(memory.wake_ms, now_ms)

    def _memory(self, table: TableContext) -> _Memory:
        memory = self._memories.get(table)
        if memory is None:
            kinds = (TableReplace.kind_name,)
            children = Children(self._context, table.uid, RETENTION_LINE.__eq__, kinds)
            memory = self._memories[table] = _Memory(children)
            known = status_of(self._context.resource_cache.body(table.uid) or {})
            if "nextDrop" in known:
                memory.status = {"nextDrop": known["nextDrop"]}
        return memory


def _status(found: NextDrop) -> dict[str, Any]:
    return {"nextDrop": found.manifest()}
