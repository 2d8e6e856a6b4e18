"""Statistics: what we write bounds every value, and what others wrote is read right."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.delta.schema import Field, PrimitiveType, StructType, parse, to_arrow
from tandem.delta.stats import bounds, may_contain, num_records
from tandem.delta.stats_write import StatsCollector, indexed_columns, loosen, shorten_max

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


def _schema(*names: str, nested: bool = False) -> StructType:
    fields = tuple(Field(f"c{i}", PrimitiveType(n)) for i, n in enumerate(names))
    return StructType((Field("s", StructType(fields)),)) if nested else StructType(fields)


@st.composite
def _columns(draw: st.DrawFn) -> tuple[str, list[list[Any]]]:
    name = draw(st.sampled_from(sorted(VALUES)))
    values = st.none() | VALUES[name]
    return name, draw(st.lists(st.lists(values, max_size=4), min_size=1, max_size=3))


@settings(max_examples=300, deadline=None)
@given(_columns())
def test_written_bounds_hold_for_every_value(column: tuple[str, list[list[Any]]]) -> None:
    name, batches = column
    schema = _schema(name)
    collector = StatsCollector(indexed_columns(schema, {}))
    arrow = to_arrow(schema)
    for batch in batches:
        if name == "timestamp":
            batch = [v and v.replace(tzinfo=dt.UTC) for v in batch]
        collector.update(pa.table({"c0": pa.array(batch, arrow.field(0).type)}))
    values = [v for batch in batches for v in batch]
    text = collector.to_json()
    body = json.loads(text, parse_float=Decimal)
    assert body["numRecords"] == len(values)
    assert body["nullCount"]["c0"] == values.count(None)
    read = bounds(pa.chunked_array([[text]]), ("c0",), schema["c0"].type)
    low, high = read.low[0].as_py(), read.high[0].as_py()
    for value in values:
        if value is None:
            continue
        if name in ("double", "float"):
            assert high is None
            assert value != value or low is None or low <= value
            continue
        if name == "timestamp":
            value = value.replace(tzinfo=dt.UTC)
        assert low is None or low <= value
        assert high is None or value <= high
    if values and not any(v is None for v in values):
        keep = may_contain(read, pa.scalar(None, read.low.type), None)
        assert keep.to_pylist() == [True]


@given(st.text(min_size=1, max_size=90))
def test_shortened_maximum_is_not_less(text: str) -> None:
    short = shorten_max(text)
    assert short is None or (short >= text and len(short) <= 65)
    if len(text) <= 32:
        assert short == text


def test_nan_leaves_no_maximum() -> None:
    schema = _schema("double")
    collector = StatsCollector(indexed_columns(schema, {}))
    collector.update(pa.table({"c0": [1.0, float("nan"), 5.0]}))
    collector.update(pa.table({"c0": [9.0, float("inf")]}))
    body = json.loads(collector.to_json())
    assert body["minValues"] == {"c0": 1.0}
    assert body["maxValues"] == {}


def test_a_column_that_the_file_lacks_is_all_null() -> None:
    collector = StatsCollector(indexed_columns(_schema("long", "long", nested=True), {}))
    collector.update(pa.table({"s": [{"c0": 1}, None]}))
    body = json.loads(collector.to_json())
    assert body["nullCount"] == {"s": {"c0": 1, "c1": 2}}
    assert body["minValues"] == {"s": {"c0": 1}}


def test_booleans_and_binary_have_only_null_counts() -> None:
    schema = _schema("boolean", "binary")
    collector = StatsCollector(indexed_columns(schema, {}))
    collector.update(pa.table({"c0": [True, None], "c1": [b"a", b"b"]}))
    body = json.loads(collector.to_json())
    assert (body["minValues"], body["maxValues"]) == ({}, {})
    assert body["nullCount"] == {"c0": 1, "c1": 0}


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({}, 32),
        ({"delta.dataSkippingNumIndexedCols": "3"}, 3),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, 40),
        ({"delta.dataSkippingNumIndexedCols": "0"}, 0),
        ({"delta.dataSkippingStatsColumns": "c39, `c5`,C7"}, 3),
        ({"delta.dataSkippingStatsColumns": "c1", "delta.dataSkippingNumIndexedCols": "9"}, 1),
    ],
)
def test_which_columns(configuration: dict[str, str], expected: int) -> None:
    schema = _schema(*["long"] * 40)
    assert len(indexed_columns(schema, configuration)) == expected


def test_named_columns_may_be_structs_and_are_physical() -> None:
    schema = parse(
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {
                        "name": "s",
                        "type": {
                            "type": "struct",
                            "fields": [
                                {"name": "a.b", "type": "long", "nullable": True, "metadata": {}},
                                {"name": "c", "type": "long", "nullable": True, "metadata": {}},
                            ],
                        },
                        "nullable": True,
                        "metadata": {"delta.columnMapping.physicalName": "col-1"},
                    }
                ],
            }
        )
    )
    named = indexed_columns(schema, {"delta.dataSkippingStatsColumns": "s.`a.b`"})
    assert [c.path for c in named] == [("col-1", "a.b")]
    all_of_it = indexed_columns(schema, {"delta.dataSkippingStatsColumns": "s"})
    assert [c.path for c in all_of_it] == [("col-1", "a.b"), ("col-1", "c")]
    assert indexed_columns(schema, {}, ["s"]) == ()


def test_loosened_statistics_keep_every_digit() -> None:
    text = '{"numRecords":3,"minValues":{"d":12345678901234567890.123456789012345678}}'
    loose = loosen(text, 4)
    assert "12345678901234567890.123456789012345678" in loose
    body = json.loads(loose)
    assert (body["numRecords"], body["tightBounds"]) == (4, False)
    assert json.loads(loosen(None, 7)) == {"numRecords": 7, "tightBounds": False}
    assert json.loads(loosen("[", 7)) == {"numRecords": 7, "tightBounds": False}


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
def test_num_records(text: str | None, expected: int | None) -> None:
    alone = num_records(pa.chunked_array([[text]], pa.string()))
    assert alone.to_pylist() == [expected]
    among = num_records(pa.chunked_array([['{"numRecords":1}', text, None]], pa.string()))
    assert among.to_pylist() == [1, expected, None]


def test_bounds_of_other_writers() -> None:
    """Zones, missing zones, integers as floats, and nonsense, which counts as absent."""
    texts = [
        '{"minValues":{"c":"2021-06-17T12:00:00.123-07:00"},"maxValues":{"c":"2021-06-17T19:00:00Z"}}',
        '{"minValues":{"c":"2021-06-17 19:00:00"},"maxValues":{"c":"never"}}',
    ]
    read = bounds(pa.chunked_array([texts]), ("c",), PrimitiveType("timestamp"))
    low = [v.astimezone(dt.UTC).isoformat() for v in read.low.to_pylist()]
    assert low == ["2021-06-17T19:00:00.123000+00:00", "2021-06-17T19:00:00+00:00"]
    # A logged maximum may have been cut down to milliseconds.
    assert read.high[0].as_py().isoformat() == "2021-06-17T19:00:00.001000+00:00"
    assert not read.high[1].is_valid
    numbers = ['{"minValues":{"c":1.5},"maxValues":{"c":3}}', '{"minValues":{"c":"x"}}']
    assert bounds(pa.chunked_array([numbers]), ("c",), PrimitiveType("long")).high.to_pylist() == [
        3,
        None,
    ]


def test_files_without_statistics_are_always_kept() -> None:
    texts = ['{"numRecords":2,"nullCount":{"c":2}}', None, '{"minValues":{"c":5}}']
    read = bounds(pa.chunked_array([texts]), ("c",), PrimitiveType("long"))
    one = pa.scalar(1, pa.int64())
    assert may_contain(read, one, one).to_pylist() == [False, True, False]
    assert may_contain(read, one, None).to_pylist() == [False, True, True]
