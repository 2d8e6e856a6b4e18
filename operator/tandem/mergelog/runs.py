"""Which blocks a log compaction stitches together.

Pure. A run is a sequence of consecutive live blocks of one group: a live block in between would be
applied before older records of its keys (RFC-48, "consecutive").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from tandem.mergelog.state.versions import Block, BlockLogState, in_order

BALANCE = 2
"""The largest block of a run is at most this many times the mean of the others: without a limit, a
growing block would be written again with every few small ones."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Consecutive live blocks of one group, in order."""

    blocks: tuple[Block, ...]

    @property
    def first(self) -> int:
        return self.blocks[0].first

    @property
    def last(self) -> int:
        return self.blocks[-1].last

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """Which runs of a plan can still be replaced, by index, and the paths of planned blocks that
    are gone."""

    applicable: frozenset[int]
    gone: frozenset[str] = frozenset()


def all_blocks(state: BlockLogState, taken: Collection[str] = ()) -> tuple[BlockRun, ...]:
    """Strategy `AllBlocks`: all consecutive blocks that are not `taken` (paths), by group."""
    return tuple(BlockRun(run) for run in _stretches(state, taken) if len(run) > 1)


def small_runs(
    state: BlockLogState, *, min_blocks: int, max_bytes: int, taken: Collection[str] = ()
) -> tuple[BlockRun, ...]:
    """Strategy `SmallRuns`: runs of at least `min_blocks` blocks, each below `max_bytes`, of about
    the same size (`BALANCE`)."""
    found = []
    for stretch in _stretches(state, taken):
        small = groupby(stretch, key=lambda block: block.size < max_bytes)
        for is_small, blocks in small:
            if is_small:
                found += _balanced(tuple(blocks), max(2, min_blocks))
    return tuple(found)


def applicable(state: BlockLogState, runs: Sequence[Collection[str]], mark: int) -> RunsLeft:
    """Which runs may be committed after a version of the log.

    A run that lost a block is not committed: what removed it (a boundary, or a merge) may not apply
    to the others. None is committed if the mark has fallen, by a restore: the job dropped records
    that the base table held then, and that it no longer holds.

    Args:
        runs: the paths of the blocks of each.
        mark: what the log recorded when the runs were planned.
    """
    gone = frozenset(path for run in runs for path in run if path not in state.live)
    if state.mark < mark:
        return RunsLeft(frozenset(), gone)
    return RunsLeft(frozenset(at for at, run in enumerate(runs) if gone.isdisjoint(run)), gone)


def _stretches(state: BlockLogState, taken: Collection[str]) -> Iterator[tuple[Block, ...]]:
    """The live blocks by group, cut where one is taken."""
    ordered = in_order(state.live.values())
    for _, blocks in groupby(ordered, key=lambda block: block.group):
        for is_taken, stretch in groupby(blocks, key=lambda block: block.path in taken):
            if not is_taken:
                yield tuple(stretch)


def _balanced(blocks: tuple[Block, ...], least: int) -> list[BlockRun]:
    """Disjoint balanced runs of at least `least` blocks, in order.

    All blocks, if they are balanced. Otherwise the largest one is taken with those neighbours that
    are at least half as large, or left out if they are too few.
    """
    sizes = [block.size for block in blocks]
    sums = [0, *accumulate(sizes)]
    largest_of = _range_maximum(sizes)
    found: list[BlockRun] = []
    todo = [(0, len(blocks))]
    while todo:
        low, high = todo.pop()
        if high - low < least:
            continue
        largest = largest_of(low, high)
        others = sums[high] - sums[low] - sizes[largest]
        if sizes[largest] * (high - low - 1) <= BALANCE * others:
            found.append(BlockRun(blocks[low:high]))
            continue
        half = sizes[largest] / BALANCE
        start, end = largest, largest + 1
        while start > low and sizes[start - 1] >= half:
            start -= 1
        while end < high and sizes[end] >= half:
            end += 1
        if end - start >= least:
            found.append(BlockRun(blocks[start:end]))
            todo += [(low, start), (end, high)]
        else:
            todo += [(low, largest), (largest + 1, high)]
    return sorted(found, key=lambda run: run.first)


def _range_maximum(sizes: Sequence[int]) -> Callable[[int, int], int]:
    """From a range (end excluded, not empty) to the index of the first of its largest sizes, in
    constant time: for each power of two there is a table of the ranges of that length."""
    tables = [list(range(len(sizes)))]
    width = 1
    while 2 * width <= len(sizes):
        last = tables[-1]
        tables.append(
            [
                one if sizes[one] >= sizes[other] else other
                for one, other in zip(last[:-width], last[width:], strict=True)
            ]
        )
        width *= 2

    def largest(low: int, high: int) -> int:
        level = (high - low).bit_length() - 1
        one, other = tables[level][low], tables[level][high - 2**level]
        return one if sizes[one] >= sizes[other] else other

    return largest
