"""How the history of a base table is read: restores that lead to restores, and how often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from mergelog.lake import Merged, in_memory, table
from support.lake.memory_store import Call, MemoryStore
from support.present import present
from tandem.delta.actions import AddFile, RemoveFile, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import commit_info
from tandem.errors import BaseHistoryGap, BaseReplaced, CorruptLog
from tandem.mergelog.base_history import BaseHistory, base_of, retained
from tandem.mergelog.versions import BASE, Block, tags_of

HOUR_MS = 3_600_000


def text_of(time_ms: int) -> str:
    """A time as engines log it, in UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def commit(merged: Merged, number: int, operation: str, **parameters: str) -> None:
    info = commit_info(operation, parameters, now_ms=0, previous=None, blind_append=False)
    merged.log.base.put_commit(number, [info], token=f"{operation} {number}")


def restored(count: int) -> tuple[MemoryStore, Merged]:
    """A base table that was restored again and again, each time to the version before."""
    store = in_memory()
    merged = Merged(store)
    merged.append(table((1, "a", None)))
    commit(merged, 1, "SET TBLPROPERTIES")
    for version in range(1, count + 1):
        commit(merged, version + 1, "RESTORE", version=str(version))
    return store, merged


def test_restores_that_lead_to_restores_are_each_resolved_once() -> None:
    store, merged = restored(60)
    calls: list[Call] = []
    store.fault = calls.append
    assert merged.rows() == [(1, "a", None)]
    assert len({call.number for call in calls}) < 20 * 60
    assert merged.append(table((2, "b", None))).instant == 2
    assert merged.rows() == [(1, "a", None), (2, "b", None)]


def test_many_restores_in_a_row_need_no_deep_recursion() -> None:
    _, merged = restored(400)
    assert merged.rows() == [(1, "a", None)]


def test_the_view_of_an_early_version_reads_no_later_commits() -> None:
    store, merged = restored(30)
    calls: list[Call] = []
    store.fault = calls.append
    assert merged.rows(1) == [(1, "a", None)]
    read = [call.path for call in calls if call.path.startswith("_delta_log/0")]
    assert max(read) == f"_delta_log/{1:020d}.json"


def test_a_history_reads_each_commit_once() -> None:
    store = in_memory()
    merged = Merged(store)
    for version in range(1, 11):
        commit(merged, version, "SET TBLPROPERTIES")
    history = BaseHistory(merged.log, merged.log.snapshot())
    assert history.at(10).base == 10
    commit(merged, 11, "SET TBLPROPERTIES")
    calls: list[Call] = []
    store.fault = calls.append
    assert history.at(11).base == 11
    assert {call.path for call in calls if call.path.endswith(".json")} == {commit_path(11)}


def test_the_history_of_the_next_version_of_the_log_reads_new_commits_only() -> None:
    store = in_memory()
    merged = Merged(store)
    first = merged.log.snapshot()
    for version in range(1, 11):
        commit(merged, version, "SET TBLPROPERTIES")
    history = BaseHistory(merged.log, first)
    assert history.at(10).base == 10
    settings = merged.log.log.snapshot()
    info = commit_info("WRITE", {}, now_ms=0, previous=settings, blind_append=False)
    merged.log.log.put_commit(1, [info], token="without a look")
    commit(merged, 11, "RESTORE", version="4")
    later = history.following(merged.log.snapshot())
    calls: list[Call] = []
    store.fault = calls.append
    assert later.at(11).base == 11
    names = {call.path for call in calls if call.path.startswith("_delta_log/0")}
    assert names == {commit_path(11)}


def test_the_history_of_a_later_version_finds_the_restored_state_again() -> None:
    _, merged = restored(3)
    history = BaseHistory(merged.log, merged.log.snapshot(0))
    assert not history.at(4).live
    assert history.following(merged.log.snapshot()).at(4).live


def test_a_version_without_its_base_version_is_an_error_by_name() -> None:
    merged = Merged(in_memory())
    newest = merged.log.snapshot()
    with pytest.raises(CorruptLog, match="a txn"):
        base_of(replace(newest, txns={}))


def test_a_restore_by_time_looks_at_the_version_of_that_time_first() -> None:
    ticks = count(0, 1000)
    store = in_memory(clock=lambda: next(ticks))
    merged = Merged(store)
    for version in range(1, 41):
        commit(merged, version, "SET TBLPROPERTIES")
    meant = present(merged.log.base.commit(20))
    commit(merged, 41, "RESTORE", timestamp=str(meant.timestamp_ms))
    calls: list[Call] = []
    store.fault = calls.append
    BaseHistory(merged.log, merged.log.snapshot()).at(41)
    assert len({call.number for call in calls}) < 10 * 41


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_a_restore_by_time_to_a_version_that_is_gone_is_not_guessed(zone: str) -> None:
    """Versions 1 to 3 have the same files, but an instant came between 1 and 2."""
    days = count(0, 24 * HOUR_MS)
    store = in_memory(clock=lambda: next(days))
    merged = Merged(store)
    base = merged.log.base
    commit(merged, 1, "SET TBLPROPERTIES")
    meant = present(base.commit(1))
    merged.append(table((1, "a", None)))
    commit(merged, 2, "SET TBLPROPERTIES")
    merged.append(table((2, "b", None)))
    commit(merged, 3, "RESTORE", timestamp=text_of(meant.timestamp_ms + 20 * HOUR_MS) + zone)
    assert merged.rows() == [(1, "a", None)]
    write_checkpoint(base, base.snapshot(2), now_ms=0)
    store.delete([commit_path(0), commit_path(1)])
    with pytest.raises(BaseReplaced, match="no longer in the log"):
        merged.rows()


def vacuumed() -> tuple[Merged, list[int]]:
    """A table without rows, whose vacuums end at 11 and at 13 o'clock, each before an append; and
    the clock of its store, which says 20 o'clock."""
    now = [10 * HOUR_MS]
    merged = Merged(in_memory(clock=lambda: now[0]))
    now[0] = 11 * HOUR_MS
    commit(merged, 1, "VACUUM END")
    merged.append(table((1, "a", None)))
    now[0] = 13 * HOUR_MS
    commit(merged, 2, "VACUUM END")
    merged.append(table((2, "b", None)))
    now[0] = 20 * HOUR_MS
    return merged, now


@pytest.mark.parametrize("zone", [-2, 0, 2])
@pytest.mark.parametrize("hour", [11, 13])
def test_a_time_without_a_zone_is_not_taken_for_utc(hour: int, zone: int) -> None:
    """Either a void record would come back, or an acknowledged one be lost."""
    merged, _ = vacuumed()
    typed = text_of((hour + zone) * HOUR_MS + HOUR_MS // 2)
    commit(merged, 3, "RESTORE", timestamp=typed)
    with pytest.raises(BaseReplaced, match=f"found: {typed}.* files: 0, 1, 2"):
        merged.rows()
    with pytest.raises(BaseReplaced):
        merged.append(table((3, "c", None)))


@pytest.mark.parametrize(("hour", "found"), [(11, ["a"]), (13, ["a", "b"])])
@pytest.mark.parametrize("zone", ["+00:00", "+02:00", "-02:00", "ms"])
def test_a_time_with_a_zone_decides(hour: int, found: list[str], zone: str) -> None:
    merged, _ = vacuumed()
    ms = hour * HOUR_MS + HOUR_MS // 2
    shift = 0 if zone == "ms" else int(zone[:3]) * HOUR_MS
    commit(merged, 3, "RESTORE", timestamp=str(ms) if zone == "ms" else text_of(ms + shift) + zone)
    assert [row[1] for row in merged.rows()] == found


def test_versions_further_apart_than_all_zones_are_told_apart_by_a_time_without_one() -> None:
    merged, now = vacuumed()
    now[0] = 60 * HOUR_MS
    commit(merged, 3, "VACUUM END")
    merged.append(table((3, "c", None)))
    now[0] = 100 * HOUR_MS
    commit(merged, 4, "RESTORE", timestamp=text_of(80 * HOUR_MS))
    assert [row[1] for row in merged.rows()] == ["a", "b", "c"]


def written(merged: Merged, number: int, *names: str) -> None:
    info = commit_info("WRITE", {}, now_ms=0, previous=None, blind_append=True)
    adds = [AddFile(name, {}, 1, 0, True) for name in names]
    merged.log.base.put_commit(number, [info, *adds], token=f"write {number}")


@pytest.mark.parametrize("typed", ["1970-01-01 11:30:00", "this morning"])
def test_versions_of_which_the_log_says_the_same_need_not_be_told_apart(typed: str) -> None:
    merged = Merged(in_memory(clock=lambda: 11 * HOUR_MS))
    merged.append(table((1, "a", None)))
    commit(merged, 1, "VACUUM START")
    commit(merged, 2, "VACUUM END")
    written(merged, 3, "data")
    merged.append(table((2, "b", None)))
    info = commit_info("RESTORE", {"timestamp": typed}, now_ms=0, previous=None, blind_append=False)
    merged.log.base.put_commit(4, [info, RemoveFile("data", 0, True)], token="restore")
    assert merged.rows() == [(1, "a", None)]
    merged.append(table((3, "c", None)))
    assert merged.rows() == [(1, "a", None), (3, "c", None)]


def test_many_versions_of_which_the_log_says_the_same_are_compared_with_few_reads() -> None:
    now = [10 * HOUR_MS]
    store = in_memory(clock=lambda: now[0])
    merged = Merged(store)
    merged.append(table((1, "a", None)))
    for version in range(1, 101):
        now[0] += 60_000
        commit(merged, version, "SET TBLPROPERTIES")
    for version in range(101, 104):
        commit(merged, version, "RESTORE", timestamp=text_of(11 * HOUR_MS))
    calls: list[Call] = []
    store.fault = calls.append
    assert merged.rows() == [(1, "a", None)]
    assert len({call.number for call in calls}) < 30 * 103
    merged.append(table((2, "b", None)))
    assert merged.rows() == [(1, "a", None), (2, "b", None)]


def test_a_record_that_comes_later_tells_versions_apart() -> None:
    """Its writer had seen version 2 when it committed, and versions 1 to 3 have the same files."""
    merged = Merged(in_memory(clock=lambda: 11 * HOUR_MS))
    written(merged, 1, "data")
    merged.append(table((1, "a", None)))
    commit(merged, 2, "SET TBLPROPERTIES")
    commit(merged, 3, "SET TBLPROPERTIES")
    commit(merged, 4, "RESTORE", timestamp="1970-01-01 11:30:00")
    log = merged.log
    history = BaseHistory(log, log.snapshot())
    assert len(history.at(4).live) == 1
    block = Block("blocks/late", 2, 2, 1)
    add = AddFile(block.path, {}, 1, 0, True, tags=tags_of(block))
    info = commit_info("WRITE", {}, now_ms=0, previous=log.snapshot(), blind_append=False)
    log.log.put_commit(2, [info, add, Txn(BASE, 2)], token="late")
    with pytest.raises(BaseReplaced, match="files: 1, 2, 3"):
        history.following(log.snapshot()).at(4)


def test_a_restore_by_number_ends_the_uncertainty() -> None:
    merged, _ = vacuumed()
    commit(merged, 3, "RESTORE", timestamp="1970-01-01 12:00:00")
    with pytest.raises(BaseReplaced, match="by its number"):
        merged.rows()
    commit(merged, 4, "RESTORE", version="1")
    assert merged.rows() == [(1, "a", None)]
    merged.append(table((3, "c", None)))
    assert merged.rows() == [(1, "a", None), (3, "c", None)]
    # That version itself stays unclear.
    with pytest.raises(BaseReplaced, match="it is unclear"):
        merged.rows(3)
    commit(merged, 5, "RESTORE", version="3")
    with pytest.raises(BaseReplaced, match="it is unclear"):
        merged.rows()


def test_a_restore_by_time_to_a_version_that_is_left_is_found_by_its_files() -> None:
    """In another time zone: the time alone would mean another version."""
    hours = count(0, 3_600_000)
    store = in_memory(clock=lambda: next(hours))
    merged = Merged(store)
    base = merged.log.base
    for version in range(1, 30):
        add = AddFile(f"file-{version}", {}, 1, 0, True)
        info = commit_info("WRITE", {}, now_ms=0, previous=None, blind_append=True)
        base.put_commit(version, [info, add], token=str(version))
    merged.append(table((1, "a", None)))
    removes = [RemoveFile(f"file-{version}", 0, True) for version in range(27, 30)]
    meant = present(base.commit(26))
    time = datetime.fromtimestamp(meant.timestamp_ms / 1000, UTC) - timedelta(hours=3)
    info = commit_info("RESTORE", {"timestamp": f"{time:%Y-%m-%d %H:%M:%S}"}, now_ms=0,
                       previous=None, blind_append=False)  # fmt: skip
    base.put_commit(30, [info, *removes], token="30")
    write_checkpoint(base, base.snapshot(2), now_ms=0)
    store.delete([commit_path(0), commit_path(1)])
    assert BaseHistory(merged.log, merged.log.snapshot(0)).at(30).base == 30
    assert BaseHistory(merged.log, merged.log.snapshot()).at(30).live == {}


def test_a_restored_version_that_is_gone_is_a_gap_also_if_the_log_had_no_records() -> None:
    store = in_memory()
    merged = Merged(store)
    base = merged.log.base
    commit(merged, 1, "SET TBLPROPERTIES")
    commit(merged, 2, "SET TBLPROPERTIES")
    merged.append(table((1, "a", None)))
    commit(merged, 3, "RESTORE", version="1")
    assert merged.rows() == []
    write_checkpoint(base, base.snapshot(2), now_ms=0)
    store.delete([commit_path(0), commit_path(1)])
    with pytest.raises(BaseHistoryGap, match="version 1"):
        merged.rows()


def test_a_restored_version_from_before_the_log_that_is_gone_is_a_gap() -> None:
    store = in_memory()
    info = commit_info("SET TBLPROPERTIES", {}, now_ms=0, previous=None, blind_append=False)
    base = DeltaLog(store)
    base.put_commit(1, [info], token="1")
    merged = Merged(store)
    commit(merged, 2, "RESTORE", version="0")
    write_checkpoint(base, base.snapshot(1), now_ms=0)
    store.delete([commit_path(0)])
    with pytest.raises(BaseHistoryGap, match="version 0"):
        merged.append(table((1, "a", None)))
    # Cleaning goes on: nothing makes that view readable.
    assert retained(merged.log, merged.log.snapshot(), 0).blocks == frozenset()
