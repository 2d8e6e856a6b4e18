"""The rules of reconciliation with the commits of a table, as tables.

Nothing here looks at files or rows: `classify` (also `TABLE_CHANGES`), `rewrite`, `replace`
(`REPLACE`), `outcomes` (`MUST_FOLLOW`) and `statement` determine which line of a table applies, and
apply it. All of these rules are defined here. What a commit of the base table means to a log of
blocks is in `mergelog.boundaries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tandem.delta.protocol import OperationKind
from tandem.reconcile.model import ChangeKind, NewRows
from tandem.spec.common import Mode
from tandem.spec.replace import Scope
from tandem.spec.update import Isolation

# --- Kinds of commits ---------------------------------------------------------------------


class Engine(StrEnum):
    """The writer of a commit, as far as rules depend on it."""

    TANDEM = "tandem"
    DELTA_RS = "delta-rs"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class AppendRule:
    """A commit is a blind append if its operation, engine, mode and blindness are these.

    `None` means any. `blind` is `isBlindAppend` as logged; "absent" if the engine does not write
    it. `ours` is the mode of an operation of Tandem by its kind (`Operation.mode`). Actions
    never make a commit an append: an insert-only merge has the same ones.
    """

    operation: str
    engine: Engine | None
    blind: tuple[bool | None, ...]
    mode: str | None = None
    ours: Mode | None = None


BLIND_APPENDS: tuple[AppendRule, ...] = (
    # operation            engine            isBlindAppend   mode             ours
    AppendRule("WRITE", Engine.TANDEM, (True,), "Append", Mode.APPEND),
    AppendRule("WRITE", Engine.DELTA_RS, (None, True), "Append"),
    AppendRule("WRITE", Engine.OTHER, (True,), "Append"),
    AppendRule("STREAMING UPDATE", Engine.OTHER, (True,)),
)

NEUTRAL_WITHOUT_FILES: frozenset[str] = frozenset(
    {
        # Statements that matched nothing. Not MERGE: it depends on rows without a match.
        "UPDATE",
        "DELETE",
        "WRITE",
        "STREAMING UPDATE",
        # Housekeeping.
        "ABANDON",
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        # Table changes: `TABLE_CHANGES` has the response to each.
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMN",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "ADD FEATURE",
        "DROP FEATURE",
        "UPGRADE PROTOCOL",
        "UPDATE TABLE METADATA",
        "UPDATE FIELD METADATA",
    }
)
"""Operations whose commit changed no data if it has no file action. Others count as a change."""

# --- Ages of rows: replace ------------------------------------------------------------------

NEW_ROWS: Mapping[str, NewRows] = {
    "DELETE": NewRows.TAKEN,
    "UPDATE": NewRows.TAKEN,
    "OPTIMIZE": NewRows.TAKEN,
    "REORG": NewRows.TAKEN,
}
"""Where the rows in new files of a commit come from, by its operation, for all engines. The
exceptions: blind appends, and `MERGE` commits that remove nothing, bring their rows; a mapped
rewrite moves them. Rows of all other commits may come from anywhere: of a `MERGE` that changed
rows, an overwrite, a restore, another replace."""


class Age(StrEnum):
    """When a row came, as a replace sees it. Its cutoff is the version that it regards as its
    start."""

    OLD = "old"  # it descends from a row that was live at the cutoff, and that may be replaced
    OTHER = "other"  # from one that was live at the cutoff in a segment that is not named
    LATE = "late"  # it came afterwards
    UNKNOWN = "unknown"


class ReplaceFate(StrEnum):
    """What a replace does with a row in its scope."""

    REMOVED = "removed"
    STAYS = "stays"
    CONFLICT = "conflict"  # nothing is published


REPLACE: Mapping[Scope, Mapping[Age, ReplaceFate]] = {
    #                       AtStart                     AtCommit
    Scope.AT_START: {
        Age.OLD: ReplaceFate.REMOVED,
        Age.OTHER: ReplaceFate.STAYS,
        Age.LATE: ReplaceFate.STAYS,
        # A guess would lose late rows, or bring replaced ones back.
        Age.UNKNOWN: ReplaceFate.CONFLICT,
    },
    Scope.AT_COMMIT: dict.fromkeys(Age, ReplaceFate.REMOVED),
}

# --- Rewrites: compaction, segment rewrite ------------------------------------------------


class InputFate(StrEnum):
    """The deleted rows of a rewrite's input now, compared with those when it was read."""

    SAME = "the same rows deleted"
    SUPERSET = "more rows deleted"
    OTHER = "fewer or other rows deleted"
    HEIR = "no longer live; all its rows that are left are in one file"
    GONE = "no longer live"


class OutputMask(StrEnum):
    """Which rows of an input must be dead in the outputs."""

    NONE = "none"
    DIFFERENCE = "those deleted since"
    LEFT_OUT = "those that its heir lacks"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """What happens to an input, and to its rows in the outputs."""

    mask: OutputMask
    remove_input: bool


REWRITE: Mapping[InputFate, RewriteRule] = {
    #                                 hide in outputs   remove
    InputFate.SAME: RewriteRule(OutputMask.NONE, True),
    InputFate.SUPERSET: RewriteRule(OutputMask.DIFFERENCE, True),
    InputFate.OTHER: RewriteRule(OutputMask.ALL, False),  # still live beside the outputs
    InputFate.HEIR: RewriteRule(OutputMask.LEFT_OUT, False),  # its heir is removed
    InputFate.GONE: RewriteRule(OutputMask.ALL, False),
}
"""Rows are hidden by deletion vectors, or, where the table has them off, by edits: the outputs are
made again without them (docs/decisions/0191). An heir goes only if the outputs have all its
live rows (R-7); of rows that it changed, the outputs take its values."""


@dataclass(frozen=True, slots=True)
class CutRule:
    """What happens to an input of which a rewrite takes some rows only: which of the rows that it
    took are masked in the outputs, and whether they are masked in the input."""

    mask: OutputMask
    mask_input: bool


CUT: Mapping[InputFate, CutRule] = {
    #                                 mask in outputs   mask what was taken in the input
    InputFate.SAME: CutRule(OutputMask.NONE, True),
    InputFate.SUPERSET: CutRule(OutputMask.DIFFERENCE, True),
    InputFate.OTHER: CutRule(OutputMask.ALL, False),
    InputFate.HEIR: CutRule(OutputMask.ALL, False),
    InputFate.GONE: CutRule(OutputMask.ALL, False),
}
"""For inputs that are cut. An heir of one keeps all its rows: it has rows that the outputs lack."""

# --- Statements: update, delete -------------------------------------------------------------

MUST_FOLLOW: Mapping[Isolation, frozenset[ChangeKind]] = {
    Isolation.WRITE_SERIALIZABLE: frozenset({ChangeKind.CHANGE, ChangeKind.GAP}),
    Isolation.SERIALIZABLE: frozenset({ChangeKind.BLIND_APPEND, ChangeKind.CHANGE, ChangeKind.GAP}),
}
"""Commits that a statement must be evaluated after: the newest of them is L. The others change no
row, or may be ordered after the statement."""

# --- Table changes ------------------------------------------------------------------------


class TableChange(StrEnum):
    """A difference between the table at the read version and at the latest."""

    OTHER_TABLE = "another table is at this location"
    OLDER_VERSION = "the log ends before the version that was read"
    PARTITIONING = "it is partitioned by other columns"
    PROTOCOL_REFUSED = "its protocol no longer allows this operation"
    VECTORS_OFF = "deletion vectors were switched off"
    MAPPING_MODE = "its column mapping changed"
    COLUMN_ADDED = "a column was added"
    COLUMN_ADDED_REQUIRED = "a column that must not be null was added"
    COLUMN_DROPPED_MAPPED = "a column was dropped under column mapping"
    COLUMN_DROPPED = "a column was dropped without column mapping"
    COLUMN_RENAMED_MAPPED = "a column was renamed under column mapping"
    TYPE_WIDENED = "a column's type was widened"
    TYPE_CHANGED = "a column has another type"
    NULLABLE_CHANGED = "a column's nullability changed"
    FIELD_METADATA = "a column's metadata changed"
    ROW_IDS = "row tracking was enabled or disabled"
    FILE_DEMANDS = "data files must have other columns or ids, as for Iceberg"
    CONSTRAINTS = "its constraints changed"  # `delta.appendOnly` is one of them
    PROPERTIES = "its properties changed"


class Response(StrEnum):
    SURVIVE = "go on"
    VECTORS = "conflict where deletion vectors are needed, else go on"
    VALIDATE = "plan and validate the operation again, then execute it again"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class TableRule:
    """What an operation does after a change: a compaction or a segment rewrite, and any other."""

    rewrite: Response
    other: Response

    def response(self, kind: OperationKind) -> Response:
        return self.rewrite if kind is OperationKind.COMPACTION else self.other


TABLE_CHANGES: Mapping[TableChange, TableRule] = {
    #                                             rewrite            all others
    TableChange.OTHER_TABLE: TableRule(Response.CONFLICT, Response.CONFLICT),
    TableChange.OLDER_VERSION: TableRule(Response.CONFLICT, Response.CONFLICT),
    TableChange.PARTITIONING: TableRule(Response.CONFLICT, Response.VALIDATE),
    TableChange.PROTOCOL_REFUSED: TableRule(Response.CONFLICT, Response.CONFLICT),
    TableChange.VECTORS_OFF: TableRule(Response.VECTORS, Response.VECTORS),
    TableChange.MAPPING_MODE: TableRule(Response.CONFLICT, Response.VALIDATE),
    TableChange.COLUMN_ADDED: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.COLUMN_ADDED_REQUIRED: TableRule(Response.CONFLICT, Response.VALIDATE),
    TableChange.COLUMN_DROPPED_MAPPED: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.COLUMN_DROPPED: TableRule(Response.CONFLICT, Response.VALIDATE),
    TableChange.COLUMN_RENAMED_MAPPED: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.TYPE_WIDENED: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.TYPE_CHANGED: TableRule(Response.CONFLICT, Response.VALIDATE),
    # The rows are the same, whichever writer checked them; readers accept nulls either way.
    TableChange.NULLABLE_CHANGED: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.FIELD_METADATA: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.ROW_IDS: TableRule(Response.VALIDATE, Response.VALIDATE),
    TableChange.FILE_DEMANDS: TableRule(Response.VALIDATE, Response.VALIDATE),
    TableChange.CONSTRAINTS: TableRule(Response.SURVIVE, Response.VALIDATE),
    TableChange.PROPERTIES: TableRule(Response.SURVIVE, Response.SURVIVE),
}
