"""The values that reconciliation works on. Pure data; rows are positions in immutable files.

A row is (path, position). `path` is `AddFile.logged_path`, the spelling that identifies a file
(`storage.paths.path_identity`), forever, also when a restore brings it back. `dead` is the set of
its deleted positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pyroaring import BitMap64

from tandem.rowmap.rowmap import Indexes, MapInput, MapOutput
from tandem.rowmap.run_table import Positions


@dataclass(frozen=True, slots=True)
class FileState:
    """A live file at some version: physical `rows`, and its `dead` positions."""

    path: str
    rows: int
    dead: BitMap64


class FileView(Protocol):
    """The working set at one version by path; may be lazy over a columnar snapshot."""

    def get(self, path: str) -> FileState | None: ...


@runtime_checkable
class Prefetching(Protocol):
    """A view that looks up many paths together more cheaply than one by one."""

    def prefetch(self, paths: Iterable[str]) -> None: ...


class ChangeKind(StrEnum):
    """The effect of a commit on rows."""

    NEUTRAL = "Neutral"  # no data change: abandonment, an update that matched nothing, properties
    BLIND_APPEND = "BlindAppend"  # a plain insert or ingest, by its operation
    MAPPED_REWRITE = "MappedRewrite"  # by Tandem, rows preserved, row map valid
    CHANGE = "Change"  # everything else, and whatever cannot be determined
    GAP = "Gap"  # versions whose commits are no longer in the log


class NewRows(StrEnum):
    """Where the rows of the files come from that a commit adds."""

    ARRIVED = "Arrived"  # with the commit: a plain insert, or a merge that took nothing away
    MAPPED = "Mapped"  # from where the row map of the rewrite says
    TAKEN = "Taken"  # from the rows that the commit took away, perhaps with other values
    UNKNOWN = "Unknown"  # from anywhere


@dataclass(frozen=True, slots=True)
class Author:
    """Who made a commit, when (Unix milliseconds) and as what: for display, never for a rule.
    `by` is the resource of an operation of Tandem, "" for other writers."""

    version: int
    operation: str = ""
    engine: str = ""
    time_ms: int = 0
    by: str = ""


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit since the read version as reconciliation sees it.

    `files` are the logged paths that it added, removed or gave another deletion vector; `added`
    those of them that are live after it.
    `who` names operation, engine and time, for messages; `new_rows` says where the rows of its new
    files come from. A `GAP` stands for all versions up to
    and including `version`; its files are those that differ between the versions around it.
    """

    version: int
    kind: ChangeKind
    files: frozenset[str] = frozenset()
    who: str = ""
    table_changed: tuple[str, ...] = ()  # "metadata", "protocol"
    new_rows: NewRows = NewRows.UNKNOWN
    added: frozenset[str] = frozenset()
    author: Author | None = None  # None for a gap


class RowMapLike(Protocol):
    """Where the rows of rewritten files are (see `tandem.rowmap.rowmap.RowMap`)."""

    inputs: tuple[MapInput, ...]
    outputs: tuple[MapOutput, ...]
    changed: Mapping[str, BitMap64]

    @property
    def input_paths(self) -> Collection[str]: ...

    @property
    def output_paths(self) -> Collection[str]: ...

    def input(self, path: str) -> MapInput: ...

    def output_number(self, path: str) -> int:
        """Index into `outputs`."""
        ...

    def bins(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Groups of (inputs, outputs) that share no row with each other."""
        ...

    def sources(self, output: str) -> tuple[str, ...]:
        """The inputs that have rows in an output."""
        ...

    def backward(self, output: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an output file → the input rows that they came from. Raises: KeyError for
        a file that is not an output of this map."""
        ...

    def forward(self, input_: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an input file → positions in the outputs. Rows that were dead when read
        have none."""
        ...

    def forward_all(self, input_: str) -> dict[str, BitMap64]:
        """All rows of an input that were live when read → their positions in the outputs."""
        ...

    def trace(self, output: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Each position of an output → (index into `inputs`, position there)."""
        ...

    def locate(self, input_: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Each position of an input → (index into `outputs`, position there), -1 for dead."""
        ...


RowMaps = Mapping[str, RowMapLike]
"""Output path → the map of the rewrite that wrote it."""
