"""`TableUpdate`, merge: what it means, its source, and the job that evaluates it.

A merge that inserts depends on the absence of rows, too: a round on a part of the rows can only
confirm that its inserts are still right; otherwise the whole merge is executed again
(docs/decisions/0081-merge-goes-on-with-its-matches.md).
"""

from __future__ import annotations

from tandem.delta import protocol
from tandem.delta.actions import Metadata
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import InputFile, MergeClause, MergeJob
from tandem.operations.kinds.row_level import RowLevelKind
from tandem.operations.kinds.sources import content_of
from tandem.operations.kinds.statement_rounds import CommitDescription
from tandem.operations.model import Work
from tandem.operations.small_rounds import SourceCopy, newest_copy
from tandem.pruning.selection import Keys, Selection
from tandem.reconcile import statement as rule
from tandem.spark.sources.options import checked
from tandem.spec import update as spec
from tandem.spec.status import RowsAffected
from tandem.statements import merge as statements
from tandem.statements.types import Schema
from tandem.storage import allowed_locations

_FIELD = "spec.merge"


class MergeKind(RowLevelKind[statements.MergeStatement]):
    """The `Kind` of one TableUpdate with `merge`."""

    merges = True
    _keys: tuple[Keys, ...] = ()
    """The values that `on` requires of the table's columns, once a round has copied the source."""

    @property
    def protocol_kind(self) -> protocol.OperationKind:
        return protocol.OperationKind.MERGE

    @property
    def _merge(self) -> spec.Merge:
        assert self._resource.spec.merge is not None
        return self._resource.spec.merge

    def check(self, work: Work) -> None:
        source = self._merge.source
        checked(source.format.value, source.options, f"{_FIELD}.source")
        allowed_locations.require(
            source.location,
            work.table.allowed_prefixes,
            resource=self._resource.id,
            field=f"{_FIELD}.source.location",
        )
        field = f"{_FIELD}.source"
        table = Schema.from_json(work.snapshot.metadata.schema_string)
        content = content_of(work, source, resource=self._resource.id, field=field)
        self.source_bytes = content.size
        for found in content.columns:
            if found.all_known:
                self._parsed(table, found.schema)

    def parsed(self, metadata: Metadata) -> statements.MergeStatement:
        """The statement as far as it can be resolved without the source: the job parses it again,
        with the source's columns."""
        return self._parsed(Schema.from_json(metadata.schema_string), None)

    def _parsed(self, table: Schema, source: Schema | None) -> statements.MergeStatement:
        return statements.parse_merge(
            self._merge.on,
            clauses(self._merge),
            table,
            source,
            resource=self._resource.id,
            field=_FIELD,
        )

    def selects(self, statement: statements.MergeStatement, snapshot: Snapshot) -> Selection:
        if statement.when("NotMatchedBySource"):
            return Selection(None, snapshot)
        # A file in which no row can match is irrelevant: its rows stay as they are, and no source
        # row has a match in it.
        return Selection(statement.on, snapshot, relation=statements.TABLE, keys=self._keys)

    def load(self, work: Work, round_: int) -> None:
        # The request of this round was selected by the keys that were known then.
        self._keys = _keys_of(newest_copy(work, before=round_))
        super().load(work, round_)
        self._keys = _keys_of(newest_copy(work))

    def needs_job(self, statement: statements.MergeStatement, files: int) -> bool:
        return files > 0 or self.inserts(statement)

    def inserts(self, statement: statements.MergeStatement) -> bool:
        return bool(statement.when("NotMatched"))

    def writes_elsewhere(self, statement: statements.MergeStatement, time: str) -> bool:
        return any(
            clause.action == "Insert"
            or (clause.action == "Update" and (clause.every or time in clause.set_sql))
            for clause in statement.clauses
        )

    def new_values(self, statement: statements.MergeStatement) -> frozenset[str] | None:
        updates = [clause for clause in statement.clauses if clause.action == "Update"]
        if any(clause.every for clause in updates):
            return None
        return frozenset(name.lower() for clause in updates for name in clause.set_sql)

    def job(self, statement: statements.MergeStatement, inputs: tuple[InputFile, ...]) -> MergeJob:  # noqa: ARG002
        source = self._merge.source
        return MergeJob(
            source_format=source.format.value,
            source_location=source.location,
            source_options=dict(source.options),
            source_version=source.version,
            on=self._merge.on,
            clauses=clauses(self._merge),
            inputs=inputs,
            target_file_size=self._resource.spec.target_file_size,
        )

    def commit_description(
        self, statement: statements.MergeStatement, agreed: rule.ReadyToCommit, inserted: int
    ) -> CommitDescription:
        updated = agreed.rows_updated
        return CommitDescription(
            "MERGE",
            statement.predicates(),
            RowsAffected(updated=updated, deleted=agreed.rows_matched - updated, inserted=inserted),
        )


def _keys_of(copy: SourceCopy | None) -> tuple[Keys, ...]:
    return copy.keys if copy is not None else ()


def clauses(merge: spec.Merge) -> tuple[MergeClause, ...]:
    """The clauses as typed, each with its path in the spec."""
    found: list[MergeClause] = []
    for number, matched in enumerate(merge.when_matched):
        found.append(
            MergeClause(
                when="Matched",
                action="Delete" if matched.delete is not None else "Update",
                where=matched.where,
                set={} if matched.update is None else dict(matched.update.set),
                all=matched.update_all is not None,
                field=f"{_FIELD}.whenMatched[{number}]",
            )
        )
    for number, missing in enumerate(merge.when_not_matched):
        found.append(
            MergeClause(
                when="NotMatched",
                action="Insert",
                where=missing.where,
                set={} if missing.insert is None else dict(missing.insert.values),
                all=missing.insert_all is not None,
                field=f"{_FIELD}.whenNotMatched[{number}]",
            )
        )
    for number, left in enumerate(merge.when_not_matched_by_source):
        found.append(
            MergeClause(
                when="NotMatchedBySource",
                action="Delete" if left.delete is not None else "Update",
                where=left.where,
                set={} if left.update is None else dict(left.update.set),
                field=f"{_FIELD}.whenNotMatchedBySource[{number}]",
            )
        )
    return tuple(found)
