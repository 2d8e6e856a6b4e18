"""What a version of a log says, as values: its blocks and its mark. Commits of a log that Tandem
has not made are refused. Pure.

Which blocks a log compaction stitches together.

Pure. A run is a sequence of consecutive live blocks of one group: a live block in between would be
applied before older records of its keys (RFC-48, "consecutive").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from tandem.delta.actions import Commit, Txn
from tandem.errors import CorruptLog

# The values of a log of blocks: blocks, and what a version of the log says.
#
# Pure. An *instant* is a version of the log; the *mark* is the instant up to which the base table
# holds the log's records.


FEATURE = "tandem.mergeLog"
"""The writer feature of a log: an engine that does not know it must not write."""
FORMAT = 1
"""The format that this version writes and reads. A log of a later one is refused."""

BASE = "tandem.log.base"
"""`txn` of a log: the newest base version that the log has taken into account."""
MARK = "tandem.log.mark"
"""`txn` of a log: the mark as of that base version."""
WRITER = "tandem.writer:"
"""Prefix of the `txn` of a writer: its last batch."""
ROLLBACK = "tandem.rollback:"
"""Prefix of the `txn` of a writer's session: its uploads up to this number must not be committed
any more."""
MERGED = "tandem.log:"
"""Prefix of the `txn` of a base table: the mark, under the id of the log."""

FIRST, LAST, DELETES = "tandem.log.first", "tandem.log.last", "tandem.log.deletes"
"""Tags of a block: its instants, both included, and the number of its deletes."""

_UPLOAD = re.compile(r"blocks/([0-9a-f]{16})/([1-9][0-9]{0,17})/[^/]+")

Group = tuple[tuple[str, str | None], ...]
"""Partition values as logged, sorted by column: blocks of one group are in one order."""


@dataclass(frozen=True, slots=True)
class Block:
    """A live file of the log. The blocks of a group have disjoint intervals `first` to `last`.

    `size` in bytes, `deletes` the number of records that delete a key.
    """

    path: str
    first: int
    last: int
    size: int
    deletes: int = 0
    group: Group = ()

    @property
    def stitched(self) -> bool:
        return self.first < self.last

    @property
    def instants(self) -> str:
        """For messages: its instant, or the first and the last one."""
        return f"instants {self.first} to {self.last}" if self.stitched else f"instant {self.first}"


@dataclass(frozen=True, slots=True)
class BlockLogState:
    """The log as of base version `base` of the table `base_id`: the instants up to `mark` are in
    the base table; `live` are the blocks by path.

    `columns`: the keys and the ordering column as the blocks have them, each with its physical
    name; empty if that is not known.
    """

    base_id: str
    base: int
    mark: int = -1
    live: Mapping[str, Block] = field(default_factory=dict)
    columns: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def unmerged(self) -> tuple[Block, ...]:
        """The blocks with an instant beyond the mark, in order of their groups and instants."""
        return in_order(block for block in self.live.values() if block.last > self.mark)

    @property
    def size(self) -> int:
        """Bytes of the live blocks."""
        return sum(block.size for block in self.live.values())


LogHistory = Callable[[int], BlockLogState]
"""From a base version to the state of the newest log version that has looked at none after it.

Raises: LogHistoryTooShort."""


def in_order(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Blocks in order of their groups and instants, those of one instant by path: winners are
    numbered in this order, in several processes, which may read the log in different ways."""
    return tuple(
        sorted(blocks, key=lambda block: (_sortable(block.group), block.first, block.path))
    )


def _sortable(group: Group) -> tuple[tuple[str, bool, str], ...]:
    return tuple((column, value is not None, value or "") for column, value in group)


def block_of(
    path: str, size: int, tags: Mapping[str, str], values: Mapping[str, str | None], version: int
) -> Block:
    """The block of a live file of the log, from the fields of its `add`.

    Raises: ValueError, KeyError if its tags are not those of a block; `version` bounds its
        instants.
    """
    first, last, deletes = int(tags[FIRST]), int(tags[LAST]), int(tags[DELETES])
    if not 0 <= first <= last <= version or deletes < 0:
        raise ValueError(f"instants {first} to {last}, {deletes} deletes")
    return Block(path, first, last, size, deletes, tuple(sorted(values.items())))


def tags_of(block: Block) -> dict[str, str]:
    return {FIRST: str(block.first), LAST: str(block.last), DELETES: str(block.deletes)}


def txns_of(state: BlockLogState) -> tuple[Txn, ...]:
    """The `txn`s that record a state. The mark is -1 before the first merge, and again after a
    restore to a version before it."""
    return (Txn(BASE, state.base), Txn(MARK, state.mark))


def upload_folder(session: str, upload: int) -> str:
    """The folder of the files of one upload, below the log's root. A rollback names it by both."""
    return f"blocks/{session}/{upload}"


def upload_of(path: str) -> tuple[str, int] | None:
    """The session and the upload of a writer's file; None for other files."""
    match = _UPLOAD.fullmatch(path)
    return (match[1], int(match[2])) if match else None


# Refuses commits of a log that Tandem has not made. Pure.
#
# The writer feature of a log keeps other engines from writing it. One that ignores the feature
# could remove blocks, or move the mark: each later view would lack rows, and nothing would say so.
# So each commit that is read is checked, at no request more. What lies below a checkpoint is not
# read, but a checkpoint of Tandem follows such a check.


_ENGINE = "tandem/"
"""Each commit of Tandem names its engine so, with the version (`tandem.delta.log.snapshot`)."""


def require_own(commit: Commit, location: str) -> None:
    """Check that Tandem made a commit of the log at `location`, as far as the commit shows.

    Raises: CorruptLog.
    """
    found = _foreign(commit)
    if found:
        raise CorruptLog(
            "another writer has changed the log of blocks",
            resource=location,
            field=f"version {commit.version}",
            found=found,
            expected="commits of Tandem only",
            remedy="Tandem has appended nothing since. Remove this commit and those after it, and "
            "checkpoints of their versions, from `_tandem/log/_delta_log`",
        )


def _foreign(commit: Commit) -> str:
    """What shows that Tandem did not make the commit; "" if nothing does."""
    info = commit.info
    if info is None or not info.engine.startswith(_ENGINE):
        engine = info.engine if info is not None else ""
        operation = info.operation if info is not None else ""
        return f"{operation or 'an unknown operation'} by {engine or 'an unknown engine'}"
    if any(remove.data_change for remove in commit.removes):
        return f"{info.operation}, which removes records"
    txns = {action.app_id for action in commit.actions if isinstance(action, Txn)}
    if MARK in txns and BASE not in txns:
        return f"{info.operation}, which moves the mark without a version of the base table"
    return ""


# The facts of a log that its automatic log compactions and merges go by: which of its versions are
# instants, and how many there are since a merge or a log compaction.
#
# Pure. Not every version of a log adds records: log compactions, and commits that only record the
# base version, do not count.


@dataclass(frozen=True, slots=True)
class LogVersion:
    """What counts of one version of a log.

    Attributes:
        time_ms: when it was committed, Unix milliseconds, by the clock of the store.
        appends: whether it adds blocks of its own.
        stitched: of a log compaction, the version that its plan read; otherwise None.
    """

    version: int
    time_ms: int
    appends: bool = False
    stitched: int | None = None


@dataclass(frozen=True, slots=True)
class InstantCounts:
    """Instants since the last merge and since the last log compaction.

    Attributes:
        since: the version that the shorter of both counts begins after, -1 for none.
        compacted_ms: when the last log compaction committed; None for none.
    """

    since_merge: int
    since_compaction: int
    since: int
    compacted_ms: int | None = None

    @property
    def least(self) -> int:
        """The smaller count: what decides whether a log compaction is due (Hudi, pull request
        18306)."""
        return min(self.since_merge, self.since_compaction)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log as of a version of its base table.

    Attributes:
        log_id: the id of the log.
        newest: its newest version.
        state: what it says as of the base version `state.base`.
        recorded: the base version that it has recorded itself.
        moved_ms: when the base table moved on from there, Unix milliseconds; None if it has not.
        oldest_ms: when the oldest unmerged instant was committed; None if nothing is unmerged.
        unmergeable: why the base table refuses merges, "" if it takes them.
    """

    log_id: str
    newest: int
    state: BlockLogState
    counts: InstantCounts
    recorded: int
    moved_ms: int | None = None
    oldest_ms: int | None = None
    unmergeable: str = ""


def log_version(commit: Commit) -> LogVersion:
    """What counts of a commit of a log. A log compaction is recognized by its blocks, which change
    no data, and not by the name of its operation."""
    appends = any(add.tags.get(LAST) == str(commit.version) for add in commit.adds)
    stitched: int | None = None
    if any(not add.data_change for add in commit.adds):
        tandem = commit.info.body.get("tandem") if commit.info else None
        read = tandem.get("readVersion") if isinstance(tandem, Mapping) else None
        stitched = read if isinstance(read, int) and read < commit.version else commit.version - 1
    return LogVersion(commit.version, commit.timestamp_ms, appends, stitched)


def count_instants(versions: Sequence[LogVersion], mark: int) -> InstantCounts:
    """Count the instants among consecutive versions of a log, in order.

    An instant that was appended after a log compaction was planned, and before its commit, counts
    as later: it is not in a stitched block.
    """
    stitched = max((each.stitched for each in versions if each.stitched is not None), default=-1)
    compacted = [each.time_ms for each in versions if each.stitched is not None]
    return InstantCounts(
        since_merge=sum(each.appends for each in versions if each.version > mark),
        since_compaction=sum(each.appends for each in versions if each.version > stitched),
        since=max(mark, stitched),
        compacted_ms=compacted[-1] if compacted else None,
    )


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
