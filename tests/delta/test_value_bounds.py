"""What our files say of extreme values: no filter of any engine skips a row by it.

Each file holds one value, some of them, or all; the engines' own answers without skipping are
the truth. The whole chain, from foreign files through every operation, is `make matrix`
(`tests/matrix/matrix_of_values.py`).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.parquet import go_parquet
from support.values.kinds import KINDS, OPERATORS, Kind, filters, tables
from support.values.readers import (
    Deltalake,
    DuckDB,
    Polars,
    Reader,
    SparkOnFiles,
    differences,
    live_files,
)
from support.values.tables import by_our_writer
from tandem.delta.datafiles import writer
from tandem.delta.datafiles.footer_edit import with_floats
from tandem.delta.datafiles.stats import FloatBounds
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.partitions import partition_texts, to_scalar
from tandem.delta.schema import PrimitiveType
from tandem.storage import open_store


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("values") / "t"
    by_our_writer(root, tables())
    return root


@pytest.mark.part(8)
@pytest.mark.parametrize("reader", [DuckDB(), Deltalake(), Polars()], ids=lambda r: r.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_filter_loses_a_row(written: Path, reader: Reader, kind: Kind) -> None:
    asked = list(filters(kind))
    truth = reader.evaluated(written, asked)
    assert differences(reader, truth, reader.found(written, asked), asked) == []


def test_no_bloom_filter_loses_a_row(tmp_path: Path) -> None:
    """Where a table asks for them of every column: floats have none, since Spark and deltalake look
    for one zero, and one NaN."""
    root = tmp_path / "t"
    kinds = [kind for kind in KINDS if kind.name in ("f64", "f32", "i64", "dec9", "moment")]
    by_our_writer(root, tables(kinds), {kind.name: 0.01 for kind in kinds})
    reader = Deltalake()
    asked = [each for kind in kinds for each in filters(kind, ("=",))]
    truth = reader.evaluated(root, asked)
    assert differences(reader, truth, reader.found(root, asked), asked) == []
    pages, found = map(sum, zip(*map(go_parquet.check, map(Path, live_files(root))), strict=True))
    assert (pages, found > 0) == (0, True)


@pytest.mark.part(9)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_no_filter_of_spark_loses_a_row(
    delta_spark: SparkSession, written: Path, kind: Kind
) -> None:
    asked = list(filters(kind, ("=", ">=")))
    reader = SparkOnFiles.quick(delta_spark)
    truth = reader.evaluated(written, asked)
    assert differences(reader, truth, reader.found(written, asked), asked) == []


def columns_of(root: Path, group: int = 0) -> dict[int, Any]:
    [path] = live_files(root)
    found = pq.read_metadata(path).row_group(group)
    return {index: found.column(index) for index in range(found.num_columns)}


def bounds_of(column: Any) -> str:
    """As text, which distinguishes both zeros; "" for none."""
    found = column.statistics
    if found is None or not found.has_min_max:
        return ""
    return f"{found.min} {found.max}"


def test_floats_have_bounds_where_every_reader_may_skip_by_them(tmp_path: Path) -> None:
    pair = pa.struct([("f", pa.float32()), ("n", pa.int64())])
    rows = pa.table(
        {
            "a.b": pa.array([1.0, math.nan, None]),
            "a": pa.array([{"b": "x"}] * 3, pa.struct([("b", pa.string())])),
            "deep": pa.array([{"in": {"f": 1.5, "n": 1}}, {"in": None}, None],
                             pa.struct([("in", pair)])),
            "list": pa.array([[{"f": -0.0, "n": 1}]] * 3, pa.list_(pair)),
            "map": pa.array([[("k", 0.0)]] * 3, pa.map_(pa.string(), pa.float64())),
            "zero": pa.array([0.0] * 3),
            "minus": pa.array([-0.0] * 3, pa.float32()),
            "ends": pa.array([math.inf, -math.inf, 5e-324]),
            "nulls": pa.array([None] * 3, pa.float64()),
            "nans": pa.array([math.nan] * 3),
            "n": pa.array([1, 2, 3], pa.int64()),
        }
    )  # fmt: skip
    by_our_writer(tmp_path / "t", [rows])
    columns = columns_of(tmp_path / "t")
    # The text that is called as a float is called has none.
    assert [(c.path_in_schema, bounds_of(c)) for c in columns.values()] == [
        ("a.b", ""),
        ("a.b", ""),
        ("deep.in.f", "1.5 1.5"),
        ("deep.in.n", "1 1"),
        ("list.list.element.f", ""),
        ("list.list.element.n", "1 1"),
        ("map.key_value.key", "k k"),
        ("map.key_value.value", ""),
        ("zero", "-0.0 0.0"),
        ("minus", "-0.0 0.0"),
        ("ends", "-inf inf"),
        ("nulls", ""),
        ("nans", ""),
        ("n", "1 3"),
    ]
    counts = {c.path_in_schema: c.statistics.null_count for c in columns.values() if c.is_stats_set}
    assert counts["deep.in.f"] == 2
    assert (counts["a.b"], counts["nulls"], counts["nans"], counts["zero"]) == (1, 3, 0, 0)
    for column in columns.values():
        # Without `encoding_stats` or the old PLAIN_DICTIONARY no reader asks a dictionary.
        assert "PLAIN_DICTIONARY" not in column.encodings
    [path] = live_files(tmp_path / "t")
    assert repr(pq.read_table(path).to_pydict()) == repr(rows.to_pydict())


def test_a_nan_takes_the_bounds_of_its_row_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_ROWS", 2)
    values = pa.array([1.0, 2.0, math.nan, 3.0, None, 4.0, 5.0])
    by_our_writer(tmp_path / "t", [pa.table({"x": values})])
    root = tmp_path / "t"
    assert [bounds_of(columns_of(root, n)[0]) for n in range(4)] == [
        "1.0 2.0", "", "4.0 4.0", "5.0 5.0",
    ]  # fmt: skip
    [add] = DeltaLog(open_store(root.as_uri())).snapshot().adds()
    stats = json.loads(add.stats or "")
    assert stats["nullCount"] == {"x": 1}
    assert stats["minValues"] == stats["maxValues"] == {}


@pytest.mark.parametrize("groups", [1, 40])
def test_a_corrected_footer_keeps_everything_else(groups: int) -> None:
    rows = pa.table(
        {
            "x": [float(n % 7) for n in range(groups * 10)],
            "s": [f"text {n % 3}" for n in range(groups * 10)],
            "b": [True] * (groups * 10),
        }
    )
    sink = pa.BufferOutputStream()
    floats = FloatBounds()
    # Each thing that a footer may hold.
    with pq.ParquetWriter(sink, rows.schema, write_page_index=True) as writer:
        for number in range(groups):
            group = rows.slice(number * 10, 10)
            writer.write_table(group)
            floats.add(group)
        writer.add_key_value_metadata({"k" * 300: "v" * 300})
    whole = sink.getvalue().to_pybytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    mended = with_floats(whole[start:-8], floats)
    data = whole[:start] + mended + len(mended).to_bytes(4, "little") + b"PAR1"
    old, new = (pq.read_metadata(pa.BufferReader(each)) for each in (whole, data))
    assert pq.read_table(pa.BufferReader(data)).equals(rows)
    assert new.metadata == old.metadata
    assert new.schema.equals(old.schema)
    for number in range(groups):
        before, after = old.row_group(number), new.row_group(number)
        assert [before.column(n).to_dict() for n in (0, 1, 2)] == [
            after.column(n).to_dict() for n in (0, 1, 2)
        ]


def test_a_footer_of_other_row_groups_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1.0]}), sink)
    whole = sink.getvalue().to_pybytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    with pytest.raises(ValueError, match="1 row groups were written, expected 0"):
        with_floats(whole[start:-8], FloatBounds())


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
    assert partition_texts(pa.array([value])) == [text]
    found = to_scalar(text, PrimitiveType("double"))
    assert repr(found.as_py()) == repr(value)


def test_there_are_filters_for_every_kind() -> None:
    asked: list[Any] = [f for kind in KINDS for f in filters(kind)]
    assert {(f.kind.name, f.operator) for f in asked} >= {
        (kind.name, operator) for kind in KINDS for operator in (*OPERATORS, "IS NULL")
    }
