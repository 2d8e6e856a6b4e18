"""Automatic compaction in a cluster: gathers facts, has a decision made, and carries it out.

`tandem.planning.auto.decide` makes the decision. The children are those in the resource cache; they
are listed once, at the start, to know when the cache is complete. Nothing is planned unless the
table's version, its policy or its children have changed, or the time that the last decision named
has come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import TandemError
from tandem.kube.client.api import ApiError, Conflict, NotFound
from tandem.kube.client.kinds import TABLE_KIND, Body, is_deleting, path, status_of
from tandem.kube.client.resource_cache import CachedResource
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import AutoCompactionState, TableContext
from tandem.operations.tables.auto_compaction import next_compaction, table_facts
from tandem.planning.auto.child_compactions import ChildCompaction
from tandem.planning.auto.decide import decide
from tandem.planning.auto.model import AutoCompactionDecision, AutoCompactionWait, ChildState
from tandem.spark.application.manifest import MANAGED_BY, label_value
from tandem.spec.compaction import TableCompaction
from tandem.spec.resources import API_VERSION
from tandem.spec.status import NextCompaction
from tandem.spec.table import AutomaticCompaction, LakeTable

_log = structlog.get_logger("tandem.kube.controllers.table.auto_compaction")

LINE: Final = "tandem.dev/automatic"
"""Label: `minor`, or the digest of a schedule."""
SCHEDULED: Final = "tandem.dev/scheduled"
"""Label: the minute (since 1970) at which it was due."""
RETRIES: Final = "tandem.dev/retries"
"""Label: how many compactions of the same line failed in a row before this one."""

_TABLE: Final = "tandem.dev/table"
_UNSEEN_MS = 10_000
"""How long a child that exists may take to appear among the watched ones."""
_LOOK_AGAIN_S = 1.0
_REFUSED_MS = 60_000
_CALM_FACTOR = 10
"""After planning, a new version alone starts no planning for so many times as long as it took:
a busy table of any size costs a tenth of a thread."""
_CALM_MOST_S = 60.0


@dataclass(slots=True)
class _Memory:
    """What is kept of one table between two calls.

    Attributes:
        since: up to when each schedule has been dealt with.
        unseen: children that existed at the start and are not in the cache yet; None before they
            were listed.
        unseen_until_s: how long to wait for those, by the loop's clock.
        made: children that exist although they are not in the cache yet.
        key, wake_ms, status, hold, next_ms: of the last decision: its input, until when it holds
            (Unix milliseconds), and its result.
        calm_until_s: until then, by the loop's clock, a new version alone starts no planning.
    """

    since: dict[str, int]
    unseen: set[str] | None = None
    unseen_until_s: float = 0.0
    made: dict[str, ChildState] = field(default_factory=dict)
    key: tuple[object, ...] = ()
    calm_until_s: float = 0.0
    wake_ms: int | None = None
    status: dict[str, Any] = field(default_factory=dict)
    hold: AutoCompactionWait = AutoCompactionWait.NOTHING
    next_ms: int | None = None


class AutoCompactionController:
    """The `AutoCompactor` of an operator."""

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
        policy = resource.spec.compaction if resource is not None else None
        if resource is None or snapshot is None or policy is None:
            self._memories.pop(table, None)
            table.auto_compaction = None
            return {}, math.inf
        memory = self._memory(table)
        if not await self._knows_all(table.uid, resource, memory, children):
            return memory.status, _LOOK_AGAIN_S
        now_ms = self._context.clock.now_ms()
        facts = self._facts(table.uid, memory, children, now_ms)
        key = (resource.spec, facts, snapshot.metadata.id, snapshot.version)
        due = memory.wake_ms is not None and now_ms >= memory.wake_ms
        calm_s = memory.calm_until_s - asyncio.get_running_loop().time()
        if calm_s > 0 and not due and key != memory.key and key[:2] == memory.key[:2]:
            return memory.status, calm_s
        if due or key != memory.key:
            await self._decide(table.uid, resource, policy, snapshot, memory, facts, now_ms)
            memory.key = key
            table.auto_compaction = AutoCompactionState(memory.hold, memory.next_ms)
        return memory.status, _seconds(memory.wake_ms, now_ms)

    def _memory(self, table: TableContext) -> _Memory:
        memory = self._memories.get(table)
        if memory is None:
            body = self._context.resource_cache.body(table.uid) or {}
            memory = self._memories[table] = _Memory(remembered(body))
            if "nextCompaction" in status_of(body):
                memory.status = {"nextCompaction": status_of(body)["nextCompaction"]}
        return memory

    async def _knows_all(
        self, uid: str, resource: LakeTable, memory: _Memory, children: Iterable[CachedResource]
    ) -> bool:
        """Whether the cache has all children that existed at the start: the first decision of an
        operator must not depend on the order of events."""
        loop = asyncio.get_running_loop()
        if memory.unseen is None:
            collection = path(TableCompaction.kind_name, resource.namespace)
            table = label_value(resource.name)
            try:
                found = await self._context.api.list(collection, labels=f"{LINE},{_TABLE}={table}")
            except ApiError as error:
                _log.warning(
                    "children not listed",
                    namespace=resource.namespace,
                    table=resource.name,
                    problem=str(error),
                )
                return False
            memory.unseen = {
                item["metadata"]["name"]
                for item in found["items"]
                if _is_owned(item, uid) and not is_deleting(item)
            }
            memory.unseen_until_s = loop.time() + _UNSEEN_MS / 1000
        memory.unseen -= {summary.name for summary in children}
        if memory.unseen and loop.time() >= memory.unseen_until_s:
            memory.unseen = set()  # deleted since
        return not memory.unseen

    def _facts(
        self, uid: str, memory: _Memory, children: Iterable[CachedResource], now_ms: int
    ) -> tuple[ChildState, ...]:
        found = {
            summary.name: child_fact(summary, self._context.resource_cache.body(summary.uid))
            for summary in children
            if summary.owner == uid and LINE in dict(summary.labels)
        }
        for name, fact in list(memory.made.items()):
            if name in found or now_ms - fact.created_ms > _UNSEEN_MS:
                del memory.made[name]
            else:
                found[name] = fact
        return tuple(found[name] for name in sorted(found))

    async def _decide(
        self,
        uid: str,
        resource: LakeTable,
        policy: AutomaticCompaction,
        snapshot: Snapshot,
        memory: _Memory,
        facts: tuple[ChildState, ...],
        now_ms: int,
    ) -> None:
        since = dict(memory.since)

        def plan() -> AutoCompactionDecision:
            table = table_facts(resource, uid, snapshot)
            return decide(policy, table, facts, now_ms, since)

        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            decision = await self._context.threads(plan)
        except TandemError as error:
            memory.status = _status(NextCompaction(why=str(error)))
            memory.wake_ms = memory.next_ms = None
            memory.hold = AutoCompactionWait.REFUSED
            return
        finally:
            now_s = loop.time()
            memory.calm_until_s = now_s + min((now_s - begun_s) * _CALM_FACTOR, _CALM_MOST_S)
        memory.since = {state.line: state.since_ms for state in decision.schedules}
        memory.wake_ms, memory.next_ms = decision.wake_ms, decision.next_ms
        memory.hold = decision.hold
        why = decision.why
        for child in decision.create:
            why = await self._create(child, resource, uid, memory, now_ms)
        if memory.made:
            # Do not wait for a child that is deleted before the registry has seen it.
            memory.wake_ms = min(memory.wake_ms or now_ms + _UNSEEN_MS, now_ms + _UNSEEN_MS)
        for name in decision.delete:
            await self._delete(name, resource)
        memory.status = _status(next_compaction(decision, why))

    async def _create(
        self, child: ChildCompaction, resource: LakeTable, uid: str, memory: _Memory, now_ms: int
    ) -> str:
        """Why it could not be created, or ""."""
        api = self._context.api
        collection = path(TableCompaction.kind_name, resource.namespace)
        display = f"TableCompaction/{child.name}"
        try:
            await api.create(collection, child_manifest(child, resource, uid))
            _log.info(
                "automatic compaction",
                namespace=resource.namespace,
                table=resource.name,
                child=child.name,
                what=child.what,
            )
        except Conflict:
            # The same decision was made before, perhaps by this operator before a restart; or it
            # is an unrelated object.
            if not await self._is_ours(child.name, resource.namespace, uid):
                memory.wake_ms, memory.hold = now_ms + _REFUSED_MS, AutoCompactionWait.REFUSED
                return f"{display} exists already, and is not this table's: delete or rename it."
        except ApiError as error:
            memory.wake_ms, memory.hold = now_ms + _REFUSED_MS, AutoCompactionWait.REFUSED
            _log.warning(
                "not created",
                namespace=resource.namespace,
                table=resource.name,
                child=child.name,
                problem=str(error),
            )
            return f"{display} could not be created: {error.message}"
        memory.made[child.name] = ChildState(
            child.name,
            child.line,
            "",
            created_ms=now_ms,
            scheduled_ms=child.scheduled_ms,
            retries=child.retries,
        )
        return f"{display} was started."

    async def _is_ours(self, name: str, namespace: str, uid: str) -> bool:
        try:
            found = await self._context.api.get(path(TableCompaction.kind_name, namespace, name))
        except ApiError:
            return True  # gone again, or not readable: the next decision will see
        return _is_owned(found, uid)

    async def _delete(self, name: str, resource: LakeTable) -> None:
        """Delete a finished child unless it has changed since we saw it."""
        key = (TableCompaction.kind_name, resource.namespace, name)
        summary = self._context.resource_cache.get(key)
        if summary is None:
            return
        try:
            await self._context.api.delete(
                path(*key), uid=summary.uid, resource_version=summary.resource_version
            )
        except (NotFound, Conflict):
            return  # gone, or changed: the next decision handles it
        except ApiError as error:
            _log.warning("not deleted", child=name, problem=str(error))


def child_manifest(child: ChildCompaction, resource: LakeTable, uid: str) -> dict[str, Any]:
    """The TableCompaction to create, owned by its LakeTable. Pure."""
    labels = {
        MANAGED_BY[0]: MANAGED_BY[1],
        _TABLE: label_value(resource.name),
        LINE: child.line,
    }
    if child.scheduled_ms is not None:
        labels[SCHEDULED] = str(child.scheduled_ms // 60_000)
    if child.retries:
        labels[RETRIES] = str(child.retries)
    return {
        "apiVersion": API_VERSION,
        "kind": TableCompaction.kind_name,
        "metadata": {
            "name": child.name,
            "namespace": resource.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": TABLE_KIND,
                    "name": resource.name,
                    "uid": uid,
                    "controller": True,
                }
            ],
        },
        "spec": dict(child.spec),
    }


def child_fact(summary: CachedResource, body: Body | None) -> ChildState:
    """A child as a decision needs it; `body` is that of one that has not ended. Pure."""
    labels = dict(summary.labels)
    scheduled, retries = labels.get(SCHEDULED, ""), labels.get(RETRIES, "")
    plan = status_of(body).get("plan") if body is not None else None
    return ChildState(
        name=summary.name,
        line=labels.get(LINE, ""),
        phase=summary.phase,
        created_ms=_ms(summary.created) or 0,
        ended=summary.ended,
        ended_ms=_ms(summary.completed) if summary.ended else None,
        segments=frozenset(map(str, plan.get("segments") or ())) if plan is not None else None,
        # Users can edit labels: one that is not a number is ignored.
        scheduled_ms=int(scheduled) * 60_000 if _is_number(scheduled) else None,
        retries=int(retries) if _is_number(retries) else 0,
        message=summary.message,
        deleting=summary.deleting,
    )


def remembered(body: Body) -> dict[str, int]:
    """Up to when each schedule has been dealt with, from a LakeTable's status. Pure."""
    found: dict[str, int] = {}
    said = status_of(body).get("nextCompaction")
    runs = said.get("schedules") if isinstance(said, Mapping) else None
    for run in runs or ():
        since_ms = _ms(str(run.get("since", "")))
        if since_ms is not None:
            found[str(run.get("id", ""))] = since_ms
    return found


def _is_owned(body: Body, uid: str) -> bool:
    return any(o.get("uid") == uid for o in body["metadata"].get("ownerReferences") or ())


def _status(found: NextCompaction) -> dict[str, Any]:
    return {"nextCompaction": found.manifest()}


def _seconds(wake_ms: int | None, now_ms: int) -> float:
    return math.inf if wake_ms is None else max(wake_ms - now_ms, 0) / 1000


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def _ms(text: str) -> int | None:
    """A time as the API server writes it; None for none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
