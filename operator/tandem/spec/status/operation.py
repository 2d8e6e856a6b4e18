"""The status of an operation: its plan, progress and result."""

from __future__ import annotations

from tandem.spec.status.conditions import Condition, Phase, StatusModel


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
    bytes_in: int | None = None
    """Size of the replaced blocks."""
    bytes_out: int | None = None
    """Size of the new blocks."""
    instants: tuple[str, ...] | None = None
    """The intervals of instants of the replaced blocks, one for each run: `1-3`; or the instant of
    the appended ones: `4`."""
    replaced: RowsReplaced | None = None
    """What a replace removed, and what it left."""
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
    """How often it yielded to other writers; absent if it never did."""
    result: OperationResult | None = None
    """The result of the operation."""
