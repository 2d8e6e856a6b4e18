"""Statistics: what we write bounds every value, and what others wrote is read right."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lake.arrow_schema import to_arrow
from support.some import few
from tandem.delta.actions import AddFile
from tandem.delta.datafiles.stats import FloatBounds, from_footer
from tandem.delta.log import files
from tandem.delta.schema import Field, PrimitiveType, StructType, parse
from tandem.delta.stats import mark_bounds_wide, num_records
from tandem.pruning.bounds import ColumnBounds
from tandem.pruning.files import bounds_of
from tandem.statements.types import Schema

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
def test_num_records(text: str | None, expected: int | None) -> None:
    alone = num_records(pa.chunked_array([[text]], pa.string()))
    assert alone.to_pylist() == [expected]
    among = num_records(pa.chunked_array([['{"numRecords":1}', text, None]], pa.string()))
    assert among.to_pylist() == [1, expected, None]
