"""The rule for replaces: which rows of the latest version one removes.

`AtStart` removes rows, not what a predicate selects: the rows in its scope that descend from rows
of its cutoff. Its place in the order of commits is its commit, and rows that came since stay
wherever they lie. `AtCommit` is a Serializable delete by predicate. Both add the rows of the source
in the same commit (design, "Intervals", section 3).

Pure. A row is in scope by its own values, which never change: a file's rows are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from tandem.errors import Reason
from tandem.reconcile.model import CommitSummary, FileView
from tandem.reconcile.outcomes import FileDeletes, StatementConflict
from tandem.reconcile.replace.ages import Aged, RowAges
from tandem.reconcile.row_tracing import prefetch
from tandem.reconcile.rules import REPLACE, Age, ReplaceFate
from tandem.spec.replace import Scope
from tandem.text import counted, files_in_words

RowsInScope = Callable[[str], BitMap64 | None]
"""The rows of a file in scope, live or not; None if it has to be read first."""


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Before a decision, find out which rows of these files are in scope."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """What a replace removes on top of the version of the view.

    `cleared` are those of the files in `deletes` that have no live row in scope afterwards. `rows`
    counts the rows that are removed, `late` those in scope that stay since they came after the
    cutoff; `removed` and `kept` have their positions by file.
    """

    deletes: Mapping[str, FileDeletes] = field(default_factory=dict)
    cleared: frozenset[str] = frozenset()
    rows: int = 0
    late: int = 0
    removed: Mapping[str, BitMap64] = field(default_factory=dict)
    kept: Mapping[str, BitMap64] = field(default_factory=dict)


def decide(
    scope: Scope,
    candidates: Iterable[str],
    now: FileView,
    rows_in_scope: RowsInScope,
    ages: RowAges | None = None,
    *,
    in_part: bool = True,
) -> Removal | ReadFiles | StatementConflict:
    """Decide what a replace removes on top of the version of `now`.

    Args:
        candidates: the files of that version that may hold rows in scope.
        ages: of the rows of that version; not needed at commit.
        in_part: whether rows may leave a file that keeps others: by a deletion vector, or an edit.
    """
    paths = sorted(candidates)
    prefetch(now, paths)
    unread: list[str] = []
    deletes: dict[str, FileDeletes] = {}
    doubtful: list[str] = []
    partial: list[str] = []
    cleared: set[str] = set()
    removed: dict[str, BitMap64] = {}
    kept: dict[str, BitMap64] = {}
    for path in paths:
        state = now.get(path)
        if state is None:
            continue
        chosen = rows_in_scope(path)
        if chosen is None:
            unread.append(path)
            continue
        gone = BitMap64()
        for age, rows in _aged(scope, ages, path, chosen - state.dead).items():
            fate = REPLACE[scope][age]
            if fate is ReplaceFate.CONFLICT:
                doubtful.append(path)
            elif fate is ReplaceFate.REMOVED:
                gone |= rows
            elif age is Age.LATE:
                kept[path] = rows
        if gone:
            removed[path] = gone
            found = deletes[path] = FileDeletes(path, state.rows, state.dead | gone, len(gone))
            if not found.is_whole and not in_part:
                partial.append(path)
            if chosen <= found.dead:
                cleared.add(path)
    if unread:
        return ReadFiles(tuple(unread))
    if doubtful:
        assert ages is not None
        return _conflict(doubtful, ages)
    if partial:
        why = (
            f"some rows of {files_in_words(partial)} stay, the table has no deletion vectors, and "
            "its LakeTable has vectors: Only. Set enableDeletionVectors: true in the LakeTable, or "
            "vectors: Auto, or name intervals and partitions that hold whole files"
        )
        return StatementConflict(why, Reason.DELETION_VECTORS_DISABLED, files=tuple(partial))
    rows_removed = sum(file.deleted for file in deletes.values())
    late = sum(map(len, kept.values()))
    return Removal(deletes, frozenset(cleared), rows_removed, late, removed, kept)


def _aged(scope: Scope, ages: RowAges | None, path: str, rows: BitMap64) -> Aged:
    if not rows:
        return {}
    if scope is Scope.AT_COMMIT:
        return {Age.UNKNOWN: rows}  # whatever their age is
    assert ages is not None
    return ages.of(path, rows)


def _conflict(paths: list[str], ages: RowAges) -> StatementConflict:
    causes = [ages.cause(path, Age.UNKNOWN) for path in paths]
    found: list[CommitSummary] = [cause for cause in causes if cause is not None]
    cause = max(found, key=lambda commit: commit.version, default=None)
    who = "a restore brought rows back" if cause is None else cause.who
    why = (
        f"{who}: {counted(len(paths), 'file')} with rows in scope, and it is unknown whether "
        f"they came after the start ({files_in_words(paths)}). With scope AtCommit they are "
        "replaced, too. Run again, it takes a new start, and replaces all rows that came before "
        "that; with startVersion it meets the same commit"
    )
    return StatementConflict(why, cause=cause, files=tuple(paths))
