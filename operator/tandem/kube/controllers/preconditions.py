"""Why an operation cannot start now: it is suspended, or waits for another operation or for its
table. Also opens tables, such as that of a deleted operation, which may be deleted itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import structlog

from tandem.errors import Reason, TandemError
from tandem.kube.client.api import ApiError
from tandem.kube.client.resources import TABLE_KIND, path, spec_of, uid_of
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import TableContext, TableDependencies
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.operations.model import Table
from tandem.spec.common import ResourceKey
from tandem.spec.loader import cycle_error, parse
from tandem.spec.resources import LakeTable, Operation
from tandem.spec.status import Phase

_log = structlog.get_logger("tandem.kube.controllers.preconditions")
_MOST_LOOKED_AT = 1_000
"""So many operations are looked at for a cycle: a long chain would be looked at by each link."""
_GOOD = frozenset({Phase.SUCCEEDED, Phase.SUPERSEDED})


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """Why an operation cannot start, for its status. Only a change of a resource ends it."""

    phase: Phase
    reason: Reason
    message: str


def waiting_reason(
    context: OperatorContext, resource: Operation, *, begun: bool, at_work: bool
) -> WaitingReason | None:
    """What keeps an operation from starting, or None.

    Args:
        begun: it has made an attempt, perhaps with another operator. So what it depends on has
            succeeded; that may be gone by now, or be another one of that name.
        at_work: an attempt may be under way: `suspend` does not count, it has to be stopped first.
    """
    if resource.spec.suspend and not at_work:
        return WaitingReason(Phase.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true")
    why = "" if begun else _dependency(context, resource)
    cycle = _cycle(context, resource) if why else []
    if cycle:
        error = cycle_error([f"{kind}/{name}" for kind, _, name in cycle])
        return WaitingReason(Phase.PENDING, error.reason, str(error))
    if why:
        return WaitingReason(Phase.PENDING, Reason.WAITING_FOR_DEPENDENCY, why)
    return _table(context, resource)


def _dependency(context: OperatorContext, resource: Operation) -> str:
    for dependency in resource.spec.depends_on:
        key = (dependency.kind, resource.namespace, dependency.name)
        other = context.resource_cache.get(key)
        if other is None or not other.ended or other.phase not in _GOOD:
            state = "does not exist" if other is None else f"is {other.phase or 'new'}"
            return f"waits for {dependency.kind}/{dependency.name}, which {state}"
    return ""


def _cycle(context: OperatorContext, resource: Operation) -> list[ResourceKey]:
    """The operations, beginning with this one, of which each waits for the next and the last one
    for the first; empty if there is no such cycle among the nearest ones. It is broken by deleting
    one of them."""
    cache = context.resource_cache
    waits_for_it: dict[ResourceKey, ResourceKey] = {}
    pending: deque[ResourceKey] = deque([resource.key])
    while pending and len(waits_for_it) < _MOST_LOOKED_AT:
        key = pending.popleft()
        known = cache.get(key)
        body = None if known is None or known.ended else cache.body(known.uid)
        for dependency in () if body is None else spec_of(body).get("dependsOn") or ():
            other = (str(dependency["kind"]), resource.namespace, str(dependency["name"]))
            if other == resource.key:
                trail = [key]
                while trail[-1] != resource.key:
                    trail.append(waits_for_it[trail[-1]])
                return trail[::-1]
            if other not in waits_for_it:
                waits_for_it[other] = key
                pending.append(other)
    return []


def _table(context: OperatorContext, resource: Operation) -> WaitingReason | None:
    name, namespace = resource.spec.table_ref.name, resource.namespace
    found = context.tables.get((namespace, name))
    if found is not None:
        if not found.problem:
            return None
        problem, message = found.problem
        reason = problem if problem is Reason.TOO_LARGE else Reason.WAITING_FOR_DEPENDENCY
        return WaitingReason(Phase.PENDING, reason, f"waits for {TABLE_KIND}/{name}: {message}")
    exists = context.resource_cache.get((TABLE_KIND, namespace, name)) is not None
    state = "has not been read yet" if exists else "does not exist"
    why = f"waits for {TABLE_KIND}/{name}, which {state}"
    return WaitingReason(Phase.PENDING, Reason.WAITING_FOR_DEPENDENCY, why)


def new_table(context: OperatorContext, uid: str, *, adopted: bool) -> TableContext:
    """A table that was not refreshed yet."""
    dependencies = TableDependencies(
        context.api,
        lambda call: context.threads(uid, call),
        context.locks,
        context.clock,
        context.nonces,
        context.metrics,
        LocationPolicy(context.settings.allowed_locations, context.settings.allowed_endpoints),
        context.settings.store_timeout_s,
        context.on_secret,
    )
    return TableContext(uid, dependencies, adopted=adopted)


async def table_for_cleaning(context: OperatorContext, resource: Operation) -> Table | None:
    """The table of a deleted operation, None if it cannot be opened. Its LakeTable may not have
    been seen yet, or may be deleted itself and have no controller."""
    name, namespace = resource.spec.table_ref.name, resource.namespace
    found = context.tables.get((namespace, name))
    if found is not None and found.table is not None:
        return found.table
    try:
        body = await context.api.get(path(TABLE_KIND, namespace, name))
        lake_table = parse(body)
        assert isinstance(lake_table, LakeTable)
        known = new_table(context, uid_of(body), adopted=True)
        return await known.open_only(lake_table)
    except (ApiError, TandemError) as error:
        _log.warning(
            "cannot be cleaned up", namespace=namespace, operation=resource.id, problem=str(error)
        )
        return None
