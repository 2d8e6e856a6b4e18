"""Builds one transaction on a table's locks. Pure: decided on the mirror; the caller sends it.

The transaction compares everything that its decisions rely on: the head for every grant, the
operation's own entry, one entry that a waiter waits for, and each entry that is revoked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.locks import codec, rules
from tandem.locks.codec import TableKeys
from tandem.locks.etcd.client import KEEP_LEASE, delete, put, unchanged
from tandem.locks.etcd.leases import Lease
from tandem.locks.etcd.mirror import EntryRecord, Mirror
from tandem.locks.model import NOTHING, EntryState, LockEntry, LockRequest, LockResources

# By default, etcd accepts 128 compares, 128 puts and 1.5 MB in a transaction. Large plans are
# better written a few at a time: the next ones are prepared while etcd writes.
MOST_COMPARES = 120
MOST_REVOKED = 60
_MOST_BYTES = 100_000


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in the queue. Without `request`, it only reads the current state of the table."""

    operation: str
    owner: str
    answer: asyncio.Future[Any]
    request: LockRequest | None = None
    more: LockResources = NOTHING
    lease: Lease | None = None
    text: bytes | None = None
    """The encoded resources of the request."""


@dataclass(slots=True)
class TransactionPlan:
    """What one transaction does, and the answers if it succeeds."""

    work: dict[str, LockEntry]
    head: int
    generation: int
    reads_all: bool
    records: dict[str, EntryRecord | None] = field(default_factory=dict)
    """The entries that the decisions rely on, which are compared."""
    puts: dict[str, int] = field(default_factory=dict)
    """operation → lease"""
    texts: dict[str, bytes | None] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    waits: dict[QueuedRequest, rules.Blockers] = field(default_factory=dict)
    grants: list[QueuedRequest] = field(default_factory=list)
    again: list[QueuedRequest] = field(default_factory=list)
    reads: list[QueuedRequest] = field(default_factory=list)

    def place(self, operation: str) -> int:
        entry, record = self.work[operation], self.records.get(operation)
        if entry.order >= rules.LAST:
            return entry.order - rules.LAST
        return record.place if record is not None else 0

    def written(self, operation: str, revision: int) -> EntryRecord:
        """The entry that was put at `revision`."""
        entry, lease, place = self.work[operation], self.puts[operation], self.place(operation)
        record = self.records.get(operation)
        created = record.created if record is not None else revision
        if entry.order >= rules.LAST:
            entry = replace(entry, order=codec.order(created, place))
        if entry.state is not EntryState.WAITING and not entry.token:
            entry = replace(entry, token=revision)
        if lease == KEEP_LEASE:
            lease = record.lease if record is not None else 0
        return EntryRecord(entry, created, revision, place, lease)

    def left_leases(self) -> list[int]:
        """Leases that have lost their entry in a take-over."""
        records = ((self.records.get(o), lease) for o, lease in self.puts.items())
        return [
            record.lease
            for record, lease in records
            if record is not None and lease not in (KEEP_LEASE, record.lease) and record.lease
        ]

    def requests(self, keys: TableKeys, table: str) -> tuple[list[Any], list[Any]]:
        """(compares, requests to perform if all of them hold)"""
        compares = [
            unchanged(keys.of(operation), record.modified if record else 0)
            for operation, record in self.records.items()
        ]
        success: list[Any] = [delete(keys.of(operation)) for operation in self.deletes]
        if self.puts:
            compares.append(unchanged(keys.head, self.head))
            success.append(put(keys.head, codec.head(table)))
        for operation, lease in self.puts.items():
            text = self.texts.get(operation)
            value = codec.encode(self.work[operation], self.place(operation), text)
            success.append(put(keys.of(operation), value, lease))
        return compares, success


def take(queue: deque[QueuedRequest], most: int) -> list[QueuedRequest]:
    """The next requests to be decided together, of different operations."""
    batch: list[QueuedRequest] = []
    operations: set[str] = set()
    size = 0
    while queue and len(batch) < most:
        queued = queue[0]
        size += _size(queued)
        if batch and (queued.operation in operations or size > _MOST_BYTES):
            break
        if queued.operation:
            operations.add(queued.operation)
        batch.append(queue.popleft())
    return batch


def decide_batch(batch: Sequence[QueuedRequest], mirror: Mirror) -> TransactionPlan:
    """Decide on the requests one after the other, each on the result of the previous ones. Raises:
    LocksUnavailable if an entry cannot be read."""
    reads = [queued for queued in batch if queued.lease is None]
    plan = TransactionPlan(
        dict(mirror.entries), mirror.head, mirror.generation, bool(reads), reads=reads
    )
    for place, queued in enumerate(batch):
        if queued.lease is None:
            continue
        if len(plan.records) + 1 + MOST_REVOKED > MOST_COMPARES:
            plan.again.append(queued)
        else:
            _decide_one(plan, mirror, queued, queued.lease, place)
    # Others wait here, but the watch has not reported their changes yet: read it, too.
    plan.reads_all |= bool(plan.puts) and mirror.watched and not mirror.current
    return plan


def _decide_one(
    plan: TransactionPlan, mirror: Mirror, queued: QueuedRequest, lease: Lease, place: int
) -> None:
    mine = plan.work.get(queued.operation)
    plan.records[queued.operation] = record = mirror.record(queued.operation)
    if queued.request is None:
        extended = rules.extend(mine, queued.owner, queued.more, plan.work.values(), MOST_REVOKED)
        if extended is None:
            plan.waits[queued] = ()
            return
        outcome = extended
    elif mine is not None and mine.revoked_by:
        # A new place in the queue needs a new key, and no transaction may put a key it deletes.
        plan.deletes.add(queued.operation)
        del plan.work[queued.operation]
        plan.again.append(queued)
        return
    else:
        outcome = rules.acquire(queued.request, mine, plan.work.values(), MOST_REVOKED)
    entry = outcome.entry
    if entry is None and record is not None and record.lease != lease.id:
        entry = plan.work[queued.operation]
    if entry is not None:
        if entry.order == rules.LAST:
            entry = replace(entry, order=rules.LAST + place)
        plan.work[queued.operation] = entry
        plan.puts[queued.operation] = lease.id
        plan.texts[queued.operation] = queued.text
    for revoked in outcome.revoke:
        plan.work[revoked] = replace(plan.work[revoked], revoked_by=queued.operation)
        plan.records.setdefault(revoked, mirror.record(revoked))
        plan.puts.setdefault(revoked, KEEP_LEASE)
    if outcome.granted:
        plan.grants.append(queued)
        return
    plan.waits[queued] = outcome.blockers
    # The existence of this entry proves that we have to wait, whatever else has changed.
    blocker = outcome.blockers[0][0].request.operation
    if blocker not in plan.puts:
        plan.records[blocker] = mirror.record(blocker)


def _size(queued: QueuedRequest) -> int:
    """The approximate number of bytes written; for an extension, without the existing resources."""
    return len(queued.text or b"")
