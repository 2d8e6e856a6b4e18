"""Values of the rule for statements: its input (a state), and its results (the next step).

The rule itself is `reconcile.statement`.

What a statement's `conflict` goes by: the commits since a version, and which of its rounds
count towards `conflict.maxAttempts`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from tandem.errors import Reason
from tandem.reconcile.matches import InsertFile, Matches, Sources
from tandem.reconcile.model import Author, ChangeKind, CommitSummary
from tandem.reconcile.rules import MUST_FOLLOW
from tandem.rowmap.run_table import Positions
from tandem.spec.update import Isolation

# The commits since a version, as the rule for statements needs them. Pure.


def newest_of(commits: Sequence[CommitSummary], isolation: Isolation) -> CommitSummary | None:
    """L: the newest commit that the statement must come after."""
    for commit in reversed(commits):
        if commit.kind in MUST_FOLLOW[isolation]:
            return commit
    return None


def changed_by(commits: Iterable[CommitSummary]) -> frozenset[str]:
    """The files that any of them added, removed or gave another deletion vector."""
    return frozenset().union(*(commit.files for commit in commits))


def latest_of(version: int, commits: Sequence[CommitSummary]) -> int:
    """The latest version: that of the last commit. The conflict window begins at `version` (S, the
    version at which all rows were last evaluated) and has no gap (I-23). Raises: ValueError if it
    has one."""
    for commit in commits:
        if commit.version <= version or (
            commit.version != version + 1 and commit.kind is not ChangeKind.GAP
        ):
            raise ValueError(f"version {commit.version} does not follow version {version}")
        version = commit.version
    return version


# Which rounds of a statement count towards `conflict.maxAttempts`.
#
# Other writers commit while a round evaluates earlier changes, so the next round has rows to
# evaluate, too. Waiting does not help: a statement continues at once, as long as it makes
# progress. The measure of progress is the number of rows that are left to evaluate.
#
# | rows to evaluate in a round | effect |
# |---|---|
# | fewer than in any round before | progress: the count starts again |
# | no fewer than in the previous round | no progress: it counts |
# | fewer than in the previous round, but not than in all before | neither |
# | all: the statement is executed from the beginning | it counts, and progress does not reset it |
#
# With "fewer than in the previous round" alone, a statement would continue forever against a
# writer that alternates between rewriting one file and two; with "fewer than in any round" alone,
# it would give up after `maxAttempts` rounds against a writer of one file per second, since the
# number of rows varies by round. With both, every sequence of rounds ends: the smallest number of
# rows decreases finitely often, and between two decreases at most `maxAttempts` rounds count, each
# followed by ever smaller ones. Against a writer that rewrites as many rows in every round there
# is no progress: each round may be the last one, and `maxAttempts` limits them.
#
# A *small* round is evaluated by the engine itself, in milliseconds, without a job. Whether
# another commit comes first is then a matter of chance, so many are tried: `SMALL_ROUNDS` of them
# count as one round without progress, which later progress does not take back.


SMALL_ROUNDS = 100
"""The number of small rounds that counts as one round without progress."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """`counted`: the rounds without progress so far. `lasting`: those of them that progress does
    not reset. `rows`: the rows to evaluate in the last round, and `fewest` in the smallest one;
    None before the first round since the whole statement was executed. `small`: the number of
    small rounds."""

    counted: int = 0
    lasting: int = 0
    rows: int | None = None
    fewest: int | None = None
    small: int = 0

    def after_round(self, rows: int) -> Attempts:
        """After one more round with `rows` rows to evaluate."""
        if self.rows is None or self.fewest is None or rows < self.fewest:
            return Attempts(self.lasting, self.lasting, rows, rows, self.small)
        stalled = rows >= self.rows
        return Attempts(self.counted + stalled, self.lasting, rows, self.fewest, self.small)

    def after_small_round(self) -> Attempts:
        """After one more round that needed no job."""
        small = self.small + 1
        counts = small % SMALL_ROUNDS == 0
        return replace(
            self, counted=self.counted + counts, lasting=self.lasting + counts, small=small
        )

    def after_whole(self) -> Attempts:
        """After one more execution from the beginning: earlier rounds are not comparable."""
        return Attempts(self.counted + 1, self.counted + 1, small=self.small)


# The rounds of a statement: which commits it was reordered after, and the cost of each round.
#
# For reports only; no decision depends on it. Bounded, since a table with continuous writes may
# need hundreds of rounds.


MAX_ROUNDS = 8
"""How many of the last rounds are kept."""


@dataclass(frozen=True, slots=True)
class ConflictRound:
    """A round in which the statement was moved after other commits, up to version `at`; `author`
    made the newest one that mattered. `rows` were evaluated, `lost` matches were gone; `whole`:
    the statement was executed again from the beginning."""

    at: int
    author: Author
    rows: int = 0
    lost: int = 0
    whole: bool = False


RoundHistory = tuple[ConflictRound, ...]


def with_round(
    round_history: RoundHistory,
    at: int,
    cause: CommitSummary,
    *,
    rows: int = 0,
    lost: int = 0,
    whole: bool = False,
) -> RoundHistory:
    """The history with one more round. A round without effect is left out."""
    if not (rows or lost or whole):
        return round_history
    turn = ConflictRound(at, cause.author or Author(cause.version), rows, lost, whole)
    return (*round_history, turn)[-MAX_ROUNDS:]


_NONE = Attempts()


@dataclass(frozen=True, slots=True)
class Policy:
    """`max_attempts` bounds rounds without progress (`reconcile.outcomes`). `inserts`: a merge of
    this statement inserts source rows that no row matches, so it depends on all rows at once."""

    isolation: Isolation = Isolation.WRITE_SERIALIZABLE
    deterministic: bool = True
    max_attempts: int = 5
    inserts: bool = True


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """All rows live at version `evaluated_at` (S, the version at which all rows were last
    evaluated) are evaluated: `matches` has those that matched, by files of S, and `inserts` the
    files with their new contents. A merge (`merged`) may delete some and update others; its
    `fresh` files hold the source rows without a match: they are right as long as `sources`, if
    recorded, are the source rows that match some row. Since `sources_diverged` they are wrong."""

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
