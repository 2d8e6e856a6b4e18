"""The progress of a statement in one attempt, and what its commit changes.

Evaluates nothing, and does not decide on the next step: that is done by `statement_rounds` and
`tandem.reconcile.statement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.jobs.formats import InputFile, RoundRequest, StatementJob
from tandem.jobs.results import OutputFile
from tandem.operations.kinds.table.commit_history import CommitHistory
from tandem.operations.kinds.table.job_files import FileChanges, changes_of, output_add
from tandem.operations.kinds.table.segment_numbers import new_segment, numbers_at
from tandem.operations.model import CommitContent, OutputFileChange, Work
from tandem.reconcile import statement as rule
from tandem.reconcile.outcomes import UpdatedRows
from tandem.spark.jobs.edits import ReplacedRows
from tandem.spec.status import Reconciled, RowsAffected
from tandem.spec.update import Isolation
from tandem.timeline.file_columns import TAG_CHUNK, TAG_LAYOUT
from tandem.timeline.segments import layout_columns, output_tags, segment_name
from tandem.timeline.working_set.masks import TAG_MASKED

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

    job = work.frozen[1].job
    set_only = isinstance(job, StatementJob) and job.set_only

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
        add = output_add(written[path], tags, data_change=True)
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
