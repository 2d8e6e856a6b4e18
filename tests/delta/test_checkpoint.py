"""Checkpoints: what is read, and by which requests."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from support.parquet.pages import flip, page_of
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.delta.log import checkpoint as parquet_file
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import maintain, unsupported_reason, write_checkpoint
from tandem.errors import CorruptLog, ObjectNotFound, StorageError

# Checkpoints by hand: classic, multi-part, V2; damaged ones; and the ones that we write.


HISTORY: list[list[dl.Json]] = [
    [dl.info(), dl.protocol(), dl.metadata({"k": "v"})],
    [dl.info(), dl.add("a", tags={"t": "1"}), dl.add("b"), {"txn": {"appId": "x", "version": 4}}],
    [dl.info(), dl.remove("a"), dl.add("a", "v1"), dl.add("c")],
    [dl.info(), dl.remove("b"), dl.add("d")],
    [dl.info(), dl.add("e")],
]
AT = 3
PREFIX = f"_delta_log/{AT:020d}.checkpoint"
UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
LIVE = [("a", True), ("c", False), ("d", False), ("e", False)]


def _table() -> MemoryStore:
    store = MemoryStore()
    dl.write_log(store, HISTORY)
    return store


def _cut(store: MemoryStore) -> MemoryStore:
    """Only the commits after the checkpoint are left: it has to be used."""
    store.delete(dl.commit_name(v) for v in range(AT + 1))
    return store


def _read(store: MemoryStore) -> tuple[int | None, list[tuple[str, bool]]]:
    snapshot = DeltaLog(store, parallel_reads=1).snapshot()
    assert snapshot.version == 4
    assert snapshot.configuration == {"k": "v"}
    assert snapshot.txns["x"].version == 4
    files = sorted((a.logged_path, a.deletion_vector is not None) for a in snapshot.adds())
    return snapshot.checkpoint_version, files


def _state() -> list[dl.Json]:
    return dl.state_actions(HISTORY[: AT + 1])


def _files(state: list[dl.Json]) -> list[dl.Json]:
    return [a for a in state if "add" in a]


def _others(state: list[dl.Json]) -> list[dl.Json]:
    return [a for a in state if "add" not in a]


def _sidecars(store: MemoryStore, *, full_path: bool = False) -> list[dl.Json]:
    actions = []
    for index, action in enumerate(_files(_state())):
        name = f"side{index}.parquet"
        data = dl.checkpoint_bytes([action], ("add", "remove"))
        store.put(f"_delta_log/_sidecars/{name}", data)
        logged = f"file:/memory/_delta_log/_sidecars/{name}" if full_path else name
        body = {"path": logged, "sizeInBytes": len(data), "modificationTime": 1, "tags": {}}
        actions.append({"sidecar": body})
    return actions


_META = {"checkpointMetadata": {"version": AT, "tags": {}}}


def test_a_classic_checkpoint_is_read() -> None:
    store = _table()
    store.put(f"{PREFIX}.parquet", dl.checkpoint_bytes(_state()))
    assert _read(_cut(store)) == (AT, LIVE)


def test_a_checkpoint_of_several_parts_is_read() -> None:
    store, state = _table(), _state()
    for part in (1, 2, 3):
        data = dl.checkpoint_bytes(state[part - 1 :: 3])
        store.put(f"{PREFIX}.{part:010d}.{3:010d}.parquet", data)
    assert _read(_cut(store)) == (AT, LIVE)


def test_incomplete_multi_part_is_ignored() -> None:
    store, state = _table(), _state()
    for part in (1, 3):
        store.put(f"{PREFIX}.{part:010d}.{3:010d}.parquet", dl.checkpoint_bytes(state))
    assert _read(store) == (None, LIVE)


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "sidecars"])
@pytest.mark.parametrize("full_path", [True, False], ids=["full path", "name"])
@pytest.mark.parametrize(
    "name", [f"{PREFIX}.{UUID}.json", f"{PREFIX}.{UUID}.parquet", f"{PREFIX}.parquet"]
)
def test_a_checkpoint_of_version_2_is_read(name: str, full_path: bool, inline: bool) -> None:
    store, state = _table(), _state()
    beside = _files(state) if inline else _sidecars(store, full_path=full_path)
    actions = [_META, *_others(state), *beside]
    data = dl.lines(actions) if name.endswith("json") else dl.checkpoint_bytes(actions)
    store.put(name, data)
    assert _read(_cut(store)) == (AT, LIVE)


def test_v2_with_a_missing_sidecar_falls_back_to_the_commits() -> None:
    store = _table()
    actions = [_META, *_others(_state()), *_sidecars(store)]
    store.put(f"{PREFIX}.{UUID}.json", dl.lines(actions))
    store.delete(["_delta_log/_sidecars/side1.parquet"])
    assert _read(store) == (None, LIVE)
    with pytest.raises(CorruptLog) as caught:
        _read(_cut(store))
    assert caught.value.resource == "_delta_log/_sidecars/side1.parquet"


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.99])
def test_a_truncated_checkpoint_is_passed_over(keep: float) -> None:
    """Falls back to an older complete checkpoint, then to the commits; else an explained error."""
    store = _table()
    whole = dl.checkpoint_bytes(_state())
    size = keep if isinstance(keep, int) else int(len(whole) * keep)
    store.put(f"{PREFIX}.parquet", whole[:size])
    store.put("_delta_log/_last_checkpoint", json.dumps({"version": AT, "size": 9}).encode())
    assert _read(store) == (None, LIVE)
    older = dl.state_actions(HISTORY[:2])
    store.put("_delta_log/00000000000000000001.checkpoint.parquet", dl.checkpoint_bytes(older))
    store.delete([dl.commit_name(0)])
    assert _read(store) == (1, LIVE)
    store.delete([dl.commit_name(v) for v in range(AT + 1)])
    with pytest.raises(CorruptLog) as caught:
        _read(store)
    error = caught.value
    assert error.resource == f"{PREFIX}.parquet"
    assert all((error.found, error.expected, error.remedy))


@pytest.mark.parametrize("length", [2**31 - 1, 10**6])
def test_a_footer_that_lies_about_its_length_is_refused(length: int) -> None:
    store, whole = _table(), dl.checkpoint_bytes(_state())
    store.put(f"{PREFIX}.parquet", whole[:-8] + length.to_bytes(4, "little") + whole[-4:])
    with pytest.raises(CorruptLog, match="the checkpoint cannot be read"):
        _read(_cut(store))


@pytest.mark.parametrize("call", ["__init__", "iter_batches"])
def test_a_lack_of_memory_is_no_fault_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Nothing else is tried in its place, which would take as much."""

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    store = _table()
    store.put(f"{PREFIX}.parquet", dl.checkpoint_bytes(_state()))
    monkeypatch.setattr(ExactParquetFile, call, fail)
    with pytest.raises(MemoryError, match="malloc of size 64 failed"):
        _read(store)


def test_a_page_of_a_checkpoint_that_does_not_match_its_checksum(tmp_path: Path) -> None:
    store = _table()
    path = tmp_path / "checkpoint"
    path.write_bytes(dl.checkpoint_bytes(_state()))
    pq.write_table(pq.read_table(path), path, write_page_checksum=True)
    flip(path, page_of(path, "add.path"))
    store.put(f"{PREFIX}.parquet", path.read_bytes())
    assert _read(store) == (None, LIVE)
    with pytest.raises(CorruptLog) as caught:
        _read(_cut(store))
    assert f"{PREFIX}.parquet" in caught.value.resource
    assert "column add.path, data page 0 of its row group" in caught.value.found


def test_checkpoint_without_metadata_is_corrupt() -> None:
    store = _table()
    store.put(f"{PREFIX}.parquet", dl.checkpoint_bytes(_files(_state())))
    assert _read(store) == (None, LIVE)


def test_either_of_two_checkpoints_of_one_version_is_enough() -> None:
    store = _table()
    store.put(f"{PREFIX}.parquet", dl.checkpoint_bytes(_state()))
    store.put(f"{PREFIX}.{UUID}.json", b"{ cut off")
    assert _read(_cut(store)) == (AT, LIVE)


def test_checkpoint_columns_of_other_writers() -> None:
    """Statistics and partition values only as structs, columns missing, other integer widths."""
    store = _table()
    most = pa.struct([("x", pa.float64()), ("y", pa.float64()), ("t", pa.timestamp("us"))])
    stats = pa.struct(
        [("numRecords", pa.int64()), ("minValues", pa.struct([("id", pa.int64())])),
         ("maxValues", most)]
    )  # fmt: skip
    add = pa.struct(
        [("path", pa.string()), ("size", pa.int32()), ("modificationTime", pa.int64()),
         ("partitionValues_parsed", pa.struct([("p", pa.date32()), (".p", pa.int32()),
                                              ("q", pa.bool_())])),
         ("stats_parsed", stats)]
    )  # fmt: skip
    import datetime as dt

    others = dl.checkpoint_bytes(_others(_state()), ("protocol", "metaData", "txn"))
    small = pq.read_table(pa.BufferReader(others))
    row = {
        "path": "a",
        "size": 3,
        "modificationTime": 5,
        "partitionValues_parsed": {"p": dt.date(2013, 2, 1), ".p": 7, "q": None},
        "stats_parsed": {
            "numRecords": 8,
            "minValues": {"id": 2},
            # JSON has no NaN, and INT96 is a moment in UTC whatever the reader's zone. Cut to
            # milliseconds, it would be no upper bound when the file is logged again.
            "maxValues": {"x": float("nan"), "y": 1.5, "t": -14_831_769_599_999_999},
        },
    }
    table = pa.concat_tables(
        [small, pa.table({"add": pa.array([row], add)})], promote_options="default"
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    store.put(f"{PREFIX}.parquet", sink.getvalue().to_pybytes())
    snapshot = DeltaLog(_cut(store), parallel_reads=1).snapshot(AT)
    (found,) = snapshot.adds()
    assert found.partition_values == {"p": "2013-02-01", ".p": "7", "q": None}
    assert json.loads(found.stats or "") == {
        "numRecords": 8,
        "minValues": {"id": 2},
        "maxValues": {"y": 1.5, "t": "1500-01-01T00:00:00.000001Z"},
    }
    assert snapshot.num_records.to_pylist() == [8]


# Ours


def test_written_checkpoint_keeps_everything() -> None:
    store = _table()
    log = DeltaLog(store, parallel_reads=1)
    before = log.snapshot()
    written = write_checkpoint(log, before, now_ms=0)
    assert (written.version, written.adds) == (4, 4)
    hint = json.loads(store.get("_delta_log/_last_checkpoint"))
    assert hint == {
        "version": 4,
        "size": written.actions,
        "sizeInBytes": len(store.get(written.path)),
        "numOfAddFiles": 4,
    }
    store.delete(dl.commit_name(v) for v in range(5))
    after = DeltaLog(store, parallel_reads=1).snapshot()
    for name in ("version", "metadata", "protocol", "txns", "domains"):
        assert getattr(after, name) == getattr(before, name)
    kept = [f for f in before.files.column_names if f != "data_change"]
    ordered = [s.files.select(kept).sort_by("path") for s in (before, after)]
    assert ordered[0].equals(ordered[1])


def test_expired_tombstones_are_dropped() -> None:
    store = dl.memory_log(
        [dl.add("a"), dl.add("b")],
        [dl.remove("a", deletionTimestamp=1_000), dl.remove("b", deletionTimestamp=2_000)],
        configuration={"delta.deletedFileRetentionDuration": "interval 5 seconds"},
    )
    log = DeltaLog(store, parallel_reads=1)
    written = write_checkpoint(log, log.snapshot(), now_ms=6_500)
    with store.open_input(written.path) as source:
        removes = pq.read_table(source)["remove"].drop_null().to_pylist()
    assert [r["path"] for r in removes] == ["b"]


def test_the_hint_never_goes_back() -> None:
    store = _table()
    log = DeltaLog(store, parallel_reads=1)
    write_checkpoint(log, log.snapshot(4), now_ms=0)
    write_checkpoint(log, log.snapshot(2), now_ms=0)
    assert json.loads(store.get("_delta_log/_last_checkpoint"))["version"] == 4


def test_domains_are_kept_and_removed_ones_dropped() -> None:
    def domain(name: str, removed: bool = False) -> dl.Json:
        return {"domainMetadata": {"domain": name, "configuration": "{}", "removed": removed}}

    store = dl.memory_log([domain("a"), domain("b")], [domain("a", removed=True)])
    log = DeltaLog(store, parallel_reads=1)
    write_checkpoint(log, log.snapshot(), now_ms=0)
    store.delete(dl.commit_name(v) for v in range(3))
    assert set(log.snapshot().domains) == {"b"}


# When it is due, and when it fails


def _commits(count: int) -> list[list[dl.Json]]:
    return [[dl.info(), dl.add(f"f{i}")] for i in range(count)]


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({}, [10, 20]),
        ({"delta.checkpointInterval": "7"}, [7, 14, 21]),
        ({"delta.checkpointInterval": "100"}, []),
    ],
)
def test_checkpoints_as_the_table_asks(configuration: dict[str, str], expected: list[int]) -> None:
    store = dl.memory_log(configuration=configuration)
    log = DeltaLog(store, parallel_reads=1)
    for version, actions in enumerate(_commits(21), start=1):
        store.put(dl.commit_name(version), dl.lines(actions))
        report = maintain(log, log.snapshot(), now_ms=version)
        assert report.notes == ()
    found = [m.path for m in store.list("_delta_log") if "checkpoint.parquet" in m.path]
    assert [int(p[11:31]) for p in found] == expected


@pytest.mark.parametrize(
    ("configuration", "word"),
    [
        ({"delta.checkpoint.writeStatsAsStruct": "true"}, "writeStatsAsStruct"),
        ({"delta.checkpoint.writeStatsAsJson": "false"}, "writeStatsAsJson"),
        ({"delta.checkpointInterval": "soon"}, "checkpointInterval"),
        ({"delta.deletedFileRetentionDuration": "2 moons"}, "deletedFileRetentionDuration"),
        ({"delta.checkpoint.writeStatsAsJson": "maybe"}, "writeStatsAsJson"),
    ],
)
def test_unsupported_checkpoint_features_are_named(
    configuration: dict[str, str], word: str
) -> None:
    store = dl.memory_log(*_commits(10), configuration=configuration)
    report = maintain(log := DeltaLog(store, parallel_reads=1), log.snapshot(), now_ms=0)
    assert report.checkpoint is None
    assert word in report.notes[0]


def test_unknown_writer_features_are_left_alone() -> None:
    features: dict[str, Any] = {"readerFeatures": [], "writerFeatures": ["fromTheFuture"]}
    store = dl.memory_log([dl.protocol(3, 7, **features)])
    snapshot = DeltaLog(store, parallel_reads=1).snapshot()
    assert "fromTheFuture" in (unsupported_reason(snapshot.protocol, snapshot.metadata) or "")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("get_range", "_last_checkpoint"),
        ("put", "_last_checkpoint"),
        ("get", ".checkpoint.parquet"),
    ],
)
@pytest.mark.parametrize("error", [StorageError("broken"), MemoryError()])
def test_maintenance_that_fails_fails_no_commit(name: str, path: str, error: Exception) -> None:
    store = dl.memory_log(*_commits(10))
    log = DeltaLog(store, parallel_reads=1)
    snapshot = log.snapshot()

    def fail(call: Call) -> None:
        if call.name == name and call.path.endswith(path) and call.when == "before":
            raise error

    store.fault = fail
    report = maintain(log, snapshot, now_ms=0)
    store.fault = None
    assert ("broken" if str(error) else "MemoryError") in report.notes[0]
    assert log.snapshot().num_files == 10


# The files of a checkpoint are read with one request each, small ones together, and none is
# believed to be as long as the log says.


PATIENCE_S = 300.0

PARTS = 4


def _part(number: int) -> str:
    return f"_delta_log/{AT:020d}.checkpoint.{number:010d}.{PARTS:010d}.parquet"


def _in_parts() -> MemoryStore:
    """A table of which only a checkpoint of four parts is left, each with two files."""
    store = MemoryStore()
    for number in range(1, PARTS + 1):
        first = [dl.protocol(), dl.metadata()] if number == 1 else []
        adds = [dl.add(f"{number}-{file}") for file in "ab"]
        store.put(_part(number), dl.checkpoint_bytes([*first, *adds]))
    return store


def _with_sidecars(size_factor: float = 1.0) -> MemoryStore:
    """A V2 checkpoint whose sidecars may have another size than it says."""
    store = MemoryStore()
    top: list[dict[str, object]] = [
        {"checkpointMetadata": {"version": AT}},
        dl.protocol(3, 7, readerFeatures=["v2Checkpoint"], writerFeatures=["v2Checkpoint"]),
        dl.metadata(),
    ]
    for name in "abc":
        content = dl.checkpoint_bytes([dl.add(name)], columns=("add",))
        store.put(f"_delta_log/_sidecars/{name}.parquet", content)
        body = {"path": f"{name}.parquet", "sizeInBytes": int(len(content) * size_factor)}
        top.append({"sidecar": {**body, "modificationTime": 1}})
    text = "".join(json.dumps(action) + "\n" for action in top)
    store.put(
        f"_delta_log/{AT:020d}.checkpoint.{'0' * 8}-0000-4000-8000-{'0' * 12}.json", text.encode()
    )
    return store


def _live(store: MemoryStore, parallel: int = 16) -> list[str]:
    snapshot = DeltaLog(store, parallel_reads=parallel).snapshot()
    return sorted(snapshot.files["path"].to_pylist())


@pytest.mark.parametrize("parallel", [1, 16])
def test_each_part_of_a_checkpoint_is_one_request(parallel: int) -> None:
    store = _in_parts()
    lock = threading.Lock()
    asked: list[tuple[str, str]] = []

    def note(call: Call) -> None:
        if call.when == "before" and ".checkpoint." in call.path:
            with lock:
                asked.append((call.name, call.path))

    store.fault = note
    expected = sorted(f"{number}-{file}" for number in range(1, PARTS + 1) for file in "ab")
    assert _live(store, parallel) == expected
    assert sorted(asked) == [("get_range", _part(number)) for number in range(1, PARTS + 1)]


def test_the_parts_of_a_checkpoint_are_read_side_by_side() -> None:
    store = _in_parts()
    meeting = threading.Barrier(PARTS)

    def meet(call: Call) -> None:
        if call.when == "before" and ".checkpoint." in call.path:
            meeting.wait(PATIENCE_S)

    store.fault = meet
    assert len(_live(store)) == 2 * PARTS


def test_parts_that_are_too_many_bytes_together_are_read_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = _in_parts()
    size = max(len(store.get(_part(number))) for number in range(1, PARTS + 1))
    for most in (0, size, 2 * size):
        monkeypatch.setattr(parquet_file, "IN_MEMORY", most)
        assert len(_live(store)) == 2 * PARTS


def test_required_texts_of_a_struct_that_is_null_everywhere_are_read() -> None:
    """Arrow's writer gives them a dictionary without entries."""
    store = _with_sidecars()
    text = pa.field("text", pa.string(), nullable=False)
    vector = pa.struct([text.with_name("storageType"), text.with_name("pathOrInlineDv")])
    fields = [("path", pa.string()), ("size", pa.int64()), ("deletionVector", vector)]
    adds = [{"path": "a", "size": 1}, {"path": "d", "size": 1}]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"add": pa.array(adds, pa.struct(fields))}), sink)
    store.put("_delta_log/_sidecars/a.parquet", sink.getvalue().to_pybytes())
    found = DeltaLog(store).snapshot().files
    assert sorted(found["path"].to_pylist()) == ["a", "b", "c", "d"]
    assert found["deletion_vector"].null_count == len(found)


def test_a_part_that_vanishes_while_the_others_are_read_is_named() -> None:
    store = _in_parts()

    def vanish(call: Call) -> None:
        if call.when == "before" and call.name == "get_range" and call.path == _part(3):
            raise ObjectNotFound("there is no such object", resource=call.path)

    store.fault = vanish
    with pytest.raises(CorruptLog, match=Path(_part(3)).name):
        _live(store)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.5, 1e9])
def test_a_sidecar_of_another_size_than_the_log_says_is_read_as_it_is(factor: float) -> None:
    assert _live(_with_sidecars(factor)) == ["a", "b", "c"]
