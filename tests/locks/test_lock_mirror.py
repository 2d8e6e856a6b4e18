"""The copy of a table's locks, in every order in which a watch and answers may come.

What makes grants safe: if the head is as believed, no entry is unknown. What makes waiting
work: when all changes are delivered, the copy is the truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tandem.locks import codec
from tandem.locks.etcd.client import KeyChange, KeyValue
from tandem.locks.etcd.mirror import EntryRecord, Mirror
from tandem.locks.rules import EntryState, LockEntry, LockRequest, Mode, segment

KEYS = codec.LockKeys("/p").table("t")
OPERATIONS = "abcd"


@dataclass
class Server:
    """One table in etcd: what it holds, and what a watch has yet to deliver."""

    revision: int = 0
    keys: dict[bytes, KeyValue] = field(default_factory=dict)
    undelivered: list[tuple[KeyChange, ...]] = field(default_factory=list)

    def change(self, puts: dict[bytes, bytes], deletes: tuple[bytes, ...] = ()) -> int:
        self.revision += 1
        changes = []
        for key, value in puts.items():
            old = self.keys.get(key)
            created = old.created if old else self.revision
            self.keys[key] = KeyValue(key, value, created, self.revision, lease=1)
            changes.append(KeyChange(key, self.revision, self.keys[key]))
        for key in deletes:
            if self.keys.pop(key, None):
                changes.append(KeyChange(key, self.revision, None))
        self.undelivered.append(tuple(changes))
        return self.revision

    @property
    def head(self) -> int:
        return self.keys[KEYS.head].modified if KEYS.head in self.keys else 0

    def entries(self) -> dict[str, int]:
        """operation → the revision that created its entry"""
        found = {}
        for key, kv in self.keys.items():
            operation = KEYS.operation(key)
            if operation is not None:
                found[operation] = kv.created
        return found


def value(operation: str, state: EntryState = EntryState.HELD) -> bytes:
    request = LockRequest("t", operation, Mode.REWRITE, segment("0"), owner=operation)
    return codec.encode(LockEntry(request, state, 0))


class Story:
    """Others and we change the table; answers to us, and the watch, come as chance will have
    it. Calls that rely on the whole copy are made one after the other, as a table does."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = Server()
        self.mirror = Mirror(KEYS)
        self.watching = False
        self.answers: list[Callable[[], None]] = []
        self.relying = False

    def step(self) -> None:
        self.chance.choice(
            (
                self.others_put,
                self.others_touch,
                self.delete,
                self.remove_head,
                self.deliver,
                self.deliver,
                self.answer,
                self.answer,
                self.read,
                self.put,
                self.put,
                self.release,
                self.touch,
                self.begin_or_end_watch,
            )
        )()
        self.check()

    def check(self) -> None:
        mirror, server = self.mirror, self.server
        if mirror.head == server.head:
            known = {o: record.created for o in OPERATIONS if (record := mirror.record(o))}
            unknown = server.entries().items() - known.items()
            assert not unknown, f"the head is as believed, but these are not known: {unknown}"

    def settle(self) -> None:
        """All answers come, the watch starts and delivers all; then mirror and table agree."""
        while self.answers:
            self.answer()
        if not self.watching:
            self.begin_or_end_watch()
        self.mirror.reading()
        self.mirror.read(list(self.server.keys.values()), self.server.revision)
        while self.server.undelivered:
            self.deliver()
        assert self.mirror.current
        found = {o: self.mirror.record(o) for o in self.mirror.entries}
        assert {o: r.created for o, r in found.items() if r} == self.server.entries()
        assert self.mirror.head == self.server.head
        assert self.mirror.empty == (not self.server.entries())

    # What others do

    def others_put(self) -> None:
        operation = self.chance.choice(OPERATIONS)
        self.server.change({KEYS.head: b"", KEYS.of(operation): value(operation)})

    def others_touch(self) -> None:
        operation = self.chance.choice(OPERATIONS)
        if KEYS.of(operation) in self.server.keys:
            committing = value(operation, EntryState.COMMITTING)
            self.server.change({KEYS.of(operation): committing})

    def delete(self) -> None:
        self.server.change({}, (KEYS.of(self.chance.choice(OPERATIONS)),))

    def remove_head(self) -> None:
        head, generation = self.mirror.head, self.mirror.generation
        if not self.server.entries():
            self.server.change({}, (KEYS.head,))
            self.answers.append(lambda: self.mirror.head_removed(generation, head))

    # What the client receives

    def begin_or_end_watch(self) -> None:
        self.watching = not self.watching
        if self.watching:
            self.server.undelivered.clear()
            self.mirror.watch_began(self.server.revision)
        else:
            self.mirror.watch_ended()

    def deliver(self) -> None:
        if not self.watching or not self.server.undelivered:
            return
        several = self.chance.randint(1, len(self.server.undelivered))
        changes = [change for each in self.server.undelivered[:several] for change in each]
        del self.server.undelivered[:several]
        self.mirror.observe(changes)

    def answer(self) -> None:
        if self.answers:
            self.answers.pop(self.chance.randrange(len(self.answers)))()

    # What we do

    def read(self) -> None:
        if self.relying:
            return
        self.relying = True
        self.mirror.reading()
        self._serve_read()

    def _serve_read(self) -> None:
        found, revision = list(self.server.keys.values()), self.server.revision

        def answer() -> None:
            self.relying = False
            self.mirror.read(found, revision)

        self.answers.append(answer)

    def put(self) -> None:
        """A transaction that compares the head and what is known of its own key."""
        if self.relying:
            return
        self.relying = True
        operation = self.chance.choice(OPERATIONS)
        record, generation = self.mirror.record(operation), self.mirror.generation
        self.mirror.reading()
        held = self.server.keys.get(KEYS.of(operation))
        as_known = (held.modified if held else 0) == (record.modified if record else 0)
        if self.mirror.head != self.server.head or not as_known:
            self._serve_read()
            return
        revision = self.server.change({KEYS.head: b"", KEYS.of(operation): value(operation)})
        created = record.created if record else revision
        entry, place = codec.decode(value(operation), created=created, modified=revision)
        written = {operation: EntryRecord(entry, created, revision, place, 1)}

        def answer() -> None:
            self.relying = False
            self.mirror.wrote(generation, written, revision)

        self.answers.append(answer)

    def release(self) -> None:
        operation = self.chance.choice(OPERATIONS)
        record = self.mirror.record(operation)
        held = self.server.keys.get(KEYS.of(operation))
        if record is not None and held is not None and held.created == record.created:
            self.server.change({}, (KEYS.of(operation),))
            self.answers.append(lambda: self.mirror.removed(operation, record))

    def touch(self) -> None:
        operation = self.chance.choice(OPERATIONS)
        record = self.mirror.record(operation)
        held = self.server.keys.get(KEYS.of(operation))
        if record is not None and held is not None and held.modified == record.modified:
            revision = self.server.change({KEYS.of(operation): value(operation)})
            changed = replace(record, modified=revision)
            self.answers.append(lambda: self.mirror.changed(operation, changed))


@pytest.mark.parametrize("seed", range(20))
def test_an_unchanged_head_means_that_every_entry_is_known(seed: int) -> None:
    for chapter in range(40):
        story = Story(seed * 1000 + chapter)
        for _ in range(80):
            story.step()
        story.settle()
