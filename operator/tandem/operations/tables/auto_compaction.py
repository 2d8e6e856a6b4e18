"""Connects a table's snapshot with `tandem.planning.auto.decide`: the input of the decision, and
its result as fields of the status."""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.operations.kinds.table.time_column import time_column
from tandem.planning.auto.child_compactions import TableId
from tandem.planning.auto.decide import decide
from tandem.planning.auto.model import AutoCompactionDecision, TableFacts
from tandem.planning.auto.schedule_times import kubernetes_time
from tandem.spec.status import NextCompaction, NextRun
from tandem.spec.table import LakeTable
from tandem.timeline.segments import segments


def table_facts(resource: LakeTable, uid: str, snapshot: Snapshot) -> TableFacts:
    """The facts of a LakeTable at a version. Raises: InvalidSpec if its time column is invalid."""
    time = time_column(resource, snapshot)
    live = segments(snapshot.files, time)
    granularity = time.granularity if time is not None else None
    return TableFacts(TableId(resource.name, uid), live, granularity)


def preview_next_compaction(
    resource: LakeTable, snapshot: Snapshot, now_ms: int
) -> NextCompaction | None:
    """What an operator would do next with a table that it sees for the first time; None if its
    LakeTable has no automatic compaction. Raises: InvalidSpec."""
    policy = resource.spec.compaction
    if policy is None:
        return None
    decision = decide(policy, table_facts(resource, "", snapshot), (), now_ms)
    return next_compaction(decision, decision.why)


def next_compaction(decision: AutoCompactionDecision, why: str) -> NextCompaction:
    """The decision as a field of a LakeTable's status. Pure."""
    return NextCompaction(
        what=decision.next_what,
        next_time=kubernetes_time(decision.next_ms) if decision.next_ms is not None else None,
        why=why,
        schedules=tuple(
            NextRun(
                id=state.line,
                cron=state.cron,
                type=state.type,
                since=kubernetes_time(state.since_ms),
                next_time=kubernetes_time(state.next_ms) if state.next_ms is not None else None,
            )
            for state in decision.schedules
        )
        or None,
    )
