"""Connects a table's snapshot with `tandem.planning.auto`: the input of its decisions, and their
results as fields of the status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.delta import protocol
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import target_file_size
from tandem.operations.kinds.time_column import time_column
from tandem.planning.auto import retention
from tandem.planning.auto.decide import decide, kubernetes_time
from tandem.planning.auto.facts import AutoCompactionDecision, ChildState, TableId
from tandem.planning.auto.indexed_table import AutomaticTable, IndexedTable, TableFacts
from tandem.spec.compaction import DEFAULT_TARGET_FILE_SIZE
from tandem.spec.status import NextCompaction, NextDrop, NextRun
from tandem.spec.table import Granularity, LakeTable, VectorUse
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import segments

_SHOWN = 20
"""How many chunks a status lists."""


class TableMemory:
    """A table as automatic planning sees it, kept from version to version while it is asked for.
    Not safe for several threads."""

    def __init__(self) -> None:
        self._table: IndexedTable | None = None
        self._last: Snapshot | None = None
        self._changed: set[str] = set()  # since the version that the table is at

    def see(self, snapshot: Snapshot) -> None:
        """There is a new version. Cheap: the work is done once the table is asked for."""
        if self._last is None or self._last is snapshot:
            return
        change = snapshot.change
        if change is None or not change.follows(self._last):
            self.forget()
            return
        self._changed |= change.paths
        self._last = snapshot

    def forget(self) -> None:
        """Free what is kept: the table is not asked for again soon."""
        self._table = self._last = None
        self._changed = set()

    def at(self, resource: LakeTable, uid: str, snapshot: Snapshot) -> AutomaticTable:
        """The table at a version. Raises: InvalidSpec if its time column is invalid."""
        time = time_column(resource, snapshot)
        if time is not None and time.granularity is not Granularity.ALL:
            return self._indexed(TableId(resource.name, uid), time, snapshot)
        self.forget()
        live = segments(snapshot.files, time)
        granularity = time.granularity if time is not None else None
        return TableFacts(TableId(resource.name, uid), live, granularity, _target(snapshot))

    def by_chunk(self, resource: LakeTable, uid: str, snapshot: Snapshot) -> IndexedTable:
        """The table at a version, which must have time chunks. Raises: InvalidSpec if its time
        column is invalid."""
        found = self.at(resource, uid, snapshot)
        assert isinstance(found, IndexedTable), "the spec was checked"
        return found

    def _indexed(self, id_: TableId, time: TimeColumn, snapshot: Snapshot) -> IndexedTable:
        self.see(snapshot)
        table = self._table
        if table is None or (table.id, table.live.time) != (id_, time):
            table = IndexedTable(id_, snapshot.files, time)
        elif self._changed:
            added = files_.with_paths(snapshot.files, self._changed)
            table.follow(snapshot.files, self._changed, added)
        table.target_file_size = _target(snapshot)
        self._table, self._last, self._changed = table, snapshot, set()
        return table


def _target(snapshot: Snapshot) -> int:
    return target_file_size(snapshot.metadata.configuration) or DEFAULT_TARGET_FILE_SIZE


def preview_next_compaction(
    resource: LakeTable, snapshot: Snapshot, now_ms: int
) -> NextCompaction | None:
    """What an operator would do next with a table that it sees for the first time; None if its
    LakeTable has no automatic compaction. Raises: InvalidSpec."""
    policy = resource.spec.compaction
    if policy is None:
        return None
    decision = decide(policy, TableMemory().at(resource, "", snapshot), (), now_ms)
    return next_compaction(decision, decision.why, chunks=policy.chunks is not None)


def preview_next_drop(resource: LakeTable, snapshot: Snapshot, now_ms: int) -> NextDrop | None:
    """As `preview_next_compaction`, of `retention.rows`. Raises: InvalidSpec."""
    if rows_ms(resource) is None:
        return None
    if resource.spec.enable_deletion_vectors:  # the plan may precede the commit that does
        new, metadata = protocol.enable_deletion_vectors(snapshot.protocol, snapshot.metadata)
        snapshot = replace(snapshot, protocol=new, metadata=metadata)
    table = TableMemory().by_chunk(resource, "", snapshot)
    decision = decide_drop(resource, table, snapshot, (), now_ms)
    return next_drop(decision, decision.why)


def rows_ms(resource: LakeTable) -> int | None:
    """How long the table's rows are kept; None for ever."""
    return resource.spec.retention.rows if resource.spec.retention is not None else None


def decide_drop(
    resource: LakeTable,
    table: IndexedTable,
    snapshot: Snapshot,
    children: Sequence[ChildState],
    now_ms: int,
) -> AutoCompactionDecision:
    """What `retention.rows` of a table does at a given time."""
    kept_ms = rows_ms(resource)
    assert kept_ms is not None
    has_vectors = protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)
    return retention.decide(
        kept_ms,
        table.id,
        table.live,
        children,
        now_ms,
        in_part=has_vectors or resource.spec.vectors is not VectorUse.ONLY,
    )


def next_compaction(
    decision: AutoCompactionDecision, why: str, *, chunks: bool = False
) -> NextCompaction:
    """The decision as a field of a LakeTable's status. Pure.

    Args:
        chunks: whether chunks are compacted when they are due.
    """
    return NextCompaction(
        what=decision.next_what,
        next_time=_time(decision.next_ms),
        why=why,
        schedules=tuple(
            NextRun(
                id=state.line,
                cron=state.cron,
                type=state.type,
                since=kubernetes_time(state.since_ms),
                next_time=_time(state.next_ms),
            )
            for state in decision.schedules
        )
        or None,
        chunks_due=len(decision.due) if chunks else None,
        chunks=decision.due[:_SHOWN] or None,
    )


def next_drop(decision: AutoCompactionDecision, why: str) -> NextDrop:
    """The decision about `retention.rows` as a field of a LakeTable's status. Pure."""
    return NextDrop(
        what=decision.next_what,
        next_time=_time(decision.next_ms),
        why=why,
        chunks=decision.due[:_SHOWN] or None,
    )


def _time(moment_ms: int | None) -> str | None:
    return kubernetes_time(moment_ms) if moment_ms is not None else None
