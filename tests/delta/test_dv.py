"""Deletion vectors: bytes, positions, and files of other writers."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
import sys
import uuid
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.lake.memory_store import Call, MemoryStore
from support.lake.s3 import S3Server
from support.lake.vectors import encode_inline
from support.some import few
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.errors import (
    CorruptDeletionVector,
    DataFileMissing,
    LocationNotAllowed,
    OutcomeUnknown,
    StorageError,
    StorageFull,
)
from tandem.storage import Store, open_store

# Deletion vectors: what we write reads back, and no damage goes unnoticed.


FOLDER = "_tandem/dv/0123456789abcdef-1"
ID = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")

SMALL = st.sets(st.integers(0, 300), max_size=60)
WIDE = st.sets(st.integers(0, 2**63 - 1), max_size=20)
RUNS = st.tuples(st.integers(0, 2**33), st.integers(1, 200_000)).map(
    lambda run: BitMap64(range(run[0], run[0] + run[1]))
)
BITMAPS = st.one_of(SMALL.map(BitMap64), WIDE.map(BitMap64), RUNS)


@given(bitmap=BITMAPS)
def test_inline_vectors_round_trip(bitmap: BitMap64) -> None:
    vector = encode_inline(bitmap)
    assert vector.storage == "i"
    assert vector.offset is None
    assert vector.cardinality == len(bitmap)
    assert len(vector.path_or_inline) == -(-vector.size // 4) * 5
    assert dv.load(MemoryStore(), vector) == bitmap


@given(bitmaps=st.lists(BITMAPS, max_size=6), order=st.randoms(use_true_random=False))
def test_several_vectors_in_one_file_round_trip_in_any_order(
    bitmaps: list[BitMap64], order: object
) -> None:
    store = MemoryStore()
    vectors = dv.write_file(store, FOLDER, bitmaps)
    assert len(store.paths()) == (1 if bitmaps else 0)
    assert [dv.load(store, vector) for vector in vectors] == bitmaps
    indexes = list(range(len(bitmaps)))
    order.shuffle(indexes)  # type: ignore[attr-defined]
    mixed = [vectors[index] for index in indexes]
    mixed.append(encode_inline(BitMap64([7])))
    assert dv.load_many(store, mixed)[:-1] == [bitmaps[index] for index in indexes]
    assert dv.load_many(store, mixed)[-1] == BitMap64([7])


@given(positions=st.lists(st.integers(0, 200_000), max_size=300, unique=True))
def test_equal_sets_have_equal_bytes(positions: list[int]) -> None:
    one_by_one = BitMap64()
    for position in positions:
        one_by_one.add(position)
    assert dv.serialize(one_by_one) == dv.serialize(BitMap64(sorted(positions)))


@given(bitmap=BITMAPS)
def test_base64_round_trips(bitmap: BitMap64) -> None:
    assert dv.from_base64(dv.to_base64(bitmap)) == bitmap


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", dv.to_base64(BitMap64([1]))[:-4]])
def test_damaged_base64_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each damage has another message
        dv.from_base64(text)


@given(data=st.binary(max_size=64))
def test_z85_round_trips(data: bytes) -> None:
    text = dv.z85_encode(data)
    assert dv.z85_decode(text)[: len(data)] == data


def test_threads_find_the_tables_of_base85_made() -> None:
    """As many decode at once, one that sees half a table refuses a vector as damaged."""
    code = "import base64, tandem.delta.dv; assert base64._b85dec"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_z85_is_the_one_of_the_zeromq_specification() -> None:
    data = bytes.fromhex("864fd26fb559f75b")
    assert dv.z85_encode(data) == "HelloWorld"


def test_the_protocols_example_of_a_relative_path() -> None:
    vector = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert dv.file_path(vector) == f"ab/deletion_vector_{ID}.bin"


def test_the_protocols_file_layout() -> None:
    store = MemoryStore()
    vectors = dv.write_file(store, FOLDER, [BitMap64([3, 4]), BitMap64([9])], file_id=ID)
    (path,) = store.paths()
    assert path == f"{FOLDER}/deletion_vector_{ID}.bin"
    content = store.get(path)
    at = 1
    for vector, positions in zip(vectors, ([3, 4], [9]), strict=True):
        size, magic = struct.unpack_from(">I", content, at)[0], content[at + 4 : at + 8]
        body = content[at + 4 : at + 4 + size]
        assert content[0] == 1
        assert magic == struct.pack("<I", 1681511377)
        assert BitMap64.deserialize(body[4:]) == BitMap64(positions)
        assert content[at + 4 + size : at + 8 + size] == struct.pack(">I", zlib.crc32(body))
        assert (vector.offset, vector.size, vector.cardinality) == (at, size, len(positions))
        at += 8 + size
    assert at == len(content)
    assert len({vector.unique_id for vector in vectors}) == 2


def test_an_absolute_file_is_read_where_the_store_allows() -> None:
    store = MemoryStore("s3://lake/my table")
    relative = dv.write_file(store, "", [BitMap64([5])])[0]
    absolute = dataclasses.replace(
        relative, storage="p", path_or_inline=f"s3://lake/my%20table/{dv.file_path(relative)}"
    )
    assert dv.load(store, absolute) == BitMap64([5])
    elsewhere = dataclasses.replace(absolute, path_or_inline="s3://other/x.bin")
    with pytest.raises(LocationNotAllowed):
        dv.load(store, elsewhere)


def test_a_prefix_that_leaves_the_table_is_refused() -> None:
    text = "../../etc" + dv.z85_encode(ID.bytes)
    with pytest.raises(LocationNotAllowed):
        dv.load(MemoryStore(), DeletionVector("u", text, 40, 6, 1))


def test_the_empty_constant_of_spark_is_empty() -> None:
    assert dv.load(MemoryStore(), DeletionVector("i", "", 0, 0)) == BitMap64()


def test_empty_buckets_as_java_writes_them_are_read() -> None:
    inner = BitMap64([5]).serialize()[12:]
    empty = struct.pack("<II", 12346, 0)
    body = struct.pack("<IQ", dv.MAGIC, 2)
    body += struct.pack("<I", 0) + empty + struct.pack("<I", 1) + inner
    text = dv.z85_encode(body)
    assert dv.load(MemoryStore(), DeletionVector("i", text, len(body), 1)) == BitMap64([2**32 + 5])


def test_an_absent_offset_means_the_first_vector() -> None:
    store = MemoryStore()
    vector = dv.write_file(store, FOLDER, [BitMap64([5])])[0]
    assert dv.load(store, dataclasses.replace(vector, offset=None)) == BitMap64([5])


CONTAINERS = [
    BitMap64([3, 4, 7, 11, 18, 29]),
    BitMap64(range(0, 40_000, 3)),
    BitMap64(range(100, 90_000)),
    BitMap64([1, 2**33, 2**40 + 5]),
    BitMap64(),
]


@pytest.mark.parametrize("bitmap", CONTAINERS, ids=len)
def test_every_flipped_byte_of_a_file_is_noticed(bitmap: BitMap64) -> None:
    store = MemoryStore()
    vector = dv.write_file(store, FOLDER, [bitmap])[0]
    (path,) = store.paths()
    content = store.get(path)
    # All bytes of headers, tail and a sample of what lies between.
    places = {*range(min(64, len(content))), *range(len(content) - 8, len(content))}
    for at in sorted(places | set(range(0, len(content), 97))):
        for bit in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[at] ^= bit
            store.put(path, bytes(damaged))
            with pytest.raises(CorruptDeletionVector) as caught:
                dv.load(store, vector)
            assert caught.value.resource == path


@pytest.mark.parametrize("bitmap", CONTAINERS, ids=len)
def test_a_file_cut_off_anywhere_is_noticed(bitmap: BitMap64) -> None:
    store = MemoryStore()
    vectors = dv.write_file(store, FOLDER, [BitMap64([1]), bitmap])
    (path,) = store.paths()
    content = store.get(path)
    for length in {*range(0, len(content), max(1, len(content) // 50)), len(content) - 1}:
        store.put(path, content[:length])
        with pytest.raises(CorruptDeletionVector):
            dv.load(store, vectors[1])
        with pytest.raises(CorruptDeletionVector):
            dv.load_many(store, vectors)


@settings(max_examples=few(100, 300))
@given(bitmap=BITMAPS, data=st.data())
def test_a_damaged_inline_vector_is_noticed_or_has_the_right_size(
    bitmap: BitMap64, data: st.DataObject
) -> None:
    """There is no checksum: another set of that many positions cannot be detected."""
    vector = encode_inline(bitmap)
    text = vector.path_or_inline
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0aZ.#\u00e9'\""))
    damaged = dataclasses.replace(vector, path_or_inline=text[:at] + other + text[at + 1 :])
    try:
        found = dv.load(MemoryStore(), damaged)
    except CorruptDeletionVector:
        return
    assert len(found) == vector.cardinality
    assert len(set(found)) == vector.cardinality


@settings(max_examples=few(166, 500))
@given(body=st.binary(min_size=0, max_size=200), cardinality=st.integers(0, 50))
def test_garbage_behind_a_right_magic_is_refused_or_consistent(
    body: bytes, cardinality: int
) -> None:
    raw = struct.pack("<I", dv.MAGIC) + body
    vector = DeletionVector("i", dv.z85_encode(raw), len(raw), cardinality)
    try:
        found = dv.load(MemoryStore(), vector)
    except CorruptDeletionVector:
        return
    assert len(found) == cardinality


INLINE = encode_inline(BitMap64([3, 4, 7]))


@pytest.mark.parametrize(
    ("vector", "field"),
    [
        (dataclasses.replace(INLINE, cardinality=2), "cardinality"),
        (dataclasses.replace(INLINE, cardinality=4), "cardinality"),
        (dataclasses.replace(INLINE, cardinality=-1), "cardinality"),
        (dataclasses.replace(INLINE, size=INLINE.size + 4), "sizeInBytes"),
        (dataclasses.replace(INLINE, size=INLINE.size - 1), "bitmapData"),
        (dataclasses.replace(INLINE, size=2**31), "sizeInBytes"),
        (dataclasses.replace(INLINE, size=-4), "sizeInBytes"),
        (dataclasses.replace(INLINE, path_or_inline="#####" * 9, size=36), "pathOrInlineDv"),
        (dataclasses.replace(INLINE, storage="x"), "storageType"),
        (DeletionVector("u", "short", 40, 6, 1), "pathOrInlineDv"),
        (DeletionVector("u", "'" * 20, 40, 6, 1), "pathOrInlineDv"),
        (DeletionVector("u", dv.z85_encode(ID.bytes), 40, 6, -1), "offset"),
    ],
)
def test_a_wrong_descriptor_names_its_field(vector: DeletionVector, field: str) -> None:
    with pytest.raises(CorruptDeletionVector) as caught:
        dv.load(MemoryStore(), vector)
    error = caught.value
    assert error.field == f"deletionVector.{field}"
    assert error.found
    assert error.expected
    assert error.remedy


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_native_format_is_refused_by_name(order: str) -> None:
    inner = BitMap64([5]).serialize()[12:]
    raw = struct.pack(f"{order}III", dv.NATIVE_MAGIC, 1, len(inner)) + inner
    with pytest.raises(CorruptDeletionVector, match="native"):
        dv.load(MemoryStore(), DeletionVector("i", dv.z85_encode(raw), len(raw), 1))


@pytest.mark.parametrize(
    ("positions", "last"),
    [
        ([3, 9], (9, 3)),
        ([3, 9], (3, 3)),
        ([*range(10), *range(50, 60)], (50, 9, 0, 9)),  # runs: where each begins, its length - 1
        ([*range(10), *range(50, 60)], (0, 9, 9, 9)),
        ([*range(10), *range(50, 60)], (0, 9, 65530, 9)),
    ],
)
def test_positions_out_of_order_are_noticed_inline(
    positions: list[int], last: tuple[int, ...]
) -> None:
    raw = bytearray(dv.serialize(BitMap64(positions)))
    raw[-2 * len(last) :] = struct.pack(f"<{len(last)}H", *last)
    vector = DeletionVector("i", dv.z85_encode(bytes(raw)), len(raw), len(positions))
    with pytest.raises(CorruptDeletionVector, match="after"):
        dv.load(MemoryStore(), vector)


def test_an_absent_vector_file_is_named() -> None:
    store = MemoryStore()
    vector = dv.write_file(store, FOLDER, [BitMap64([1])])[0]
    (path,) = store.paths()
    store.delete([path])
    with pytest.raises(DataFileMissing, match="absent") as caught:
        dv.load(store, vector)
    assert caught.value.resource == path


def test_a_descriptor_cannot_make_us_read_or_keep_much() -> None:
    store = MemoryStore()
    dv.write_file(store, "", [BitMap64([1])], file_id=ID)
    located = dv.z85_encode(ID.bytes)
    with pytest.raises(CorruptDeletionVector):
        dv.load(store, DeletionVector("u", located, dv.MAX_BYTES, 1, 1))
    with pytest.raises(CorruptDeletionVector):
        dv.load(store, DeletionVector("u", located, 20, 1, 2**31 - 1))
    # 65,536 full containers in 540 kB would unfold to four billion rows.
    header = struct.pack("<IQI", dv.MAGIC, 1, 0) + struct.pack("<I", 12347 | 65535 << 16)
    header += b"\xff" * 8192 + b"".join(struct.pack("<HH", key, 65535) for key in range(65536))
    raw = header + b"\0" * (4 * 65536) + struct.pack("<HHH", 1, 0, 65535) * 65536
    with pytest.raises(CorruptDeletionVector, match="count") as caught:
        dv.load(store, DeletionVector("i", dv.z85_encode(raw), len(raw), 5))
    assert caught.value.found == str(2**32)
    # Nor are they looked at one by one.
    assert len(dv.load(store, DeletionVector("i", dv.z85_encode(raw), len(raw), 2**32))) == 2**32


def test_Z20_a_lost_answer_to_the_file_is_resolved() -> None:
    def lose(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == "after":
            raise OutcomeUnknown("lost", resource=call.path)

    store = MemoryStore(fault=lose)
    (vector,) = dv.write_file(store, FOLDER, [BitMap64([1, 2])])
    assert dv.load(store, vector) == BitMap64([1, 2])


def test_a_put_that_never_arrived_is_sent_again() -> None:
    def drop_first(call: Call) -> None:
        if call.name == "put_if_absent":
            store.fault = None
            raise OutcomeUnknown("lost", resource=call.path)

    store = MemoryStore(fault=drop_first)
    (vector,) = dv.write_file(store, FOLDER, [BitMap64([1, 2])])
    assert dv.load(store, vector) == BitMap64([1, 2])


def test_a_full_store_is_reported() -> None:
    def full(call: Call) -> None:
        if call.when == "before":
            raise StorageFull("no room", resource=call.path)

    with pytest.raises(StorageFull):
        dv.write_file(MemoryStore(fault=full), FOLDER, [BitMap64([1])])


def test_vectors_close_together_are_one_request() -> None:
    requests: list[Call] = []
    store = MemoryStore()
    vectors = dv.write_file(store, FOLDER, [BitMap64([n]) for n in range(100)])
    store.fault = lambda call: requests.append(call) if call.when == "before" else None
    assert dv.load_many(store, vectors) == [BitMap64([n]) for n in range(100)]
    assert len(requests) == 1


@pytest.mark.parametrize("parallel", [1, 16])
def test_vectors_are_read_again_after_an_error(parallel: int) -> None:
    store = MemoryStore()
    bitmaps = [BitMap64(range(number, 1_000, 3)) for number in range(4)]
    vectors = [dv.write_file(store, FOLDER, [bitmap])[0] for bitmap in bitmaps]

    def fail(call: Call) -> None:
        if call.path == dv.file_path(vectors[2]):
            raise StorageError("the store does not answer", resource=call.path)

    store.fault = fail
    with pytest.raises(StorageError, match="does not answer"):
        dv.load_many(store, vectors, parallel=parallel)
    store.fault = None
    assert dv.load_many(store, vectors, parallel=parallel) == bitmaps


# Our deletion vectors in real tables: `deltalake` reads what we write, we read the same rows.


ROWS = 1000

SETS = [
    BitMap64([0]),
    BitMap64([0, 5, ROWS - 1]),
    BitMap64(range(100, 900)),
    BitMap64(range(0, ROWS, 2)),
    BitMap64(),
]


def create(location: str, storage_options: dict[str, str] | None = None) -> None:
    write_deltalake(
        location,
        pa.table({"id": pa.array(range(ROWS), pa.int64())}),
        configuration={"delta.enableDeletionVectors": "true"},
        storage_options=storage_options,
    )


def descriptor(vector: DeletionVector) -> dict[str, Any]:
    found: dict[str, Any] = {
        "storageType": vector.storage,
        "pathOrInlineDv": vector.path_or_inline,
        "sizeInBytes": vector.size,
        "cardinality": vector.cardinality,
    }
    if vector.offset is not None:
        found["offset"] = vector.offset
    return found


def commit(store: Store, vector: DeletionVector) -> str:
    """Version 1: the table's only file again, with `vector`. Returns the file's path."""
    first = [json.loads(line) for line in store.get(f"_delta_log/{0:020}.json").splitlines()]
    add = next(action["add"] for action in first if "add" in action)
    stats = {**json.loads(add["stats"]), "tightBounds": False}
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions: list[dict[str, Any]] = [
        {"remove": {**remove, "extendedFileMetadata": False}},
        {"add": {**add, "stats": json.dumps(stats), "deletionVector": descriptor(vector)}},
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
    ]
    text = "\n".join(json.dumps(action) for action in actions)
    store.put_if_absent(f"_delta_log/{1:020}.json", text.encode())
    return str(add["path"])


def rows(location: str, storage_options: dict[str, str] | None = None) -> list[int]:
    table = DeltaTable(location, storage_options=storage_options)
    found: list[int] = pa.table(table.scan()).column("id").to_pylist()
    return sorted(found)


def expected(bitmap: BitMap64) -> list[int]:
    return [row for row in range(ROWS) if row not in bitmap]


@pytest.mark.parametrize("bitmap", SETS, ids=len)
@pytest.mark.parametrize("storage", ["i", "u", "u at the root", "p"])
def test_deltalake_hides_the_rows_that_we_delete(
    tmp_path: Path, bitmap: BitMap64, storage: str
) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    others = [BitMap64([1]), bitmap, BitMap64([2])]
    vector = encode_inline(bitmap)
    if storage.startswith("u"):
        vector = dv.write_file(store, FOLDER if storage == "u" else "", others)[1]
    elif storage == "p":
        relative = dv.write_file(store, "elsewhere", others)[1]
        url = f"{store.location}/{dv.file_path(relative)}"
        vector = dataclasses.replace(relative, storage="p", path_or_inline=url)
    commit(store, vector)
    assert rows(str(tmp_path)) == expected(bitmap)
    assert dv.load(store, vector) == bitmap


def test_deltalake_reads_our_deletion_vectors_from_s3(s3_server: S3Server) -> None:
    location = s3_server.fresh_location()
    create(location, s3_server.storage_options)
    store = s3_server.open(location)
    vector = dv.write_file(store, FOLDER, [BitMap64([1]), BitMap64(range(10, 500))])[1]
    commit(store, vector)
    assert rows(location, s3_server.storage_options) == expected(BitMap64(range(10, 500)))
    assert dv.load(store, vector) == BitMap64(range(10, 500))


def test_our_reader_and_the_file_agree_with_deltalake(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    bitmap = BitMap64(range(3, ROWS, 7))
    path = commit(store, dv.write_file(store, FOLDER, [bitmap])[0])
    with store.open_input(path) as file:
        ids = pq.ParquetFile(file).read().column("id").to_pylist()
    assert [ids[n] for n in range(len(ids)) if n not in bitmap] == rows(str(tmp_path))


def test_deltalakes_delete_and_compact_respect_our_deletion_vectors(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    commit(store, dv.write_file(store, FOLDER, [BitMap64(range(500))])[0])
    table = DeltaTable(str(tmp_path))
    table.delete("id >= 900")
    assert rows(str(tmp_path)) == list(range(500, 900))
    DeltaTable(str(tmp_path)).optimize.compact()
    assert rows(str(tmp_path)) == list(range(500, 900))


def test_a_full_vacuum_keeps_our_deletion_vectors(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    vector = dv.write_file(store, FOLDER, [BitMap64(range(500))])[0]
    commit(store, vector)
    for parent, _, files in os.walk(tmp_path):
        for name in files:
            os.utime(os.path.join(parent, name), (1, 1))
    DeltaTable(str(tmp_path)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert dv.load(store, vector) == BitMap64(range(500))
    assert rows(str(tmp_path)) == list(range(500, ROWS))
