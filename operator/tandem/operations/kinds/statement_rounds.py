"""Which rows a statement is evaluated on next, and where.

Rows of files whose statistics rule out a match need no evaluation. Few rows are evaluated in this
process (small rounds), all others in the next round of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import InputFile, MergeJob, RoundRequest, StatementJob
from tandem.jobs.results import OutputFile
from tandem.operations.kinds.commit_history import CommitHistory, SnapshotView
from tandem.operations.kinds.job_files import (
    FileChanges,
    changes_of,
    input_file,
    matches_of,
    new_segment,
    numbers_at,
    output_add,
)
from tandem.operations.model import CommitContent, OutputFileChange, Work
from tandem.operations.rounds import SmallRoundResult
from tandem.pruning.selection import Selection
from tandem.reconcile import statement as rule
from tandem.reconcile.matches import InsertFile, RoundResult, matched_sources, round_result
from tandem.reconcile.outcomes import UpdatedRows
from tandem.spark.jobs.edits import ReplacedRows
from tandem.spec.status import Reconciled, RowsAffected
from tandem.spec.update import Isolation
from tandem.timeline.chunks import TAG_MASKED
from tandem.timeline.file_columns import TAG_CHUNK, TAG_LAYOUT
from tandem.timeline.segments import layout_columns, output_tags, segment_name

# The progress of a statement in one attempt, and what its commit changes.
#
# Evaluates nothing, and does not decide on the next step: that is done by `statement_rounds` and
# `tandem.reconcile.statement`.


Evaluation = rule.Evaluate | rule.Reexecute


class ParsedStatement(Protocol):
    """A parsed statement of any kind."""

    @property
    def canonical(self) -> str: ...
    @property
    def deterministic(self) -> bool: ...
    def to_json(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=ParsedStatement)


@dataclass(frozen=True, slots=True)
class CommitDescription:
    """What `commitInfo` says of a statement: Delta's name of the operation, its parameters and
    row counts."""

    operation: str
    parameters: Mapping[str, str]
    rows: RowsAffected


@dataclass(slots=True)
class StatementRun(Generic[S]):
    """The progress of the statement in this attempt; rebuilt from its rounds after a restart.

    `settled` is the progress after the rounds of the job. `progress` also includes rows that need
    no evaluation and, if `has_small_rounds`, small rounds, which are not recorded: `inputs` has the
    files that they read, and `outputs` those that they wrote. The next round of the job starts from
    `settled` again, so that a process that takes over makes the same request.
    """

    statement: S
    history: CommitHistory
    settled: rule.StatementProgress | None = None
    progress: rule.StatementProgress | None = None
    has_small_rounds: bool = False
    inputs: list[InputFile] = field(default_factory=list)
    outputs: dict[str, OutputFile] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    request: RoundRequest | None = None
    commit: rule.ReadyToCommit | None = None

    def settle(self, progress: rule.StatementProgress) -> None:
        """Record the progress after a round of the job."""
        self.settled = self.progress = progress
        self.forget_small_rounds()

    def forget_small_rounds(self) -> None:
        self.has_small_rounds = False
        self.inputs.clear()
        self.outputs.clear()


def change_set(
    work: Work,
    run: StatementRun[S],
    written: Mapping[str, OutputFile],
    described: CommitDescription,
    isolation: Isolation,
) -> CommitContent:
    """What the agreed commit changes: matched rows are deleted, output files added.

    Args:
        written: the files of all rounds, by path.
    """
    assert run.commit is not None
    agreed = run.commit
    changed = changes_of(run.history.remember(work.snapshot), agreed.deletes)
    inserts = [(path, agreed.masks.get(path)) for path in (*agreed.inserts, *agreed.fresh)]
    return _content(work, run, written, described, isolation, changed, inserts)


def change_set_by_edits(
    work: Work,
    run: StatementRun[S],
    written: Mapping[str, OutputFile],
    described: CommitDescription,
    isolation: Isolation,
    columns: frozenset[str] | None,
) -> CommitContent:
    """As `change_set`, without deletion vectors: a row keeps its place in its file, and takes its
    new values from an insert file. Rows that move to another partition leave their file.

    Args:
        columns: those with new values (lower case); None for any.
    """
    assert run.commit is not None
    agreed = run.commit
    latest = run.history.remember(work.snapshot)
    latest.prefetch(agreed.deletes)
    physical = _physical(work, columns)

    set_only = work.frozen[1].set_only

    def stays(path: str, insert: str) -> bool:
        add = latest.add(path)
        assert add is not None
        # Parts of rows are no rows, even if a rewrite has spelled their partition in another way.
        return set_only or dict(written[insert].partition_values) == dict(add.partition_values)

    edits, moved = rule.in_place(agreed, stays)
    removes, marked = [], []
    for edit in edits:
        add = latest.add(edit.path)
        assert add is not None
        if edit.is_whole:
            removes.append(add)
            continue
        tags = _tags(work, add, columns) if edit.new else None
        new = tuple(_replacement(each, written) for each in edit.new)
        marked.append(OutputFileChange(add, edit.rows, edit.dead, tags, new, physical))
    inserts: list[tuple[str, BitMap64 | None]] = [
        (path, hidden or None) for path, hidden in moved.items()
    ]
    inserts += [(path, None) for path in agreed.fresh]
    changed = FileChanges(tuple(removes), tuple(marked))
    return _content(work, run, written, described, isolation, changed, inserts)


def _replacement(new: UpdatedRows, written: Mapping[str, OutputFile]) -> ReplacedRows:
    output = written[new.insert]
    values = InputFile(
        logged_path=output.path,
        size=output.size,
        rows=output.rows,
        partition_values=dict(output.partition_values),
    )
    return ReplacedRows(values, new.positions, new.rows)


def _physical(work: Work, columns: frozenset[str] | None) -> frozenset[str] | None:
    """The columns of data files among these: a row that stays in its file keeps its partition."""
    if columns is None:
        return None
    in_paths = work.snapshot.partition_columns
    return frozenset(
        field.physical_name
        for field in work.snapshot.schema
        if field.name.lower() in columns and field.name not in in_paths
    )


def _tags(work: Work, add: AddFile, columns: frozenset[str] | None) -> dict[str, str]:
    """The tags of a file that keep their meaning when rows get new values in these columns."""
    tags = dict(add.tags)
    layout = {name.lower() for name in layout_columns(tags.get(TAG_LAYOUT, ""))}
    if columns is None or not layout.isdisjoint(columns):
        tags.pop(TAG_LAYOUT, None)
    lake = work.table.spec
    time = lake.spec.time if lake is not None else None
    if columns is None or time is None or time.column.lower() in columns:
        tags.pop(TAG_CHUNK, None)
        tags.pop(TAG_MASKED, None)
    return tags


def _content(
    work: Work,
    run: StatementRun[S],
    written: Mapping[str, OutputFile],
    described: CommitDescription,
    isolation: Isolation,
    changed: FileChanges,
    inserts: Sequence[tuple[str, BitMap64 | None]],
) -> CommitContent:
    """`inserts` are the output files to add, each with its hidden rows."""
    assert run.commit is not None
    agreed, plan = run.commit, work.frozen[0]
    latest = run.history.remember(work.snapshot)
    by_segment: dict[str, int] = {}
    for path, found in agreed.deletes.items():
        add = latest.add(path)
        assert add is not None
        name = segment_name(add)
        by_segment[name] = by_segment.get(name, 0) + found.deleted
    segment_ = new_segment(work.snapshot, work.now_ms) if inserts else None
    outputs = []
    for path, hidden in inserts:
        assert segment_ is not None
        tags = output_tags(segment_.name, segment_.sequence)
        add = output_add(written[path], tags)
        outputs.append(OutputFileChange(add, written[path].rows, hidden))
    return CommitContent(
        operation=described.operation,
        parameters=described.parameters,
        outputs=tuple(outputs),
        removes=changed.removes,
        marked=changed.marked,
        isolation=isolation.value,
        segments=(segment_.name,) if segment_ else (),
        numbers=segment_.numbers if segment_ else numbers_at(work.snapshot),
        rows=described.rows,
        reconciled=Reconciled(
            commits_seen=max(0, work.snapshot.version - plan.read_version),
            deletes_remapped=agreed.moved,
            rows_evaluated=agreed.progress.rows_evaluated,
            rounds=work.rounds,
            by_segment=by_segment if agreed.moved else None,
        ),
        details={"statement": run.statement.to_json()},
    )


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
            self.run.forget_small_rounds()
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
        self.run.inputs += inputs
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
        matches_of(work, result),
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
