"""Statistics: of the log, and of Parquet footers."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lake.arrow_schema import to_arrow
from support.lake.memory_store import MemoryStore
from support.some import few
from tandem.delta import schema as delta_schema
from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.stats import FloatBounds, from_footer
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.delta.log import files
from tandem.delta.schema import Field, PrimitiveType, StructType, parse
from tandem.delta.stats import mark_bounds_wide, num_records
from tandem.errors import UnsupportedFeature
from tandem.pruning.bounds import ColumnBounds
from tandem.pruning.predicate import bounds_of
from tandem.statements.types import Schema
from tandem.storage import Store, open_store

# Statistics: what we write bounds every value, and what others wrote is read right.


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "byte": st.integers(-128, 127),
    "double": st.floats(),
    "float": st.floats(width=32),
    "string": st.text(max_size=70) | st.text("z\x7f\U0010ffffé", min_size=25, max_size=80),
    "date": st.dates(),
    "timestamp": st.datetimes(
        min_value=dt.datetime.fromisoformat("0001-01-02"),
        max_value=dt.datetime.fromisoformat("9999-12-30"),
    ),
    "timestamp_ntz": st.datetimes(),
    "decimal(38,6)": st.decimals(-(10**31), 10**31, places=6),
}


def _schema(*names: str) -> StructType:
    return StructType(tuple(Field(f"c{i}", PrimitiveType(n)) for i, n in enumerate(names)))


@st.composite
def _columns(draw: st.DrawFn) -> tuple[str, list[list[Any]]]:
    name = draw(st.sampled_from(sorted(VALUES)))
    values = st.none() | VALUES[name]
    return name, draw(st.lists(st.lists(values, max_size=4), min_size=1, max_size=3))


@settings(max_examples=few(38, 300), deadline=None)
@given(_columns())
def test_written_bounds_hold_for_every_value(column: tuple[str, list[list[Any]]]) -> None:
    name, batches = column
    schema = _schema(name)
    arrow = to_arrow(schema)
    sink = pa.BufferOutputStream()
    floats = FloatBounds()
    with pq.ParquetWriter(sink, arrow) as writer:
        for batch in batches:
            if name == "timestamp":
                batch = [v and v.replace(tzinfo=dt.UTC) for v in batch]
            table = pa.table({"c0": pa.array(batch, arrow.field(0).type)})
            writer.write_table(table)
            floats.add(table)
    footer = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    values = [v for batch in batches for v in batch]
    text = from_footer(footer, schema, {}, floats)
    body = json.loads(text, parse_float=Decimal)
    assert body["numRecords"] == len(values)
    # What a row group without rows says nothing of is left out, which is always allowed.
    assert body["nullCount"].get("c0", values.count(None)) == values.count(None)
    found = _bounds(text, name)
    for value in values:
        if value is None or value != value:  # NaN is above every bound
            continue
        if name == "timestamp":
            value = value.replace(tzinfo=dt.UTC)
        assert found.place(value.encode() if name == "string" else value).touches().all()
    if values and not any(v is None for v in values):
        assert found.some_value.all()


def _bounds(text: str, type_: str) -> ColumnBounds:
    field = {"name": "c0", "type": type_, "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    wanted = {c.name: c.type for c in Schema.from_json(schema).columns}
    add = AddFile("a", {}, 1, 0, True, text)
    return bounds_of(files.from_adds([add]), parse(schema), (), wanted).columns["c0"]


def test_loosened_statistics_keep_every_digit() -> None:
    text = '{"numRecords":3,"minValues":{"d":12345678901234567890.123456789012345678}}'
    loose = mark_bounds_wide(text, 4)
    assert "12345678901234567890.123456789012345678" in loose
    body = json.loads(loose)
    assert (body["numRecords"], body["tightBounds"]) == (4, False)
    assert json.loads(mark_bounds_wide(None, 7)) == {"numRecords": 7, "tightBounds": False}
    assert json.loads(mark_bounds_wide("[", 7)) == {"numRecords": 7, "tightBounds": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"numRecords":5}', 5),
        ('{"minValues":{"numRecords":1},"numRecords":6}', 6),
        ('{"minValues":{"s":"\\"numRecords\\":1"},\n "numRecords" : 7}', 7),
        ("{}", None),
        (None, None),
        ("not json", None),
        ('{"numRecords":"many"}', None),
    ],
)
def test_a_number_of_rows_is_read_only_if_it_is_one(text: str | None, expected: int | None) -> None:
    alone = num_records(pa.chunked_array([[text]], pa.string()))
    assert alone.to_pylist() == [expected]
    among = num_records(pa.chunked_array([['{"numRecords":1}', text, None]], pa.string()))
    assert among.to_pylist() == [1, expected, None]


# Statistics, codecs and physical types of files that we write, judged by other readers. A bound
# may be wide, never narrow: an engine that skips files by it would lose rows. So deltalake is
# asked for every value that was written, and must find it among files that it could skip.


UTC = dt.UTC


def format_of(configuration: Mapping[str, str] | None = None, **types: Any) -> TableFormat:
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    text = json.dumps({"type": "struct", "fields": fields})
    return TableFormat(delta_schema.parse(text), (), dict(configuration or {}))


def write(store: Store, table: TableFormat, *columns: list[Any]) -> WrittenFile:
    schema = to_arrow(table.schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    with ParquetDataWriter(store, "d", table) as writer:
        writer.write(pa.RecordBatch.from_arrays(arrays, names=schema.names))
    [file] = writer.files
    return file


def stats_of(type_: Any, values: list[Any]) -> Any:
    return json.loads(write(MemoryStore(), format_of(x=type_), values).stats)


def commit(root: Path, table: TableFormat, files: list[WrittenFile]) -> None:
    """A table of these files, as plain text."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    actions: list[Any] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "t",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": delta_schema.to_delta_json(table.schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    actions += [
        {
            "add": {
                "path": file.path,
                "size": file.size,
                "partitionValues": {},
                "modificationTime": file.modified_ms,
                "dataChange": True,
                "stats": file.stats,
            }
        }
        for file in files
    ]
    text = "".join(json.dumps(a) + "\n" for a in actions)
    (log / f"{0:020}.json").write_text(text)


LONG = "a" * 40
VALUES_STATS: dict[str, tuple[Any, list[list[Any]], list[str]]] = {
    # type, the files' values, how SQL spells the values of the first file
    "long": ("long", [[5, None, -3], [7]], ["5", "-3"]),
    "strings": (
        "string",
        [[LONG, "", "\U0010ffff" * 40, "é'" * 30], ["zz"]],
        [f"'{LONG}'", "''", f"'{chr(0x10FFFF) * 40}'", "'" + "é''" * 30 + "'"],
    ),
    "zeros": ("double", [[-0.0], [1.0]], ["0.0", "-0.0"]),
    "tiny": ("double", [[5e-324, 1.7976931348623157e308], [1.0]], ["5e-324"]),
    "decimal": (
        "decimal(38,10)",
        [[Decimal("1234567890123456789012345678.0123456789")], [Decimal(1)]],
        ["CAST('1234567890123456789012345678.0123456789' AS DECIMAL(38,10))"],
    ),
    "date": ("date", [[dt.date(1, 1, 1), dt.date(9999, 12, 31)], [None]], ["DATE '0001-01-01'"]),
    "instants": (
        "timestamp",
        [[dt.datetime(2020, 1, 1, 0, 0, 0, 999, UTC), dt.datetime(1960, 1, 1, 0, 0, 0, 1, UTC)]],
        ["TIMESTAMP '2020-01-01T00:00:00.000999Z'", "TIMESTAMP '1960-01-01T00:00:00.000001Z'"],
    ),
}


@pytest.mark.parametrize("name", VALUES_STATS)
def test_no_value_is_lost_to_skipping(tmp_path: Path, name: str) -> None:
    type_, files, asked = VALUES_STATS[name]
    store = open_store(str(tmp_path))
    table = format_of(x=type_)
    commit(tmp_path, table, [write(store, table, values) for values in files])
    query = QueryBuilder().register("t", DeltaTable(str(tmp_path)))
    for text in asked:
        found = pa.table(query.execute(f"SELECT x FROM t WHERE x = {text}"))
        assert found.num_rows == 1, text


def test_nan_leaves_a_column_without_bounds() -> None:
    # Spark sorts NaN above all numbers; JSON has no word for it.
    assert stats_of("double", [1.0, math.nan]) == {
        "numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"x": 0},
    }  # fmt: skip
    nested = {"type": "struct", "fields": [
        {"name": "f", "type": "float", "nullable": True, "metadata": {}},
        {"name": "i", "type": "integer", "nullable": True, "metadata": {}},
    ]}  # fmt: skip
    found = stats_of(nested, [{"f": math.nan, "i": 1}, {"f": 1.0, "i": 2}, None])
    assert found["minValues"] == {"x": {"i": 1}}
    assert found["nullCount"] == {"x": {"f": 1, "i": 1}}


def test_infinite_bounds_are_no_invalid_json() -> None:
    text = write(MemoryStore(), format_of(x="double"), [math.inf, 1.0]).stats
    assert "Infinity" not in text.replace('"Infinity"', "")
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_only_nulls_have_a_count_and_no_bounds() -> None:
    assert stats_of("long", [None, None]) == {
        "numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"x": 2},
    }  # fmt: skip


def test_instants_beyond_the_calendar_of_python_are_written() -> None:
    store, table = MemoryStore(), format_of(x="timestamp", d="date")
    far = pa.array([253402300800000000 + 10**15], pa.int64()).cast(pa.timestamp("us", "UTC"))
    day = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    with ParquetDataWriter(store, "d", table) as writer:
        writer.write(pa.RecordBatch.from_arrays([far, day], names=["x", "d"]))
    [file] = writer.files
    assert json.loads(file.stats)["numRecords"] == 1
    with DataFileReader(store, file.path, table) as reader:
        [batch] = reader.batches()
    assert batch.column("x").equals(far)
    assert batch.column("d").equals(day)


@pytest.mark.parametrize(("type_", "zone"), [("timestamp", "Z"), ("timestamp_ntz", "")])
def test_the_greatest_time_of_a_day_is_not_rounded_to_the_next_one(type_: str, zone: str) -> None:
    """Else its file would seem to span two days: an aligned one, and one that was just cut."""
    last = dt.datetime(2013, 3, 2, 23, 59, 59, 999_001, UTC if zone else None)
    stats = stats_of(type_, [last])
    assert stats["minValues"] == {"x": f"2013-03-02T23:59:59.999{zone}"}
    assert stats["maxValues"] == {"x": f"2013-03-02T23:59:59.999001{zone}"}
    at_end = dt.datetime.max.replace(tzinfo=last.tzinfo)
    assert stats_of(type_, [at_end])["maxValues"] == {"x": f"9999-12-31T23:59:59.999999{zone}"}


def test_properties_choose_the_columns() -> None:
    def columns(configuration: dict[str, str]) -> set[str]:
        table = format_of(configuration, a="long", b="long", c="long")
        return set(json.loads(write(MemoryStore(), table, [1], [2], [3]).stats)["minValues"])

    assert columns({}) == {"a", "b", "c"}
    assert columns({"delta.dataSkippingNumIndexedCols": "2"}) == {"a", "b"}
    assert columns({"delta.dataSkippingNumIndexedCols": "0"}) == set()
    assert columns({"delta.dataSkippingNumIndexedCols": "-1"}) == {"a", "b", "c"}
    assert columns({"delta.dataSkippingStatsColumns": "c,`a`"}) == {"a", "c"}


@given(st.lists(st.none() | st.text(max_size=45), min_size=1, max_size=8))
def test_bounds_of_texts_hold_all_of_them(values: list[str | None]) -> None:
    found = stats_of("string", values)
    present = [v for v in values if v is not None]
    assert found["nullCount"]["x"] == len(values) - len(present)
    if "x" in found["minValues"]:
        assert all(found["minValues"]["x"] <= v <= found["maxValues"]["x"] for v in present)
        assert max(map(len, (found["minValues"]["x"], found["maxValues"]["x"]))) <= 33


@given(st.lists(st.floats(width=64), min_size=1, max_size=8))
def test_bounds_of_doubles_hold_all_of_them(values: list[float]) -> None:
    found = stats_of("double", values)
    if any(math.isnan(v) for v in values):
        assert found["minValues"] == {}
    elif found["minValues"]:
        low, high = (float(found[b]["x"]) for b in ("minValues", "maxValues"))
        assert all(low <= v <= high for v in values)


@pytest.mark.parametrize(
    ("asked", "found"),
    [({}, "ZSTD"), ("snappy", "SNAPPY"), ("GZIP", "GZIP"), ("uncompressed", "UNCOMPRESSED")],
)
def test_the_codec_is_the_one_that_the_table_asks_for(asked: Any, found: str) -> None:
    configuration = {"delta.parquet.compression.codec": asked} if asked else {}
    store, table = MemoryStore(), format_of(configuration, x="long")
    file = write(store, table, list(range(1000)))
    footer = pq.ParquetFile(pa.BufferReader(store.get(file.path))).metadata
    assert footer.row_group(0).column(0).compression == found


def test_an_unknown_codec_is_refused_by_name() -> None:
    table = format_of({"delta.parquet.compression.codec": "lzo"}, x="long")
    with pytest.raises(UnsupportedFeature, match="lzo"):
        write(MemoryStore(), table, [1])


def test_int96_becomes_microseconds_exactly() -> None:
    store, table = MemoryStore(), format_of(x="timestamp")
    times = [
        dt.datetime(1677, 9, 22, tzinfo=UTC),
        dt.datetime(2020, 2, 29, 23, 59, 59, 123, UTC),
        None,
        dt.datetime(2500, 1, 1, tzinfo=UTC),  # beyond what fits nanoseconds
    ]
    sink = pa.BufferOutputStream()
    column = pa.array(times, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"x": column}), sink, use_deprecated_int96_timestamps=True)
    store.put("old.parquet", sink.getvalue().to_pybytes())
    with DataFileReader(store, "old.parquet", table) as reader:
        batches = list(reader.batches())
    assert pa.Table.from_batches(batches)["x"].to_pylist() == times
    with ParquetDataWriter(store, "d", table) as writer:
        for batch in batches:
            writer.write(batch)
    [file] = writer.files
    footer = pq.ParquetFile(pa.BufferReader(store.get(file.path)))
    assert footer.metadata.schema.column(0).physical_type == "INT64"
    assert footer.read()["x"].to_pylist() == times
