"""Facts are taken of a footer in two requests at most. One that is not as it must be is refused,
whatever its bytes are, without the memory or the time that they ask for."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.facts_files import SCHEMA_JSON, USED, by_pyarrow, facts_of
from support.lake.memory_store import MemoryStore
from support.some import few
from support.values.kinds import tables as kind_tables
from tandem.delta import schema as schema_
from tandem.delta.datafiles import thrift
from tandem.errors import FactsRefused, ObjectNotFound
from tandem.index.facts.cache import RowGroups
from tandem.index.facts.footers import MOST_CHUNKS, MOST_GROUPS, TEXT_BYTES, read_facts
from tandem.index.facts.row_groups import FileFacts
from tandem.statements import parse_where
from tandem.statements.types import Schema

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "text": [f"t{n:03}" for n in range(100)],
        "f": np.linspace(0, 1, 100),
        "st": [{"x": n} for n in range(100)],
    }
)
DATA = by_pyarrow(ROWS, 40, store_schema=False)


def stored(data: bytes, path: str = "f.parquet") -> tuple[MemoryStore, list[tuple[str, int, int]]]:
    """A store with a file, and the requests that will be made for it."""
    store = MemoryStore()
    store.put(path, data)
    requests: list[tuple[str, int, int]] = []
    get_range = store.get_range

    def noted(path: str, start: int, length: int) -> bytes:
        requests.append((path, start, length))
        return get_range(path, start, length)

    store.get_range = noted  # type: ignore[method-assign]
    return store, requests


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def with_footer(footer: bytes, pages: bytes = DATA[: -8 - len(footer_of(DATA))]) -> bytes:
    return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_a_footer_is_read_in_one_request() -> None:
    store, requests = stored(DATA, "a b.parquet")
    facts = read_facts(store, "a%20b.parquet", len(DATA), rows=100)
    assert requests == [("a b.parquet", 0, len(DATA))]
    assert facts.paths.to_pylist() == ["a%20b.parquet"]
    assert facts.sizes.tolist() == [len(DATA)]
    assert facts.group_rows.tolist() == [40, 40, 20]


@pytest.mark.parametrize("over", [-1, 0, 1, 20])
def test_a_longer_footer_is_read_in_two_requests_of_its_exact_bytes(over: int) -> None:
    store, requests = stored(DATA)
    whole = len(footer_of(DATA)) + 8
    facts = read_facts(store, "f.parquet", len(DATA), tail=whole - over)
    assert facts.rows.tolist() == [100]
    first = len(DATA) - (whole - over)
    assert requests[0] == ("f.parquet", first, whole - over)
    assert requests[1:] == ([] if over <= 0 else [("f.parquet", first - over, over)])


@pytest.mark.parametrize("options", [{}, {"version": "1.0"}, {"store_decimal_as_integer": True}])
def test_bounds_are_those_that_pyarrow_reads(options: dict[str, Any]) -> None:
    for table in kind_tables(USED):
        data = by_pyarrow(table, 2, **options)
        facts = facts_of(data)
        meta = pq.read_metadata(pa.BufferReader(data))
        places = {meta.schema.column(i).name: i for i in range(meta.num_columns)}
        for key, column in facts.columns.items():
            for group in range(meta.num_row_groups):
                found = meta.row_group(group).column(places[key.name]).statistics
                assert column.nulls[group] == found.null_count
                low, high = column.low[group].as_py(), column.high[group].as_py()
                if not found.has_min_max:
                    assert low is None or high is None  # it leaves long texts out
                elif key.type.kind == "text":
                    assert found.min_raw.startswith(low)
                    assert high is None or high >= found.max_raw
                    assert len(low) <= TEXT_BYTES
                elif key.type.kind not in ("decimal", "date", "timestamp", "timestamp_ntz"):
                    assert (low, high) == (found.min_raw, found.max_raw)
                elif key.type.kind == "decimal":
                    assert (low, high) == (float(found.min), float(found.max))


def test_only_the_wanted_columns_are_kept() -> None:
    assert {key.name for key in facts_of(DATA).columns} == {"id", "text", "f"}
    assert {key.name for key in facts_of(DATA, columns={"text", "st"}).columns} == {"text"}


# What is refused


@pytest.mark.parametrize(
    ("data", "size", "field"),
    [
        (b"", 0, "size"),
        (b"PAR1", 4, "size"),
        (b"no Parquet at all", 17, "magic"),
        (with_footer(b""), None, "footer length"),
        (DATA[:-8] + b"\0\0\0\0PAR1", None, "footer length"),
        (DATA[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1", None, "footer length"),
        (DATA[:-8] + (len(DATA) - 11).to_bytes(4, "little") + b"PAR1", None, "footer length"),
        (DATA[:-4] + b"PARE", None, "magic"),
        (DATA + b"x", len(DATA) + 1, "magic"),
        (DATA, len(DATA) + 1, "size"),
        (DATA, len(DATA) - 1, "magic"),
        (DATA[:-8] + b"\x01\0\0\0PAR1", None, "footer"),
        (with_footer(footer_of(DATA)[:-5]), None, "footer"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, size: int | None, field: str) -> None:
    store, requests = stored(data)
    with pytest.raises(FactsRefused) as refused:
        read_facts(store, "f.parquet", len(data) if size is None else size)
    assert refused.value.field == field
    assert refused.value.resource == "f.parquet"
    assert len(requests) <= 2
    assert all(start >= 0 and length <= 64 << 10 for _, start, length in requests)


def test_a_footer_over_the_limit_is_not_requested() -> None:
    store, requests = stored(DATA)
    with pytest.raises(FactsRefused) as refused:
        read_facts(store, "f.parquet", len(DATA), tail=100, limit=200)
    assert refused.value.field == "footer length"
    assert len(requests) == 1


def test_a_file_of_another_number_of_rows_is_refused() -> None:
    with pytest.raises(FactsRefused, match="num_rows") as refused:
        facts_of(DATA, rows=99)
    assert refused.value.found == "100"


def test_a_missing_file_is_an_error_of_the_store() -> None:
    with pytest.raises(ObjectNotFound):
        read_facts(MemoryStore(), "f.parquet", 100)


Change = Callable[[list[thrift.EncodedField]], list[thrift.EncodedField]]


def changed(path: list[int], change: Change, footer: bytes = footer_of(DATA)) -> bytes:
    """The footer with one struct changed: the fields that lead to it; of lists, the first entry."""

    def walk(data: bytes, path: list[int]) -> bytes:
        found, _ = thrift.fields(data, 0)
        if not path:
            return thrift.struct_bytes(change(found))

        def amended(field: thrift.EncodedField) -> thrift.EncodedField:
            if field.id != path[0]:
                return field
            return thrift.EncodedField(field.id, field.type, into(field, path[1:]))

        return thrift.struct_bytes([amended(field) for field in found])

    def into(field: thrift.EncodedField, rest: list[int]) -> bytes:
        if field.type == thrift.STRUCT:
            return walk(field.value, rest)
        count, of, at = thrift.list_head(field.value, 0)
        assert of == thrift.STRUCT
        assert count
        end = thrift.after(field.value, at, of)
        return field.value[:at] + walk(field.value[at:end], rest) + field.value[end:]

    return walk(footer, path)


def number(id_: int, value: int, type_: int = thrift.I64) -> thrift.EncodedField:
    return thrift.EncodedField(id_, type_, thrift.varint_bytes(value << 1 ^ value >> 70))


def put(field: thrift.EncodedField) -> Change:
    return lambda fields: sorted(
        [*(f for f in fields if f.id != field.id), field], key=lambda f: f.id
    )


def without(*ids: int) -> Change:
    return lambda fields: [f for f in fields if f.id not in ids]


CHUNK, META = [4, 1], [4, 1, 3]
STATISTICS = [*META, 12]
LIES = {
    "rows of the file": ([], put(number(3, 101))),
    "negative rows of a row group": ([4], put(number(3, -1))),
    "rows of a row group": ([4], put(number(3, 39))),
    "rows beyond 64 bits": ([4], put(number(3, 1 << 66))),
    "values of a column": (META, put(number(5, 41))),
    "NULLs": (STATISTICS, put(number(3, 41))),
    "negative NULLs": (STATISTICS, put(number(3, -2))),
    "pages before the file": (META, put(number(9, 1))),
    "pages beyond the footer": (META, put(number(7, 1 << 40))),
    "negative pages": (META, put(number(7, -5))),
    "the type of a column": (META, put(number(1, 1, thrift.I32))),
    "a column in another file": (
        CHUNK, put(thrift.EncodedField(1, thrift.BINARY, thrift.binary_bytes(b"other.parquet"))),
    ),
    "an encrypted column": (CHUNK, put(thrift.EncodedField(8, thrift.STRUCT, b"\x1c\0\0"))),
    "an encrypted file": ([], put(thrift.EncodedField(8, thrift.STRUCT, b"\x1c\0\0"))),
    "no metadata of a column": (CHUNK, without(3)),
    "no columns": ([4], without(1)),
    "no schema": ([], without(2)),
    "no row groups": ([], without(4)),
    "no rows": ([], without(3)),
    "more fields of the root": ([2], put(number(5, 9, thrift.I32))),
    "fewer fields of the root": ([2], put(number(5, 2, thrift.I32))),
    "negative fields of the root": ([2], put(number(5, -1, thrift.I32))),
    "statistics that are a number": (META, put(number(12, 1))),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_contradicts_itself_is_refused(lie: str) -> None:
    path, change = LIES[lie]
    with pytest.raises(FactsRefused) as refused:
        facts_of(with_footer(changed(path, change)))
    assert refused.value.field == "footer"


def of_id(facts: FileFacts) -> tuple[Any, Any, int]:
    """What the first row group says of the first column."""
    [column] = [column for key, column in facts.columns.items() if key.name == "id"]
    return column.low[0].as_py(), column.high[0].as_py(), int(column.nulls[0])


def value(id_: int, data: bytes) -> thrift.EncodedField:
    return thrift.EncodedField(id_, thrift.BINARY, thrift.binary_bytes(data))


LONG = struct.Struct("<q")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(), (0, 39, 0)),
        (without(5), (0, None, 0)),
        (without(6), (None, 39, 0)),
        (without(3), (0, 39, -1)),
        (put(value(6, b"\1\2")), (None, 39, 0)),
        (put(value(5, b"")), (0, None, 0)),
        (put(value(5, bytes(9))), (0, None, 0)),
        (put(value(6, LONG.pack(40))), (None, None, 0)),
        # The older fields, which have no order for texts.
        (lambda _: [number(3, 0), value(1, LONG.pack(3)), value(2, LONG.pack(2))], (None, None, 0)),
    ],
)
def test_a_bound_that_is_none_is_unknown(change: Change, expected: tuple[Any, Any, int]) -> None:
    def in_order(fields: list[thrift.EncodedField]) -> list[thrift.EncodedField]:
        return sorted(change(fields), key=lambda f: f.id)

    assert of_id(facts_of(with_footer(changed(STATISTICS, in_order)))) == expected


def test_an_unknown_number_of_nulls_makes_nothing_certain() -> None:
    def masks(data: bytes, text: str) -> tuple[list[bool], list[bool]]:
        schema_json = SCHEMA_JSON.replace('"i64"', '"id"')
        where = parse_where(text, Schema.from_json(schema_json))
        found = RowGroups(facts_of(data)).narrow(where, schema_.parse(schema_json))
        return found.may.tolist(), found.must.tolist()

    unknown = with_footer(changed(STATISTICS, without(3)))
    assert masks(DATA, "id < 1000") == ([True] * 3, [True] * 3)
    assert masks(unknown, "id < 1000") == ([True] * 3, [False, True, True])
    assert masks(DATA, "id IS NULL") == ([False] * 3, [False] * 3)
    assert masks(unknown, "id IS NULL") == ([True, False, False], [False] * 3)


def test_without_an_order_of_values_there_are_no_bounds() -> None:
    assert of_id(facts_of(with_footer(changed([], without(7))))) == (None, None, 0)
    newer = put(thrift.EncodedField(7, thrift.LIST, b"\x4c" + b"\x2c\0\0" * 4))
    assert of_id(facts_of(with_footer(changed([], newer)))) == (None, None, 0)


def test_a_filter_that_lies_outside_of_the_file_is_none() -> None:
    data = by_pyarrow(ROWS, 40, store_schema=False, bloom_filter_options={"id": {"ndv": 10}})
    footer = footer_of(data)
    pages = data[: -8 - len(footer)]

    def start(change: Change) -> int:
        facts = facts_of(with_footer(changed(META, change, footer), pages))
        [column] = [column for key, column in facts.columns.items() if key.name == "id"]
        return int(column.filter_start[0])

    assert start(without()) > 0
    assert start(put(number(14, len(pages) + 1))) == -1
    assert start(put(number(14, 3))) == -1
    assert start(put(number(15, len(pages)))) == -1
    assert start(without(15)) > 0  # its header says how long it is


# Hostile bytes


def head(count: int, type_: int = thrift.STRUCT) -> bytes:
    return bytes([0xF0 | type_]) + thrift.varint_bytes(count)


def listed(items: bytes, count: int) -> bytes:
    return head(count) + items


ELEMENT = thrift.struct_bytes([number(1, 1, thrift.I32), number(3, 1, thrift.I32), value(4, b"x")])
GROUP = thrift.struct_bytes([number(3, 1, thrift.I32), value(4, b"g"), number(5, 1, thrift.I32)])
ROOT = thrift.struct_bytes([value(4, b"r"), number(5, 1, thrift.I32)])


def file_of(
    schema: bytes, elements: int, groups: bytes, count: int, *more: thrift.EncodedField
) -> bytes:
    return thrift.struct_bytes([
        thrift.EncodedField(2, thrift.LIST, listed(schema, elements)), number(3, 0),
        thrift.EncodedField(4, thrift.LIST, listed(groups, count)), *more,
    ])  # fmt: skip


EMPTY_GROUP = thrift.struct_bytes([thrift.EncodedField(1, thrift.LIST, head(0)), number(3, 0)])
EMPTY_COLUMNS = thrift.struct_bytes(
    [thrift.EncodedField(1, thrift.LIST, listed(bytes(10**6), 10**6)), number(3, 0)]
)
BOMBS = {
    "a deep schema": file_of(ROOT + GROUP * 90_000 + ELEMENT, 90_002, b"", 0),
    "a wide schema": file_of(ROOT + ELEMENT * 200_000, 200_001, b"", 0),
    "many row groups": file_of(ROOT + ELEMENT, 2, EMPTY_GROUP * 2 * MOST_GROUPS, 2 * MOST_GROUPS),
    "many columns": file_of(
        thrift.struct_bytes([value(4, b"r"), number(5, 50_000, thrift.I32)]) + ELEMENT * 50_000,
        50_001, EMPTY_GROUP * 1_000, 1_000,
    ),
    "a column a byte": file_of(ROOT + ELEMENT, 2, EMPTY_COLUMNS, 1),
    "many properties": file_of(
        ROOT + ELEMENT, 2, b"", 0, thrift.EncodedField(5, thrift.LIST, listed(bytes(10**6), 10**6))
    ),
    "a list that claims more than there is": file_of(ROOT, 1 << 62, b"", 1 << 62),
    "doubles without end": thrift.struct_bytes([
        thrift.EncodedField(90, thrift.LIST, head(1 << 60, thrift.DOUBLE) + bytes(100))
    ]),
    "bytes without end": thrift.struct_bytes([
        thrift.EncodedField(6, thrift.BINARY, thrift.varint_bytes(1 << 62))
    ]),
    "a number without end": b"\x16" + b"\xff" * 10**6,
    "a map without end": b"\xfb" + thrift.varint_bytes(1 << 60) + b"\x77",
    "structs in structs": b"\x1c" * 10**6,
    "lists in lists": b"\x19" * 10**6,
}  # fmt: skip


@pytest.mark.part(4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_footer_takes_neither_memory_nor_time(bomb: str) -> None:
    footer = BOMBS[bomb]
    data = with_footer(footer)
    store = MemoryStore()
    store.put("f.parquet", data)
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(FactsRefused):
            read_facts(store, "f.parquet", len(data))
        spent = time.process_time() - begun
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(data) + (64 << 20)
    assert spent < 20  # with tracemalloc, on a busy machine


def test_the_limits_are_those_of_real_files() -> None:
    assert MOST_CHUNKS >= 1_000 * 500
    assert MOST_GROUPS >= 10_000


def believed(footer: bytes) -> bool:
    """Whether a footer is believed; any error but FactsRefused is one of ours."""
    try:
        facts_of(with_footer(footer)).check()
    except FactsRefused:
        return False
    return True


def test_a_flipped_byte_is_refused_or_makes_other_facts_but_no_other_error() -> None:
    footer = footer_of(DATA)
    step = few(3, 1)
    results = [
        believed(footer[:at] + bytes([footer[at] ^ flip]) + footer[at + 1 :])
        for at in range(0, len(footer), step)
        for flip in (1, 0x80, 0xFF)
    ]
    assert True in results
    assert False in results


@settings(max_examples=few(50, 3_000), deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_are_facts(footer: bytes) -> None:
    believed(footer or b"\0")


@settings(max_examples=few(50, 3_000), deadline=None)
@given(st.data())
def test_a_footer_with_other_bytes_in_it_is_refused_or_makes_facts(data: st.DataObject) -> None:
    footer = footer_of(DATA)
    at = data.draw(st.integers(0, len(footer)))
    until = data.draw(st.integers(at, min(len(footer), at + 20)))
    believed(footer[:at] + data.draw(st.binary(max_size=20)) + footer[until:])
