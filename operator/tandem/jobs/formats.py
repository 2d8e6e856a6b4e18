"""A job's input and its results: the persisted formats between engine and Spark.

All of them live below `_tandem/operations/<operation id>/attempts/<n>/` in the table's store,
are written once, carry `formatVersion`, and are refused as a whole when they are truncated, of
another version or of another attempt. Row-level results (`matches`) are Arrow IPC files, because
they can be large; everything else is JSON.

    job.json               JobSpec: written by the engine before the job starts
    progress.json          JobProgress: overwritten by the driver, for people to look at
    rounds/<k>/request.json    RoundRequest k >= 1 of a statement job (round 0 is in job.json)
    rounds/<k>/result.json     JobResult of round k: written last, by put-if-absent
    done.json              written by the engine: the driver of a statement job may end

A driver that is started twice, or restarted, writes its data files under other names and
loses the race for `result.json`; the engine reads only what the winner lists.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

FORMAT_VERSION = 1

SOURCE_IDS = ("__tandem_source_1", "__tandem_source_2")
"""Columns of the identity of a source row: two hashes of its content."""
SOURCE_SCHEMA = b"tandem.source.schema"
SOURCE_IS_WHOLE = b"tandem.source.whole"
"""Schema metadata of a copy of a source (`JobResult.source`)."""


class Format(BaseModel):
    """Base of all persisted formats: camelCase on disk, closed, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    format_version: Literal[1] = 1


class JobKind(StrEnum):
    REWRITE = "Rewrite"
    STATEMENT = "Statement"
    INGEST = "Ingest"
    MERGE = "Merge"


class InputFile(Format):
    """A data file as it was read at the plan's read version.

    `logged_path` is what the log says; `rows` counts physical rows (deleted ones too);
    `size` in bytes; `dv` is the Base64 of the portable 64-bit roaring bitmap (magic not
    included) of rows deleted at the read version, "" for none; `partition_values` as logged.
    """

    logged_path: str
    size: int
    rows: int
    dv: str = ""
    partition_values: dict[str, str | None] = Field(default_factory=dict)


class JobBin(Format):
    """Inputs (indexes into `RewriteJob.inputs`, in segment order) that are rewritten together
    into one or more files of one partition and one output segment."""

    inputs: tuple[int, ...]
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    run: int = 0


class JobTable(Format):
    """What a job must know of the table, so that it need not read the log.

    `schema_string` and `configuration` are the log's; `location` is the canonical root;
    `storage_options` hold nothing secret (credentials come from the environment);
    `allowed_prefixes` bound absolute paths.
    """

    location: str
    version: int
    table_id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    storage_options: dict[str, str] = Field(default_factory=dict)
    allowed_prefixes: tuple[str, ...] = ()


class JobLayout(Format):
    """The order of rows within each bin of a rewrite: `columns` are logical names, as spelt in
    the schema; none of a partition, none nested."""

    strategy: Literal["Sort", "ZOrder"]
    columns: Annotated[tuple[str, ...], Field(min_length=1)]


class Job(Format):
    """Base of the kinds of jobs: what the engine must know of one, whichever it is.

    `app` is its application in `spark_apps/`.
    """

    app: ClassVar[str]

    @property
    def reads(self) -> tuple[InputFile, ...]:
        """The table's files that it reads: they must stay while it runs."""
        return ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Locations beside the table that it reads."""
        return ()

    @property
    def tasks(self) -> int:
        """Into how many parts its work falls; 0 where Spark decides."""
        return 0


class RewriteJob(Job):
    """Re-encode each bin, in order or in that of `layout`, without the rows deleted at the read
    version.

    `target_file_size` is in bytes, 0 for one file per bin. `codec` is a Parquet codec, "" for
    the table's; `codec_level` is one of its levels.
    """

    app: ClassVar[str] = "rewrite"
    kind: Literal[JobKind.REWRITE] = JobKind.REWRITE
    inputs: tuple[InputFile, ...]
    bins: tuple[JobBin, ...]
    target_file_size: int
    codec: str = ""
    codec_level: int | None = None
    layout: JobLayout | None = None

    @property
    def reads(self) -> tuple[InputFile, ...]:
        return self.inputs

    @property
    def tasks(self) -> int:
        """A bin that keeps its order is a task."""
        return len(self.bins) if self.layout is None else 0


class StatementJob(Job):
    """Evaluate a canonical statement on the files of round 0, then serve rounds until done.

    `where` and each `set` value are canonical Spark SQL generated from the typed tree by
    `tandem.statements`, never text as typed. `set` is empty for a delete. Keys of `set` are
    logical column names.
    """

    app: ClassVar[str] = "statement"
    kind: Literal[JobKind.STATEMENT] = JobKind.STATEMENT
    where: str
    set: dict[str, str] = Field(default_factory=dict)
    inputs: tuple[InputFile, ...]
    target_file_size: int

    @property
    def reads(self) -> tuple[InputFile, ...]:
        return self.inputs


class IngestJob(Job):
    """Append the rows of a source as new files.

    `source_format` is one of Parquet, Csv, Json, Delta; `source_options` are Spark's reader
    options on the allow-list; `source_version` pins a Delta source.
    """

    app: ClassVar[str] = "ingest"
    kind: Literal[JobKind.INGEST] = JobKind.INGEST
    source_format: str
    source_location: str
    source_options: dict[str, str] = Field(default_factory=dict)
    source_version: int | None = None
    target_file_size: int

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source_location,)


class MergeClause(Format):
    """One clause of a merge: those of a `when` apply in their order, the first whose `where` is
    true. `set` has expressions by column, for an update or an insert; with `all` it is empty,
    and every column of the table gets the source's column of that name. `field` is where the
    clause stands in the resource, for errors."""

    when: Literal["Matched", "NotMatched", "NotMatchedBySource"]
    action: Literal["Delete", "Update", "Insert"]
    where: str | None = None
    set: dict[str, str] = Field(default_factory=dict)
    all: bool = False
    field: str = ""


class MergeJob(Job):
    """Merge a source into the files of round 0, then serve rounds until done: each is the whole
    merge again, at a later version.

    `on` and the clauses are as typed: what their names mean is known when the source's columns
    are, so the driver parses them (`tandem.statements.merge`) and hands Spark canonical text
    only. The source is as in `IngestJob`; which files of it, or which version, all rounds and
    attempts read is pinned by the first driver that reads it (`tandem.spark.sources.source_pin`).
    """

    app: ClassVar[str] = "merge"
    kind: Literal[JobKind.MERGE] = JobKind.MERGE
    source_format: str
    source_location: str
    source_options: dict[str, str] = Field(default_factory=dict)
    source_version: int | None = None
    on: str
    clauses: tuple[MergeClause, ...]
    inputs: tuple[InputFile, ...]
    target_file_size: int

    @property
    def reads(self) -> tuple[InputFile, ...]:
        return self.inputs

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source_location,)


AnyJob = Annotated[RewriteJob | StatementJob | IngestJob | MergeJob, Field(discriminator="kind")]
APPS: Final = frozenset(job.app for job in get_args(get_args(AnyJob)[0]))
"""The applications of `spark_apps/`."""


class JobSpec(Format):
    """`job.json`. Data files go below `data_prefix` (a folder of this attempt alone)."""

    operation_id: str
    attempt: int
    table: JobTable
    data_prefix: str
    control_prefix: str
    job: AnyJob


class RoundRequest(Format):
    """Evaluate these rows, at this version's schema and no others.

    For each input, `dv` holds the rows that must *not* be evaluated (deleted, or already
    answered): the complement of what the engine asks for. `part`: these are not all rows of the
    table, so a merge cannot tell which source rows match none, and inserts nothing. It is not
    written down unless it is so: a driver that began before an upgrade knows no such field.
    """

    operation_id: str
    attempt: int
    round: int
    table_version: int
    inputs: tuple[InputFile, ...]
    part: bool = False

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        if not self.part:
            del content["part"]
        return content


class OutputFile(Format):
    """A data file that a job wrote. `path` is relative to the root and decoded; `rows` are
    physical; `stats` is Delta's JSON text (tight); `run` is the bin's run, `modified_ms` Unix
    milliseconds. `round` says which round of a statement wrote it. `fresh`: its rows are not in
    `matches`, since a merge inserted them."""

    path: str
    size: int
    rows: int
    modified_ms: int
    stats: str
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    run: int = 0
    round: int = 0
    fresh: bool = False


class SidecarRef(Format):
    """A file that belongs to a result: its path, size in bytes and SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class JobResult(Format):
    """`rounds/<k>/result.json`: the manifest.

    `row_map` (rewrites) is a serialized `tandem.rowmap.rowmap.RowMap` whose inputs and
    outputs are `logged_path`s resp. `path`s. `matches` (statements) is an Arrow IPC file with
    columns `input: int32` (index into the round's inputs), `position: int64`,
    `output: int32` (index into `outputs`, null for deletes), `output_position: int64`,
    sorted by (input, position). A merge lists its `fresh` outputs after all others, and may
    have both deletes and updates; with columns `source_1` and `source_2: int64`, two hashes of
    the source row that matched (null for none), it tells of rows that matched and stay, too:
    their `output` is -2. `rows_read` counts live rows read, `rows_written` rows in
    outputs. `source` is an Arrow IPC file with the columns of a merge's source that the merge
    reads: all rows of a small one, with `SOURCE_IDS` where matches are recorded, else one row of
    least and one of greatest values. Its schema's metadata has the source's schema as Spark's JSON
    (`SOURCE_SCHEMA`) and whether it is whole (`SOURCE_IS_WHOLE`: `true`). It is written only if
    there is one: an engine of an earlier version knows no such field.
    """

    operation_id: str
    attempt: int
    round: int = 0
    outputs: tuple[OutputFile, ...] = ()
    row_map: SidecarRef | None = None
    matches: SidecarRef | None = None
    source: SidecarRef | None = None
    rows_read: int = 0
    rows_written: int = 0
    rows_matched: int = 0

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        if self.source is None:
            del content["source"]
        return content


class JobFailure(Format):
    """`rounds/<k>/failure.json`: an error the driver could still describe.

    `reason` is a `tandem.errors.Reason`; `transient` says whether another attempt may help.
    """

    operation_id: str
    attempt: int
    round: int = 0
    reason: str
    message: str
    transient: bool = False


class JobProgress(Format):
    """`progress.json`."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    stage: str = ""
