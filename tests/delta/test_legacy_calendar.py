"""Files of Spark whose old dates only Spark reads right: refused by name, never bent."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.delta import schema
from tandem.delta.legacy_calendar import FIRST_SAME_DAY, FIRST_SAME_INSTANT_US
from tandem.delta.parquet import DataFileReader, TableFormat
from tandem.errors import UnsupportedFeature
from tandem.storage.memory import MemoryStore

LEGACY = {"org.apache.spark.version": "4.2.0", "org.apache.spark.legacyDateTime": ""}
LEGACY_96 = {"org.apache.spark.version": "4.2.0", "org.apache.spark.legacyINT96": ""}
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
DAY, MOMENT, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
DELTA = {DAY: "date", MOMENT: "timestamp", LOCAL: "timestamp_ntz"}


def read(type_: pa.DataType, value: int, metadata: dict[str, str], *, nested: bool) -> list[Any]:
    """The numbers that a file's column holds, by our reader."""
    stored = pa.int32() if type_ == DAY else pa.int64()
    values = pa.array([value, None], stored).cast(type_)
    delta: Any = DELTA[type_]
    if nested:
        values = pa.array([[v] for v in values.to_pylist()], pa.list_(type_))
        delta = {"type": "array", "elementType": delta, "containsNull": True}
    field = {"name": "x", "type": delta, "nullable": True, "metadata": {}}
    table = TableFormat(schema.parse(json.dumps({"type": "struct", "fields": [field]})))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}).replace_schema_metadata(metadata), sink)
    store = MemoryStore()
    store.put("a.parquet", sink.getvalue().to_pybytes())
    with DataFileReader(store, "a.parquet", table) as reader:
        [batch] = reader.batches()
    found = batch.column("x")
    found = found.flatten() if nested else found
    numbers: list[Any] = found.cast(stored).to_pylist()
    return numbers


OLD = [(DAY, FIRST_SAME_DAY - 1), (MOMENT, FIRST_SAME_INSTANT_US - 1)]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("metadata", [LEGACY, LEGACY_96, SPARK_2], ids=["mark", "int96", "spark2"])
@pytest.mark.parametrize(("type_", "value"), OLD)
def test_what_only_spark_reads_right_is_refused(
    type_: pa.DataType, value: int, metadata: dict[str, str], nested: bool
) -> None:
    with pytest.raises(UnsupportedFeature, match="CORRECTED") as refused:
        read(type_, value, metadata, nested=nested)
    assert refused.value.resource == "a.parquet"
    assert refused.value.field == "x"


@pytest.mark.parametrize("metadata", [LEGACY, LEGACY_96, SPARK_2], ids=["mark", "int96", "spark2"])
@pytest.mark.parametrize(
    ("type_", "value"),
    [(DAY, FIRST_SAME_DAY), (MOMENT, FIRST_SAME_INSTANT_US), (LOCAL, -(10**17) // 2)],
)
def test_younger_values_are_read(type_: pa.DataType, value: int, metadata: dict[str, str]) -> None:
    assert read(type_, value, metadata, nested=False) == [value, None]


@pytest.mark.parametrize("metadata", [{}, {"org.apache.spark.version": "4.2.0"}])
@pytest.mark.parametrize(("type_", "value"), OLD)
def test_old_values_of_all_other_files_are_read(
    type_: pa.DataType, value: int, metadata: dict[str, str]
) -> None:
    assert read(type_, value, metadata, nested=False) == [value, None]
