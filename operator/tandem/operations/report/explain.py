"""Which commits an operation met and how it reconciled with them, as fields and sentences of its
result.

Describes decisions that have been made, and changes none of them. The commit that removed an
input is found among the commits since the read version. They are read only if an input is gone,
and only the last `MOST_COMMITS` of them, since the commit waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tandem.delta import dv
from tandem.delta.actions import AddFile, Commit, Metadata, Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import LogGap, VersionNotFound
from tandem.jobs.formats import InputFile, RewriteJob
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, Work
from tandem.operations.report.sentences import gone_to, sentences
from tandem.operations.report.status import rfc3339
from tandem.reconcile.classify import author_of, describe
from tandem.reconcile.model import Author
from tandem.reconcile.rewrite import RewriteDecision
from tandem.reconcile.rules import InputFate
from tandem.spec.status import Reconciled, ReconciledCommit
from tandem.timeline.segments import segment_name

if TYPE_CHECKING:
    from tandem.reconcile.round_history import RoundHistory

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
        from tandem.mergelog.runs import RunsLeft
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
        from tandem.mergelog.runs import RunsLeft
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
