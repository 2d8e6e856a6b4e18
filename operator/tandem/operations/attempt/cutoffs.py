"""The cutoff of a replace: the version that counts as its start, for all of its attempts (I-54).

With a cutoff that moves at a retry, luck decides whether late rows survive (Druid 15085).
"""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import ManifestInvalid, ObjectNotFound
from tandem.jobs.formats import Format
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import OperationRecord
from tandem.storage.store import Store


class CutoffRecord(Format):
    """cutoff.json: put once, by whichever process was granted the locks first."""

    operation_id: str
    table_id: str
    version: int


def fix(store: Store, operation_id: str, attempt: int, snapshot: Snapshot) -> None:
    """Make this version the cutoff, unless there is one. To be called before the attempt's plan is
    persisted. Raises: ManifestInvalid if an earlier attempt had one that is gone, StorageError."""
    path = paths.cutoff(operation_id)
    if any(_has_plan(store, operation_id, earlier) for earlier in range(1, attempt)):
        fixed(store, operation_id)
        return
    record = CutoffRecord(
        operation_id=operation_id, table_id=snapshot.metadata.id, version=snapshot.version
    )
    records.put_once(store, path, record)


def _has_plan(store: Store, operation_id: str, attempt: int) -> bool:
    try:
        store.head(paths.plan(operation_id, attempt))
    except ObjectNotFound:
        return False
    return True


def fixed(store: Store, operation_id: str) -> int:
    """The cutoff of an operation that has a plan. Raises: ManifestInvalid if it is gone."""
    path = paths.cutoff(operation_id)
    found = records.load(store, path, CutoffRecord, operation_id=operation_id)
    if found is None:
        raise ManifestInvalid(
            "the record of the start of a replace is gone",
            resource=path,
            found="no such file",
            expected="the version that counts as its start",
            remedy="Find out what else writes to the table's _tandem folder",
        )
    return found.version


def of(store: Store, operation_id: str) -> int | None:
    """The version that counts as the start of a replace, fixed or named by its spec; None if there
    is none (yet). Raises: ManifestInvalid."""
    path = paths.cutoff(operation_id)
    found = records.load(store, path, CutoffRecord, operation_id=operation_id)
    if found is not None:
        return found.version
    operation = records.load(store, paths.identity(operation_id), OperationRecord)
    named = None if operation is None else operation.spec.get("startVersion")
    return named if isinstance(named, int) else None
