"""`TableUpdate`, update and delete: a job evaluates the statement, rounds follow the table.

Reconciled by row: each row that is live where the statement takes effect is answered once,
whoever rewrote its file meanwhile (design, "Reconciliation").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.errors import DeletionVectorsDisabled, ManifestInvalid, Reason
from tandem.locks.model import WHOLE_TABLE, Mode, Resource, segment
from tandem.operations import jobs, layout
from tandem.operations.changes import verdict_of_table
from tandem.operations.events import Verdict
from tandem.operations.history import History
from tandem.operations.numbering import new_segment, numbers_at
from tandem.operations.outputs import output_add
from tandem.operations.selection import files_of, require_inside
from tandem.operations.views import SnapshotView, VectorCache
from tandem.operations.work import ChangeSet, Decision, OutputFileChange, Planned, Work
from tandem.reconcile import statement as rule
from tandem.reconcile.matches import InsertFile, RoundResult, round_result
from tandem.reconcile.positions import span
from tandem.reconcile.rules import Isolation
from tandem.spark.job import InputFile, RoundRequest, StatementJob
from tandem.spec.status import Plan, Reconciled, RowsAffected
from tandem.spec.update import TableUpdate
from tandem.statements.statement import Statement, parse_statement
from tandem.timeline.segments import output_tags, segment_name

MAX_SEGMENT_LOCKS = 1_000
"""A statement that concerns more segments locks the table: one entry stays small."""

Asked = rule.Evaluate | rule.Reexecute


@dataclass(slots=True)
class _Course:
    """How far the statement has come in this attempt; rebuilt from its rounds after a restart."""

    statement: Statement
    history: History
    progress: rule.StatementProgress | None = None
    asked: Asked | None = None
    request: RoundRequest | None = None
    commit: rule.Commit | None = None


class Update:
    """The `Kind` of one TableUpdate with `update` or `delete`."""

    app = "statement"

    def __init__(self, resource: TableUpdate) -> None:
        self._resource = resource
        self._cache: VectorCache | None = None
        self._course: _Course | None = None

    @property
    def protocol_kind(self) -> protocol.OperationKind:
        if self._resource.spec.update is not None:
            return protocol.OperationKind.UPDATE
        return protocol.OperationKind.DELETE

    # Planning

    def plan(self, work: Work) -> Planned:
        snapshot = work.snapshot
        lake = work.table.spec
        # Where the LakeTable asks for them, a plan may be made before they are turned on.
        asked_for = lake is not None and lake.spec.enable_deletion_vectors
        enabled = protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)
        if not enabled and not asked_for:
            raise DeletionVectorsDisabled(
                "the table has no deletion vectors, and rows are deleted with nothing else",
                resource=self._resource.id,
                field="spec.tableRef",
                found="delta.enableDeletionVectors is not true",
                expected="a table with deletion vectors",
                remedy="Set enableDeletionVectors: true in the LakeTable; old readers may then "
                "refuse the table",
            )
        course = self._begin(work)
        view = course.history.remember(snapshot)
        selects = files_of(course.statement.where, snapshot)
        chosen = sorted(
            (add for add in snapshot.adds() if selects(add)), key=lambda add: add.logged_path
        )
        require_inside(work.table, chosen)
        view.prefetch(add.logged_path for add in chosen)
        inputs = tuple(_input(view, add.logged_path, None) for add in chosen)
        names = tuple(dict.fromkeys(segment_name(add) for add in chosen))
        job = StatementJob(
            where=course.statement.where_sql,
            set=course.statement.set_sql,
            inputs=inputs,
            target_file_size=self._resource.spec.target_file_size,
        )
        locks = _locks(names)
        summary = Plan(
            read_version=snapshot.version,
            inputs=len(inputs),
            input_bytes=sum(file.size for file in inputs),
            # What a statement writes is known when it has matched: at most as much again.
            cost_bytes=sum(file.size for file in inputs),
            segments=names,
            statement=course.statement.canonical,
            locks=tuple(f"Update segment {r.segment}" if r.segment else "Update the table"
                        for r in locks),
        )  # fmt: skip
        if not inputs:
            # True at the version that was read, wherever in a serial order that stands: rows
            # that come later come after the statement.
            nothing = "no file can hold a row that the statement concerns"
            return Planned(summary, None, Mode.UPDATE, (), nothing_to_do=nothing)
        record = {"statement": course.statement.to_json()}
        return Planned(summary, job, Mode.UPDATE, locks, record=record)

    def plan_of_adopted(self, work: Work) -> Planned:
        summary = work.frozen[0].summary
        return Planned(summary, None, Mode.UPDATE, _locks(summary.segments))

    def _begin(self, work: Work) -> _Course:
        if self._cache is None:
            self._cache = VectorCache(work.table.store)
        metadata = work.snapshot.metadata
        spec = self._resource.spec
        what = spec.update if spec.update is not None else spec.delete
        assert what is not None
        statement = parse_statement(
            what.where,
            spec.update.set if spec.update is not None else None,
            metadata.schema_string,
            partition_columns=metadata.partition_columns,
            resource=self._resource.id,
            field="spec.update" if spec.update is not None else "spec.delete",
        )
        history = History(work.table.log, self._cache, metadata.id)
        self._course = _Course(statement, history)
        return self._course

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        plan, _ = work.frozen
        course = self._course
        if course is None or (round_ == 0 and course.progress is not None):
            course = self._begin(work)
        result = self._round(work, round_)
        if round_ == 0:
            course.progress = rule.start(plan.read_version, result)
            return
        request = work.requests[round_]
        if course.asked is None:
            self._ask_again(work, course, request.table_version, round_)
        if course.asked is None or course.request != request:
            raise ManifestInvalid(
                "the round was asked for on other grounds than those that hold now",
                resource=layout.round_file(plan.operation_id, plan.attempt, round_, "request.json"),
            )
        course.progress = _absorbed(course.asked, result)
        course.asked = course.request = None

    def _round(self, work: Work, round_: int) -> RoundResult:
        """Matches and insert files of a round. Raises: ManifestInvalid, CountMismatch."""
        _, job = work.frozen
        assert isinstance(job.job, StatementJob)
        result = work.results[round_]
        inputs = job.job.inputs if round_ == 0 else work.requests[round_].inputs
        if result.matches is None:
            raise ManifestInvalid(
                "a statement's result has no matches",
                resource=layout.rounds(result.operation_id, result.attempt),
                field="matches",
            )
        data = jobs.sidecar(work.table.store, result.matches)
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        return round_result(
            table,
            [file.logged_path for file in inputs],
            [InsertFile(output.path, output.rows) for output in result.outputs],
        )

    def _ask_again(self, work: Work, course: _Course, at: int, round_: int) -> None:
        """What an earlier process must have asked at a version: the rule gives the same answer
        to the same question."""
        view = course.history.view(at)
        outcome = None if view is None else self._decide(course, view)
        if isinstance(outcome, rule.Evaluate | rule.Reexecute):
            course.asked = outcome
            course.request = self._request(course, work, outcome, round_)

    def decide(self, work: Work) -> Decision:
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=True)
        if refusal is not None:
            return refusal
        snapshot = work.snapshot
        if not protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata):
            return Decision(
                Verdict.CONFLICT,
                "deletion vectors were switched off",
                Reason.DELETION_VECTORS_DISABLED,
            )
        course = self._course
        assert course is not None
        latest = course.history.remember(snapshot)
        outcome = self._decide(course, latest)
        if isinstance(outcome, rule.Conflict):
            return Decision(Verdict.CONFLICT, outcome.why, outcome.reason, payload=outcome)
        if isinstance(outcome, rule.Commit):
            course.commit = outcome
            course.history.forget({outcome.progress.evaluated_at, outcome.at})
            return Decision(Verdict.COMMIT, payload=outcome)
        course.asked = outcome
        course.request = self._request(course, work, outcome, max(work.results) + 1)
        return Decision(Verdict.EVALUATE, outcome.why, evaluate=course.request)

    def _decide(self, course: _Course, latest: SnapshotView) -> rule.Outcome:
        """Ask the rule; answer ourselves what statistics alone can answer."""
        spec = self._resource.spec
        policy = rule.Policy(
            Isolation(spec.isolation.value),
            course.statement.deterministic,
            spec.conflict.max_attempts,
        )
        while True:
            progress = course.progress
            assert progress is not None
            outcome = rule.decide(
                progress,
                course.history.since(progress.evaluated_at, latest.snapshot),
                view=course.history.view,
                row_maps=course.history.row_maps,
                policy=policy,
            )
            if not isinstance(outcome, rule.Evaluate | rule.Reexecute):
                return outcome
            if self._questions(course, outcome):
                return outcome
            course.progress = _absorbed(outcome, RoundResult())

    def _questions(self, course: _Course, asked: Asked) -> Mapping[str, BitMap64 | None]:
        """The rows to evaluate by file (None: all live ones), without files that cannot match."""
        view = course.history.view(asked.at)
        assert view is not None
        selects = files_of(course.statement.where, view.snapshot)
        if isinstance(asked, rule.Reexecute):
            return {a.logged_path: None for a in view.snapshot.adds() if selects(a)}
        view.prefetch(asked.rows)
        return {
            path: rows
            for path, rows in asked.rows.items()
            if (add := view.add(path)) is not None and selects(add)
        }

    def _request(self, course: _Course, work: Work, asked: Asked, round_: int) -> RoundRequest:
        plan, _ = work.frozen
        view = course.history.view(asked.at)
        assert view is not None
        questions = self._questions(course, asked)
        view.prefetch(questions)
        return RoundRequest(
            operation_id=plan.operation_id,
            attempt=plan.attempt,
            round=round_,
            table_version=asked.at,
            inputs=tuple(_input(view, path, questions[path]) for path in sorted(questions)),
        )

    # Committing

    def change(self, work: Work) -> ChangeSet:
        course = self._course
        assert course is not None
        assert course.commit is not None
        agreed, plan = course.commit, work.frozen[0]
        latest = course.history.remember(work.snapshot)
        latest.prefetch(agreed.deletes)
        removes, marked = [], []
        by_segment: dict[str, int] = {}
        for path, found in agreed.deletes.items():
            add = latest.add(path)
            assert add is not None
            if found.is_whole:
                removes.append(add)
            else:
                marked.append(OutputFileChange(add, found.rows, found.dead))
            name = segment_name(add)
            by_segment[name] = by_segment.get(name, 0) + found.deleted
        written = {o.path: o for result in work.results.values() for o in result.outputs}
        segment_ = new_segment(work.snapshot, work.now_ms) if agreed.inserts else None
        outputs = []
        for path in agreed.inserts:
            assert segment_ is not None
            tags = output_tags(segment_.name, segment_.sequence)
            add = output_add(written[path], tags, data_change=True)
            outputs.append(OutputFileChange(add, written[path].rows, agreed.masks.get(path)))
        updates = self._resource.spec.update is not None
        matched = agreed.rows_matched
        return ChangeSet(
            operation="UPDATE" if updates else "DELETE",
            parameters={"predicate": f'["{course.statement.where_sql}"]'},
            outputs=tuple(outputs),
            removes=tuple(removes),
            marked=tuple(marked),
            isolation=self._resource.spec.isolation.value,
            segments=(segment_.name,) if segment_ else (),
            numbers=segment_.numbers if segment_ else numbers_at(work.snapshot),
            rows=RowsAffected(updated=matched) if updates else RowsAffected(deleted=matched),
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                deletes_remapped=agreed.moved,
                rows_evaluated=agreed.progress.rows_evaluated,
                rounds=work.rounds,
                by_segment=by_segment if agreed.moved else None,
            ),
            details={"statement": course.statement.to_json()},
        )


def _absorbed(asked: Asked, result: RoundResult) -> rule.StatementProgress:
    if isinstance(asked, rule.Evaluate):
        return rule.absorb(asked, result)
    return rule.start(asked.at, result, attempts=asked.attempts, course=asked.course)


def _input(view: SnapshotView, path: str, wanted: BitMap64 | None) -> InputFile:
    """A file of which only `wanted` rows are evaluated; None: all that are live."""
    add, state = view.add(path), view.get(path)
    assert add is not None
    assert state is not None
    skipped = state.dead if wanted is None else span(0, state.rows) - wanted
    return InputFile(
        logged_path=path,
        size=add.size,
        rows=state.rows,
        dv=dv.to_base64(skipped) if skipped else "",
        partition_values=dict(add.partition_values),
    )


def _locks(names: tuple[str, ...]) -> tuple[Resource, ...]:
    if len(names) > MAX_SEGMENT_LOCKS:
        return (WHOLE_TABLE,)
    return tuple(segment(name) for name in names)
