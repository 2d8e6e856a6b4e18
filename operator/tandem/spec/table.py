"""`LakeTable`: a Delta table that is adopted, or created if there is none yet."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, field_validator, model_validator

from tandem.errors import InvalidSpec
from tandem.spec.catalog import Catalog
from tandem.spec.common import Resource
from tandem.spec.compaction import (
    AutomaticChunks,
    BytesPerCommit,
    CompactionTemplate,
    RowGroupRows,
    Thresholds,
)
from tandem.spec.fields import (
    Bytes,
    DnsName,
    IncompatibleFields,
    ListType,
    Location,
    Milliseconds,
    Model,
    Opaque,
    Options,
    StrictBool,
    StrictInt,
    StrictStr,
    Text,
    cel,
    misfit,
    once,
)
from tandem.spec.fields import Granularity as Granularity
from tandem.spec.index import IndexSettings
from tandem.spec.log_compaction import MergeOnRead

_DAY_MS = 24 * 3600 * 1000
_ANY_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)

_SECRET_OPTION = re.compile(
    r"secret|password|token|access_?key|account_?key|credential|sas\b|service_account_key", re.I
)


class VectorUse(StrEnum):
    AUTO = "Auto"
    ONLY = "Only"


class SecretRef(Model):
    name: DnsName
    """A Secret whose keys are named as object stores name them (`AWS_ACCESS_KEY_ID`, …).
    Without a cluster the environment takes its place."""


class Storage(Model):
    secret_ref: SecretRef | None = None
    """Where the credentials are. Without a cluster: the environment."""
    service_account_name: DnsName | None = None
    """Instead of a secret, where the cloud gives identities to workloads. Where both are given,
    the secret is used."""
    options: Options = Field(default_factory=dict)
    """Options of the object store that are not secret: `endpoint`, `region`, …"""
    clone_sources: Annotated[
        tuple[Location, ...], Field(max_length=16), AfterValidator(once), ListType("set")
    ] = ()
    """Of a shallow clone: the locations of the tables that its log names files of. They are only
    read. In a cluster they lie below the administrator's `allowedLocations`, if there are any."""

    @field_validator("options")
    @classmethod
    @cel(
        "self.all(key, !key.matches(r'(?i)secret|password|token|access_?key|account_?key|"
        r"credential|sas\b'))",
        "must not contain secrets: put them into the Secret that storage.secretRef names",
        hides_value=True,
    )
    @cel(
        "self.all(key, !(self[key].contains('://') && self[key].contains('@')))",
        "must not contain secrets, but a URL has user info: put credentials into the Secret that "
        "storage.secretRef names",
        hides_value=True,
    )
    def _nothing_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if "://" in text and "@" in text:
                raise ValueError(
                    f"must not contain secrets, but {key!r} has user info in its URL; put "
                    "credentials into the Secret that storage.secretRef names, or without a "
                    "cluster into the environment"
                )
            if _SECRET_OPTION.search(key):
                raise ValueError(
                    f"must not contain secrets, but has {key!r}; put it into the Secret that "
                    "storage.secretRef names, or without a cluster into the environment"
                )
        return value


_PRIMITIVES = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_WHETHER = (re.compile("(?i)true|false"), "true or false")
# In digits that Java reads, and not longer than it can count in microseconds.
_PART = r"([0-9]{1,6}\s+(week|day)s?|[0-9]{1,9}\s+(hour|minute|second|millisecond)s?)"
_SPAN = (
    re.compile(rf"(?ia)(interval\s+)?{_PART}(\s+{_PART})*"),
    "an interval such as 'interval 30 days'",
)
_PROPERTIES = {
    "delta.checkpointInterval": (re.compile("0*[1-9][0-9]{0,8}"), "a positive number"),
    "delta.logRetentionDuration": _SPAN,
    "delta.deletedFileRetentionDuration": _SPAN,
    "delta.appendOnly": _WHETHER,
    "delta.checkpoint.writeStatsAsJson": _WHETHER,
    "delta.checkpoint.writeStatsAsStruct": _WHETHER,
    "delta.enableChangeDataFeed": _WHETHER,
    "delta.enableDeletionVectors": _WHETHER,
    "delta.enableExpiredLogCleanup": _WHETHER,
}
"""Properties whose values Tandem, Spark and others read, and how they are written."""
_NEEDS_FEATURE = {
    **{
        f"delta.enable{name}": (_WHETHER, "false")
        for name in (
            "IcebergCompatV1",
            "IcebergCompatV2",
            "IcebergCompatV3",
            "InCommitTimestamps",
            "RowTracking",
            "TypeWidening",
        )
    },
    "delta.checkpointPolicy": ((re.compile("(?i)classic|v2"), "classic"), "classic"),
    "delta.columnMapping.mode": ((re.compile("(?i)none|id|name"), "none"), "none"),
}
"""Properties that need a feature in the table's protocol, how they are written, and the value that
needs none. Without the feature Spark refuses the table, and writers do not follow its rules."""
_NEEDS_FEATURE_PREFIXES = ("delta.constraints.", "delta.coordinatedCommits.", "delta.redirect")
_OF_PROTOCOL = re.compile(r"(?i)delta\.(feature\..*|minReaderVersion|minWriterVersion)")
_SPELLINGS = {name.lower(): name for name in (*_PROPERTIES, *_NEEDS_FEATURE)}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s?(\d{1,2})\)")


def _check_property(name: str, text: str) -> None:
    """Raises: ValueError."""
    spelling = _SPELLINGS.get(name.lower(), name)
    if name != spelling:
        raise ValueError(f"{name!r} must be written {spelling}")
    if _OF_PROTOCOL.fullmatch(name):
        raise ValueError(f"{name} must be left out: it is no property, but of the protocol")
    form, harmless = _NEEDS_FEATURE.get(name, (_PROPERTIES.get(name), None))
    if form is not None and not form[0].fullmatch(text):
        raise ValueError(f"{name} must be {form[1]}, and is {text!r}")
    needs = name.startswith(_NEEDS_FEATURE_PREFIXES)
    if needs or (harmless is not None and text.lower() != harmless):
        raise ValueError(
            f"{name} must be left out: it needs a table feature that a table made here does not "
            "have; create the table by another engine"
        )


def _has_empty_struct(found: object) -> bool:
    """Whether a nested type, as in Delta's schema JSON, has a struct without fields."""
    if isinstance(found, list):
        return any(_has_empty_struct(item) for item in found)
    if not isinstance(found, dict):
        return False
    if found.get("type") == "struct" and not found.get("fields"):
        return True
    return any(_has_empty_struct(inner) for key, inner in found.items() if key != "metadata")


class Column(Model):
    name: Text
    """Name of the column."""
    type: StrictStr | dict[str, Any]
    """A Delta type: `string`, `long`, `integer`, `short`, `byte`, `float`, `double`, `boolean`,
    `binary`, `date`, `timestamp`, `timestamp_ntz`, `decimal(p,s)`, or a nested type as in
    Delta's own schema JSON."""
    nullable: StrictBool = True
    """Whether the column may hold nulls."""
    comment: Annotated[StrictStr, Field(max_length=4_096)] | None = None
    """What the column is for."""

    @field_validator("type")
    @classmethod
    def _delta_type(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(value, dict):
            if value.get("type") not in ("struct", "array", "map"):
                raise ValueError("a nested type must have type struct, array or map")
            if _has_empty_struct(value):
                raise ValueError("a struct must have at least one field: Parquet has no empty one")
            return value
        decimal = _DECIMAL.fullmatch(value)
        if decimal and 1 <= int(decimal.group(1)) <= 38 >= int(decimal.group(1)) >= int(
            decimal.group(2)
        ):
            return f"decimal({int(decimal.group(1))},{int(decimal.group(2))})"
        if value not in _PRIMITIVES:
            raise ValueError(f"must be one of {', '.join(_PRIMITIVES)}, decimal(p,s)")
        return value


class Create(Model):
    columns: Annotated[
        tuple[Column, ...],
        Field(alias="schema", min_length=1, max_length=1_500),
        ListType("map", "name"),
    ]
    """The columns of a new table."""
    partition_by: Annotated[tuple[Text, ...], Field(max_length=8)] = ()
    """Partition columns of a new table, outermost first."""
    properties: Options = Field(default_factory=dict)
    """Table properties of a new table (`delta.checkpointInterval`, …)."""

    @field_validator("properties")
    @classmethod
    def _values_fit(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            _check_property(name, text)
        return value

    # For the validator alone: comparing each with each costs more than the API server spends.
    @model_validator(mode="after")
    def _columns_differ(self) -> Create:
        # Delta's column names are case-insensitive: two that differ in case only are one.
        names = [column.name.lower() for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise IncompatibleFields(
                    f"schema names the column {name!r} twice",
                    found=f"{name} twice, ignoring case",
                    expected="names that differ in more than their case",
                    remedy="Rename or remove one of them",
                )
        return self

    @misfit(
        "!has(self.partitionBy) || self.partitionBy.map(name, name.lowerAscii()).all(name, "
        "self.schema.exists(column, column.name.lowerAscii() == name))",
        "partitionBy names a column which is not in schema",
        field=".partitionBy",
        expected="columns of schema",
        remedy="Correct the name, or add the column to schema",
    )
    def _partitions_are_columns(self) -> str:
        names = {column.name.lower() for column in self.columns}
        return next((name for name in self.partition_by if name.lower() not in names), "")

    @misfit(
        "!has(self.partitionBy) || self.partitionBy.all(name, self.partitionBy.exists_one(other, "
        "other.lowerAscii() == name.lowerAscii()))",
        "partitionBy names a column twice",
        field=".partitionBy",
        expected="each column once",
        remedy="Remove one of the two",
    )
    def _partitions_differ(self) -> str:
        differ = len({name.lower() for name in self.partition_by}) == len(self.partition_by)
        return "" if differ else ", ".join(self.partition_by)

    @misfit(
        "!has(self.partitionBy) || self.partitionBy.size() < self.schema.size()",
        "at least one column must not be in partitionBy",
        field=".partitionBy",
        expected="fewer than all",
        remedy="Remove columns with many values from partitionBy",
    )
    def _not_all_partition(self) -> str:
        everything = len(self.partition_by) == len(self.columns)
        return f"all {len(self.columns)} columns" if everything else ""


class Time(Model):
    column: Text
    """Time column: a date or timestamp. Minor compactions never cross one of its chunks."""
    granularity: Granularity = Granularity.DAY
    """Length of a chunk."""
    align: StrictBool = False
    """Whether ingests and replaces write the rows of each chunk to files of their own, up to
    1,000 chunks in each of their tasks. Then intervals drop without a job, and compactions meet no
    file that spans chunks; but there are more files, and smaller ones. Off by default."""

    @misfit(
        "!self.align || self.granularity != 'All'",
        "align needs a granularity shorter than All",
        field=".align",
        expected="Hour, Day, Week, Month, Quarter or Year",
        remedy="Set a shorter granularity, or remove align",
    )
    def _has_chunks(self) -> str:
        misfits = self.align and self.granularity is Granularity.ALL
        return "align with granularity All" if misfits else ""


class Retention(Model):
    files: Milliseconds = 7 * 24 * 3600 * 1000
    """How long files stay after a commit removed them: so long older versions can be read and
    restored. Longer if the table's property `delta.deletedFileRetentionDuration` says so."""
    row_maps: Milliseconds = 7 * 24 * 3600 * 1000
    """How long row maps stay after the compaction that made them; longer while an operation that
    began before is under way."""
    rows: Annotated[Milliseconds, Field(gt=0)] | None = None
    """Drop whole time chunks that ended longer ago than this, by the operator's clock; never rows
    without a time. Off unless given. Needs `time`, and the operator or
    `tandem maintain`."""


class AutomaticMinor(Model):
    enabled: StrictBool = True
    """Whether minor compactions are created."""
    thresholds: Thresholds = (4, 3)
    """How many segments of each level make one of the next."""
    preserve: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    """How many of the newest segments are left alone."""
    max_segment_size: Bytes | None = None
    """Segments of at least this size are left alone; no limit by default."""
    target_file_size: Bytes | None = None
    """Target size of output files; by default that of the table's property `delta.targetFileSize`,
    or else 128Mi."""
    adjacent_only: StrictBool = False
    """Merge only adjacent loads, as `minor.adjacentOnly` of a TableCompaction does."""


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError) as error:  # as zoneinfo says that there is none
        raise ValueError("must be an IANA time zone such as Europe/Berlin or UTC") from error
    return value


TimeZone = Annotated[Text, AfterValidator(_time_zone)]


class Schedule(Model):
    cron: Text
    """Five fields: minute, hour, day of month, month, day of week; as in a CronJob."""
    time_zone: TimeZone | None = None
    """An IANA time zone for `cron`; by default that of the maintenance window, else UTC."""
    template: CompactionTemplate
    """The spec of the compactions that this schedule creates."""

    @field_validator("cron")
    @classmethod
    @cel(
        r"self.matches(r'^\s*[0-9A-Za-z*,/-]+(\s+[0-9A-Za-z*,/-]+){4}\s*$')",
        "must have five fields: minute hour day-of-month month day-of-week",
    )
    def _five_fields(cls, value: str) -> str:
        fields = value.split()
        if len(fields) != 5 or not all(re.fullmatch(r"[\dA-Za-z*,/-]+", part) for part in fields):
            raise ValueError("must have five fields: minute hour day-of-month month day-of-week")
        try:
            CronSim(value, _ANY_MOMENT)
        except CronSimError as error:
            raise ValueError(f"must be a time that occurs: {error}") from error
        return value

    @field_validator("template")
    @classmethod
    @cel(
        "!has(self.custom) || !has(self.custom.segments)",
        "custom.segments does not go with a schedule: every compaction gives new names",
        field=".custom.segments",
    )
    @cel(
        "!has(self.minor) || !has(self.minor.segments)",
        "minor.segments does not go with a schedule: every compaction gives new names",
        field=".minor.segments",
    )
    def _names_do_not_last(cls, value: CompactionTemplate) -> CompactionTemplate:
        if value.custom is not None and value.custom.segments is not None:
            raise ValueError(
                "custom.segments does not go with a schedule: every compaction gives new names"
            )
        if value.minor is not None and value.minor.segments is not None:
            raise ValueError(
                "minor.segments does not go with a schedule: every compaction gives new names"
            )
        return value


@cel("self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')", "must be a time of day such as 01:30")
def _time_of_day(value: str) -> str:
    if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", value):
        raise ValueError("must be a time of day such as 01:30")
    return value


class MaintenanceWindow(Model):
    start: Annotated[StrictStr, Field(max_length=64), AfterValidator(_time_of_day)]
    """Time of day, `HH:MM`."""
    duration: Annotated[Milliseconds, Field(gt=0, le=_DAY_MS)]
    """How long the window is open, at most 24h."""
    time_zone: TimeZone = "UTC"
    """An IANA time zone."""


class HistoryLimits(Model):
    succeeded: Annotated[StrictInt, Field(ge=0, le=1_000)] = 3
    """How many succeeded automatic compactions are kept."""
    failed: Annotated[StrictInt, Field(ge=0, le=1_000)] = 3
    """How many failed automatic compactions are kept."""


class AutomaticCompaction(Model):
    """For the operator, or without a cluster for `tandem maintain`; `tandem run` ignores it."""

    minor: AutomaticMinor | None = None
    """Compact by level thresholds as segments arrive; off unless given."""
    schedules: Annotated[tuple[Schedule, ...], Field(max_length=6)] = ()
    """Compactions at fixed times."""
    chunks: AutomaticChunks | None = None
    """Rewrite a time chunk as a whole when enough of it is uncompacted; off unless given. Needs
    `time`."""
    skip_offset_from_latest: Milliseconds = 0
    """Skip chunks that end less than this before the newest one ends; without a time column,
    segments that were loaded less than this before the newest. A schedule's template can override
    it."""
    min_interval: Milliseconds = 0
    """Minimum time between two automatic compactions of the table: from the end of one to the start
    of the next, or from start to start where one runs alongside another."""
    maintenance_window: MaintenanceWindow | None = None
    """Automatic compactions start inside this window only; any time by default."""
    spark_template: Opaque | None = None
    """A partial `SparkApplication` that is merged into those of all these compactions."""
    active_deadline_seconds: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds after its start at which such a compaction that has not committed fails, so that
    a stuck one does not keep the next from starting; none by default."""
    max_bytes_per_commit: BytesPerCommit | None = None
    """As of a TableCompaction: such a compaction that reads more is committed in batches; 16Gi by
    default. A schedule's template can override it."""
    min_row_group_rows: RowGroupRows | None = None
    """As of a TableCompaction: such a compaction copies row groups of at least this many rows, and
    encodes smaller ones; by default it copies those of 64,000 rows or 4 MiB. A schedule's template
    can override it."""
    history: HistoryLimits = HistoryLimits()
    """How many finished children are kept. The last one of each schedule, the last minor one, and
    the last one of each chunk that is due always stay."""


class LakeTableSpec(Model):
    fixed: ClassVar[frozenset[str]] = frozenset({"location", "catalog"})
    """Fields that must not change in a cluster: another location is another table."""

    location: Location | None = None
    """Root of the table: a `file`, `s3`, `gs` or `abfss` URL. Cannot be changed. Optional with
    `catalog`; if given, it must be the location that the catalog has."""
    catalog: Catalog | None = None
    """The catalog that has the table, and its name there. Cannot be changed. See
    docs/catalogs.md."""
    storage: Storage = Storage()
    """How to access the object store."""
    enable_deletion_vectors: StrictBool = False
    """Enable deletion vectors. Off by default, since it upgrades the protocol of a table
    that lacks them: old readers may then refuse it."""
    # Without a default: the API server fills it in at once, also for an operator of the release
    # before, which does not know the field and refuses the table until it is replaced.
    vectors: VectorUse | None = None
    """How rows are deleted and changed: `Auto`, the default, uses deletion vectors where the table
    has them on, and rewrites the files where it has them off; `Only` refuses what needs them
    then."""
    create: Create | None = None
    """What to create if there is no table at the location yet; without it that is an error."""
    time: Time | None = None
    """The time column whose chunks planning respects; none by default."""
    retention: Retention | None = None
    """How long files are kept that the latest version no longer needs; the operator removes older
    ones periodically. Without it, the operator removes only files of operations that no version
    has ever referred to, and `tandem clean` uses the table property. See docs/cleaning.md. With
    `rows`, also how long rows are kept: see docs/automatic-compaction.md."""
    compaction: AutomaticCompaction | None = None
    """Automatic compaction; off unless given."""
    merge_on_read: MergeOnRead | None = None
    """Create a log of upserts and deletes for the table, unless it has one; none by default.
    A log stays if this is removed. See docs/merge-on-read.md."""

    index: IndexSettings | None = None
    """The table's index: bloom filters, and the server that answers for it. See docs/index.md."""

    @misfit(
        "has(self.location) || has(self.catalog)",
        "must have location or catalog",
        expected="one of them",
        remedy="Add location",
    )
    def _can_be_found(self) -> str:
        return "" if self.location or self.catalog else "none of them"

    @misfit(
        "!has(self.create) || !has(self.catalog)",
        "create does not go with catalog",
        field=".create",
        expected="one of them",
        remedy="Create the table by an engine that registers it in the catalog, and remove create",
    )
    def _catalogs_have_their_tables(self) -> str:
        return "both of them" if self.create is not None and self.catalog is not None else ""

    @property
    def _without_chunks(self) -> str:
        """Why it has no time chunks; "" if it has."""
        if self.time is None:
            return "no time"
        return "time.granularity All" if self.time.granularity is Granularity.ALL else ""

    @misfit(
        "!has(self.compaction) || !has(self.compaction.chunks) || (has(self.time) && "
        "(!has(self.time.granularity) || self.time.granularity != 'All'))",
        "compaction.chunks needs time chunks",
        field=".compaction.chunks",
        expected="time with a column, and a granularity from Hour to Year",
        remedy="Set spec.time, or remove spec.compaction.chunks",
    )
    def _chunks_need_time(self) -> str:
        chunks = self.compaction is not None and self.compaction.chunks is not None
        return self._without_chunks if chunks else ""

    @misfit(
        "!has(self.retention) || !has(self.retention.rows) || (has(self.time) && "
        "(!has(self.time.granularity) || self.time.granularity != 'All'))",
        "retention.rows needs time chunks",
        field=".retention.rows",
        expected="time with a column, and a granularity from Hour to Year",
        remedy="Set spec.time, or remove spec.retention.rows",
    )
    def _retention_needs_time(self) -> str:
        rows = self.retention is not None and self.retention.rows is not None
        return self._without_chunks if rows else ""

    @misfit(
        "!has(self.retention) || !has(self.retention.rows) || !has(self.mergeOnRead)",
        "retention.rows does not go with mergeOnRead",
        field=".retention.rows",
        expected="one of them",
        remedy="Remove retention.rows, and delete old rows with a TableUpdate",
    )
    def _retention_reads_no_log(self) -> str:
        rows = self.retention is not None and self.retention.rows is not None
        return "both of them" if rows and self.merge_on_read is not None else ""


class LakeTable(Resource):
    """Adopt a Delta table, or create it."""

    kind_name: ClassVar[str] = "LakeTable"
    short_name: ClassVar[str] = "ltbl"
    kind: Literal["LakeTable"]
    spec: LakeTableSpec

    @property
    def address(self) -> str:
        """Where the table is, for messages: its location, or its name in the catalog."""
        if self.spec.location is not None:
            return self.spec.location
        assert self.spec.catalog is not None
        return self.spec.catalog.url

    @property
    def location(self) -> str:
        """Its location. Raises: InvalidSpec if only its catalog knows it."""
        if self.spec.location is None:
            raise InvalidSpec(
                "the table is read by its location here, which only its catalog knows",
                resource=self.id,
                field="spec.location",
                found=self.address,
                remedy="Set spec.location too, if the table is not managed by the catalog",
            )
        return self.spec.location
