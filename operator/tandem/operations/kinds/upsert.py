"""`TableUpdate` with `upsert` or `deleteKeys`, and `TableIngest` on a merge-on-read table.

Its table is the log: a job writes the rows of a source as blocks, and one commit of the log adds
them as an instant. As each append it looks at the base table before its commit, and records what
the base table's commits since then mean for the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.delta import protocol
from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import StructType, to_delta_json
from tandem.jobs.formats import JobSpec, JobTable, UpsertJob
from tandem.locks.rules import WHOLE_TABLE
from tandem.mergelog.base_history import BaseHistory, base_of, require_same_table
from tandem.mergelog.boundaries import transition
from tandem.mergelog.log_table import (
    DELETED,
    INSTANT,
    LogSettings,
    MergeLog,
    block_format,
    check_format,
    require_columns,
    require_mergeable,
    settings_of,
)
from tandem.mergelog.versions import Block, BlockLogState, tags_of
from tandem.operations.kinds.commit_history import (
    require_vectors_or_edits,
    verdict_of_table,
)
from tandem.operations.kinds.job_files import output_add
from tandem.operations.kinds.sources import check_loaded, check_source, version_of_source
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Table, Work
from tandem.spec.status import Plan, Reconciled, RowsAffected
from tandem.spec.update import Source, TableIngest, TableUpdate
from tandem.statements.types import Schema


@dataclass(frozen=True, slots=True)
class _Input:
    """What is appended: the rows of `source`, which stands in `field` of the resource. `deletes`:
    each deletes its key."""

    source: Source
    field: str
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an append in the one order of both logs: after this version of the base table.
    `state` is what the log says then, `history` knows the blocks that it has again."""

    base: Snapshot
    history: BaseHistory
    state: BlockLogState


class UpsertKind:
    """The `Kind` of an append to a log by key."""

    protocol_kind = protocol.OperationKind.LOG_APPEND

    def __init__(self, resource: TableUpdate | TableIngest) -> None:
        self._resource = resource
        self._input = _input_of(resource)
        self._base: Snapshot | None = None
        self._history: BaseHistory | None = None

    # Planning

    def plan(self, work: Work) -> Planned:
        source, field = self._input.source, self._input.field
        check_source(work, source, resource=self._resource.id, field=field)
        place = self._place(work)
        settings = _settings(work, place.base, self._resource.id)
        blocks = self._blocks(work, place.base, settings)
        columns = self._columns(blocks, settings)
        size = check_loaded(
            work,
            source,
            resource=self._resource.id,
            field=field,
            columns=columns,
            besides="besides the keys and the ordering column"
            if self._input.deletes
            else "that the table lacks",
        )
        summary = Plan(
            read_version=work.snapshot.version,
            inputs=0,
            input_bytes=0,
            locks=("Append to the log",),
        )
        job = UpsertJob(
            source_format=source.format.value,
            source_location=source.location,
            source_options=dict(source.options),
            source_version=version_of_source(work, source),
            field=field,
            blocks=blocks,
            keys=settings.keys,
            ordering_column=settings.ordering_column,
            deletes=self._input.deletes,
            max_block_bytes=self._resource.spec.target_file_size,
            partitions=place.base.partition_columns,
        )
        return Planned(summary, job, WHOLE_TABLE, source_bytes=size)

    def _place(self, work: Work) -> _Place:
        """Look at the base table, after the version of the log that the commit would follow. If a
        put was lost a moment ago, what was seen before it is enough, unless the log has seen more.

        Raises: BaseReplaced, BaseHistoryGap, InvalidSpec.
        """
        log = MergeLog(_base_of(work.table).log)
        if self._base is None:
            self._base = log.base.snapshot()
        elif not work.at_once or self._base.version < base_of(work.snapshot):
            self._base = log.base.update(self._base)
        if self._history is None:
            self._history = BaseHistory(log, work.snapshot)
        else:
            self._history = self._history.following(work.snapshot)
        history = self._history
        state = history.at(self._base.version)
        require_same_table(self._base, state)
        return _Place(self._base, history, state)

    def _blocks(self, work: Work, base: Snapshot, settings: LogSettings) -> JobTable:
        """How blocks are written for a version of the base table: as its rows, so that a job
        refuses a NULL where it must not be, and in a key. A delete has no more than its key."""
        table = block_format(base, settings)
        schema = all_nullable(table.schema) if self._input.deletes else table.schema
        fields = (
            replace(field, nullable=field.nullable and field.name not in settings.keys)
            for field in schema
        )
        return JobTable(
            location=work.table.location,
            version=base.version,
            table_id=base.metadata.id,
            schema_string=to_delta_json(StructType(tuple(fields))),
            partition_columns=table.partition_columns,
            configuration=dict(table.configuration),
            storage_options=dict(work.table.storage_options),
            allowed_prefixes=work.table.allowed_prefixes,
        )

    def _columns(self, blocks: JobTable, settings: LogSettings) -> Schema:
        """The columns that rows of the source are for; those that it must have are not nullable."""
        needed = settings.columns
        return Schema(
            tuple(
                replace(column, nullable=column.nullable and column.name not in needed)
                for column in Schema.from_json(blocks.schema_string).columns
                if column.name not in (DELETED, INSTANT)
                and (column.name in needed or not self._input.deletes)
            )
        )

    def plan_of_adopted(self, work: Work) -> Planned:
        return Planned(work.frozen[0].summary, None, WHOLE_TABLE)

    # Committing

    def load(self, work: Work, round_: int) -> None:
        """Does nothing: the result consists of its files alone."""

    def decide(self, work: Work) -> Decision:
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        if refusal is not None:
            return refusal
        place = self._place(work)
        settings = _settings(work, place.base, self._resource.id)
        job, now = _job(work.frozen[1]), self._blocks(work, place.base, settings)
        if (_layout(job.blocks), job.partitions) != (_layout(now), place.base.partition_columns):
            why = f"columns or rules of the base table changed since version {job.blocks.version}"
            return Decision(Verdict.REPLAN, why)
        return Decision(Verdict.COMMIT, payload=place)

    def change(self, work: Work) -> CommitContent:
        assert work.decision is not None
        place = work.decision.payload
        assert isinstance(place, _Place)
        plan, _ = work.frozen
        result = work.results[0]
        instant = work.snapshot.version + 1
        outputs = []
        for file in result.outputs:
            block = Block(file.path, instant, instant, file.size, file.deletes)
            add = output_add(file, tags_of(block))
            outputs.append(OutputFileChange(replace(add, modified_ms=work.now_ms), file.rows))
        deleted = sum(file.deletes for file in result.outputs)
        return CommitContent(
            operation="WRITE",
            parameters={"mode": "Append"},
            outputs=tuple(outputs),
            further=tuple(
                transition(
                    work.snapshot,
                    place.state,
                    place.history.restored,
                    base=place.base,
                    now_ms=work.now_ms,
                )
            ),
            isolation="Serializable",
            rows=RowsAffected(deleted=deleted, upserted=result.rows_written - deleted),
            blocks=len(outputs),
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                rounds=work.rounds,
            ),
        )


def _input_of(resource: TableUpdate | TableIngest) -> _Input:
    if isinstance(resource, TableIngest):
        return _Input(resource.spec.source, "spec.source")
    if resource.spec.delete_keys is not None:
        return _Input(resource.spec.delete_keys.source, "spec.deleteKeys.source", deletes=True)
    assert resource.spec.upsert is not None
    return _Input(resource.spec.upsert.source, "spec.upsert.source")


def _settings(work: Work, base: Snapshot, resource: str) -> LogSettings:
    """The settings of the log, which the base table still fits.

    Raises: InvalidSpec; UnsupportedFeature if a later version has changed the log meanwhile, or if
        the base table refuses merges; DeletionVectorsDisabled if its LakeTable does.
    """
    check_format(work.snapshot)
    settings = settings_of(work.snapshot)
    require_columns(base, settings)
    require_mergeable(base)
    require_vectors_or_edits(_base_of(work.table), base, resource)
    return settings


def _base_of(table: Table) -> Table:
    assert table.base is not None
    return table.base


def _job(spec: JobSpec) -> UpsertJob:
    assert isinstance(spec.job, UpsertJob)
    return spec.job


def _layout(table: JobTable) -> tuple[object, ...]:
    """What the files of a block depend on."""
    rules = protocol.constraints(table.configuration)
    return table.schema_string, table.partition_columns, rules
