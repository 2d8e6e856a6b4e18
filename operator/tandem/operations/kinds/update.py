"""`TableUpdate`, update and delete: their semantics, and the job that evaluates them."""

from __future__ import annotations

from tandem.delta import protocol
from tandem.delta.actions import Metadata
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import InputFile, StatementJob
from tandem.operations.kinds.row_level import RowLevelKind
from tandem.operations.kinds.statement_rounds import CommitDescription
from tandem.pruning.selection import Selection
from tandem.reconcile import statement as rule
from tandem.spec.status import RowsAffected
from tandem.statements.statement import Statement, parse_statement


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
