"""A log of many instants: what a reader lists and reads is bounded by the checkpoint interval."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mergelog.aged import KEEP, TestClock
from mergelog.lake import Merged, in_memory, table
from mergelog.test_base_history import commit
from support.lake.memory_store import Call, MemoryStore
from support.some import EVERY_CASE
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.state import log_table
from tandem.mergelog.writer import LogWriter
from tandem.operations.clean.block_log import clean_with_log
from tandem.operations.clean.facts import CleaningDependencies
from tandem.operations.model import Table
from tandem.storage.store import ObjectInfo

LOG = "_tandem/log/_delta_log"
TRUE_SIZE = (10_000, log_table.CHECKPOINT_INTERVAL)
SIZES = [TRUE_SIZE] if os.environ.get(EVERY_CASE) else [(120, 4)]


class CountingStore:
    """Counts what a store lists and reads of the log's versions."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed, self.read = 0, 0
        self._list = store.list
        monkeypatch.setattr(store, "list", self.list)
        store.fault = self.see

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for found in self._list(prefix, start_after=start_after):
            self.listed += found.path.startswith(LOG)
            yield found

    def see(self, call: Call) -> None:
        if call.when == "before" and call.name == "get" and call.path.startswith(LOG):
            self.read += 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("instants", "interval"), SIZES)
def test_a_reader_lists_and_reads_what_follows_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch, instants: int, interval: int
) -> None:
    monkeypatch.setattr(log_table, "CHECKPOINT_INTERVAL", interval)
    clock = TestClock()
    store = in_memory(clock=lambda: clock.now)
    merged = Merged(store)
    writer = LogWriter(merged.log, "w", now_ms=clock.now_ms, pause=lambda _: None)
    with writer:
        for number in range(instants):
            clock.pass_days(1)
            if number % 50 == 49:  # or reading the view would take the time of all blocks
                commit(merged, merged.log.base.snapshot().version + 1, "TRUNCATE")
            writer.append(table((number % 7, str(number), None)), batch=number)
    before = merged.rows()
    with monkeypatch.context() as patch:
        counted = CountingStore(store, patch)
        assert merged.rows() == before
        store.fault = None
    # A checkpoint that is due is written beside the next appends: one interval more at most. Two
    # files at the checkpoint itself, and its hint.
    assert counted.listed <= 2 * interval + 3
    assert counted.read <= 2 * interval + 3
    # A day passes between two instants, and the log keeps a month.
    base = Table(store, DeltaLog(store), "LakeTable/long")
    assert not clean_with_log(base, KEEP, CleaningDependencies(clock=clock)).problem
    assert len(list(store.list(LOG))) <= 2 * (31 + 2 * interval)
    assert merged.rows() == before
    with LogWriter(merged.log, "w", now_ms=clock.now_ms) as again:
        assert again.append(table((0, "again", None)), batch=instants - 1).repeated
        assert not again.append(table((0, "next", None)), batch=instants).repeated
