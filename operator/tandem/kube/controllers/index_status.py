"""Composes the status of an IndexServer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tandem.errors import InvalidSpec, Reason, TandemError
from tandem.index.server.messages import MAX_TABLES, CacheAnswer, HeldShard, HeldTable, TableConfig
from tandem.kube.client.resources import Body, is_deleting, status_of
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.kube.tables.status import LASTING
from tandem.spec.index import IndexServer, TableSelection
from tandem.spec.loader import parse
from tandem.spec.status import (
    Condition,
    ConditionType,
    IndexServerStatus,
    ServedTable,
    ServerCache,
    ServerExecutors,
    UnservedTable,
    conditions_of,
)
from tandem.spec.table import LakeTable

# Which tables an IndexServer serves, and why others that it might serve are not. Pure.


Problem = tuple[Reason, str] | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A LakeTable of the namespace. `problem`: why the operator cannot use it; None if it can, or
    if it has not looked yet."""

    body: Body
    adopted: bool
    problem: Problem = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The tables by name, and reasons by name."""

    served: Mapping[str, TableConfig]
    refused: Mapping[str, str]

    @property
    def secrets(self) -> frozenset[str]:
        """The Secrets with credentials of the tables that are served."""
        return frozenset(t.secret for t in self.served.values() if t.secret is not None)

    def without_secrets(self, missing: frozenset[str]) -> Choice:
        """Without the tables whose Secret does not exist."""
        kept = {n: t for n, t in self.served.items() if t.secret not in missing}
        gone = {
            name: f"there is no Secret {table.secret} in the namespace"
            for name, table in self.served.items()
            if table.secret in missing
        }
        return Choice(kept, {**self.refused, **gone})


def select(server: IndexServer, candidates: Iterable[Candidate], policy: LocationPolicy) -> Choice:
    """What a server serves of the LakeTables of its namespace."""
    served: dict[str, TableConfig] = {}
    refused: dict[str, str] = {}
    there = set[str]()
    for candidate in sorted(candidates, key=lambda each: str(each.body["metadata"]["name"])):
        name = str(candidate.body["metadata"]["name"])
        if is_deleting(candidate.body) or not is_chosen(server.spec.tables, candidate.body):
            continue
        there.add(name)
        try:
            served[name] = _config(server, candidate, policy)
        except TandemError as error:
            refused[name] = str(error) if error.field else error.message
    for name in sorted(set(server.spec.tables.names) - there):
        refused[name] = "there is no LakeTable of this name in the namespace"
    for name in list(served)[MAX_TABLES:]:
        del served[name]
        refused[name] = f"a server serves at most {MAX_TABLES:,} tables"
    return Choice(served, refused)


def is_chosen(selection: TableSelection, body: Body) -> bool:
    """Whether a LakeTable is one that the spec asks for."""
    if selection.names:
        return body["metadata"]["name"] in selection.names
    if selection.selector is None:
        return True
    labels = body["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selection.selector.match_labels.items())


def _config(server: IndexServer, candidate: Candidate, policy: LocationPolicy) -> TableConfig:
    """Raises: TandemError, whose message says why it is not served."""
    if candidate.problem is not None and candidate.problem[0] in LASTING:
        raise InvalidSpec(candidate.problem[1])
    if not candidate.adopted:
        raise InvalidSpec("it is not adopted yet")
    table = parse(candidate.body)
    assert isinstance(table, LakeTable)
    if table.spec.merge_on_read is not None or status_of(candidate.body).get("log") is not None:
        raise InvalidSpec("the index does not see the log of a merge-on-read table")
    wanted = table.spec.index.server if table.spec.index is not None else None
    if wanted not in (None, server.name):
        raise InvalidSpec(f"its spec.index.server is {wanted}")
    storage = table.spec.storage
    account = storage.service_account_name
    if storage.secret_ref is None and account not in (None, server.spec.service_account_name):
        raise InvalidSpec(
            f"its storage wants the identity of service account {account}, and the server runs as "
            f"{server.spec.service_account_name}"
        )
    return TableConfig(
        location=table.location,
        options=dict(storage.options),
        secret=storage.secret_ref.name if storage.secret_ref is not None else None,
        allowed=policy.check(table) or storage.clone_sources,
        kept_ms=table.spec.retention.files if table.spec.retention is not None else None,
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
    truths = {} if state.ready is None else {ConditionType.READY: state.ready}
    truths[ConditionType.RECONCILING] = state.ready is False and not state.stalled
    truths[ConditionType.STALLED] = state.stalled
    return conditions_of(truths, state.reason, state.message, generation, now_ms)


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
