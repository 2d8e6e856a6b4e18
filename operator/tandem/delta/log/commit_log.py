"""What decides which commits a table has: its log folder, or its catalog.

`DeltaLog` reads and commits through a `CommitLog`. `FolderLog` is the one of tables that are known
by their location: a version is made by put-if-absent of its file. `catalog_log` has the one of
tables that a catalog manages; it speaks to the catalog through a `CatalogTable`, which
`tandem.catalogs` implements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


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
