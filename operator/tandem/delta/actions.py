"""The actions of a Delta commit as values (protocol, section "Actions").

Immutable; no I/O. Unknown fields are kept in `extra`, so that actions that we rewrite keep the
fields of other writers.

`logged_path` identifies a file. It is the log's own spelling, except for the few that Spark spells
in another way in its own `remove`s (`tandem.storage.paths.path_identity`). Of these `extra` has the
log's spelling, as `path`, which our `remove` repeats. `path` is for the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A deletion vector's descriptor (protocol, "Deletion Vectors").

    `storage` is `u` (relative file), `i` (inline) or `p` (absolute). `size` is in bytes;
    `cardinality` is the number of deleted rows. Two descriptors refer to the same vector if and
    only if their `unique_id` is the same.
    """

    storage: str
    path_or_inline: str
    size: int
    cardinality: int
    offset: int | None = None

    @property
    def unique_id(self) -> str:
        tail = f"@{self.offset}" if self.offset is not None else ""
        return f"{self.storage}{self.path_or_inline}{tail}"


BASE_ROW_ID: Final = "baseRowId"
ROW_COMMIT_VERSION: Final = "defaultRowCommitVersion"
"""The fields of an `add` and a `remove` that say which ids and which version the rows of a file
have (protocol, "Row Tracking")."""


@dataclass(frozen=True, slots=True)
class AddFile:
    """`add`. `size` in bytes, `modified_ms` in Unix milliseconds; `stats` is the JSON text as
    logged or None; partition values are the protocol's strings, None for null, and keyed by
    physical column name under column mapping."""

    logged_path: str
    partition_values: Mapping[str, str | None]
    size: int
    modified_ms: int
    data_change: bool
    stats: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    deletion_vector: DeletionVector | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        from tandem.storage.paths import object_path

        return object_path(self.logged_path)

    @property
    def key(self) -> tuple[str, str | None]:
        """The primary key of a logical file: path and deletion vector id."""
        dv = self.deletion_vector
        return (self.logged_path, dv.unique_id if dv else None)


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """`remove`; without `extended` metadata, size and partition values may be None."""

    logged_path: str
    deletion_ms: int | None
    data_change: bool
    deletion_vector: DeletionVector | None = None
    partition_values: Mapping[str, str | None] | None = None
    size: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str | None]:
        dv = self.deletion_vector
        return (self.logged_path, dv.unique_id if dv else None)


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """`cdc`: a file of the change data feed, which is no file of the table. `size` in bytes."""

    logged_path: str
    partition_values: Mapping[str, str | None]
    size: int

    @property
    def path(self) -> str:
        from tandem.storage.paths import object_path

        return object_path(self.logged_path)


@dataclass(frozen=True, slots=True)
class Metadata:
    """`metaData`; `schema_string` is the logged JSON."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    name: str | None = None
    description: str | None = None
    created_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    """`protocol`; the feature sets are empty below reader 3 / writer 7."""

    min_reader: int
    min_writer: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Txn:
    """`txn`: the highest `version` that application `app_id` has committed."""

    app_id: str
    version: int
    updated_ms: int | None = None


LAST_MOMENT_MS = 253_402_300_799_999
"""The end of the year 9999, the last time that engines and Python can display."""


def _moment_ms(value: Any) -> int | None:
    """A time as logged, None if it is not a valid one: `commitInfo` is free-form."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= LAST_MOMENT_MS else None


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """`commitInfo`: free-form JSON, with attributes for the fields that we rely on."""

    body: Mapping[str, Any]

    @property
    def operation(self) -> str:
        return str(self.body.get("operation", ""))

    @property
    def engine(self) -> str:
        return str(self.body.get("engineInfo") or self.body.get("clientVersion") or "")

    @property
    def timestamp_ms(self) -> int | None:
        return _moment_ms(self.body.get("inCommitTimestamp", self.body.get("timestamp")))

    @property
    def in_commit_timestamp(self) -> int | None:
        return _moment_ms(self.body.get("inCommitTimestamp"))

    @property
    def txn_id(self) -> str:
        """The token by which a writer recognizes its own commit; "" if it has none."""
        return str(self.body.get("txnId") or "")


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    domain: str
    configuration: str
    removed: bool


Action = AddFile | RemoveFile | ChangeFile | Metadata | Protocol | Txn | CommitInfo | DomainMetadata


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log. `timestamp_ms` is the in-commit timestamp if the table has them,
    otherwise the object's modification time."""

    version: int
    timestamp_ms: int
    actions: tuple[Action, ...]

    @property
    def info(self) -> CommitInfo | None:
        for action in self.actions:
            if isinstance(action, CommitInfo):
                return action
        return None

    @property
    def adds(self) -> tuple[AddFile, ...]:
        return tuple(a for a in self.actions if isinstance(a, AddFile))

    @property
    def removes(self) -> tuple[RemoveFile, ...]:
        return tuple(a for a in self.actions if isinstance(a, RemoveFile))

    @property
    def change_files(self) -> tuple[ChangeFile, ...]:
        return tuple(a for a in self.actions if isinstance(a, ChangeFile))
