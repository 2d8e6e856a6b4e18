"""How the history of a base table is read: restores that lead to restores, and how often."""

from __future__ import annotations

from mergelog.lake import Merged, in_memory, table
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.log.commit import commit_info


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
