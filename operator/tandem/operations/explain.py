"""Which commits an operation met and how it reconciled with them, as fields and sentences of its
result.

Describes decisions that have been made, and changes none of them. The commit that removed an
input is found among the commits since the read version. They are read only if an input is gone,
and only the last `MOST_COMMITS` of them, since the commit waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from tandem.delta import dv
from tandem.delta.actions import AddFile, Commit, Metadata, Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import LogGap, VersionNotFound
from tandem.jobs.formats import InputFile, RewriteJob
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, Work
from tandem.reconcile.classify import author_of, describe
from tandem.reconcile.model import Author
from tandem.reconcile.rewrite import RewriteDecision
from tandem.reconcile.rules import InputFate
from tandem.spec.replace import Replaced
from tandem.spec.status import OperationResult, Reconciled, ReconciledCommit, RowsReplaced, rfc3339
from tandem.text import clean, counted, human_bytes, listed, quoted
from tandem.timeline.segments import segment_name

if TYPE_CHECKING:
    from tandem.reconcile.outcomes import RoundHistory


# How an operation reconciled with other commits, as short sentences: `result.summary`. Pure.
#
# The wording is in one place, so that a status, the history of a table and an error describe the
# same thing in the same words.


MOST_SEGMENTS = 3
"""Segments that a sentence names; more are counted."""
MOST_INTERVALS = 3
"""Intervals, partitions or segments of a replace that a sentence names; more are counted."""
MOST_SENTENCES = 12


def sentences(
    since: int, found: Reconciled, onto: Mapping[str, int], *, statement: bool
) -> tuple[str, ...]:
    """The outcome of reconciling; the number of commits comes first.

    Args:
        since: the version that the operation read.
        onto: segment → rows deleted in it by replay.
        statement: an update, delete or merge; else a rewrite.
    """
    lines = [_commits(since, found)]
    if found.deletes_remapped:
        lines.append(_replay(found, onto, statement=statement))
    lines += [sentence for met in found.met or () for sentence in of_met(met)]
    unattributed = found.rows_masked - sum(met.rows_masked or 0 for met in found.met or ())
    if unattributed > 0:
        lines.append(f"{counted(unattributed, 'row')} masked because their inputs are gone")
    if found.runs_dropped:
        runs = counted(found.runs_dropped, "run")
        lines.append(f"{runs} of blocks left out: a block was gone")
    if found.rows_lost and not any(met.rows_lost for met in found.met or ()):
        lines.append(f"{counted(found.rows_lost, 'matched row')} deleted or rewritten by others")
    if len(lines) > MOST_SENTENCES:
        lines = [*lines[: MOST_SENTENCES - 1], f"and {len(lines) - MOST_SENTENCES + 1} more"]
    return tuple(lines)


def of_replace(wanted: Replaced, did: RowsReplaced, *, drop: bool) -> tuple[str, ...]:
    """`replaced 2013-03 as of version 41`, and as `left_by_replace`."""
    partitions = ["/".join(f"{n}={v}" for n, v in each.items()) for each in wanted.partitions or ()]
    parts = [
        named
        for named in (
            _named(wanted.intervals or (), "interval"),
            _named(partitions, "partition"),
            _named([f"segment {name}" for name in wanted.segments or ()], "segment"),
        )
        if named
    ]
    since = "" if did.start_version is None else f" as of version {did.start_version}"
    return (
        f"{'dropped' if drop else 'replaced'} {' in '.join(parts)}{since}",
        *left_by_replace(did),
    )


def left_by_replace(did: RowsReplaced) -> list[str]:
    """`312 late rows kept`, `7 rows of the source left out`, `1 chunk left empty`"""
    found = (
        (did.late, "late row", "kept"),
        (did.outside, "row", "of the source left out"),
        (did.empty_chunks, "chunk", "left empty"),
    )
    return [f"{counted(count, what)} {how}" for count, what, how in found if count]


def _named(texts: Sequence[str], what: str) -> str:
    if len(texts) > MOST_INTERVALS:
        return counted(len(texts), what)
    return listed([clean(text) for text in texts]) if texts else ""


def _commits(since: int, found: Reconciled) -> str:
    if not found.commits_seen:
        return f"no other commit since version {since}"
    rounds = f", met in {found.rounds} rounds" if found.rounds > 1 else ""
    return f"{counted(found.commits_seen, 'commit')} since version {since}{rounds}"


def _replay(found: Reconciled, onto: Mapping[str, int], *, statement: bool) -> str:
    how = [counted(found.files_masked, "file")] if found.files_masked else []
    if found.milliseconds is not None:
        how.append(f"{found.milliseconds:,} ms" if found.milliseconds else "less than 1 ms")
    aside = f" ({', '.join(how)})" if how else ""
    where = segments_in_words(onto) if onto else "other files"
    if statement:
        # Others had rewritten the files of these rows.
        return f"{counted(found.deletes_remapped, 'row')} followed into {where}{aside}"
    return f"{counted(found.deletes_remapped, 'delete')} replayed onto {where}{aside}"


def segments_in_words(onto: Mapping[str, int]) -> str:
    """`0.1`, `0.1 (2,000) and 4.1 (113)`, `12 segments`"""
    if len(onto) > MOST_SEGMENTS:
        return f"{len(onto)} segments"
    if len(onto) == 1:
        return next(iter(onto))
    return listed([f"{name} ({rows:,})" for name, rows in onto.items()])


def of_met(met: ReconciledCommit) -> list[str]:
    """What one commit of another writer meant for the operation."""
    who = f"version {met.version} by {author(met)}"
    lines = []
    masked = f" → {counted(met.rows_masked, 'row')} masked" if met.rows_masked else ""
    if met.inputs_gone:
        lines.append(f"{counted(met.inputs_gone, 'input')} gone to {who}{masked}")
        masked = ""
    if met.inputs_restored:
        lines.append(f"deleted rows of {counted(met.inputs_restored, 'input')} restored by "
                     f"{who}{masked}")  # fmt: skip
    if met.executed_again:
        lines.append(f"the whole statement executed again after {who}")
    if met.rows_evaluated:
        lines.append(f"{counted(met.rows_evaluated, 'row')} evaluated as of {who}")
    if met.rows_lost:
        rows = counted(met.rows_lost, "matched row")
        lines.append(f"{rows} deleted or rewritten first, as of {who}")
    return lines


def author(met: ReconciledCommit) -> str:
    """`TableUpdate/late`; for other engines the engine and its operation: `delta-rs:…`
    (OPTIMIZE)."""
    if met.by:
        return met.by
    engine = quoted(met.engine) if met.engine else "an unknown engine"
    return f"{engine} ({met.operation})" if met.operation else engine


def gone_to(mets: Sequence[ReconciledCommit]) -> str:
    """`4 inputs gone to version 44 by …`, for inputs of which nothing is left; "" for none."""
    bare = [met.model_copy(update={"rows_masked": None}) for met in mets]
    return "; ".join(sentence for met in bare for sentence in of_met(met))


def of_row_edits(
    files: int,
    size: int,
    columns: Sequence[str] | None = None,
    share: float | None = None,
    *,
    of: str = "a match",
) -> str:
    """What an operation on some rows costs on a table without deletion vectors.

    Args:
        files: those that may have such a row, of `size` bytes.
        columns: the names of those of which alone the values change; None if rows may be deleted.
        share: of the bytes that these columns have; None if that is not known.
        of: such a row.
    """
    bytes_ = human_bytes(size)
    if columns is None:
        how = f"row groups without one are copied, others are encoded, up to {bytes_}"
    else:
        are = "is" if len(columns) == 1 else "are"
        how = f"row groups without one are copied, of others, only {listed(columns)} {are} encoded"
        if share is not None:
            encoded = human_bytes(round(share * size))
            kept = human_bytes(round((1 - share) * size))
            how += f": about {encoded} at most, and {kept} copied"
    return (
        f"rewrites up to {counted(files, 'file')} ({bytes_}), those with {of}: their {how}. "
        f"{_WITH_VECTORS}no file is rewritten; {_READERS}"
    )


def of_edits(files: int, rounds: int, copied: int, encoded: int) -> str:
    """`2 files edited in 1 round: 12.1 MiB copied, 1.3 MiB encoded`"""
    how = f"{human_bytes(copied)} copied, {human_bytes(encoded)} encoded"
    return f"{counted(files, 'file')} edited in {counted(rounds, 'round')}: {how}"


def of_rewrite_edits(*, sorts: bool, output_bytes: int | None) -> str:
    """What a rewrite costs on a table without deletion vectors, beside other writers."""
    if not sorts:
        return (
            "an input that another writer changes meanwhile costs a row group of the output. "
            f"{_WITH_VECTORS}it costs nothing; {_READERS}"
        )
    size = "" if output_bytes is None else f" (about {human_bytes(output_bytes)})"
    return (
        f"an input that another writer changes meanwhile costs a whole output{size}, and a bin "
        f"that changes faster is left as it was. {_WITH_VECTORS}it costs nothing; {_READERS}"
    )


_WITH_VECTORS: Final = (
    "With deletion vectors (enableDeletionVectors: true, or --enable-deletion-vectors), "
)
_READERS: Final = "readers must then support them (docs/compatibility.md)"


# The result of an operation that was committed in batches, from the results of these. Pure.
#
# Reads nothing: which batches there were is known to the caller.


_SUMS = ("files_added", "files_removed", "files_marked", "bytes_added", "bytes_removed")
_RECONCILED_SUMS = (
    "commits_seen",
    "deletes_remapped",
    "rows_masked",
    "bins_dropped",
    "bins_contended",
    "inputs_gone",
    "edit_rounds",
    "bytes_copied",
    "bytes_encoded",
    "rounds",
    "files_masked",
)


def total(batches: Sequence[OperationResult]) -> OperationResult:
    """The result of several batches, in the order of their commits: the version is that of the
    last one, and the sentences end with those of all."""
    last = batches[-1]
    found = [each.reconciled for each in batches if each.reconciled is not None]
    segments = chain.from_iterable(each.segments or () for each in batches)
    return last.model_copy(
        update={
            **{name: _sum([getattr(each, name) for each in batches]) for name in _SUMS},
            "segments": tuple(dict.fromkeys(segments)) or None,
            "reconciled": _reconciled(found) if found else None,
            "summary": _sentences(batches),
        }
    )


def _reconciled(found: Sequence[Reconciled]) -> Reconciled:
    by_segment: dict[str, int] = {}
    for each in found:
        for name, rows in (each.by_segment or {}).items():
            by_segment[name] = by_segment.get(name, 0) + rows
    sums = {name: _sum([getattr(each, name) for each in found]) for name in _RECONCILED_SUMS}
    return found[-1].model_copy(update={**sums, "by_segment": by_segment or None})


def _sentences(batches: Sequence[OperationResult]) -> tuple[str, ...]:
    versions = listed([str(each.version) for each in batches])
    seen = sum(each.reconciled.commits_seen for each in batches if each.reconciled is not None)
    met = f"{counted(seen, 'commit')} by others meanwhile" if seen else "no other commit meanwhile"
    # The first of each counts other commits since the version that it has read.
    own = tuple(text for each in batches for text in (each.summary or ())[1:])
    return (*(met, *own)[: MOST_SENTENCES - 1], f"in {len(batches)} batches (versions {versions})")


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


MOST_COMMITS = 32
"""How many of the last commits are read to find the one that removed an input."""
MOST_MET = 8
"""How many of the commits that it reconciled with a result names: the last ones."""


class Explainer:
    """Explains one operation. Caches the commits that it has read: the next round adds only a
    few."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._commits: dict[int, Commit] = {}

    def change(self, work: Work, change: CommitContent, milliseconds: int) -> CommitContent:
        """The change set with the commits it met; `milliseconds` is how long reconciling took."""
        plan, _ = work.frozen
        payload = work.decision.payload if work.decision is not None else None
        found, onto, statement = change.reconciled, dict[str, int](), False
        if isinstance(payload, RewriteDecision):
            onto = _by_segment(change, payload.replayed)
            met = self._removing_commits_of(work, payload, masks=bool(found.rows_masked))
            found = found.model_copy(
                update={
                    "by_segment": onto or None,
                    "files_masked": _files(change, payload.replayed) or None,
                    "met": met or None,
                }
            )
        elif payload is not None:
            found, onto, statement = self._of_others(work, change, payload)
        if found.commits_seen:
            found = found.model_copy(update={"milliseconds": max(0, milliseconds)})
        summary = sentences(plan.read_version, found, onto, statement=statement)
        return replace(change, reconciled=found, summary=(*summary, *change.summary))

    def _of_others(
        self, work: Work, change: CommitContent, payload: object
    ) -> tuple[Reconciled, dict[str, int], bool]:
        """What `change` adds for operations that are not rewrites, the rows by segment, and whether
        it is a statement."""
        from tandem.mergelog.versions import RunsLeft
        from tandem.reconcile.statement import ReadyToCommit

        found = change.reconciled
        if isinstance(payload, RunsLeft):
            met = self._removing_commits(work, dict.fromkeys(payload.gone, InputFate.GONE), {})
            return found.model_copy(update={"met": met or None}), {}, False
        if not isinstance(payload, ReadyToCommit):
            return found, {}, False
        found = found.model_copy(
            update={
                "files_masked": _files(change, payload.moved_to) or None,
                "rows_lost": payload.progress.lost or None,
                "met": _followed(payload.progress.round_history) or None,
            }
        )
        return found, _by_segment(change, payload.moved_to), True

    def decision(self, work: Work, decision: Decision) -> Decision:
        """A decision not to commit, with the commit that caused it in the message."""
        from tandem.mergelog.versions import RunsLeft
        from tandem.reconcile.statement import StatementConflict

        payload = decision.payload
        if decision.verdict is Verdict.SUPERSEDED:
            met: tuple[ReconciledCommit, ...] = ()
            if isinstance(payload, RewriteDecision):
                met = self._removing_commits_of(work, payload)
            elif isinstance(payload, RunsLeft):
                met = self._removing_commits(work, dict.fromkeys(payload.gone, InputFate.GONE), {})
            who = gone_to(met)
            return replace(decision, why=f"{decision.why}: {who}") if who else decision
        of_table = decision.verdict in (Verdict.CONFLICT, Verdict.REPLAN)
        if of_table and not isinstance(payload, StatementConflict):
            for commit in self._since(work):
                if any(isinstance(action, Metadata | Protocol) for action in commit.actions):
                    return replace(decision, why=f"{decision.why}, by {describe(commit)}")
        return decision

    def _since(self, work: Work) -> list[Commit]:
        """The last commits after the read version, newest first, as far as they can be read."""
        last = work.snapshot.version
        first = max(work.frozen[0].read_version + 1, last - MOST_COMMITS + 1)
        missing = [v for v in range(first, last + 1) if v not in self._commits]
        if missing:
            try:
                read = self._log.commits(missing[0], last)
            except (LogGap, VersionNotFound):
                read = []  # log clean-up, or another table: then the message names no commit
            self._commits |= {commit.version: commit for commit in read}
        return [self._commits[v] for v in range(last, first - 1, -1) if v in self._commits]

    def _removing_commits_of(
        self, work: Work, decision: RewriteDecision, *, masks: bool = False
    ) -> tuple[ReconciledCommit, ...]:
        """The commits that removed inputs of a rewrite or restored them. `masks`: whether rows of
        its outputs are hidden for it; where a bin is left out as a whole, none are."""
        taken: dict[str, InputFate] = {
            path: fate
            for path, fate in decision.fates.items()
            if fate in (InputFate.GONE, InputFate.OTHER)
        }
        job = work.frozen[1].job
        assert isinstance(job, RewriteJob)
        rows = {f.logged_path: _live(f) for f in job.inputs if masks and f.logged_path in taken}
        return self._removing_commits(work, taken, rows)

    def _removing_commits(
        self, work: Work, taken: dict[str, InputFate], rows: Mapping[str, int]
    ) -> tuple[ReconciledCommit, ...]:
        """The commits that removed or restored files. `rows` by path: those that are masked for
        it."""
        if not taken:
            return ()
        found: list[ReconciledCommit] = []
        for commit in self._since(work):
            removed = {gone.logged_path for gone in commit.removes}
            touched = removed | {add.logged_path for add in commit.adds}
            mine = [
                path
                for path, fate in taken.items()
                if path in (removed if fate is InputFate.GONE else touched)
            ]
            if mine:
                gone = sum(taken[path] is InputFate.GONE for path in mine)
                found.append(
                    _met(
                        author_of(commit),
                        inputs_gone=gone,
                        inputs_restored=len(mine) - gone,
                        rows_masked=sum(rows.get(path, 0) for path in mine),
                    )
                )
                for path in mine:
                    del taken[path]
        return tuple(reversed(found[:MOST_MET]))


def _live(file: InputFile) -> int:
    return file.rows - (len(dv.from_base64(file.dv)) if file.dv else 0)


def _followed(round_history: RoundHistory) -> tuple[ReconciledCommit, ...]:
    return tuple(
        _met(
            turn.author,
            rows_evaluated=turn.rows,
            rows_lost=turn.lost,
            executed_again=turn.whole,
        )
        for turn in round_history[-MOST_MET:]
    )


def _met(author: Author, *, executed_again: bool = False, **counts: int) -> ReconciledCommit:
    """A commit that was met; counts of zero are left out."""
    return ReconciledCommit(
        version=author.version,
        operation=author.operation,
        engine=author.engine,
        by=author.by or None,
        time=rfc3339(author.time_ms) if author.time_ms else None,
        executed_again=executed_again or None,
        **{name: count or None for name, count in counts.items()},
    )


def _by_segment(change: CommitContent, rows: Mapping[str, int]) -> dict[str, int]:
    """Rows by path as rows by segment, in the order of the change."""
    names: dict[str, int] = {}
    for add in _adds(change):
        if add.logged_path in rows:
            name = segment_name(add)
            names[name] = names.get(name, 0) + rows[add.logged_path]
    return names


def _files(change: CommitContent, rows: Mapping[str, int]) -> int:
    return sum(add.logged_path in rows for add in _adds(change))


def _adds(change: CommitContent) -> list[AddFile]:
    return [*(file.add for file in (*change.outputs, *change.marked)), *change.removes]
