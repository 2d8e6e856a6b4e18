"""The mirror, a cached copy of a table's locks in etcd, and the transactions that are decided on
it. Pure: no I/O, no clock; the caller sends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.locks import codec, rules
from tandem.locks.codec import TableKeys
from tandem.locks.etcd.client import KEEP_LEASE, KeyChange, KeyValue, delete, put, unchanged
from tandem.locks.etcd.leases import Lease
from tandem.locks.rules import NOTHING, EntryState, LockEntry, LockRequest, LockResources

# The mirror: a cached copy of a table's locks in etcd. Pure: no I/O, no clock.
#
# The copy is always the state at some revision, perhaps an old one. That is enough to be safe: a
# transaction that relies on it compares the head, which every grant and every new waiter bumps,
# and the entries that it waits for or revokes. If they have changed, it fails, and reads the
# current state. The initial copy is empty: no head, no entries.
#
# The copy is *current* while a watch feeds it: it was read no earlier than the watch began, and
# has applied every change since. Only then may it wake a waiter.


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """An entry with the revisions and the lease of its key."""

    entry: LockEntry
    created: int
    modified: int
    place: int
    lease: int


class Mirror:
    """The copy of one table's locks."""

    def __init__(self, keys: TableKeys) -> None:
        self._keys = keys
        self._records: dict[str, EntryRecord] = {}
        # Not decoded yet: we wrote most of the changes that a watch reports ourselves.
        self._raw: dict[str, KeyValue] = {}
        self._entries: dict[str, LockEntry] = {}
        self._head = 0
        # Up to this revision the copy is complete; beyond it, it has results of our own calls.
        self._floor = 0
        self._seen: dict[bytes, int] = {}
        # Keys that we deleted, with their create revisions: a watch may still report changes from
        # before the deletion.
        self._deleted: dict[bytes, int] = {}
        self._generation = 0
        # The revision from which on a watch reports every change; None: no watch.
        self._watched_from: int | None = None
        self._current = False
        self._since_reading: list[KeyChange] | None = None

    @property
    def head(self) -> int:
        """The revision in which the head was put; 0: there is no head, and so no entries."""
        return self._head

    @property
    def generation(self) -> int:
        """A number that changes whenever the copy is rebuilt."""
        return self._generation

    @property
    def current(self) -> bool:
        return self._current

    @property
    def watched(self) -> bool:
        return self._watched_from is not None

    @property
    def empty(self) -> bool:
        return not self._records and not self._raw

    @property
    def entries(self) -> Mapping[str, LockEntry]:
        """The entries by operation. Raises: LocksUnavailable if one of them cannot be read."""
        for operation in list(self._raw):
            self.record(operation)
        return self._entries

    def record(self, operation: str) -> EntryRecord | None:
        """The operation's entry. Raises: LocksUnavailable if it cannot be read."""
        kv = self._raw.get(operation)
        if kv is not None:
            self._set(operation, record_of(kv))
        return self._records.get(operation)

    # Watching

    def watch_began(self, revision: int) -> None:
        """The watch reports every change after `revision`: drop the old copy."""
        self._watched_from = revision
        self.forget()

    def watch_ended(self) -> None:
        self._watched_from = None
        self._current = False

    def observe(self, changes: Sequence[KeyChange]) -> bool:
        """Apply changes of this table, in order. Returns whether they changed the copy."""
        if self._since_reading is not None:
            self._since_reading.extend(changes)
        return self._current and self._take(changes)

    # Reading and writing

    def reading(self) -> None:
        """The whole table is about to be read: changes reported from now on may be later."""
        self._since_reading = []

    def read(self, found: Iterable[KeyValue], revision: int) -> None:
        """Take over the whole table as it was at `revision`."""
        changes, self._since_reading = self._since_reading or (), None
        self.forget()
        self._floor = revision
        for kv in found:
            self._put(kv)
        if self._watched_from is not None and revision >= self._watched_from:
            self._current = True
            self._take(changes)

    def not_read(self) -> None:
        """The read that `reading` announced has failed."""
        self._since_reading = None

    def wrote(self, generation: int, records: Mapping[str, EntryRecord], revision: int) -> None:
        """A transaction of ours, which relied on the copy of `generation`, has bumped the head and
        put these."""
        self._since_reading = None
        if generation != self._generation:
            return
        for operation, record in records.items():
            key = self._keys.of(operation)
            raw = self._raw.get(operation)
            if self._is_news(key, revision):
                self._seen[key] = revision
                self._set(operation, record)
            elif raw is not None and raw.modified == revision:
                self._set(operation, record)
        if self._is_news(self._keys.head, revision):
            self._seen[self._keys.head] = self._head = revision

    def changed(self, operation: str, record: EntryRecord) -> None:
        """We have put an existing entry again, without the head."""
        old = self._raw.get(operation) or self._records.get(operation)
        key = self._keys.of(operation)
        if old is None or old.created != record.created:
            return
        if self._is_news(key, record.modified):
            self._seen[key] = record.modified
            self._set(operation, record)

    def removed(self, operation: str, record: EntryRecord | None) -> None:
        """We have deleted the key of `record`, perhaps with its lease."""
        old = self._raw.get(operation) or self._records.get(operation)
        if old is None or record is None or old.created != record.created:
            return
        key = self._keys.of(operation)
        if self._watched_from is not None:
            self._deleted[key] = old.created
        else:
            self._seen.pop(key, None)
        self._remove(operation)

    def head_removed(self, generation: int, head: int) -> None:
        """We have deleted the head that was put at revision `head`."""
        if generation == self._generation and self._head == head:
            self._head = 0
            self._seen[self._keys.head] = head

    # Details

    def forget(self) -> None:
        """Reset the copy to the empty state."""
        self._records, self._raw, self._entries = {}, {}, {}
        self._seen, self._deleted = {}, {}
        self._head = self._floor = 0
        self._current = False
        self._generation += 1

    def _take(self, changes: Sequence[KeyChange]) -> bool:
        """Apply changes of whole revisions. Returns whether any of them was not known from our own
        calls."""
        taken = False
        for change in changes:
            if change.now is None:
                self._deleted.pop(change.key, None)
            elif self._deleted.get(change.key) == change.now.created:
                continue
            if self._is_news(change.key, change.modified):
                taken = True
                if change.now is not None:
                    self._put(change.now)
                else:
                    self._drop(change.key)
        if changes:
            self._floor = max(self._floor, changes[-1].modified)
            self._seen = {k: at for k, at in self._seen.items() if at > self._floor}
        return taken

    def _is_news(self, key: bytes, revision: int) -> bool:
        return revision > max(self._floor, self._seen.get(key, 0))

    def _put(self, kv: KeyValue) -> None:
        operation = self._keys.operation(kv.key)
        if operation is None:
            if kv.key == self._keys.head:
                self._head = kv.modified
            return
        self._raw[operation] = kv

    def _set(self, operation: str, record: EntryRecord) -> None:
        self._raw.pop(operation, None)
        self._records[operation] = record
        self._entries[operation] = record.entry

    def _drop(self, key: bytes) -> None:
        operation = self._keys.operation(key)
        if operation is not None:
            self._remove(operation)
        elif key == self._keys.head:
            self._head = 0

    def _remove(self, operation: str) -> None:
        self._raw.pop(operation, None)
        self._records.pop(operation, None)
        self._entries.pop(operation, None)


def record_of(kv: KeyValue) -> EntryRecord:
    """The entry of a key. Raises: LocksUnavailable if it cannot be read."""
    entry, place = codec.decode(kv.value, created=kv.created, modified=kv.modified, key=kv.key)
    return EntryRecord(entry, kv.created, kv.modified, place, kv.lease)


# Builds one transaction on a table's locks. Pure: decided on the mirror; the caller sends it.
#
# The transaction compares everything that its decisions rely on: the head for every grant, the
# operation's own entry, one entry that a waiter waits for, and each entry that is revoked.


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
