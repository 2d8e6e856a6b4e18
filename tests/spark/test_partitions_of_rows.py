"""The partitions of rows that are written, against a slow model: the text of each row by itself,
and rows grouped by their texts in the order in which these occur first."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from support.lake.memory_store import MemoryStore
from tandem.delta.partitions import partition_texts
from tandem.jobs.formats import JobTable
from tandem.spark.runtime.row_files import INPUT, POSITION, LoggedPartitionValue, RowFiles, RowsWork

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integer": (pa.int32(), st.integers(-2, 2)),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1.5])),
    "float": (pa.float32(), st.sampled_from([0.0, -0.0, float("nan"), 0.1])),
    "string": (pa.string(), st.sampled_from(["", "a", "A", "ä"])),
    "binary": (pa.binary(), st.sampled_from([b"", b"a", b"\xc3\xa4"])),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 3))),
    "decimal(5,2)": (pa.decimal128(5, 2), st.sampled_from([Decimal("1.00"), Decimal("-0.01")])),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.sampled_from([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    ),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.RecordBatch, RowsWork]:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2))
    count = draw(st.integers(1, 12))
    rows = st.lists(st.none(), min_size=count, max_size=count)
    names = [f"p{number}" for number in range(len(types))]
    arrays = []
    for type_ in types:
        arrow, values = VALUES[type_]
        drawn = [draw(st.none() | values) for _ in draw(rows)]
        array = pa.array(drawn, arrow)
        encoded = type_ == "string" and draw(st.booleans())
        arrays.append(array.dictionary_encode() if encoded else array)
    inputs = [draw(st.integers(0, 2)) for _ in range(count)]
    hidden = [pa.array(inputs, pa.int32()), pa.array(range(count), pa.int64())]
    batch = pa.RecordBatch.from_arrays([*arrays, *hidden], names=[*names, INPUT, POSITION])
    fields = [
        {"name": n, "type": t, "nullable": True, "metadata": {}}
        for n, t in zip([*names, "id"], [*types, "long"], strict=True)
    ]
    texts = partition_texts(arrays[0])
    spelt = [LoggedPartitionValue(input=1, column="p0", ours=texts[0], logged="as logged")]
    work = RowsWork(
        table=JobTable(
            location="memory:",
            version=0,
            table_id="t",
            schema_string=json.dumps({"type": "struct", "fields": fields}),
            partition_columns=tuple(names),
            configuration={},
        ),
        logged_values=tuple(spelt) if draw(st.booleans()) else (),
    )
    return batch, work


def model(batch: pa.RecordBatch, work: RowsWork) -> list[tuple[tuple[str | None, ...], list[int]]]:
    found: dict[tuple[str | None, ...], list[int]] = {}
    inputs = batch.column(INPUT).to_pylist()
    for row in range(batch.num_rows):
        key = []
        for name in work.table.partition_columns:
            [text] = partition_texts(batch.column(name).slice(row, 1))
            value = batch.column(name)[row]
            is_new = value.as_py() is None and type_of(work, name) in ("string", "binary")
            for each in work.logged_values:
                if (each.column, each.input, each.ours) == (name, inputs[row], text) and not is_new:
                    text = each.logged
            key.append(text)
        found.setdefault(tuple(key), []).append(row)
    return list(found.items())


def type_of(work: RowsWork, name: str) -> str:
    fields = json.loads(work.table.schema_string)["fields"]
    [found] = [field["type"] for field in fields if field["name"] == name]
    return str(found)


@given(cases())
def test_rows_go_to_the_partition_of_their_texts(case: tuple[pa.RecordBatch, RowsWork]) -> None:
    batch, work = case
    files = RowFiles(MemoryStore(), work, tuple(batch.schema.names))
    found = [(key, part.column(POSITION).to_pylist()) for key, part in files._split(batch)]
    assert found == model(batch, work)
