"""What decides which commits a table has: its log folder, or its catalog.

`DeltaLog` reads and commits through a `CommitLog`. `FolderLog` is the one of tables that are known
by their location: a version is made by put-if-absent of its file. `catalog_log` has the one of
tables that a catalog manages. It speaks to the catalog through a `CatalogTable`, which clients of
catalogs implement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Protocol

from tandem.delta.log import codec
from tandem.delta.log.listing import Listing, commit_path, read_log
from tandem.delta.protocol import OperationKind
from tandem.errors import AlreadyExists, ObjectNotFound
from tandem.storage.store import Store, exists


class MaintenanceRight(StrEnum):
    """What a catalog may permit to a client, by name (protocol, "Maintenance Operations on
    Catalog-managed Tables"). Commits that change rows need no such permission."""

    DATA_REORGANIZATION = "DATA_REORGANIZATION"
    DATA_CLEANUP = "DATA_CLEANUP"
    METADATA_CLEANUP = "METADATA_CLEANUP"


def maintenance_of(kind: OperationKind) -> MaintenanceRight | None:
    """What a commit of this kind needs; None for those that need the right to modify only."""
    return MaintenanceRight.DATA_REORGANIZATION if kind is OperationKind.COMPACTION else None


class Put(Enum):
    """What became of a put. If it is uncertain, OutcomeUnknown is raised; if the catalog wants
    other commits to be published first, BacklogFull."""

    OURS = auto()
    TAKEN = auto()
    """There is a commit of this version. `CommitLog.is_ours` says whose."""


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit to be put.

    Attributes:
        content: the bytes of its file.
        token: its `txnId`. It stands for this content.
        timestamp_ms: its in-commit timestamp, Unix milliseconds; None without.
        domains: the configurations of the domains that it sets, by name.
        changes_table: whether it has a protocol or metadata.
        maintenance: what the catalog has to permit for it.
    """

    version: int
    content: bytes
    token: str
    timestamp_ms: int | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    changes_table: bool = False
    maintenance: MaintenanceRight | None = None


class CommitLog(Protocol):
    """The commits of one table. Thread-safe. All raise AccessDenied, StorageError."""

    managed: bool
    """Whether a catalog decides."""

    def tail(self, start: int) -> Listing:
        """The commits and checkpoints from a version on, those that count only."""

    def after(self, version: int, known: Mapping[int, bytes] = MappingProxyType({})) -> Listing:
        """The commits after a version, and perhaps that one; checkpoints may be left out.

        Args:
            known: the contents of commits that were put here, and are versions. Where a catalog
                says so, those that follow them may be left out.
        """

    def path(self, version: int) -> str | None:
        """Where the commit of a version is read; None if there is none. There need not be an
        object."""

    def has(self, version: int) -> bool:
        """Whether there is a commit of this version, which log clean-up may have removed."""

    def can_follow(self, version: int) -> bool:
        """Whether a put of the next version would be read, as far as log clean-up may have removed
        it since this one was read."""

    def is_ours(self, version: int, token: str) -> bool | None:
        """Whether the commit of a version has our token; None if there is no commit, yet."""

    def put(self, commit: NewCommit) -> Put:
        """Make it a version of the table, if that is free.

        Raises: OutcomeUnknown: it may still become one; BacklogFull; CatalogForbids, before
            anything is written.
        """

    def publish(self, upto: int) -> None:
        """Make commits up to this version readable in the log folder, as checkpoints require."""

    def withdraw(self, version: int) -> None:
        """Remove our commit, which lies below a checkpoint that lacks it. Raises: CorruptLog where
        that cannot be."""

    def require(self, maintenance: MaintenanceRight | None) -> None:
        """Raises: CatalogForbids."""


class FolderLog:
    """The commits in a log folder: what is there counts."""

    managed = False

    def __init__(self, store: Store) -> None:
        self._store = store

    def tail(self, start: int) -> Listing:
        return read_log(self._store, start)

    def after(
        self,
        version: int,
        known: Mapping[int, bytes] = MappingProxyType({}),  # noqa: ARG002
    ) -> Listing:
        return read_log(self._store, max(version, 0))

    def path(self, version: int) -> str:
        return commit_path(version)

    def has(self, version: int) -> bool:
        return exists(self._store, commit_path(version))

    def can_follow(self, version: int) -> bool:
        # If this one was removed, the next may have been, too: a put would fall into a hole.
        return self.has(version)

    def is_ours(self, version: int, token: str) -> bool | None:
        return has_token(self._store, version, token)

    def put(self, commit: NewCommit) -> Put:
        try:
            self._store.put_if_absent(commit_path(commit.version), commit.content)
        except AlreadyExists:
            return Put.TAKEN
        return Put.OURS

    def publish(self, upto: int) -> None:
        pass  # a put publishes

    def withdraw(self, version: int) -> None:
        self._store.delete([commit_path(version)])

    def require(self, maintenance: MaintenanceRight | None) -> None:
        pass  # the owner of a folder may do all


def has_token(store: Store, version: int, token: str) -> bool | None:
    """Whether the file of a version in the log folder has this token; None if there is none.
    Raises: CorruptLog, StorageError."""
    path = commit_path(version)
    try:
        info = codec.decode_info(store.get(path), path=path)
    except ObjectNotFound:
        return None
    return info is not None and info.txn_id == token


@dataclass(frozen=True, slots=True)
class RatifiedCommit:
    """A commit that a catalog has accepted, or is asked to accept.

    Attributes:
        file_name: below `_delta_log/_staged_commits`.
        size: in bytes.
        modified_ms: of the file, in Unix milliseconds.
        timestamp_ms: the commit's in-commit timestamp, in Unix milliseconds.
    """

    version: int
    file_name: str
    size: int
    modified_ms: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What a catalog says of a table.

    Attributes:
        table_id: the table's uuid in the catalog.
        latest: the latest ratified version.
        ratified: those that were not reported as published, in any order.
        permissions: the maintenance that the catalog permits to us; None if it does not say.
    """

    table_id: str
    latest: int
    ratified: tuple[RatifiedCommit, ...]
    permissions: frozenset[str] | None


class CatalogTable(Protocol):
    """A catalog's calls for one table. Thread-safe.

    All raise AccessDenied, StorageError; TableNotFound if there is no such table any more.
    """

    def load(self) -> CatalogState: ...

    def add_commit(
        self, commit: RatifiedCommit, *, table_id: str, domains: Mapping[str, str]
    ) -> None:
        """Ask for a version to be ratified.

        Args:
            table_id: the request is refused if the table has another one.
            domains: the configurations of domains, by name, that the commit sets.
        Raises:
            CommitRefused: which commit has the version is found by `load`, never by the answer.
            BacklogFull: too many ratified commits are not published.
            OutcomeUnknown: no answer came, or a failure of the catalog's own.
        """

    def report_published(self, version: int, *, table_id: str) -> None:
        """Say that all versions up to this one are published."""
