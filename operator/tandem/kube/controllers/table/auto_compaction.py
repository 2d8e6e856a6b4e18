"""Automatic compaction in a cluster: gathers facts, has a decision made, and carries it out.

`tandem.planning.auto.decide` makes the decision. Nothing is planned unless the table's version, its
policy or its children have changed, or the time that the last decision named has come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import TandemError
from tandem.kube.client.kinds import Body, status_of
from tandem.kube.client.resource_cache import CachedResource
from tandem.kube.controllers.table.children import Children, seconds_until, time_ms
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import AutoCompactionState, TableContext
from tandem.operations.tables.auto_compaction import next_compaction, rows_ms
from tandem.planning.auto.child_compactions import LOG_LINES, RETENTION_LINE
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import AutoCompactionDecision, AutoCompactionWait, ChildState
from tandem.spec.status import NextCompaction
from tandem.spec.table import AutomaticCompaction, LakeTable

_CALM_FACTOR = 10
"""After planning, a new version alone starts no planning for this many times its duration: a busy
table of any size costs a tenth of a thread."""
_CALM_MOST_S = 60.0
_OTHER_LINES = LOG_LINES | {RETENTION_LINE}


@dataclass(slots=True)
class _CompactionMemory:
    """What is kept of one table between two calls.

    Attributes:
        since: up to when each schedule has been dealt with.
        children: the table's automatic compactions.
        key, wake_ms, status, state: of the last decision: its input, until when it holds
            (Unix milliseconds), and its result.
        wake: wakes the task that works on the table.
        calm_until_s: until then, by the loop's clock, a new version alone starts no planning.
    """

    since: dict[str, int]
    children: Children
    key: tuple[object, ...] = ()
    calm_until_s: float = 0.0
    wake_ms: int | None = None
    status: dict[str, Any] = field(default_factory=dict)
    state: AutoCompactionState = field(default_factory=AutoCompactionState)
    wake: Callable[[], None] = lambda: None

    def decide_again(self) -> None:
        """Although nothing of this table has changed."""
        self.key = ()
        self.wake()


class AutoCompactionController:
    """The `AutoCompactor` of an operator."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._memories: WeakKeyDictionary[TableContext, _CompactionMemory] = WeakKeyDictionary()

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
        """Decide and act for one table. Returns what to add to its status, and in how many
        seconds to call again if nothing changes. Errors of the cluster or the table are reported
        in the status, not raised."""
        resource, snapshot = table.resource, table.snapshot
        policy = resource.spec.compaction if resource is not None else None
        if resource is None or snapshot is None or policy is None:
            self._memories.pop(table, None)
            table.auto_compaction = None
            if resource is None or rows_ms(resource) is None:
                table.memory.forget()
            return {}, math.inf
        memory = self._memory(table)
        current = memory.children.are_current
        if not await current(resource, children, snapshot.version, table.refresh_soon):
            return memory.status, memory.children.look_again_s
        now_ms = self._context.clock.now_ms()
        facts = memory.children.states(children, now_ms)
        key = (resource.spec, facts, snapshot.metadata.id, snapshot.version)
        due = memory.wake_ms is not None and now_ms >= memory.wake_ms
        calm_s = memory.calm_until_s - asyncio.get_running_loop().time()
        if calm_s > 0 and not due and key != memory.key and key[:2] == memory.key[:2]:
            return memory.status, calm_s
        if due or key != memory.key:
            await self._decide(table, resource, policy, snapshot, memory, facts, now_ms)
            memory.key = key
            table.auto_compaction = memory.state
        return memory.status, seconds_until(memory.wake_ms, now_ms)

    def _memory(self, table: TableContext) -> _CompactionMemory:
        memory = self._memories.get(table)
        if memory is None:
            body = self._context.resource_cache.body(table.uid) or {}
            children = Children(self._context, table.uid, lambda line: line not in _OTHER_LINES)
            memory = self._memories[table] = _CompactionMemory(remembered(body), children)
            memory.wake = table.wake
            if "nextCompaction" in status_of(body):
                memory.status = {"nextCompaction": status_of(body)["nextCompaction"]}
        return memory

    async def _decide(
        self,
        table: TableContext,
        resource: LakeTable,
        policy: AutomaticCompaction,
        snapshot: Snapshot,
        memory: _CompactionMemory,
        facts: tuple[ChildState, ...],
        now_ms: int,
    ) -> None:
        since = dict(memory.since)

        def plan() -> AutoCompactionDecision:
            seen = table.memory.at(resource, table.uid, snapshot)
            return decide(policy, seen, facts, now_ms, since)

        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            decision = await self._context.threads(resource.namespace, resource.name, plan)
        except TandemError as error:
            memory.status = _status(NextCompaction(why=str(error)))
            memory.wake_ms = None
            memory.state = AutoCompactionState(AutoCompactionWait.REFUSED)
            return
        finally:
            now_s = loop.time()
            memory.calm_until_s = now_s + min((now_s - begun_s) * _CALM_FACTOR, _CALM_MOST_S)
        memory.since = {state.line: state.since_ms for state in decision.schedules}
        outcome = await memory.children.carry_out(decision, resource, now_ms, memory.decide_again)
        memory.wake_ms = outcome.wake_ms
        decision = replace(decision, next_ms=outcome.next_ms)
        found = next_compaction(decision, outcome.why, chunks=policy.chunks is not None)
        memory.status = _status(found)
        memory.state = AutoCompactionState(outcome.hold, decision.next_ms, found.chunks_due)


def remembered(body: Body) -> dict[str, int]:
    """Up to when each schedule has been dealt with, from a LakeTable's status. Pure."""
    found: dict[str, int] = {}
    shown = status_of(body).get("nextCompaction")
    runs = shown.get("schedules") if isinstance(shown, Mapping) else None
    for run in runs or ():
        since_ms = time_ms(str(run.get("since", "")))
        if since_ms is not None:
            found[str(run.get("id", ""))] = since_ms
    return found


def _status(found: NextCompaction) -> dict[str, Any]:
    return {"nextCompaction": found.manifest()}
