"""`TableCompaction`: rewrite many small segments as few larger ones. And `compaction.chunks` of a
`LakeTable`: when a time chunk is laid out as one, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tandem.spec.common import (
    LockMode,
    Mode,
    Operation,
    RewritingSpec,
    exclusive_refused,
    lock_mode_lines,
)
from tandem.spec.fields import (
    Bytes,
    Granularity,
    IncompatibleFields,
    Milliseconds,
    Model,
    SegmentOrChunk,
    SqlCondition,
    StrictBool,
    StrictInt,
    Text,
    UniqueSegmentsOrChunks,
    cel,
    exactly_one,
    misfit,
)
from tandem.spec.index import BloomFilters

Thresholds = Annotated[
    tuple[Annotated[StrictInt, Field(ge=2, le=10_000)], ...], Field(min_length=1, max_length=16)
]

DEFAULT_TARGET_FILE_SIZE = 128 * 2**20
_MIB, _GIB = 2**20, 2**30
DEFAULT_BYTES_PER_COMMIT = 16 * _GIB


@cel(
    "type(self) == int ? self >= 1048576 : !isQuantity(self) "
    "|| quantity(self).compareTo(quantity('1Mi')) >= 0",
    "must be at least 1Mi",
)
def _at_least_a_mebibyte(value: int) -> int:
    """A number of bytes that was meant as one of Mi or Gi would make a commit of each bin."""
    if value < _MIB:
        raise ValueError("must be at least 1Mi")
    return value


BytesPerCommit = Annotated[Bytes, AfterValidator(_at_least_a_mebibyte)]
"""A size of at least 1Mi."""
RowGroupRows = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
"""A number of rows of a row group."""


class CompactionType(StrEnum):
    MINOR = "Minor"
    SEMI_MAJOR = "SemiMajor"
    MAJOR = "Major"
    CUSTOM = "Custom"
    LOG_MERGE = "LogMerge"


class Minor(Model):
    thresholds: Thresholds = (4, 3)
    """How many consecutive segments of each level make one of the next: with (4, 3), four loads
    become `0.1`, and three such become `0.2`."""
    preserve: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    """How many of the newest segments are left alone."""
    max_segment_size: Bytes | None = None
    """Segments of at least this size are left alone; no limit by default."""
    segments: UniqueSegmentsOrChunks | None = None
    """Consider only these segments; all by default. Automatic compaction sets the segments that
    it has chosen."""
    adjacent_only: StrictBool | None = None
    """Merge only adjacent loads, between which no other live segment of the chunk lies. So each
    segment holds a whole range of loads, and a loader of single segments can show an older
    generation until it has the new one. Off by default; not with `segments`. See
    docs/timeline.md."""

    @misfit(
        "!has(self.segments) || !has(self.adjacentOnly) || !self.adjacentOnly",
        "adjacentOnly does not go with segments",
        field=".adjacentOnly",
        expected="one of them",
        remedy="Remove segments to let the plan choose adjacent ones, or remove adjacentOnly",
    )
    def _named_segments_need_not_be_adjacent(self) -> str:
        misfits = self.adjacent_only and self.segments is not None
        return f"adjacentOnly with segments {', '.join(self.segments or ())}" if misfits else ""


class Spanning(StrEnum):
    TOGETHER = "Together"
    CUT = "Cut"


class SemiMajor(Model):
    chunks: Annotated[tuple[SegmentOrChunk, ...], Field(max_length=10_000)] | None = None
    """Time chunks (`2013-02`) to lay out as one; all by default. Everything in them that was
    committed by the read version."""
    granularity: Granularity | None = None
    """Output files end at the borders of chunks of this length. By default they may span chunks
    where an input does; with `Cut`, it is the table's. Needs a table with a time column."""
    spanning: Spanning | None = None
    """What is done with files that span a chunk and others. `Together`, the default, rewrites such
    a file as a whole, together with what it links. `Cut` takes only its rows of the chunks; the
    others stay where they are: the file gets a deletion vector, or, without, is rewritten. Needs a
    table with a time column."""

    @misfit(
        "!has(self.granularity) || self.granularity != 'All'",
        "granularity must be shorter than All: its only chunk has no borders",
        field=".granularity",
        expected="Hour, Day, Week, Month, Quarter or Year",
        remedy="Remove granularity, or set a shorter one",
    )
    def _has_borders(self) -> str:
        return "granularity All" if self.granularity is Granularity.ALL else ""

    @property
    def divides(self) -> bool:
        """Whether rows are divided by time."""
        return self.granularity is not None or self.spanning is Spanning.CUT


class Major(Model):
    target_segment_size: Bytes = _GIB
    """Consecutive segments are merged up to this size."""


class Custom(Model):
    segments: UniqueSegmentsOrChunks | None = None
    """Names of the segments, as `tandem table segments` shows them, in quotes: `"0.1"`."""
    where: SqlCondition | None = None
    """A condition that selects whole files by their statistics and partition values."""

    _one_selection = exactly_one("segments", "where")


class LayoutStrategy(StrEnum):
    BIN_PACK = "BinPack"
    SORT = "Sort"
    Z_ORDER = "ZOrder"
    CLUSTERING = "Clustering"

    @property
    def takes_columns(self) -> bool:
        """Whether the resource names the columns of the order."""
        return self in (LayoutStrategy.SORT, LayoutStrategy.Z_ORDER)


class Layout(Model):
    strategy: LayoutStrategy = LayoutStrategy.BIN_PACK
    """`BinPack` keeps the order of rows. `Sort` orders them by the columns, the first one first.
    `ZOrder` clusters rows with similar values in all of the columns, for filters on any of
    them. `Clustering` does so by the clustering columns of the table (`CLUSTER BY`), with the tags
    of Delta's `OPTIMIZE`, and leaves alone what that does, such as files in order of other
    columns."""
    columns: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    """Columns to order by: neither partition columns nor nested ones. With `ZOrder` two to
    four are best."""

    @misfit(
        "self.strategy in ['Sort', 'ZOrder'] || !has(self.columns) || size(self.columns) == 0",
        "columns only goes with the strategies Sort and ZOrder",
        field=".columns",
        expected="no columns, or another strategy",
        remedy="Add strategy: Sort or strategy: ZOrder, or remove columns",
    )
    def _no_columns_to_bin_pack(self) -> str:
        misfits = not self.strategy.takes_columns and self.columns
        return f"columns {', '.join(self.columns)} with strategy {self.strategy}" if misfits else ""

    @model_validator(mode="after")
    @cel(
        "!(self.strategy in ['Sort', 'ZOrder']) || (has(self.columns) && size(self.columns) > 0)",
        "strategy Sort needs columns, and so does ZOrder",
        expression="'strategy ' + self.strategy + ' needs columns'",
        field=".columns",
    )
    def _columns_to_order_by(self) -> Layout:
        if self.strategy.takes_columns and not self.columns:
            raise IncompatibleFields(
                f"strategy {self.strategy} needs columns",
                found="no columns",
                expected="the columns to order by, one at least",
                remedy="Add columns: the ones that filters name most",
            )
        return self


class CompactionTemplate(Model):
    """What a compaction does; also the template of a schedule."""

    type: CompactionType
    """`Minor`: runs of consecutive segments by level. `SemiMajor`: whole chunks. `Major`: runs up
    to a size. `Custom`: the given segments. `LogMerge`: moves the records of a merge-on-read
    table's log into the table."""
    minor: Minor | None = None
    """Only with type `Minor`."""
    semi_major: SemiMajor | None = None
    """Only with type `SemiMajor`."""
    major: Major | None = None
    """Only with type `Major`."""
    custom: Custom | None = None
    """Required with type `Custom`, not allowed otherwise."""
    layout: Layout = Layout()
    """The order in which rows are written. With `Sort` and `ZOrder`, all files of a partition and
    chunk are sorted together; files that are already in that order are left alone."""
    target_file_size: Bytes | None = None
    """Target size of output files; by default that of the table's property `delta.targetFileSize`,
    or else 128Mi."""
    skip_offset_from_latest: Milliseconds | None = None
    """Skip chunks that end less than this before the newest one ends; without a time column,
    segments that were loaded less than this before the newest. None by default."""
    max_bytes_per_commit: BytesPerCommit | None = None
    """A compaction that reads more than this is committed in batches of at most this much input, so
    that a failure or a deadline loses one batch; 16Gi by default. What becomes one file, or is
    sorted together, is never divided; nor is a run of `adjacentOnly`, nor a `LogMerge`."""
    min_row_group_rows: RowGroupRows | None = None
    """Row groups of files in which they have at least this many rows on average are copied as
    bytes, where they fit otherwise; smaller ones are encoded. 0 copies those of any size, a number
    that no row group reaches copies none. By default those of 64,000 rows or 4 MiB are copied.
    Rows that are sorted, or divided by time, are always encoded."""

    @model_validator(mode="after")
    @cel(
        "!has(self.minor) || self.type == 'Minor'",
        "minor only goes with type Minor",
        expression="'minor only goes with type Minor, but type is ' + self.type",
        field=".minor",
    )
    @cel(
        "!has(self.semiMajor) || self.type == 'SemiMajor'",
        "semiMajor only goes with type SemiMajor",
        expression="'semiMajor only goes with type SemiMajor, but type is ' + self.type",
        field=".semiMajor",
    )
    @cel(
        "!has(self.major) || self.type == 'Major'",
        "major only goes with type Major",
        expression="'major only goes with type Major, but type is ' + self.type",
        field=".major",
    )
    @cel(
        "!has(self.custom) || self.type == 'Custom'",
        "custom only goes with type Custom",
        expression="'custom only goes with type Custom, but type is ' + self.type",
        field=".custom",
    )
    @cel(
        "self.type != 'Custom' || has(self.custom)",
        "type Custom needs custom.segments or custom.where",
        field=".custom",
    )
    def _block_fits_type(self) -> Self:
        blocks: dict[CompactionType, tuple[str, Model | None]] = {
            CompactionType.MINOR: ("minor", self.minor),
            CompactionType.SEMI_MAJOR: ("semiMajor", self.semi_major),
            CompactionType.MAJOR: ("major", self.major),
            CompactionType.CUSTOM: ("custom", self.custom),
        }
        for type_, (name, block) in blocks.items():
            if block is not None and type_ is not self.type:
                raise IncompatibleFields(
                    f"{name} only goes with type {type_}, but type is {self.type}",
                    found=f"{name} with type {self.type}",
                    expected=f"type {type_}, or no {name}",
                    remedy=f"Set type: {type_}, or remove {name}",
                )
        if self.type is CompactionType.CUSTOM and self.custom is None:
            raise IncompatibleFields(
                "type Custom needs custom.segments or custom.where",
                found="no custom",
                expected="custom with segments, or with where",
                remedy="Name the segments that `tandem table segments` lists, or give a condition",
            )
        return self

    @misfit(
        "!has(self.semiMajor) || (!has(self.semiMajor.granularity) && "
        "(!has(self.semiMajor.spanning) || self.semiMajor.spanning != 'Cut')) || "
        "!has(self.layout) || !has(self.layout.strategy) || self.layout.strategy == 'BinPack'",
        "semiMajor.granularity and spanning: Cut only go with layout strategy BinPack",
        field=".semiMajor",
        expected="strategy BinPack, or neither of them",
        remedy="Divide the chunks first, and sort them by a second compaction",
    )
    def _divided_in_order(self) -> str:
        sorts = self.layout.strategy is not LayoutStrategy.BIN_PACK
        misfits = sorts and self.semi_major is not None and self.semi_major.divides
        return f"strategy {self.layout.strategy}" if misfits else ""

    @misfit(
        "self.type in ['SemiMajor', 'Custom'] || !has(self.layout) || "
        "!has(self.layout.strategy) || self.layout.strategy != 'Clustering'",
        "layout strategy Clustering only goes with the types SemiMajor and Custom",
        field=".layout",
        expected="type SemiMajor or Custom, or another strategy",
        remedy="Set type: SemiMajor",
    )
    def _clusters_what_is_chosen(self) -> str:
        clusters = self.layout.strategy is LayoutStrategy.CLUSTERING
        chosen = self.type in (CompactionType.SEMI_MAJOR, CompactionType.CUSTOM)
        return f"type {self.type}" if clusters and not chosen else ""

    @misfit(
        "!has(self.custom) || !has(self.custom.segments) || !has(self.skipOffsetFromLatest)",
        "skipOffsetFromLatest does not go with custom.segments",
        field=".skipOffsetFromLatest",
        expected="one of them",
        remedy="Remove skipOffsetFromLatest: named segments are compacted at any age",
    )
    def _named_segments_have_any_age(self) -> str:
        named = self.custom is not None and self.custom.segments is not None
        return "both of them" if named and self.skip_offset_from_latest is not None else ""

    @property
    def minor_options(self) -> Minor:
        """`minor`, or its defaults."""
        return self.minor or Minor()

    @property
    def semi_major_options(self) -> SemiMajor:
        """`semiMajor`, or its defaults."""
        return self.semi_major or SemiMajor()

    @property
    def bytes_per_commit(self) -> int:
        """`maxBytesPerCommit`, or its default."""
        return self.max_bytes_per_commit or DEFAULT_BYTES_PER_COMMIT

    @property
    def major_options(self) -> Major:
        """`major`, or its defaults."""
        return self.major or Major()


class LockGranularity(StrEnum):
    SEGMENT = "Segment"
    TIME_CHUNK = "TimeChunk"


class TableCompactionSpec(CompactionTemplate, RewritingSpec):
    lock_granularity: LockGranularity = LockGranularity.SEGMENT
    """`Segment` locks the segments that it compacts. `TimeChunk` locks their time chunks, in which
    no other compaction runs then; without a time column, that is the whole table. A `LogMerge`
    locks the log in either case; with `lockMode: Exclusive` chunks are locked in either case."""

    @model_validator(mode="after")
    @cel(
        "self.type != 'LogMerge' || !has(self.lockMode) || self.lockMode != 'Exclusive'",
        "lockMode Exclusive does not go with type LogMerge",
        field=".lockMode",
    )
    def _log_merge_is_concurrent(self) -> Self:
        if self.type is CompactionType.LOG_MERGE and self.lock_mode is LockMode.EXCLUSIVE:
            raise exclusive_refused("does not go with type LogMerge")
        return self

    def canonical(self) -> dict[str, Any]:
        """With the block of its type filled in, which may be left out, and the default size."""
        blocks: dict[CompactionType, tuple[str, Model]] = {
            CompactionType.MINOR: ("minor", self.minor_options),
            CompactionType.SEMI_MAJOR: ("semiMajor", self.semi_major_options),
            CompactionType.MAJOR: ("major", self.major_options),
        }
        spec = super().canonical()
        if self.target_file_size is None:  # as before it could be left to the table
            spec["targetFileSize"] = DEFAULT_TARGET_FILE_SIZE
        if self.type in blocks:
            name, options = blocks[self.type]
            spec[name] = options.model_dump(by_alias=True, exclude_none=True)
        return spec


class TableCompaction(Operation):
    """Compact a table once, while it is being written."""

    kind_name: ClassVar[str] = "TableCompaction"
    short_name: ClassVar[str] = "tcomp"
    mode: ClassVar[Mode] = Mode.REWRITE
    default_priority: ClassVar[int] = 25
    columns: ClassVar[Mapping[str, str]] = {"Type": ".spec.type"}
    reports: ClassVar[frozenset[str]] = frozenset({"yields", "result.rowsAffected"})
    kind: Literal["TableCompaction"]
    spec: TableCompactionSpec

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The order of rows, how files are divided, and how it locks; what a log merge merges."""
        if spec.get("type") == CompactionType.LOG_MERGE:
            return [("merges", "the log into the table: hides replaced rows, adds a segment")]
        layout, semi_major = spec.get("layout") or {}, spec.get("semiMajor") or {}
        strategy = layout.get("strategy") or "BinPack"
        order = "BinPack: rows keep their order"
        if strategy != "BinPack":
            by = (
                ", ".join(map(str, layout.get("columns") or ())) or "the table's clustering columns"
            )
            order = f"{strategy} by {by}"
        lines = [("layout", order)]
        if semi_major.get("granularity"):
            lines.append(("borders", f"of each {semi_major['granularity']}"))
        if semi_major.get("spanning") == Spanning.CUT.value:
            lines.append(("spanning", "Cut: only rows of the chunks are taken"))
        return [*lines, *lock_mode_lines(spec)]


class ChunkOrder(StrEnum):
    NEWEST_FIRST = "NewestFirst"
    MOST_FRAGMENTED_FIRST = "MostFragmentedFirst"
    OLDEST_FIRST = "OldestFirst"


class MinUncompacted(Model):
    """Any of them is enough."""

    segments: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    """At least this many segments are not compacted."""
    bytes: Bytes | None = None
    """At least this many bytes are not compacted."""
    percent: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    """At least this percentage of the chunk's bytes is not compacted."""

    @misfit(
        "has(self.segments) || has(self.bytes) || has(self.percent)",
        "must have segments, bytes or percent",
        expected="one of them, at least",
        remedy="Add one, or remove minUncompacted for the defaults",
    )
    def _has_one(self) -> str:
        given = (self.segments, self.bytes, self.percent)
        return "none of them" if all(each is None for each in given) else ""


_LEAST = MinUncompacted(segments=4, bytes=64 * _MIB, percent=5)


class AutomaticChunks(Model):
    layout: Layout = Layout()
    """The order in which the rows of a chunk are written."""
    target_file_size: Bytes | None = None
    """Target size of output files; by default that of the table's property `delta.targetFileSize`,
    or else 128Mi."""
    order: ChunkOrder = ChunkOrder.NEWEST_FIRST
    """Which chunks go first: the newest, the oldest, or those with the most uncompacted
    segments."""
    min_uncompacted: MinUncompacted | None = None
    """How much of a chunk must be uncompacted before it is due; any one of those given is enough.
    By default 4 segments, 64Mi or 5 percent. Of a chunk that was laid out before, that is what came
    later, or has many deleted rows."""
    max_bytes: Bytes = 64 * _GIB
    """How much one compaction reads: several chunks together, or a single larger one."""
    parallel: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    """How many of these compactions run at once, on different chunks."""

    @misfit(
        "!has(self.layout) || !has(self.layout.strategy) || self.layout.strategy != 'Clustering'",
        "layout strategy Clustering does not go with chunks",
        field=".layout",
        expected="another strategy",
        remedy="Cluster by a schedule, whose template has type: SemiMajor and this layout",
    )
    def _not_clustered(self) -> str:
        clusters = self.layout.strategy is LayoutStrategy.CLUSTERING
        return "strategy Clustering" if clusters else ""

    @property
    def least(self) -> MinUncompacted:
        """`minUncompacted`, or its default."""
        return self.min_uncompacted or _LEAST


# `SegmentRewrite`: rewrite single segments and leave the others alone.


class Codec(StrEnum):
    """Parquet codecs that our writer writes and that our reader, `deltalake` and Spark read as
    they are installed. Brotli is left out: Spark reads it only with a further library."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    UNCOMPRESSED = "uncompressed"


HIGHEST_LEVEL: Final = {Codec.ZSTD: 22, Codec.GZIP: 9, Codec.LZ4: 12}
"""The highest level of those codecs that have levels; the lowest is 1."""


class Recompress(Model):
    codec: Codec
    """A Parquet codec. `lz4` is Parquet's `LZ4_RAW`."""
    level: Annotated[StrictInt, Field(ge=1, le=22)] | None = None
    """Higher is smaller and slower: 1 to 22 for `zstd`, 1 to 9 for `gzip`, 1 to 12 for `lz4`; the
    codec's own default otherwise."""

    @model_validator(mode="after")
    @cel(
        "!has(self.level) || !(self.codec in ['snappy', 'uncompressed'])",
        "level only goes with zstd, gzip and lz4",
        field=".level",
    )
    @cel(
        "!has(self.level) || self.codec != 'gzip' || self.level <= 9",
        "the levels of gzip are 1 to 9",
        field=".level",
    )
    @cel(
        "!has(self.level) || self.codec != 'lz4' || self.level <= 12",
        "the levels of lz4 are 1 to 12",
        field=".level",
    )
    def _level_fits_codec(self) -> Recompress:
        if self.level is None:
            return self
        if self.codec not in HIGHEST_LEVEL:
            raise IncompatibleFields(
                "level only goes with zstd, gzip and lz4",
                found=f"level {self.level} with codec {self.codec}",
                expected="no level, or another codec",
                remedy="Remove level",
            )
        if self.level > HIGHEST_LEVEL[self.codec]:
            highest = HIGHEST_LEVEL[self.codec]
            raise IncompatibleFields(
                f"the levels of {self.codec} are 1 to {highest}",
                found=f"level {self.level}",
                expected=f"1 to {highest}",
                remedy="Lower it, or remove it for the codec's own default",
            )
        return self


class Rewrite(Model):
    purge_deleted: StrictBool = False
    """Leave out the rows that are marked as deleted. By itself it touches only the files that
    have such rows; together with another change all files are rewritten, also without these
    rows."""
    recompress: Recompress | None = None
    """Write the files with another codec."""
    sort_by: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    """Columns to sort the rows of each file by, ascending, nulls last; none by default."""
    add_bloom_filters: BloomFilters | None = None
    """Write the files with bloom filters of these columns, beside those that the LakeTable's
    `index.bloomFilters` names."""

    @misfit(
        "self.purgeDeleted || has(self.recompress) || (has(self.sortBy) && size(self.sortBy) > 0) "
        "|| has(self.addBloomFilters)",
        "must set at least one of purgeDeleted, recompress, sortBy, addBloomFilters",
        expected="one of them, at least",
        remedy="Add purgeDeleted: true, for example",
    )
    def _asks_for_something(self) -> str:
        others = self.recompress is not None or self.add_bloom_filters is not None
        return "" if self.purge_deleted or others or self.sort_by else "none of them"


class SegmentRewriteSpec(RewritingSpec):
    segments: UniqueSegmentsOrChunks
    """Names of the segments, as `tandem table segments` shows them, in quotes: `"0.1"`."""
    rewrite: Rewrite
    """What to change."""


class SegmentRewrite(Operation):
    """Rewrite single segments, each under its own name, while the table is being written."""

    kind_name: ClassVar[str] = "SegmentRewrite"
    short_name: ClassVar[str] = "segrw"
    mode: ClassVar[Mode] = Mode.REWRITE
    default_priority: ClassVar[int] = 25
    reports: ClassVar[frozenset[str]] = frozenset({"yields"})
    kind: Literal["SegmentRewrite"]
    spec: SegmentRewriteSpec

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What it does to files, and how it locks."""
        rewrite = spec.get("rewrite") or {}
        found = []
        if rewrite.get("purgeDeleted"):
            found.append("purge deleted rows")
        if recompress := rewrite.get("recompress"):
            level = recompress.get("level")
            at = f", level {level}" if level is not None else ""
            found.append(f"recompress with {recompress.get('codec')}{at}")
        if rewrite.get("sortBy"):
            found.append(f"sort by {', '.join(map(str, rewrite['sortBy']))}")
        if filters := rewrite.get("addBloomFilters"):
            found.append(f"add bloom filters of {', '.join(map(str, filters.get('columns', ())))}")
        return [("rewrite", "; ".join(found)), *lock_mode_lines(spec)]
