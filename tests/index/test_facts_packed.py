"""Packed facts are believed whole, for the table and the files that they were taken from, or not at
all. Whatever becomes of them, the row groups that are left hold every matching row (X-b, X-c)."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.facts_files import (
    SCHEMA,
    SCHEMA_JSON,
    USED,
    by_pyarrow,
    facts_of,
    rows_by_group,
    tables,
    truth,
)
from support.lake.memory_store import MemoryStore
from support.some import few
from support.values.kinds import tables as kind_tables
from tandem.errors import FactsRefused
from tandem.index.facts.cache import RowGroups
from tandem.index.facts.files import FOLDER, FORM, load, name_of, pack, unpack
from tandem.index.facts.footers import read_facts
from tandem.index.facts.row_groups import UNKNOWN, FileFacts, concat
from tandem.index.packed import PREFIX
from tandem.statements import parse_where
from tandem.statements.types import Schema

TABLE = "8a1d7f9e-table"
WHERE = parse_where("i32 > 40", Schema.from_json(SCHEMA_JSON))
ROWS = pa.table({"i32": pa.array(range(60), pa.int32()), "text": [f"t{n}" for n in range(60)]})
FILES = {
    "a.parquet": by_pyarrow(ROWS, 10),
    "b%20c.parquet": by_pyarrow(ROWS.slice(30), 7, bloom_filter_options={"i32": {"ndv": 10}}),
    "empty.parquet": by_pyarrow(ROWS.slice(0, 0), 10),
}


def store_of(files: dict[str, bytes] | None = None) -> MemoryStore:
    store = MemoryStore()
    for path, data in (FILES if files is None else files).items():
        store.put(path.replace("%20", " "), data)
    return store


def facts() -> FileFacts:
    store = store_of()
    return concat([read_facts(store, path, len(data)) for path, data in FILES.items()])


PACKED = pack(facts(), TABLE)


def equal(left: FileFacts, right: FileFacts) -> bool:
    """By their bytes, for which NaN equals NaN."""
    return pack(left, TABLE) == pack(right, TABLE) and list(left.columns) == list(right.columns)


def test_facts_are_read_back_as_they_were() -> None:
    found = unpack(PACKED, TABLE)
    assert equal(found, facts())
    assert found.paths.to_pylist() == list(FILES)
    assert found.groups.tolist() == [6, 5, 1]
    assert found.nbytes > 0
    for key, column in facts().columns.items():
        again = found.columns[key]
        assert again.low.equals(column.low)
        assert again.high.equals(column.high)
        assert again.filter_start.tolist() == column.filter_start.tolist()


@settings(max_examples=few(15, 600), deadline=None)
@given(st.lists(tables(), max_size=3), st.integers(1, 4))
def test_facts_of_any_files_are_read_back(files: list[pa.Table], group_rows: int) -> None:
    parts = [
        replace(facts_of(by_pyarrow(rows, group_rows)), paths=pa.array([f"{n}.parquet"]))
        for n, rows in enumerate(files)
    ]
    whole = concat(parts)
    assert equal(unpack(pack(whole, TABLE), TABLE), whole)


def test_every_type_is_read_back_at_its_extremes() -> None:
    parts = [
        replace(facts_of(by_pyarrow(rows, 2)), paths=pa.array([f"{n}.parquet"]))
        for n, rows in enumerate(kind_tables(USED))
    ]
    whole = concat(parts)
    found = unpack(pack(whole, TABLE), TABLE)
    assert equal(found, whole)
    some = found.take(np.array([3, 1]))
    assert equal(unpack(pack(some, TABLE), TABLE), concat([parts[3], parts[1]]))


def test_a_name_says_what_the_content_is() -> None:
    assert name_of(PACKED).startswith(f"{FOLDER}/")
    assert name_of(PACKED) == name_of(pack(facts(), TABLE))
    assert name_of(PACKED) != name_of(pack(facts(), "another"))


# What is not believed


def sealed(prefix: bytes, header: bytes, body: bytes) -> bytes:
    data = prefix + header + body
    return data + hashlib.sha256(data).digest()


def parts() -> tuple[dict[str, Any], list[bytes]]:
    """The header, and the sections as they are when they are not compressed."""
    _, _, _, header_size, _ = PREFIX.unpack_from(PACKED)
    header = json.loads(PACKED[PREFIX.size : PREFIX.size + header_size])
    body, raw = PACKED[PREFIX.size + header_size : -32], []
    for frame, size in header["sections"]:
        raw.append(pa.decompress(body[:frame], size, codec="zstd", asbytes=True))
        body = body[frame:]
    return header, raw


def made(
    change: Callable[[dict[str, Any]], object] = lambda _: None,
    body: Callable[[bytes], bytes] = lambda body: body,
    section: int = 0,
    *,
    magic: bytes = FORM.magic,
    version: int = FORM.version,
) -> bytes:
    """Facts with a right checksum, as another writer might make them."""
    header, raw = parts()
    raw[section] = body(raw[section])
    frames = [pa.compress(each, codec="zstd", asbytes=True) for each in raw]
    header["sections"] = [[len(f), len(r)] for f, r in zip(frames, raw, strict=True)]
    change(header)
    text, packed = json.dumps(header).encode(), b"".join(frames)
    return sealed(PREFIX.pack(magic, version, 0, len(text), len(packed)), text, packed)


def prefix(header: int) -> bytes:
    return PREFIX.pack(FORM.magic, FORM.version, 0, header, 0)


def with_number(name: str, number: int) -> bytes:
    """Facts of which the first number of an array is another one."""
    values = getattr(facts(), name)
    wrong = np.append(number, values[1:])

    def change(body: bytes) -> bytes:
        assert body.count(values.tobytes()) == 1
        return body.replace(values.tobytes(), wrong.tobytes())

    return made(body=change, section=int(name == "group_rows"))


def section_of(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as out:
        out.write_batch(batch)
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(stream)  # the schema
    return bytes(pa.ipc.read_message(stream).serialize())


def of_files(more: int = 0, codec: str | None = None) -> Callable[[bytes], bytes]:
    """The section of files, with so many arrays more."""
    found = facts()
    arrays = [found.paths, *map(pa.array, (found.sizes, found.rows, found.groups))]
    arrays += arrays[:more]
    return lambda _: section_of(pa.record_batch(arrays, [f"{n}" for n in range(4 + more)]), codec)


def test_the_ways_of_this_test_make_facts_that_are_believed() -> None:
    assert equal(unpack(made(), TABLE), facts())
    assert equal(unpack(made(body=of_files()), TABLE), facts())
    assert unpack(with_number("sizes", 7), TABLE).sizes[0] == 7


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "size"),
        (PACKED[:30], "size"),
        (PACKED[:-1], "size"),
        (PACKED + b"\0", "size"),
        (PACKED[: len(PACKED) // 2], "size"),
        (b"PAR1" + PACKED[4:], "magic"),
        (made(magic=b"TNDMFCTX"), "magic"),
        (made(version=FORM.version + 1), "version"),
        (PACKED[:-1] + bytes([PACKED[-1] ^ 1]), "checksum"),
        (made(lambda h: h.update(tableId="another")), "tableId"),
        (made(lambda h: h.update(tableId=None)), "tableId"),
        (made(lambda h: h.pop("tableId")), "content"),
        (made(lambda h: h.update(files=4)), "content"),
        (made(lambda h: h.update(files=-1)), "content"),
        (made(lambda h: h.update(files=True)), "content"),
        (made(lambda h: h.update(groups=11)), "content"),
        (made(lambda h: h.update(groups=1 << 70)), "content"),
        (made(lambda h: h.update(sections=[])), "content"),
        (made(lambda h: h.update(sections=None)), "content"),
        (made(lambda h: h["sections"].append([0, 0])), "content"),
        (made(lambda h: h["sections"].pop()), "content"),
        (made(lambda h: h["sections"].reverse()), "content"),
        (made(lambda h: h["sections"][0].__setitem__(0, 5)), "content"),
        (made(lambda h: h["sections"][0].__setitem__(1, 8)), "content"),
        (made(lambda h: h["sections"][0].__setitem__(1, -8)), "content"),
        (made(lambda h: h["sections"][0].append(8)), "content"),
        (made(lambda h: h["sections"][0].pop()), "content"),
        (made(lambda h: h.update(columns=h["columns"][:1])), "content"),
        (made(lambda h: h.update(columns=h["columns"][:1] * 2)), "content"),
        (made(lambda h: h["columns"][0].__setitem__(2, "INT96")), "content"),
        (made(lambda h: h["columns"][0].__setitem__(3, "text")), "content"),
        (made(lambda h: h["columns"][0].__setitem__(3, "number")), "content"),
        (made(lambda h: h["columns"][0].__setitem__(0, None)), "content"),
        (made(lambda h: h["columns"][0].__setitem__(1, "7")), "content"),
        (made(lambda h: h["columns"][0].pop()), "content"),
        (made(body=lambda body: body[:-8]), "content"),
        (made(body=lambda body: body + bytes(8)), "content"),
        (made(body=lambda _: b""), "content"),
        (made(body=of_files(more=1)), "content"),
        (made(body=of_files(codec="zstd")), "content"),
        (made(body=of_files(codec="lz4")), "content"),
        (with_number("sizes", -1), "content"),
        (with_number("rows", 59), "content"),
        (with_number("groups", 7), "content"),
        (with_number("groups", 1 << 62), "content"),
        (with_number("group_rows", -10), "content"),
        (sealed(prefix(2), b"{}", b""), "content"),
        (sealed(prefix(2), b"5.", b""), "header"),
        (sealed(prefix(2), b"\xff\xff", b""), "header"),
        (sealed(prefix(9_000), b"[" * 9_000, b""), "header"),
    ],
)
def test_facts_that_are_not_whole_or_not_of_this_table_are_refused(data: bytes, field: str) -> None:
    with pytest.raises(FactsRefused) as refused:
        unpack(data, TABLE, resource="_tandem/index/facts/x")
    assert refused.value.field == field
    assert refused.value.resource == "_tandem/index/facts/x"


def test_a_file_that_is_there_twice_is_refused() -> None:
    twice = concat([facts(), facts().take(np.array([0]))])
    with pytest.raises(FactsRefused, match="twice"):
        unpack(pack(twice, TABLE), TABLE)


@pytest.mark.parametrize("step", [few(7, 1)])
def test_no_flipped_byte_is_believed(step: int) -> None:
    for at in range(0, len(PACKED), step):
        data = PACKED[:at] + bytes([PACKED[at] ^ 0x41]) + PACKED[at + 1 :]
        with pytest.raises(FactsRefused):
            unpack(data, TABLE)


def test_no_beginning_of_facts_is_believed() -> None:
    for size in range(0, len(PACKED), few(11, 1)):
        with pytest.raises(FactsRefused):
            unpack(PACKED[:size], TABLE)


@settings(max_examples=few(30, 2_000), deadline=None)
@given(st.data())
def test_facts_with_other_bytes_and_a_right_checksum_are_refused_or_are_facts(
    data: st.DataObject,
) -> None:
    section = data.draw(st.integers(0, 1))
    raw = parts()[1][section]
    at = data.draw(st.integers(0, len(raw) - 8))
    changed = raw[:at] + data.draw(st.binary(min_size=8, max_size=8)) + raw[at + 8 :]
    try:
        found = unpack(made(body=lambda _: changed, section=section), TABLE)
    except FactsRefused as refused:
        assert refused.field == "content"  # noqa: PT017
        return
    RowGroups(found).narrow(WHERE, SCHEMA)


@pytest.mark.parametrize("claim", [1 << 20, 1 << 40])
def test_facts_that_unpack_to_more_than_the_limit_take_no_memory(claim: int) -> None:
    zeros = bytes(50 << 20)
    data = made(lambda h: h["sections"][0].__setitem__(1, claim), body=lambda _: zeros)
    assert len(data) < 100_000
    require_little_memory(data)


@pytest.mark.parametrize("size", [1 << 30, 1 << 40, 1 << 62])
def test_buffers_that_ask_for_memory_within_a_section_get_none(size: int) -> None:
    """As Arrow compresses them: each begins with the bytes that it unpacks to."""
    whole = of_files(codec="zstd")(b"")
    buffer = struct.pack("<q", len(facts().paths.buffers()[2]))
    assert buffer in whole
    require_little_memory(made(body=lambda _: whole.replace(buffer, struct.pack("<q", size), 1)))


def require_little_memory(data: bytes) -> None:
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.raises(FactsRefused):
            unpack(data, TABLE, limit=2 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        assert pa.total_allocated_bytes() - before < 8 << 20
    finally:
        tracemalloc.stop()


# What a reader does with them


def test_facts_that_are_not_believed_are_counted_and_no_error() -> None:
    store = MemoryStore()
    counted: Counter[str] = Counter()
    assert load(store, name_of(PACKED), TABLE, counted) is None
    assert counted == {}
    store.put("good", PACKED)
    assert load(store, "good", TABLE, counted) is not None
    assert counted == {}
    for name, data in {
        "torn": PACKED[:-5],
        "flipped": PACKED[:99] + b"?" + PACKED[100:],
        "newer": made(version=FORM.version + 1),
        "planted": made(lambda h: h.update(files=9)),
    }.items():
        store.put(name, data)
        assert load(store, name, TABLE, counted) is None, name
    assert load(store, "good", "another table", counted) is None
    assert load(store, "good", TABLE, counted, limit=len(PACKED) - 1) is None
    assert counted == {"size": 2, "checksum": 1, "version": 1, "content": 1, "tableId": 1}


@pytest.mark.parametrize(
    ("path", "size", "rows", "expected"),
    [
        ("a.parquet", len(FILES["a.parquet"]), 60, 0),
        ("a.parquet", len(FILES["a.parquet"]), UNKNOWN, 0),
        ("b%20c.parquet", len(FILES["b%20c.parquet"]), 30, 1),
        ("empty.parquet", len(FILES["empty.parquet"]), 0, 2),
        ("a.parquet", len(FILES["a.parquet"]) + 1, 60, UNKNOWN),
        ("a.parquet", len(FILES["a.parquet"]), 59, UNKNOWN),
        ("b c.parquet", len(FILES["b%20c.parquet"]), 30, UNKNOWN),
        ("other.parquet", len(FILES["a.parquet"]), 60, UNKNOWN),
        ("other.parquet", UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_Xc_facts_are_believed_for_a_file_of_their_path_size_and_rows(
    path: str, size: int, rows: int, expected: int
) -> None:
    found = facts().believed(pa.array([path]), np.array([size]), np.array([rows]))
    assert found.tolist() == [expected]


def test_without_facts_no_file_has_any() -> None:
    found = concat([]).believed(pa.array(["a"]), np.array([1]), np.array([1]))
    assert found.tolist() == [UNKNOWN]


def left(known: FileFacts | None, logged: dict[str, tuple[bytes, int]]) -> list[int]:
    """The numbers greater than 40 in the row groups that are left of some files, as a reader finds
    them that has these facts."""
    sizes = np.array([len(data) for data, _ in logged.values()])
    rows = np.array([number for _, number in logged.values()])
    found = np.full(len(logged), UNKNOWN)
    may: Any = []
    if known is not None:
        found = known.believed(pa.array(list(logged)), sizes, rows)
        may = RowGroups(known).narrow(WHERE, SCHEMA).may
    numbers = []
    with duckdb.connect() as engine:
        for at, (data, _) in zip(found.tolist(), logged.values(), strict=True):
            for place, group in enumerate(rows_by_group(data)):
                if known is not None and at != UNKNOWN and not may[known.first_group[at] + place]:
                    continue
                [values] = truth(engine, group, ["i32 > 40"])
                column = group["i32"].to_pylist()
                numbers += [n for n, yes in zip(column, values, strict=True) if yes]
    return sorted(numbers)


@pytest.mark.parametrize(
    "state", ["whole", "absent", "torn", "flipped", "newer", "of another table", "of other files"]
)
def test_Xb_the_rows_are_the_same_whatever_becomes_of_the_facts(state: str) -> None:
    logged = {"a.parquet": (FILES["a.parquet"], 60), "b%20c.parquet": (FILES["b%20c.parquet"], 30)}
    expected = [*range(41, 60)] * 2
    data = {
        "whole": PACKED, "absent": b"", "torn": PACKED[:-9],
        "newer": made(version=FORM.version + 1),
        "flipped": PACKED[:60] + bytes([PACKED[60] ^ 4]) + PACKED[61:],
        "of another table": pack(facts(), "another"), "of other files": PACKED,
    }[state]  # fmt: skip
    store = MemoryStore()
    if state != "absent":
        store.put("f", data)
    if state == "of other files":
        # Others of these names: the same rows in another order, so that facts of the first would
        # leave out rows; only their sizes differ.
        backwards = by_pyarrow(ROWS.take(list(range(59, -1, -1))), 11)
        logged = {"a.parquet": (backwards, 60), "b%20c.parquet": (backwards, 60)}
    counted: Counter[str] = Counter()
    known = load(store, "f", TABLE, counted)
    assert (known is not None) == (state in ("whole", "of other files"))
    assert left(known, logged) == sorted(expected)
