"""`TableUpdate` (update, delete, merge) and `TableIngest`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from tandem.spec.common import LogUse, Mode, Operation, OperationSpec
from tandem.spec.fields import (
    Assignments,
    Bytes,
    IncompatibleFields,
    Location,
    Model,
    Options,
    SqlCondition,
    StrictInt,
    cel,
    exactly_one,
    misfit,
)

_MIB = 2**20


class Update(Model):
    where: SqlCondition | None = None
    """Which rows, as a Spark SQL condition; all rows by default."""
    set: Assignments
    """Column → new value, as a Spark SQL expression over the old row."""


class Delete(Model):
    where: SqlCondition
    """Which rows, as a Spark SQL condition. Write `true` to delete all."""


class SourceFormat(StrEnum):
    PARQUET = "Parquet"
    CSV = "Csv"
    JSON = "Json"
    DELTA = "Delta"


class Source(Model):
    format: SourceFormat
    """`Parquet`, `Csv`, `Json` (one object a line) or `Delta`."""
    location: Location
    """A file or folder: a `file`, `s3`, `gs` or `abfss` URL."""
    options: Options = Field(default_factory=dict)
    """Spark's options for reading the format (`header`, `sep`, …), as text. Quotes inside quoted
    CSV values are doubled, as in RFC 4180; to escape them with another character, set `escape`."""
    version: Annotated[StrictInt, Field(ge=0)] | None = None
    """Which version of a `Delta` source; the latest at the first attempt by default."""

    @misfit(
        "!has(self.version) || self.format == 'Delta'",
        "version only goes with format Delta",
        field=".version",
        expected="no version, or format Delta",
        remedy="Remove version: only a Delta table has versions",
    )
    def _version_only_for_delta(self) -> str:
        misfits = self.version is not None and self.format is not SourceFormat.DELTA
        return f"version {self.version} with format {self.format}" if misfits else ""


class Empty(Model):
    """`{}`: the presence says it."""


class MergeUpdate(Model):
    set: Assignments
    """Column → new value; `t` is the table, `s` the source."""


class MergeInsert(Model):
    values: Assignments
    """Column → value; `s` is the source."""


class WhenMatched(Model):
    where: SqlCondition | None = None
    """A further condition."""
    delete: Empty | None = None
    """Delete the row."""
    update: MergeUpdate | None = None
    """Update the row."""
    update_all: Empty | None = None
    """Update every column from the source's column of that name."""

    _one_action = exactly_one("delete", "update", "update_all")


class WhenNotMatched(Model):
    where: SqlCondition | None = None
    """A further condition on the source row."""
    insert: MergeInsert | None = None
    """Insert a row."""
    insert_all: Empty | None = None
    """Insert the source row as it is."""

    _one_action = exactly_one("insert", "insert_all")


class WhenNotMatchedBySource(Model):
    where: SqlCondition | None = None
    """A further condition on the table's row."""
    delete: Empty | None = None
    """Delete the row."""
    update: MergeUpdate | None = None
    """Update the row."""

    _one_action = exactly_one("delete", "update")


class Merge(Model):
    spellings: ClassVar[dict[str, str]] = {"true": "on"}
    """kubectl reads YAML 1.1, in which a bare `on` is the boolean true; as a key of JSON that is
    the text `true`. A file must mean the same to both, so both spellings are the field `on`."""

    source: Source
    """Rows to merge."""
    on: SqlCondition
    """Which source row matches which table row; `t` is the table, `s` the source."""
    when_matched: Annotated[tuple[WhenMatched, ...], Field(max_length=10)] = ()
    """What happens to a row that matches; the first clause that applies."""
    when_not_matched: Annotated[tuple[WhenNotMatched, ...], Field(max_length=10)] = ()
    """What happens to a source row without a match."""
    when_not_matched_by_source: Annotated[
        tuple[WhenNotMatchedBySource, ...], Field(max_length=10)
    ] = ()
    """What happens to a table row without a match."""

    @model_validator(mode="before")
    @classmethod
    @cel("has(self.on) != has(self.__true__)", "needs on, once: which rows match")
    def _bare_on(cls, value: Any) -> Any:
        if isinstance(value, dict) and "true" in value:
            if "on" in value:
                raise IncompatibleFields(
                    "needs on, once: which rows match",
                    found="on, and true, which is how YAML 1.1 reads a bare on",
                    expected="one of them",
                    remedy='Keep one of them, as "on"',
                )
            return {("on" if key == "true" else key): item for key, item in value.items()}
        return value

    @misfit(
        "[has(self.whenMatched) && size(self.whenMatched) > 0, "
        "has(self.whenNotMatched) && size(self.whenNotMatched) > 0, "
        "has(self.whenNotMatchedBySource) && size(self.whenNotMatchedBySource) > 0]"
        ".exists(given, given)",
        "must have at least one of whenMatched, whenNotMatched, whenNotMatchedBySource",
        expected="at least one clause",
        remedy="Add a clause: whenMatched with updateAll, for example",
    )
    def _does_something(self) -> str:
        clauses = (self.when_matched, self.when_not_matched, self.when_not_matched_by_source)
        return "" if any(clauses) else "no clause"


class Upsert(Model):
    source: Source
    """Rows to write: whole rows, each in place of the row with its key."""


class DeleteKeys(Model):
    source: Source
    """Keys whose rows are deleted, and the ordering column if the log has one."""


class Isolation(StrEnum):
    WRITE_SERIALIZABLE = "WriteSerializable"
    SERIALIZABLE = "Serializable"


class ConflictPolicy(Model):
    max_attempts: Annotated[StrictInt, Field(ge=1, le=1_000)] = 5
    """How many rounds without progress, that is with no fewer rows left to evaluate, end the
    operation as a conflict. A round with fewer rows than any before resets the count."""


class TableUpdateSpec(OperationSpec):
    update: Update | None = None
    """Change rows."""
    delete: Delete | None = None
    """Delete rows."""
    merge: Merge | None = None
    """Merge a source into the table: update, delete and insert rows at once."""
    upsert: Upsert | None = None
    """Append the rows of a source to the log of a merge-on-read table, by key."""
    delete_keys: DeleteKeys | None = None
    """Append deletes of the keys of a source to the log of a merge-on-read table."""
    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    """`WriteSerializable`: rows appended while the statement runs may stay as they are.
    `Serializable`: the statement takes effect at its commit."""
    conflict: ConflictPolicy = ConflictPolicy()
    """When to give up."""
    target_file_size: Bytes = 128 * _MIB
    """Target size of output files."""

    _one_statement = exactly_one("update", "delete", "merge", "upsert", "delete_keys")

    @property
    def appends(self) -> bool:
        """Whether it appends to the log of a merge-on-read table, and reads no row of it."""
        return self.upsert is not None or self.delete_keys is not None

    @field_validator("update")
    @classmethod
    # Comparing each name with each costs more than the API server spends: it looks for the one in
    # lower case, and leaves it to the validator when both have capitals.
    @cel(
        "self.set.all(name, name == name.lowerAscii() || !(name.lowerAscii() in self.set))",
        "set names a column twice",
        field=".set",
    )
    def _columns_once(cls, value: Update | None) -> Update | None:
        # Column names are case-insensitive in Spark and Delta.
        if value is not None and len({name.lower() for name in value.set}) != len(value.set):
            raise ValueError("set names a column twice")
        return value


_REPORTS = frozenset(
    {"result.rowsAffected", "result.rowsAffected.upserted", "result.blocksOut", "result.instants"}
)
"""The last three where the table has a log of blocks."""


class TableUpdate(Operation):
    """Update, delete or merge rows once, while the table is being compacted and written."""

    kind_name: ClassVar[str] = "TableUpdate"
    short_name: ClassVar[str] = "tupd"
    mode: ClassVar[Mode] = Mode.UPDATE
    default_priority: ClassVar[int] = 50
    reports: ClassVar[frozenset[str]] = _REPORTS
    kind: Literal["TableUpdate"]
    spec: TableUpdateSpec

    @property
    def log_use(self) -> LogUse:
        return LogUse.APPENDS_AND_NEEDS_IT if self.spec.appends else LogUse.MERGES_IT_FIRST

    @classmethod
    def source_in(cls, spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """That of a merge, an upsert or a delete by key."""
        name = next((n for n in ("upsert", "deleteKeys") if spec.get(n)), "merge")
        return f"spec.{name}.source", (spec.get(name) or {}).get("source") or {}


class TableIngestSpec(OperationSpec):
    source: Source
    """What to append, as one new segment."""
    target_file_size: Bytes = 128 * _MIB
    """Target size of output files."""


class TableIngest(Operation):
    """Append the rows of a source as a new segment."""

    kind_name: ClassVar[str] = "TableIngest"
    short_name: ClassVar[str] = "ting"
    mode: ClassVar[Mode] = Mode.APPEND
    default_priority: ClassVar[int] = 75
    reports: ClassVar[frozenset[str]] = _REPORTS
    kind: Literal["TableIngest"]
    spec: TableIngestSpec

    @property
    def log_use(self) -> LogUse:
        return LogUse.APPENDS

    @classmethod
    def source_in(cls, spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return "spec.source", spec.get("source") or {}
