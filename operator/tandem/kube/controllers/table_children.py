"""The operations that the operator creates for a table: which ones exist; create and delete them.
And those of a table that were deleted while no operator ran.

The children are those in the resource cache. They are listed once, at the start, to know when the
cache is complete.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from tandem.errors import ManifestInvalid, TandemError
from tandem.intervals import NEVER
from tandem.kube.client.api import ApiError, Conflict, NotFound
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    CachedResource,
    is_deleting,
    is_owned,
    key_of,
    path,
    spec_of,
    status_of,
)
from tandem.kube.controllers.operation import OperationController
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.slots import RENEW_S
from tandem.kube.tables.context import TableContext
from tandem.mergelog.log_table import MergeLog
from tandem.operations import attempt_files, garbage
from tandem.operations.attempt_files import OperationRecord
from tandem.operations.model import Table
from tandem.planning.auto.facts import (
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    chunks_in,
)
from tandem.spec.common import (
    AUTOMATIC_LABEL,
    GROUP,
    MANAGED_BY,
    OPERATIONS,
    RETRIES_LABEL,
    SCHEDULED_LABEL,
    TABLE_LABEL,
    VERSION,
    label_value,
)
from tandem.spec.compaction import TableCompaction
from tandem.spec.resources import API_VERSION
from tandem.spec.status import AutoCompactionWait, unix_ms
from tandem.spec.table import LakeTable

_log = structlog.get_logger("tandem.kube.controllers.table_children")

_LOOK_AGAIN_S: Final = 1.0
"""When to look again while children that exist are not in the cache yet."""
_LIST_AGAIN_S: Final = 60.0
"""The longest pause before they are listed again, after errors of the API server."""

_UNSEEN_MS = 10_000
"""How long a child that exists may take to appear among the watched ones."""
_REFUSED_MS = 60_000


@dataclass(slots=True)
class DecisionOutcome:
    """What became of a decision: as the fields of `AutoCompactionDecision`."""

    why: str
    hold: AutoCompactionWait
    wake_ms: int | None
    next_ms: int | None


class Children:
    """The children of one table, of the lines that are accepted.

    Args:
        uid: of the LakeTable.
        accepts: whether a line is one of these.
        kinds: of the children.
    """

    def __init__(
        self,
        context: OperatorContext,
        uid: str,
        accepts: Callable[[str], bool],
        kinds: Sequence[str] = (TableCompaction.kind_name,),
    ) -> None:
        self._context = context
        self._uid = uid
        self._accepts = accepts
        self._kinds = tuple(kinds)
        # Those that existed at the start and are not in the cache yet; None before they are listed.
        self._unseen: set[str] | None = None
        self._unseen_until_s = 0.0
        self._errors = 0
        self._list_at_s = 0.0
        self._awaited: set[str] = set()  # uids: see `is_ahead`
        # Those that exist although they are not in the cache yet.
        self._made: dict[str, ChildState] = {}

    @property
    def look_again_s(self) -> float:
        """In how many seconds to call `are_known` again."""
        left = self._list_at_s - asyncio.get_running_loop().time()
        return max(_LOOK_AGAIN_S, left if self._unseen is None else 0.0)

    async def are_known(self, resource: LakeTable, cached: Iterable[CachedResource]) -> bool:
        """Whether the cache has all children that existed at the start: the first decision of an
        operator must not depend on the order of events."""
        loop = asyncio.get_running_loop()
        if self._unseen is None:
            if loop.time() < self._list_at_s:
                return False
            found: set[str] = set()
            for kind in self._kinds:
                listed = await self._list(kind, resource)
                if listed is None:
                    pause_s = min(_LIST_AGAIN_S, _LOOK_AGAIN_S * 2 ** min(self._errors, 16))
                    self._errors += 1
                    self._list_at_s = loop.time() + pause_s
                    return False
                found |= listed
            self._errors = 0
            self._unseen = found
            self._unseen_until_s = loop.time() + _UNSEEN_MS / 1000
        self._unseen -= {summary.name for summary in cached}
        if self._unseen and loop.time() >= self._unseen_until_s:
            self._unseen = set()  # deleted since
        return not self._unseen

    async def _list(self, kind: str, resource: LakeTable) -> set[str] | None:
        labels = f"{AUTOMATIC_LABEL},{TABLE_LABEL}={label_value(resource.name)}"
        try:
            found = await self._context.api.list(path(kind, resource.namespace), labels=labels)
        except ApiError as error:
            _log.warning(
                "children not listed",
                namespace=resource.namespace,
                table=resource.name,
                problem=str(error),
            )
            return None
        return {
            item["metadata"]["name"]
            for item in found["items"]
            if is_owned(item, self._uid) and not is_deleting(item)
        }

    def states(self, cached: Iterable[CachedResource], now_ms: int) -> tuple[ChildState, ...]:
        """The children that exist, by name."""
        self._context.automatic_slots.wake_first()
        found = {
            summary.name: child_fact(summary, self._context.resource_cache.body(summary.uid))
            for summary in cached
            if self.is_mine(summary)
        }
        for name, fact in list(self._made.items()):
            if name in found or now_ms - fact.created_ms > _UNSEEN_MS:
                del self._made[name]
            else:
                found[name] = fact
        return tuple(found[name] for name in sorted(found))

    def is_ahead(self, cached: Iterable[CachedResource], version: int) -> bool:
        """Whether a child has committed a version after the one seen: what it did would be decided
        again. True once for each: if the table's log was replaced, no such version may come."""
        ahead = {
            each.uid
            for each in cached
            if each.version is not None and each.version > version and self.is_mine(each)
        }
        awaited = self._awaited
        self._awaited = ahead
        return not ahead <= awaited

    async def are_current(
        self,
        resource: LakeTable,
        cached: Sequence[CachedResource],
        version: int,
        refresh: Callable[[], None],
    ) -> bool:
        """Whether to decide now: all children are known, and what they committed has been seen. If
        not, `refresh` is called where the version is behind; call again in `look_again_s`."""
        if not await self.are_known(resource, cached):
            return False
        if self.is_ahead(cached, version):
            refresh()
            return False
        return True

    def is_mine(self, summary: CachedResource) -> bool:
        line = dict(summary.labels).get(AUTOMATIC_LABEL)
        return summary.owner == self._uid and line is not None and self._accepts(line)

    async def carry_out(
        self,
        decision: AutoCompactionDecision,
        resource: LakeTable,
        now_ms: int,
        wake: Callable[[], None],
    ) -> DecisionOutcome:
        """Create and delete what a decision says.

        Args:
            wake: has the next decision made, when an automatic job of another table has ended.
        """
        done = DecisionOutcome(decision.why, decision.hold, decision.wake_ms, decision.next_ms)
        slots = self._context.automatic_slots
        if not decision.create:
            slots.leave(self)
        for child in decision.create:
            place = await slots.take(self, (child.kind, resource.namespace, child.name), wake)
            if place:
                done.hold, done.next_ms = AutoCompactionWait.SLOTS, None
                done.why = (
                    f"All {slots.limit} slots of automatic jobs (--automatic-slots) are taken; its "
                    f"place in the queue is {place}."
                )
                wait_ms = now_ms + int(RENEW_S * 1000)
                done.wake_ms = min(done.wake_ms or wait_ms, wait_ms)
                continue
            refusal = await self._create(child, resource, now_ms)
            if refusal:
                refused = AutoCompactionWait.REFUSED
                done = DecisionOutcome(refusal, refused, now_ms + _REFUSED_MS, decision.next_ms)
            else:
                done.why = f"{child.display} was started."
        if self._made:
            # Do not wait for a child that is deleted before the registry has seen it.
            done.wake_ms = min(done.wake_ms or now_ms + _UNSEEN_MS, now_ms + _UNSEEN_MS)
        for name in decision.delete:
            await self._delete(name, resource)
        return done

    async def _create(self, child: ChildCompaction, resource: LakeTable, now_ms: int) -> str:
        """Why it could not be created, or ""."""
        api = self._context.api
        collection = path(child.kind, resource.namespace)
        try:
            await api.create(collection, child_manifest(child, resource, self._uid))
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
            if not await self._is_ours(child, resource.namespace):
                return (
                    f"{child.display} exists already, and is not this table's: delete or rename it."
                )
        except ApiError as error:
            _log.warning(
                "not created",
                namespace=resource.namespace,
                table=resource.name,
                child=child.name,
                problem=str(error),
            )
            return f"{child.display} could not be created: {error.message}"
        self._made[child.name] = ChildState(
            child.name,
            child.line,
            "",
            created_ms=now_ms,
            chunks=chunks_in(child.spec),
            scheduled_ms=child.scheduled_ms,
            retries=child.retries,
            kind=child.kind,
        )
        return ""

    async def _is_ours(self, child: ChildCompaction, namespace: str) -> bool:
        try:
            found = await self._context.api.get(path(child.kind, namespace, child.name))
        except ApiError:
            return True  # gone again, or not readable: the next decision will see
        return is_owned(found, self._uid)

    async def _delete(self, name: str, resource: LakeTable) -> None:
        """Delete a finished child unless it has changed since we saw it."""
        keys = [(kind, resource.namespace, name) for kind in self._kinds]
        for key in keys:
            summary = self._context.resource_cache.get(key)
            if summary is None or not self.is_mine(summary):
                continue
            try:
                await self._context.api.delete(
                    path(*key), uid=summary.uid, resource_version=summary.resource_version
                )
            except (NotFound, Conflict):
                continue  # gone, or changed: the next decision handles it
            except ApiError as error:
                _log.warning("not deleted", child=name, problem=str(error))


def child_manifest(child: ChildCompaction, resource: LakeTable, uid: str) -> dict[str, Any]:
    """The resource to create, owned by its LakeTable. Pure."""
    labels = {
        MANAGED_BY[0]: MANAGED_BY[1],
        TABLE_LABEL: label_value(resource.name),
        AUTOMATIC_LABEL: child.line,
    }
    if child.scheduled_ms is not None:
        labels[SCHEDULED_LABEL] = str(child.scheduled_ms // 60_000)
    if child.retries:
        labels[RETRIES_LABEL] = str(child.retries)
    return {
        "apiVersion": API_VERSION,
        "kind": child.kind,
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
    scheduled, retries = labels.get(SCHEDULED_LABEL, ""), labels.get(RETRIES_LABEL, "")
    plan = status_of(body).get("plan") if body is not None else None
    return ChildState(
        name=summary.name,
        line=labels.get(AUTOMATIC_LABEL, ""),
        phase=summary.phase,
        created_ms=unix_ms(summary.created) or 0,
        ended=summary.ended,
        ended_ms=unix_ms(summary.completed) if summary.ended else None,
        segments=frozenset(map(str, plan.get("segments") or ())) if plan is not None else None,
        chunks=chunks_in(spec_of(body)) if body is not None else NEVER,
        # Users can edit labels: one that is not a number is ignored.
        scheduled_ms=int(scheduled) * 60_000 if _is_number(scheduled) else None,
        retries=int(retries) if _is_number(retries) else 0,
        message=summary.message,
        deleting=summary.deleting,
        kind=summary.kind,
    )


def seconds_until(wake_ms: int | None, now_ms: int) -> float:
    return math.inf if wake_ms is None else max(wake_ms - now_ms, 0) / 1000


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


# Cancels the operations whose resources were deleted while no operator ran.
#
# No finalizer keeps such a resource. What it was doing is named in the status of its LakeTable, and
# its spec is below the table's `_tandem/`. What was in neither is cleaned up as of a process that
# died (`tandem.planning.cleaning`).


_deletions_log = structlog.get_logger("tandem.kube.missed_deletions")
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_MOST: Final = 100
"""So many names of a status are looked into at a time: users may write anything into it."""


async def cancel_missed(
    context: OperatorContext, table: TableContext, namespace: str, name: str, ran: Collection[str]
) -> set[str]:
    """Cancel what is left of the operations that ran on a table by its last status, as
    `TableCompaction/nightly`, and of which there is no resource any more. Returns those with which
    nothing is left to do; the others, of which some may be next in turn, are to be tried again."""
    looked_at = sorted(ran)[:_MOST]
    found = [await _is_gone(context, namespace, each) for each in looked_at]
    gone = {each for each, is_gone in zip(looked_at, found, strict=True) if is_gone}
    settled = {each for each, is_gone in zip(looked_at, found, strict=True) if is_gone is False}
    opened = table.table
    if not gone or opened is None:
        return settled
    try:
        bodies = await context.threads(
            table.uid, lambda: _left_by(opened, namespace, name, frozenset(gone))
        )
    except TandemError as error:
        _deletions_log.warning(
            "not cleaned up", namespace=namespace, table=name, problem=str(error)
        )
        return settled
    for body in bodies:
        kind, _, operation = key = key_of(body)
        there = context.resource_cache.get(key)
        if there is not None and not there.deleting:
            continue  # made again meanwhile: its own controller goes on with it
        _deletions_log.info("was deleted meanwhile", kind=kind, namespace=namespace, name=operation)
        await OperationController(context, body).clean_up()
    return settled | gone


async def _is_gone(context: OperatorContext, namespace: str, display: str) -> bool | None:
    """None if that cannot be known now."""
    kind, _, name = display.partition("/")
    if kind not in OPERATIONS or not _NAME.fullmatch(name):
        return False
    try:
        # One that is being deleted has no controller, if that began before this operator.
        return is_deleting(await context.api.get(path(kind, namespace, name)))
    except NotFound:
        return True
    except ApiError as error:
        _deletions_log.warning(
            "not found out", namespace=namespace, name=display, problem=str(error)
        )
        return None


def _left_by(table: Table, namespace: str, name: str, gone: Collection[str]) -> list[Body]:
    """The resources of the unfinished operations that have these names, as far as their records say
    it. Raises: ManifestInvalid for a damaged plan, StorageError."""
    log, found = MergeLog(table.log), []
    # What works on the table's log has its files there.
    for store in (table.store, log.store) if log.exists() else (table.store,):
        for operation_id in sorted({pin.operation_id for pin in garbage.unfinished(store)}):
            identity = attempt_files.identity(operation_id)
            try:
                record = attempt_files.load(store, identity, OperationRecord)
            except ManifestInvalid as error:
                _deletions_log.warning(
                    "not cleaned up", namespace=namespace, table=name, problem=str(error)
                )
                continue
            if record is None or record.namespace != namespace:
                continue
            if f"{record.kind}/{record.name}" in gone:
                found.append(_body(record, name))
    return found


def _body(record: OperationRecord, table: str) -> Body:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": record.kind,
        "metadata": {
            "namespace": record.namespace,
            "name": record.name,
            # Which uid it had is not known. It has no application: Kubernetes deletes that with it.
            "uid": f"deleted-{record.operation_id}",
            "resourceVersion": "0",
            "generation": 1,
        },
        "spec": {**record.spec, "tableRef": {"name": table}},
        "status": {},
    }
