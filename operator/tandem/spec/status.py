"""What Tandem reports about a resource: its `status`, as the contract spells it.

Models only: decides nothing. Everything but `phase` is optional: what does not apply is absent when
printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# What all statuses have in common: times, phase and conditions.


def rfc3339(ms: int) -> str:
    """Unix milliseconds as Kubernetes writes times."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_ms(text: object) -> int | None:
    """The inverse; None for what is no time, which a status written by others may have."""
    try:
        found = datetime.fromisoformat(str(text))
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return int(aware.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


class StatusModel(BaseModel):
    """Base of all status models. Open to fields of later versions: status is read back from
    files that a newer Tandem may have written."""

    only_recorded: ClassVar[frozenset[str]] = frozenset()
    """Fields that a resource in a cluster does not have: they are in the table's log and below its
    `_tandem/`, and `tandem history` and `tandem plan` print them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        defer_build=True,
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


def conditions_of(
    truths: Mapping[ConditionType, bool | None],
    reason: str,
    message: str,
    generation: int,
    now_ms: int,
) -> tuple[Condition, ...]:
    """Conditions of one reason, in the order of `truths`, where None is `Unknown`. The message is
    that of the first one."""
    words: dict[bool | None, ConditionStatus] = {True: "True", False: "False", None: "Unknown"}
    return tuple(
        Condition(
            type=type_,
            status=words[truth],
            reason=reason,
            message=message if position == 0 else "",
            last_transition_time=rfc3339(now_ms),
            observed_generation=generation,
        )
        for position, (type_, truth) in enumerate(truths.items())
    )


# The status of an `IndexServer`: where it answers, what it holds, and which tables it serves.


class ServerExecutors(StatusModel):
    desired: int = 0
    """How many the spec asks for."""
    ready: int = 0
    """How many answer."""


class ServerCache(StatusModel):
    bytes: int = 0
    """What is held."""
    limit_bytes: int | None = None
    """How much may be held; absent for no limit."""
    evictions: int = 0
    """Number of tables dropped to make room for others since the server started."""


class ServedTable(StatusModel):
    name: str
    """Name of the LakeTable."""
    version: int | None = None
    """The newest version that is held; absent if nothing is."""
    latest: int | None = None
    """The newest version that the operator has seen."""
    files: int | None = None
    """Live data files of that version."""
    shards: int | None = None
    """Parts by which it is distributed to executors."""
    bytes: int | None = None
    """What is held of it."""
    level: str | None = None
    """The most that is held of a file: `Files` by the log, `RowGroups` with statistics of footers,
    `BloomFilters` with filters of row groups, too. These are read when a question first needs
    them."""


class UnservedTable(StatusModel):
    name: str
    """Name of the LakeTable."""
    reason: str
    """Why it is not served."""


class IndexServerStatus(StatusModel):
    """It has no phase, since it does not end."""

    observed_generation: int = 1
    """The generation of the spec that this status reports on; -1 until the operator has seen it."""
    conditions: tuple[Condition, ...] = ()
    """`Ready`, `Reconciling` and `Stalled`, each with a reason."""
    endpoint: str | None = None
    """Where it answers: `grpc+tls://lake-index.team-a.svc:8815`."""
    application: str | None = None
    """Name of its SparkApplication; absent while it is suspended."""
    executors: ServerExecutors | None = None
    """The processes beside its driver."""
    cache: ServerCache | None = None
    """What it holds, as last reported."""
    table_count: int | None = None
    """How many tables it serves."""
    tables: tuple[ServedTable, ...] | None = None
    """Those tables by name, the first 100."""
    not_served: tuple[UnservedTable, ...] | None = None
    """Tables that were chosen and are not served, by name, the first 100."""


# The status of an operation: its plan, progress and result.


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
    """Estimated seconds left, once the job's speed is known."""
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
        """The progress of a job that was stopped, without a remaining time."""
        summary = f"{self.files_done}/{self.files_total} files"
        return self.model_copy(update={"eta_seconds": None, "summary": summary})


class Plan(StatusModel):
    # How its runs were found, and its locks, which repeat the segments.
    only_recorded: ClassVar[frozenset[str]] = frozenset({"steps", "locks"})

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
    target_file_size: str | None = None
    """Target size of output files, where the table's `delta.targetFileSize` decides, and why."""
    instants: tuple[str, ...] | None = None
    """The intervals of instants whose blocks it replaces, one for each run: `1-3`."""
    steps: tuple[str, ...] | None = None
    """How the runs were found, level by level."""
    copies: str | None = None
    """Of which files it copies row groups, if their footers allow it, and why it encodes others."""
    edits: str | None = None
    """Without deletion vectors: which files are made again, what of them is copied and what is
    encoded, and what vectors would save."""
    locks: tuple[str, ...] | None = None
    """What it locks."""
    statement: str | None = None
    """The canonical statement."""
    first: str | None = None
    """What runs first; the operation is then planned again."""


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
    """The resource, if it is an operation of Tandem."""
    time: str | None = None
    """When; RFC 3339, UTC."""
    inputs_gone: int | None = None
    """Our inputs that it removed."""
    inputs_restored: int | None = None
    """Our inputs in which it restored deleted rows."""
    rows_masked: int | None = None
    """Rows of our outputs hidden for that."""
    rows_evaluated: int | None = None
    """Rows that a statement was evaluated on because of it and of those before it."""
    rows_lost: int | None = None
    """Rows that a statement matched and that were deleted or rewritten until then."""
    executed_again: bool | None = None
    """The whole statement was executed again after it."""


class Reconciled(StatusModel):
    # `result.summary` says it in sentences.
    only_recorded: ClassVar[frozenset[str]] = frozenset(
        {"bySegment", "filesMasked", "milliseconds", "runsDropped", "rowsLost", "met"}
    )

    commits_seen: int = 0
    """Commits by others between our read version and our commit."""
    deletes_remapped: int = 0
    """Deleted rows moved onto our outputs, or our deletes moved onto others' outputs."""
    rows_masked: int = 0
    """Rows of our outputs hidden because their input is gone or was restored."""
    rows_evaluated: int = 0
    """Rows that a statement was evaluated on again."""
    bins_dropped: int = 0
    """Always 0: bins were left out once, if an input had changed, without deletion vectors."""
    bins_contended: int | None = None
    """Bins left as they were, because their inputs changed faster than they could be edited."""
    inputs_gone: int | None = None
    """Inputs that other commits replaced, and whose rows are not in our outputs any more."""
    edit_rounds: int | None = None
    """Rounds in which files were edited: made again without some rows, or with new values."""
    bytes_copied: int | None = None
    """Bytes of edited files that were copied as they are."""
    bytes_encoded: int | None = None
    """Bytes of edited files that were encoded."""
    runs_dropped: int | None = None
    """Runs of blocks left out because one of their blocks no longer exists."""
    rounds: int = 0
    """How often the latest version was read and reconciled with."""
    by_segment: dict[str, int] | None = None
    """Segment → rows deleted in it by replay."""
    files_masked: int | None = None
    """Files onto which deletes were replayed."""
    rows_lost: int | None = None
    """Rows that a statement matched and that others deleted or rewritten first."""
    milliseconds: int | None = None
    """How long the last round took, from the decision to the commit's content."""
    met: tuple[ReconciledCommit, ...] | None = None
    """The commits that the operation had to reconcile with, oldest first; the last 8."""


class RowsReplaced(StatusModel):
    start_version: int | None = None
    """The version that counts as its start, with scope `AtStart`: it replaced what was there."""
    rows: int = 0
    """Rows that it removed."""
    late: int | None = None
    """Rows in its intervals and partitions that stay, since they came after its start."""
    outside: int | None = None
    """Rows of the source that it left out (`outside: Drop`)."""
    empty_chunks: int | None = None
    """Chunks of the table's time that had rows in its intervals, and have none afterwards. Absent
    with partitions or segments, without a time column, and where it would take reading the times of
    more than 16 million rows, or of files that a job has read."""


class OperationResult(StatusModel):
    version: int | None = None
    """The Delta version of the commit."""
    files_added: int | None = None
    """Files that the commit added."""
    files_removed: int | None = None
    """Files that the commit removed."""
    files_marked: int | None = None
    """Files that stay, in which the commit deleted rows, by deletion vectors."""
    bytes_added: int | None = None
    """The size of the added files."""
    bytes_removed: int | None = None
    """The size of the removed files."""
    rows_affected: RowsAffected | None = None
    """What a statement or an ingest did to rows."""
    segments: tuple[str, ...] | None = None
    """Names of the segments it made."""
    blocks_in: int | None = None
    """Blocks of a log that a log compaction replaced."""
    blocks_out: int | None = None
    """Blocks that it made of them, or that an operation appended to a log."""
    instants: tuple[str, ...] | None = None
    """The intervals of instants of the replaced blocks, one for each run: `1-3`; or the instant of
    the appended ones: `4`."""
    replaced: RowsReplaced | None = None
    """What a TableReplace removed, and what it left."""
    reconciled: Reconciled | None = None
    """The concurrent commits of other writers, and how they were reconciled with."""
    repeated: bool | None = None
    """Without a cluster: an earlier run did this, and this one only reports it."""
    summary: tuple[str, ...] | None = None
    """The same in sentences: `3 commits since version 41`, …"""


class Yielded(StatusModel):
    """How often an operation with `lockMode: Exclusive` yielded to other writers."""

    count: int
    """How often, in all attempts. After `exclusive.maxYields` it goes on as `Concurrent`."""
    next_try: str | None = None
    """When the next attempt begins; RFC 3339, UTC. Absent unless it waits for that."""
    by: str = ""
    """What it yielded to the last time: a commit (`version 51, WRITE by …`) or an operation."""


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
    """What the operation does, and the version that it read."""
    yields: Yielded | None = None
    """How often a TableCompaction or SegmentRewrite yielded to other writers; absent if it never
    did."""
    result: OperationResult | None = None
    """The result of the operation."""


# The status of a `LakeTable`: its figures, locks and log, and what is automatic on it.


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


class AutoCompactionWait(StrEnum):
    """What automatic compaction waits for, in one word, as metrics say it."""

    NOTHING = "Nothing"  # one is started now
    NOT_DUE = "NotDue"  # nothing is compactible, and no schedule is due
    AT_WORK = "AtWork"
    AFTER_FAILURE = "AfterFailure"
    INTERVAL = "MinInterval"
    WINDOW = "MaintenanceWindow"
    SLOTS = "AutomaticSlots"  # as many automatic jobs run as may
    REFUSED = "Refused"  # it cannot be planned, or not be created


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
    location: str | None = None
    """Where the table is: what its catalog names, if `spec.catalog` has one."""
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


ResourceStatus = OperationStatus | TableStatus
