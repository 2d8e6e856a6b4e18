"""`compaction.chunks`: which time chunks are due, and which of them the next compaction takes.

A chunk is due when it ends before `skipOffsetFromLatest`, and its uncompacted part reaches
`minUncompacted`. A chunk in which a child of this table is at work is left out, and so is one
after a failure, for a while: no chunk holds up another one. Only if several different chunks have
failed in a row, the cause is probably none of them, and all wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.intervals import IntervalSet
from tandem.planning.auto.facts import (
    ChildCompaction,
    ChildState,
    CompactionCandidate,
    after_failure,
    backoff_ms,
    chunks_line,
    chunks_spec,
    is_of_chunks,
    last_ended,
    numbered_name,
    unfinished,
)
from tandem.planning.auto.indexed_table import AutomaticTable, UncompactedChunk
from tandem.planning.plans import CompactionRequest
from tandem.spec.compaction import AutomaticChunks, ChunkOrder, CompactionType, MinUncompacted
from tandem.spec.fields import format_duration, format_quantity
from tandem.spec.table import AutomaticCompaction, Granularity
from tandem.timeline.chunks import label

MOST = 1_000
"""Chunks of one compaction."""
_ALIKE = 3
"""So many different chunks that fail in a row make all of them wait."""


@dataclass(frozen=True, slots=True)
class ChunksDecision:
    """What `compaction.chunks` contributes to a decision.

    Attributes:
        candidates: at most one.
        note: why there is none.
        lines: those of chunks that are due.
        due: their labels, the next ones first.
    """

    candidates: tuple[CompactionCandidate, ...]
    note: str
    lines: frozenset[str]
    due: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _DueChunk:
    chunk: UncompactedChunk
    label: str
    line: str


def decide(
    policy: AutomaticCompaction,
    chunks: AutomaticChunks,
    table: AutomaticTable,
    children: Sequence[ChildState],
    now_ms: int,
) -> ChunksDecision:
    """The next compaction of chunks, or why there is none.

    Args:
        children: all automatic compactions of this table that exist, in any order.
    """
    assert table.granularity is not None
    found = table.chunks(_request(policy, chunks, table.target_file_size))
    due = [_named(each, chunks, table) for each in in_order(found, chunks)]
    lines, labels = frozenset(each.line for each in due), tuple(each.label for each in due)

    def nothing(why: str) -> ChunksDecision:
        return ChunksDecision((), why, lines, labels)

    if not due:
        return nothing(_why_none(policy, chunks, found, table.granularity))
    at_work = sum(child.at_work and is_of_chunks(child.line) for child in children)
    if at_work >= chunks.parallel:
        are = "is" if at_work == 1 else "are"
        return nothing(
            f"{_counted(len(due))} due, and {at_work} of parallel ({chunks.parallel}) {are} at "
            "work."
        )
    busy = _busy(table, children)
    free = [each for each in due if not busy.overlaps(each.chunk.interval)]
    free = [each for each in free if unfinished(children, each.line) is None]
    if not free:
        return nothing(f"{_counted(len(due))} due, and others are at work there.")
    waits = {each.line: _ready(children, each.line) for each in free}
    all_ready_ms, why_all = _all_ready(children)
    ready = [each for each in free if waits[each.line][0] <= now_ms]
    first = ready[0] if ready else min(free, key=lambda each: waits[each.line][0])
    ready_ms, why, number = waits[first.line]
    if all_ready_ms > ready_ms:
        ready_ms, why = all_ready_ms, why_all
    batch = _batch(ready or [first], chunks.max_bytes)
    names = {child.name for child in children}
    while (name := numbered_name(table.id, first.line, number)) in names:
        number += 1  # the segments came back, by a restore; that name has been used
    spec = chunks_spec(table.id, policy, chunks, [each.label for each in batch])
    what = f"SemiMajor of {_listed(batch)}"
    child = ChildCompaction(name, first.line, spec, what, retries=number)
    candidate = CompactionCandidate(child, CompactionType.SEMI_MAJOR, ready_ms, why)
    return ChunksDecision((candidate,), "", lines, labels)


def _request(
    policy: AutomaticCompaction, chunks: AutomaticChunks, target_file_size: int
) -> CompactionRequest:
    return CompactionRequest(
        CompactionType.SEMI_MAJOR,
        target_file_size=chunks.target_file_size or target_file_size,
        layout=chunks.layout.strategy,
        layout_columns=chunks.layout.columns,
        skip_offset_ms=policy.skip_offset_from_latest,
    )


def in_order(found: Sequence[UncompactedChunk], chunks: AutomaticChunks) -> list[UncompactedChunk]:
    """Those that are due, the next one first.

    Args:
        found: in order of time.
    """
    due = [each for each in found if is_due(each, chunks.least)]
    if chunks.order is ChunkOrder.OLDEST_FIRST:
        return due
    due.reverse()
    if chunks.order is ChunkOrder.MOST_FRAGMENTED_FIRST:
        due.sort(key=lambda each: (-each.segments, -each.size))
    return due


def is_due(chunk: UncompactedChunk, least: MinUncompacted) -> bool:
    """Whether its uncompacted part is large enough in one of the measures."""
    return (
        (least.segments is not None and chunk.segments >= least.segments)
        or (least.bytes is not None and chunk.size >= least.bytes)
        or (least.percent is not None and 100 * chunk.size >= least.percent * chunk.total > 0)
    )


def _named(chunk: UncompactedChunk, chunks: AutomaticChunks, table: AutomaticTable) -> _DueChunk:
    assert table.granularity is not None
    text = label(chunk.interval, table.granularity)
    return _DueChunk(chunk, text, chunks_line(table.id, chunks, text, chunk.first))


def _busy(table: AutomaticTable, children: Sequence[ChildState]) -> IntervalSet:
    """Where children work, or will work once they are resumed."""
    held = {name for child in children if child.at_work for name in child.segments or ()}
    busy = table.times_of(held)
    for child in children:
        if not child.ended:
            busy = busy | child.chunks
    return busy


def _ready(children: Sequence[ChildState], line: str) -> tuple[int, str, int]:
    """From when on a chunk may be compacted again, why not earlier, and how often that failed."""
    last = last_ended(children, line)
    # One that ended well and left the chunk as it was: the same again at once would never end.
    failures = last.retries + 1 if last is not None else 0
    return (*after_failure(last, failures, "its chunks"), failures)


def _all_ready(children: Sequence[ChildState]) -> tuple[int, str]:
    """From when on any chunk may be compacted, after failures of different ones; and why."""
    ended = [child for child in children if is_of_chunks(child.line) and child.ended]
    ended.sort(key=lambda child: (child.last_ms, child.retries, child.name), reverse=True)
    failed: set[str] = set()
    for child in ended:
        if not child.failed:
            break
        failed.add(child.line)
    if len(failed) < _ALIKE:
        return 0, ""
    wait = backoff_ms(len(failed) - _ALIKE + 1)
    why = (
        f"The last compactions of {len(failed)} different chunks failed, {ended[0].display}: "
        f"{ended[0].message.rstrip('.')}. Next attempt after {format_duration(wait)}."
    )
    return ended[0].last_ms + wait, why


def _batch(ready: Sequence[_DueChunk], max_bytes: int) -> list[_DueChunk]:
    """The first ones, of `max_bytes` together, at least one."""
    size, batch = 0, list[_DueChunk]()
    for each in ready[:MOST]:
        size += each.chunk.inputs
        if batch and size > max_bytes:
            break
        batch.append(each)
    return batch


def _counted(count: int) -> str:
    return f"{count} chunk{'s are' if count > 1 else ' is'}"


def _listed(batch: Sequence[_DueChunk], most: int = 3) -> str:
    names = ", ".join(each.label for each in batch[:most])
    more = f" … ({len(batch)} in all)" if len(batch) > most else ""
    return f"chunk{'s' if len(batch) > 1 else ''} {names}{more}"


def _why_none(
    policy: AutomaticCompaction,
    chunks: AutomaticChunks,
    found: Sequence[UncompactedChunk],
    granularity: Granularity,
) -> str:
    least, offset = chunks.least, policy.skip_offset_from_latest
    measures = [
        f"{least.segments} segment{'s' if least.segments > 1 else ''}" if least.segments else "",
        format_quantity(least.bytes) if least.bytes else "",
        f"{least.percent} %" if least.percent else "",
    ]
    old = f" that ends {format_duration(offset)} before the newest" if offset else ""
    why = f"No chunk{old} has {' or '.join(filter(None, measures))} uncompacted"
    if not found:
        return f"{why}."
    most = max(found, key=lambda each: (each.segments, each.size, each.interval))
    segments = f"{most.segments} segment{'s' if most.segments != 1 else ''}"
    return (
        f"{why}; most has {label(most.interval, granularity)}: {segments}, {most.size:,} bytes, "
        f"{most.percent} %."
    )
