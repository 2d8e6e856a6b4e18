"""Values of the rule for statements: its input (a state), and its results (the next step).

The rule itself is `reconcile.statement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from tandem.errors import Reason
from tandem.reconcile.conflicts import Attempts, RoundHistory
from tandem.reconcile.matches import InsertFile, Matches, Sources
from tandem.reconcile.model import CommitSummary
from tandem.rowmap.positions import Positions
from tandem.spec.update import Isolation

_NONE = Attempts()


@dataclass(frozen=True, slots=True)
class Policy:
    """`max_attempts` bounds rounds without progress (`reconcile.conflicts`). `inserts`: a merge of
    this statement inserts source rows that no row matches, so it depends on all rows at once."""

    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    deterministic: bool = True
    max_attempts: int = 5
    inserts: bool = True


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """All rows live at version `evaluated_at` (S) are evaluated: `matches` has those that
    matched, by files of S, and `inserts` the files with their new contents. A merge (`merged`)
    may delete some and update others; its `fresh` files hold the source rows without a match: they
    are right as long as `sources`, if recorded, are the source rows that match some row. Since
    `sources_diverged` they are wrong."""

    evaluated_at: int
    matches: Matches
    inserts: tuple[InsertFile, ...] = ()
    attempts: Attempts = _NONE
    rounds: int = 1
    rows_evaluated: int = 0  # in rounds after the first
    lost: int = 0  # matched rows that others deleted or changed since
    fresh: tuple[InsertFile, ...] = ()
    merged: bool = False
    sources: Sources | None = field(default=None, compare=False)
    sources_diverged: CommitSummary | None = None
    round_history: RoundHistory = ()  # the rounds that led here, for display


@dataclass(frozen=True, slots=True)
class FileDeletes:
    """A live file of the latest version in which the statement deletes rows: `dead` are all its
    deleted rows afterwards, `deleted` the number of those that the statement deletes."""

    path: str
    rows: int
    dead: BitMap64
    deleted: int

    @property
    def is_whole(self) -> bool:
        """Whether no row is left: the file is removed, not given a deletion vector (Z11)."""
        return len(self.dead) == self.rows


@dataclass(frozen=True, slots=True)
class ReadyToCommit:
    """Commit on top of version `at`.

    `inserts` are the insert files to add, each with its `masks` (rows whose original is gone);
    `dropped_inserts` have no row left. `rows_matched` is the effect of the statement: that many
    rows are deleted, and for an update as many inserted. `moved` of them had been rewritten. Of a
    merge only `rows_updated` are inserted, and `fresh` files are added unchanged. `matches` says
    which row of an insert file holds the new values of a row, by files of version `at`.
    """

    at: int
    deletes: Mapping[str, FileDeletes]
    inserts: tuple[str, ...]
    masks: Mapping[str, BitMap64]
    dropped_inserts: tuple[str, ...]
    rows_matched: int
    moved: int
    progress: StatementProgress
    moved_to: Mapping[str, int] = field(default_factory=dict)  # of `deletes`, those moved
    fresh: tuple[str, ...] = ()
    rows_updated: int = 0
    matches: Matches = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdatedRows:
    """Rows of a file, at ascending `positions`, that take the values of `rows` of an insert
    file."""

    insert: str
    positions: Positions
    rows: Positions


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A live file that a statement makes again where the table has deletion vectors off: without
    its rows `dead`, and with `new` values in others."""

    path: str
    rows: int
    dead: BitMap64
    new: tuple[UpdatedRows, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no row is left: the file is removed, and none takes its place."""
        return len(self.dead) == self.rows


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate these rows of version `at`, by file, and no others; then `absorb`.

    `progress` is the result so far as of that version.
    """

    at: int
    rows: Mapping[str, BitMap64]
    progress: StatementProgress
    why: str = ""
    cause: CommitSummary | None = None


@dataclass(frozen=True, slots=True)
class Reexecute:
    """Discard the result and execute the whole statement at version `at`. `start` takes
    `attempts`."""

    at: int
    why: str
    attempts: Attempts
    round_history: RoundHistory = ()


@dataclass(frozen=True, slots=True)
class StatementConflict:
    """The operation has failed; `why` names the commit and the files that it changed, which are
    `cause` and `files` if a commit caused it."""

    why: str
    reason: Reason = Reason.CONFLICT
    cause: CommitSummary | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reinsert:
    """Only the inserts of a merge are wrong: other rows of its source match some row than
    before. Evaluate the inserts of source rows without a match, then call `inserted`.

    `progress` has the result of every row of the table at S; its `matches` determine which rows of
    the source match. Returned only to callers that evaluate small rounds.
    """

    progress: StatementProgress
    why: str = ""


Outcome = ReadyToCommit | Evaluate | Reexecute | Reinsert | StatementConflict
