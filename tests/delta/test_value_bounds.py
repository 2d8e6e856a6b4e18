"""What our files say of extreme values: no filter of any engine skips a row by it.

Each file holds one value, some of them, or all; the engines' own answers without skipping are
the truth. The whole chain, from foreign files through every operation, is `make matrix`
(`tests/matrix/matrix_of_values.py`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.value_kinds import KINDS, OPERATORS, Kind, filters, tables
from support.value_readers import Deltalake, DuckDB, Polars, Reader, Spark, differences, live_files
from support.value_tables import by_our_writer
from tandem.delta.partition_text import to_scalar
from tandem.delta.schema import PrimitiveType
from tandem.delta.values import to_partition_text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("values") / "t"
    by_our_writer(root, tables())
    return root


@pytest.mark.parametrize("reader", [DuckDB(), Deltalake(), Polars()], ids=lambda r: r.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_filter_loses_a_row(written: Path, reader: Reader, kind: Kind) -> None:
    asked = list(filters(kind))
    truth = reader.told(written, asked)
    assert differences(reader, truth, reader.found(written, asked), asked) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_filter_of_spark_loses_a_row(
    delta_spark: SparkSession, written: Path, kind: Kind
) -> None:
    asked = list(filters(kind, ("=", "<=", ">=")))
    reader = Spark(delta_spark)
    truth = reader.told(written, asked)
    assert differences(reader, truth, reader.found(written, asked), asked) == []


def test_no_float_has_a_bound_or_a_dictionary(tmp_path: Path) -> None:
    pair = pa.struct([("f", pa.float32()), ("n", pa.int64())])
    rows = pa.table(
        {
            "a.b": pa.array([1.0, math.nan, None]),
            "a": pa.array([{"b": "x"}] * 3, pa.struct([("b", pa.string())])),
            "deep": pa.array([{"in": {"f": 1.0, "n": 1}}] * 3, pa.struct([("in", pair)])),
            "list": pa.array([[{"f": -0.0, "n": 1}]] * 3, pa.list_(pair)),
            "map": pa.array([[("k", 0.0)]] * 3, pa.map_(pa.string(), pa.float64())),
            "n": pa.array([1, 2, 3], pa.int64()),
        }
    )
    by_our_writer(tmp_path / "t", [rows])
    [path] = live_files(tmp_path / "t")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    for column in columns:
        if column.physical_type in ("FLOAT", "DOUBLE"):
            assert not column.is_stats_set, column.path_in_schema
            assert not column.has_dictionary_page, column.path_in_schema
    bounded = {c.path_in_schema for c in columns if c.is_stats_set and c.statistics.has_min_max}
    # `a.b` is the name of a float, too.
    assert bounded == {"deep.in.n", "list.list.element.n", "map.key_value.key", "n"}
    assert pq.read_table(path).to_pydict()["n"] == [1, 2, 3]


def test_every_bit_of_a_float_is_kept(tmp_path: Path) -> None:
    bits = [0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000, 0, 1]
    column = pa.array(bits, pa.uint64()).view(pa.float64())
    by_our_writer(tmp_path / "t", [pa.table({"x": column})])
    [path] = live_files(tmp_path / "t")
    [found] = pq.read_table(path)["x"].chunks
    assert found.view(pa.uint64()).to_pylist() == bits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (-0.0, "-0.0"),
        (5e-324, "5e-324"),
    ],
)
def test_floats_as_partition_values_are_spelt_as_java_reads_them(value: float, text: str) -> None:
    assert to_partition_text(value) == text
    found = to_scalar(text, PrimitiveType("double"))
    assert repr(found.as_py()) == repr(value)


def test_there_are_filters_for_every_kind() -> None:
    asked: list[Any] = [f for kind in KINDS for f in filters(kind)]
    assert {(f.kind.name, f.operator) for f in asked} >= {
        (kind.name, operator) for kind in KINDS for operator in (*OPERATORS, "IS NULL")
    }
