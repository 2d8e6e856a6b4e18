"""The files of a checkpoint are read with one request each, small ones together, and none is
believed to be as long as the log says."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.budget import TableBudget
from tandem.delta.log import checkpoint as parquet_file
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import CorruptLog, ObjectNotFound

PATIENCE_S = 300.0
AT = 3
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
        monkeypatch.setattr(parquet_file, "_WITHOUT_A_LIMIT", most)
        assert len(_live(store)) == 2 * PARTS


@pytest.mark.parametrize("limit", [None, 64 << 20])
def test_required_texts_of_a_struct_that_is_null_everywhere_are_read(limit: int | None) -> None:
    """Arrow's writer gives them a dictionary without entries."""
    store = _with_sidecars()
    text = pa.field("text", pa.string(), nullable=False)
    vector = pa.struct([text.with_name("storageType"), text.with_name("pathOrInlineDv")])
    fields = [("path", pa.string()), ("size", pa.int64()), ("deletionVector", vector)]
    adds = [{"path": "a", "size": 1}, {"path": "d", "size": 1}]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"add": pa.array(adds, pa.struct(fields))}), sink)
    store.put("_delta_log/_sidecars/a.parquet", sink.getvalue().to_pybytes())
    found = DeltaLog(store, budget=TableBudget(limit)).snapshot().files
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
