"""`retention.rows`: drop whole time chunks that ended long enough ago.

A pure function of the limit, the table's files, the existing children, and the time. Must not
decide about rows: the drop does, by their times (`tandem.operations.kinds.replace`). So a file
that also holds other rows keeps them, whatever is planned here.

- Only files of known times make a chunk due: a row without a time is in no chunk.
- Where a LakeTable has deletion vectors off and allows no edits (`vectors: Only`), only whole files
  can go. A chunk waits while a file has rows of it and others: rows that are not old enough, or
  that have no time.
- One child runs at a time. It is named after its chunks and their files; one that succeeded is not
  repeated for the same files: their statistics are wide, and hold no more such rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from tandem.delta.log import files as files_
from tandem.intervals import NEVER, IntervalSet
from tandem.planning.auto.facts import (
    RETENTION_LINE,
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    TableId,
    after_failure,
    beyond_history_limits,
    busy_reason,
    drop_name,
    drop_spec,
    last_ended,
    unfinished,
)
from tandem.planning.auto.indexed_table import LiveIndex
from tandem.pruning.scope import Coverage, TimeScope, all_null, parts_in_scope
from tandem.spec.fields import format_duration
from tandem.spec.replace import TableReplace
from tandem.spec.status import AutoCompactionWait
from tandem.spec.table import Granularity, HistoryLimits
from tandem.timeline.chunks import chunk_of, components, label

HISTORY = HistoryLimits()
"""How many finished drops are kept; the last one always stays."""
MOST = 500
"""Intervals of one drop."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OldRows:
    """What a table has of rows that are old enough.

    Attributes:
        drop: intervals to drop.
        waiting: those that cannot be dropped now, and `why`.
        files: those that have rows in `drop`.
    """

    drop: IntervalSet = NEVER
    waiting: IntervalSet = NEVER
    why: str = ""
    files: frozenset[str] = frozenset()


def limit_ms(rows_ms: int, granularity: Granularity, now_ms: int) -> int | None:
    """The end of the last chunk that is due: a border of chunks. None before the calendar's
    beginning."""
    try:
        moment = _EPOCH + timedelta(milliseconds=now_ms - rows_ms)
        return chunk_of(moment, granularity).start_ms
    except (OverflowError, ValueError):
        return None


def old_rows(live: LiveIndex, limit: int, *, in_part: bool) -> OldRows:
    """What can be dropped before a moment, and what cannot.

    Args:
        limit: a border of chunks, in Unix milliseconds.
        in_part: whether rows can be dropped from files that have others.
    """
    found = live.files_before(limit)
    if not found:
        return OldRows()
    due = IntervalSet(piece for pieces in found.values() for piece in pieces)
    if in_part:
        return _first(due, NEVER, "", found)
    if _mixed(live, live.timeless, due):
        why = (
            "Files whose statistics have no times may hold such rows and others. "
            f"{_WITHOUT_VECTORS}"
        )
        return OldRows(waiting=due, why=why)
    # Chunks that a file links go together, or stay together.
    hulls = components(piece for pieces in found.values() for piece in pieces)
    mixed = _mixed(live, found, due)
    waiting = IntervalSet(hulls[piece] for path in mixed for piece in found[path])
    drop = due - waiting
    why = ""
    if waiting:
        files = f"{len(mixed)} file{'s hold' if len(mixed) > 1 else ' holds'}"
        why = f"{files} such rows and others, newer or without a time. {_WITHOUT_VECTORS}"
    return _first(drop, waiting, why, found)


def _first(
    drop: IntervalSet, waiting: IntervalSet, why: str, found: Mapping[str, IntervalSet]
) -> OldRows:
    """As many intervals as one drop takes, the oldest first."""
    drop = IntervalSet(drop.pieces[:MOST])
    files = frozenset(path for path, pieces in found.items() if any(map(drop.overlaps, pieces)))
    return OldRows(drop, waiting, why, files)


_WITHOUT_VECTORS = (
    "Set enableDeletionVectors, or vectors: Auto, to drop rows from them; without, their chunks "
    "wait until all of their rows are old enough."
)


def _mixed(live: LiveIndex, paths: Iterable[str], due: IntervalSet) -> list[str]:
    """The files that may have rows in some intervals, and others."""
    files = files_.with_paths(live.files, paths)
    time = live.time
    parts = parts_in_scope(files, TimeScope(due, time.path, time.type, time.partition))
    some = parts == Coverage.SOME
    if not time.partition:
        some &= ~all_null(files, time.path)
    return list(files["path"].filter(np.asarray(some)).to_pylist())


def decide(
    rows_ms: int,
    table: TableId,
    live: LiveIndex,
    children: Sequence[ChildState],
    now_ms: int,
    *,
    in_part: bool,
) -> AutoCompactionDecision:
    """What `retention.rows` does at a given time. `due` of the decision has all intervals that are
    old enough, with those that wait.

    Args:
        rows_ms: how long rows are kept after the end of their chunk.
        children: all automatic drops of this table that exist.
    """
    granularity = live.time.granularity
    delete = beyond_history_limits(HISTORY, children, (RETENTION_LINE,))
    limit = limit_ms(rows_ms, granularity, now_ms)
    next_ms = _next_ms(live, limit, rows_ms)
    old = OldRows()
    if limit is not None:
        old = old_rows(live, limit, in_part=in_part)
    due = tuple(_labels(old.drop | old.waiting, granularity))

    def waits(hold: AutoCompactionWait, why: str, what: str = "") -> AutoCompactionDecision:
        return AutoCompactionDecision(
            (), delete, None if due else next_ms, what, why, next_ms, hold=hold, due=due
        )

    if not due:
        keeps = f"No row is of a chunk that ended more than {format_duration(rows_ms)} ago."
        return waits(AutoCompactionWait.NOT_DUE, keeps)
    running = unfinished(children, RETENTION_LINE)
    if running is not None:
        return waits(AutoCompactionWait.AT_WORK, busy_reason(running))
    if not old.drop:
        return waits(AutoCompactionWait.NOT_DUE, old.why)
    labels = list(_labels(old.drop, granularity))
    what = f"Drop of {_some(labels)}"
    last = last_ended(children, RETENTION_LINE)
    number = 0
    if last is not None:
        same = last.name == drop_name(table, labels, old.files, last.retries)
        if same and not last.failed:
            why = f"{last.display} has dropped the rows that these files had before then."
            return waits(AutoCompactionWait.NOT_DUE, f"{why} {old.why}".rstrip())
        number = last.retries + 1 if last.failed else 0
    ready_ms, why = after_failure(last, number)
    if ready_ms > now_ms:
        wake_ms = ready_ms if next_ms is None else min(ready_ms, next_ms)
        return AutoCompactionDecision(
            (), delete, ready_ms, what, why, wake_ms,
            hold=AutoCompactionWait.AFTER_FAILURE, due=due,
        )  # fmt: skip
    names = {child.name for child in children}
    while (name := drop_name(table, labels, old.files, number)) in names:
        number += 1  # the files came back, by a restore; that name has been used
    child = ChildCompaction(
        name, RETENTION_LINE, drop_spec(table, labels), what, None, number, TableReplace.kind_name
    )
    return AutoCompactionDecision((child,), delete, now_ms, what, "", next_ms, due=due)


def _next_ms(live: LiveIndex, limit: int | None, rows_ms: int) -> int | None:
    """When the next chunk is due, if no row is added; None for never."""
    if limit is None:
        return None
    starts = [max(each.start_ms, limit) for each in live.timed_chunks if each.end_ms > limit]
    if not starts:
        return None
    first = _EPOCH + timedelta(milliseconds=min(starts))
    try:
        return chunk_of(first, live.time.granularity).end_ms + rows_ms
    except (OverflowError, ValueError):
        return None


def _labels(intervals: IntervalSet, granularity: Granularity) -> Iterable[str]:
    return (label(each, granularity) for each in intervals)


def _some(labels: Sequence[str], most: int = 3) -> str:
    more = f" … ({len(labels)} in all)" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more
