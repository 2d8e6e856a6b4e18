"""The rule for replaces: which rows of the latest version one removes, by the ages of rows:
whether they descend from rows that were live at its start. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from tandem.errors import Reason
from tandem.reconcile.matches import prefetch
from tandem.reconcile.model import CommitSummary, FileView, NewRows, RowMapLike, RowMaps
from tandem.reconcile.outcomes import FileDeletes, StatementConflict
from tandem.reconcile.rules import REPLACE, Age, ReplaceFate
from tandem.remedies import ENABLE_VECTORS
from tandem.rowmap.run_table import span
from tandem.spec.replace import Scope
from tandem.text import counted, files_in_words

# Ages of rows: which rows of a version descend from rows that were live at a replace's cutoff.
#
# Ages are carried from commit to commit, by the rules in `rules` (docs/replacing-data.md).
# Pure. Must not know what a replace does with a row of an age.


Aged = dict[Age, BitMap64]
"""Positions of a file by their age; no set is empty, and none has a position of another."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is known of all rows of a file that the cutoff lacks: their age, or the map of the
    rewrite that wrote it; and the commit that first added it."""

    age: Age
    row_map: RowMapLike | None
    commit: CommitSummary


@dataclass(frozen=True, slots=True)
class RowAges:
    """The ages of rows at a version that follows a cutoff.

    Attributes:
        cutoff: the live files at the cutoff.
        named: paths of files whose rows may be replaced; None: all of the cutoff's.
    """

    cutoff: FileView
    named: frozenset[str] | None = None
    _origins: dict[str, _Origin] = field(default_factory=dict)

    @property
    def added(self) -> Collection[str]:
        """The files that the cutoff lacks and that were live since."""
        return self._origins.keys()

    def of(self, path: str, positions: BitMap64) -> Aged:
        """These rows of a file by age."""
        found: Aged = {}
        state = self.cutoff.get(path)
        if state is not None:
            replaceable = self.named is None or path in self.named
            _add(found, Age.OLD if replaceable else Age.OTHER, positions - state.dead)
            # They were not live at the cutoff: a restore has brought them back.
            _add(found, Age.UNKNOWN, positions & state.dead)
            return found
        origin = self._origins.get(path)
        if origin is None:
            _add(found, Age.UNKNOWN, positions)
        elif origin.row_map is None:
            _add(found, origin.age, positions)
        else:
            row_map = origin.row_map
            backward = row_map.backward(path, positions)
            prefetch(self.cutoff, list(backward))
            for source, rows in backward.items():
                for age, there in self.of(source, rows).items():
                    _add(found, age, row_map.forward(source, there).get(path, BitMap64()))
            _add(found, Age.UNKNOWN, positions.difference(*found.values()))
        return found

    def cause(self, path: str, age: Age) -> CommitSummary | None:
        """The commit that gave rows of a file their age, if one of them has it. None: the file was
        live at the cutoff."""
        origin = self._origins.get(path)
        if origin is None or origin.row_map is None:
            return None if origin is None else origin.commit
        for source in origin.row_map.sources(path):
            state = origin.row_map.input(source)
            if age in self.of(source, span(0, state.rows) - state.dead):
                return self.cause(source, age)
        return origin.commit

    def after(
        self,
        commits: Iterable[CommitSummary],
        view: Callable[[int], FileView | None],
        row_maps: RowMaps,
    ) -> RowAges:
        """The ages after these commits, which follow one another.

        Args:
            view: the live files at a version, None if the log can no longer reconstruct it. It is
                called for the versions around a commit whose new rows are as old as those that it
                took away.
            row_maps: the valid maps of the files that these commits added.
        """
        ages = replace(self, _origins=dict(self._origins))
        for commit in commits:
            prefetch(self.cutoff, sorted(commit.added))
            # A file has the age that its first commit gave it, also if a restore brings it back.
            fresh = [
                path
                for path in commit.added
                if path not in ages._origins and self.cutoff.get(path) is None
            ]
            if fresh:
                age = ages._age_of_new(commit, view)
                # A map knows it row by row, also of rows that an edit of ours changed.
                known = commit.new_rows in (NewRows.MAPPED, NewRows.TAKEN)
                maps = row_maps if known else {}
                ages._origins.update({path: _Origin(age, maps.get(path), commit) for path in fresh})
        return ages

    def _age_of_new(self, commit: CommitSummary, view: Callable[[int], FileView | None]) -> Age:
        if commit.new_rows is NewRows.ARRIVED:
            return Age.LATE
        return self._taken(commit, view) if commit.new_rows is NewRows.TAKEN else Age.UNKNOWN

    def _taken(self, commit: CommitSummary, view: Callable[[int], FileView | None]) -> Age:
        """The age of the rows that a commit took away, if it is one."""
        before, after = view(commit.version - 1), view(commit.version)
        if before is None or after is None:
            return Age.UNKNOWN
        paths = sorted(commit.files)
        prefetch(before, paths)
        prefetch(after, paths)
        found: set[Age] = set()
        for path in paths:
            was, now = before.get(path), after.get(path)
            if was is None:
                continue
            taken = (span(0, was.rows) if now is None else now.dead) - was.dead
            found.update(self.of(path, taken))
        if found == {Age.OTHER, Age.LATE}:
            return Age.LATE  # whichever they are, they stay
        return found.pop() if len(found) == 1 else Age.UNKNOWN


def _add(found: Aged, age: Age, positions: BitMap64) -> None:
    if positions:
        found[age] = found[age] | positions if age in found else positions


# The rule for replaces: which rows of the latest version one removes.
#
# `AtStart` removes rows, not what a predicate selects: the rows in its scope that descend from
# rows of its cutoff. Its place in the order of commits is its commit, and rows that came since
# stay wherever they lie. `AtCommit` is a Serializable delete by predicate. Both add the rows of
# the source in the same commit (docs/replacing-data.md).
#
# Pure. A row is in scope by its own values, which never change: a file's rows are read once.


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
            f"its LakeTable has vectors: Only. {ENABLE_VECTORS.in_resource}, or "
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
