"""A decision about records whose validity is not certain: once, also if it dies, and about nothing
else."""

from __future__ import annotations

import pytest

from mergelog.lake import Merged, Row, dies_at, in_memory, table
from mergelog.test_base_history import commit
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Txn
from tandem.delta.log.checkpoint_write import write_checkpoint
from tandem.delta.log.commit import commit_info
from tandem.delta.log.names import commit_path
from tandem.errors import BaseHistoryGap, OutcomeUnknown
from tandem.mergelog.resolve import Resolved, resolve
from tandem.mergelog.state.model import MERGED

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
