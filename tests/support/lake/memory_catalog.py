"""A catalog of one table in memory: the slow obvious model of one, with a place to make it fail.

It ratifies one commit a version, in order, and keeps them all. A report of published versions
must be true, or it fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from support.lake.delta_log import commit_name
from support.lake.memory_store import MemoryStore
from tandem.delta.log.commit_log import CatalogState, MaintenanceRight, RatifiedCommit
from tandem.errors import BacklogFull, CommitRefused

TABLE_ID = "0b1f2f3b-8a11-4c1e-9a51-5d6ad3b46b8c"
ALL = frozenset(map(str, MaintenanceRight))


@dataclass(frozen=True)
class CatalogCall:
    """One call, shown to the fault hook before it happens and after. `send` makes it happen: for a
    request that arrives when its sender has given up."""

    name: Literal["load", "add_commit", "report_published"]
    when: Literal["before", "after"]
    send: Callable[[], None]


@dataclass
class MemoryCatalog:
    """A `CatalogTable`.

    Attributes:
        store: of the table's folder.
        latest: the latest version; those up to the first one were published when it was made.
        versions: every commit that was ever ratified.
        published: the latest version that was reported.
        limit: so many ratified commits may be unpublished.
        accepts_again: whether a commit that was ratified before is accepted again, as by UC's own
            server; otherwise it is refused.
        domains: as commits set them.
    """

    store: MemoryStore
    latest: int = 0
    limit: int = 10
    permissions: frozenset[str] | None = ALL
    accepts_again: bool = False
    table_id: str = TABLE_ID
    fault: Callable[[CatalogCall], None] | None = None
    versions: dict[int, RatifiedCommit] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    published: int = field(init=False)

    def __post_init__(self) -> None:
        self.published = self.latest

    @property
    def unpublished(self) -> list[RatifiedCommit]:
        """Newest first, as by UC's own server."""
        return [self.versions[v] for v in range(self.latest, self.published, -1)]

    def load(self) -> CatalogState:
        self._show("load", "before", lambda: None)
        state = CatalogState(self.table_id, self.latest, tuple(self.unpublished), self.permissions)
        self._show("load", "after", lambda: None)
        return state

    def add_commit(
        self, commit: RatifiedCommit, *, table_id: str, domains: Mapping[str, str]
    ) -> None:
        def send() -> None:
            if table_id != self.table_id:
                raise CommitRefused("another table")
            if self.accepts_again and self.versions.get(commit.version) == commit:
                return
            if commit.version != self.latest + 1:
                raise CommitRefused(f"version {self.latest + 1} is next")
            if self.latest - self.published >= self.limit:
                raise BacklogFull(f"{self.limit} commits are not published")
            self.versions[commit.version] = commit
            self.latest = commit.version
            self.domains.update(domains)

        self._show("add_commit", "before", send)
        send()
        self._show("add_commit", "after", send)

    def report_published(self, version: int, *, table_id: str) -> None:
        def send() -> None:
            assert table_id == self.table_id
            assert version <= self.latest, "a version was reported that there is not"
            seen = self.store.copy()  # without its fault hook
            for each in range(self.published + 1, version + 1):
                path = f"_delta_log/_staged_commits/{self.versions[each].file_name}"
                assert seen.get(commit_name(each)) == seen.get(path)
            self.published = max(self.published, version)

        self._show("report_published", "before", send)
        send()
        self._show("report_published", "after", send)

    def _show(
        self,
        name: Literal["load", "add_commit", "report_published"],
        when: Literal["before", "after"],
        send: Callable[[], None],
    ) -> None:
        if self.fault is not None:
            self.fault(CatalogCall(name, when, send))
