"""The operation id of a resource, and which of its runs (`--again`) it stands for."""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import OperationRecord, ResultRecord
from tandem.operations.model import Identity, Table
from tandem.operations.session import commit_actions, recovery
from tandem.spec.resources import Operation, canonical_spec, spec_hash
from tandem.spec.status import Phase
from tandem.storage.store import exists


def identify(
    resource: Operation,
    table: Table,
    snapshot: Snapshot,
    *,
    again: bool,
    only_failed: bool = False,
) -> Identity:
    """The latest run of a resource; with `again` a new one, unless the latest is unfinished, which
    is then continued: a killed `--again` is not lost. With `only_failed`, `again` starts no new
    run after a success.

    A run on another table that was at this location before does not count: a new one is started
    in any case (docs/decisions/0089).

    Raises: ManifestInvalid, StorageError.
    """
    hash_ = spec_hash(resource)

    def at(run: int) -> Identity:
        return Identity(
            operation_id=paths.operation_id(
                resource.namespace, resource.kind_name, resource.name, hash_, run
            ),
            kind=resource.kind_name,
            namespace=resource.namespace,
            name=resource.name,
            spec_hash=hash_,
            spec=canonical_spec(resource),
            run=run,
        )

    run = 1
    while has_begun(table, snapshot, at(run + 1).operation_id):
        run += 1
    latest = at(run)
    if _of_another_table(table, snapshot, latest.operation_id):
        return at(run + 1)
    over = _failed if only_failed else has_ended
    if again and over(table, snapshot, latest.operation_id):
        return at(run + 1)
    return latest


def has_begun(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has begun. The log shows it for longer than its record is kept."""
    in_log = commit_actions.txn_markers(snapshot, operation_id) != commit_actions.TxnMarkers()
    return in_log or exists(table.store, paths.identity(operation_id))


def may_count(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has ended, or has an attempt with a plan that may yet commit."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    return has_ended(table, snapshot, operation_id) or recovery.has_live_plan(
        table.store, operation_id, markers
    )


def is_recorded(table: Table, operation_id: str) -> bool:
    """Whether the end of the run is recorded: nothing of it is left to do."""
    return exists(table.store, paths.result(operation_id))


def has_ended(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has ended: it is not continued."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    if markers.succeeded > 0 or markers.closed or is_recorded(table, operation_id):
        return True
    return recovery.last_ending_before_start(table.store, operation_id) is not None


def _failed(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has failed. Without a record, that the log shows the operation as closed
    means only that it did not succeed."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    if markers.succeeded:
        return False
    path = paths.result(operation_id)
    record = records.load(table.store, path, ResultRecord, operation_id=operation_id)
    if record is not None:
        return record.phase == Phase.FAILED
    ending = recovery.last_ending_before_start(table.store, operation_id)
    return markers.closed if ending is None else ending.phase is Phase.FAILED


def _of_another_table(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run was on another table. One that this log shows was on this table, even if
    the table's id has changed."""
    if commit_actions.txn_markers(snapshot, operation_id) != commit_actions.TxnMarkers():
        return False
    path = paths.identity(operation_id)
    record = records.load(table.store, path, OperationRecord, operation_id=operation_id)
    return record is not None and record.table_id not in ("", snapshot.metadata.id)
