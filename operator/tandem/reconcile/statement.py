"""The rule for update, delete and merge: a statement has one place in the commit order.

S is the version at which all rows were last evaluated, L the newest commit since S that the
statement must come after (`rules.MUST_FOLLOW`). While there is an L, rows live at L that were
live at S keep their result, the others are evaluated once, and S becomes L. Without an L, the
result is carried over to the latest version: rewritten rows are followed, rows deleted meanwhile
are left out of the statement's deletes *and* inserts, later appends stay as they are. A merge that
inserts also depends on rows that it did *not* find: its inserts stay right as long as the same
source rows match some row; else its inserts are determined again (`inserted`), if the caller can
do so from the source alone, or it is executed again as a whole at the latest version
(docs/decisions/0081-merge-goes-on-with-its-matches.md).

The caller may evaluate a round itself, without a job (`small`): such rounds take milliseconds and
count less (`outcomes`).

The state is `StatementProgress`; `decide` determines the next step, `absorb` adds the result of a
round. Nothing here mutates its arguments, so repeated calls give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from pyroaring import BitMap64

from tandem.errors import CountMismatch
from tandem.reconcile.matches import (
    InsertFile,
    RoundResult,
    check_merge,
    check_part,
    check_result,
    count,
    joined,
    matched_sources,
    prefetch,
    same_sources,
    trace_matches,
    used_inserts,
    without_unchanged_rows,
)
from tandem.reconcile.model import ChangeKind, CommitSummary, FileView, RowMaps
from tandem.reconcile.outcomes import (
    Attempts,
    Evaluate,
    FileDeletes,
    FileEdit,
    Outcome,
    Policy,
    ReadyToCommit,
    Reexecute,
    Reinsert,
    RoundHistory,
    StatementConflict,
    StatementProgress,
    UpdatedRows,
    changed_by,
    latest_of,
    newest_of,
    with_round,
)
from tandem.rowmap.run_table import span, to_bitmap
from tandem.text import counted, files_in_words

__all__ = (
    "Evaluate",
    "FileDeletes",
    "Outcome",
    "Policy",
    "PruneRows",
    "ReadyToCommit",
    "Reexecute",
    "Reinsert",
    "StatementConflict",
    "StatementProgress",
    "Views",
    "absorb",
    "decide",
    "in_place",
    "inserted",
    "start",
)

Views = Callable[[int], FileView | None]
"""The working set at a version; None if the log can no longer reconstruct it."""
PruneRows = Callable[[int, Mapping[str, BitMap64]], Mapping[str, BitMap64]]
"""The rows of a version, by file, that may match, out of those given: others need no evaluation."""
_NONE = Attempts()


def start(
    version: int,
    result: RoundResult,
    *,
    attempts: Attempts = _NONE,
    round_history: RoundHistory = (),
) -> StatementProgress:
    """The state after the whole statement was executed at a version. Raises: CountMismatch."""
    check_result(result)
    return StatementProgress(
        version,
        result.matches,
        result.inserts,
        attempts,
        round_history=round_history,
        fresh=result.fresh,
        merged=result.merged,
        sources=matched_sources(result.matches) if result.recorded else None,
    )


def absorb(requested: Evaluate, result: RoundResult) -> StatementProgress:
    """The state after a round: the results kept and those of the round, as of its version.

    Raises: CountMismatch if the round has matches in rows that were not requested.
    """
    kept = requested.progress
    if kept.merged != result.merged:
        raise ValueError("a merge is followed by rounds of a merge, and nothing else is")
    merged = dict(kept.matches)
    check_part(result, requested.rows)
    for path, found in result.matches.items():
        shifted = replace(
            found,
            outputs=found.outputs + (found.outputs >= 0) * len(kept.inserts),
        )
        merged[path] = joined([merged[path], shifted] if path in merged else [shifted], path)
    done = replace(kept, matches=merged, inserts=(*kept.inserts, *result.inserts))
    return _checked(done, requested.cause, recorded=result.recorded)


def _checked(
    progress: StatementProgress, cause: CommitSummary | None, *, recorded: bool = True
) -> StatementProgress:
    """Record whether other source rows match than before, so that the inserts of a merge are
    wrong. After a round without recorded sources, it is unknown which ones match."""
    wanted = progress.sources
    if wanted is None or (recorded and same_sources(matched_sources(progress.matches), wanted)):
        return progress
    at = progress.evaluated_at
    return replace(
        progress,
        sources=wanted if recorded else None,
        sources_diverged=cause or CommitSummary(at, ChangeKind.CHANGE, frozenset()),
    )


def inserted(progress: StatementProgress, fresh: Sequence[InsertFile]) -> StatementProgress:
    """A merge whose inserts were wrong, with those for the source rows that match no row now.

    `fresh` replaces all earlier inserts. Sound for a deterministic merge that recorded its
    matches: each row of the table has its result, so the source rows that match some row at S are
    known, and hence those that match none; the inserts depend on nothing else.

    Raises: ValueError for any other statement.
    """
    if not progress.merged or progress.sources is None:
        raise ValueError("only a merge that recorded its matches can determine its inserts again")
    matched = matched_sources(progress.matches)
    return replace(progress, fresh=tuple(fresh), sources=matched, sources_diverged=None)


def decide(
    progress: StatementProgress,
    commits: Sequence[CommitSummary],
    *,
    view: Views,
    row_maps: RowMaps,
    policy: Policy,
    prune: PruneRows = lambda _at, rows: rows,
    small: bool = False,
) -> Outcome:
    """Determine the next step.

    `commits` are all since S without a gap (a `GAP` stands for those that the log has lost), up to
    the latest version. `row_maps` has the valid maps of the files added since S, and of the files
    that those were rewritten from. `small`: the caller evaluates the requested rows without a
    job.

    Raises:
        CountMismatch: rows would be lost or duplicated; nothing may be published.
        ValueError: `commits` do not follow S.
    """
    latest = latest_of(progress.evaluated_at, commits)
    if progress.sources_diverged is not None:
        return _diverged(progress, progress.sources_diverged, latest, policy, small)
    newest = newest_of(commits, policy.isolation)
    if newest is not None:
        what = _indivisible(progress, policy)
        if what:
            why = f"{newest.who}: {what} is never evaluated in part"
            return _again(progress, latest, why, policy, cause=newest)
        at = newest.version
        if any(commit.kind is ChangeKind.GAP for commit in commits) or view(at) is None:
            at = latest
        advanced = _advance(progress, commits, at, view, row_maps, newest, prune)
        if not isinstance(advanced, Evaluate):
            return _again(progress, latest, advanced, policy, cause=newest)
        if advanced.rows:
            return _within(advanced, policy, small)
        progress = _checked(advanced.progress, newest)
        if progress.sources_diverged is not None:
            return _diverged(progress, newest, latest, policy, small)
        commits = [commit for commit in commits if commit.version > at]
    return _commit(progress, commits, latest, view, row_maps, policy)


def _indivisible(progress: StatementProgress, policy: Policy) -> str:
    """Why a statement must be executed as a whole; "" if it need not."""
    if not policy.deterministic:
        return "a non-deterministic statement"
    if progress.merged and policy.inserts and progress.sources is None:
        return "a merge that inserts unmatched rows and recorded no matches"
    return ""


def _diverged(
    progress: StatementProgress, cause: CommitSummary, latest: int, policy: Policy, small: bool
) -> Reexecute | Reinsert | StatementConflict:
    why = f"{cause.who}: other rows of the source than before match rows of the table"
    if not small or progress.sources is None:
        return _again(progress, latest, why, policy, cause=cause)
    attempts = progress.attempts.after_small_round()
    if attempts.counted >= policy.max_attempts:
        return _gave_up(attempts, why, cause, cause.files)
    return Reinsert(replace(progress, attempts=attempts), why)


def _advance(
    progress: StatementProgress,
    commits: Sequence[CommitSummary],
    at: int,
    view: Views,
    row_maps: RowMaps,
    newest: CommitSummary,
    prune: PruneRows,
) -> Evaluate | str:
    """S := L. Returns the rows left to evaluate at L, or why that cannot be decided."""
    at_s, at_l = view(progress.evaluated_at), view(at)
    if at_s is None or at_l is None:
        return f"version {progress.evaluated_at} can no longer be read, after {newest.who}"
    changed = changed_by(commit for commit in commits if commit.version <= at)
    traced = trace_matches(progress.matches, changed, at_s, at_l, row_maps)
    # A row that was live at S keeps its result; every other row of L is evaluated there.
    rows = prune(at, traced.unknown) if traced.unknown else {}
    kept = replace(
        progress,
        evaluated_at=at,
        matches=traced.matches,
        lost=progress.lost + traced.lost,
        round_history=with_round(
            progress.round_history,
            at,
            newest,
            rows=sum(len(positions) for positions in rows.values()),
            lost=traced.lost,
        ),
    )
    return Evaluate(at, rows, kept, newest.who, newest)


def _commit(
    progress: StatementProgress,
    commits: Sequence[CommitSummary],
    latest: int,
    view: Views,
    row_maps: RowMaps,
    policy: Policy,
) -> ReadyToCommit | Reexecute | StatementConflict:
    """There is no commit left that the statement must come after: its result, as of the latest
    version.

    Rows that were not live at S are later appends here, and stay as they are.
    """
    at_s, now = view(progress.evaluated_at), view(latest)
    if at_s is None or now is None:
        why = f"version {progress.evaluated_at} can no longer be read"
        return _again(progress, latest, why, policy)
    traced = trace_matches(
        without_unchanged_rows(progress.matches), changed_by(commits), at_s, now, row_maps
    )
    if traced.lost:
        # Only a change can delete a row, and there was none since S (I-17).
        raise CountMismatch(
            "Matched rows are gone although no commit since could remove any",
            found=f"{traced.lost} rows gone since version {progress.evaluated_at}",
            expected="every one of them",
            remedy="Nothing was published; the statement must be executed again",
        )
    deletes: dict[str, FileDeletes] = {}
    prefetch(now, sorted(traced.matches))
    for path, found in traced.matches.items():
        state = now.get(path)
        ours = to_bitmap(found.positions)
        if state is None or not ours.isdisjoint(state.dead) or (ours and ours.max() >= state.rows):
            raise CountMismatch(
                "A row to delete is not live",
                resource=path,
                remedy="Nothing was published; the statement must be executed again",
            )
        if ours:
            deletes[path] = FileDeletes(path, state.rows, state.dead | ours, len(ours))
    used = used_inserts(traced.matches, progress.inserts)
    masks = {
        file.path: span(0, file.rows) - to_bitmap(rows)
        for file, rows in zip(progress.inserts, used, strict=True)
        if 0 < len(rows) < file.rows
    }
    inserts = [f for f, rows in zip(progress.inserts, used, strict=True) if len(rows)]
    dropped = [f for f, rows in zip(progress.inserts, used, strict=True) if not len(rows)]
    matched = sum(file.deleted for file in deletes.values())
    inserted = sum(file.rows - len(masks.get(file.path, ())) for file in inserts)
    if progress.merged:
        written = inserted if progress.lost else sum(file.rows for file in progress.inserts)
        check_merge(traced.matches, matched, inserted, written)
    elif matched != count(traced.matches) or (progress.inserts and inserted != matched):
        raise CountMismatch(
            "An update must insert as many rows as it deletes",
            found=f"{inserted} inserted",
            expected=f"{matched} deleted",
            remedy="Nothing was published; the statement must be executed again",
        )
    return ReadyToCommit(
        at=latest,
        deletes=deletes,
        inserts=tuple(file.path for file in inserts),
        masks=masks,
        dropped_inserts=tuple(file.path for file in dropped),
        rows_matched=matched,
        moved=traced.moved,
        progress=progress,
        moved_to=traced.moved_to,
        fresh=tuple(file.path for file in progress.fresh),
        rows_updated=inserted,
        matches=traced.matches,
    )


def in_place(
    agreed: ReadyToCommit, stays: Callable[[str, str], bool]
) -> tuple[tuple[FileEdit, ...], Mapping[str, BitMap64]]:
    """What a statement changes where the table has deletion vectors off: a row keeps its place in
    its file, and takes its new values from an insert file.

    Args:
        stays: whether a file can hold rows of an insert file: they are of one partition.

    Returns: the live files that change, and the insert files to add, since rows move there, each
    with its hidden rows.
    """
    inserts = agreed.progress.inserts
    edits = []
    moved: dict[int, BitMap64] = {}
    for path, deletes in agreed.deletes.items():
        found = agreed.matches[path]
        new, dead = [], deletes.dead
        for number in np.unique(found.outputs[found.outputs >= 0]).tolist():
            here = np.flatnonzero(found.outputs == number)
            positions, rows = found.positions[here], found.output_positions[here]
            if stays(path, inserts[number].path):
                new.append(UpdatedRows(inserts[number].path, positions, rows))
                dead = dead - to_bitmap(positions)
            else:
                moved[number] = moved.get(number, BitMap64()) | to_bitmap(rows)
        edits.append(FileEdit(path, deletes.rows, dead, tuple(new)))
    hidden = {
        file.path: span(0, file.rows) - moved[number]
        for number, file in enumerate(inserts)
        if number in moved
    }
    return tuple(edits), hidden


def _within(requested: Evaluate, policy: Policy, small: bool) -> Evaluate | StatementConflict:
    """Count the round, and stop after too many without progress."""
    rows = sum(len(positions) for positions in requested.rows.values())
    before = requested.progress
    attempts = before.attempts
    attempts = attempts.after_small_round() if small else attempts.after_round(rows)
    if attempts.counted >= policy.max_attempts:
        return _gave_up(attempts, requested.why, requested.cause, requested.rows)
    progress = replace(
        before,
        attempts=attempts,
        rounds=before.rounds + 1,
        rows_evaluated=before.rows_evaluated + rows,
    )
    return replace(requested, progress=progress)


def _again(
    progress: StatementProgress,
    at: int,
    why: str,
    policy: Policy,
    *,
    cause: CommitSummary | None = None,
) -> Reexecute | StatementConflict:
    attempts = progress.attempts.after_whole()
    if attempts.counted >= policy.max_attempts:
        return _gave_up(attempts, why, cause, cause.files if cause is not None else ())
    round_history = progress.round_history
    if cause is not None:
        round_history = with_round(round_history, at, cause, whole=True)
    return Reexecute(at, why, attempts, round_history)


def _gave_up(
    attempts: Attempts, why: str, cause: CommitSummary | None, files: Collection[str]
) -> StatementConflict:
    """`files` are those with rows that had to be evaluated again, whichever commit changed them."""
    reason = f"{counted(attempts.counted, 'round')} made no progress; the last was lost to {why}"
    if files:
        reason += f": {files_in_words(files)}"
    return StatementConflict(reason, cause=cause, files=tuple(sorted(files)))
