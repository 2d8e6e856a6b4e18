"""Which batch of an operation is next, and what those before it did.

Reads the log and the records of the batches; writes nothing.
"""

from __future__ import annotations

from tandem.delta.log.snapshot import Snapshot
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import ResultRecord
from tandem.operations.kinds.batches.record import BatchesRecord, load
from tandem.operations.kinds.batches.resource import batch_of, batch_resource
from tandem.operations.model import Identity, Table
from tandem.operations.session import commit_actions
from tandem.operations.session.identity import has_begun, identify, is_recorded
from tandem.spec.compaction import TableCompaction
from tandem.spec.status import OperationResult, Phase


def committed(snapshot: Snapshot, operation_id: str) -> int:
    """The number of the last batch that a version shows as committed; 0 for none."""
    found = snapshot.txns.get(paths.batches_app(operation_id))
    return found.version if found is not None else 0


def has_ended(snapshot: Snapshot, operation_id: str) -> bool:
    """Whether a version shows that the operation has ended, so that no batch may follow."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    return markers.succeeded > 0 or markers.closed


class Batches:
    """The batches of one operation, as one of its processes performs them."""

    def __init__(
        self, resource: TableCompaction, table: Table, identity: Identity, record: BatchesRecord
    ) -> None:
        self.record = record
        self._resource = resource
        self._table = table
        self._identity = identity
        self._finished = 0

    @property
    def count(self) -> int:
        return len(self.record.batches)

    def resource(self, number: int) -> TableCompaction:
        return batch_resource(self._resource, self._identity.operation_id, self.record, number)

    def next(self, snapshot: Snapshot) -> int:
        """The first batch that is left to do: the last one is the operation itself. One that is
        committed but whose process died before it had recorded that is finished first, once.

        Raises: ManifestInvalid, StorageError.
        """
        done = committed(snapshot, self._identity.operation_id)
        if done > self._finished:
            self._finished = done
            if not is_recorded(self._table, self._id(snapshot, done)):
                return done
        number = done + 1
        while number < self.count and self._is_over(snapshot, number):
            number += 1
        return number

    def left(self, snapshot: Snapshot) -> int:
        """The batch that an earlier process has begun and not ended; 0 for none.

        Raises: ManifestInvalid, StorageError.
        """
        number = self.next(snapshot)
        if number >= self.count:
            return 0
        id_ = self._id(snapshot, number)
        begun = has_begun(self._table, snapshot, id_) and not is_recorded(self._table, id_)
        return number if begun else 0

    def results(self, snapshot: Snapshot) -> tuple[OperationResult, ...]:
        """What the batches before the last one have committed, as far as it is still known.

        Raises: ManifestInvalid, StorageError.
        """
        found = []
        for number in range(1, self.count):
            id_ = self._id(snapshot, number)
            record = self._recorded(id_)
            result = record.result if record is not None else None
            if result is None and commit_actions.txn_markers(snapshot, id_).succeeded:
                log, latest = self._table.log, snapshot.version
                result = commit_actions.result_in(commit_actions.find_success(log, id_, latest))
            if result is not None and result.version is not None:
                found.append(result)
        return tuple(found)

    def _is_over(self, snapshot: Snapshot, number: int) -> bool:
        """Whether a batch has ended without a commit, since nothing was left of it. One that has
        failed is not over: the operation has to fail with it."""
        record = self._recorded(self._id(snapshot, number))
        return record is not None and record.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED)

    def _recorded(self, id_: str) -> ResultRecord | None:
        return records.load(self._table.store, paths.result(id_), ResultRecord, operation_id=id_)

    def _id(self, snapshot: Snapshot, number: int) -> str:
        found = identify(self.resource(number), self._table, snapshot, again=False)
        return found.operation_id


def left_batch(
    resource: TableCompaction, table: Table, identity: Identity, snapshot: Snapshot
) -> TableCompaction | None:
    """The batch that an earlier process of a compaction has begun and not ended; None if there is
    none. Raises: ManifestInvalid, StorageError."""
    if batch_of(resource) is not None:
        return None
    record = load(table.store, identity.operation_id)
    if record is None:
        return None
    batches = Batches(resource, table, identity, record)
    number = batches.left(snapshot)
    return batches.resource(number) if number else None
