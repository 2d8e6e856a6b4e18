"""`TableCompaction` of type `LogMerge`: moves the records of the log into the base table.

Hides rows of the base table and adds those that the log shows, in one commit with the mark. The
merged view before and after is the same. Serializable: at each version that it might follow, the
rows of files that are new since the job are compared with the winners, too; so appends of others
come before the log, and rows that others moved are found where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION, AddFile, Txn
from tandem.delta.change_feed import ChangeType
from tandem.delta.datafiles.reader import DataFileReader
from tandem.delta.log.files import to_adds
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import target_file_size
from tandem.delta.scan import table_format
from tandem.errors import ManifestInvalid
from tandem.jobs.formats import InputFile, JobSpec, LogBlock, LogMergeJob
from tandem.locks.rules import segment
from tandem.mergelog.base_history import BaseHistory, require_same_table
from tandem.mergelog.boundaries import mark_in
from tandem.mergelog.log_table import (
    MergeLog,
    block_format,
    log_partitions,
    require_columns,
    require_mergeable,
    settings_of,
    state_of,
)
from tandem.mergelog.versions import MERGED, BlockLogState, in_order
from tandem.mergelog.winners import (
    LogWinners,
    MatchedRows,
    MergeResult,
    at_version,
    match,
    may_hold,
    read,
    winners_of,
)
from tandem.operations.kinds.commit_history import (
    MOST_LOST_EDITS,
    SnapshotView,
    VectorCache,
    planned_edits,
    require_vectors_or_edits,
    verdict_of_table,
)
from tandem.operations.kinds.job_files import (
    new_segment,
    numbers_at,
    output_add,
    require_inside,
    with_change_files,
)
from tandem.operations.machine.events import Verdict
from tandem.operations.model import (
    CommitContent,
    Decision,
    Identity,
    OutputFileChange,
    Planned,
    Table,
    Work,
)
from tandem.operations.session.recovery import has_begun, identify, is_recorded
from tandem.reconcile.feed import ChangedRows
from tandem.rowmap.run_table import to_array, to_bitmap
from tandem.spark.jobs.log_merge import WrittenWinners, write_winners
from tandem.spark.runtime.control import origin_of
from tandem.spec.compaction import DEFAULT_TARGET_FILE_SIZE, CompactionType, TableCompaction
from tandem.spec.status import MERGES_LOG, Plan, Reconciled, RowsAffected
from tandem.spec.update import TableUpdate
from tandem.storage.paths import LOG_FOLDER
from tandem.timeline.segments import output_tags

_LOCK = segment(LOG_FOLDER)
"""Two merges of one log exclude each other; other operations are reconciled with at the commit."""


@dataclass(frozen=True, slots=True)
class _LogAtPlan:
    """The version of the log that an attempt merges. Its history keeps the commits of the base
    table that it has read: each round of the commit loop reads the new ones only."""

    log: MergeLog
    snapshot: Snapshot
    history: BaseHistory


@dataclass(frozen=True, slots=True)
class _Merge:
    """What a merge commits: `hidden` are the rows of each file of winners that are not shown."""

    result: MergeResult
    hidden: tuple[BitMap64, ...]


class LogMergeKind:
    """The `Kind` of one LogMerge."""

    protocol_kind = protocol.OperationKind.MERGE

    def __init__(self, resource: TableCompaction) -> None:
        self._resource = resource
        self._planned = False
        self._won: tuple[object, LogWinners] | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop what belongs to a plan and its result."""
        self._matches: dict[str, MatchedRows] = {}
        self._written: list[WrittenWinners] = []
        self._base_ids: dict[str, int | None] = {}
        self._cache: VectorCache | None = None
        self._log: _LogAtPlan | None = None

    # Planning

    def plan(self, work: Work) -> Planned:
        self._forget()
        base = work.snapshot
        log = MergeLog(work.table.log)
        found = log_as_of(log, base.version)
        blocks = found.state.unmerged
        size = sum(block.size for block in blocks)
        summary = Plan(read_version=base.version, inputs=len(blocks), input_bytes=size)
        if not blocks and not may_hide_rows(log, found, base.version, added_by=base.version):
            nothing = "the base table holds all records of the log"
            planned = Planned(summary, None, _LOCK, nothing_to_do=nothing, superseded=self._planned)
            self._planned = True
            return planned
        self._planned = True
        settings = settings_of(found.snapshot)
        require_same_table(base, found.state)
        require_columns(base, settings)
        require_mergeable(base)
        require_vectors_or_edits(work.table, base, self._resource.id)
        live = in_order(found.state.live.values())
        records = self._winners(log, found.snapshot, found.state, base).overlay.records
        mask = may_hold(base, settings, records, base.files)
        candidates = list(to_adds(base.files.filter(pa.array(mask))))
        require_inside(work.table, candidates)
        cache = self._vectors(work)
        cache.load(add.deletion_vector for add in candidates if add.deletion_vector)
        job = LogMergeJob(
            inputs=tuple(_input(base, cache, add) for add in candidates),
            blocks=tuple(
                LogBlock(
                    logged_path=block.path,
                    first=block.first,
                    last=block.last,
                    size=block.size,
                    partition_values=dict(block.group),
                )
                for block in live
            ),
            log_id=found.snapshot.metadata.id,
            log_version=found.snapshot.version,
            log_partition_columns=log_partitions(base, settings),
            keys=settings.keys,
            ordering_column=settings.ordering_column,
            mark=found.state.mark,
            target_file_size=self._resource.spec.target_file_size
            or target_file_size(work.snapshot.metadata.configuration)
            or DEFAULT_TARGET_FILE_SIZE,
        )
        summary = summary.model_copy(
            update={
                "inputs": len(live) + len(candidates),
                "input_bytes": sum(b.size for b in live) + sum(a.size for a in candidates),
                "edits": planned_edits(work, candidates, of="a row of the log's keys"),
                "locks": (MERGES_LOG,),
            }
        )
        return Planned(summary, job, _LOCK)

    def _winners(
        self, log: MergeLog, snapshot: Snapshot, state: BlockLogState, base: Snapshot
    ) -> LogWinners:
        """The winners of a state of the log. The plan needs them, and a commit that follows others:
        they are kept, since to find them reads the whole log."""
        grounds = (state.mark, state.live, base.metadata.schema_string)
        if self._won is None or self._won[0] != grounds:
            settings = settings_of(snapshot)
            found = winners_of(
                log.store,
                in_order(state.live.values()),
                block_format(base, settings),
                settings,
                state.mark,
            )
            assert found is not None  # without a limit of memory
            self._won = (grounds, found)
        return self._won[1]

    def plan_of_adopted(self, work: Work) -> Planned:
        return Planned(work.frozen[0].summary, None, _LOCK)

    def _vectors(self, work: Work) -> VectorCache:
        if self._cache is None:
            self._cache = VectorCache.of(work.table.store, work.table.log)
        return self._cache

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        self._forget()
        result = work.results[round_]
        _, spec = work.frozen
        job = _job(spec)
        if result.matches is None:
            raise ManifestInvalid("a log merge's result has no matches", field="matches")
        try:
            with pa.ipc.open_file(pa.BufferReader(work.read(result.matches))) as reader:
                found = read(reader.read_all())
        except (pa.ArrowInvalid, ValueError) as error:
            raise ManifestInvalid(
                "the matches of a log merge cannot be read",
                resource=result.matches.path,
                found=str(error)[:300],
                expected="an Arrow file with the columns of `MATCHES`",
            ) from error
        if any(number >= len(job.inputs) for number in found.inputs) or any(
            len(found.outputs.get(at, ())) != output.rows
            for at, output in enumerate(result.outputs)
        ):
            raise ManifestInvalid(
                "the matches of a log merge are not those of its files",
                resource=result.matches.path,
                field="matches",
            )
        none = np.empty(0, np.int64)
        nothing = MatchedRows(none, none, none.astype(bool), none.astype(bool))
        self._matches = {
            file.logged_path: found.inputs.get(number, nothing)
            for number, file in enumerate(job.inputs)
        }
        self._base_ids = {file.logged_path: file.base_row_id for file in job.inputs}
        self._written = [
            WrittenWinners(file, found.outputs[at], found.row_ids.get(at))
            for at, file in enumerate(result.outputs)
        ]

    def decide(self, work: Work) -> Decision:
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=work.vectors_only)
        if refusal is not None:
            return refusal
        plan, spec = work.frozen
        log = self._log_at_plan(work)
        if _job(spec).log_id not in ("", log.snapshot.metadata.id):
            return Decision(Verdict.REPLAN, "the log was removed and recreated")
        history = log.history
        before, now = history.at(plan.read_version), history.at(work.snapshot.version)
        if (before.base_id, before.mark, before.live) != (now.base_id, now.mark, now.live):
            why = "another merge of the log, or a boundary such as an overwrite or a restore"
            return Decision(Verdict.REPLAN, why)
        result = self._result_at(work, now)
        return Decision(Verdict.COMMIT, payload=_Merge(result, self._hidden_at(work, now, result)))

    def _log_at_plan(self, work: Work) -> _LogAtPlan:
        if self._log is None:
            log = MergeLog(work.table.log)
            snapshot = log.snapshot(_job(work.frozen[1]).log_version)
            self._log = _LogAtPlan(log, snapshot, BaseHistory(log, snapshot))
        return self._log

    def _result_at(self, work: Work, state: BlockLogState) -> MergeResult:
        """What the merge changes at the version that it might follow."""
        view = SnapshotView(work.snapshot, self._vectors(work))
        view.prefetch(self._matches)
        if work.frozen[1].table.row_ids:
            for path, base_id in self._base_ids.items():
                add = view.add(path)
                if add is not None and add.extra.get(BASE_ROW_ID) != base_id:
                    self._matches.pop(path, None)
        self._match_new_files(work, state)
        view.prefetch(self._matches)
        live = {path: file for path in self._matches if (file := view.get(path)) is not None}
        return at_version(
            {path: self._matches[path] for path in live},
            {path: file.dead for path, file in live.items()},
        )

    def _hidden_at(
        self, work: Work, state: BlockLogState, result: MergeResult
    ) -> tuple[BitMap64, ...]:
        """For each file of winners the rows that are not shown at this version: they are beaten, or
        written with another id than that of the row that they take the place of. The latter are
        written again: others have deleted, added or replaced rows of their keys."""
        done = np.array(sorted(result.beaten), np.int64)
        hidden = []
        for each in self._written:
            shown = ~np.isin(each.winners, done)
            if each.row_ids is not None:
                shown &= each.row_ids == result.ids_of(each.winners)
            hidden.append(BitMap64(np.flatnonzero(~shown)))
            done = np.concatenate([done, each.winners[shown]])
        wanted = [np.empty(0, np.int64), *(each.winners for each in self._written)]
        missing = np.setdiff1d(np.concatenate(wanted), done)
        if len(missing):
            found = self._log_at_plan(work)
            won = self._winners(found.log, found.snapshot, state, work.snapshot)
            ids = result.ids_of(np.arange(len(won.rows)))
            again = write_winners(work.table.store, work.frozen[1], won, ids, missing)
            self._written += again
            hidden += [BitMap64() for _ in again]
        return tuple(hidden)

    def _match_new_files(self, work: Work, state: BlockLogState) -> None:
        """Compare the rows of files that the job has not seen with the winners."""
        base, found = work.snapshot, self._log_at_plan(work)
        known = pa.array(self._matches, pa.string())
        unknown = base.files.filter(pc.invert(pc.is_in(base.files["path"], value_set=known)))
        if not unknown.num_rows:
            return
        settings = settings_of(found.snapshot)
        table = table_format(base).with_row_ids(work.frozen[1].table.row_ids or ())
        overlay = self._winners(found.log, found.snapshot, state, base).overlay
        mask = may_hold(base, settings, overlay.records, unknown)
        for add in to_adds(unknown.filter(pa.array(mask))):
            input_ = _input(base, self._vectors(work), add)
            with DataFileReader(
                work.table.store,
                add.path,
                table,
                partition_values=add.partition_values,
                columns=(*settings.columns, *table.row_ids[:1]),
                origin=origin_of(input_, table),
            ) as reader:
                # With deleted rows: the file may have another vector at the next version.
                self._base_ids[add.logged_path] = input_.base_row_id
                self._matches[add.logged_path] = match(
                    reader, overlay, BitMap64(), with_ids=bool(table.row_ids)
                )

    def change(self, work: Work) -> CommitContent:
        assert work.decision is not None
        merge = work.decision.payload
        assert isinstance(merge, _Merge)
        found = merge.result
        plan, spec = work.frozen
        job = _job(spec)
        view = SnapshotView(work.snapshot, self._vectors(work))
        view.prefetch(found.hidden)
        created = new_segment(work.snapshot, work.now_ms)
        tags = output_tags(created.name, created.sequence)
        outputs = []
        inserted = 0
        for each, hidden in zip(self._written, merge.hidden, strict=True):
            rows = each.file.rows
            inserted += rows - len(hidden)
            if len(hidden) < rows:
                add = output_add(each.file, tags)
                outputs.append(OutputFileChange(add, rows, hidden or None))
        touched = tuple(_touched(view, found.hidden))
        log_id = self._log_at_plan(work).snapshot.metadata.id
        change = CommitContent(
            operation="MERGE",
            parameters={"predicate": "[]", "matchedPredicates": "[]", "notMatchedPredicates": "[]"},
            outputs=tuple(outputs),
            removes=tuple(file.add for file in touched if _is_emptied(file)),
            marked=tuple(file for file in touched if not _is_emptied(file)),
            data_change=True,
            isolation="Serializable",
            most_lost_edits=MOST_LOST_EDITS,
            segments=(created.name,) if outputs else (),
            numbers=created.numbers if outputs else numbers_at(work.snapshot),
            rows=RowsAffected(deleted=sum(map(len, found.hidden.values())), inserted=inserted),
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                rounds=work.rounds,
            ),
            txns=(Txn(MERGED + log_id, job.log_version, work.now_ms),),
        )
        written = {each.file.path: each.file for each in self._written}
        return with_change_files(work, change, view, written, self._changes(merge))

    def _changes(self, merge: _Merge) -> Iterator[ChangedRows]:
        """A row whose key has a winner that is shown is updated, if there are such."""
        shown = np.empty(0, np.int64)
        for each, hidden in zip(self._written, merge.hidden, strict=True):
            kept = np.delete(each.winners, to_array(hidden))
            shown = np.concatenate([shown, kept])
        hiding = np.empty(0, np.int64)
        for path, rows in merge.result.hidden.items():
            found = self._matches[path]
            here = np.isin(found.positions, to_array(rows))
            positions, winners = found.positions[here], found.winners[here]
            hiding = np.concatenate([hiding, winners])
            is_updated = np.isin(winners, shown)
            yield ChangedRows(path, to_bitmap(positions[is_updated]), ChangeType.BEFORE)
            yield ChangedRows(path, to_bitmap(positions[~is_updated]), ChangeType.DELETE)
        for each, hidden in zip(self._written, merge.hidden, strict=True):
            is_update = np.isin(each.winners, hiding)
            for chosen, type_ in (
                (is_update, ChangeType.AFTER),
                (~is_update, ChangeType.INSERT),
            ):
                yield ChangedRows(each.file.path, BitMap64(np.flatnonzero(chosen)) - hidden, type_)


def _job(spec: JobSpec) -> LogMergeJob:
    assert isinstance(spec.job, LogMergeJob)
    return spec.job


def _input(base: Snapshot, cache: VectorCache, add: AddFile) -> InputFile:
    # For ids alone: the job looks at deleted rows, too, since another vector may be the file's at
    # the commit.
    dead = BitMap64()
    if protocol.keeps_row_ids(base.protocol, base.metadata):
        dead = cache.dead(add)
    return InputFile(
        logged_path=add.logged_path,
        size=add.size,
        rows=cache.rows_of(add),
        dv=dv.to_base64(dead) if dead else "",
        partition_values=dict(add.partition_values),
        base_row_id=add.extra.get(BASE_ROW_ID),
        row_commit_version=add.extra.get(ROW_COMMIT_VERSION),
    )


def _is_emptied(file: OutputFileChange) -> bool:
    """A file without a live row is removed."""
    return file.dead is not None and len(file.dead) == file.rows


def _touched(view: SnapshotView, hidden: Mapping[str, BitMap64]) -> Iterable[OutputFileChange]:
    """The files with hidden rows, each with all of its deleted rows."""
    for path, positions in hidden.items():
        add, state = view.add(path), view.get(path)
        assert add is not None
        assert state is not None
        yield OutputFileChange(add, state.rows, state.dead | positions)


# The log merge that has to end before a statement plans.
#
# A statement reads the base table, so the records that were acknowledged before it began have to be
# merged first. The version of the base table that the statement has read decides which these are:
# each append records the newest version that its writer has seen, so a record that was acknowledged
# before is in an instant that has processed the base table up to that version or less. Later
# appends come after the statement, as they do after each commit of the base table.


@dataclass(frozen=True, slots=True)
class LogAsOf:
    """The newest version of a log that has processed its base table up to a version or less, and
    what it says as of that version."""

    snapshot: Snapshot
    state: BlockLogState


def log_as_of(log: MergeLog, version: int) -> LogAsOf:
    """The log as of a version of the base table. The log is read after that version here: it cannot
    lack an instant that the base table holds.

    Raises: NotMergeOnRead, BaseReplaced, BaseHistoryGap.
    """
    newest = log.snapshot()
    history = BaseHistory(log, newest)
    if state_of(newest).base <= version:
        return LogAsOf(newest, history.at(version))
    instant, state = history.instant_before(version)
    # Before the first version of the log there is nothing to merge.
    return LogAsOf(log.snapshot(max(instant, 0)), state)


def may_hide_rows(log: MergeLog, found: LogAsOf, version: int, *, added_by: int) -> bool:
    """Whether deletes that are merged and stay in force may hide rows of a version of the base
    table: rows that were added after the last merge, and no later than in version `added_by`. A
    merge removes them.

    Raises: StorageError.
    """
    state = found.state
    if not settings_of(found.snapshot).ordered or state.mark < 0:
        return False
    if not any(block.deletes for block in state.live.values()):
        return False
    for at in range(version, -1, -1):
        commit = log.base.commit(at)
        if commit is None:
            return True  # cleaned up: it may have added some
        if mark_in(commit, found.snapshot.metadata.id) is not None:
            return False
        # A file that it removes and adds has another deletion vector, and no new row.
        there = {remove.logged_path for remove in commit.removes}
        if at <= added_by and any(
            add.data_change and add.logged_path not in there for add in commit.adds
        ):
            return True
    return True


class StatementLog:
    """The log of a statement's table, if it has one."""

    def __init__(self) -> None:
        self._cut: LogAsOf | None = None
        self._began = False
        self._planned: _Mark | None = None

    def prerequisite(self, work: Work, resource: TableUpdate) -> TableCompaction | None:
        """The merge that has to end before the statement plans on `work.snapshot`; None if that
        version holds all that was acknowledged before the first plan.

        Raises: BaseReplaced, BaseHistoryGap.
        """
        log = MergeLog(work.table.log)
        merge = _merge_before(work.identity, resource)
        if not self._began:
            self._began = True
            self._cut = log_as_of(log, work.snapshot.version) if log.exists() else None
            if self._cut is not None and _was_left(work.table, work.snapshot, merge):
                return merge
        if self._cut is None or not self._cut.state.live:
            return None
        history = BaseHistory(log, self._cut.snapshot)
        now = work.snapshot.version
        if history.at(now).unmerged:
            return merge
        return merge if may_hide_rows(log, self._cut, now, added_by=self._cut.state.base) else None

    def was_restored(self, work: Work) -> bool:
        """Whether a restore has taken records out of the base table that were merged when the
        statement planned.

        Raises: BaseReplaced, BaseHistoryGap.
        """
        planned, now = work.frozen[0].read_version, work.snapshot.version
        if planned == now:
            return False
        if self._planned is None or self._planned.version != planned:
            self._planned = _mark_at(MergeLog(work.table.log), planned)
        history = self._planned.history
        return history is not None and history.at(now).mark < self._planned.mark


def left_merge(
    resource: TableUpdate, table: Table, identity: Identity, snapshot: Snapshot
) -> TableCompaction | None:
    """The merge that an earlier process of a statement has begun and not ended; None if there is
    none. Raises: StorageError."""
    merge = _merge_before(identity, resource)
    return merge if _was_left(table, snapshot, merge) else None


def _merge_before(identity: Identity, resource: TableUpdate) -> TableCompaction:
    """The merge that a statement needs. Its name depends on the statement alone: another process
    continues a merge in progress."""
    spec = resource.spec
    return TableCompaction.model_validate(
        {
            "apiVersion": resource.api_version,
            "kind": TableCompaction.kind_name,
            "metadata": {
                "name": f"before-{identity.operation_id}",
                "namespace": resource.namespace,
            },
            "spec": {
                "tableRef": spec.table_ref.model_dump(by_alias=True),
                "type": CompactionType.LOG_MERGE.value,
                "targetFileSize": spec.target_file_size,
                "priority": spec.priority,
                "backoffLimit": spec.backoff_limit,
                "activeDeadlineSeconds": spec.active_deadline_seconds,
                "sparkTemplate": spec.spark_template,
            },
        }
    )


def _was_left(table: Table, snapshot: Snapshot, merge: TableCompaction) -> bool:
    """Whether an earlier process has begun the merge, and its end is not recorded: it may have
    committed, but until it has ended, its plan pins files and versions."""
    last = identify(merge, table, snapshot, again=False).operation_id
    return has_begun(table, snapshot, last) and not is_recorded(table, last)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The mark as of a version of the base table; no history if it had no log. The history keeps
    the commits that it has read, so that a round of the commit loop reads the new ones only."""

    version: int
    mark: int = -1
    history: BaseHistory | None = None


def _mark_at(log: MergeLog, version: int) -> _Mark:
    if not log.exists():
        return _Mark(version)
    found = log_as_of(log, version)
    if state_of(found.snapshot).base > version:
        return _Mark(version)
    return _Mark(version, found.state.mark, BaseHistory(log, found.snapshot))
