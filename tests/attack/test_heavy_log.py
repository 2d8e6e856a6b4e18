"""Logs that would take more memory than their table may: what they hold is found out before it is
decoded. The budgets are small, so that the tables are, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from support.lake import delta_log as dl
from support.lake.memory_store import Call, MemoryStore
from support.lake.vectors import encode_inline
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.delta.budget import MOST_VALUES, Account, TableBudget
from tandem.delta.log import checkpoint as parquet_file
from tandem.delta.log.checkpoint_write import SCHEMA
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.stats import MOST_BYTES, num_records, num_records_of
from tandem.errors import CorruptDeletionVector, CorruptLog, TooLarge
from tandem.operations.kinds.commit_history import VectorCache
from tandem.operations.machine.events import Effect, EffectFailed, Point, failure_of
from tandem.storage import open_store

MIB = 2**20
VERSION = 10
CHECKPOINT = f"_delta_log/{VERSION:020d}.checkpoint.parquet"
MANIFEST = f"_delta_log/{VERSION:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
PROTOCOL = dl.protocol()["protocol"]


def budgeted(store: Any, mebibytes: int) -> DeltaLog:
    return DeltaLog(store, parallel_reads=1, budget=TableBudget(mebibytes * MIB))


def metadata(**fields: Any) -> dl.Json:
    body: dl.Json = dl.metadata()["metaData"] | fields
    body["format"] = {"provider": "parquet", "options": []}
    body["configuration"] = list(dict(body["configuration"]).items())
    return body


def adds(rows: int, **same: Any) -> pa.Array:
    """As many files, of which each field has one value."""
    values = {"path": "a", "size": 1, "modificationTime": 1, "dataChange": False} | same
    fields = list(SCHEMA.field("add").type)
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), rows)
        if field.name in values
        else pa.nulls(rows, field.type)
        for field in fields
    ]
    return pa.StructArray.from_arrays(columns, fields=fields)


def checkpoint(
    files: pa.Array, body: dl.Json | None = None, edit: Callable[[bytes], bytes] = bytes, **how: Any
) -> MemoryStore:
    """A table that is one checkpoint."""
    head = [{"protocol": PROTOCOL}, {"metaData": body or metadata()}]
    rows = pa.Table.from_pylist(head, schema=SCHEMA)
    columns = [
        files if field.name == "add" else pa.nulls(len(files), field.type) for field in SCHEMA
    ]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, **{"compression": "zstd", **how}) as writer:
        writer.write_table(rows)
        if len(files):
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    store = MemoryStore()
    store.put(CHECKPOINT, edit(sink.getvalue().to_pybytes()))
    return store


def refused(store: MemoryStore, mebibytes: int) -> str:
    """The message of the refusal; without a budget, the same table can be read."""
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(TooLarge) as caught:
        budgeted(store, mebibytes).snapshot()
    assert pa.default_memory_pool().bytes_allocated() - before < mebibytes * MIB
    assert "--table-memory" in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_of_many_files_is_refused_by_its_footer() -> None:
    store = checkpoint(adds(50_000))
    size = store.head(CHECKPOINT).size
    assert size < 100_000
    message = refused(store, 8)
    assert "50,000 files: about 32 MiB" in message
    assert CHECKPOINT in message
    assert budgeted(store, 64).snapshot().num_files == 50_000


def test_a_checkpoint_whose_footer_says_nothing_is_refused_while_it_is_read() -> None:
    store = checkpoint(adds(50_000), write_statistics=False)
    assert "files: about" in refused(store, 8)


def test_texts_of_a_dictionary_count_as_often_as_they_occur() -> None:
    """100 MB from a few bytes: pages and footer say 100 kB."""
    store = checkpoint(adds(1_000, stats="x" * 100_000))
    assert store.head(CHECKPOINT).size < 100_000
    assert "100,050,000 bytes of texts" in refused(store, 16)


def test_tags_of_a_dictionary_count_as_often_as_they_occur() -> None:
    store = checkpoint(adds(1_000, tags=[("k", "x" * 100_000)]))
    assert "bytes of texts" in refused(store, 16)


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy"])
def test_pages_that_expand_a_thousandfold_are_refused_before_they_are_decompressed(
    codec: str,
) -> None:
    store = checkpoint(adds(0), metadata(description="x" * 20 * MIB), compression=codec)
    assert store.head(CHECKPOINT).size < 2 * MIB
    assert "bytes of metaData without compression" in refused(store, 8)


def test_what_a_column_says_of_its_own_path_hides_nothing() -> None:
    def rename(file: bytes) -> bytes:
        """The path in the column's own part of the footer; the schema has the name before."""
        at = file.rindex(b"description")
        return file[:at] + b"descriptiox" + file[at + 11 :]

    store = checkpoint(adds(0), metadata(description="x" * 20 * MIB), rename)
    with pytest.raises((TooLarge, CorruptLog)):
        budgeted(store, 8).snapshot()


def test_texts_that_repeat_the_beginning_of_one_another_are_read_in_small_batches() -> None:
    """Each of 2,000 texts shares 50 kB with the one before, and its page holds them once."""
    shared = "x" * 50_000
    fields = list(SCHEMA.field("add").type)
    values = adds(2_000)
    texts = pa.array([f"{shared}{number}" for number in range(2_000)])
    columns = [texts if field.name == "stats" else values.field(field.name) for field in fields]
    store = checkpoint(
        pa.StructArray.from_arrays(columns, fields=fields),
        use_dictionary=False,
        column_encoding={"add.stats": "DELTA_BYTE_ARRAY"},
    )
    assert store.head(CHECKPOINT).size < 100_000
    assert "bytes of texts" in refused(store, 16)


def test_a_map_of_a_million_entries_is_refused() -> None:
    body = metadata()
    body["configuration"] = [("k", "v")] * 1_000_000
    store = checkpoint(adds(0), body)
    assert store.head(CHECKPOINT).size < 100_000
    assert "entries of lists and maps" in refused(store, 8)


def test_many_small_actions_of_a_checkpoint_are_counted() -> None:
    rows = pa.array([{"appId": "a", "version": 1}] * 20_000, SCHEMA.field("txn").type)
    columns = [rows if f.name == "txn" else pa.nulls(20_000, f.type) for f in SCHEMA]
    head = [{"protocol": PROTOCOL}, {"metaData": metadata()}]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(head, schema=SCHEMA))
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    store = MemoryStore()
    store.put(CHECKPOINT, sink.getvalue().to_pybytes())
    assert "20,000 actions of kind txn" in refused(store, 8)


def test_a_footer_that_is_large_is_refused_before_it_is_decoded() -> None:
    store = checkpoint(adds(1), metadata(), write_page_index=False)
    with pytest.raises(TooLarge, match=r"a footer of [\d,]+ bytes"):
        DeltaLog(store, budget=TableBudget(64_000)).snapshot()


@pytest.mark.parametrize("length", [2**31 - 1, 10**6])
def test_a_footer_that_lies_about_its_length_is_refused(length: int) -> None:
    def lie(file: bytes) -> bytes:
        return file[:-8] + length.to_bytes(4, "little") + file[-4:]

    with pytest.raises(CorruptLog, match="a footer of"):
        budgeted(checkpoint(adds(1), edit=lie), 8).snapshot()


def in_parts(whole: bytes, store: MemoryStore) -> None:
    for part in range(1, 9):
        store.put(f"_delta_log/{VERSION:020d}.checkpoint.{part:010d}.{8:010d}.parquet", whole)


def beside(store: MemoryStore, size: int, *sidecars: str) -> None:
    """A V2 checkpoint of JSON that names these sidecars, each of this size."""
    head = [{"checkpointMetadata": {"version": VERSION}}, {"protocol": PROTOCOL}, dl.metadata()]
    named: list[dl.Json] = [
        {"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 1}} for name in sidecars
    ]
    store.put(MANIFEST, dl.lines([*head, *named]))


def in_sidecars(whole: bytes, store: MemoryStore) -> None:
    names = [f"{number}.parquet" for number in range(8)]
    for name in names:
        store.put(f"_delta_log/_sidecars/{name}", whole)
    beside(store, len(whole), *names)


def in_one_sidecar_named_often(whole: bytes, store: MemoryStore) -> None:
    store.put("_delta_log/_sidecars/0.parquet", whole)
    beside(store, len(whole), *["0.parquet"] * 8)


@pytest.mark.parametrize("how", [in_parts, in_sidecars, in_one_sidecar_named_often])
def test_all_sidecars_and_parts_count_together(how: Callable[[bytes, MemoryStore], None]) -> None:
    """Each is a quarter of the limit at most."""
    store = MemoryStore()
    how(checkpoint(adds(5_000)).get(CHECKPOINT), store)
    assert "files: about" in refused(store, 16)
    if how is not in_one_sidecar_named_often:
        assert budgeted(store, 64).snapshot().num_files == 40_000


def test_an_action_of_many_values_in_a_json_checkpoint_is_refused() -> None:
    store = MemoryStore()
    odd: dl.Json = {"add": {**dl.add("f1")["add"], "tags": {"x": "[]"}, "odd": [[]] * 400_000}}
    head = [{"checkpointMetadata": {"version": VERSION}}, {"protocol": PROTOCOL}, dl.metadata()]
    store.put(MANIFEST, dl.lines([*head, odd]))
    with pytest.raises(TooLarge, match="a single action"):
        budgeted(store, 16).snapshot()


@pytest.mark.parametrize("at_once", [0, 64 * MIB])
def test_a_table_within_its_budget_reads_as_without_one(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """From memory and in ranges, through dictionaries and without: columns that change their
    encoding half-way."""
    monkeypatch.setattr(parquet_file, "IN_MEMORY", at_once)
    fields = list(SCHEMA.field("add").type)
    some = [
        {
            "path": f"p={number % 7}/{number:032d}.parquet",
            "partitionValues": [("p", str(number % 7))],
            "size": number,
            "modificationTime": 1,
            "dataChange": False,
            "stats": json.dumps({"numRecords": number}) if number % 3 else None,
            "tags": [("a", "b")] if number % 5 == 0 else None,
        }
        for number in range(3_000)
    ]
    store = checkpoint(
        pa.array(some, pa.struct(fields)), dictionary_pagesize_limit=4_096, data_page_size=8_192
    )
    with_one, without = budgeted(store, 64).snapshot(), DeltaLog(store).snapshot()
    assert with_one.files.equals(without.files)
    assert with_one.metadata == without.metadata


# Commits


def line(body: str) -> dl.Json:
    found: dl.Json = json.loads(body)
    return found


def test_an_action_of_many_values_is_refused_before_it_is_decoded() -> None:
    """A byte of `[],` becomes 24 of memory, and nothing else runs while Python decodes it."""
    store = dl.memory_log()
    body = b'{"commitInfo":{"x":[' + b"[]," * MOST_VALUES + b"1]}}\n"
    store.put(dl.commit_name(1), body)
    with pytest.raises(TooLarge, match=r"00000000000000000001\.json: a single action is too large"):
        budgeted(store, 1_024).snapshot()


def test_a_commit_whose_values_take_more_than_its_bytes_is_refused() -> None:
    actions = [dl.add(f"f{n}", extra=[[]] * 500) for n in range(200)]
    store = dl.memory_log(actions)
    assert store.head(dl.commit_name(1)).size < 2 * MIB
    with pytest.raises(TooLarge, match="bytes of JSON with"):
        budgeted(store, 8).snapshot()
    assert budgeted(store, 64).snapshot().num_files == 200


def test_commas_in_texts_are_no_values() -> None:
    stats = json.dumps({"numRecords": 1, "x": ["," * 1_000]})
    store = dl.memory_log([dl.add(f"f{n}", stats=stats) for n in range(100)])
    assert budgeted(store, 1).snapshot().num_files == 100


def test_quotes_that_do_not_end_take_no_longer_to_look_at() -> None:
    """Millions of them: tried one after the other, they would take hours."""
    store = dl.memory_log()
    store.put(dl.commit_name(1), b'{"commitInfo":"' + b'\\"' * 2_000_000 + b"\n")
    with pytest.raises(CorruptLog, match=r"00000000000000000001\.json"):
        budgeted(store, 64).snapshot()


def test_commits_that_are_too_large_together_are_not_read(tmp_path: Path) -> None:
    store = dl.memory_log(*[[dl.info(x="y" * MIB)] for _ in range(4)])
    read: list[str] = []

    def note(call: Call) -> None:
        if call.name == "get":
            read.append(call.path)

    store.fault = note
    with pytest.raises(TooLarge, match=r"5 commits of 4,19\d,\d\d\d bytes"):
        budgeted(store, 3).snapshot()
    assert read == []


def test_a_commit_that_would_make_a_table_too_large_leaves_the_version_before() -> None:
    store = dl.memory_log([dl.add("f1")])
    log = budgeted(store, 2)
    snapshot = log.snapshot()
    store.put(dl.commit_name(2), dl.lines([dl.add("f2", extra=[[]] * 30_000)]))
    with pytest.raises(TooLarge):
        log.update(snapshot)
    assert snapshot.num_files == 1


def test_a_schema_that_is_too_large_is_refused() -> None:
    schema = '{"type":"struct","fields":[' + "{}," * 100_000 + "{}]}"
    store = dl.memory_log([dl.metadata(schemaString=schema)])
    with pytest.raises(TooLarge, match="the schema of version 1"):
        budgeted(store, 8).snapshot()


def test_a_hint_of_megabytes_is_read_in_part_and_not_believed() -> None:
    store = dl.memory_log([dl.add("f1")])
    store.put("_delta_log/_last_checkpoint", b'{"version":1,"x":"' + b"x" * 2 * MIB + b'"}')
    whole: list[str] = []

    def note(call: Call) -> None:
        if call.name == "get" and call.path.endswith("_last_checkpoint"):
            whole.append(call.path)

    store.fault = note
    assert DeltaLog(store).snapshot().version == 1
    assert whole == []


def test_a_log_of_very_many_objects_is_refused() -> None:
    store = dl.memory_log(*[[dl.info()] for _ in range(300)])
    with pytest.raises(TooLarge, match="_delta_log: more than 256 objects"):
        DeltaLog(store, budget=TableBudget(128 * 1_024)).latest_version()


# Statistics, deletion vectors, other objects


def test_statistics_of_megabytes_count_as_absent() -> None:
    long = '{"numRecords":5,"x":"' + "x" * MOST_BYTES + '"}'
    short = '{"numRecords":7}'
    found = num_records(pa.chunked_array([[long, short, None] * 10]))
    assert found.to_pylist() == [None, 7, None] * 10
    assert num_records_of(long) is None


def test_a_vector_of_few_bytes_and_very_many_positions_is_refused() -> None:
    """Runs: eight bytes for each 65,536 positions, all of which are looked at."""
    positions = BitMap64(range(2_000_000))
    positions.run_optimize()
    store = MemoryStore()
    vector = encode_inline(positions)
    assert vector.size < 1_000
    cache = VectorCache(store, TableBudget(8 * MIB))
    with pytest.raises(TooLarge, match="1 deletion vectors, up to i"):
        cache.load([vector])
    with pytest.raises(CorruptDeletionVector, match="wrong count"):
        # It does not help to claim fewer.
        cache.load([DeletionVector("i", vector.path_or_inline, vector.size, 5)])


def test_vectors_that_are_too_large_together_are_not_read() -> None:
    store = MemoryStore()
    vectors = dv.write_file(store, "", [BitMap64(range(0, 200_000, 3)) for _ in range(4)])
    account = TableBudget(MIB).account("table")
    with pytest.raises(TooLarge, match="4 deletion vectors"):
        dv.load_many(store, vectors, account)
    assert len(dv.load_many(store, vectors, Account(None, "table"))) == 4


def test_an_object_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """What jobs and others leave beside the log: row maps, results, records."""
    (tmp_path / "map").write_bytes(b"x" * 2 * MIB)
    store = open_store(tmp_path.as_uri(), most_bytes=MIB)
    with pytest.raises(TooLarge, match="2,097,152 bytes; expected: at most 1,048,576 bytes"):
        store.get("map")
    with pytest.raises(TooLarge):
        store.get_range("map", 0, 2 * MIB)
    assert len(store.get_range("map", 0, MIB)) == MIB
    assert len(store.get_range("map", 2 * MIB - 5, 4 * MIB)) == 5


def test_a_folder_of_very_many_objects_is_not_listed(tmp_path: Path) -> None:
    for number in range(2_000):
        (tmp_path / str(number)).touch()
    with pytest.raises(TooLarge, match="2,000 objects"):
        next(open_store(tmp_path.as_uri(), most_bytes=1_000_000).list())


def test_an_operation_waits_for_a_table_that_is_too_large() -> None:
    effect = Effect(Point.READ_TABLE, 0)
    event = failure_of(effect, TooLarge("no", found="much"))
    assert isinstance(event, EffectFailed)
    assert event.retryable
    assert event.patient
