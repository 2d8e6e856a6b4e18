"""Bloom filters exclude what their writer did not put in, and never a row. DuckDB's probe and ours
agree on filters of pyarrow, Spark, DuckDB and parquet-go; a filter that is not as specified is
none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.facts_files import (
    SCHEMA,
    SCHEMA_JSON,
    USED,
    Condition,
    by_duckdb,
    by_pyarrow,
    conditions,
    facts_of,
    rows_by_group,
    tables,
    truth,
)
from support.lake.memory_store import MemoryStore
from support.parquet import go_parquet
from support.some import few
from tandem.delta.datafiles import thrift
from tandem.errors import FactsRefused
from tandem.index.facts.bloom_filters import (
    BloomFilter,
    FilterPlace,
    Hashes,
    LoadFilters,
    encodings,
    read_filter,
)
from tandem.index.facts.cache import HeldFilters, Narrowed, RowGroups
from tandem.index.facts.row_groups import UNKNOWN, FileFacts, column_keys
from tandem.statements import parse_where
from tandem.statements.types import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = range(-40, 120, 7)
"""What the columns hold."""
ASKED = range(-45, 75)
TYPES = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(),
    "f64": pa.float64(), "text": pa.string(), "dec9": pa.decimal128(9, 2),
    "dec18": pa.decimal128(18, 4), "dec38": pa.decimal128(38, 10), "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"),
}  # fmt: skip


def column(name: str, numbers: Sequence[int]) -> pa.Array:
    """The numbers as values of a column."""
    type_ = TYPES[name]
    if pa.types.is_string(type_):
        return pa.array([f"text {n}" for n in numbers])
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(n) / 4 for n in numbers], type_)
    if pa.types.is_date(type_):
        return pa.array(numbers, pa.int32()).cast(type_)
    return pa.array(numbers, pa.int64()).cast(type_)


def rows(repeat: int = 100) -> pa.Table:
    numbers = [*NUMBERS] * repeat
    return pa.table({name: column(name, numbers) for name in TYPES})


def constants(name: str) -> tuple[list[Any], list[str]]:
    """Numbers to ask for in the form of a comparison, and as DuckDB's probe takes them."""
    if name == "text":
        return [f"text {n}".encode() for n in ASKED], [f"'text {n}'" for n in ASKED]
    values = column(name, ASKED)
    types = {"f32": "FLOAT", "f64": "DOUBLE", "day": "DATE", "moment": "TIMESTAMPTZ",
             "local": "TIMESTAMP", "dec9": "DECIMAL(9,2)", "dec18": "DECIMAL(18,4)",
             "dec38": "DECIMAL(38,10)"}  # fmt: skip
    texts = [str(each) for each in values.cast(pa.string())]
    return values.to_pylist(), [f"CAST('{t}' AS {types.get(name, 'BIGINT')})" for t in texts]


def stored(data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put("f.parquet", data)
    return store


def ours(data: bytes, name: str) -> list[list[bool]] | None:
    """For each row group, which of the constants its filter may have; None without filters."""
    facts, store = facts_of(data), stored(data)
    [key] = column_keys(facts, SCHEMA[name], by_id=False)
    found = facts.columns[key]
    if (found.filter_start == UNKNOWN).any():
        return None
    type_ = {c.name: c.type for c in Schema.from_json(SCHEMA_JSON).columns}[name]
    hashes = Hashes([encodings(value, key.type, type_) for value in constants(name)[0]])
    places = [
        FilterPlace("f.parquet", len(data), start, length)
        for start, length in zip(
            found.filter_start.tolist(), found.filter_bytes.tolist(), strict=True
        )
    ]
    return [read_filter(store, "f.parquet", p).may_have(hashes) for p in places]


def duckdbs(data: bytes, name: str, path: Path) -> list[list[bool]]:
    path.write_bytes(data)
    with duckdb.connect() as engine:
        found = [
            engine.sql(f"FROM parquet_bloom_probe('{path}', '{name}', {value})").fetchall()
            for value in constants(name)[1]
        ]
    groups = len(found[0])
    return [[not row[group][2] for row in found] for group in range(groups)]


def check_agreement(data: bytes, names: Sequence[str], path: Path) -> None:
    for name in names:
        found = ours(data, name)
        assert found is not None, name
        assert found == duckdbs(data, name, path), name
        present = {repr(v) for v in constants_of_rows(name)}
        asked = [repr(v) for v in constants(name)[0]]
        for group in found:
            lost = [v for v, may in zip(asked, group, strict=True) if v in present and not may]
            assert lost == [], name
            absent = [may for v, may in zip(asked, group, strict=True) if v not in present]
            assert sum(absent) < len(absent) // 5, name


def constants_of_rows(name: str) -> list[Any]:
    if name == "text":
        return [text.encode() for text in rows(1)[name].to_pylist()]
    found: list[Any] = rows(1)[name].to_pylist()
    return found


@pytest.mark.part(2)
@pytest.mark.parametrize("as_integer", [True, False], ids=["decimals as integers", "as bytes"])
def test_filters_of_pyarrow_say_the_same_to_duckdb(tmp_path: Path, as_integer: bool) -> None:
    options = {name: {"ndv": 100, "fpp": 0.01} for name in TYPES}
    data = by_pyarrow(
        rows(), 1_000, bloom_filter_options=options, store_decimal_as_integer=as_integer
    )
    # DuckDB looks for decimals in integers only.
    names = [n for n in TYPES if as_integer or not n.startswith("dec")]
    check_agreement(data, [n for n in names if n != "dec38"], tmp_path / "f.parquet")
    for name in ("dec9", "dec18", "dec38"):
        [first, *_] = ours(data, name) or []
        assert sum(first) < 100


def test_filters_of_duckdb_say_the_same_to_duckdb(tmp_path: Path) -> None:
    data = by_duckdb(rows(), tmp_path / "f.parquet")
    assert ours(data, "dec38") is None  # it writes none
    check_agreement(data, [name for name in TYPES if name != "dec38"], tmp_path / "f.parquet")


@pytest.mark.matrix
@pytest.mark.parametrize("encoding", ["plain", "dictionary", "delta"])
def test_filters_of_parquet_go_say_the_same_to_duckdb(
    tmp_path: Path, encoding: Literal["plain", "dictionary", "delta"]
) -> None:
    path = tmp_path / "f.parquet"
    go_parquet.write(path, rows(), encoding=encoding, group_rows=1_000, bloom=[*TYPES])
    data = path.read_bytes()
    check_agreement(data, [name for name in TYPES if name != "dec38"], path)
    [first, *_] = ours(data, "dec38") or []
    assert sum(first) < 100


@pytest.mark.matrix
def test_filters_of_spark_say_the_same_to_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "rows.parquet")
    writer = spark.read.parquet(str(tmp_path / "rows.parquet")).coalesce(1).write
    names = [name for name in TYPES if name not in ("moment", "dec38")]
    for name in names:
        writer = writer.option(f"parquet.bloom.filter.enabled#{name}", "true")
        writer = writer.option(f"parquet.bloom.filter.expected.ndv#{name}", "100")
    # It writes none for a chunk that has a dictionary alone.
    writer.option("parquet.enable.dictionary", "false").parquet(str(tmp_path / "t"))
    [file] = (tmp_path / "t").glob("*.parquet")
    check_agreement(file.read_bytes(), names, tmp_path / "f.parquet")


def reader_of(data: bytes) -> LoadFilters:
    """Reads filters, each of which must be there and believed."""
    return lambda places: [read_filter(stored(data), "f.parquet", place) for place in places]


def narrowed(data: bytes, text: str) -> tuple[list[int], list[int]]:
    """The row groups that are left, and the requests for filters."""
    facts = facts_of(data)
    where = parse_where(text, Schema.from_json(SCHEMA_JSON))
    asked: list[int] = []

    def noted(places: Sequence[FilterPlace]) -> Sequence[BloomFilter | None]:
        asked.append(len(places))
        return reader_of(data)(places)

    found = RowGroups(facts).narrow(where, SCHEMA, load=noted)
    return np.flatnonzero(found.may).tolist(), asked


SPREAD = pa.table(
    {
        "i64": [1, 100, 2, 99, 3, 98, None, 50],
        "text": ["a", "z", "b", "y", "c", "x", "a", "z"],
        "i32": pa.array(range(8), pa.int32()),
        "f64": [0.0, 9.0, -0.0, 9.0, 1.0, 9.0, -1.0, 9.0],
    }
)
"""Four row groups of two rows, whose bounds exclude little."""
FILTERED = by_pyarrow(
    SPREAD, 2, bloom_filter_options={n: {"ndv": 1_000} for n in ("i64", "text", "f64")}
)


@pytest.mark.parametrize(
    ("text", "left", "requests"),
    [
        ("i64 = 2", [1], [2]),
        ("2 = i64", [1], [2]),
        ("i64 <=> 98", [2], [3]),
        ("i64 IN (1, 98)", [0, 2], [3]),
        ("i64 IN (7, 8)", [], [3]),
        ("i64 = 2L OR text = 'x'", [1, 2], [2, 3]),
        ("i64 = 50 AND text = 'a'", [3], [2, 1]),
        ("i64 = 50 AND text = 'q'", [], [4, 1]),
        ("NOT (i64 != 2)", [1], [2]),
        ("(i64 = 2) IS TRUE", [1], [2]),
        # Filters that cannot exclude anything are not read.
        ("i64 != 2", [0, 1, 2, 3], []),
        ("i64 > 2", [0, 1, 2, 3], []),
        ("NOT (i64 = 2)", [0, 1, 2, 3], []),
        ("i64 = 2 OR i32 >= 0", [0, 1, 2, 3], []),
        ("i64 = 2 OR i32 = 6", [1, 3], [2]),
        ("i64 IS NULL OR i64 = 2", [1, 3], [2]),
        ("i32 = 6", [3], []),
        ("f64 = 0", [0, 1], [3]),
        ("f64 = -0.0D", [0, 1], [3]),
        ("f64 = 3", [], [4]),
        ("i64 = 2.5", [], [2]),
        ("i64 = 1e0", [0, 1, 2, 3], []),
        ("i64 + 0 = 2", [0, 1, 2, 3], []),
    ],
)
def test_filters_decide_where_they_can(text: str, left: list[int], requests: list[int]) -> None:
    found, asked = narrowed(FILTERED, text)
    assert found == left
    assert asked == requests


def test_a_filter_that_is_not_read_excludes_nothing() -> None:
    facts = facts_of(FILTERED)
    where = parse_where("i64 = 7", Schema.from_json(SCHEMA_JSON))
    groups = RowGroups(facts)
    found = groups.narrow(where, SCHEMA)
    none = groups.narrow(where, SCHEMA, load=lambda places: [None] * len(places))
    assert none.may.tolist() == found.may.tolist() == [True, True, True, False]
    missing = groups.narrow(where, SCHEMA, load=HeldFilters(MemoryStore()).of)
    assert missing.may.tolist() == found.may.tolist()


def contradicted(data: bytes, condition: Condition, found: Narrowed) -> list[int]:
    with duckdb.connect() as engine:
        return [
            number
            for number, group in enumerate(rows_by_group(data))
            if True in truth(engine, group, [condition.sql])[0] and not found.may[number]
        ]


@settings(max_examples=few(20, 800), deadline=None)
@given(tables(), st.integers(1, 5), conditions(), st.booleans(), st.booleans())
def test_filters_exclude_no_row(
    data_rows: pa.Table, group_rows: int, condition: Condition, as_integer: bool, no_bounds: bool
) -> None:
    names = [kind.name for kind in USED if kind.name not in ("flag", "a.b")]
    data = by_pyarrow(
        data_rows, group_rows, bloom_filter_options={name: {"ndv": 10} for name in names},
        store_decimal_as_integer=as_integer, write_statistics=not no_bounds,
    )  # fmt: skip
    facts, groups = facts_of(data), RowGroups(facts_of(data))
    found = groups.narrow(condition.where, SCHEMA)
    after = groups.narrow(condition.where, SCHEMA, load=reader_of(data))
    assert contradicted(data, condition, after) == []
    assert not (after.may & ~found.may).any()
    assert (after.must == found.must).all()
    assert len(after.may) == len(facts.group_rows)


# Filters that are none


def header(size: int, *kinds: int) -> bytes:
    fields = [
        thrift.EncodedField(
            1, thrift.I32, thrift.varint_bytes(-2 * size - 1 if size < 0 else 2 * size)
        )
    ]
    for id_, kind in zip((2, 3, 4), kinds, strict=False):
        body = thrift.struct_bytes([thrift.EncodedField(kind, thrift.STRUCT, b"\0")])
        fields.append(thrift.EncodedField(id_, thrift.STRUCT, body))
    return thrift.struct_bytes(fields)


def filter_of(data: bytes, length: int | None = None, size: int | None = None) -> BloomFilter:
    store = MemoryStore()
    store.put("f", b"PAR1" + data)
    place = FilterPlace(
        "f", len(data) + 4 if size is None else size, 4, len(data) if length is None else length
    )
    return read_filter(store, "f", place)


GOOD = header(64, 1, 1, 1) + bytes(range(64))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (header(60, 1, 1, 1) + bytes(60), "numBytes"),
        (header(0, 1, 1, 1), "numBytes"),
        (header(-32, 1, 1, 1), "numBytes"),
        (header(1 << 40, 1, 1, 1), "numBytes"),
        (header(64, 2, 1, 1) + bytes(64), "header"),
        (header(64, 1, 2, 1) + bytes(64), "header"),
        (header(64, 1, 1, 2) + bytes(64), "header"),
        (header(64, 1, 1) + bytes(64), "header"),
        (GOOD[:-1], "length"),
        (GOOD + b"\0", "length"),
        (b"\0" * 80, "header"),
        (b"\xff" * 80, "header"),
        (b"\x1c" * 80, "header"),
        (b"\x15", "header"),
    ],
)
def test_a_filter_that_is_not_as_specified_is_refused(data: bytes, field: str) -> None:
    with pytest.raises(FactsRefused) as refused:
        filter_of(data)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (FilterPlace("f", 200, -5, 80), "start"),
        (FilterPlace("f", 200, 200, 80), "start"),
        (FilterPlace("f", 200, 4, 0), "length"),
        (FilterPlace("f", 200, 4, -7), "length"),
        (FilterPlace("f", 1 << 40, 4, 1 << 39), "length"),
    ],
)
def test_a_place_outside_of_the_file_is_not_read(place: FilterPlace, field: str) -> None:
    with pytest.raises(FactsRefused) as refused:
        read_filter(MemoryStore(), "f", place)
    assert refused.value.field == field


@pytest.mark.parametrize("more", [0, 1_000])
def test_a_filter_of_unknown_length_is_read_by_its_header(more: int) -> None:
    size = 64 + 32 * more
    data = header(size, 1, 1, 1) + bytes(range(64)) * (size // 64 + 1)
    store = MemoryStore()
    store.put("f", data)
    requests: list[str] = []
    store.fault = lambda call: requests.append(call.name) if call.when == "before" else None
    found = read_filter(store, "f", FilterPlace("f", len(data), 0, UNKNOWN))
    assert found.nbytes == size
    assert len(requests) == (2 if more else 1)
    cut = FilterPlace("f", len(header(size, 1, 1, 1)) + 40, 0, UNKNOWN)
    with pytest.raises(FactsRefused):
        read_filter(store, "f", cut)


def test_few_and_many_values_are_found_alike() -> None:
    chance = np.random.default_rng(5)
    data = chance.integers(0, 256, 32 * 100, np.uint8).tobytes()
    found = BloomFilter(data)
    values = [((n).to_bytes(4, "little"),) for n in range(500)]
    many = found.may_have(Hashes(values))
    assert many == [found.may_have(Hashes([value]))[0] for value in values]
    assert 0 < sum(many) < 500
    assert found.may_have(Hashes([None, (), values[0]])) == [True, False, many[0]]


@settings(max_examples=few(50, 2_000), deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_refused_or_are_a_filter(data: bytes) -> None:
    with suppress(FactsRefused):
        assert filter_of(data or b"\0").nbytes % 32 == 0


def of_facts(facts: FileFacts, name: str) -> list[int]:
    [key] = column_keys(facts, SCHEMA[name], by_id=False)
    starts: list[int] = facts.columns[key].filter_start.tolist()
    return starts


def test_filters_of_dates_that_spark_rebases_are_not_asked() -> None:
    days = pa.array([-200_000, 0], pa.int32()).cast(pa.date32())
    table = pa.table({"day": days}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    data = by_pyarrow(table, 1, bloom_filter_options={"day": True})
    old, new = of_facts(facts_of(data), "day")
    assert old == UNKNOWN
    assert new != UNKNOWN
