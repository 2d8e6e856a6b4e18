"""The log of a merge-on-read table in a cluster: starts log compactions and merges by the policy,
and keeps the base version that the log records fresh.

`tandem.planning.auto.log` makes the decision. Nothing is planned unless the log, the policy or the
operations have changed, or the time that the last decision named has come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog

from tandem.errors import TandemError
from tandem.kube.client.kinds import status_of
from tandem.kube.client.resource_cache import CachedResource
from tandem.kube.controllers.table.children import Children, seconds_until
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import TableContext
from tandem.mergelog import upkeep
from tandem.mergelog.state.versions import LogFacts
from tandem.operations.tables.log_status import is_automatic, log_status, next_log_action
from tandem.planning.auto.child_compactions import LOG_LINES, TableId
from tandem.planning.auto.facts import AutoCompactionDecision
from tandem.planning.auto.log import decide_log
from tandem.spec.common import OPERATIONS
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.log_compaction import LogCompaction, MergeOnRead
from tandem.spec.status import LogStatus, NextLogAction, Phase, TableStatus
from tandem.spec.table import LakeTable

_log = structlog.get_logger("tandem.kube.controllers.table.log_automation")

_KINDS: Final = (TableCompaction.kind_name, LogCompaction.kind_name)
_RECORD_AGAIN_MS = 60_000
"""When to record the base version again after an error."""


@dataclass(slots=True)
class _Memory:
    """What is kept of one table between two calls.

    Attributes:
        children: its automatic log compactions and merges.
        key, wake_ms, next: of the last decision: its input, until when it holds (Unix
            milliseconds), and its result.
        record_ms: not before then is the base version recorded again.
    """

    children: Children
    key: tuple[object, ...] = ()
    wake_ms: int | None = None
    next: NextLogAction | None = None
    record_ms: int = 0


class LogAutomation:
    """An `AutoCompactor` of an operator, for the logs of tables."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._memories: WeakKeyDictionary[TableContext, _Memory] = WeakKeyDictionary()

    async def __call__(
        self, table: TableContext, operations: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
        """Decide and act for one table. Returns what to add to its status, and in how many
        seconds to call again if nothing changes. Errors of the cluster or the table are reported
        in the status, not raised."""
        resource, log = table.resource, table.log
        if resource is None or log is None or not log.exists:
            self._memories.pop(table, None)
            return {}, math.inf
        if log.facts is None:
            return {"log": LogStatus(problem=log.problem).manifest()}, math.inf
        facts, policy = log.facts, resource.spec.merge_on_read
        memory = self._memory(table)
        record_s = await self._record_base(table, resource, memory, facts)
        wait_s = math.inf
        if policy is not None and is_automatic(policy):
            wait_s = await self._automatically(table, resource, policy, facts, memory, operations)
        else:
            memory.next = None
        status = log_status(facts, policy, table.facts or TableStatus())
        manifest = status.model_copy(update={"next": memory.next}).manifest()
        return {"log": manifest}, min(wait_s, record_s)

    def _memory(self, table: TableContext) -> _Memory:
        memory = self._memories.get(table)
        if memory is None:
            children = Children(self._context, table.uid, LOG_LINES.__contains__, _KINDS)
            memory = self._memories[table] = _Memory(children)
            body = self._context.resource_cache.body(table.uid) or {}
            known = (status_of(body).get("log") or {}).get("next")
            memory.next = NextLogAction.model_validate(known) if known else None
        return memory

    async def _record_base(
        self, table: TableContext, resource: LakeTable, memory: _Memory, facts: LogFacts
    ) -> float:
        """Record the base version if that is due. Returns in how many seconds it is."""
        now_ms = self._context.clock.now_ms()
        due_ms = upkeep.due_ms(facts, now_ms)
        if due_ms is None:
            return math.inf
        due_ms = max(due_ms, memory.record_ms)
        if due_ms > now_ms or not self._context.may_write():
            return seconds_until(due_ms, now_ms)
        log = table.log
        assert log is not None
        memory.record_ms = now_ms + _RECORD_AGAIN_MS
        try:
            await self._context.threads(
                resource.namespace,
                resource.name,
                lambda: upkeep.record_base(log.log, now_ms=now_ms),
            )
        except TandemError as error:
            _log.warning("base version not recorded", location=log.log.store.location,
                         problem=str(error))  # fmt: skip
            return seconds_until(memory.record_ms, now_ms)
        table.refresh_soon()
        return math.inf

    async def _automatically(
        self,
        table: TableContext,
        resource: LakeTable,
        policy: MergeOnRead,
        facts: LogFacts,
        memory: _Memory,
        operations: Sequence[CachedResource],
    ) -> float:
        """Start what is due. Returns in how many seconds to decide again."""
        if not await memory.children.are_known(resource, operations):
            return memory.children.look_again_s
        now_ms = self._context.clock.now_ms()
        states = memory.children.states(operations, now_ms)
        others = tuple(self._others(memory, operations))
        key = (policy, facts, states, others)
        due = memory.wake_ms is not None and now_ms >= memory.wake_ms
        if due or key != memory.key:
            id_ = TableId(resource.name, table.uid)

            def plan() -> AutoCompactionDecision:
                return decide_log(policy, id_, facts, states, others, now_ms)

            decision = await self._context.threads(resource.namespace, resource.name, plan)
            memory.key = key

            def again() -> None:
                memory.key = ()
                table.wake()

            done = await memory.children.carry_out(decision, resource, now_ms, again)
            memory.wake_ms = done.wake_ms
            memory.next = next_log_action(replace(decision, next_ms=done.next_ms), done.why)
        return seconds_until(memory.wake_ms, now_ms)

    def _others(self, memory: _Memory, operations: Iterable[CachedResource]) -> Iterable[str]:
        """Log compactions and merges at work that users have created."""
        for each in operations:
            if not each.active or each.phase == Phase.SUSPENDED or memory.children.is_mine(each):
                continue
            merges = each.type == CompactionType.LOG_MERGE
            if merges or (each.kind in OPERATIONS and OPERATIONS[each.kind].on_log):
                yield each.display
