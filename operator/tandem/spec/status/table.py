"""The status of a `LakeTable`: its figures, locks and log, and what is automatic on it."""

from __future__ import annotations

from pydantic import Field

from tandem.spec.status.conditions import Condition, Phase, StatusModel

WHOLE_LOG = "the whole log"
LOG_INSTANT = "instant "
"""How `TableStatus.locks` names what is locked of a log: all of it, or a block by its first
instant."""
MERGES_LOG = "Rewrite the log"
"""What the plan of a LogMerge locks."""


class FinishedOperation(StatusModel):
    name: str
    """`TableCompaction/nightly`"""
    phase: Phase
    """How it ended."""
    reason: str = ""
    """Why."""
    completion_time: str | None = None
    """When; RFC 3339, UTC."""
    version: int | None = None
    """The Delta version of its commit."""


class NextRun(StatusModel):
    """One schedule of automatic compaction."""

    id: str
    """Digest of the schedule; label `tandem.dev/automatic` of its compactions."""
    cron: str
    """As in the spec."""
    type: str
    """The type of its compactions."""
    since: str
    """Times up to this one have been handled."""
    next_time: str | None = None
    """When it is due next; absent if never."""


class NextCompaction(StatusModel):
    """What automatic compaction does next, and why nothing runs now."""

    what: str = ""
    """`Minor of segments 0-3`, `SemiMajor by schedule '0 3 * * *'`"""
    next_time: str | None = None
    """When it starts, if it waits for a time; otherwise absent."""
    why: str = ""
    """Why nothing is started now, in a sentence or more."""
    schedules: tuple[NextRun, ...] | None = None
    """All schedules, in the order of the spec."""
    chunks_due: int | None = None
    """Time chunks that `compaction.chunks` has found due; absent without it."""
    chunks: tuple[str, ...] | None = None
    """The first of them, in the order in which they are compacted."""


class NextDrop(StatusModel):
    """What `retention.rows` drops next, and why nothing is dropped now."""

    what: str = ""
    """`Drop of 2012-01`"""
    next_time: str | None = None
    """When the next chunk is due, or the next attempt, if it waits for a time; otherwise absent."""
    why: str = ""
    """Why nothing is dropped now, or what was started."""
    chunks: tuple[str, ...] | None = None
    """The first intervals that are old enough, with those that wait."""


class NextLogAction(StatusModel):
    """What automatic log compaction and merge do next, and why nothing runs now."""

    what: str = ""
    """`LogMerge of 50 blocks`"""
    next_time: str | None = None
    """When it starts, if it waits for a time; otherwise absent."""
    why: str = ""
    """Why nothing is started now, or what was started."""


class LogStatus(StatusModel):
    """The log of a merge-on-read table."""

    newest_instant: int | None = None
    """The newest version of the log."""
    merged_instant: int | None = None
    """The table holds the records of all instants up to this one; absent before the first merge."""
    blocks: int | None = None
    """Live blocks."""
    unmerged_blocks: int | None = None
    """Those with unmerged records. The others keep merged deletes in force (`deletesKept`)."""
    small_blocks: int | None = None
    """Those of less than `logCompaction.maxBlockBytes`."""
    bytes: int | None = None
    """Size of the live blocks."""
    oldest_unmerged: str | None = None
    """When the oldest unmerged instant was appended; RFC 3339, UTC. Absent if all are merged."""
    dead_percent: int | None = None
    """Share of the table's rows that are behind deletion vectors: merges hide rows, and
    compactions remove them."""
    next: NextLogAction | None = None
    """What automatic log compaction and merge do next; absent if both are off."""
    problem: str | None = None
    """Why the log cannot be read, or not be merged; absent if it can."""


class TableLock(StatusModel):
    """One operation's lock on a table, or its place in the queue for it."""

    operation: str
    """`TableCompaction/nightly`"""
    mode: str
    """What it does to the segments: `Append`, `Update`, `Rewrite`, `Replace`, `Exclusive`."""
    state: str
    """`Held`, `Committing` (it cannot be taken away now) or `Waiting`."""
    segments: tuple[str, ...] = ()
    """Segments, intervals (`2013-03-02T00:00:00Z/…`) or `the whole table`; of the log of blocks
    `instant 3`, the first one of a block, or `the whole log`. The first few of them."""
    more: int | None = None
    """How many more there are."""
    since: str | None = None
    """When the operator first saw it hold, or wait; RFC 3339, UTC."""
    behind: tuple[str, ...] | None = None
    """What it waits for, the first few: `TableCompaction/nightly on segment 0.1`."""


class TableCleaning(StatusModel):
    """A round of cleaning, as `retention` asks for."""

    time: str
    """When it began; RFC 3339, UTC."""
    files: int = 0
    """Files removed."""
    bytes: int = 0
    """Their size."""
    next_time: str | None = None
    """When the next is due."""
    problem: str | None = None
    """Why the table, or its log of blocks, was not cleaned."""


class TableStatus(StatusModel):
    observed_generation: int = 1
    """The generation of the spec that this status reports on; -1 until the operator has seen it."""
    phase: Phase = Phase.PENDING
    """A one-word summary for display; programs use the conditions."""
    conditions: tuple[Condition, ...] = ()
    """`Ready`, `Reconciling` and `Stalled`, each with a reason."""
    version: int | None = None
    """Latest Delta version seen."""
    segments: int | None = None
    """Live segments."""
    files: int | None = None
    """Live data files."""
    bytes: int | None = None
    """Their size."""
    rows: int | None = None
    """Live rows, if every file's statistics have their number."""
    deleted_rows: int | None = None
    """Rows hidden by deletion vectors."""
    small_files: int | None = None
    """Files below a quarter of the default target size of 128Mi."""
    running_operations: tuple[str, ...] = Field(default=())
    """Operations in progress."""
    held_locks: tuple[str, ...] = Field(default=())
    """The holders of locks: `TableCompaction/nightly: 0.1 (Rewrite)`."""
    locks: tuple[TableLock, ...] | None = None
    """The holders of locks and the waiters, in the order of the queue; the first 20."""
    last_operations: tuple[FinishedOperation, ...] | None = None
    """Those that ended last, the latest first."""
    next_compaction: NextCompaction | None = None
    """What automatic compaction does next."""
    next_drop: NextDrop | None = None
    """What `retention.rows` drops next; absent without it."""
    log: LogStatus | None = None
    """The log of a merge-on-read table; absent without one."""
    last_cleaning: TableCleaning | None = None
    """What the operator last cleaned up."""
