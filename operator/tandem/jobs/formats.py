"""A job's input: the persisted formats that the engine writes for Spark. What a job answers is in
`tandem.jobs.results`.

All of them live below `_tandem/operations/<operation id>/attempts/<n>/` in the table's store,
are written once, carry `formatVersion`, and are refused as a whole when they are truncated, of
another version or of another attempt. Row-level results (`matches`) are Arrow IPC files, because
they can be large; everything else is JSON.

    job.json               JobSpec: written by the engine before the job starts
    progress.json          JobProgress: overwritten by the driver, for people to look at
    rounds/<k>/request.json    RoundRequest k >= 1 of a job with rounds (round 0 is in job.json)
    rounds/<k>/result.json     JobResult of round k: written last, by put-if-absent
    rounds/<k>/failure.json    JobFailure: why there is no result, by put-if-absent
    rounds/<k>/<name>-<uuid>   what a result refers to (`SideFileRef`): matches, a row map, a source
    rounds/<k>/work-<uuid>.json, answer-<uuid>   what a driver gives its tasks, and gets from them
    rounds/<k>/counters/<n>    how far task n is: its count is the length of the object
    done.json              written by the engine: a driver that serves rounds may end

A driver that is started twice, or restarted, writes its data files under other names and
loses the race for `result.json`; the engine reads only what the winner lists.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from tandem.spec.fields import Granularity

SOURCE_IDS = ("__tandem_source_1", "__tandem_source_2")
"""Columns of the identity of a source row: two hashes of its content."""
SOURCE_SCHEMA = b"tandem.source.schema"
SOURCE_IS_WHOLE = b"tandem.source.whole"
"""Schema metadata of a copy of a source (`JobResult.source`)."""


class Format(BaseModel):
    """Base of all persisted formats: camelCase on disk, closed, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    format_version: Literal[1] = 1


class JobKind(StrEnum):
    REWRITE = "Rewrite"
    STATEMENT = "Statement"
    INGEST = "Ingest"
    MERGE = "Merge"
    STITCH = "Stitch"
    LOG_MERGE = "LogMerge"
    UPSERT = "Upsert"
    REPLACE = "Replace"


def _without_unset(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """The content without those of these fields that are null."""
    return {key: value for key, value in content.items() if key not in names or value is not None}


_ORIGIN: Final = ("base_row_id", "baseRowId", "row_commit_version", "rowCommitVersion")


class InputFile(Format):
    """A data file as it was read at the plan's read version.

    `logged_path` is what the log says; `rows` counts physical rows (deleted ones too);
    `size` in bytes; `dv` is the Base64 of the portable 64-bit roaring bitmap (magic not
    included) of rows deleted at the read version, "" for none; `partition_values` as logged.
    `base_row_id` and `row_commit_version` are what the log says of its rows' ids and versions, for
    a table that tracks rows; else they are not written down: earlier drivers know no such fields.
    """

    logged_path: str
    size: int
    rows: int
    dv: str = ""
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    base_row_id: int | None = None
    row_commit_version: int | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unset(written(self), *_ORIGIN)


class SideFileRef(Format):
    """A file that belongs to a result: its path, size in bytes and SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class JobBin(Format):
    """Inputs (indexes into `RewriteJob.inputs`, in segment order) that are rewritten together
    into one or more files of one partition and one output segment."""

    inputs: tuple[int, ...]
    partition_values: dict[str, str | None] = Field(default_factory=dict)
    run: int = 0


class IdentityValues(Format):
    """The values that new rows get in an identity column: from `first` on, by `step`. Those up to
    `reserved` are committed as given; none are, if that is the value before `first`."""

    first: int
    step: int
    reserved: int


class JobTable(Format):
    """What a job must know of the table, so that it need not read the log.

    `schema_string` and `configuration` are the log's; `location` is the canonical root;
    `storage_options` hold nothing secret (credentials come from the environment);
    `allowed_prefixes` bound absolute paths. `bloom_filters` are the columns of which new files get
    filters, by logical names as the schema spells them, and the share of absent values that a
    filter takes for present. `row_ids` are the columns in which new files keep the ids and versions
    of the table's rows that they have, if there may be any and the table tracks them.
    `repeats_partitions`: new files have the partition columns, too. `identity` are the columns of
    which new rows get values of the table, by logical name. None of the four is written down if it
    is not set: earlier drivers know no such field.
    """

    location: str
    version: int
    table_id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    storage_options: dict[str, str] = Field(default_factory=dict)
    allowed_prefixes: tuple[str, ...] = ()
    bloom_filters: dict[str, float] = Field(default_factory=dict)
    row_ids: tuple[str, str] | None = None
    repeats_partitions: bool = False
    identity: dict[str, IdentityValues] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = _without_unset(written(self), "row_ids", "rowIds")
        if not self.identity:
            del content["identity"]
        if not self.bloom_filters:
            del content["bloomFilters" if "bloomFilters" in content else "bloom_filters"]
        if not self.repeats_partitions:
            content.pop("repeatsPartitions", None)
            content.pop("repeats_partitions", None)
        return content

    def with_columns(self, names: Collection[str]) -> JobTable:
        """The table with these of its columns alone, by logical name."""
        schema = json.loads(self.schema_string)
        schema["fields"] = [field for field in schema["fields"] if field["name"] in names]
        filters = {name: rate for name, rate in self.bloom_filters.items() if name in names}
        update = {"schema_string": json.dumps(schema), "bloom_filters": filters, "row_ids": None}
        return self.model_copy(update=update)

    @property
    def column_of_ids(self) -> tuple[str, ...]:
        """The column of row ids; empty if there is none."""
        return (self.row_ids or ())[:1]


class JobLayout(Format):
    """The order of rows within each bin of a rewrite: `columns` are logical names, as spelt in
    the schema; none of a partition, none nested. Those of `Clustering` are references
    (`delta.clustering`), perhaps of nested fields."""

    strategy: Literal["Sort", "ZOrder", "Clustering"]
    columns: Annotated[tuple[str, ...], Field(min_length=1)]


class TimeBorders(Format):
    """Rows of different chunks of `granularity` go to different files, by their values of
    `column` (its logical name); rows without one go to files of their own, too."""

    column: str
    granularity: Granularity


@dataclass(frozen=True, slots=True)
class LogReads:
    """A version of a log, and the logged paths of its blocks that are read."""

    version: int
    blocks: frozenset[str]


class Job(Format):
    """Base of the kinds of jobs: what the engine must know of every kind.

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
    def log_reads(self) -> LogReads | None:
        """What it reads of the log of a merge-on-read table, beside the table."""
        return None

    @property
    def tasks(self) -> int:
        """Into how many parts its work falls; 0 where Spark decides."""
        return 0

    @property
    def needs_spark(self) -> bool:
        """Whether there is anything for Spark to do."""
        return True

    @property
    def serves_rounds(self) -> bool:
        """Whether its driver stays until the engine ends the job."""
        return False


class FileJob(Job):
    """A job that reads data files of the table."""

    inputs: tuple[InputFile, ...]

    @property
    def reads(self) -> tuple[InputFile, ...]:
        return self.inputs


class SourceJob(Job):
    """A job that reads a source beside the table.

    `source_format` is one of Parquet, Csv, Json, Delta; `source_options` are Spark's reader
    options on the allow-list; `source_version` pins a Delta source.
    """

    source_format: str
    source_location: str
    source_options: dict[str, str] = Field(default_factory=dict)
    source_version: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source_location,)

    @property
    def source_field(self) -> str:
        """The field of the resource that describes the source."""
        return "spec.source"


class RewriteJob(FileJob):
    """Rewrite each bin, in order or in that of `layout`, without the rows deleted at the read
    version.

    `target_file_size` is in bytes, 0 for one file per bin. `codec` is a Parquet codec, "" for
    the table's; `codec_level` is one of its levels. With `take`, only the rows are taken whose time
    lies in one of these intervals (milliseconds since 1970 in UTC, the end not included): the row
    map counts the others as dead, and they stay in the inputs. It goes with `borders` only.
    `reencode`: copy no row groups, but decode and encode every row. `min_row_group_rows`: how many
    rows the row groups of a file have, on average, if they are copied; null for the default.
    `edits`: the driver serves rounds of edits until the commit. None of the five is written down if
    it is not set: earlier drivers know no such fields.
    """

    app: ClassVar[str] = "rewrite"
    kind: Literal[JobKind.REWRITE] = JobKind.REWRITE
    bins: tuple[JobBin, ...]
    target_file_size: int
    codec: str = ""
    codec_level: int | None = None
    layout: JobLayout | None = None
    borders: TimeBorders | None = None
    take: tuple[tuple[int, int], ...] | None = None
    reencode: Literal[True] | None = None
    min_row_group_rows: int | None = None
    edits: Literal[True] | None = None

    @property
    def serves_rounds(self) -> bool:
        return bool(self.edits)

    @property
    def tasks(self) -> int:
        """A bin that keeps its order is a task."""
        return len(self.bins) if self.layout is None else 0

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unset = ("borders", "take", "reencode", "min_row_group_rows", "minRowGroupRows", "edits")
        return _without_unset(written(self), *unset)


class StatementJob(FileJob):
    """Evaluate a canonical statement on the files of round 0, then serve rounds until done.

    `where` and each `set` value are canonical Spark SQL generated from the typed tree by
    `tandem.statements`, never text as typed. `set` is empty for a delete. Keys of `set` are
    logical column names.

    `set_only`: the files of new rows hold the columns of `set` and of partitions alone. Such a file
    is only ever read by edits: it is not a data file of the table. Not written down unless it is
    so: earlier drivers know no such field.
    """

    app: ClassVar[str] = "statement"
    kind: Literal[JobKind.STATEMENT] = JobKind.STATEMENT
    where: str
    set: dict[str, str] = Field(default_factory=dict)
    target_file_size: int
    set_only: Literal[True] | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unset(written(self), "set_only", "setOnly")

    @property
    def serves_rounds(self) -> bool:
        return True


LOAD_TASKS: Final = 8
"""Concurrent tasks that read a source and write its rows; each writes one file or more, cut at the
target size."""


class IngestJob(SourceJob):
    """Append the rows of a source as new files."""

    app: ClassVar[str] = "ingest"
    kind: Literal[JobKind.INGEST] = JobKind.INGEST
    target_file_size: int
    borders: TimeBorders | None = None

    @property
    def tasks(self) -> int:
        return LOAD_TASKS

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unset(written(self), "borders")


class RowScope(Format):
    """The rows of a replace: in one of `intervals` of `time_column` (milliseconds since 1970 in
    UTC, the end not included, null for an open side), and in one of `partitions` (partition column
    → value as text). Without intervals, or without partitions, there is no such condition."""

    time_column: str = ""
    intervals: tuple[tuple[int | None, int | None], ...] = ()
    partitions: tuple[dict[str, str | None], ...] = ()


class ReplaceJob(SourceJob):
    """Write the rows of a source as new files, for a replace, and find out which rows of `inputs`
    are in the intervals of `scope`: of these only the time column is read. With neither there is
    nothing to run. Rows of the source outside of `scope` fail the job, or are left out with
    `drops_outside`.

    With intervals, its driver then serves rounds on further files until done. `inputs` are not
    written down if there are none: earlier drivers know no such field.
    """

    app: ClassVar[str] = "ingest"
    kind: Literal[JobKind.REPLACE] = JobKind.REPLACE
    source_format: str = ""
    source_location: str = ""
    target_file_size: int
    scope: RowScope
    drops_outside: bool = False
    borders: TimeBorders | None = None
    inputs: tuple[InputFile, ...] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = _without_unset(written(self), "borders")
        if not self.inputs:
            del content["inputs"]
        return content

    @property
    def reads(self) -> tuple[InputFile, ...]:
        return self.inputs

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source_location,) if self.has_source else ()

    @property
    def has_source(self) -> bool:
        return bool(self.source_format)

    @property
    def needs_spark(self) -> bool:
        return self.has_source or bool(self.inputs)

    @property
    def serves_rounds(self) -> bool:
        """Whether its driver stays until the engine ends the job."""
        return self.needs_spark and bool(self.scope.intervals)


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


class MergeJob(SourceJob, FileJob):
    """Merge a source into the files of round 0, then serve rounds until done: each is the whole
    merge again, at a later version.

    `on` and the clauses are as typed: what their names mean is known when the source's columns
    are, so the driver parses them (`tandem.statements.merge`) and hands Spark canonical text
    only. Which files of the source, or which version, all rounds and attempts read is pinned by
    the first driver that reads it (`tandem.spark.sources.readers`).
    """

    app: ClassVar[str] = "merge"
    kind: Literal[JobKind.MERGE] = JobKind.MERGE
    on: str
    clauses: tuple[MergeClause, ...]
    target_file_size: int

    @property
    def source_field(self) -> str:
        return "spec.merge.source"

    @property
    def serves_rounds(self) -> bool:
        return True


class StitchRun(Format):
    """Consecutive blocks of a log that are stitched together: `inputs` are indexes into
    `StitchJob.inputs`, `first` and `last` the instants of each."""

    inputs: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]


class StitchJob(FileJob):
    """Stitch each run of blocks of a log; its table is the log.

    `mark` is what the log recorded at the read version; deletes up to the instant `expired` are
    dropped once they are merged. `max_block_bytes` is the size at which a block is split.
    """

    app: ClassVar[str] = "stitch"
    kind: Literal[JobKind.STITCH] = JobKind.STITCH
    runs: tuple[StitchRun, ...]
    keys: tuple[str, ...]
    ordering_column: str = ""
    mark: int
    expired: int
    max_block_bytes: int

    @property
    def tasks(self) -> int:
        return len(self.runs)


class LogBlock(Format):
    """A block of a log, with its instants. `logged_path` and `partition_values` as in the log."""

    logged_path: str
    first: int
    last: int
    size: int
    partition_values: dict[str, str | None] = Field(default_factory=dict)


class LogMergeJob(FileJob):
    """Merge blocks of a log into its base table: which rows of `inputs` they hide, and the rows
    that they show.

    `inputs` are the files of the base table that can have their keys; `mark` is that of the log
    as of the read version. `log_id` is the log's, and `log_version` the instant up to which it is
    merged; `log_partition_columns` is how it is partitioned.
    """

    app: ClassVar[str] = "log_merge"
    kind: Literal[JobKind.LOG_MERGE] = JobKind.LOG_MERGE
    blocks: tuple[LogBlock, ...]
    log_id: str = ""
    log_version: int
    log_partition_columns: tuple[str, ...] = ()
    keys: tuple[str, ...]
    ordering_column: str = ""
    mark: int
    target_file_size: int

    @property
    def log_reads(self) -> LogReads:
        return LogReads(self.log_version, frozenset(block.logged_path for block in self.blocks))

    @property
    def tasks(self) -> int:
        return max(1, len(self.inputs))


class UpsertJob(SourceJob):
    """Write the rows of a source as blocks of a log, one a key; its table is the log.

    `field` is where the source stands in the resource, for errors. `blocks` is how the blocks are
    written: the columns of the base table at the version that was planned on, with the log's own
    two. With `deletes`, the source has the keys, and the ordering column if there is one, and each
    row deletes its key. `max_block_bytes` is the size at which a block is split.
    `partitions` are the partition columns of the base table: values that they cannot hold are
    refused. It is not written down if there are none: earlier drivers know no such field.
    """

    app: ClassVar[str] = "upsert"
    kind: Literal[JobKind.UPSERT] = JobKind.UPSERT
    field: str
    blocks: JobTable
    keys: tuple[str, ...]
    ordering_column: str = ""
    deletes: bool = False
    max_block_bytes: int
    partitions: tuple[str, ...] = ()

    @property
    def source_field(self) -> str:
        return self.field

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        if not self.partitions:
            del content["partitions"]
        return content


AnyJob = Annotated[
    RewriteJob
    | StatementJob
    | IngestJob
    | MergeJob
    | StitchJob
    | LogMergeJob
    | UpsertJob
    | ReplaceJob,
    Field(discriminator="kind"),
]
APPS: Final = frozenset(job.app for job in get_args(get_args(AnyJob)[0]))
"""The applications of `spark_apps/` that do a job of a table."""
INDEX_SERVER_APP: Final = "index_server"
"""The application that serves an index."""


class JobSpec(Format):
    """`job.json`. Data files go below `data_prefix` (a folder of this attempt alone)."""

    operation_id: str
    attempt: int
    table: JobTable
    data_prefix: str
    control_prefix: str
    job: AnyJob

    @property
    def set_only(self) -> bool:
        """Whether its files of new rows hold parts of rows, as a statement may ask."""
        return isinstance(self.job, StatementJob) and self.job.set_only is True

    @property
    def new_rows_table(self) -> JobTable:
        """The table, with the columns that files of new rows hold."""
        if not (isinstance(self.job, StatementJob) and self.job.set_only):
            return self.table
        return self.table.with_columns({*self.job.set, *self.table.partition_columns})


class EditRound(Format):
    """Make a file of each input of the request again, without the rows of its `dv`, instead of
    evaluating its rows.

    `columns` are the physical names of those that may have new values, for each input; None for
    any. `parts`: the range of rows that a file holds of its input, if others hold the rest.
    `values` are the files that hold new values, and `new` says where: an Arrow IPC file with
    `edit: int32` (index into the request's inputs), `values: int32` (into `values`),
    `position: int64` in the input, and `row: int64` of the other file. `changes`: for each input,
    what its file of the change data feed says of the rows, None for an edit; None for edits alone.
    It is not written down then: earlier drivers know no such field.
    """

    columns: tuple[tuple[str, ...] | None, ...]
    parts: tuple[tuple[int, int] | None, ...]
    values: tuple[InputFile, ...] = ()
    new: SideFileRef | None = None
    changes: tuple[str | None, ...] | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_unset(written(self), "changes")


class RoundRequest(Format):
    """Evaluate these rows, at this version's schema and no others.

    For each input, `dv` holds the rows that must *not* be evaluated (deleted, or already
    answered): the complement of what the engine asks for. A replace asks for all rows of a file,
    since the answer holds for ever then. `part`: these are not all rows of the
    table, so a merge cannot tell which source rows match none, and inserts nothing. It is not
    written down unless it is so: a driver that began before an upgrade knows no such field. Nor
    are `edits`.
    """

    operation_id: str
    attempt: int
    round: int
    table_version: int
    inputs: tuple[InputFile, ...]
    part: bool = False
    edits: EditRound | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = written(self)
        if not self.part:
            del content["part"]
        return _without_unset(content, "edits")
