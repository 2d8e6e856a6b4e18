"""Rules that look right and are not: each loses, doubles or revives rows in some history.

Kept to show that the search would notice if ours became one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from pyroaring import BitMap64

from tandem.errors import CountMismatch
from tandem.reconcile import replace as replaces
from tandem.reconcile import row_tracing, statement
from tandem.reconcile.model import (
    ChangeKind,
    CommitSummary,
    FileState,
    FileView,
    NewRows,
    RowMapLike,
    RowMaps,
)
from tandem.reconcile.replace import RowAges
from tandem.reconcile.rewrite import RewriteDecision, RewriteInput, rewrite
from tandem.reconcile.rules import REPLACE, Age, ReplaceFate
from tandem.rowmap.positions import span
from tandem.spec.replace import Scope


@dataclass
class AccumulatingMasks:
    """Rows once seen deleted stay masked in every later round: the union of all bitmaps."""

    seen: dict[int, dict[str, BitMap64]] = field(default_factory=dict)

    def __call__(
        self, inputs: Sequence[RewriteInput], view: FileView, row_map: RowMapLike, **more: Any
    ) -> RewriteDecision:
        seen = self.seen.setdefault(id(row_map), {})
        for file in inputs:
            now = view.get(file.path)
            if now is not None:
                seen[file.path] = seen.get(file.path, BitMap64()) | now.dead

        class Union:
            def get(self, path: str) -> FileState | None:
                now = view.get(path)
                return (
                    None if now is None else replace(now, dead=seen.get(path, now.dead) | now.dead)
                )

        return rewrite(inputs, Union(), row_map, **more)


def differences_only(
    inputs: Sequence[RewriteInput], view: FileView, row_map: RowMapLike, **more: Any
) -> RewriteDecision:
    """Remap what was deleted since; do not ask whether something was brought back."""

    class Union:
        def get(self, path: str) -> FileState | None:
            now = view.get(path)
            read = next((file.dead_at_read for file in inputs if file.path == path), BitMap64())
            return None if now is None else replace(now, dead=now.dead | read)

    return rewrite(inputs, Union(), row_map, **more)


def no_validation_of_inputs(
    inputs: Sequence[RewriteInput], view: FileView, row_map: RowMapLike, **more: Any
) -> RewriteDecision:
    """Publish on top of a fresh view as if nothing had happened since the plan (Z2)."""

    class AsPlanned:
        def get(self, path: str) -> FileState | None:
            file = next((file for file in inputs if file.path == path), None)
            return view.get(path) if file is None else FileState(path, file.rows, file.dead_at_read)

    return rewrite(inputs, AsPlanned(), row_map, **more)


def cuts_forget_deletes(
    inputs: Sequence[RewriteInput], view: FileView, row_map: RowMapLike, **more: Any
) -> RewriteDecision:
    """OutputMask in a file that is cut what was taken, and let the outputs be as they were read."""
    if not any(file.cut for file in inputs):
        return rewrite(inputs, view, row_map, **more)
    found = no_validation_of_inputs(inputs, view, row_map, **more)
    live = {path: now for path in found.cuts if (now := view.get(path)) is not None}
    cuts = {
        path: replace(cut, dead=cut.dead | live[path].dead)
        for path, cut in found.cuts.items()
        if path in live
    }
    return replace(found, cuts=cuts)


def cut_files_go_whole(
    inputs: Sequence[RewriteInput], view: FileView, row_map: RowMapLike, **more: Any
) -> RewriteDecision:
    """Remove a file of which some rows were taken."""
    found = rewrite(inputs, view, row_map, **more)
    return replace(found, removes=(*found.removes, *found.cuts), cuts={})


def no_validation_since_read(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """Begin the conflict window at the latest version instead of the one that was read."""
    latest = commits[-1].version if commits else progress.evaluated_at
    view = more["view"](latest)
    kept = {path: found for path, found in progress.matches.items() if view.get(path)}
    try:
        return statement.decide(replace(progress, evaluated_at=latest, matches=kept), (), **more)
    except CountMismatch:
        # A row that is dead already is "deleted" again; its insert is published all the same.
        return statement.StatementConflict("")


def _with_trace_rows(naive: Any) -> Any:
    def decide(*args: Any, **more: Any) -> statement.Outcome:
        with mock.patch.object(row_tracing, "trace_rows", naive):
            return statement.decide(*args, **more)

    return decide


def _changed_files_only(
    path: str, positions: BitMap64, at_s: FileView, row_maps: RowMaps
) -> tuple[list[row_tracing.TracedRows], BitMap64]:
    """Run the statement again on files that were added; files that were there are done."""
    state = at_s.get(path)
    if state is not None:
        return [row_tracing.TracedRows(path, positions - state.dead)], BitMap64()
    return _real_trace_rows(path, positions, at_s, row_maps)


def _except_mapped_files(
    path: str, positions: BitMap64, at_s: FileView, row_maps: RowMaps
) -> tuple[list[row_tracing.TracedRows], BitMap64]:
    """Evaluate added files, except those of mapped rewrites."""
    traced, unknown = _real_trace_rows(path, positions, at_s, row_maps)
    return traced, BitMap64() if path in row_maps else unknown


def _evaluate_mapped_files(
    path: str, positions: BitMap64, at_s: FileView, row_maps: RowMaps
) -> tuple[list[row_tracing.TracedRows], BitMap64]:
    """A file with any row that S did not know is evaluated as a whole, and the results of S
    for its other rows are kept as well."""
    traced, unknown = _real_trace_rows(path, positions, at_s, row_maps)
    return traced, positions if unknown else unknown


_real_trace_rows = row_tracing.trace_rows

changed_files_only = _with_trace_rows(_changed_files_only)
except_mapped_files = _with_trace_rows(_except_mapped_files)
evaluate_mixed_files_whole = _with_trace_rows(_evaluate_mapped_files)


def ignore_gaps(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """Take commits that are no longer in the log for appends."""
    summaries: list[CommitSummary] = []
    version = progress.evaluated_at
    for commit in commits:
        if commit.kind is ChangeKind.GAP:
            summaries += (
                replace(commit, kind=ChangeKind.BLIND_APPEND, version=lost)
                for lost in range(version + 1, commit.version + 1)
            )
        else:
            summaries.append(commit)
        version = commit.version
    return statement.decide(progress, tuple(summaries), **more)


def appends_by_actions(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """Take whatever adds one file for a blind append: an insert-only merge looks the same."""
    summaries = tuple(
        replace(c, kind=ChangeKind.BLIND_APPEND)
        if c.kind is ChangeKind.CHANGE and len(c.files) <= 1
        else c
        for c in commits
    )
    return statement.decide(progress, summaries, **more)


def non_deterministic_in_part(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """Evaluate a random statement only on the rows that changed."""
    policy = replace(more.pop("policy"), deterministic=True)
    return statement.decide(progress, commits, policy=policy, **more)


def merges_look_once(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """A merge that found no row of a key inserts one, whatever was committed meanwhile."""
    if not more["policy"].inserts:
        return statement.decide(progress, commits, **more)
    summaries = tuple(replace(commit, kind=ChangeKind.BLIND_APPEND) for commit in commits)
    return statement.decide(progress, summaries, **more)


def inserts_stay_as_they_are(
    progress: statement.StatementProgress, commits: Sequence[CommitSummary], **more: Any
) -> statement.Outcome:
    """Take other matches for a reason to go on, not to determine the inserts again."""
    outcome = statement.decide(progress, commits, **more)
    while isinstance(outcome, statement.Reinsert):
        progress = statement.inserted(outcome.progress, progress.fresh)
        commits = [c for c in commits if c.version > progress.evaluated_at]
        outcome = statement.decide(progress, commits, **more)
    return outcome


# --- Replaces -------------------------------------------------------------------------------


def _with_fate(fate: ReplaceFate) -> Any:
    def decide(*args: Any, **more: Any) -> Any:
        naive = {**REPLACE, Scope.AT_START: {**REPLACE[Scope.AT_START], Age.UNKNOWN: fate}}
        with mock.patch.object(replaces, "REPLACE", naive):
            return replaces.decide(*args, **more)

    return decide


unknown_rows_stay = _with_fate(ReplaceFate.STAYS)
unknown_rows_are_removed = _with_fate(ReplaceFate.REMOVED)


def whole_files_are_removed(*args: Any, **more: Any) -> Any:
    """A file with one row to remove goes as a whole, as engines without deletion vectors drop."""
    found = replaces.decide(*args, **more)
    if not isinstance(found, replaces.Removal):
        return found
    whole = {path: replace(file, dead=span(0, file.rows)) for path, file in found.deletes.items()}
    return replace(found, deletes=whole)


class MixedRowsAreOld(RowAges):
    """A rewrite without a map, of old rows and of late ones, makes old rows of all."""

    _mixed = Age.OLD

    def _taken(self, commit: CommitSummary, view: Any) -> Age:
        found = super()._taken(commit, view)
        return self._mixed if found is Age.UNKNOWN else found


class MixedRowsAreLate(MixedRowsAreOld):
    _mixed = Age.LATE


class MergedRowsAreLate(RowAges):
    """What a merge writes counts as new, also the rows that it updated."""

    def _age_of_new(self, commit: CommitSummary, view: Any) -> Age:
        found = super()._age_of_new(commit, view)
        unknown = commit.new_rows is NewRows.UNKNOWN and commit.kind is not ChangeKind.GAP
        return Age.LATE if unknown else found


class LateRowsBeforeAChangeAreOld(RowAges):
    """The rule for statements: evaluate rows that came before the newest change."""

    def after(self, commits: Any, view: Any, row_maps: Any) -> RowAges:
        commits = list(commits)
        changes = [c.version for c in commits if c.kind is ChangeKind.CHANGE]
        newest = max(changes, default=0)
        made_old = [
            replace(c, new_rows=NewRows.MAPPED)
            if c.new_rows is NewRows.ARRIVED and c.version < newest
            else c
            for c in commits
        ]
        ages = super().after(made_old, view, row_maps)
        return _UnknownIsOld(ages.cutoff, ages.named, ages._origins)


class _UnknownIsOld(RowAges):
    def of(self, path: str, positions: BitMap64) -> Any:
        return {Age.OLD if age is Age.UNKNOWN else age: rows
                for age, rows in super().of(path, positions).items()}  # fmt: skip
