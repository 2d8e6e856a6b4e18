"""The facts of a log, read from real files; and the base version that it records."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.lake import Merged, in_memory, keys, made, table
from mergelog.orders import MERGE, STITCH, Orders
from support.lake.memory_store import Call
from support.present import present
from tandem.delta.log.listing import commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import commit_info
from tandem.errors import BaseHistoryGap
from tandem.mergelog import open_log, upkeep, usage
from tandem.mergelog.log_table import put, state_of
from tandem.mergelog.upkeep import (
    BASE_AGE_MS,
    BASE_VERSIONS,
    IDLE_AGE_MS,
    catch_up,
    due_ms,
    keep_fresh,
    record_base,
)
from tandem.mergelog.usage import LogReader
from tandem.mergelog.versions import InstantCounts, LogFacts

HOUR = 3600 * 1000


@pytest.fixture
def lake(tmp_path: Path) -> Merged:
    return made(tmp_path / "t", table((1, "a", None), (2, "b", None)))


def read(reader: LogReader) -> LogFacts:
    assert reader.update()
    return reader.facts(reader._log.base.snapshot())


def fresh(lake: Merged) -> LogFacts:
    return read(LogReader(lake.log))


def committed_ms(lake: Merged, version: int) -> int:
    commit = present(lake.log.log.commit(version))
    return commit.timestamp_ms


def test_facts_of_a_log_are_read_step_by_step(lake: Merged, tmp_path: Path) -> None:
    reader = LogReader(lake.log)
    empty = read(reader)
    assert (empty.newest, empty.oldest_ms, empty.moved_ms) == (0, None, None)
    assert empty.counts == InstantCounts(0, 0, -1)

    for key in (3, 4):
        lake.append(table((key, "x", None)))
    lake.append(deletes=keys(1))
    found = read(reader)
    assert (found.newest, len(found.state.unmerged), found.counts.least) == (3, 3, 3)
    assert found.oldest_ms == committed_ms(lake, 1)
    assert found == fresh(lake)
    # The same object while nothing changes: then nothing is planned.
    assert read(reader) is found
    assert reader.update(thoroughly=False)
    assert read(reader) is found

    write_deltalake(str(tmp_path / "t"), table((9, "new", None)), mode="append")
    moved = read(reader)
    assert (moved.state.base, moved.recorded) == (1, 0)
    base = present(lake.log.base.commit(1))
    assert moved.moved_ms == base.timestamp_ms
    assert moved == fresh(lake)


def test_a_table_without_a_log_has_no_facts(tmp_path: Path, lake: Merged) -> None:
    write_deltalake(str(tmp_path / "plain"), table((1, "a", None)))
    assert not LogReader(open_log(str(tmp_path / "plain"))).update()


def test_facts_follow_log_compactions_merges_and_restores(orders: Orders) -> None:
    """`Orders`: four instants."""
    reader = LogReader(orders.log)
    before = read(reader)
    assert (before.counts.least, before.state.mark) == (4, -1)
    assert orders.run(STITCH, name="stitch").phase == "Succeeded"
    stitched = read(reader)
    assert len(stitched.state.unmerged) == 1
    assert (stitched.counts.since_merge, stitched.counts.since_compaction) == (4, 0)
    assert stitched.counts.since == 4
    assert stitched.counts.compacted_ms is not None
    # A stitched block does not hide since when its records wait.
    assert stitched.oldest_ms == before.oldest_ms
    assert stitched == read(LogReader(orders.log))
    assert orders.run(MERGE, name="merge").phase == "Succeeded"
    merged = read(reader)
    assert (merged.state.mark, merged.state.unmerged, merged.oldest_ms) == (5, (), None)
    assert (merged.counts.since_merge, merged.counts.least) == (0, 0)
    DeltaTable(orders.location).restore(1)
    restored = read(reader)
    assert restored == read(LogReader(orders.log))
    assert restored.state.mark == -1


def test_only_the_newest_versions_are_counted(
    lake: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "KEPT", 3)
    reader = LogReader(lake.log)
    for key in range(5):
        lake.append(table((key, "x", None)))
        found = read(reader)
        assert found.counts == fresh(lake).counts
        assert found.counts.since_merge == min(key + 1, 3)
        # The age is that of the oldest, however many there are.
        assert found.oldest_ms == committed_ms(lake, 1)


def test_the_age_of_the_log_survives_a_clean_up_of_its_commits(lake: Merged) -> None:
    for key in range(3):
        lake.append(table((key, "x", None)))
    snapshot = lake.log.snapshot()
    write_checkpoint(lake.log.log, snapshot, now_ms=0)
    folder = Path(lake.log.store.location.removeprefix("file://"))
    for version in (0, 1):
        os.remove(folder / commit_path(version))
    found = fresh(lake)
    assert found.counts.since_merge == 2
    assert found.oldest_ms == committed_ms(lake, 2)


def test_a_log_that_is_refused_is_not_read_at_each_look() -> None:
    store = in_memory()
    lake = Merged(store)
    lake.append(table((1, "a", None)))
    base = lake.log.base
    for version in (1, 2):
        info = commit_info("MANUAL UPDATE", {}, now_ms=0, previous=None, blind_append=False)
        base.put_commit(version, [info], token=str(version))
    write_checkpoint(base, base.snapshot(), now_ms=0)
    store.delete([commit_path(0), commit_path(1)])
    reader, newest = LogReader(lake.log), base.snapshot()
    calls: list[Call] = []
    store.fault = calls.append
    for thoroughly, reads in ((True, True), (False, False), (True, True)):
        assert reader.update(thoroughly=thoroughly)
        calls.clear()
        with pytest.raises(BaseHistoryGap):
            reader.facts(newest)
        assert bool(calls) == reads


# The base version that the log records


def test_the_base_version_is_due_by_number_and_with_live_blocks_by_age(lake: Merged) -> None:
    lake.append(table((3, "c", None)))
    facts = fresh(lake)
    state = facts.state
    assert due_ms(facts, HOUR) is None
    behind = replace(facts, state=replace(state, base=1), moved_ms=HOUR)
    assert due_ms(behind, HOUR) == HOUR + BASE_AGE_MS
    far = replace(facts, state=replace(state, base=BASE_VERSIONS), moved_ms=HOUR)
    assert due_ms(far, HOUR) == HOUR
    # Whose commit is gone already: at once.
    assert due_ms(replace(behind, moved_ms=None), HOUR) == HOUR
    # Without one, a restore among the commits may bring one back.
    empty = replace(behind, state=replace(state, base=1, live={}))
    assert due_ms(empty, HOUR) == HOUR + IDLE_AGE_MS
    assert due_ms(replace(empty, newest=0), HOUR) is None
    # Merged deletes stay in force, and a gap in the base table's commits would refuse them.
    merged = replace(behind.state, mark=facts.newest)
    assert not merged.unmerged
    assert due_ms(replace(behind, state=merged), HOUR) == HOUR + BASE_AGE_MS
    # Each reader reads the commits.
    assert due_ms(replace(far, state=replace(far.state, live={})), HOUR) == HOUR


def test_recording_the_base_version_changes_no_view(lake: Merged, tmp_path: Path) -> None:
    lake.append(table((3, "c", None)), keys(1))
    for key in (8, 9):
        write_deltalake(str(tmp_path / "t"), table((key, "n", None)), mode="append")
    rows, before = lake.rows(), fresh(lake)
    assert record_base(lake.log, now_ms=5)
    after = fresh(lake)
    assert (after.recorded, after.state) == (2, before.state)
    assert (after.newest, after.counts, after.moved_ms) == (2, before.counts, None)
    assert state_of(lake.log.snapshot()) == after.state
    assert lake.rows() == rows
    # The writer goes on.
    assert lake.append(table((4, "d", None))).instant == 3


def test_a_cleaning_and_a_run_record_the_base_version_of_an_idle_log(
    lake: Merged, tmp_path: Path
) -> None:
    """Without an operator nothing else does: after the table's retention it would be a gap."""
    write_deltalake(str(tmp_path / "t"), table((7, "n", None)), mode="append")
    assert catch_up(lake.log, now_ms=5) is None  # nothing was ever appended
    lake.append(table((3, "c", None)))
    assert catch_up(lake.log, now_ms=5) is None
    write_deltalake(str(tmp_path / "t"), table((8, "n", None)), mode="append")
    committed = present(lake.log.base.commit(2))
    rows = lake.rows()
    assert not keep_fresh(lake.log, now_ms=committed.timestamp_ms + BASE_AGE_MS - 1)
    assert keep_fresh(lake.log, now_ms=committed.timestamp_ms + BASE_AGE_MS)
    assert fresh(lake).recorded == 2
    write_deltalake(str(tmp_path / "t"), table((9, "n", None)), mode="append")
    assert catch_up(lake.log, now_ms=5) == 3
    assert catch_up(lake.log, now_ms=5) is None
    assert fresh(lake).recorded == 3
    assert lake.rows() == [*rows, (9, "n", None)]


def test_of_two_that_record_the_base_version_one_commits(
    lake: Merged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(table((3, "c", None)))
    write_deltalake(str(tmp_path / "t"), table((8, "n", None)), mode="append")

    def slower(*arguments: Any) -> bool:
        monkeypatch.setattr(upkeep, "put", put)
        assert record_base(lake.log, now_ms=6)
        return put(*arguments)

    monkeypatch.setattr(upkeep, "put", slower)
    assert not record_base(lake.log, now_ms=7)
    assert lake.log.snapshot().version == 2
