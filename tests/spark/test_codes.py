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
from tandem.spark.jobs.rewrite import codes
from tandem.spark.jobs.rewrite.codes import codes_of, in_order, z_codes
from tandem.spark.jobs.rewrite.ordering import bits_of, quantiles, z_values

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


@settings(max_examples=60, deadline=None)
@given(columns())
def test_z_values_are_those_by_which_spark_sorts(found: list[pa.Array]) -> None:
    plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in found]
    bounds = [quantiles(column, 1 << bits_of(len(found))) for column in plain]
    expected = z_values(plain, bounds)
    assert z_codes([codes_of(column) for column in found]).values.tolist() == expected.tolist()


def test_values_beyond_the_table_are_numbered_like_those_in_it() -> None:
    few = pa.array([None if n % 9 == 0 else n * 7919 % 1000 for n in range(5000)])
    many = pa.array([None if n % 9 == 0 else (n * 7919 % 1000) << 40 for n in range(5000)])
    assert codes_of(many).top > codes._TABLE > codes_of(few).top
    in_table, beyond = (z_codes([codes_of(each), codes_of(few)]).values for each in (few, many))
    assert np.array_equal(in_table, beyond)


def test_a_z_order_of_a_sample_is_close_to_that_of_all_rows_and_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = np.random.default_rng(1).permutation(100_000)
    keys = [codes_of(pa.array(numbers)), codes_of(pa.array(numbers[::-1]))]
    whole = z_codes(keys).values
    monkeypatch.setattr(codes, "SAMPLE", 20_000)
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
