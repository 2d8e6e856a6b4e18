"""Composes the status of an IndexServer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tandem.errors import Reason
from tandem.index.server.messages import CacheAnswer, HeldShard, HeldTable
from tandem.kube.controllers.index_server.selection import Choice
from tandem.operations.report.status import rfc3339
from tandem.spec.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    IndexServerStatus,
    ServedTable,
    ServerCache,
    ServerExecutors,
    UnservedTable,
)

MOST = 100
"""Tables that a status lists."""


@dataclass(frozen=True, slots=True)
class State:
    """What is to be reported: `ready` None for a server that is not wanted now; `stalled` if a user
    has to act."""

    ready: bool | None
    reason: Reason
    message: str = ""
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """What the operator knows of a table's newest version."""

    version: int | None = None
    files: int | None = None


def conditions(state: State, generation: int, now_ms: int) -> tuple[Condition, ...]:
    """`Ready` False alone means "in progress" to tools, so what needs a user is also `Stalled`. A
    suspended server is as its owner wants it, so it has no `Ready`."""
    truths: list[tuple[ConditionType, bool]] = []
    if state.ready is not None:
        truths.append((ConditionType.READY, state.ready))
    at_work = state.ready is False and not state.stalled
    truths += [(ConditionType.RECONCILING, at_work), (ConditionType.STALLED, state.stalled)]
    words: dict[bool, ConditionStatus] = {True: "True", False: "False"}
    return tuple(
        Condition(
            type=type_,
            status=words[truth],
            reason=state.reason,
            message=state.message if position == 0 else "",
            last_transition_time=rfc3339(now_ms),
            observed_generation=generation,
        )
        for position, (type_, truth) in enumerate(truths)
    )


def held_bytes(cache: CacheAnswer) -> int:
    """What a server and its executors hold."""
    shards = (each.bytes for executor in cache.executors for each in executor.shards)
    return sum(each.bytes for each in cache.tables) + sum(shards)


def evictions(cache: CacheAnswer) -> int:
    """How often a server and its executors have dropped something for something else."""
    return cache.evictions + sum(each.evictions for each in cache.executors)


def _limit(cache: CacheAnswer) -> int | None:
    limits = [cache.limit_bytes, *(each.limit_bytes for each in cache.executors)]
    return sum(each or 0 for each in limits) if all(each is not None for each in limits) else None


def _level(held: HeldTable | None, shards: Collection[HeldShard]) -> str | None:
    if held is None or held.version is None:
        return None
    if any(each.filter_bytes for each in shards):
        return "BloomFilters"
    return "RowGroups" if any(each.bytes for each in shards) else "Files"


def compose(
    state: State,
    generation: int,
    now_ms: int,
    *,
    endpoint: str | None = None,
    application: str | None = None,
    executors: ServerExecutors | None = None,
    selection: Choice | None = None,
    facts: Mapping[str, KnownVersion] | None = None,
    cache: CacheAnswer | None = None,
) -> IndexServerStatus:
    """The whole status.

    Args:
        facts: of the tables that are served, by name.
        cache: what the server said last; None if nothing is known.
    """
    held = {} if cache is None else {each.table: each for each in cache.tables}
    executors_held = () if cache is None else cache.executors
    shards: dict[str, list[HeldShard]] = {}
    for executor in executors_held:
        for shard in executor.shards:
            shards.setdefault(shard.table, []).append(shard)
    tables, refused = None, None
    if selection is not None:
        tables = tuple(
            ServedTable(
                name=name,
                version=held[name].version if name in held else None,
                latest=(facts or {}).get(name, KnownVersion()).version,
                files=(facts or {}).get(name, KnownVersion()).files,
                shards=len(shards[name]) if name in shards else None,
                bytes=held[name].bytes + sum(each.bytes for each in shards.get(name, ()))
                if name in held
                else None,
                level=_level(held.get(name), shards.get(name, ())),
            )
            for name in sorted(selection.served)[:MOST]
        )
        refused = tuple(
            UnservedTable(name=name, reason=selection.refused[name])
            for name in sorted(selection.refused)[:MOST]
        )
    return IndexServerStatus(
        observed_generation=generation,
        conditions=conditions(state, generation, now_ms),
        endpoint=endpoint,
        application=application,
        executors=executors,
        cache=None
        if cache is None
        else ServerCache(
            bytes=held_bytes(cache),
            limit_bytes=_limit(cache),
            evictions=evictions(cache),
        ),
        table_count=None if selection is None else len(selection.served),
        tables=tables or None,
        not_served=refused or None,
    )
