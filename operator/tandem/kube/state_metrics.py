"""Metrics that are computed at each scrape: operations by phase, jobs, threads, tables. They cost
nothing in between.

Only the tables with the most files have series of their own; sums are over all tables. To be
called in the event loop, which owns the state that is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from heapq import nlargest
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.errors import Reason
from tandem.kube.client.resources import Body, CachedResource, status_of
from tandem.kube.metrics import families as families
from tandem.kube.metrics.families import Family
from tandem.kube.runtime.context import IndexServerFacts, OperatorContext
from tandem.kube.runtime.workers import Workers
from tandem.kube.tables.context import TableContext
from tandem.mergelog.state.versions import LogFacts
from tandem.spec.common import OPERATIONS
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.status import Phase, TableStatus

_PASSING = frozenset({Reason.PENDING, Reason.PLANNED, Reason.RUNNING, Reason.RECONCILING, ""})
"""Reasons of operations that make progress."""
_STAY = 1.25
"""A table with series of its own is replaced only by one with this many times its files: the choice
must not change with every commit."""
_NO_STATUS = TableStatus()
TableKey = tuple[str, str]


class StateCollector(Collector):
    """The collector of one operator.

    Args:
        leads: whether this process leads.
        shown: how many tables have series of their own.
    """

    def __init__(
        self,
        context: OperatorContext,
        leads: Callable[[], bool],
        workers: Workers,
        shown: int,
    ) -> None:
        self._context = context
        self._leads = leads
        self._workers = workers
        self._limit = shown
        self._shown: set[TableKey] = set()
        # The last state of each operation, and since when it has it, by `time.monotonic`.
        self._seen: dict[str, tuple[object, float]] = {}
        # When each table was last compacted, by uid: the compaction may be deleted by now.
        self._compacted: dict[str, str] = {}

    def collect(self) -> Iterable[Metric]:
        yield _one(families.LEADER, self._leads())
        yield from self._threads()
        yield from self._jobs()
        summaries = [s for s in self._context.resource_cache.all() if s.kind in OPERATIONS]
        yield from self._operations(summaries)
        yield from self._tables(summaries)
        yield from _index_servers(self._context.index_servers.values())

    def describe(self) -> Iterable[Metric]:
        """The names of the families, for the registration; computes nothing."""
        return [_family(each) for each in families.FAMILIES if each in LOOKED_UP]

    def _threads(self) -> Iterator[Metric]:
        yield _one(families.WORKERS_LIMIT, self._workers.limit)
        yield _one(families.WORKERS_BUSY, self._workers.busy)
        yield _one(families.WORKERS_LONG, self._workers.long)
        yield _one(families.WORKERS_ABANDONED, self._workers.abandoned)
        yield _one(families.WORKERS_WAITING, self._workers.waiting)
        yield _one(families.WORKERS_OLDEST_WAIT, self._workers.oldest_wait_s)

    def _jobs(self) -> Iterator[Metric]:
        slots = self._context.slots
        yield _one(families.JOBS_LIMIT, slots.limits.total)
        yield _one(families.JOBS_RUNNING, slots.taken)
        yield _one(families.JOBS_WAITING, slots.waiting)
        children = self._context.children
        living = [] if children is None else children.living()
        yield _one(families.CHILD_PROCESSES, len(living))
        yield _one(families.SMALL_JOBS, sum(len(child.jobs) for child in living))

    # Operations

    def _operations(self, summaries: Iterable[CachedResource]) -> Iterator[Metric]:
        by_phase: Counter[tuple[str, str]] = Counter()
        hindered: Counter[str] = Counter()
        unchanged: dict[tuple[str, str], float] = {}
        active: set[str] = set()
        now_s = time.monotonic()
        for summary in summaries:
            phase = families.PHASE.of(summary.phase or Phase.PENDING)
            by_phase[summary.kind, phase] += 1
            if summary.ended or phase not in families.ACTIVE_PHASE.values:
                continue
            active.add(summary.uid)
            if summary.reason not in _PASSING:
                hindered[families.REASON.of(summary.reason)] += 1
            since_s = self._since(summary, now_s)
            key = (summary.kind, phase)
            unchanged[key] = max(unchanged.get(key, 0.0), now_s - since_s)
        for uid in self._seen.keys() - active:
            del self._seen[uid]
        found = _family(families.OPERATIONS)
        for kind in OPERATIONS:
            for phase in Phase:
                found.add_metric([kind, phase], by_phase.pop((kind, phase), 0))
        for (kind, phase), count in by_phase.items():
            found.add_metric([kind, phase], count)
        yield found
        found = _family(families.HINDERED)
        for reason, count in hindered.items():
            found.add_metric([reason], count)
        yield found
        found = _family(families.UNCHANGED)
        for (kind, phase), seconds in unchanged.items():
            found.add_metric([kind, phase], seconds)
        yield found

    def _since(self, summary: CachedResource, now_s: float) -> float:
        looks = _looks(summary, self._context.resource_cache.body(summary.uid) or {})
        before = self._seen.get(summary.uid)
        if before is not None and before[0] == looks:
            return before[1]
        self._seen[summary.uid] = (looks, now_s)
        return now_s

    # Tables

    def _tables(self, summaries: Iterable[CachedResource]) -> Iterator[Metric]:
        tables = self._context.tables
        ready: Counter[tuple[str, str]] = Counter()
        for table in tables.values():
            first = table.conditions[0] if table.conditions else None
            reason = families.REASON.of(first.reason if first is not None else Reason.PENDING)
            ready[str(table.is_ready), reason] += 1
        found = _family(families.TABLES)
        for labels, count in ready.items():
            found.add_metric(labels, count)
        yield found
        facts = [table.facts or _NO_STATUS for table in tables.values()]
        yield _one(families.TABLES_SEGMENTS, sum(f.segments or 0 for f in facts))
        yield _one(families.TABLES_FILES, sum(f.files or 0 for f in facts))
        yield _one(families.TABLES_BYTES, sum(f.bytes or 0 for f in facts))
        yield _one(families.TABLES_SMALL, sum(f.small_files or 0 for f in facts))
        yield _one(families.TABLES_DELETED, sum(f.deleted_rows or 0 for f in facts))
        due = [auto.chunks_due for table in tables.values() if (auto := table.auto_compaction)]
        yield _one(families.TABLES_CHUNKS_DUE, sum(each or 0 for each in due))
        yield from _logs(tables.values())
        self._choose(tables)
        yield _one(families.TABLES_SHOWN, len(self._shown))
        self._note_compactions(tables, summaries)
        shown = {key: tables[key] for key in sorted(self._shown)}
        for family, value in _PER_TABLE.items():
            found = _table_family(family)
            for key, table in shown.items():
                number = value(table)
                if number is not None:
                    found.add_metric(key, number)
            yield found
        found = _table_family(families.TABLE_COMPACTED)
        for key, table in shown.items():
            if table.uid in self._compacted:
                found.add_metric(key, _unix_s(self._compacted[table.uid]))
        yield found
        found = _table_family(families.TABLE_HOLD)
        for key, table in shown.items():
            if table.auto_compaction is not None:
                found.add_metric((*key, table.auto_compaction.hold), 1)
        yield found

    def _choose(self, tables: Mapping[TableKey, TableContext]) -> None:
        def rank(key: TableKey) -> tuple[float, TableKey]:
            facts = tables[key].facts
            files = float((facts.files if facts is not None else 0) or 0)
            return (files * _STAY if key in self._shown else files, key)

        self._shown = set(nlargest(self._limit, tables, key=rank))

    def _note_compactions(
        self, tables: Mapping[TableKey, TableContext], summaries: Iterable[CachedResource]
    ) -> None:
        uids = {table.uid for table in tables.values()}
        for uid in self._compacted.keys() - uids:
            del self._compacted[uid]
        for summary in summaries:
            if summary.kind != TableCompaction.kind_name or summary.phase != Phase.SUCCEEDED:
                continue
            if summary.type == CompactionType.LOG_MERGE:
                continue  # files still accumulate
            table = tables.get((summary.namespace, summary.table))
            if table is not None and summary.completed > self._compacted.get(table.uid, ""):
                self._compacted[table.uid] = summary.completed


def _index_servers(servers: Iterable[IndexServerFacts]) -> Iterator[Metric]:
    servers = list(servers)
    by_reason = Counter(
        (str(each.ready), families.REASON.of(each.reason))
        for each in servers
        if each.ready is not None
    )
    found = _family(families.INDEX_SERVERS)
    for labels, count in by_reason.items():
        found.add_metric(labels, count)
    yield found
    yield _one(families.INDEX_TABLES, sum(each.tables for each in servers))
    yield _one(families.INDEX_BYTES, sum(each.bytes for each in servers))
    yield _one(families.INDEX_EVICTIONS, sum(each.evictions for each in servers))


def _logs(tables: Iterable[TableContext]) -> Iterator[Metric]:
    """The logs of all tables."""
    logs = [facts for table in tables if (facts := table.log_facts) is not None]
    yield _one(families.TABLES_LOG_BLOCKS, sum(len(each.state.live) for each in logs))
    yield _one(families.TABLES_LOG_BYTES, sum(each.state.size for each in logs))
    oldest = [each.oldest_ms for each in logs if each.oldest_ms is not None]
    found = _family(families.TABLES_LOG_OLDEST)
    if oldest:
        found.add_metric([], min(oldest) / 1000)
    yield found


def _of_log(value: Callable[[LogFacts], float | None]) -> Callable[[TableContext], float | None]:
    """A value of a table's log; None without one."""

    def found(table: TableContext) -> float | None:
        return value(table.log_facts) if table.log_facts is not None else None

    return found


_PER_TABLE: Mapping[Family, Callable[[TableContext], float | None]] = {
    families.TABLE_READY: lambda table: table.is_ready,
    families.TABLE_VERSION: lambda table: (table.facts or _NO_STATUS).version,
    families.TABLE_SEGMENTS: lambda table: (table.facts or _NO_STATUS).segments,
    families.TABLE_FILES: lambda table: (table.facts or _NO_STATUS).files,
    families.TABLE_BYTES: lambda table: (table.facts or _NO_STATUS).bytes,
    families.TABLE_SMALL: lambda table: (table.facts or _NO_STATUS).small_files,
    families.TABLE_DELETED: lambda table: (table.facts or _NO_STATUS).deleted_rows,
    families.TABLE_LOG_BLOCKS: _of_log(lambda log: len(log.state.live)),
    families.TABLE_LOG_BYTES: _of_log(lambda log: log.state.size),
    families.TABLE_LOG_OLDEST: _of_log(
        lambda log: log.oldest_ms / 1000 if log.oldest_ms is not None else None
    ),
    families.TABLE_NEXT: lambda table: (
        table.auto_compaction.next_ms / 1000
        if table.auto_compaction is not None and table.auto_compaction.next_ms is not None
        else None
    ),
    families.TABLE_CHUNKS_DUE: lambda table: (
        table.auto_compaction.chunks_due if table.auto_compaction is not None else None
    ),
}
_SET = {families.BUILD, families.LOCK_STORE_UP}
LOOKED_UP = frozenset(f for f in families.FAMILIES if f.type == "gauge" and f not in _SET)
"""Families that are computed at a scrape; all others are instruments."""


def _looks(summary: CachedResource, body: Body) -> object:
    """A value that changes when an operation makes progress. The message of a wait is left out: it
    changes with time."""
    status: Mapping[str, Any] = status_of(body)
    progress = status.get("progress")
    done = progress.get("bytesDone") if isinstance(progress, Mapping) else None
    return (summary.phase, summary.generation, status.get("attempt"), done)


def _family(family: Family) -> GaugeMetricFamily:
    names = [label.name for label in family.labels]
    return GaugeMetricFamily(family.name, family.meaning, labels=names)


def _table_family(family: Family) -> GaugeMetricFamily:
    # Not `namespace`: Prometheus uses that label for the namespace of the operator itself.
    names = ["table_namespace", "table", *(label.name for label in family.labels)]
    return GaugeMetricFamily(family.name, family.meaning, labels=names)


def _one(family: Family, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.meaning, value=float(value))


def _unix_s(time_: str) -> float:
    try:
        return datetime.fromisoformat(time_).timestamp()
    except ValueError:
        return 0.0
