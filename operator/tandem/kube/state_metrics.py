"""Metrics that are computed at each scrape: operations by phase, jobs, tables. They cost
nothing in between.

Only the tables with the most files have series of their own; sums are over all tables. To be
called in the event loop, which owns the state that is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.errors import Reason
from tandem.kube.client.resources import Body, CachedResource, status_of
from tandem.kube.metrics import families as families
from tandem.kube.metrics.families import Family
from tandem.kube.runtime.context import IndexServerFacts, OperatorContext
from tandem.kube.runtime.slots import JobSlots
from tandem.kube.tables.status import TableFigures
from tandem.spec.common import OPERATIONS
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.status import Phase, unix_ms

_PASSING = frozenset({Reason.PENDING, Reason.PLANNED, Reason.RUNNING, Reason.RECONCILING, ""})
"""Reasons of operations that make progress."""
_STAY = 1.25
"""A table with series of its own is replaced only by one with this many times its files: the choice
must not change with every commit."""
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
        slots: JobSlots,
        shown: int,
    ) -> None:
        self._context = context
        self._leads = leads
        self._slots = slots
        self._limit = shown
        self._shown: set[TableKey] = set()
        # The last state of each operation, and since when it has it, by `time.monotonic`.
        self._seen: dict[str, tuple[object, float]] = {}
        # When each table was last compacted, by uid: the compaction may be deleted by now.
        self._compacted: dict[str, str] = {}

    def collect(self) -> Iterable[Metric]:
        yield _one(families.LEADER, self._leads())
        yield from self._jobs()
        summaries = [s for s in self._context.resource_cache.all() if s.kind in OPERATIONS]
        yield from self._operations(summaries)
        yield from self._tables(summaries)
        yield from _index_servers(self._context.index_servers.values())

    def describe(self) -> Iterable[Metric]:
        """The names of the families, for the registration; computes nothing."""
        return [_family(each) for each in families.FAMILIES if each in families.LOOKED_UP]

    def _jobs(self) -> Iterator[Metric]:
        slots = self._slots
        yield _one(families.JOBS_LIMIT, slots.limits.total)
        yield _one(families.JOBS_RUNNING, slots.taken)
        yield _one(families.JOBS_WAITING, slots.waiting)
        control = self._context.control
        living = [] if control is None else control.living()
        yield _one(families.CHILD_PROCESSES, len(living))
        yield _one(families.SMALL_JOBS, sum(child.small_jobs for child in living))

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
        tables = self._context.figures
        ready: Counter[tuple[str, str]] = Counter()
        for table in tables.values():
            ready[str(table.ready), families.REASON.of(table.reason)] += 1
        found = _family(families.TABLES)
        for labels, count in ready.items():
            found.add_metric(labels, count)
        yield found
        every = list(tables.values())
        for family, of in _SUMS.items():
            yield _one(family, sum(of(table) or 0 for table in every))
        oldest = [each.log_oldest_ms for each in every if each.log_oldest_ms is not None]
        found = _family(families.TABLES_LOG_OLDEST)
        if oldest:
            found.add_metric([], min(oldest) / 1000)
        yield found
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
                found.add_metric(key, (unix_ms(self._compacted[table.uid]) or 0) / 1000)
        yield found
        found = _table_family(families.TABLE_HOLD)
        for key, table in shown.items():
            if table.hold is not None:
                found.add_metric((*key, table.hold), 1)
        yield found

    def _choose(self, tables: Mapping[TableKey, TableFigures]) -> None:
        def rank(key: TableKey) -> tuple[float, TableKey]:
            files = float(tables[key].files or 0)
            return (files * _STAY if key in self._shown else files, key)

        self._shown = set(nlargest(self._limit, tables, key=rank))

    def _note_compactions(
        self, tables: Mapping[TableKey, TableFigures], summaries: Iterable[CachedResource]
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


_Figure = Callable[[TableFigures], float | None]
_SUMS: Mapping[Family, _Figure] = {
    families.TABLES_SEGMENTS: lambda table: table.segments,
    families.TABLES_FILES: lambda table: table.files,
    families.TABLES_BYTES: lambda table: table.bytes,
    families.TABLES_SMALL: lambda table: table.small_files,
    families.TABLES_DELETED: lambda table: table.deleted_rows,
    families.TABLES_CHUNKS_DUE: lambda table: table.chunks_due,
    families.TABLES_LOG_BLOCKS: lambda table: table.log_blocks,
    families.TABLES_LOG_BYTES: lambda table: table.log_bytes,
}
_PER_TABLE: Mapping[Family, _Figure] = {
    families.TABLE_READY: lambda table: table.ready,
    families.TABLE_VERSION: lambda table: table.version,
    families.TABLE_SEGMENTS: lambda table: table.segments,
    families.TABLE_FILES: lambda table: table.files,
    families.TABLE_BYTES: lambda table: table.bytes,
    families.TABLE_SMALL: lambda table: table.small_files,
    families.TABLE_DELETED: lambda table: table.deleted_rows,
    families.TABLE_LOG_BLOCKS: lambda table: table.log_blocks,
    families.TABLE_LOG_BYTES: lambda table: table.log_bytes,
    families.TABLE_LOG_OLDEST: lambda table: _seconds(table.log_oldest_ms),
    families.TABLE_NEXT: lambda table: _seconds(table.next_ms),
    families.TABLE_CHUNKS_DUE: lambda table: table.chunks_due,
}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


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
