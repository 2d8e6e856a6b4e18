"""What is automatic on a table: compaction, the compaction and merge of its log, and drops of old
rows. Each gathers facts, asks `tandem.planning`, and creates the operations that it decides on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import structlog

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import TandemError
from tandem.kube.client.resources import Body, CachedResource, status_of
from tandem.kube.controllers.table_children import Children, DecisionOutcome, seconds_until
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import AutoCompactionState, TableContext
from tandem.mergelog import upkeep
from tandem.mergelog.versions import LogFacts
from tandem.operations.adopt import is_automatic, log_status, next_log_action
from tandem.operations.auto_compaction import (
    decide_drop,
    next_compaction,
    next_drop,
    rows_ms,
)
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import (
    LOG_LINES,
    RETENTION_LINE,
    AutoCompactionDecision,
    ChildState,
    TableId,
)
from tandem.planning.auto.log import decide_log
from tandem.spec.common import OPERATIONS
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.log_compaction import LogCompaction, MergeOnRead
from tandem.spec.replace import TableReplace
from tandem.spec.status import (
    AutoCompactionWait,
    LogStatus,
    NextCompaction,
    NextDrop,
    NextLogAction,
    Phase,
    TableStatus,
    unix_ms,
)
from tandem.spec.table import AutomaticCompaction, LakeTable


@dataclass(slots=True)
class _Memory:
    """What is kept of one table between two calls. Nothing is planned unless the key has changed,
    or the time that the last decision named has come.

    Attributes:
        children: the table's operations of this kind.
        key, wake_ms, status: of the last decision: its input, until when it holds (Unix
            milliseconds), and what it adds to the table's status.
        wake: wakes the task that works on the table.
    """

    children: Children
    wake: Callable[[], None]
    status: dict[str, Any] = field(default_factory=dict)
    key: tuple[object, ...] = ()
    wake_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        return self.wake_ms is not None and now_ms >= self.wake_ms

    def decide_again(self) -> None:
        """Although nothing of this table has changed."""
        self.key = ()
        self.wake()

    async def carry_out(
        self, decision: AutoCompactionDecision, resource: LakeTable, now_ms: int
    ) -> tuple[AutoCompactionDecision, DecisionOutcome]:
        """The decision with the time that follows from what became of it."""
        done = await self.children.carry_out(decision, resource, now_ms, self.decide_again)
        self.wake_ms = done.wake_ms
        return replace(decision, next_ms=done.next_ms), done


M = TypeVar("M", bound=_Memory)


class _Automation(Generic[M]):
    """Something automatic, and what it keeps of each table.

    A call decides and acts for one table. It returns what to add to the table's status, and in how
    many seconds to call again if nothing changes. Errors of the cluster or the table are reported
    in the status, not raised.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._memories: WeakKeyDictionary[TableContext, M] = WeakKeyDictionary()

    def _memory(self, table: TableContext) -> M:
        memory = self._memories.get(table)
        if memory is None:
            body = self._context.resource_cache.body(table.uid) or {}
            memory = self._memories[table] = self._first(table, body)
        return memory

    def _first(self, table: TableContext, body: Body) -> M:
        """What is known of a table at the first call: from its status, after a restart."""
        raise NotImplementedError


# Automatic compaction. `tandem.planning.auto.decide` makes the decision.


_CALM_FACTOR = 10
"""After planning, a new version alone starts no planning for this many times its duration: a busy
table of any size costs a tenth of a thread."""
_CALM_MOST_S = 60.0
_OTHER_LINES = LOG_LINES | {RETENTION_LINE}


@dataclass(slots=True)
class _CompactionMemory(_Memory):
    """`since`: up to when each schedule has been dealt with. `calm_until_s`: until then, by the
    loop's clock, a new version alone starts no planning. `state`: what the last decision waits
    for."""

    since: dict[str, int] = field(default_factory=dict)
    calm_until_s: float = 0.0
    state: AutoCompactionState = field(default_factory=AutoCompactionState)


class AutoCompactionController(_Automation[_CompactionMemory]):
    """The `TableAutomation` that compacts."""

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
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
        due = memory.is_due(now_ms)
        calm_s = memory.calm_until_s - asyncio.get_running_loop().time()
        if calm_s > 0 and not due and key != memory.key and key[:2] == memory.key[:2]:
            return memory.status, calm_s
        if due or key != memory.key:
            await self._decide(table, resource, policy, snapshot, memory, facts, now_ms)
            memory.key = key
            table.auto_compaction = memory.state
        return memory.status, seconds_until(memory.wake_ms, now_ms)

    def _first(self, table: TableContext, body: Body) -> _CompactionMemory:
        children = Children(self._context, table.uid, lambda line: line not in _OTHER_LINES)
        shown = _shown(body, "nextCompaction")
        return _CompactionMemory(children, table.wake, shown, since=remembered(body))

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
            decision = await self._context.threads(table.uid, plan)
        except TandemError as error:
            memory.status = _next_compaction(NextCompaction(why=str(error)))
            memory.wake_ms = None
            memory.state = AutoCompactionState(AutoCompactionWait.REFUSED)
            return
        finally:
            now_s = loop.time()
            memory.calm_until_s = now_s + min((now_s - begun_s) * _CALM_FACTOR, _CALM_MOST_S)
        memory.since = {state.line: state.since_ms for state in decision.schedules}
        decision, outcome = await memory.carry_out(decision, resource, now_ms)
        found = next_compaction(decision, outcome.why, chunks=policy.chunks is not None)
        memory.status = _next_compaction(found)
        memory.state = AutoCompactionState(outcome.hold, decision.next_ms, found.chunks_due)


def _shown(body: Body, name: str) -> dict[str, Any]:
    """What a LakeTable's status has of that name."""
    return {name: status_of(body)[name]} if name in status_of(body) else {}


def remembered(body: Body) -> dict[str, int]:
    """Up to when each schedule has been dealt with, from a LakeTable's status. Pure."""
    found: dict[str, int] = {}
    shown = status_of(body).get("nextCompaction")
    runs = shown.get("schedules") if isinstance(shown, Mapping) else None
    for run in runs or ():
        since_ms = unix_ms(run.get("since"))
        if since_ms is not None:
            found[str(run.get("id", ""))] = since_ms
    return found


def _next_compaction(found: NextCompaction) -> dict[str, Any]:
    return {"nextCompaction": found.manifest()}


# The log of a merge-on-read table: log compactions and merges by the policy, which
# `tandem.planning.auto.log` decides on, and the base version that the log records, which is kept
# fresh.


_log = structlog.get_logger("tandem.kube.controllers.automation")

_KINDS: Final = (TableCompaction.kind_name, LogCompaction.kind_name)
_RECORD_AGAIN_MS = 60_000
"""When to record the base version again after an error."""


@dataclass(slots=True)
class _LogMemory(_Memory):
    """`next`: the last decision. `record_ms`: not before then is the base version recorded
    again."""

    next: NextLogAction | None = None
    record_ms: int = 0


class LogAutomation(_Automation[_LogMemory]):
    """The `TableAutomation` that compacts and merges the logs of tables."""

    async def __call__(
        self, table: TableContext, operations: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
        resource, log = table.resource, table.log
        if resource is None or log is None or not log.exists:
            self._memories.pop(table, None)
            return {}, math.inf
        if log.facts is None:
            return {"log": LogStatus(problem=log.problem).manifest()}, math.inf
        facts, policy = log.facts, resource.spec.merge_on_read
        memory = self._memory(table)
        record_s = await self._record_base(table, memory, facts)
        wait_s = math.inf
        if policy is not None and is_automatic(policy):
            wait_s = await self._automatically(table, resource, policy, facts, memory, operations)
        else:
            memory.next = None
        status = log_status(facts, policy, table.facts or TableStatus())
        manifest = status.model_copy(update={"next": memory.next}).manifest()
        return {"log": manifest}, min(wait_s, record_s)

    def _first(self, table: TableContext, body: Body) -> _LogMemory:
        children = Children(self._context, table.uid, LOG_LINES.__contains__, _KINDS)
        known = (status_of(body).get("log") or {}).get("next")
        shown = NextLogAction.model_validate(known) if known else None
        return _LogMemory(children, table.wake, next=shown)

    async def _record_base(self, table: TableContext, memory: _LogMemory, facts: LogFacts) -> float:
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
                table.uid, lambda: upkeep.record_base(log.log, now_ms=now_ms)
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
        memory: _LogMemory,
        operations: Sequence[CachedResource],
    ) -> float:
        """Start what is due. Returns in how many seconds to decide again."""
        if not await memory.children.are_known(resource, operations):
            return memory.children.look_again_s
        now_ms = self._context.clock.now_ms()
        states = memory.children.states(operations, now_ms)
        others = tuple(self._others(memory, operations))
        key = (policy, facts, states, others)
        if memory.is_due(now_ms) or key != memory.key:
            id_ = TableId(resource.name, table.uid)

            def plan() -> AutoCompactionDecision:
                return decide_log(policy, id_, facts, states, others, now_ms)

            decision = await self._context.threads(table.uid, plan)
            memory.key = key
            decision, done = await memory.carry_out(decision, resource, now_ms)
            memory.next = next_log_action(decision, done.why)
        return seconds_until(memory.wake_ms, now_ms)

    def _others(self, memory: _LogMemory, operations: Iterable[CachedResource]) -> Iterable[str]:
        """Log compactions and merges at work that users have created."""
        for each in operations:
            if not each.active or each.phase == Phase.SUSPENDED or memory.children.is_mine(each):
                continue
            merges = each.type == CompactionType.LOG_MERGE
            if merges or (each.kind in OPERATIONS and OPERATIONS[each.kind].on_log):
                yield each.display


# `retention.rows`: drops of whole time chunks that ended long enough ago.
# `tandem.planning.auto.retention` makes the decision.


class RowRetention(_Automation[_Memory]):
    """The `TableAutomation` that drops old rows."""

    async def __call__(
        self, table: TableContext, children: Sequence[CachedResource]
    ) -> tuple[dict[str, Any], float]:
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
        if key == memory.key and not memory.is_due(now_ms):
            return memory.status, seconds_until(memory.wake_ms, now_ms)

        def plan() -> AutoCompactionDecision:
            seen = table.memory.by_chunk(resource, table.uid, snapshot)
            return decide_drop(resource, seen, snapshot, facts, now_ms)

        memory.key = key
        try:
            decision = await self._context.threads(table.uid, plan)
        except TandemError as error:
            memory.status, memory.wake_ms = _next_drop(NextDrop(why=str(error))), None
            return memory.status, math.inf
        decision, done = await memory.carry_out(decision, resource, now_ms)
        memory.status = _next_drop(next_drop(decision, done.why))
        return memory.status, seconds_until(memory.wake_ms, now_ms)

    def _first(self, table: TableContext, body: Body) -> _Memory:
        kinds = (TableReplace.kind_name,)
        children = Children(self._context, table.uid, RETENTION_LINE.__eq__, kinds)
        return _Memory(children, table.wake, _shown(body, "nextDrop"))


def _next_drop(found: NextDrop) -> dict[str, Any]:
    return {"nextDrop": found.manifest()}
