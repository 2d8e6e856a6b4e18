"""Putting a commit, and reading the commits after a version."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Action, AddFile, Commit, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import Snapshot, commit_info, remove_of
from tandem.errors import AlreadyExists, LogGap, OutcomeUnknown
from tandem.storage import Store, open_store

# Publishing a version: who won, and what to do when the answer is lost (Z20).


def _log(store: Store) -> DeltaLog:
    return DeltaLog(store, parallel_reads=1)


def _actions(previous: Snapshot, path: str = "ours", now_ms: int = 50) -> list[Action]:
    info = commit_info("WRITE", {}, now_ms=now_ms, previous=previous, blind_append=True)
    return [info, AddFile(path, {}, 1, 1, data_change=True)]


def _lose_answers(store: MemoryStore, *, arrives: bool) -> None:
    def fault(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == ("after" if arrives else "before"):
            raise OutcomeUnknown("the connection broke", resource=call.path)

    store.fault = fault


def test_a_commit_is_published_with_its_token_first() -> None:
    store = dl.memory_log()
    log = _log(store)
    log.put_commit(1, _actions(log.snapshot()), token="t1")
    first = json.loads(store.get(dl.commit_name(1)).split(b"\n")[0])
    assert first["commitInfo"]["txnId"] == "t1"
    assert first["commitInfo"]["engineInfo"].startswith("tandem/")
    assert log.is_ours(1, "t1")
    assert not log.is_ours(1, "t2")
    assert not log.is_ours(2, "t1")
    assert log.snapshot().file("ours") is not None


def test_a_taken_version_is_never_overwritten() -> None:
    store = dl.memory_log([dl.info(), dl.add("theirs")])
    log = _log(store)
    before = store.get(dl.commit_name(1))
    with pytest.raises(AlreadyExists):
        log.put_commit(1, _actions(log.snapshot(0)), token="t1")
    assert store.get(dl.commit_name(1)) == before


def test_z20_a_put_that_arrived_but_whose_answer_was_lost_is_ours() -> None:
    store = dl.memory_log()
    log = _log(store)
    actions = _actions(log.snapshot())
    _lose_answers(store, arrives=True)
    log.put_commit(1, actions, token="t1")
    assert log.is_ours(1, "t1")


def test_z20_a_put_that_did_not_arrive_stays_unknown_and_can_be_repeated() -> None:
    store = dl.memory_log()
    log = _log(store)
    actions = _actions(log.snapshot())
    _lose_answers(store, arrives=False)
    with pytest.raises(OutcomeUnknown):
        log.put_commit(1, actions, token="t1")
    store.fault = None
    log.put_commit(1, actions, token="t1")
    assert log.is_ours(1, "t1")


def test_z20_a_lost_answer_to_a_put_that_another_writer_won() -> None:
    store = dl.memory_log([dl.info(txnId="theirs"), dl.add("theirs")])
    log = _log(store)
    _lose_answers(store, arrives=False)
    with pytest.raises(AlreadyExists):
        log.put_commit(1, _actions(log.snapshot(0)), token="t1")


def test_z20_a_retry_inside_the_client_meets_its_own_first_try() -> None:
    store = dl.memory_log()
    log = _log(store)
    actions = _actions(log.snapshot())
    log.put_commit(1, actions, token="t1")
    log.put_commit(1, actions, token="t1")
    assert log.latest_version() == 1


def test_a_commit_begins_with_its_info() -> None:
    log = _log(dl.memory_log())
    with pytest.raises(ValueError, match="commitInfo"):
        log.put_commit(1, [AddFile("f", {}, 1, 1, data_change=True)], token="t")


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1])
def test_a_txn_that_no_reader_could_decode_is_not_put(version: int) -> None:
    log = _log(dl.memory_log())
    info = _actions(log.snapshot())[0]
    with pytest.raises(ValueError, match="64-bit"):
        log.put_commit(1, [info, Txn("a", version)], token="t")
    assert log.latest_version() == 0
    log.put_commit(1, [info, Txn("a", 2**63 - 1)], token="t")
    assert log.snapshot().txns["a"].version == 2**63 - 1


@pytest.mark.parametrize(("now_ms", "expected"), [(50, 1001), (5000, 5000)])
def test_in_commit_timestamps_always_grow(now_ms: int, expected: int) -> None:
    enabled: Mapping[str, str] = {"delta.enableInCommitTimestamps": "true"}
    store = MemoryStore()
    dl.write_log(store, [[dl.info(inCommitTimestamp=1000), dl.protocol(), dl.metadata(enabled)]])
    log = _log(store)
    log.put_commit(1, _actions(log.snapshot(), now_ms=now_ms), token="t")
    assert log.snapshot().timestamp_ms == expected


def test_a_remove_repeats_the_fields_of_its_add() -> None:
    store = dl.memory_log(
        [dl.add("p%20q", "v1", baseRowId=5, defaultRowCommitVersion=2, tags={"a": "b"})]
    )
    log = _log(store)
    (add,) = log.snapshot().adds()
    remove = remove_of(add, deletion_ms=9, data_change=False)
    assert remove.key == add.key
    info = commit_info("OPTIMIZE", {}, now_ms=9, previous=log.snapshot(), blind_append=False)
    log.put_commit(2, [info, remove], token="t")
    body = json.loads(store.get(dl.commit_name(2)).split(b"\n")[1])["remove"]
    assert body["path"] == "p%20q"
    assert (body["baseRowId"], body["defaultRowCommitVersion"]) == (5, 2)
    assert log.snapshot().num_files == 0


def _race(store: Store) -> None:
    """Eight writers, each retrying until it has committed three times: every version has one
    owner, and every writer's files are all there."""
    dl.write_log(store, [[dl.info(), dl.protocol(), dl.metadata()]])

    def write(writer: int) -> None:
        log = _log(store)
        snapshot = log.snapshot()
        for number in range(3):
            while True:
                path = f"w{writer}-{number}"
                token = f"{path}@{snapshot.version + 1}"
                try:
                    log.put_commit(snapshot.version + 1, _actions(snapshot, path), token=token)
                except AlreadyExists:
                    snapshot = log.update(snapshot)
                else:
                    break

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    snapshot = _log(store).snapshot()
    assert snapshot.version == 24
    assert sorted(snapshot.files["path"].to_pylist()) == sorted(
        f"w{w}-{n}" for w in range(8) for n in range(3)
    )


def test_concurrent_writers_on_disk(tmp_path: Path) -> None:
    _race(open_store(tmp_path.as_uri()))


def test_concurrent_writers_on_s3_and_a_checkpoint_there(s3_store: Store) -> None:
    _race(s3_store)
    log = DeltaLog(s3_store)
    before = log.snapshot()
    write_checkpoint(log, before, now_ms=0)
    s3_store.delete(dl.commit_name(v) for v in range(24))
    after = log.snapshot()
    assert after.checkpoint_version == 24
    assert sorted(after.files["path"].to_pylist()) == sorted(before.files["path"].to_pylist())


# A commit of a writer far away: what it has read or written is not read again, and what it has to
# read is read side by side. None of that may believe what another writer wrote.


PATIENCE_S = 300.0


def _append(previous: Snapshot, path: str = "ours") -> list[Action]:
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
    assert log.commit_after(before, _append(before), token="t", known=known) is None
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
    newest = log.commit_after(before, _append(before), token="t", seen=seen)
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
    newest = log.commit_after(before, _append(before), token="t")
    assert store.get(dl.commit_name(1)) == theirs
    assert newest is not None
    assert newest.file("theirs") is not None
    assert newest.file("ours") is None


def test_a_retry_of_the_client_that_meets_its_own_first_try_has_won() -> None:
    store = dl.memory_log()
    log = DeltaLog(store)
    before = log.snapshot()
    assert log.commit_after(before, _append(before), token="t") is None
    assert log.commit_after(before, _append(before), token="t") is None
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
            assert log.commit_after(before, _append(before), token="t") is None
        else:
            with pytest.raises(OutcomeUnknown):
                log.commit_after(before, _append(before), token="t")


def test_the_log_is_listed_while_the_commit_that_won_is_read() -> None:
    store = dl.memory_log([dl.info(), dl.add("theirs")])
    log = DeltaLog(store)
    before = log.snapshot(0)
    meeting = threading.Barrier(2)

    def meet(call: Call) -> None:
        if call.when == "before" and call.name in ("get", "list"):
            meeting.wait(PATIENCE_S)

    store.fault = meet
    newest = log.commit_after(before, _append(before), token="t")
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
