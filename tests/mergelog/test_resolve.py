"""A decision about records whose validity is not certain: once, also if it dies, and about nothing
else."""

from __future__ import annotations

import pytest

from mergelog.lake import Merged, Row, dies_at, in_memory, table
from mergelog.test_base_history import HOUR_MS, commit
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Txn
from tandem.delta.log.listing import commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import commit_info
from tandem.errors import BaseHistoryGap, BaseReplaced, DataFileMissing, OutcomeUnknown
from tandem.mergelog.log_table import state_of
from tandem.mergelog.upkeep import Resolved, catch_up, resolve
from tandem.mergelog.versions import MERGED
from tandem.storage.paths import LOG_FOLDER

ROW: Row = (1, "a", None)
LATER: Row = (2, "b", None)


def cut(merged: Merged, store: MemoryStore, version: int) -> None:
    """The commits of the base table before this version are cleaned up."""
    base = merged.log.base
    write_checkpoint(base, base.snapshot(version), now_ms=0)
    store.delete([commit_path(number) for number in range(version)])


def uncertain() -> tuple[MemoryStore, Merged]:
    """A table whose log has one record, and misses a commit of the base table."""
    store = in_memory()
    merged = Merged(store)
    merged.append(table(ROW))
    commit(merged, 1, "SET TBLPROPERTIES")
    commit(merged, 2, "SET TBLPROPERTIES")
    cut(merged, store, 2)
    with pytest.raises(BaseHistoryGap):
        merged.rows()
    return store, merged


def decide(merged: Merged, *, keep: bool) -> Resolved:
    return resolve(merged.log, keep=keep, now_ms=lambda: 0)


def calls_of_a_decision(when: str) -> int:
    calls: list[Call] = []
    store, merged = uncertain()
    store.fault = calls.append
    decide(merged, keep=True)
    return sum(call.when == when for call in calls)


@pytest.mark.part(2)
@pytest.mark.parametrize("keep", [True, False], ids=["keep", "discard"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_decision_that_dies_at_any_call_is_repeated_and_counts_once(
    when: str, keep: bool
) -> None:
    kept = [ROW] if keep else []
    outcomes = set()
    for nth in range(calls_of_a_decision(when)):
        store, merged = uncertain()
        store.fault = dies_at(nth, when)
        with pytest.raises(ProcessDied):
            decide(merged, keep=keep)
        store.fault = None
        if merged.log.log.latest_version() == 2:
            # It was made: what is acknowledged since is certain.
            assert merged.rows() == kept
            merged.append(table(LATER))
            assert not decide(merged, keep=keep).decided
            assert merged.rows() == [*kept, LATER]
            outcomes.add(True)
        else:
            assert decide(merged, keep=keep).decided
            assert merged.rows() == kept
            outcomes.add(False)
    assert outcomes == ({False} if when == "before" else {False, True})


@pytest.mark.parametrize("arrives", [True, False])
def test_the_answer_of_a_decision_may_be_lost(arrives: bool) -> None:
    store, merged = uncertain()
    lost: list[Call] = []

    def lose(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == ("after" if arrives else "before"):
            lost.append(call)
            if len(lost) == 1:
                raise OutcomeUnknown("lost")

    store.fault = lose
    assert decide(merged, keep=False).decided
    store.fault = None
    assert merged.log.log.latest_version() == 2
    assert merged.rows() == []


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "discard"])
def test_nothing_that_is_certain_is_decided(keep: bool) -> None:
    """Neither do unmerged records go, nor do void ones come back."""
    merged = Merged(in_memory())
    merged.append(table(ROW))
    assert not decide(merged, keep=keep).decided
    assert merged.rows() == [ROW]
    commit(merged, 1, "TRUNCATE")
    assert not decide(merged, keep=keep).decided
    assert merged.rows() == []
    assert merged.log.log.latest_version() == 1


def test_records_that_were_void_before_the_uncertainty_are_not_kept() -> None:
    """An overwrite, a merge, and then a restore to a version that is gone."""
    store = in_memory()
    merged = Merged(store)
    merged.append(table(ROW))
    commit(merged, 1, "TRUNCATE")
    commit(merged, 2, "SET TBLPROPERTIES")
    base = merged.log.base
    merged.append(table(LATER))
    mark = Txn(MERGED + merged.log.snapshot().metadata.id, 2)
    info = commit_info("MERGE", {}, now_ms=0, previous=None, blind_append=False)
    base.put_commit(3, [info, mark], token="merge")
    commit(merged, 4, "RESTORE", version="1")
    cut(merged, store, 3)
    with pytest.raises(BaseHistoryGap):
        merged.rows()
    found = decide(merged, keep=True)
    assert found.decided
    assert (found.state.mark, dict(found.state.live)) == (2, {})
    assert merged.rows() == []


def test_a_restore_by_number_after_the_uncertainty_counts_for_the_decision() -> None:
    """A later uncertainty takes nothing that was certain in between."""
    merged = Merged(in_memory(clock=lambda: 11 * HOUR_MS))
    merged.append(table(ROW))
    commit(merged, 1, "SET TBLPROPERTIES")
    merged.append(table(LATER))
    commit(merged, 2, "RESTORE", timestamp="1970-01-01 11:00:00")
    commit(merged, 3, "RESTORE", version="0")
    merged.append(table((3, "c", None)))
    commit(merged, 4, "RESTORE", timestamp="1970-01-01 11:00:00")
    for version in range(5, 8):
        commit(merged, version, "SET TBLPROPERTIES")
    with pytest.raises(BaseReplaced):
        merged.rows()
    assert decide(merged, keep=True).decided
    assert merged.rows() == [ROW, (3, "c", None)]


# Blocks that are gone


def restored_without_a_block() -> tuple[MemoryStore, Merged]:
    """Two blocks were merged, one of them was cleaned, and a restore brings back both."""
    store = in_memory()
    merged = Merged(store)
    merged.append(table(ROW, (5, "e", None)))
    merged.append(table(LATER))
    mark = Txn(MERGED + merged.log.snapshot().metadata.id, 2)
    info = commit_info("MERGE", {}, now_ms=0, previous=None, blind_append=False)
    merged.log.base.put_commit(1, [info, mark], token="merge")
    (first,) = (block.path for block in state_of(merged.log.snapshot(1)).live.values())
    catch_up(merged.log, now_ms=0)
    store.delete([f"{LOG_FOLDER}/{first}"])
    commit(merged, 2, "RESTORE", version="0")
    with pytest.raises(DataFileMissing, match=r"instant 1, does not exist.*resolve --discard"):
        merged.rows()
    return store, merged


@pytest.mark.parametrize("recorded", [False, True])
def test_records_whose_blocks_are_gone_are_given_up_by_name_and_no_others(recorded: bool) -> None:
    """Whether or not a commit has recorded the restore before."""
    _, merged = restored_without_a_block()
    new: list[Row] = [(3, "c", None)] if recorded else []
    if recorded:
        merged.append(table(*new))
    with pytest.raises(DataFileMissing, match=r"cannot be kept.*1 of \d.*resolve"):
        decide(merged, keep=True)
    found = decide(merged, keep=False)
    assert found.decided
    assert [block.instants for block in found.gone] == ["instant 1"]
    assert merged.rows() == [LATER, *new]
    merged.append(table(ROW))
    assert merged.rows() == [ROW, LATER, *new]
    assert not decide(merged, keep=False).decided
    assert not decide(merged, keep=True).decided
    assert merged.rows() == [ROW, LATER, *new]


def test_the_version_before_the_restore_loses_nothing() -> None:
    """The remedy that errors name first: the blocks are merged there."""
    _, merged = restored_without_a_block()
    commit(merged, 3, "RESTORE", version="1")
    assert merged.rows() == []  # what the merge had written, in this test nothing
    assert not decide(merged, keep=False).decided


def test_what_is_uncertain_is_decided_before_what_is_gone() -> None:
    store, merged = restored_without_a_block()
    commit(merged, 3, "SET TBLPROPERTIES")
    commit(merged, 4, "SET TBLPROPERTIES")
    merged.append(table((3, "c", None)))
    commit(merged, 5, "SET TBLPROPERTIES")
    commit(merged, 6, "SET TBLPROPERTIES")
    cut(merged, store, 6)
    assert decide(merged, keep=True).gone == ()
    with pytest.raises(DataFileMissing):
        merged.rows()
    assert len(decide(merged, keep=False).gone) == 1
    assert merged.rows() == [LATER, (3, "c", None)]
