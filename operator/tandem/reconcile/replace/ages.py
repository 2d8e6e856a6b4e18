"""Ages of rows: which rows of a version descend from rows that were live at a replace's cutoff.

Ages are carried from commit to commit, by the rules in `rules` (design, "Intervals", section 3).
Pure. Must not know what a replace does with a row of an age.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from tandem.reconcile.model import CommitSummary, FileView, NewRows, RowMapLike, RowMaps
from tandem.reconcile.row_tracing import prefetch
from tandem.reconcile.rules import Age
from tandem.rowmap.positions import span

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
