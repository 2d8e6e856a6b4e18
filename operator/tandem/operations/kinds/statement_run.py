"""The progress of a statement in one attempt, and what its commit changes.

Evaluates nothing, and does not decide on the next step: that is done by `statement_rounds` and
`tandem.reconcile.statement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from tandem.jobs.formats import RoundRequest
from tandem.jobs.results import OutputFile
from tandem.operations.kinds.table.commit_history import CommitHistory
from tandem.operations.kinds.table.job_files import changes_of, output_add
from tandem.operations.kinds.table.segment_numbers import new_segment, numbers_at
from tandem.operations.model import CommitContent, OutputFileChange, Work
from tandem.reconcile import statement as rule
from tandem.spec.status import Reconciled, RowsAffected
from tandem.spec.update import Isolation
from tandem.timeline.segments import output_tags, segment_name

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
    no evaluation and, if `has_small_rounds`, small rounds, which are not recorded: `outputs` has
    the files that they wrote. The next round of the job starts from `settled` again, so that a
    process that takes over makes the same request.
    """

    statement: S
    history: CommitHistory
    settled: rule.StatementProgress | None = None
    progress: rule.StatementProgress | None = None
    has_small_rounds: bool = False
    outputs: dict[str, OutputFile] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    request: RoundRequest | None = None
    commit: rule.ReadyToCommit | None = None

    def settle(self, progress: rule.StatementProgress) -> None:
        """Record the progress after a round of the job."""
        self.settled = self.progress = progress
        self.has_small_rounds = False
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
    agreed, plan = run.commit, work.frozen[0]
    latest = run.history.remember(work.snapshot)
    changed = changes_of(latest, agreed.deletes)
    by_segment: dict[str, int] = {}
    for path, found in agreed.deletes.items():
        add = latest.add(path)
        assert add is not None
        name = segment_name(add)
        by_segment[name] = by_segment.get(name, 0) + found.deleted
    added = (*agreed.inserts, *agreed.fresh)
    segment_ = new_segment(work.snapshot, work.now_ms) if added else None
    outputs = []
    for path in added:
        assert segment_ is not None
        tags = output_tags(segment_.name, segment_.sequence)
        add = output_add(written[path], tags, data_change=True)
        outputs.append(OutputFileChange(add, written[path].rows, agreed.masks.get(path)))
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
