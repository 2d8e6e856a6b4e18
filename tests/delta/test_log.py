"""Listing, time travel and bad logs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import ChangeFile
from tandem.delta.log.codec import decode_commit, encode_commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import (
    CorruptLog,
    LogGap,
    TableNotFound,
    TandemError,
    UnsupportedFeature,
    VersionNotFound,
)


def _log(store: MemoryStore) -> DeltaLog:
    return DeltaLog(store, parallel_reads=1)


def _appends(count: int) -> list[list[dl.Json]]:
    return [[dl.info(), dl.add(f"f{i}")] for i in range(1, count + 1)]


def _explains(error: TandemError) -> bool:
    return all((error.resource, error.found, error.expected, error.remedy))


def test_latest_version_and_snapshot_of_json_only() -> None:
    store = dl.memory_log(*_appends(3))
    log = _log(store)
    assert log.latest_version() == 3
    assert log.latest_version(hint=2) == 3
    snapshot = log.snapshot()
    assert sorted(snapshot.files["path"].to_pylist()) == ["f1", "f2", "f3"]
    assert snapshot.num_files == 3
    assert snapshot.size_bytes == 30
    found = snapshot.file("f2")
    assert found is not None
    assert found.path == "f2"
    assert snapshot.file("f9") is None
    assert snapshot.files_by_path(["f3", "f9"]).keys() == {"f3"}


def test_paths_are_decoded_but_kept_as_logged() -> None:
    store = dl.memory_log([dl.add("p=a%2520b/f%20g.parquet")])
    (add,) = _log(store).snapshot().adds()
    assert add.logged_path == "p=a%2520b/f%20g.parquet"
    assert add.path == "p=a%20b/f g.parquet"


def test_unknown_fields_actions_and_files_are_tolerated_and_kept() -> None:
    store = dl.memory_log(
        [
            dl.add("f", baseRowId=7, future={"a": [1]}),
            {"newAction": {"x": 1}},
            {"cdc": {"path": "c"}},
        ]
    )
    for name in (
        "00000000000000000001.crc",
        "00000000000000000000.00000000000000000001.compacted.json",
        "_staged_commits/00000000000000000009.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json",
        "00000000000000000001.json.tmp",
        "zebra",
    ):
        store.put(f"_delta_log/{name}", b"not to be read")
    log = _log(store)
    (add,) = log.snapshot().adds()
    assert add.extra == {"baseRowId": 7, "future": {"a": [1]}}
    [commit] = log.commits(1, 1)
    assert commit.adds == (add,)
    assert commit.change_files == (ChangeFile("c", {}, 0),)


def test_a_change_file_is_read_as_it_is_written() -> None:
    file = ChangeFile("_change_data/p=a%2520b/f%20g.parquet", {"p": "a%20b"}, 7)
    text = encode_commit([file])
    assert json.loads(text)["cdc"]["dataChange"] is False
    commit = decode_commit(1, text, path="1.json", modified_ms=0)
    assert commit.change_files == (file,)
    assert file.path == "_change_data/p=a%20b/f g.parquet"


def test_a_place_without_a_log_is_no_table() -> None:
    with pytest.raises(TableNotFound) as caught:
        _log(MemoryStore()).snapshot()
    assert _explains(caught.value)
    assert not _log(MemoryStore()).exists()


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda d: d[: len(d) - 20], "line 2"),
        (lambda d: d[:0], ""),
        (lambda d: d + b"[1,2]\n", "line 3"),
        (lambda d: d.replace(b'"size": 10', b'"size": "ten"'), "line 2.add"),
        (lambda d: d.replace(b'"size": 10, ', b""), "line 2.add.size"),
        (lambda d: d + b"\xff\xfe\n", "byte"),
        (lambda d: d + b'{"add": 5}\n', "line 3.add"),
        (lambda d: d + b'{"cdc": {"size": 5}}\n', "line 3.cdc.path"),
    ],
    ids=[
        "cut off",
        "empty",
        "array",
        "wrong type",
        "missing field",
        "no UTF-8",
        "no object",
        "cdc",
    ],
)
def test_a_corrupt_commit_is_named_and_versions_before_it_are_read(
    damage: Callable[[bytes], bytes], field: str
) -> None:
    store = dl.memory_log(*_appends(2))
    store.put(dl.commit_name(2), damage(store.get(dl.commit_name(2))))
    with pytest.raises(CorruptLog) as caught:
        _log(store).snapshot()
    assert _explains(caught.value)
    assert caught.value.resource == dl.commit_name(2)
    assert caught.value.field.startswith(field)
    assert _log(store).snapshot(1).num_files == 1


VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}


@pytest.mark.parametrize(
    ("action", "field", "found", "expected"),
    [
        (dl.add("f", stats={"numRecords": 1}), "add.stats", '{"numRecords": 1}', "a string"),
        (dl.add("f", size=None), "add.size", "null", "a whole number"),
        (dl.add("f", size=2**63), "add.size", f"{2**63}", "at most 64 bits"),
        ({"add": {"path": 7}}, "add.path", "7", "a string"),
        (dl.add("f", tags=["a"]), "add.tags", '["a"]', "a JSON object of strings"),
        (dl.add("f", partitionValues={"k": 1}), "add.partitionValues", '{"k": 1}', "of strings"),
        (dl.add("f", baseRowId="x"), "add.baseRowId", '"x"', "a whole number"),
        (dl.add("f", clusteringProvider=1), "add.clusteringProvider", "1", "a string"),
        (dl.add("f", deletionVector="u"), "add.deletionVector", '"u"', "a JSON object"),
        (
            dl.add("f", deletionVector={**VECTOR, "cardinality": "many"}),
            "add.deletionVector.cardinality",
            '"many"',
            "a whole number",
        ),
        (
            dl.add("f", deletionVector={"storageType": "u"}),
            "add.deletionVector.pathOrInlineDv",
            "no such field",
            "the protocol requires",
        ),
        ({"remove": {"path": "f", "size": "much"}}, "remove.size", '"much"', "a whole number"),
        (dl.metadata(partitionColumns="k"), "metaData.partitionColumns", '"k"', "a list of"),
        (dl.metadata(createdTime="noon"), "metaData.createdTime", '"noon"', "a whole number"),
        (dl.metadata(schemaString={}), "metaData.schemaString", "{}", "a string"),
        (
            {"protocol": {"minReaderVersion": "one"}},
            "protocol.minReaderVersion",
            '"one"',
            "a whole number",
        ),
        ({"txn": {"appId": "a", "version": "v1"}}, "txn.version", '"v1"', "a whole number"),
        ({"domainMetadata": {"domain": "d"}}, "domainMetadata.removed", "no such field", ""),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_a_field_of_another_type_is_named(
    action: dl.Json, field: str, found: str, expected: str
) -> None:
    store = dl.memory_log(*_appends(1))
    store.put(dl.commit_name(2), dl.lines([action]))
    with pytest.raises(CorruptLog) as caught:
        _log(store).snapshot()
    assert _explains(caught.value)
    assert caught.value.field == f"line 1.{field}"
    assert caught.value.found == found
    assert expected in caught.value.expected


@pytest.mark.parametrize("kind", ["protocol", "metaData"])
def test_missing_protocol_or_metadata(kind: str) -> None:
    store = MemoryStore()
    first = [dl.info(), dl.protocol(), dl.metadata()]
    dl.write_log(store, [[a for a in first if kind not in a]])
    with pytest.raises(CorruptLog, match=kind) as caught:
        _log(store).snapshot()
    assert _explains(caught.value)


def test_a_schema_that_cannot_be_read_is_named() -> None:
    store = dl.memory_log()
    store.put(dl.commit_name(0), dl.lines([dl.protocol(), dl.metadata(schemaString="{")]))
    with pytest.raises(CorruptLog) as caught:
        _log(store).snapshot()
    assert caught.value.field == "metaData.schemaString"


def test_gap_in_the_log() -> None:
    store = dl.memory_log(*_appends(5))
    store.delete([dl.commit_name(3)])
    with pytest.raises(CorruptLog) as caught:
        _log(store).snapshot()
    assert _explains(caught.value)
    assert caught.value.field == dl.commit_name(3)
    assert _log(store).snapshot(2).num_files == 2


def test_gap_at_the_beginning() -> None:
    store = dl.memory_log(*_appends(5))
    store.delete([dl.commit_name(0)])
    with pytest.raises(CorruptLog) as caught:
        _log(store).snapshot()
    assert caught.value.field == dl.commit_name(0)


def test_versions_that_are_not_there_are_refused() -> None:
    log = _log(dl.memory_log(*_appends(2)))
    for version in (-1, 3):
        with pytest.raises(VersionNotFound) as caught:
            log.snapshot(version)
        assert _explains(caught.value)
    with pytest.raises(VersionNotFound):
        log.commits(1, 3)


def test_a_version_that_clean_up_took_though_it_left_an_older_checkpoint() -> None:
    """Simulator seed 2627: an exclusive compaction, which asks for its read version, took the
    cleaned log for a corrupt one and failed instead of planning again."""
    history = [[dl.protocol(), dl.metadata()], *_appends(6)]
    store = dl.memory_log(*_appends(6))
    for version in (1, 5):
        path = f"_delta_log/{version:020}.checkpoint.parquet"
        store.put(path, dl.checkpoint_bytes(dl.state_actions(history[: version + 1])))
    store.delete([dl.commit_name(version) for version in range(6)])
    log = _log(store)
    assert log.snapshot().num_files == 6
    for version in (0, 2, 4):
        with pytest.raises(VersionNotFound, match="from 5 to 6") as caught:
            log.snapshot(version)
        assert _explains(caught.value)


def test_commits_and_a_gap_in_the_history() -> None:
    store = dl.memory_log(*_appends(5))
    log = _log(store)
    assert [c.version for c in log.commits(2, 4)] == [2, 3, 4]
    assert log.commits(4, 3) == []
    store.delete([dl.commit_name(2), dl.commit_name(3)])
    with pytest.raises(LogGap) as caught:
        log.commits(1, 5)
    assert caught.value.first_available == 4
    assert _explains(caught.value)


def test_unsupported_reader_feature_is_named() -> None:
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
    store = dl.memory_log([dl.protocol(3, 7, **features)])
    with pytest.raises(UnsupportedFeature, match="fromTheFuture") as caught:
        _log(store).snapshot()
    assert _explains(caught.value)
    assert _log(store).snapshot(0).version == 0


def test_update_notices_a_replaced_table() -> None:
    store = dl.memory_log(*_appends(3))
    log = _log(store)
    old = log.snapshot()
    store.delete([m.path for m in store.list("_delta_log")])
    dl.write_log(store, [[dl.protocol(), dl.metadata(id="another")], [dl.add("z")]])
    new = log.update(old)
    assert (new.version, new.metadata.id, new.num_files) == (1, "another", 1)
    dl.write_log(store, [[dl.add(f"z{i}")] for i in range(2, 4)], first=2)
    assert log.update(old).files["path"].to_pylist() == log.snapshot().files["path"].to_pylist()


def test_update_reads_only_new_commits() -> None:
    store = dl.memory_log(*_appends(3))
    log = _log(store)
    snapshot = log.snapshot()
    dl.write_log(store, [[dl.add("f9")]], first=4)
    read: list[str] = []

    def note(event: Call) -> None:
        if event.name == "get" and event.path not in read:
            read.append(event.path)

    store.fault = note
    updated = log.update(snapshot)
    assert read == [dl.commit_name(4)]
    assert updated.num_files == 4
    assert log.update(updated) is updated


def test_update_to_a_version_is_that_version() -> None:
    store = dl.memory_log(*_appends(5))
    log = _log(store)
    oldest = log.snapshot(0)
    for version in range(6):
        found, expected = log.update(oldest, version), log.snapshot(version)
        assert (found.version, found.timestamp_ms) == (version, expected.timestamp_ms)
        assert found.position == expected.position
        assert found.files["path"].to_pylist() == expected.files["path"].to_pylist()
    with pytest.raises(VersionNotFound):
        log.update(oldest, 6)


# Time travel


def test_travel_by_modification_time_made_monotone() -> None:
    times = iter([100, 200, 150, 400])
    store = dl.memory_log(*_appends(3), clock=lambda: next(times))
    log = _log(store)
    # Version 2 was written "before" version 1: it counts as 1 ms after it.
    expected = {100: 0, 199: 0, 200: 1, 201: 2, 399: 2, 400: 3, 10_000: 3}
    assert {t: log.snapshot(timestamp_ms=t).version for t in expected} == expected
    with pytest.raises(VersionNotFound):
        log.snapshot(timestamp_ms=99)
    with pytest.raises(ValueError, match="cannot be combined"):
        log.snapshot(1, timestamp_ms=200)


def test_travel_by_in_commit_timestamps() -> None:
    store = MemoryStore(clock=lambda: 5)
    enabled = {"delta.enableInCommitTimestamps": "true"}
    dl.write_log(
        store,
        [
            [dl.info(inCommitTimestamp=100), dl.protocol(), dl.metadata(enabled)],
            *([dl.info(inCommitTimestamp=100 + 50 * i), dl.add(f"f{i}")] for i in range(1, 6)),
        ],
    )
    log = _log(store)
    expected = {100: 0, 149: 0, 150: 1, 299: 3, 350: 5, 999: 5}
    assert {t: log.snapshot(timestamp_ms=t).version for t in expected} == expected
    assert log.snapshot().timestamp_ms == 350
    with pytest.raises(VersionNotFound):
        log.snapshot(timestamp_ms=99)


def test_travel_across_the_enablement_of_in_commit_timestamps() -> None:
    times = iter([10, 20, 30, 40, 50])
    store = MemoryStore(clock=lambda: next(times))
    settings = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": "1000",
    }
    dl.write_log(
        store,
        [
            [dl.info(), dl.protocol(), dl.metadata()],
            [dl.info(), dl.add("f1")],
            [dl.info(inCommitTimestamp=1000), dl.metadata(settings)],
            [dl.info(inCommitTimestamp=2000), dl.add("f3")],
        ],
    )
    log = _log(store)
    expected = {10: 0, 20: 1, 999: 1, 1000: 2, 1999: 2, 2000: 3}
    assert {t: log.snapshot(timestamp_ms=t).version for t in expected} == expected
    assert [log.snapshot(v).timestamp_ms for v in range(4)] == [10, 20, 1000, 2000]


def test_an_in_commit_timestamp_before_enablement_is_ignored() -> None:
    store = dl.memory_log([dl.info(inCommitTimestamp=999_999), dl.add("f")], clock=lambda: 7)
    assert _log(store).snapshot().timestamp_ms == 7


# The hint


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 99}',
        b'{"version": "3"}',
        b'{"version": 2}',
        b'{"version":-1}',
    ],
)
def test_a_bad_hint_costs_nothing_but_a_listing(hint: bytes) -> None:
    store = dl.memory_log(*_appends(3))
    store.put("_delta_log/_last_checkpoint", hint)
    snapshot = _log(store).snapshot()
    assert (snapshot.version, snapshot.num_files) == (3, 3)
    assert _log(store).latest_version() == 3
    assert _log(store).snapshot(1).num_files == 1


def test_a_stale_hint_still_finds_newer_commits() -> None:
    history = [[dl.info(), dl.protocol(), dl.metadata()], *_appends(6)]
    store = MemoryStore()
    dl.write_log(store, history)
    path = "_delta_log/00000000000000000002.checkpoint.parquet"
    store.put(path, dl.checkpoint_bytes(dl.state_actions(history[:3])))
    store.put("_delta_log/_last_checkpoint", json.dumps({"version": 2, "size": 4}).encode())
    snapshot = _log(store).snapshot()
    assert (snapshot.version, snapshot.checkpoint_version, snapshot.num_files) == (6, 2, 6)
