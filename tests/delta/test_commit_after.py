"""A commit of a writer far away: what it has read or written is not read again, and what it has to
read is read side by side. None of that may believe what another writer wrote."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Action, AddFile, Commit
from tandem.delta.log.commit import commit_info
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import LogGap, OutcomeUnknown

PATIENCE_S = 300.0


def _actions(previous: Snapshot, path: str = "ours") -> list[Action]:
    info = commit_info("WRITE", {}, now_ms=50, previous=previous, blind_append=True)
    return [info, AddFile(path, {}, 1, 1, data_change=True)]


class Requests:
    """The fault hook of a store that notes what it is asked."""

    def __init__(self, store: MemoryStore) -> None:
        self.made: list[str] = []
        self._lock = threading.Lock()
        store.fault = self

    def __call__(self, call: Call) -> None:
        if call.when == "before":
            with self._lock:
                self.made.append(f"{call.name} {call.path.removeprefix('_delta_log/')}")

    def taken(self) -> list[str]:
        """Those since the last time."""
        made, self.made = self.made, []
        return made


def _name(version: int) -> str:
    return dl.commit_name(version).removeprefix("_delta_log/")


@pytest.mark.parametrize("parallel", [1, 16])
def test_a_commit_that_wins_is_put_and_listed_and_not_read_back(parallel: int) -> None:
    store = dl.memory_log()
    log = DeltaLog(store, parallel_reads=parallel)
    before = log.snapshot()
    requests = Requests(store)
    known: dict[int, bytes] = {}
    assert log.commit_after(before, _actions(before), token="t", known=known) is None
    seen: list[Commit] = []
    after = log.update(before, known=known, seen=seen)
    assert requests.taken() == [f"put_if_absent {_name(1)}", "list "]
    assert after.version == 1
    assert [commit.version for commit in seen] == [1]
    assert after.files.equals(log.snapshot().files)
    assert after.timestamp_ms == log.snapshot().timestamp_ms


@pytest.mark.parametrize("parallel", [1, 16])
def test_a_commit_that_loses_reads_each_commit_once_and_lists_once(parallel: int) -> None:
    store = dl.memory_log(*[[dl.info(), dl.add(f"theirs-{n}")] for n in range(5)])
    log = DeltaLog(store, parallel_reads=parallel)
    before = log.snapshot(1)
    requests = Requests(store)
    seen: list[Commit] = []
    newest = log.commit_after(before, _actions(before), token="t", seen=seen)
    assert Counter(requests.taken()) == Counter(
        [f"put_if_absent {_name(2)}", "list ", *(f"get {_name(n)}" for n in range(2, 6))]
    )
    assert newest is not None
    assert newest.version == 5
    assert [commit.version for commit in seen] == [2, 3, 4, 5]
    assert newest.files.sort_by("path").equals(log.snapshot().files.sort_by("path"))


@pytest.mark.parametrize("parallel", [1, 16])
def test_a_taken_version_is_never_overwritten_by_a_writer_that_reads_on(parallel: int) -> None:
    store = dl.memory_log([dl.info(), dl.add("theirs")])
    log = DeltaLog(store, parallel_reads=parallel)
    theirs = store.get(dl.commit_name(1))
    before = log.snapshot(0)
    newest = log.commit_after(before, _actions(before), token="t")
    assert store.get(dl.commit_name(1)) == theirs
    assert newest is not None
    assert newest.file("theirs") is not None
    assert newest.file("ours") is None


def test_a_retry_of_the_client_that_meets_its_own_first_try_has_won() -> None:
    store = dl.memory_log()
    log = DeltaLog(store)
    before = log.snapshot()
    assert log.commit_after(before, _actions(before), token="t") is None
    assert log.commit_after(before, _actions(before), token="t") is None
    assert log.latest_version() == 1


def test_a_lost_answer_is_looked_up_before_it_is_reported_as_unknown() -> None:
    for arrives in (True, False):
        store = dl.memory_log()
        log = DeltaLog(store)
        before = log.snapshot()

        def lose(call: Call, when: str = "after" if arrives else "before") -> None:
            if call.name == "put_if_absent" and call.when == when:
                raise OutcomeUnknown("the connection broke", resource=call.path)

        store.fault = lose
        if arrives:
            assert log.commit_after(before, _actions(before), token="t") is None
        else:
            with pytest.raises(OutcomeUnknown):
                log.commit_after(before, _actions(before), token="t")


def test_the_log_is_listed_while_the_commit_that_won_is_read() -> None:
    store = dl.memory_log([dl.info(), dl.add("theirs")])
    log = DeltaLog(store)
    before = log.snapshot(0)
    meeting = threading.Barrier(2)

    def meet(call: Call) -> None:
        if call.when == "before" and call.name in ("get", "list"):
            meeting.wait(PATIENCE_S)

    store.fault = meet
    newest = log.commit_after(before, _actions(before), token="t")
    assert newest is not None
    assert newest.version == 1


def test_two_new_commits_are_read_side_by_side() -> None:
    store = dl.memory_log()
    log = DeltaLog(store)
    before = log.snapshot()
    dl.write_log(store, [[dl.info(), dl.add(path)] for path in ("a", "b")], first=1)
    meeting = threading.Barrier(2)

    def meet(call: Call) -> None:
        if call.when == "before" and call.name == "get":
            meeting.wait(PATIENCE_S)

    store.fault = meet
    assert log.update(before).version == 2


def test_a_hole_among_commits_that_are_read_side_by_side_is_an_error() -> None:
    store = dl.memory_log(*[[dl.info(), dl.add(f"{n}")] for n in range(12)])
    log = DeltaLog(store)

    def vanishes(call: Call) -> None:
        if call.when == "before" and call.name == "get" and call.path == dl.commit_name(7):
            store.fault = None
            store.delete([call.path])

    store.fault = vanishes
    with pytest.raises(LogGap) as caught:
        log.commits(3, 12)
    assert caught.value.first_available == 8


def test_commits_come_in_the_order_of_their_versions_whichever_is_read_first() -> None:
    store = dl.memory_log(*[[dl.info(), dl.add(f"{n}")] for n in range(8)])
    log = DeltaLog(store, parallel_reads=8)
    last_is_read = threading.Event()

    def backwards(call: Call) -> None:
        if call.name == "get" and call.path == dl.commit_name(8) and call.when == "after":
            last_is_read.set()
        if call.name == "get" and call.path == dl.commit_name(1) and call.when == "before":
            assert last_is_read.wait(PATIENCE_S)

    store.fault = backwards
    assert [commit.version for commit in log.commits(1, 8)] == list(range(1, 9))


def test_what_was_written_is_not_believed_of_a_commit_of_another_size() -> None:
    """Of a log that was made again meanwhile."""
    store = dl.memory_log([dl.info(), dl.add("theirs")])
    log = DeltaLog(store)
    after = log.update(log.snapshot(0), known={1: b'{"commitInfo":{}}\n'})
    assert after.file("theirs") is not None


def test_a_log_that_was_replaced_is_read_as_a_whole_and_names_no_commits() -> None:
    store = dl.memory_log([dl.info(), dl.add("a")])
    log = DeltaLog(store)
    before = log.snapshot()
    other = dl.memory_log([dl.info(), dl.add("b" * 20)], [dl.info(), dl.add("c")])
    for path in other.paths():
        store.put(path, other.get(path))
    seen: list[Commit] = []
    after = log.update(before, seen=seen)
    assert after.version == 2
    assert after.file("a") is None
    assert seen == []
