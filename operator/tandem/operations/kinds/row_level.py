"""What update, delete and merge share: a job evaluates the statement, rounds follow the table.

Reconciled by row: the statement is evaluated exactly once for each row that is live when it takes
effect, also if another writer rewrote the row's file meanwhile. The kinds define the meaning of a
statement and the job that evaluates it: `UpdateKind`, and `merge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Generic

import pyarrow as pa

from tandem.delta import protocol
from tandem.delta.actions import Metadata
from tandem.delta.datafiles.joined_files import share_of_columns
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import ManifestInvalid
from tandem.intervals import EVERYWHERE
from tandem.jobs.formats import InputFile, MergeJob, StatementJob
from tandem.locks.rules import NOTHING, WHOLE_TABLE, LockResources, named_or_within
from tandem.operations import attempt_files
from tandem.operations.kinds.commit_history import (
    CommitHistory,
    VectorCache,
    planned_edits,
    require_vectors_or_edits,
    verdict_of_table,
)
from tandem.operations.kinds.job_files import (
    OTHER_IDS,
    have_other_ids,
    input_file,
    require_inside,
    with_change_files,
)
from tandem.operations.kinds.log_merge import StatementLog
from tandem.operations.kinds.statement_rounds import (
    CommitDescription,
    S,
    StatementRounds,
    StatementRun,
    absorbed,
    change_set,
    change_set_by_edits,
    result_of_round,
)
from tandem.operations.kinds.time_column import adopted, time_of_locks, times_of_files
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, Planned, Work
from tandem.pruning.selection import Selection
from tandem.reconcile import statement as rule
from tandem.reconcile.feed import of_statement
from tandem.spec.status import Plan, RowsAffected
from tandem.spec.update import TableUpdate
from tandem.statements.rules import rules_of_metadata
from tandem.statements.statement import Statement, parse_statement
from tandem.storage.paths import object_path
from tandem.timeline.segments import segment_name

MERGES_FIRST = "a LogMerge: the statement has to see the records of the log"


class RowLevelKind(ABC, Generic[S]):
    """The common part of the `Kind`s of a TableUpdate.

    `merges`: the statement may both delete and update rows, and inserts.
    """

    merges: ClassVar[bool] = False
    source_bytes: int | None = 0
    """As of `Planned`; set by `check`."""

    def __init__(self, resource: TableUpdate) -> None:
        self._resource = resource
        self._cache: VectorCache | None = None
        self._run: StatementRun[S] | None = None
        self._log = StatementLog()

    # What differs

    @property
    @abstractmethod
    def protocol_kind(self) -> protocol.OperationKind:
        """Which column of the protocol's feature table applies."""

    @abstractmethod
    def parsed(self, metadata: Metadata) -> S:
        """The statement, resolved against the table. Raises: InvalidStatement."""

    @abstractmethod
    def selects(self, statement: S, snapshot: Snapshot) -> Selection:
        """Selects the files that may hold rows that the statement affects."""

    @abstractmethod
    def job(self, statement: S, inputs: tuple[InputFile, ...]) -> StatementJob | MergeJob:
        """The job that evaluates it, on these files first."""

    @abstractmethod
    def commit_description(
        self, statement: S, agreed: rule.ReadyToCommit, inserted: int
    ) -> CommitDescription:
        """What `commitInfo` says of the statement; `inserted` counts the rows of fresh files."""

    def needs_job(self, statement: S, files: int) -> bool:  # noqa: ARG002
        """Whether there is anything to evaluate if `files` files may be affected."""
        return files > 0

    def inserts(self, statement: S) -> bool:  # noqa: ARG002
        """Whether it inserts rows that have no match, and so depends on all rows at once."""
        return False

    @abstractmethod
    def writes_elsewhere(self, statement: S, time: str) -> bool:
        """Whether rows that it writes may have other times (in column `time`) than the files that
        it reads."""

    def new_values(self, statement: S) -> frozenset[str] | None:  # noqa: ARG002
        """The columns (lower case) to which it gives new values; None for any."""
        return None

    def check(self, work: Work) -> None:
        """Check further preconditions before anything is planned; raises the error of one that
        does not hold."""

    # Planning

    def plan(self, work: Work) -> Planned:
        self.check(work)
        snapshot = work.snapshot
        require_vectors_or_edits(work.table, snapshot, self._resource.id)
        prerequisite = self._log.prerequisite(work, self._resource)
        run = self._begin(work)
        view = run.history.remember(snapshot)
        selected = self.selects(run.statement, snapshot).of(snapshot.files)
        chosen = sorted(files_.to_adds(selected), key=lambda add: add.logged_path)
        require_inside(work.table, chosen)
        view.prefetch(add.logged_path for add in chosen)
        inputs = tuple(input_file(view, add.logged_path, None) for add in chosen)
        names = tuple(dict.fromkeys(segment_name(add) for add in chosen))
        needed = self.needs_job(run.statement, len(inputs))
        locks = self._locks(work, run.statement, names, selected) if needed else NOTHING
        in_place = self._in_place(work, run.statement)
        summary = Plan(
            read_version=snapshot.version,
            inputs=len(inputs),
            input_bytes=sum(file.size for file in inputs),
            # How much a statement writes is known only after matching: at most as much as it reads.
            edits=self._edits_in_words(work, in_place, inputs),
            segments=names,
            statement=run.statement.canonical,
            first=None if prerequisite is None else MERGES_FIRST,
            locks=tuple(f"Update {each}" for each in locks),
        )
        if not needed:
            # Serializable: the statement takes effect at the version that was read, and rows that
            # are added later come after it.
            nothing = "no file can hold a row that the statement affects"
            if prerequisite is not None:
                nothing = ""  # the merge may add one
            return Planned(summary, None, NOTHING, nothing_to_do=nothing, prerequisite=prerequisite)
        record = {"statement": run.statement.to_json()}
        job = self.job(run.statement, inputs)
        # Rules are checked on whole rows, which their errors show.
        if in_place is not None and not rules_of_metadata(snapshot.metadata):
            job = job.model_copy(update={"set_only": True})
        return Planned(
            summary,
            job,
            locks,
            record=record,
            prerequisite=prerequisite,
            source_bytes=self.source_bytes,
        )

    def _in_place(self, work: Work, statement: S) -> frozenset[str] | None:
        """The columns (lower case) of an update of which alone edits need new values; None if it is
        none, or may be carried out in another way."""
        updates = self.protocol_kind is protocol.OperationKind.UPDATE
        if not updates or work.table.will_write_vectors(work.snapshot) or _feeds_changes(work):
            return None
        wanted = self.new_values(statement)
        # Rows that change to another partition leave their file.
        moves = {name.lower() for name in work.snapshot.metadata.partition_columns}
        return wanted if wanted is not None and moves.isdisjoint(wanted) else None

    def _edits_in_words(
        self, work: Work, in_place: frozenset[str] | None, inputs: tuple[InputFile, ...]
    ) -> str | None:
        named, share = None, None
        if in_place is not None and inputs:
            fields = [each for each in work.snapshot.schema if each.name.lower() in in_place]
            named = [field.name for field in fields]
            largest = max(inputs, key=lambda file: file.size)
            share = share_of_columns(
                work.table.store,
                object_path(largest.logged_path),
                largest.size,
                [field.physical_name for field in fields],
            )
        return planned_edits(work, inputs, named, share)

    def plan_of_adopted(self, work: Work) -> Planned:
        summary = work.frozen[0].summary
        by_names = named_or_within(summary.segments) or WHOLE_TABLE
        return Planned(summary, None, adopted(work, by_names))

    def _locks(
        self, work: Work, statement: S, names: tuple[str, ...], files: pa.Table
    ) -> LockResources:
        """The segments of the files that it may change; the table if it only inserts."""
        lake, times = work.table.spec, EVERYWHERE
        column = lake.spec.time if lake is not None else None
        if column is not None and not self.writes_elsewhere(statement, column.column):
            times = times_of_files(files, time_of_locks(work))
        return named_or_within(names, times) or WHOLE_TABLE

    def _begin(self, work: Work) -> StatementRun[S]:
        if self._cache is None:
            self._cache = VectorCache.of(work.table.store, work.table.log)
        metadata = work.snapshot.metadata
        work.keeps_commits = True
        history = CommitHistory(work.table.log, self._cache, metadata.id, work.new_commits)
        self._run = StatementRun(self.parsed(metadata), history)
        return self._run

    # Reconciling

    def _rounds(self, run: StatementRun[S]) -> StatementRounds:
        spec, statement = self._resource.spec, run.statement
        return StatementRounds(
            run,
            rule.Policy(
                spec.isolation,
                statement.deterministic,
                spec.conflict.max_attempts,
                inserts=self.inserts(statement),
            ),
            merges=self.merges,
            selects=lambda snapshot: self.selects(statement, snapshot),
            needs_job=lambda files: self.needs_job(statement, files),
        )

    def load(self, work: Work, round_: int) -> None:
        plan, _ = work.frozen
        run = self._run
        if run is None or (round_ == 0 and run.progress is not None):
            run = self._begin(work)
        rounds = self._rounds(run)
        result = result_of_round(work, round_, merged=self.merges)
        if round_ == 0:
            run.settle(rule.start(plan.read_version, result))
            return
        request = work.requests[round_]
        if run.evaluation is None:
            rounds.restore_request(work, request.table_version, round_)
        if run.evaluation is None or run.request != request:
            raise ManifestInvalid(
                "the round was requested for a state that no longer applies",
                resource=attempt_files.round_file(
                    plan.operation_id, plan.attempt, round_, "request.json"
                ),
            )
        run.settle(absorbed(run.evaluation, result))
        run.evaluation = run.request = None

    def decide(self, work: Work) -> Decision:
        _, job = work.frozen
        only = work.vectors_only
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=only)
        if refusal is not None:
            return refusal
        snapshot = work.snapshot
        if self._log.was_restored(work):
            return Decision(Verdict.REPLAN, "a restore took merged records out of the table")
        if job.set_only and _feeds_changes(work):
            # Change files hold whole rows.
            return Decision(Verdict.REPLAN, "the change data feed was switched on")
        run = self._run
        assert run is not None
        latest = run.history.remember(snapshot)
        if job.table.row_ids and have_other_ids(latest, _inputs(work, run)):
            return Decision(Verdict.REPLAN, OTHER_IDS)
        rounds = self._rounds(run)
        outcome = rounds.without_job(work, latest) or rounds.with_job(latest)
        if isinstance(outcome, rule.StatementConflict):
            return Decision(Verdict.CONFLICT, outcome.why, outcome.reason, payload=outcome)
        if isinstance(outcome, rule.ReadyToCommit):
            # If another writer takes the version, the rows settled so far stay settled.
            run.commit, run.progress = outcome, outcome.progress
            assert run.settled is not None
            run.history.forget(
                {run.settled.evaluated_at, outcome.progress.evaluated_at, outcome.at}
            )
            return Decision(Verdict.COMMIT, payload=outcome)
        request = rounds.request(work, outcome, max(work.results) + 1)
        return Decision(Verdict.EVALUATE, outcome.why, evaluate=request)

    # Committing

    def change(self, work: Work) -> CommitContent:
        run = self._run
        assert run is not None
        assert run.commit is not None
        written = {o.path: o for result in work.results.values() for o in result.outputs}
        written |= run.outputs
        inserted = sum(written[path].rows for path in run.commit.fresh)
        described = self.commit_description(run.statement, run.commit, inserted)
        isolation = self._resource.spec.isolation
        if work.by_edits:
            columns = self.new_values(run.statement)
            change = change_set_by_edits(work, run, written, described, isolation, columns)
        else:
            change = change_set(work, run, written, described, isolation)
        latest = run.history.remember(work.snapshot)
        change = with_change_files(work, change, latest, written, of_statement(run.commit))
        if not work.by_edits and not change.changes:
            return change
        return replace(change, most_lost_edits=self._resource.spec.conflict.max_attempts)


def _feeds_changes(work: Work) -> bool:
    return protocol.feeds_changes(work.snapshot.protocol, work.snapshot.metadata)


def _inputs(work: Work, run: StatementRun[S]) -> Iterator[InputFile]:
    """Of all rounds."""
    yield from run.inputs
    yield from work.frozen[1].job.reads
    for request in work.requests.values():
        yield from request.inputs


class UpdateKind(RowLevelKind[Statement]):
    """The `Kind` of one TableUpdate with `update` or `delete`."""

    @property
    def protocol_kind(self) -> protocol.OperationKind:
        if self._resource.spec.update is not None:
            return protocol.OperationKind.UPDATE
        return protocol.OperationKind.DELETE

    def parsed(self, metadata: Metadata) -> Statement:
        spec = self._resource.spec
        what = spec.update if spec.update is not None else spec.delete
        assert what is not None
        return parse_statement(
            what.where,
            spec.update.set if spec.update is not None else None,
            metadata.schema_string,
            resource=self._resource.id,
            field="spec.update" if spec.update is not None else "spec.delete",
        )

    def selects(self, statement: Statement, snapshot: Snapshot) -> Selection:
        return Selection(statement.where, snapshot)

    def job(self, statement: Statement, inputs: tuple[InputFile, ...]) -> StatementJob:
        return StatementJob(
            where=statement.where_sql,
            set=statement.set_sql,
            inputs=inputs,
            target_file_size=self._resource.spec.target_file_size,
        )

    def writes_elsewhere(self, statement: Statement, time: str) -> bool:
        return time in statement.set_sql

    def new_values(self, statement: Statement) -> frozenset[str] | None:
        return frozenset(name.lower() for name in statement.set_sql)

    def commit_description(
        self, statement: Statement, agreed: rule.ReadyToCommit, inserted: int
    ) -> CommitDescription:
        assert not inserted
        updates, rows = statement.kind == "Update", agreed.rows_matched
        return CommitDescription(
            "UPDATE" if updates else "DELETE",
            {"predicate": f'["{statement.where_sql}"]'},
            RowsAffected(updated=rows) if updates else RowsAffected(deleted=rows),
        )
