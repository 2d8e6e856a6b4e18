"""Rows in the order of integers are in the order of their values, as Python sorts them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.sort_order import sort_key
from tandem.spark.jobs import sort_codes
from tandem.spark.jobs.sort_codes import bits_of, codes_of, in_order, z_codes

TEXT = st.text(max_size=3)
MOMENT = st.datetimes()
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "few": (pa.int32(), st.integers(-2, 2)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "few doubles": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, -math.inf, 1.5])),
    "short decimal": (pa.decimal128(18, 2), st.decimals(-(10**15), 10**15, places=2)),
    "long decimal": (pa.decimal128(38, 1), st.decimals(-(10**30), 10**30, places=1)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us"), MOMENT),
    "instant": (pa.timestamp("us", "UTC"), MOMENT.map(lambda m: m.replace(tzinfo=dt.UTC))),
    "text": (pa.string(), TEXT),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "nothing": (pa.int64(), st.none()),
}


@st.composite
def columns(draw: st.DrawFn) -> list[pa.Array]:
    rows = draw(st.integers(1, 40))
    found = []
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4)):
        type_, values = KINDS[kind]
        some = values if draw(st.booleans()) else st.none() | values
        content = draw(st.lists(some, min_size=rows + 1, max_size=rows + 1))
        # With an offset, as slices have.
        found.append(pa.array(content, type_).slice(1))
    return found


@settings(max_examples=60, deadline=None)
@given(columns())
@example([pa.array([-(2**63), None, 2**63 - 1, None, 0])])
@example([pa.array([2**63 - 1, -(2**63), 0]), pa.array([1.0, None, -1.0])])
@example([pa.array([math.nan, None, -math.nan, math.inf, 0.0, -0.0])])
@example([pa.array([Decimal(-1), Decimal(10**17), None], pa.decimal128(18, 0))])
def test_rows_are_in_the_order_of_their_values_and_equal_ones_as_they_were(
    found: list[pa.Array],
) -> None:
    rows = len(found[0])
    keys = list(zip(*(map(sort_key, column.to_pylist()) for column in found), strict=True))
    expected = sorted(range(rows), key=lambda row: keys[row])
    assert in_order([codes_of(column) for column in found], rows).tolist() == expected


def modelled_z_values(found: list[pa.Array]) -> list[int]:
    """Value by value: the number of each by the quantiles of its column, spread over all bits that
    a column has, and the bits interleaved."""
    bits = bits_of(len(found))
    numbers = [numbered(column.to_pylist(), bits) for column in found]
    return [
        sum(
            ((number >> bit) & 1) << (bit * len(found) + len(found) - 1 - column)
            for column, number in enumerate(row)
            for bit in range(bits)
        )
        for row in zip(*numbers, strict=True)
    ]


def numbered(values: list[Any], bits: int) -> list[int]:
    """Null comes after all values, NaN at their end."""
    known = sorted(sort_key(v) for v in values if v is not None and v == v)
    picked = [known[n * len(known) // 2**bits] for n in range(1, 2**bits)] if known else []
    bounds = sorted({each for each in picked if each != known[0]})
    last = len(bounds) + (None in values)
    buckets = [last if v is None else sum(each <= sort_key(v) for each in bounds) for v in values]
    return [bucket * (2**bits - 1) // last if last else bucket for bucket in buckets]


@settings(max_examples=60, deadline=None)
@given(columns())
def test_z_values_are_the_interleaved_bits_of_quantiles(found: list[pa.Array]) -> None:
    z = z_codes([codes_of(column) for column in found]).values.tolist()
    assert z == modelled_z_values(found)


@pytest.mark.parametrize("count", [1, 2, 6, 7, 32])
def test_many_columns_get_fewer_bits_each(count: int) -> None:
    bits = {1: 10, 2: 10, 6: 10, 7: 8, 32: 1}[count]
    assert bits_of(count) == bits
    z = z_codes([codes_of(pa.array([0, 1])) for _ in range(count)]).values
    assert z.tolist() == [0, 2 ** (bits * count) - 1]


def test_a_column_of_few_values_decides_as_much_as_one_of_many() -> None:
    """20 carriers and 100,000 times: a part has few of both."""
    chance = np.random.default_rng(5)
    carrier, when = chance.integers(0, 20, 20_000), chance.integers(0, 100_000, 20_000)
    z = z_codes([codes_of(pa.array(carrier)), codes_of(pa.array(when))]).values
    parts = np.array_split(np.argsort(z, kind="stable"), 16)
    # 4 of each would be best: 5 carriers, 25,000.
    assert np.mean([len(np.unique(carrier[part])) for part in parts]) < 8
    assert np.mean([np.ptp(when[part]) for part in parts]) < 50_000


def test_values_beyond_the_table_are_numbered_like_those_in_it() -> None:
    few = pa.array([None if n % 9 == 0 else n * 7919 % 1000 for n in range(5000)])
    many = pa.array([None if n % 9 == 0 else (n * 7919 % 1000) << 40 for n in range(5000)])
    assert codes_of(many).top > sort_codes._TABLE > codes_of(few).top
    in_table, beyond = (z_codes([codes_of(each), codes_of(few)]).values for each in (few, many))
    assert np.array_equal(in_table, beyond)


def test_a_z_order_of_a_sample_is_close_to_that_of_all_rows_and_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = np.random.default_rng(1).permutation(100_000)
    keys = [codes_of(pa.array(numbers)), codes_of(pa.array(numbers[::-1]))]
    whole = z_codes(keys).values
    monkeypatch.setattr(sort_codes, "SAMPLE", 20_000)
    found = z_codes(keys).values
    assert np.array_equal(found, z_codes(keys).values)
    # By the highest bit of each column: in which half a value lies.
    assert np.mean(whole >> 18 == found >> 18) > 0.97


def test_long_keys_take_several_words() -> None:
    chance = np.random.default_rng(3)
    found = [chance.integers(-(2**62), 2**62, 3000) // 2**55 * 2**55 for _ in range(5)]
    expected = np.lexsort(found[::-1])
    assert np.array_equal(in_order([codes_of(pa.array(c)) for c in found], 3000), expected)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows(rows: int) -> None:
    found = codes_of(pa.array(range(rows, 0, -1), pa.int64()))
    assert in_order([found], rows).tolist() == list(range(rows))[::-1]
