"""What Tandem reports about a resource: its `status`, as the contract spells it.

Everything but `phase` is optional: what does not apply is absent when printed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

WHOLE_LOG = "the whole log"
LOG_INSTANT = "instant "
"""How `TableStatus.locks` names what is locked of a log: all of it, or a block by its first
instant."""
MERGES_LOG = "Rewrite the log"
"""What the plan of a LogMerge locks."""


class StatusModel(BaseModel):
    """Base of all status models. Open to fields of later versions: status is read back from
    files that a newer Tandem may have written."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def manifest(self) -> dict[str, Any]:
        """As printed: camelCase, JSON types, without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Phase(StrEnum):
    PENDING = "Pending"
    PLANNED = "Planned"
    LOCKED = "Locked"
    RUNNING = "Running"
    RECONCILING = "Reconciling"
    SUCCEEDED = "Succeeded"
    SUPERSEDED = "Superseded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


ENDED = frozenset({Phase.SUCCEEDED, Phase.SUPERSEDED, Phase.FAILED})
"""Phases that an operation never leaves by itself."""

PLANNED_ONLY = "planned; nothing was written"
"""The message of a dry run that would have something to do."""


class ConditionType(StrEnum):
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SUCCEEDED = "Succeeded"


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(StatusModel):
    type: ConditionType
    """What it is about."""
    status: ConditionStatus
    """Whether the condition applies."""
    reason: str
    """A value of `tandem.errors.Reason`; see `docs/reasons.md`."""
    message: str = ""
    """A human-readable explanation."""
    last_transition_time: str
    """RFC 3339, UTC."""
    observed_generation: int = 1
    """The generation of the spec that the condition is based on."""


class Progress(StatusModel):
    percent: int
    """How much of the bytes is done."""
    files_done: int = 0
    """Files read."""
    files_total: int = 0
    """Files to read."""
    bytes_done: int = 0
    """Bytes read."""
    bytes_total: int = 0
    """Bytes to read."""
    eta_seconds: int | None = None
    """About how long the job will still take, once it has shown how fast it is."""
    summary: str = ""
    """`12/20 files, 40 s left`"""

    def completed(self) -> Progress:
        """All of it done."""
        return Progress(
            percent=100,
            files_done=self.files_total,
            files_total=self.files_total,
            bytes_done=self.bytes_total,
            bytes_total=self.bytes_total,
            summary=f"{self.files_total}/{self.files_total} files",
        )

    def stopped(self) -> Progress:
        """As far as it came: nothing is left to wait for."""
        summary = f"{self.files_done}/{self.files_total} files"
        return self.model_copy(update={"eta_seconds": None, "summary": summary})


class Plan(StatusModel):
    read_version: int
    """Delta version that the operation reads."""
    inputs: int
    """How many files it reads."""
    input_bytes: int
    """Their size."""
    segments: tuple[str, ...] = ()
    """Segments whose files it replaces, or may."""
    outputs: tuple[str, ...] | None = None
    """Names that the new segments get unless another commit takes them first."""
    output_files: int | None = None
    """How many files it expects to write."""
    output_bytes: int | None = None
    """About how much it expects to write."""
    cost_bytes: int | None = None
    """About how much it expects to read and write, together."""
    instants: tuple[str, ...] | None = None
    """The intervals of instants whose blocks it replaces, one for each run: `1-3`."""
    steps: tuple[str, ...] | None = None
    """How the runs were found, level by level."""
    locks: tuple[str, ...] | None = None
    """What it locks."""
    statement: str | None = None
    """The canonical statement."""
    first: str | None = None
    """What runs before it; the plan is then made again."""


class RowsAffected(StatusModel):
    updated: int = 0
    """Rows changed."""
    deleted: int = 0
    """Rows deleted."""
    inserted: int = 0
    """Rows added."""
    upserted: int | None = None
    """Rows appended to the log of a merge-on-read table."""


class ReconciledCommit(StatusModel):
    """A commit of another writer that an operation had to reconcile with."""

    version: int
    """Its Delta version."""
    operation: str = ""
    """Delta's name of the operation: `UPDATE`, `OPTIMIZE`, …"""
    engine: str = ""
    """The engine that wrote it."""
    by: str | None = None
    """The resource, if it is an operation of ours."""
    time: str | None = None
    """When; RFC 3339, UTC."""
    inputs_gone: int | None = None
    """Inputs of ours that it took away."""
    inputs_restored: int | None = None
    """Inputs of ours in which it restored deleted rows."""
    rows_masked: int | None = None
    """Rows of our outputs hidden for that."""
    rows_evaluated: int | None = None
    """Rows that a statement was evaluated on because of it and of those before it."""
    rows_lost: int | None = None
    """Rows that a statement matched and that were deleted or changed until then."""
    executed_again: bool | None = None
    """The whole statement was executed again after it."""


class Reconciled(StatusModel):
    commits_seen: int = 0
    """Commits by others between our read version and our commit."""
    deletes_remapped: int = 0
    """Deleted rows moved onto our outputs, or our deletes moved onto others' outputs."""
    rows_masked: int = 0
    """Rows of our outputs hidden because their input is gone or was restored."""
    rows_evaluated: int = 0
    """Rows that a statement was evaluated on again."""
    bins_dropped: int = 0
    """Bins left out because an input had changed (tables without deletion vectors)."""
    runs_dropped: int | None = None
    """Runs of blocks left out because a block of theirs was gone."""
    rounds: int = 0
    """How often the latest version was read and reconciled with."""
    by_segment: dict[str, int] | None = None
    """Segment → rows deleted in it by replay."""
    files_masked: int | None = None
    """Files onto which deletes were replayed."""
    rows_lost: int | None = None
    """Rows that a statement matched and that others deleted or changed first."""
    milliseconds: int | None = None
    """How long the last round took, from the decision to the commit's content."""
    met: tuple[ReconciledCommit, ...] | None = None
    """The commits that the operation had to reconcile with, oldest first; the last 8."""


class OperationResult(StatusModel):
    version: int | None = None
    """The Delta version of the commit."""
    files_added: int | None = None
    """Files that the commit added."""
    files_removed: int | None = None
    """Files that the commit removed."""
    bytes_added: int | None = None
    """Their size."""
    bytes_removed: int | None = None
    """Their size."""
    rows_affected: RowsAffected | None = None
    """What a statement or an ingest did to rows."""
    segments: tuple[str, ...] | None = None
    """Names of the segments it made."""
    blocks_in: int | None = None
    """Blocks of a log that a log compaction replaced."""
    blocks_out: int | None = None
    """Blocks that it made of them, or that an operation appended to a log."""
    bytes_in: int | None = None
    """Size of the replaced blocks."""
    bytes_out: int | None = None
    """Size of the new blocks."""
    instants: tuple[str, ...] | None = None
    """The intervals of instants of the replaced blocks, one for each run: `1-3`; or the instant of
    the appended ones: `4`."""
    reconciled: Reconciled | None = None
    """What others had committed meanwhile, and what became of it."""
    summary: tuple[str, ...] | None = None
    """The same in sentences: `3 commits since version 41`, …"""


class OperationStatus(StatusModel):
    observed_generation: int = 1
    """The generation of the spec that this status reports on; -1 until the operator has seen it."""
    phase: Phase = Phase.PENDING
    """A one-word summary for display; programs use the conditions."""
    attempt: int = 0
    """Number of the latest attempt; 0 before the first."""
    operation_id: str | None = None
    """Names the operation below `_tandem/operations/` and in `commitInfo`."""
    start_time: str | None = None
    """When it began; RFC 3339, UTC."""
    completion_time: str | None = None
    """When it ended; RFC 3339, UTC."""
    application: str | None = None
    """Name of the attempt's SparkApplication."""
    observed_retry: str | None = None
    """The value of the annotation `tandem.dev/retry` that was answered last."""
    conditions: tuple[Condition, ...] = ()
    """`Succeeded`, `Reconciling`, `Stalled` and `Ready`, each with a reason."""
    progress: Progress | None = None
    """How far the job is."""
    plan: Plan | None = None
    """What it was going to do, and to which version."""
    result: OperationResult | None = None
    """The result of the operation."""


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
    """Up to when its times have been dealt with."""
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
    """Why the log cannot be read; absent if it can."""


class TableLock(StatusModel):
    """One operation's lock on a table, or its place in the queue for it."""

    operation: str
    """`TableCompaction/nightly`"""
    mode: str
    """What it does to the segments: `Append`, `Update`, `Rewrite`, `Replace`, `Exclusive`."""
    state: str
    """`Held`, `Committing` (it cannot be taken away now) or `Waiting`."""
    segments: tuple[str, ...] = ()
    """Segments, intervals or `the whole table`; of the log of blocks `instant 3`, the first one of
    a block, or `the whole log`. The first few of them."""
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
    """Operations that have begun and not ended."""
    held_locks: tuple[str, ...] = Field(default=())
    """The holders of locks: `TableCompaction/nightly: 0.1 (Rewrite)`."""
    locks: tuple[TableLock, ...] | None = None
    """The holders of locks and the waiters, in the order of the queue; the first 20."""
    last_operations: tuple[FinishedOperation, ...] | None = None
    """Those that ended last, the latest first."""
    next_compaction: NextCompaction | None = None
    """What automatic compaction does next."""
    log: LogStatus | None = None
    """The log of a merge-on-read table; absent without one."""
    last_cleaning: TableCleaning | None = None
    """What the operator last cleaned up."""


ResourceStatus = OperationStatus | TableStatus
