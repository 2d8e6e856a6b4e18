"""The log merge that has to end before a statement plans.

A statement reads the base table, so the records that were acknowledged before it began have to be
merged first. The version of the base table that the statement has read decides which these are:
each append records the newest version that its writer has seen, so a record that was acknowledged
before is in an instant that has processed the base table up to that version or less. Later appends
come after the statement, as they do after each commit of the base table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.state.base_history import BaseHistory
from tandem.mergelog.state.boundaries import mark_in
from tandem.mergelog.state.log_table import MergeLog, settings_of, state_of
from tandem.mergelog.state.versions import BlockLogState
from tandem.operations.model import Identity, Table, Work
from tandem.operations.session.identity import has_begun, identify, is_recorded
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.update import TableUpdate


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
