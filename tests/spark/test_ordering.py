"""Keys of sorted rows against Python's own sorting, for every type that a column can have."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.spark.jobs.rewrite.ordering import bits_of, buckets, cuts, part_of, quantiles, z_values

UTC = dt.UTC
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "float": (pa.float32(), st.floats(allow_nan=False, width=32)),
    "string": (pa.string(), st.text(max_size=4)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC)),
    ),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
    "decimal": (pa.decimal128(38, 2), st.decimals(-(10**20), 10**20, places=2)),
}


def text(value: Any) -> Any:
    """Texts are ordered as Spark orders them, by their bytes."""
    return value.encode() if isinstance(value, str) else value


@pytest.mark.part(3)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_buckets_count_the_bounds_below(name: str, data: st.DataObject) -> None:
    type_, values = TYPES[name]
    column = data.draw(st.lists(st.none() | values, max_size=30))
    count = data.draw(st.integers(1, 8))
    array = pa.array(column, type_)
    bounds = quantiles(array, count)
    plain = [text(v) for v in bounds.to_pylist()]
    assert plain == sorted(set(plain))
    assert len(plain) < max(count, 1)
    found = buckets(array, bounds).tolist()
    for value, bucket in zip(array.to_pylist(), found, strict=True):
        below = len(plain) if value is None else sum(1 for b in plain if b <= text(value))
        assert bucket == below


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 3), st.none() | st.text(max_size=2)), max_size=40
    ),
    st.integers(1, 5),
)
def test_parts_are_of_one_size_and_in_order(
    rows: list[tuple[int | None, str | None]], parts: int
) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.int64()),
            "b": pa.array([b for _, b in rows], pa.string()),
            "place": pa.array(range(len(rows)), pa.int64()),
        }
    )
    found = part_of(table, cuts(table, parts)).tolist()

    def key(index: int) -> Any:
        a, b = rows[index]
        return (a is None, a or 0, b is None, (b or "").encode(), index)

    in_order = sorted(range(len(rows)), key=key)
    assert [found[i] for i in in_order] == sorted(found)
    sizes = [found.count(part) for part in range(parts)]
    if len(rows) >= parts:
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", TYPES)
def test_a_z_value_follows_each_column_and_nulls_come_last(name: str) -> None:
    type_, values = TYPES[name]
    drawn = sorted({text(v): v for v in _some(values)}.items())
    column = pa.array([v for _, v in drawn] + [None], type_)
    bounds = quantiles(column, 1 << bits_of(2))
    constant = pa.array([1] * len(column), pa.int64())
    z = z_values([column, constant], [bounds, quantiles(constant, 8)])
    assert sorted(z.tolist()) == z.tolist()
    assert z[-1] > z[-2]


def _some(values: st.SearchStrategy[Any]) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=50, deadline=None, database=None)
    @given(values)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


def test_a_column_of_few_values_decides_as_much_as_one_of_many() -> None:
    """20 carriers and 100,000 times: a part has few of both."""
    rng = np.random.default_rng(5)
    carrier = pa.array(rng.integers(0, 20, 20_000))
    when = pa.array(rng.integers(0, 100_000, 20_000))
    columns = [carrier, when]
    z = z_values(columns, [quantiles(c, 1 << bits_of(2)) for c in columns])
    parts = np.array_split(np.argsort(z, kind="stable"), 16)
    carriers = [len(np.unique(carrier.to_numpy()[part])) for part in parts]
    spans = [np.ptp(when.to_numpy()[part]) for part in parts]
    # 4 of each would be best: 5 carriers, 25,000.
    assert np.mean(carriers) < 8
    assert np.mean(spans) < 50_000


def test_nan_sorts_after_numbers_and_before_null() -> None:
    column = pa.array([1.0, float("nan"), None, -1.0, float("inf")])
    bounds = quantiles(column, 4)
    assert not any(np.isnan(bounds.to_numpy()))
    z = z_values([column], [bounds])
    assert z[3] < z[0] <= z[4] <= z[1] < z[2]


def test_many_columns_get_fewer_bits_each() -> None:
    assert [bits_of(n) for n in (1, 2, 6, 7, 32)] == [10, 10, 10, 8, 1]
    columns = [pa.array([0, 1]) for _ in range(32)]
    z = z_values(columns, [quantiles(c, 1 << bits_of(32)) for c in columns])
    assert z.tolist() == [0, 2**32 - 1]
