"""Which rows a statement is evaluated on next, and where.

Rows of files whose statistics rule out a match need no evaluation. Few rows are evaluated in this
process (small rounds), all others in the next round of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroaring import BitMap64

from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import InputFile, MergeJob, RoundRequest, StatementJob
from tandem.jobs.results import OutputFile
from tandem.operations.kinds.statement_run import Evaluation, StatementRun
from tandem.operations.kinds.table.job_files import input_file, matches_of
from tandem.operations.kinds.table.snapshot_view import SnapshotView
from tandem.operations.model import Work
from tandem.operations.rounds.port import SmallRoundResult
from tandem.pruning.selection import Selection
from tandem.reconcile import statement as rule
from tandem.reconcile.matches import InsertFile, RoundResult, round_result
from tandem.reconcile.merge_sources import matched_sources

StepWithJob = rule.ReadyToCommit | rule.Evaluate | rule.Reexecute | rule.StatementConflict


@dataclass(frozen=True, slots=True)
class StatementRounds:
    """Takes the progress of a statement further.

    Attributes:
        merges: as `RowLevelKind.merges`.
        selects: the files of a snapshot that may hold rows that the statement affects.
        needs_job: whether there is anything to evaluate if so many files may be affected.
    """

    run: StatementRun[Any]
    policy: rule.Policy
    merges: bool
    selects: Callable[[Snapshot], Selection]
    needs_job: Callable[[int], bool]

    def without_job(self, work: Work, latest: SnapshotView) -> rule.ReadyToCommit | None:
        """The commit, if the rest can be evaluated without a job: rows of files whose statistics
        rule out a match, and small rounds. None if the job is needed."""
        while work.small_rounds.can_evaluate(work):
            progress = self.run.progress
            assert progress is not None
            outcome = self._rule(latest, progress, small=True)
            if isinstance(outcome, rule.ReadyToCommit):
                return outcome
            if isinstance(outcome, rule.Evaluate):
                questions = self._questions(outcome)
                if not self.needs_job(len(questions)):
                    self.run.progress = absorbed(outcome, RoundResult(merged=self.merges))
                    continue
                view = self.run.history.view(outcome.at)
                assert view is not None
                view.prefetch(questions)
                inputs = tuple(
                    input_file(view, path, questions[path]) for path in sorted(questions)
                )
                answer = work.small_rounds.rows(work, inputs)
                if answer is None:
                    return None
                self.run.progress = rule.absorb(outcome, self._small_result(inputs, answer))
            elif isinstance(outcome, rule.Reinsert):
                answer = work.small_rounds.inserts(work, matched_sources(outcome.progress.matches))
                if answer is None:
                    return None
                fresh = self._small_result((), answer).fresh
                self.run.progress = rule.inserted(outcome.progress, fresh)
            else:
                return None
        return None

    def with_job(self, latest: SnapshotView) -> StepWithJob:
        """The next step after the rounds of the job, without small rounds; rows that statistics
        rule out are settled here."""
        progress, settled = self.run.progress, self.run.settled
        assert progress is not None
        assert settled is not None
        if self.run.has_small_rounds:
            # The small rounds did not lead to a commit, but count as attempts.
            progress = replace(settled, attempts=progress.attempts)
            self.run.has_small_rounds = False
            self.run.outputs.clear()
        while True:
            outcome = self._rule(latest, progress)
            if not isinstance(outcome, rule.Evaluate | rule.Reexecute):
                assert not isinstance(outcome, rule.Reinsert)
                self.run.progress = progress
                return outcome
            if self.needs_job(len(self._questions(outcome))):
                self.run.progress = progress
                return outcome
            progress = absorbed(outcome, RoundResult(merged=self.merges))

    def restore_request(self, work: Work, at: int, round_: int) -> None:
        """Restore the request that an earlier process made at a version: the rule is
        deterministic."""
        view = self.run.history.view(at)
        outcome = None if view is None else self.with_job(view)
        if isinstance(outcome, rule.Evaluate | rule.Reexecute):
            self.request(work, outcome, round_)

    def request(self, work: Work, evaluation: Evaluation, round_: int) -> RoundRequest:
        """The request of the job's next round; the run keeps it until the answer is there."""
        plan, _ = work.frozen
        view = self.run.history.view(evaluation.at)
        assert view is not None
        questions = self._questions(evaluation)
        view.prefetch(questions)
        request = RoundRequest(
            operation_id=plan.operation_id,
            attempt=plan.attempt,
            round=round_,
            table_version=evaluation.at,
            part=self.policy.inserts and isinstance(evaluation, rule.Evaluate),
            inputs=tuple(input_file(view, path, questions[path]) for path in sorted(questions)),
        )
        self.run.evaluation, self.run.request = evaluation, request
        return request

    def _small_result(self, inputs: Sequence[InputFile], answer: SmallRoundResult) -> RoundResult:
        """Raises: CountMismatch."""
        self.run.has_small_rounds = True
        self.run.outputs |= {output.path: output for output in answer.outputs}
        return round_result(
            answer.matches,
            [file.logged_path for file in inputs],
            _files(answer.outputs, fresh=False),
            fresh=_files(answer.outputs, fresh=True),
            merged=self.merges,
        )

    def _rule(
        self,
        latest: SnapshotView,
        progress: rule.StatementProgress,
        *,
        small: bool = False,
    ) -> rule.Outcome:
        return rule.decide(
            progress,
            self.run.history.since(progress.evaluated_at, latest.snapshot),
            view=self.run.history.view,
            row_maps=self.run.history.row_maps,
            policy=self.policy,
            prune=self._prune,
            small=small,
        )

    def _prune(self, at: int, rows: Mapping[str, BitMap64]) -> Mapping[str, BitMap64]:
        """`rows` without those of files whose statistics rule out a match."""
        view = self.run.history.view(at)
        assert view is not None
        files = files_.with_paths(view.snapshot.files, rows)
        selected = self.selects(view.snapshot).paths(files)
        return {path: positions for path, positions in rows.items() if path in selected}

    def _questions(self, evaluation: Evaluation) -> Mapping[str, BitMap64 | None]:
        """The rows to evaluate by file (None: all live ones), without files that cannot match."""
        if isinstance(evaluation, rule.Evaluate):
            return evaluation.rows
        view = self.run.history.view(evaluation.at)
        assert view is not None
        selects = self.selects(view.snapshot)
        return dict.fromkeys(sorted(selects.paths(view.snapshot.files)))


def result_of_round(work: Work, round_: int, *, merged: bool) -> RoundResult:
    """The matches and insert files of a round. Raises: ManifestInvalid, CountMismatch."""
    _, job = work.frozen
    assert isinstance(job.job, StatementJob | MergeJob)
    result = work.results[round_]
    inputs = job.job.inputs if round_ == 0 else work.requests[round_].inputs
    return round_result(
        matches_of(work.table, result),
        [file.logged_path for file in inputs],
        _files(result.outputs, fresh=False),
        fresh=_files(result.outputs, fresh=True),
        merged=merged,
    )


def absorbed(evaluation: Evaluation, result: RoundResult) -> rule.StatementProgress:
    """The progress after an evaluation."""
    if isinstance(evaluation, rule.Evaluate):
        return rule.absorb(evaluation, result)
    return rule.start(
        evaluation.at, result, attempts=evaluation.attempts, round_history=evaluation.round_history
    )


def _files(outputs: Sequence[OutputFile], *, fresh: bool) -> list[InsertFile]:
    return [InsertFile(o.path, o.rows) for o in outputs if o.fresh is fresh]
