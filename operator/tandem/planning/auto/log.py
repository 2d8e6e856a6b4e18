"""Automatic log compaction and merge: what to start now, what comes next, and why nothing runs now.

A pure function of the policy, the log's facts, the existing children, and the time.
`docs/merge-on-read.md` describes the rules for users.

- A merge is due when enough blocks or bytes are unmerged, or the oldest instant is old enough.
- A log compaction is due when the instants since the last merge, and those since the last log
  compaction, are at least `minBlocks` (L13), there is a run to stitch, and the last one ended at
  least `minInterval` ago.
- They run one at a time; if both are due, the merge starts: it makes the log compaction needless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.mergelog.versions import LogFacts, small_runs
from tandem.planning.auto.facts import (
    LOG_COMPACTION_LINE,
    LOG_LINES,
    LOG_MERGE_LINE,
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    TableId,
    after_failure,
    beyond_history_limits,
    busy_reason,
    last_ended,
    log_compaction_spec,
    log_merge_spec,
    log_name,
    unfinished,
)
from tandem.spec.fields import format_duration, format_quantity
from tandem.spec.log_compaction import (
    AutomaticLogCompaction,
    AutomaticLogMerge,
    LogCompaction,
    MergeOnRead,
)
from tandem.spec.status import AutoCompactionWait
from tandem.spec.table import HistoryLimits

HISTORY = HistoryLimits()
"""How many finished children are kept; the last one of each line always stays."""


@dataclass(frozen=True, slots=True)
class _LogCandidate:
    """A merge or log compaction that may start at `ready_ms`, and why not earlier."""

    child: ChildCompaction
    ready_ms: int
    hold: AutoCompactionWait = AutoCompactionWait.NOT_DUE
    why: str = ""


def decide_log(
    policy: MergeOnRead,
    table: TableId,
    log: LogFacts,
    children: Sequence[ChildState],
    others: Sequence[str],
    now_ms: int,
) -> AutoCompactionDecision:
    """What automatic log compaction and merge do at a given time.

    Args:
        children: all automatic log compactions and merges of this table that exist.
        others: log compactions and merges of this table at work that users have created, as
            `LogCompaction/nightly`.
    """
    found: list[_LogCandidate] = []
    notes: list[str] = []
    if policy.merge is not None:
        _add(_merge(policy.merge, table, log, children), found, notes)
    if policy.log_compaction is not None:
        _add(_compaction(policy.log_compaction, table, log, children), found, notes)
    delete = beyond_history_limits(HISTORY, children, LOG_LINES)
    later = [each for each in found if each.ready_ms > now_ms]
    wake_ms = min((each.ready_ms for each in later), default=None)
    ready = [each for each in found if each.ready_ms <= now_ms]
    at_work = [*(c.display for c in children if c.at_work), *others]
    if ready and not at_work:
        return AutoCompactionDecision(
            (ready[0].child,), delete, now_ms, ready[0].child.what, "", wake_ms
        )
    if ready:
        why = " ".join((f"Waits for {at_work[0]}.", *notes))
        return AutoCompactionDecision(
            (), delete, None, ready[0].child.what, why, wake_ms, hold=AutoCompactionWait.AT_WORK
        )
    if later:
        first = min(later, key=lambda each: each.ready_ms)
        why = " ".join(filter(None, (first.why, *notes)))
        return AutoCompactionDecision(
            (), delete, first.ready_ms, first.child.what, why, wake_ms, hold=first.hold
        )
    hold = AutoCompactionWait.AT_WORK if at_work else AutoCompactionWait.NOT_DUE
    return AutoCompactionDecision((), delete, why=" ".join(notes), hold=hold)


def _add(found: _LogCandidate | str, candidates: list[_LogCandidate], notes: list[str]) -> None:
    if isinstance(found, str):
        notes.append(found)
    else:
        candidates.append(found)


def _merge(
    policy: AutomaticLogMerge, table: TableId, log: LogFacts, children: Sequence[ChildState]
) -> _LogCandidate | str:
    """A merge, or why the clock alone does not bring one."""
    running = unfinished(children, LOG_MERGE_LINE)
    if running is not None:
        return busy_reason(running)
    blocks = log.state.unmerged
    if not blocks:
        return "The table holds all records of the log."
    size = sum(block.size for block in blocks)
    count = f"{len(blocks)} block{'s' if len(blocks) > 1 else ''}"
    child, ready_ms, why = _next(table, log, children, LOG_MERGE_LINE, log.state.mark)
    child = replace(child, spec=log_merge_spec(table), what=f"LogMerge of {count}")
    if len(blocks) >= policy.max_blocks or size >= policy.max_bytes or log.oldest_ms is None:
        due_ms = 0
    else:
        due_ms = log.oldest_ms + policy.max_age
    if ready_ms >= due_ms:
        return _LogCandidate(child, ready_ms, AutoCompactionWait.AFTER_FAILURE, why)
    why = (
        f"{count} of maxBlocks ({policy.max_blocks}) and {size} bytes of maxBytes "
        f"({format_quantity(policy.max_bytes)}) are unmerged, the oldest for less than maxAge "
        f"({format_duration(policy.max_age)})."
    )
    return _LogCandidate(child, due_ms, why=why)


def _compaction(
    policy: AutomaticLogCompaction, table: TableId, log: LogFacts, children: Sequence[ChildState]
) -> _LogCandidate | str:
    """A log compaction, or why the clock alone does not bring one."""
    running = unfinished(children, LOG_COMPACTION_LINE)
    if running is not None:
        return busy_reason(running)
    counts, least = log.counts, policy.min_blocks
    if counts.least < least:
        last = "log compaction" if counts.since_compaction < counts.since_merge else "merge"
        return f"{counts.least} of minBlocks ({least}) instants since the last {last}."
    runs = small_runs(log.state, min_blocks=least, max_bytes=policy.max_block_bytes)
    if not runs:
        return f"No {least} consecutive small blocks are of about the same size."
    blocks = sum(len(run.blocks) for run in runs)
    child, ready_ms, why = _next(table, log, children, LOG_COMPACTION_LINE, counts.since)
    child = replace(
        child,
        kind=LogCompaction.kind_name,
        spec=log_compaction_spec(table, policy),
        what=f"LogCompaction of {blocks} blocks",
    )
    ended = last_ended(children, LOG_COMPACTION_LINE)
    last_ms = max(counts.compacted_ms or 0, ended.last_ms if ended is not None else 0)
    free_ms = last_ms + policy.min_interval if last_ms else 0
    if ready_ms >= free_ms:
        return _LogCandidate(child, ready_ms, AutoCompactionWait.AFTER_FAILURE, why)
    interval = format_duration(policy.min_interval)
    why = f"The last log compaction is less than minInterval ({interval}) ago."
    return _LogCandidate(child, free_ms, AutoCompactionWait.INTERVAL, why)


def _next(
    table: TableId, log: LogFacts, children: Sequence[ChildState], line: str, since: int
) -> tuple[ChildCompaction, int, str]:
    """The name of the next child of a line, from when on it may start after failures, and why not
    earlier. Its records are those after the instant `since`."""
    last = last_ended(children, line)
    number = 0
    if last is not None:
        # One that ended well and left the log as it was: the same again at once would never end.
        in_vain = last.name == log_name(table, line, log.log_id, since, last.retries)
        number = last.retries + 1 if last.failed or in_vain else 0
    ready_ms, why = after_failure(last, number, "the log")
    names = {child.name for child in children}
    while (name := log_name(table, line, log.log_id, since, number)) in names:
        number += 1  # the same instants again, after a restore; that name has been used
    return ChildCompaction(name, line, {}, "", retries=number), ready_ms, why
