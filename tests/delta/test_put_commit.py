"""Publishing a version: who won, and what to do when the answer is lost (Z20)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Action, AddFile, Txn
from tandem.delta.log.checkpoint_write import write_checkpoint
from tandem.delta.log.commit import commit_info, remove_of
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AlreadyExists, OutcomeUnknown
from tandem.storage import Store, open_store


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
    assert log.find_commit(1, "t1")
    assert not log.find_commit(1, "t2")
    assert not log.find_commit(2, "t1")
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
    assert log.find_commit(1, "t1")


def test_z20_a_put_that_did_not_arrive_stays_unknown_and_can_be_repeated() -> None:
    store = dl.memory_log()
    log = _log(store)
    actions = _actions(log.snapshot())
    _lose_answers(store, arrives=False)
    with pytest.raises(OutcomeUnknown):
        log.put_commit(1, actions, token="t1")
    store.fault = None
    log.put_commit(1, actions, token="t1")
    assert log.find_commit(1, "t1")


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
